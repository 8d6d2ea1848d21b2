//! What a push came to, from the report of the forge's git.

use fabrique_core::id::Revision;
use fabrique_ports::deployments::PushOutcome;

use crate::command::shown;
use crate::error::GitError;
use crate::report::Report;

/// A moved branch, in the words of git: the update of the reference, or the lock on it.
const MOVED: [&str; 6] = [
    "incorrect old value provided",
    // What it builds on went away, after a reset.
    "missing necessary objects",
    "cannot lock ref",
    "failed to lock",
    "reference does not exist",
    "non-fast-forward",
];
/// A hook's or the server's no, after which the branch is certainly where it was.
const NO: [&str; 4] = ["hook declined", "protected", "prohibited", "denied"];

/// Reads the answer to the push of one branch to `tip`.
///
/// # Errors
/// When it is certain that the branch was not moved and that waiting may help: the forge failed inside, before it
/// looked at the push or when it wrote the branch.
pub(crate) fn outcome(answer: &[u8], reference: &str, tip: &Revision) -> Result<PushOutcome, GitError> {
    let report = match Report::parse(answer, reference) {
        Ok(report) => report,
        Err(why) => return Ok(PushOutcome::Unknown(why.to_owned())),
    };
    let said = words(&report.said);
    let unpacked = report.unpack.as_deref().unwrap_or("no report");
    match report.branch {
        Some(Ok(())) => Ok(PushOutcome::Pushed),
        // The forge could not take the objects: for want of space, or of what they build on after a reset.
        _ if unpacked != "ok" => Ok(PushOutcome::Unknown(shown(&format!("{unpacked}\n{said}")))),
        Some(Err(reason)) => refused(&reason, &said, tip),
        None => Ok(PushOutcome::Unknown(shown(&format!("no word about the branch\n{said}")))),
    }
}

fn refused(reason: &str, said: &str, tip: &Revision) -> Result<PushOutcome, GitError> {
    let moved = |text: &str| MOVED.iter().any(|words| text.contains(words));
    if NO.iter().any(|words| reason.contains(words)) {
        // Gitea's hook asks Gitea itself; when that fails the hook declines as well.
        if said.to_ascii_lowercase().contains("internal server") {
            return Err(GitError::Unreachable(shown(said)));
        }
        let text = if said.is_empty() { reason } else { said };
        Ok(PushOutcome::Refused(shown(text)))
    } else if said.contains(&format!("is at {tip}")) {
        // Somebody on the way sent the request twice, and this is the answer to the second.
        Ok(PushOutcome::Pushed)
    } else if moved(reason) || moved(said) {
        // With `atomic` the reason is "atomic transaction failed", and only the messages say of what. By then the
        // forge has the commit's objects, so that asking whether the commit is there would mislead.
        Ok(PushOutcome::Moved)
    } else {
        // Nothing of ours is on the branch, though the forge has the objects by now: no question for `read back`.
        Err(GitError::NotMoved(shown(&format!("{reason}\n{said}"))))
    }
}

/// What was said, line by line and without git's mark of an error.
fn words(said: &str) -> String {
    let lines = said.split(['\n', '\r']).map(str::trim);
    let lines = lines.map(|line| line.strip_prefix("error:").unwrap_or(line).trim());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::answer;

    const MAIN: &str = "refs/heads/main";

    fn tip() -> Revision {
        Revision::parse(&"2".repeat(40)).unwrap()
    }

    fn answered(lines: &[&str], said: &str) -> Result<PushOutcome, GitError> {
        outcome(&answer(lines, said, 30), MAIN, &tip())
    }

    /// The branch was not moved, for this reason.
    fn declined(reason: &str, said: &str) -> Result<PushOutcome, GitError> {
        answered(&["unpack ok", &format!("ng {MAIN} {reason}")], said)
    }

    #[test]
    fn an_accepted_push_is_pushed() {
        let outcome = answered(&["unpack ok", "ok refs/heads/main"], "remote words").unwrap();
        assert_eq!(outcome, PushOutcome::Pushed);
        let twice = format!("error: cannot lock ref '{MAIN}': is at {} but expected 1", tip());
        assert_eq!(declined("atomic transaction failed", &twice).unwrap(), PushOutcome::Pushed);
    }

    #[test]
    fn every_way_to_lose_a_race_is_moved() {
        for reason in [
            "incorrect old value provided",
            "failed to lock",
            "reference does not exist",
            "missing necessary objects",
            "cannot lock ref 'x'",
        ] {
            assert_eq!(declined(reason, "").unwrap(), PushOutcome::Moved, "{reason}");
        }
        for reason in ["atomic transaction failed", "failed to update ref"] {
            let lock = "error: cannot lock ref 'refs/heads/main': is at 1 but expected 2\n";
            assert_eq!(declined(reason, lock).unwrap(), PushOutcome::Moved, "{reason}");
        }
    }

    #[test]
    fn a_hooks_no_is_told_in_the_forges_words() {
        let hook = "pre-receive hook declined";
        let said = "\nGitea: Not allowed to push to protected branch main\n\n";
        let text = "Gitea: Not allowed to push to protected branch main".to_owned();
        assert_eq!(declined(hook, said).unwrap(), PushOutcome::Refused(text));
        let said = "error:\nerror: User permission denied for writing.\nerror:\n";
        let text = "User permission denied for writing.".to_owned();
        assert_eq!(declined(hook, said).unwrap(), PushOutcome::Refused(text));
        assert_eq!(declined(hook, "").unwrap(), PushOutcome::Refused(hook.to_owned()));
        let broken = declined(hook, "Gitea: Internal Server Connection Error");
        assert!(matches!(broken, Err(GitError::Unreachable(_))), "{broken:?}");
    }

    #[test]
    fn a_forge_that_could_not_write_the_branch_did_not() {
        for (reason, said) in
            [("failed to update ref", ""), ("atomic transaction failed", "error: something else")]
        {
            let outcome = declined(reason, said);
            assert!(matches!(outcome, Err(GitError::NotMoved(_))), "{reason}: {outcome:?}");
        }
    }

    #[test]
    fn what_is_unclear_is_unknown() {
        for (lines, said) in [
            (
                &["unpack index-pack abnormal exit", "ng refs/heads/main unpacker error"][..],
                "fatal: no space",
            ),
            (&["unpack ok"], ""),
            (&[], "fatal: something"),
            (&[], ""),
        ] {
            let outcome = answered(lines, said);
            assert!(matches!(outcome, Ok(PushOutcome::Unknown(_))), "{lines:?} {said}: {outcome:?}");
        }
        let unpacker = answered(&["unpack index-pack abnormal exit", "ng x y"], "fatal: no space\n").unwrap();
        assert_eq!(unpacker, PushOutcome::Unknown("index-pack abnormal exit; fatal: no space".to_owned()));
        let html = outcome(b"<html>", MAIN, &tip());
        assert!(matches!(html, Ok(PushOutcome::Unknown(_))), "{html:?}");
    }
}
