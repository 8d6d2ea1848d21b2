//! What a push came to, from `git push --porcelain`.

use fabrique_ports::deployments::PushOutcome;

use crate::command::{Answer, Output, answer, shown};
use crate::error::GitError;

/// A moved branch, in the words of this git and of the one behind the forge: the lease, the update of the
/// reference, or the lock on it.
const MOVED: [&str; 7] = [
    "stale info",
    "fetch first",
    "non-fast-forward",
    "needs force",
    "incorrect old value provided",
    "cannot lock ref",
    "failed to lock",
];
/// A hook's or the server's no, after which the branch is certainly where it was.
const NO: [&str; 4] = ["hook declined", "protected", "prohibited", "denied"];

/// Reads the outcome of pushing one branch.
///
/// # Errors
/// When it is certain that nothing arrived and that waiting may help: the forge was not reached, or failed
/// inside before it looked at the push.
pub(crate) fn outcome(output: &Output) -> Result<PushOutcome, GitError> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = stdout.lines().find_map(Line::parse);
    match line {
        Some(Line { flag: '!', reason }) => Ok(refused(&reason, &output.stderr)?),
        Some(Line { flag: ' ' | '=' | '*', .. }) if output.succeeded() => Ok(PushOutcome::Pushed),
        Some(_) => Ok(PushOutcome::Unknown(shown(&output.stderr))),
        None => without_line(output),
    }
}

/// A branch's line: `<flag>TAB<from>:<to>TAB<summary> (<reason>)`.
struct Line {
    flag: char,
    reason: String,
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(3, '\t');
        let (flag, refs, summary) = (fields.next()?, fields.next()?, fields.next()?);
        let mut flag = flag.chars();
        let (Some(flag), None, true) = (flag.next(), flag.next(), refs.contains(':')) else { return None };
        Some(Self { flag, reason: summary.to_owned() })
    }
}

fn refused(reason: &str, stderr: &str) -> Result<PushOutcome, GitError> {
    let said = remote_words(stderr);
    let moved = |text: &str| MOVED.iter().any(|words| text.contains(words));
    if moved(reason) {
        Ok(PushOutcome::Moved)
    } else if NO.iter().any(|words| reason.contains(words)) {
        // Gitea's hook asks Gitea itself; when that fails the hook declines as well.
        if said.to_ascii_lowercase().contains("internal server") {
            return Err(GitError::Unreachable(said));
        }
        Ok(PushOutcome::Refused(if said.is_empty() { shown(reason) } else { said }))
    } else if moved(&said) {
        // With --atomic the line says "atomic transaction failed", and only the other side says of what. By then it
        // has the commit's objects, so that asking whether the commit is there would mislead.
        Ok(PushOutcome::Moved)
    } else {
        Ok(PushOutcome::Unknown(shown(&format!("{reason}\n{stderr}"))))
    }
}

/// No word about the branch: the conversation ended early, and how early decides.
fn without_line(output: &Output) -> Result<PushOutcome, GitError> {
    let said = shown(&output.stderr);
    // Git says "unable to access" of its first request only, which writes nothing.
    let asked_only = output.stderr.lines().any(|line| line.starts_with("fatal: unable to access"));
    match answer(&output.stderr) {
        Answer::Refused => Ok(PushOutcome::Refused(said)),
        Answer::Unreachable if asked_only => Err(GitError::Unreachable(said)),
        Answer::Unreachable | Answer::DiskFull | Answer::Other => Ok(PushOutcome::Unknown(said)),
    }
}

