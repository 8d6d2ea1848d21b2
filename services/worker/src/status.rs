//! What a decision says to the committer, as a commit status.

use fabrique_core::app::App;
use fabrique_core::decision::{Action, Decision, Reason};
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{AppName, Digest, Revision};
use fabrique_core::verdict::Verdict;
use fabrique_ports::forge::{CommitStatus, StatusState};

/// A build of `app` is under way.
pub(crate) fn pending(app: &AppName, reason: &Reason, link: Option<String>) -> CommitStatus {
    let description = format!("building: {reason}");
    status(app, StatusState::Pending, description, link)
}

/// A pending status whose build was stopped.
pub(crate) fn superseded(app: &AppName, by: Option<&Revision>, link: Option<String>) -> CommitStatus {
    let description = match by {
        Some(by) => format!("superseded by {} before it was built", by.short()),
        None => "stopped before it was built: nothing needs it any more".to_owned(),
    };
    status(app, StatusState::Error, description, link)
}

/// The final status of the target, when the decision has one to give. `digest` is what the app last built.
pub(crate) fn settled(
    app: &App,
    decision: &Decision,
    digest: Option<&Digest>,
    link: Option<String>,
) -> Option<CommitStatus> {
    let (state, description) = match &decision.reason {
        Reason::Settled(verdict) => settled_verdict(app, verdict, digest)?,
        Reason::Built(_) => (StatusState::Success, built(digest)),
        Reason::Failed { kind: FailureKind::Source, message, .. } => (StatusState::Failure, message.clone()),
        Reason::Failed { kind: FailureKind::Cancelled, message, .. } => (StatusState::Error, message.clone()),
        Reason::Failed { message, attempts, dead: true, .. } => {
            (StatusState::Error, format!("given up after {attempts} attempts: {message}"))
        }
        Reason::Failed { .. } => (StatusState::Pending, decision.reason.to_string()),
        Reason::NoTarget(_)
        | Reason::NotBuilt(_)
        | Reason::Retry { .. }
        | Reason::Recorded(_)
        | Reason::InfraChanged(_)
        | Reason::Building(_)
        | Reason::FinishFirst { .. }
        | Reason::PastNoReturn(_)
        | Reason::Superseded { .. }
        | Reason::NotWanted { .. } => return None,
    };
    debug_assert!(!matches!(decision.action, Action::Build { .. } | Action::Commit(_)));
    Some(status(&app.name, state, description, link))
}

fn settled_verdict(app: &App, verdict: &Verdict, digest: Option<&Digest>) -> Option<(StatusState, String)> {
    match verdict {
        Verdict::UpToDate => Some((StatusState::Success, deployed_text(app, digest))),
        Verdict::Unchanged { .. } | Verdict::Held { .. } => Some((StatusState::Success, verdict.to_string())),
        Verdict::Trouble(_) => Some((StatusState::Error, verdict.to_string())),
        Verdict::NoImageYet | Verdict::NotAutomatic => Some((StatusState::Success, built(digest))),
        // The status these revisions carry was true when it was given.
        Verdict::TakenBack { .. }
        | Verdict::Rewound { .. }
        | Verdict::DeployedUnknown { .. }
        | Verdict::Older { .. }
        | Verdict::OffBranch
        | Verdict::Advance => None,
    }
}

/// A build whose image is deployed, or has nowhere to be deployed.
pub(crate) fn deployed(app: &App, digest: &Digest, link: Option<String>) -> CommitStatus {
    let text =
        if app.environments.is_empty() { built(Some(digest)) } else { deployed_text(app, Some(digest)) };
    status(&app.name, StatusState::Success, text, link)
}

/// A build whose image is recorded and not deployed.
pub(crate) fn built_only(
    app: &AppName,
    digest: &Digest,
    why: &Verdict,
    link: Option<String>,
) -> CommitStatus {
    let state = if matches!(why, Verdict::Trouble(_)) { StatusState::Error } else { StatusState::Success };
    let description = format!("built, not deployed: {why}; {digest}");
    status(app, state, description, link)
}

/// Why nothing of an app without a registration is built or deployed.
pub(crate) const UNREGISTERED: &str = "the app is not registered any more";

/// The status of a revision, built or not, whose app is not registered any more.
pub(crate) fn disowned(app: &AppName, is_built: bool, link: Option<String>) -> CommitStatus {
    let how_far = if is_built { "built, not deployed" } else { "not built" };
    status(app, StatusState::Error, format!("{how_far}: {UNREGISTERED}"), link)
}

/// A pending status whose build nothing needs any more.
pub(crate) fn not_needed(app: &AppName, why: &Reason, link: Option<String>) -> CommitStatus {
    let description = format!("not built: {why}");
    status(app, StatusState::Error, description, link)
}

/// Each app has a context of its own, so that several of one repository do not hide each other.
fn status(app: &AppName, state: StatusState, description: String, link: Option<String>) -> CommitStatus {
    CommitStatus { context: format!("fabrique/build/{app}"), state, description, link }
}

fn deployed_text(app: &App, digest: Option<&Digest>) -> String {
    let environments: Vec<&str> = app.environments.iter().map(|e| e.name.as_str()).collect();
    format!("deployed to {}: {}", environments.join(", "), built(digest))
}

fn built(digest: Option<&Digest>) -> String {
    digest.map_or_else(|| "nothing to do".to_owned(), |digest| format!("built {digest}"))
}
