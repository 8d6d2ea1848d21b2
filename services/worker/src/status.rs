//! What a decision says to the committer, as a commit status.

use fabrique_core::app::App;
use fabrique_core::decision::{Action, Decision, Reason};
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{AppName, Digest, RepoName, Revision};
use fabrique_core::verdict::Verdict;
use fabrique_core::view::{Declared, Target, View};
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

/// The final status of the target, when the decision has one to give. `declared` is what the app says of a change, and
/// `digest` what it last built.
pub(crate) fn settled(
    app: &App,
    decision: &Decision,
    declared: &Declared,
    digest: Option<&Digest>,
    link: Option<String>,
) -> Option<CommitStatus> {
    let (state, description) = match &decision.reason {
        // What is declared has a status of its own, at the head; that another app comes first has not.
        Reason::Settled(Verdict::NotReady(_)) if *declared != Declared::Admitted => return None,
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
        Verdict::Unchanged { .. } | Verdict::Held { .. } | Verdict::NotReady(_) => {
            Some((StatusState::Success, verdict.to_string()))
        }
        Verdict::Trouble(_) => Some((StatusState::Error, verdict.to_string())),
        Verdict::NoImageYet | Verdict::NotAutomatic => Some((StatusState::Success, built(digest))),
        // What is declared has a status of its own, at the head.
        Verdict::Misdeclared(_) => None,
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

/// A pending status in a repository that the app was built from before.
pub(crate) fn moved(app: &AppName, to: &RepoName, link: Option<String>) -> CommitStatus {
    status(app, StatusState::Error, format!("not built: {app} is built from {to} now"), link)
}

/// A pending status whose build nothing needs any more.
pub(crate) fn not_needed(app: &AppName, why: &Reason, link: Option<String>) -> CommitStatus {
    let description = format!("not built: {why}");
    status(app, StatusState::Error, description, link)
}

/// What the declaration at the head comes to; nothing where the app declares nothing. A wait is no failure: nothing is
/// wrong, and nothing is left to be closed.
pub(crate) fn declaration(app: &App, view: &View, link: Option<String>) -> Option<CommitStatus> {
    app.source.declaration.as_ref()?;
    let head = view.head.as_ref()?;
    let (state, description) = match (&view.declared, &view.target) {
        (Declared::Refused(why), _) => (StatusState::Failure, why.clone()),
        (Declared::Waits(why), _) => (StatusState::Success, format!("nothing is changed for now: {why}")),
        (Declared::Admitted, Target::At { revision, .. }) if revision != head => {
            // By a pin, or since it is the newest that passed its checks.
            let checked = app.source.upstream.as_ref().is_some_and(|upstream| !upstream.checks.is_empty());
            let what = if checked { "builds" } else { "pins" };
            (StatusState::Success, format!("ready, and {what} {}", revision.short()))
        }
        (Declared::Admitted, Target::At { .. } | Target::Nothing(_)) => {
            (StatusState::Success, "ready".to_owned())
        }
    };
    let context = format!("fabrique/declaration/{}", app.name);
    Some(CommitStatus { context, state, description, link })
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

#[cfg(test)]
mod tests {
    use fabrique_core::id::RelPath;
    use fabrique_gitops::{Entry, Registrations, Rules, Tree};

    use super::*;

    #[test]
    fn a_wait_for_another_app_is_a_success_of_the_target_and_one_that_is_declared_is_told_at_the_head() {
        let text = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: citation }\nspec:\n  \
                    source: { repo: atlas/citation }\n  image: registry:80/citation\n";
        let tree: Tree =
            [(RelPath::parse("apps/citation/app.yaml").unwrap(), Entry::regular(text))].into_iter().collect();
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        let app = Registrations::load(&tree, &rules).apps.into_values().next().unwrap();
        let waits = "base is not deployed".to_owned();
        let reason = Reason::Settled(Verdict::NotReady(waits.clone()));
        let decision = Decision { action: Action::Nothing, reason, channels: vec![] };
        let told = settled(&app, &decision, &Declared::Admitted, None, None).unwrap();
        assert_eq!(
            (told.state, told.description.as_str()),
            (StatusState::Success, "waits: base is not deployed")
        );
        assert_eq!(settled(&app, &decision, &Declared::Waits(waits), None, None), None);
    }
}
