//! What a decision says to the committer, as a commit status.

use fabrique_core::app::App;
use fabrique_core::decision::{Action, ChannelVerdict, Decision, Reason};
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{AppName, Channel, Digest, EnvironmentName, RepoName, Revision};
use fabrique_core::memory::Built;
use fabrique_core::verdict::Verdict;
use fabrique_core::view::{Declared, Target, View};
use fabrique_ports::forge::{CommitStatus, StatusState};

use crate::unregistered::Unregistered;

/// What an image came to in one environment: up to date where it is deployed.
pub(crate) type Place = (EnvironmentName, Verdict);

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
        Reason::Settled(verdict) => settled_verdict(verdict, &decision.channels, digest)?,
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

fn settled_verdict(
    verdict: &Verdict,
    channels: &[ChannelVerdict],
    digest: Option<&Digest>,
) -> Option<(StatusState, String)> {
    let images = channels.iter().filter(|channel| channel.channel == Channel::Image);
    let places: Vec<Place> = images.map(|it| (it.environment.clone(), it.verdict.clone())).collect();
    // The most telling of them says nothing of the others.
    let told = || partly_deployed(&places, digest).unwrap_or_else(|| verdict.to_string());
    match verdict {
        Verdict::UpToDate => Some((StatusState::Success, deployed_text(&places, digest))),
        Verdict::Unchanged { .. }
        | Verdict::OtherImage { .. }
        | Verdict::Held { .. }
        | Verdict::NotReady(_) => Some((StatusState::Success, told())),
        Verdict::Trouble(_) => Some((StatusState::Error, told())),
        Verdict::NoImageYet | Verdict::NotAutomatic => Some((StatusState::Success, built(digest))),
        // What is declared has a status of its own, at the head.
        Verdict::Misdeclared(_) => None,
        // The status these revisions carry was true when it was given.
        Verdict::TakenBack { .. }
        | Verdict::Rewound { .. }
        | Verdict::DeployedUnknown { .. }
        | Verdict::Older { .. }
        | Verdict::NotDescendant { .. }
        | Verdict::OffBranch
        | Verdict::Advance => None,
    }
}

/// A build whose image went through the completion path: where it is deployed, and where it is not and why.
pub(crate) fn completed(app: &App, places: &[Place], digest: &Digest, link: Option<String>) -> CommitStatus {
    let stopped: Vec<&Verdict> =
        places.iter().map(|(_, verdict)| verdict).filter(|verdict| **verdict != Verdict::UpToDate).collect();
    let trouble = stopped.iter().any(|verdict| matches!(verdict, Verdict::Trouble(_)));
    let text = match stopped.first() {
        Some(why) if stopped.len() == places.len() && stopped.iter().all(|other| other == why) => {
            format!("built, not deployed: {why}; {digest}")
        }
        Some(_) | None if places.is_empty() => built(Some(digest)),
        Some(_) | None => deployed_text(places, Some(digest)),
    };
    status(&app.name, if trouble { StatusState::Error } else { StatusState::Success }, text, link)
}

/// A decision as it is told of a target: which image is deployed where, whatever was `built` last. An environment that shows
/// another image of the target than was built of it is up to date, and what was built is not deployed there.
pub(crate) fn as_shown(
    decision: &Decision,
    view: &View,
    built: Option<&Built>,
) -> (Decision, Option<Digest>) {
    let Target::At { revision, .. } = &view.target else {
        return (decision.clone(), built.map(|built| built.digest.clone()));
    };
    let mut decision = decision.clone();
    let mut up_to_date: Vec<(&mut Verdict, &Digest)> = Vec::new();
    for channel in decision.channels.iter_mut().filter(|channel| channel.channel == Channel::Image) {
        let seen = view.environments.iter().find(|seen| seen.name == channel.environment);
        let shown = seen.and_then(|seen| seen.image.digest.as_ref());
        if let (Verdict::UpToDate, Some(shown)) = (&channel.verdict, shown) {
            up_to_date.push((&mut channel.verdict, shown));
        }
    }
    let of_target = built.filter(|built| built.revision == *revision).map(|built| &built.digest);
    let shown = up_to_date.first().map(|(_, shown)| *shown);
    let told = of_target.or(shown).or(built.map(|built| &built.digest)).cloned();
    for (verdict, shown) in up_to_date {
        if told.as_ref() != Some(shown) {
            *verdict = Verdict::OtherImage { revision: revision.clone() };
        }
    }
    (decision, told)
}

/// The status of a revision whose image is deployed, of an app that is not among the registered ones.
pub(crate) fn deployed(
    app: &AppName,
    places: &[Place],
    digest: Option<&Digest>,
    link: Option<String>,
) -> CommitStatus {
    status(app, StatusState::Success, deployed_text(places, digest), link)
}

