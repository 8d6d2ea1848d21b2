//! GitHub's answers, as far as they are read, and what they mean.

use fabrique_core::upstream::CheckState;
use serde::Deserialize;

#[derive(Deserialize)]
pub(crate) struct Branch {
    pub(crate) commit: Sha,
}

#[derive(Deserialize)]
pub(crate) struct Sha {
    pub(crate) sha: String,
}

#[derive(Deserialize)]
pub(crate) struct Commit {
    pub(crate) sha: String,
    pub(crate) parents: Vec<Sha>,
}

#[derive(Deserialize)]
pub(crate) struct Comparison {
    pub(crate) status: String,
}

#[derive(Deserialize)]
pub(crate) struct CheckRuns {
    pub(crate) check_runs: Vec<CheckRun>,
}

#[derive(Deserialize)]
pub(crate) struct CheckRun {
    pub(crate) name: String,
    status: String,
    conclusion: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Statuses {
    pub(crate) statuses: Vec<Status>,
}

#[derive(Deserialize)]
pub(crate) struct Status {
    pub(crate) context: String,
    state: String,
}

impl CheckRun {
    pub(crate) fn state(&self) -> CheckState {
        match (self.status.as_str(), self.conclusion.as_deref()) {
            ("completed", Some("success" | "neutral" | "skipped")) => CheckState::Passed,
            ("completed", conclusion) => failed(conclusion.unwrap_or("no conclusion")),
            (_, _) => CheckState::Pending,
        }
    }
}

impl Status {
    pub(crate) fn state(&self) -> CheckState {
        match self.state.as_str() {
            "success" => CheckState::Passed,
            "pending" => CheckState::Pending,
            other => failed(other),
        }
    }
}

/// In GitHub's word, which is one of a dozen; whatever else comes is shortened.
fn failed(conclusion: &str) -> CheckState {
    CheckState::Failed { conclusion: crate::error::escaped(conclusion).chars().take(40).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(json: &str) -> CheckState {
        serde_json::from_str::<CheckRun>(json).unwrap().state()
    }

    #[test]
    fn a_check_run_passes_as_github_counts_required_checks() {
        for conclusion in ["success", "neutral", "skipped"] {
            let json = format!(r#"{{"name":"ci","status":"completed","conclusion":"{conclusion}"}}"#);
            assert_eq!(run(&json), CheckState::Passed, "{conclusion}");
        }
        for conclusion in ["failure", "cancelled", "timed_out", "action_required", "stale", "startup_failure"]
        {
            let json = format!(r#"{{"name":"ci","status":"completed","conclusion":"{conclusion}"}}"#);
            assert_eq!(run(&json), CheckState::Failed { conclusion: conclusion.to_owned() });
        }
        for status in ["queued", "in_progress", "waiting", "requested", "pending"] {
            let json = format!(r#"{{"name":"ci","status":"{status}","conclusion":null}}"#);
            assert_eq!(run(&json), CheckState::Pending, "{status}");
        }
        let ended_oddly = run(r#"{"name":"ci","status":"completed","conclusion":null}"#);
        assert_eq!(ended_oddly, CheckState::Failed { conclusion: "no conclusion".to_owned() });
    }
}
