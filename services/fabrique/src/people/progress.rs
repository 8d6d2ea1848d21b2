//! What takes long says so, to people only.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Whoever waits less than this needs no word.
const QUIET: Duration = Duration::from_millis(400);
/// Back to the line's start, and nothing on it.
const CLEAR: &str = "\r\u{1b}[K";

/// Does `work`, and shows on a terminal's standard error that it is under way and for how long.
pub(crate) async fn showing<T>(what: &str, work: impl Future<Output = T>) -> T {
    if !io::stderr().is_terminal() {
        return work.await;
    }
    let start = Instant::now();
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + QUIET, Duration::from_secs(1));
    let mut work = std::pin::pin!(work);
    let mut shown = false;
    loop {
        tokio::select! {
            done = &mut work => {
                if shown {
                    draw(CLEAR);
                }
                return done;
            }
            _ = tick.tick() => {
                draw(&format!("{CLEAR}{what} … {} s", start.elapsed().as_secs()));
                shown = true;
            }
        }
    }
}

fn draw(text: &str) {
    let mut stderr = io::stderr().lock();
    // Nobody watches when this fails.
    drop(stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()));
}
