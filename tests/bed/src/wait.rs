//! Waiting on a condition instead of sleeping.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How long a check that is slow itself may delay the next one.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Polls `check` until it answers `Some`, and returns what it answered.
///
/// `what` completes the sentence "gave up waiting for …". The pause between two polls grows from 5 ms to
/// 200 ms, so that quick conditions are seen quickly and slow ones cost little. It is never shorter than the check
/// took, up to a second: one that starts a process would otherwise keep a core from what it waits for.
///
/// # Errors
/// When `timeout` passes first; the check that runs at that moment is cut off too.
pub async fn wait_until<T, C, F>(what: &str, timeout: Duration, mut check: C) -> Result<T>
where
    C: FnMut() -> F,
    F: Future<Output = Option<T>>,
{
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut polls = 0_u32;
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        polls += 1;
        let asked = Instant::now();
        if let Ok(Some(value)) = tokio::time::timeout(left, check()).await {
            return Ok(value);
        }
        if start.elapsed() >= timeout {
            bail!("gave up waiting for {what} after {:.1} s and {polls} polls", timeout.as_secs_f32());
        }
        let rest = pause.max(asked.elapsed().min(LONGEST_REST));
        tokio::time::sleep(rest.min(timeout.saturating_sub(start.elapsed()))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_the_value_once_the_condition_holds() {
        let mut polls = 0;
        let value = wait_until("three polls", Duration::from_secs(5), || {
            polls += 1;
            let value = (polls == 3).then_some(polls);
            async move { value }
        });
        assert_eq!(value.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_check_that_hangs_is_cut_off_and_named() {
        let never = wait_until("a miracle", Duration::from_millis(30), std::future::pending::<Option<()>>);
        assert!(never.await.unwrap_err().to_string().contains("waiting for a miracle"));
    }
}