/// The status of a revision, built or not, whose app is not among the registered ones.
pub(crate) fn disowned(
    app: &AppName,
    is_built: bool,
    why: &Unregistered,
    link: Option<String>,
) -> CommitStatus {
    let how_far = if is_built { "built, not deployed" } else { "not built" };
    status(app, StatusState::Error, format!("{how_far}: {why}"), link)
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
        (Declared::Waits(why) | Declared::Suspended(why), _) => {
            (StatusState::Success, format!("nothing is changed for now: {why}"))
        }
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

/// Where an image is deployed, and where it is not and why.
fn deployed_text(places: &[Place], digest: Option<&Digest>) -> String {
    let (there, elsewhere): (Vec<&Place>, Vec<&Place>) =
        places.iter().partition(|(_, verdict)| *verdict == Verdict::UpToDate);
    let there: Vec<&str> = there.iter().map(|(name, _)| name.as_str()).collect();
    let elsewhere: Vec<String> = elsewhere.iter().map(|(name, why)| format!("{name} ({why})")).collect();
    match (there.is_empty(), elsewhere.is_empty()) {
        (_, true) => format!("deployed to {}: {}", there.join(", "), built(digest)),
        (true, false) => format!("not deployed to {}: {}", elsewhere.join(", "), built(digest)),
        (false, false) => {
            format!("deployed to {}, not to {}: {}", there.join(", "), elsewhere.join(", "), built(digest))
        }
    }
}

/// The same, if it is deployed to some environments and not to others.
fn partly_deployed(places: &[Place], digest: Option<&Digest>) -> Option<String> {
    let there = places.iter().filter(|(_, verdict)| *verdict == Verdict::UpToDate).count();
    (there > 0 && there < places.len()).then(|| deployed_text(places, digest))
}

fn built(digest: Option<&Digest>) -> String {
    digest.map_or_else(|| "nothing to do".to_owned(), |digest| format!("built {digest}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fabrique_core::id::{BuildId, BuildKey, RelPath};
    use fabrique_core::memory::Memory;
    use fabrique_core::policy::Policy;
    use fabrique_core::time::Timestamp;
    use fabrique_core::view::{EnvironmentView, ImageView, InfraView};
    use fabrique_gitops::{Entry, Registrations, Rules, Tree};

    use super::*;
    use crate::testing::image_view;

    fn app() -> App {
        let text = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: citation }\nspec:\n  \
                    source: { repo: atlas/citation }\n  image: registry:80/citation\n";
        let tree: Tree =
            [(RelPath::parse("apps/citation/app.yaml").unwrap(), Entry::regular(text))].into_iter().collect();
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        Registrations::load(&tree, &rules).apps.into_values().next().unwrap()
    }

    #[test]
    fn a_wait_for_another_app_is_a_success_of_the_target_and_one_that_is_declared_is_told_at_the_head() {
        let app = app();
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

    fn place(name: &str, verdict: Verdict) -> Place {
        (EnvironmentName::parse(name).unwrap(), verdict)
    }

    fn held() -> Verdict {
        Verdict::Held { by: "ops".to_owned(), reason: "freeze".to_owned(), until: None }
    }

    #[test]
    fn a_status_names_the_environments_that_moved_and_those_that_did_not_with_their_reason() {
        use Verdict::{NotAutomatic, UpToDate};
        let digest = Digest::of(b"image");
        let trouble = || Verdict::Trouble("prod/kustomization.yaml is gone".to_owned());
        let app = app();
        for (places, state, text) in [
            (vec![], StatusState::Success, "built DIGEST"),
            (vec![place("prod", UpToDate)], StatusState::Success, "deployed to prod: built DIGEST"),
            (
                vec![place("prod", held()), place("staging", UpToDate)],
                StatusState::Success,
                "deployed to staging, not to prod (held by ops: freeze): built DIGEST",
            ),
            (
                vec![place("staging", UpToDate), place("prod", NotAutomatic)],
                StatusState::Success,
                "deployed to staging, not to prod (moved by people only): built DIGEST",
            ),
            (
                vec![place("staging", UpToDate), place("prod", trouble())],
                StatusState::Error,
                "deployed to staging, not to prod (prod/kustomization.yaml is gone): built DIGEST",
            ),
            (
                vec![place("prod", held()), place("staging", held())],
                StatusState::Success,
                "built, not deployed: held by ops: freeze; DIGEST",
            ),
            (
                vec![place("prod", held()), place("staging", NotAutomatic)],
                StatusState::Success,
                "not deployed to prod (held by ops: freeze), staging (moved by people only): built DIGEST",
            ),
        ] {
            let told = completed(&app, &places, &digest, None);
            let shown = told.description.replace(digest.as_str(), "DIGEST");
            assert_eq!((told.state, shown.as_str()), (state, text));
        }
    }

    #[test]
    fn an_environment_that_shows_another_image_of_the_target_is_not_told_as_deployed() {
        let (revision, key) = (Revision::parse(&"a".repeat(40)).unwrap(), "ab".repeat(32).parse().unwrap());
        let [new, other] = [Digest::of(b"new"), Digest::of(b"other")];
        let told = |shown: [&Digest; 2], built: Option<&Digest>, of: char| {
            let names = ["prod", "staging"].map(|name| EnvironmentName::parse(name).unwrap());
            let environments = names.iter().zip(shown).map(|(name, shown)| EnvironmentView {
                name: name.clone(),
                image: ImageView { digest: Some(shown.clone()), ..image_view() },
                infra: InfraView::default(),
            });
            let channels = names.iter().map(|name| ChannelVerdict {
                environment: name.clone(),
                channel: Channel::Image,
                verdict: Verdict::UpToDate,
            });
            let reason = Reason::Settled(Verdict::UpToDate);
            let decision = Decision { action: Action::Nothing, reason, channels: channels.collect() };
            let target = Target::At { revision: revision.clone(), key: BuildKey::clone(&key) };
            let view = View { target, environments: environments.collect(), ..view() };
            let built = built.map(|digest| Built {
                build: BuildId::parse("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap(),
                key: key.clone(),
                revision: Revision::parse(&of.to_string().repeat(40)).unwrap(),
                digest: digest.clone(),
            });
            let (shown, digest) = as_shown(&decision, &view, built.as_ref());
            let told = settled(&app(), &shown, &Declared::Admitted, digest.as_ref(), None).unwrap();
            told.description.replace(new.as_str(), "NEW").replace(other.as_str(), "OTHER")
        };
        let another = "another image of aaaaaaaaaaaa is deployed, and stays";
        assert_eq!(told([&new, &new], Some(&new), 'a'), "deployed to prod, staging: built NEW");
        assert_eq!(
            told([&other, &new], Some(&new), 'a'),
            format!("deployed to staging, not to prod ({another}): built NEW")
        );
        assert_eq!(
            told([&other, &other], Some(&new), 'a'),
            format!("not deployed to prod ({another}), staging ({another}): built NEW")
        );
        // What was built last is of another revision, or forgotten.
        assert_eq!(told([&other, &other], Some(&new), 'b'), "deployed to prod, staging: built OTHER");
        assert_eq!(told([&other, &other], None, 'b'), "deployed to prod, staging: built OTHER");
        // A build whose write-back came to it.
        let verdict = Verdict::OtherImage { revision: revision.clone() };
        let completed = completed(&app(), &[place("prod", verdict)], &new, None);
        assert_eq!(completed.state, StatusState::Success);
        assert_eq!(completed.description, format!("built, not deployed: {another}; {new}"));
    }

    fn view() -> View {
        View {
            now: Timestamp(0),
            head: None,
            target: Target::Nothing(String::new()),
            declared: Declared::Admitted,
            awaits: BTreeSet::new(),
            environments: Vec::new(),
            last_built: None,
            record: None,
            running_to_target: None,
            memory: Memory::default(),
            policy: Policy::default(),
        }
    }

    #[test]
    fn what_rests_is_told_of_each_environment_as_its_build_was() {
        let digest = Digest::of(b"image");
        let channel = |name: &str, channel: Channel, verdict: Verdict| ChannelVerdict {
            environment: EnvironmentName::parse(name).unwrap(),
            channel,
            verdict,
        };
        let rests = |reason: Verdict, images: &[Place]| {
            let images =
                images.iter().map(|(name, verdict)| channel(name.as_str(), Channel::Image, verdict.clone()));
            let infra = [channel("prod", Channel::Infra, Verdict::NotAutomatic)];
            let channels = images.chain(infra).collect();
            let decision = Decision { action: Action::Nothing, reason: Reason::Settled(reason), channels };
            let told = settled(&app(), &decision, &Declared::Admitted, Some(&digest), None).unwrap();
            told.description.replace(digest.as_str(), "DIGEST")
        };
        let partly = [place("staging", Verdict::UpToDate), place("prod", held())];
        let built = completed(&app(), &partly, &digest, None).description;
        assert_eq!(rests(held(), &partly), built.replace(digest.as_str(), "DIGEST"));
        let promoted = [place("staging", Verdict::UpToDate), place("prod", Verdict::NotAutomatic)];
        assert_eq!(
            rests(Verdict::UpToDate, &promoted),
            "deployed to staging, not to prod (moved by people only): built DIGEST"
        );
        // Of its overlay only.
        assert_eq!(rests(held(), &[place("prod", Verdict::UpToDate)]), "held by ops: freeze");
    }
}
