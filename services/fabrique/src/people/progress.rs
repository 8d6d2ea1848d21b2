//! What takes long says so, to people only.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::people::table::cut;

/// Whoever waits less than this needs no word.
const QUIET: Duration = Duration::from_millis(400);
/// How often the line is drawn anew.
const BEAT: Duration = Duration::from_millis(500);
/// Back to the line's start, and nothing on it.
const CLEAR: &str = "\r\u{1b}[K";
/// Of a terminal that does not say how wide it is.
const USUAL_WIDTH: usize = 80;

/// What is waited for at the moment.
pub(crate) struct Progress(Mutex<String>);

impl Progress {
    /// Waiting for this, to begin with.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(Mutex::new(what.into()))
    }

    /// Waiting for something else now.
    pub(crate) fn tell(&self, what: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// Does `work`, and shows on a terminal's standard error what is waited for and for how long.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        if !io::stderr().is_terminal() {
            return work.await;
        }
        let start = Instant::now();
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + QUIET, BEAT);
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
                    draw(&format!("{CLEAR}{}", self.line(start.elapsed())));
                    shown = true;
                }
            }
        }
    }

    /// A line that wrapped could not be taken back.
    fn line(&self, passed: Duration) -> String {
        let what = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let width = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| usize::from(width.0));
        let time = format!(" … {} s", passed.as_secs());
        let room = width.unwrap_or(USUAL_WIDTH).saturating_sub(time.chars().count() + 1);
        format!("{}{time}", cut(&what, room))
    }
}

/// Does `work`, and shows that it is under way.
pub(crate) async fn showing<T>(what: &str, work: impl Future<Output = T>) -> T {
    Progress::new(what).during(work).await
}

fn draw(text: &str) {
    let mut stderr = io::stderr().lock();
    // Nobody watches when this fails.
    drop(stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()));
}