/// What the forge itself says, without git's words around it.
fn remote_words(stderr: &str) -> String {
    let lines = stderr.lines().filter_map(|line| line.strip_prefix("remote:")).map(str::trim);
    let words = lines.map(|line| line.strip_prefix("error:").unwrap_or(line).trim());
    let text = words.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    if text.is_empty() { text } else { shown(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32, stdout: &'static str, stderr: &str) -> Result<PushOutcome, GitError> {
        outcome(&Output::of("push", Some(code), stdout, stderr))
    }

    fn line(summary: &str) -> String {
        format!("To http://forge/a.git\n!\tabc:refs/heads/main\t{summary}\nDone\n")
    }

    #[test]
    fn an_accepted_push_is_pushed() {
        let stdout = "To http://forge/a.git\n \tabc:refs/heads/main\t111..222\nDone\n";
        assert_eq!(ended(0, stdout, "").unwrap(), PushOutcome::Pushed);
        let stdout = "To http://forge/a.git\n=\tabc:refs/heads/main\t[up to date]\nDone\n";
        assert_eq!(ended(0, stdout, "").unwrap(), PushOutcome::Pushed);
    }

    #[test]
    fn every_way_to_lose_a_race_is_moved() {
        for summary in [
            "[rejected] (stale info)",
            "[rejected] (fetch first)",
            "[rejected] (non-fast-forward)",
            "[remote rejected] (incorrect old value provided)",
            "[remote rejected] (cannot lock ref 'refs/heads/main': is at 1 but expected 2)",
            "[remote rejected] (failed to lock)",
        ] {
            let stdout: &'static str = line(summary).leak();
            assert_eq!(ended(1, stdout, "").unwrap(), PushOutcome::Moved, "{summary}");
        }
    }

    #[test]
    fn a_race_that_is_lost_inside_the_atomic_update_is_moved() {
        let stdout: &'static str = line("[remote rejected] (atomic transaction failed)").leak();
        let lock =
            "remote: error: cannot lock ref 'refs/heads/main': is at 1 but expected 2\nerror: failed to push";
        assert_eq!(ended(1, stdout, lock).unwrap(), PushOutcome::Moved);
        let outcome = ended(1, stdout, "remote: error: something else").unwrap();
        assert!(matches!(outcome, PushOutcome::Unknown(_)), "{outcome:?}");
    }

    #[test]
    fn a_hooks_no_is_told_in_the_forges_words() {
        let stdout: &'static str = line("[remote rejected] (pre-receive hook declined)").leak();
        let stderr =
            "remote: \nremote: Gitea: Not allowed to push to protected branch main\nremote: \nerror: failed";
        let text = "Gitea: Not allowed to push to protected branch main".to_owned();
        assert_eq!(ended(1, stdout, stderr).unwrap(), PushOutcome::Refused(text));
        let stderr = "remote: error:\nremote: error: User permission denied for writing.\nremote: error:";
        let text = "User permission denied for writing.".to_owned();
        assert_eq!(ended(1, stdout, stderr).unwrap(), PushOutcome::Refused(text));
        let broken = ended(1, stdout, "remote: Gitea: Internal Server Connection Error");
        assert!(matches!(broken, Err(GitError::Unreachable(_))), "{broken:?}");
    }

    #[test]
    fn what_is_unclear_is_unknown() {
        for (stdout, stderr) in [
            ("", "fatal: the remote end hung up unexpectedly"),
            ("", "error: RPC failed; HTTP 502 curl 22 The requested URL returned error: 502"),
            (line("[remote rejected] (failed to update ref)").leak() as &str, ""),
            (line("[remote failure] (remote failed to report status)").leak(), ""),
            ("To x\n \tabc:refs/heads/main\t111..222\n", "fatal: broken pipe"),
            ("", ""),
        ] {
            let outcome = ended(1, stdout, stderr);
            assert!(matches!(outcome, Ok(PushOutcome::Unknown(_))), "{stdout} {stderr}: {outcome:?}");
        }
    }

    #[test]
    fn a_forge_that_was_not_reached_is_a_passing_fault() {
        let stderr = "fatal: unable to access 'http://x/': Failed to connect to x port 80";
        assert!(matches!(ended(128, "", stderr), Err(GitError::Unreachable(_))));
        let stderr = "fatal: unable to access 'http://x/': The requested URL returned error: 403";
        assert!(matches!(ended(128, "", stderr), Ok(PushOutcome::Refused(_))));
    }
}
