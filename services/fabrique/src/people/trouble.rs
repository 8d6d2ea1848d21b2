//! What went wrong, as one line and an exit code.

use std::io::{self, ErrorKind};

use fabrique_operator::{Exit, OperatorError};
use fabrique_ports::PortError;

use crate::people::console::remark;

/// Something that the command line itself objects to.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Complaint {
    exit: Exit,
    text: String,
}

impl Complaint {
    /// The caller has to say it differently: arguments, or the configuration.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, text: text.into() }
    }

    /// It was looked, and what is there is not as it has to be.
    pub(crate) fn findings(text: impl Into<String>) -> Self {
        Self { exit: Exit::Findings, text: text.into() }
    }
}

/// Says what went wrong and how the process ends. A reader that is gone is nothing to talk about.
pub(crate) fn complain(error: &anyhow::Error) -> Exit {
    if is_broken_pipe(error) {
        return Exit::Ok;
    }
    remark(&sentence(error));
    exit(error)
}

/// How the process ends.
fn exit(error: &anyhow::Error) -> Exit {
    if let Some(complaint) = error.downcast_ref::<Complaint>() {
        complaint.exit
    } else if let Some(error) = error.downcast_ref::<OperatorError>() {
        error.exit()
    } else if let Some(error) = error.downcast_ref::<PortError>() {
        error.into()
    } else {
        Exit::Findings
    }
}

/// The causes on one line. Errors of a port say all there is to say; what is below them is for logs.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !told.contains(&text) {
            told.push_str(if told.is_empty() { "" } else { ": " });
            told.push_str(&text);
        }
        if cause.is::<PortError>() || cause.is::<OperatorError>() {
            break;
        }
    }
    told.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &io::Error| cause.kind() == ErrorKind::BrokenPipe;
    error.downcast_ref::<io::Error>().is_some_and(broken)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use fabrique_ports::{Fault, Peer};

    use super::*;

    fn unreachable() -> PortError {
        PortError::new(Peer::Bus, Fault::Transient, "no answer")
            .remedy("is it running?")
            .caused_by(io::Error::other("connection refused"))
    }

    #[test]
    fn an_error_of_a_port_is_told_once_with_its_remedy() {
        let error = anyhow::Error::from(unreachable()).context("as role operator");
        assert_eq!(sentence(&error), "as role operator: NATS: no answer (is it running?)");
        assert_eq!(exit(&error), Exit::Unreachable);
    }

    #[test]
    fn the_exit_code_follows_the_error_through_its_contexts() {
        assert_eq!(exit(&OperatorError::Port(unreachable()).into()), Exit::Unreachable);
        assert_eq!(exit(&OperatorError::UnknownBuild("x".to_owned()).into()), Exit::Usage);
        assert_eq!(exit(&Complaint::usage("no").into()), Exit::Usage);
        assert_eq!(exit(&Complaint::findings("no").into()), Exit::Findings);
        assert_eq!(exit(&anyhow::anyhow!("something else")), Exit::Findings);
    }

    #[test]
    fn causes_follow_on_the_same_line_and_none_is_told_twice() {
        let causes: Result<(), _> = Err(io::Error::other("first\nsecond"));
        let error = causes.context("reading").context("reading").unwrap_err();
        assert_eq!(sentence(&error), "reading: first second");
    }

    #[test]
    fn a_reader_that_is_gone_ends_well() {
        let error = anyhow::Error::from(io::Error::from(ErrorKind::BrokenPipe));
        assert_eq!(complain(&error), Exit::Ok);
    }
}
