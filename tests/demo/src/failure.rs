//! How the demo ends when it does not end well.

use std::io::{self, Write as _};
use std::process::ExitCode;

use fabrique_stage::{Fabrique, Stage};

/// What a shell reports of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// Lines of a log that help; more would hide the message.
const TAIL: usize = 15;

/// Why the demo ended early.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// Somebody pressed Ctrl-C, or asked it to end in another way.
    Interrupted,
    /// A step failed.
    Failed {
        /// The step, as the screen names it.
        step: &'static str,
        /// Why.
        error: anyhow::Error,
        /// What the product says about it.
        evidence: String,
    },
}

impl Stopped {
    /// A step failed, and nothing is known but its error.
    pub(crate) fn failed(step: &'static str, error: impl Into<anyhow::Error>) -> Self {
        Self::Failed { step, error: error.into(), evidence: String::new() }
    }

    /// Adds what fabrique says, while it still can.
    pub(crate) async fn with_evidence(self, stage: &Stage, fabrique: &Fabrique, app: &str) -> Self {
        match self {
            Self::Interrupted => Self::Interrupted,
            Self::Failed { step, error, .. } => {
                Self::Failed { step, error, evidence: evidence(stage, fabrique, app).await }
            }
        }
    }

    /// Says it on standard error, and how the process is to end.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Interrupted => {
                complain("demo: interrupted; everything is stopped");
                ExitCode::from(INTERRUPTED)
            }
            Self::Failed { step, error, evidence } => complain(&format!(
                "\n{evidence}demo: step {step:?} failed: {error:#}\ndemo: everything is stopped"
            )),
        }
    }
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::failed("output", error)
    }
}

/// Says something on standard error. The exit code is that of a failure.
pub(crate) fn complain(text: &str) -> ExitCode {
    // With standard error closed the exit code still tells.
    let _ = writeln!(io::stderr().lock(), "{text}");
    ExitCode::FAILURE
}

async fn evidence(stage: &Stage, fabrique: &Fabrique, app: &str) -> String {
    let mut told = String::new();
    for verb in ["why", "logs"] {
        let (_, stdout, stderr) = stage.try_command(&[verb, app]).await.unwrap_or_default();
        let heading = format!("fabrique {verb} {app}");
        told += &block(&heading, if stdout.trim().is_empty() { &stderr } else { &stdout });
    }
    told + &block("the end of fabrique's own log", &fabrique.peer.log_tail(TAIL))
}

/// The last lines of a text under a heading; nothing for an empty text.
fn block(heading: &str, text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let tail = &lines[lines.len().saturating_sub(TAIL)..];
    if tail.is_empty() { String::new() } else { format!("---- {heading}\n{}\n\n", tail.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_shows_the_end_of_a_long_text() {
        let text: String = (0..100).map(|number| format!("line {number}\n")).collect();
        let shown = block("a log", &text);
        assert!(shown.starts_with("---- a log\nline 85\n"), "{shown}");
        assert!(shown.ends_with("line 99\n\n"), "{shown}");
    }

    #[test]
    fn an_empty_text_has_no_heading() {
        assert_eq!(block("a log", "\n"), "");
    }
}
