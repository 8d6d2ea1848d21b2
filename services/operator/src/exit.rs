//! How a command ends, for scripts.

use fabrique_ports::{Fault, PortError};
use serde::Serialize;

/// The exit codes of `fabrique`. They are part of its interface: new ones may come, these do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Exit {
    /// 0: done, and nothing to complain about.
    Ok = 0,
    /// 1: it ran, and the answer is no: findings, a failed check, a refused command, a failed build.
    Findings = 1,
    /// 2: it was asked wrongly: arguments, configuration, an app or build that does not exist.
    Usage = 2,
    /// 3: something it needs did not answer. The same command may work later.
    Unreachable = 3,
    /// 4: credentials were refused or rights are missing. It will not work until a person changes that.
    Denied = 4,
    /// 5: an answer that makes no sense: a defect, or an incompatible server.
    Unexpected = 5,
}

impl Exit {
    /// The process's exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// [`Exit::Ok`] or [`Exit::Findings`].
    #[must_use]
    pub fn ok_if(well: bool) -> Self {
        if well { Exit::Ok } else { Exit::Findings }
    }

    /// How a process ends that did several things which ended so: with what a person has to do something about before
    /// anything else can help, the highest code.
    #[must_use]
    pub fn worst(all: impl IntoIterator<Item = Exit>) -> Self {
        all.into_iter().max().unwrap_or(Exit::Ok)
    }
}

impl From<&PortError> for Exit {
    fn from(error: &PortError) -> Self {
        match error.fault() {
            Fault::Transient => Exit::Unreachable,
            Fault::Denied => Exit::Denied,
            Fault::Unexpected => Exit::Unexpected,
        }
    }
}

#[cfg(test)]
mod tests {
    use fabrique_ports::Peer;

    use super::*;

    #[test]
    fn codes_are_fixed() {
        let all = [Exit::Ok, Exit::Findings, Exit::Usage, Exit::Unreachable, Exit::Denied, Exit::Unexpected];
        assert_eq!(all.map(Exit::code), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn of_several_ends_the_one_counts_that_needs_most() {
        assert_eq!(Exit::worst([]), Exit::Ok);
        assert_eq!(Exit::worst([Exit::Ok, Exit::Unreachable, Exit::Findings]), Exit::Unreachable);
        assert_eq!(Exit::worst([Exit::Denied, Exit::Unreachable]), Exit::Denied);
    }

    #[test]
    fn an_error_ends_with_the_code_of_what_helps_against_it() {
        let of = |fault| Exit::from(&PortError::new(Peer::Bus, fault, "no"));
        assert_eq!(of(Fault::Transient), Exit::Unreachable);
        assert_eq!(of(Fault::Denied), Exit::Denied);
        assert_eq!(of(Fault::Unexpected), Exit::Unexpected);
    }
}
