//! What a fabrique process says.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fabrique_bed::wait_until;

use crate::stage::Fabrique;

/// How long a line may take to be logged.
const LOGGED: Duration = Duration::from_secs(60);

impl Fabrique {
    /// Its log so far, over all its lives.
    #[must_use]
    pub fn log(&self) -> String {
        self.peer.log_tail(usize::MAX)
    }

    /// How many lines of its log contain every one of `words`.
    #[must_use]
    pub fn logged(&self, words: &[&str]) -> usize {
        self.log().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// The values of `field` in the lines that contain every one of `words`, oldest first.
    #[must_use]
    pub fn values(&self, words: &[&str], field: &str) -> Vec<String> {
        let log = self.log();
        let lines = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
        let value = |line: &str| Some(line.split_once(&format!("{field}="))?.1.split(' ').next()?.to_owned());
        lines.filter_map(value).collect()
    }

    /// Waits until `times` lines contain every one of `words`.
    ///
    /// # Errors
    /// When they do not in a minute, with the end of the log.
    pub async fn logs(&self, times: usize, words: &[&str]) -> Result<()> {
        let what = format!("{} to log {words:?} {times} times", self.peer.name());
        let logged = wait_until(&what, LOGGED, || async { (self.logged(words) >= times).then_some(()) });
        logged.await.with_context(|| self.peer.log_tail(30))
    }
}

impl Drop for Fabrique {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show(&format!("---- {}\n{}\n", self.peer.name(), self.peer.log_tail(60)));
        }
    }
}

#[expect(clippy::print_stderr, reason = "only the macro's output is captured with the failing test's")]
fn show(log: &str) {
    eprintln!("{log}");
}
