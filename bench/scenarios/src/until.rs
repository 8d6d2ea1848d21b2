//! Waiting for something to hold, with the last reason why it did not.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

/// Each look at a cluster is a process or two: no reason to look more often.
const PAUSE: Duration = Duration::from_millis(300);

/// Looks until `check` is content, and returns what it found.
///
/// # Errors
/// When it is not in `limit`, with its last objection.
pub async fn until<T>(what: &str, limit: Duration, mut check: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let mut last = anyhow!("it was not looked at even once");
    loop {
        let left = limit.saturating_sub(start.elapsed());
        match tokio::time::timeout(left, check()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(objection)) => last = objection,
            // The look before it has said more.
            Err(_) => {}
        }
        if start.elapsed() >= limit {
            return Err(last).with_context(|| format!("not in {} s: {what}", limit.as_secs()));
        }
        tokio::time::sleep(PAUSE.min(limit.saturating_sub(start.elapsed()))).await;
    }
}
