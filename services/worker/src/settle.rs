//! Picking up what an earlier holder left behind: intents without an outcome, builds without a worker,
//! compositions that the memory does not know.

use fabrique_core::app::{App, ImageFrom, InfraFrom};
use fabrique_core::build::BuildInputs;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{Channel, EnvironmentName, RepoName, Revision};
use fabrique_core::memory::{Committed, Intent, Memory, Running};
use fabrique_core::time::Timestamp;
use fabrique_gitops::message::{CommitMessage, Trailers};
use fabrique_gitops::{Tree, composition, layout};
use fabrique_observer::Apps;
use fabrique_ports::deployments::{CommitFate, Deployments, OwnCommit};
use fabrique_ports::forge::Forge;
use fabrique_ports::records::BuildPhase;
use fabrique_ports::{Fault, PortResult};

use crate::config::Ports;
use crate::ending;
use crate::memory::AppMemory;

/// How many commits of one app are read to learn what automation did last.
const LEARNT_FROM: u32 = 200;

/// Brings the memory in line with the truth before anything is decided.
pub(crate) async fn settle(
    ports: &Ports,
    apps_repo: &RepoName,
    app: &App,
    apps: &Apps,
    memory: &AppMemory,
    (token, now): (u64, Timestamp),
) -> PortResult<()> {
    let before = memory.get().await;
    let abandoned = before.running.clone().filter(|running| running.token != token);
    // Closed before it is forgotten: whoever comes after a crash in between closes it again.
    if let Some(running) = &abandoned {
        close_abandoned(ports, running, &before, now).await?;
    }
    let fates = fates(ports, apps_repo, &before, &apps.commit).await?;
    close_arrived(ports, (app, &apps.tree), &before, &fates, now).await?;
    let deployed = deployed_by_us(app, apps, &before);
    let overlays = overlays(app, &apps.tree);
    let directory = layout::home_of(&app.name);
    let own = ports.deployments.own_commits(&apps.commit, &directory, LEARNT_FROM);
    let learnt = learn(own, app, &apps.tree, &before).await?;
    memory
        .update(|memory| {
            if memory.running.as_ref().is_some_and(|running| running.token != token) {
                memory.running = None;
            }
            for (environment, channel, intent, arrived) in &fates {
                let remembered = memory.channel_mut(environment, *channel);
                if remembered.intent.as_ref() == Some(intent) {
                    remembered.resolve_intent(*arrived);
                }
            }
            recognise(memory, &deployed, &overlays);
            learnt.note(memory);
            for (environment, shown) in &deployed {
                let remembered = memory.channel_mut(environment, Channel::Image);
                remembered.committed.get_or_insert_with(|| shown.clone());
            }
        })
        .await
        .map(drop)
}

/// An intent, and whether it arrived.
type Fate = (EnvironmentName, Channel, Intent, bool);

/// Which intents arrived. One that the forge knows off the branch was pushed and removed by a person:
/// it counts as committed, so that it shows as taken back.
async fn fates(
    ports: &Ports,
    apps_repo: &RepoName,
    memory: &Memory,
    head: &Revision,
) -> PortResult<Vec<Fate>> {
    let mut fates = Vec::new();
    for (environment, remembered) in &memory.environments {
        for channel in [Channel::Image, Channel::Infra] {
            let Some(intent) = remembered.channel(channel).intent.clone() else { continue };
            let arrived = match &intent.commit.commit {
                Some(commit) => {
                    commit_arrived(ports.deployments.as_ref(), ports.forge.as_ref(), apps_repo, commit, head)
                        .await?
                }
                None => false,
            };
            fates.push((environment.clone(), channel, intent, arrived));
        }
    }
    Ok(fates)
}

/// Whether a commit whose push had no clear outcome was ever the branch's head. One that is off the branch was,
/// and was removed, if the forge tells of its push. That the branch went on from its base without it says nothing:
/// after another commit won the race it looks as after a person's reset and the next commit.
pub(crate) async fn commit_arrived(
    deployments: &dyn Deployments,
    forge: &dyn Forge,
    apps_repo: &RepoName,
    commit: &Revision,
    head: &Revision,
) -> PortResult<bool> {
    if deployments.fate(commit, head).await? == CommitFate::OnBranch {
        return Ok(true);
    }
    forge.was_pushed(apps_repo, commit).await
}

/// What git told of the channels that it was asked about.
#[derive(Debug, Default)]
struct Learnt {
    /// Those of which it need not be asked again.
    asked: Vec<(EnvironmentName, Channel)>,
    /// What automation committed last.
    committed: Vec<(EnvironmentName, Channel, Committed)>,
}

impl Learnt {
    fn note(&self, memory: &mut Memory) {
        for (environment, channel) in &self.asked {
            memory.channel_mut(environment, *channel).asked_git = true;
        }
        for (environment, channel, committed) in &self.committed {
            let remembered = memory.channel_mut(environment, *channel);
            remembered.committed.get_or_insert_with(|| committed.clone());
        }
    }
}

/// What git, asked for automation's `own` commits, tells of the channels of which the memory knows none: it was lost,
/// or the app is older than it. What a person reverted or edited away since then shows as taken back again.
///
/// Git is asked once per memory, and not at each claim of an app that was never deployed: the answer is a walk through
/// the whole history. An answer that does not come is waited for, since a guess could bring back what a person
/// removed; one that makes no sense would be waited for in vain, and stops nothing.
async fn learn(
    own: impl Future<Output = PortResult<Vec<OwnCommit>>>,
    app: &App,
    tree: &Tree,
    memory: &Memory,
) -> PortResult<Learnt> {
    let asked = unknown(app, memory);
    if asked.is_empty() {
        return Ok(Learnt::default());
    }
    let own = match own.await {
        Ok(own) => own,
        Err(error) if error.fault() == Fault::Unexpected => {
            tracing::warn!(app = %app.name, %error, "git does not tell what was deployed before");
            return Ok(Learnt::default());
        }
        Err(error) => return Err(error),
    };
    let told: Vec<(Revision, Trailers)> = own
        .into_iter()
        .filter_map(|own| Some((own.commit, CommitMessage::parse(&own.message)?.trailers().clone())))
        .filter(|(_, trailers)| trailers.app == app.name)
        .collect();
    let committed = asked.iter().filter_map(|(environment, channel)| {
        let mut committed = told.iter().find_map(|(commit, trailers)| {
            let here =
                trailers.environment.as_ref() == Some(environment) && trailers.channel == Some(*channel);
            if here { committed_by(commit, trailers, *channel) } else { None }
        })?;
        // The number of rebuilds is lost too: what is deployed counts as built under the present inputs.
        if *channel == Channel::Image && shows(app, tree, environment, &committed) {
            committed.key = Some(BuildInputs::of(app, &committed.revision, memory.rebuild).key());
        }
        Some((environment.clone(), *channel, committed))
    });
    Ok(Learnt { committed: committed.collect(), asked })
}

/// The channels that automation moves, of which nothing is remembered and git was not asked yet.
fn unknown(app: &App, memory: &Memory) -> Vec<(EnvironmentName, Channel)> {
    app.environments
        .iter()
        .flat_map(|environment| {
            let image = (environment.image == ImageFrom::Build).then_some(Channel::Image);
            let infra = matches!(environment.infra, InfraFrom::Head(_)).then_some(Channel::Infra);
            image.into_iter().chain(infra).map(|channel| (environment.name.clone(), channel))
        })
        .filter(|(environment, channel)| {
            let remembered = memory.channel(environment, *channel);
            remembered.committed.is_none() && !remembered.asked_git
        })
        .collect()
}

/// What a commit put on a channel; nothing when it did something else to it.
fn committed_by(commit: &Revision, trailers: &Trailers, channel: Channel) -> Option<Committed> {
    let digest = match channel {
        Channel::Image => Some(trailers.digest.clone()?),
        Channel::Infra => None,
    };
    Some(Committed {
        commit: Some(commit.clone()),
        revision: trailers.source_revision.clone()?,
        digest,
        key: trailers.build_key.clone(),
    })
}

fn shows(app: &App, tree: &Tree, environment: &EnvironmentName, committed: &Committed) -> bool {
    let Ok(Some(composition)) = composition::load(tree, app, environment) else { return false };
    composition.image.deployed.is_some_and(|image| {
        image.revision == committed.revision && Some(&image.digest) == committed.digest.as_ref()
    })
}

/// What compositions show as built by fabrique. The memory learns it where it knows of no commit and git tells of
/// none either.
fn deployed_by_us(app: &App, apps: &Apps, memory: &Memory) -> Vec<(EnvironmentName, Committed)> {
    app.environments
        .iter()
        .filter_map(|environment| {
            let composition = composition::load(&apps.tree, app, &environment.name).ok()??;
            let image = composition.image.deployed.filter(|image| image.build.is_some())?;
            let committed = Committed {
                commit: None,
                key: Some(BuildInputs::of(app, &image.revision, memory.rebuild).key()),
                revision: image.revision,
                digest: Some(image.digest),
            };
            Some((environment.name.clone(), committed))
        })
        .collect()
}

/// The revisions of the overlays that compositions show.
fn overlays(app: &App, tree: &Tree) -> Vec<(EnvironmentName, Revision)> {
    app.environments
        .iter()
        .filter_map(|environment| {
            let composition = composition::load(tree, app, &environment.name).ok()??;
            Some((environment.name.clone(), composition.infra.deployed?.revision))
        })
        .collect()
}

/// What compositions show of commits that an earlier holder pushed after it was given up.
fn recognise(
    memory: &mut Memory,
    deployed: &[(EnvironmentName, Committed)],
    overlays: &[(EnvironmentName, Revision)],
) {
    for (environment, shown) in deployed {
        memory.channel_mut(environment, Channel::Image).recognise(&shown.revision, shown.digest.as_ref());
    }
    for (environment, overlay) in overlays {
        memory.channel_mut(environment, Channel::Infra).recognise(overlay, None);
    }
}

/// Ends the history of a build without a worker. One whose image is recorded may be adopted yet, and is
/// written as committed then.
async fn close_abandoned(
    ports: &Ports,
    running: &Running,
    memory: &Memory,
    now: Timestamp,
) -> PortResult<()> {
    let Some(entry) = ports.history.build(&running.build).await? else { return Ok(()) };
    if entry.phase.is_final() {
        return Ok(());
    }
    let built = memory.built.as_ref().filter(|built| built.build == running.build);
    let why = "its worker went away";
    let phase = match built {
        Some(built) => BuildPhase::NotCommitted { digest: built.digest.clone(), reason: why.to_owned() },
        None => BuildPhase::Failed { kind: FailureKind::Infrastructure, message: why.to_owned() },
    };
    ending::note(ports, entry, phase, now).await?;
    ports.logs.close_log(&running.build).await
}

/// Ends the history of a build whose commits arrived without anybody hearing of it. Where they are not all that it
/// needs, those that follow end it.
async fn close_arrived(
    ports: &Ports,
    (app, tree): (&App, &Tree),
    memory: &Memory,
    fates: &[Fate],
    now: Timestamp,
) -> PortResult<()> {
    let Some(built) = &memory.built else { return Ok(()) };
    let of_it = |(_, channel, intent, arrived): &&Fate| {
        *arrived && *channel == Channel::Image && intent.commit.digest.as_ref() == Some(&built.digest)
    };
    let arrived: Vec<&Committed> =
        fates.iter().filter(of_it).map(|(_, _, intent, _)| &intent.commit).collect();
    let Some(last) = arrived.last() else { return Ok(()) };
    let mut places = app.environments.iter().filter(|environment| environment.image == ImageFrom::Build);
    if !places.all(|environment| shows(app, tree, &environment.name, last)) {
        return Ok(());
    }
    let Some(entry) = ports.history.build(&built.build).await? else { return Ok(()) };
    if let BuildPhase::Committed { .. } = entry.phase {
        return Ok(());
    }
    let commits = arrived.iter().filter_map(|committed| committed.commit.clone()).collect();
    let phase = BuildPhase::Committed { digest: built.digest.clone(), commits };
    ending::note(ports, entry, phase, now).await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use fabrique_core::id::{BuildKey, Digest, RelPath};
    use fabrique_gitops::{Entry, Registrations, Rules};
    use fabrique_ports::{Peer, PortError};

    use super::*;

    /// `cluster/apps` with one app, whose image is built and whose overlay is copied into each environment.
    fn registered(environments: &[&str]) -> (Tree, App) {
        let head = |name| {
            let infra = "{ from: head, repo: atlas/citation, path: deploy }";
            format!("    - {{ name: {name}, image: {{ from: build }}, infra: {infra} }}\n")
        };
        let text = format!(
            "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: citation }}\nspec:\n  \
             source: {{ repo: atlas/citation }}\n  image: registry:80/citation\n  environments:\n{}",
            environments.iter().map(head).collect::<String>()
        );
        let path = RelPath::parse("apps/citation/app.yaml").unwrap();
        let tree: Tree = [(path, Entry::regular(text))].into_iter().collect();
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        let app = Registrations::load(&tree, &rules).apps.into_values().next().unwrap();
        (tree, app)
    }

    fn revision(digit: char) -> Revision {
        Revision::parse(&digit.to_string().repeat(40)).unwrap()
    }

    fn environment(name: &str) -> EnvironmentName {
        EnvironmentName::parse(name).unwrap()
    }

    /// A commit of the image channel, as fabrique makes it.
    fn own(app: &App, of: &str) -> OwnCommit {
        let trailers = Trailers {
            environment: Some(environment(of)),
            channel: Some(Channel::Image),
            source_revision: Some(revision('c')),
            digest: Some(Digest::of(b"image")),
            build_key: Some(BuildKey::parse(&"ab".repeat(32)).unwrap()),
            ..Trailers::of(&app.name)
        };
        let message = CommitMessage::new("Deploy citation", "", trailers).to_string();
        OwnCommit { commit: revision('d'), message }
    }

    /// Git, and how often it was asked.
    struct Git(PortResult<Vec<OwnCommit>>, Cell<u32>);

    impl Git {
        fn telling(told: PortResult<Vec<OwnCommit>>) -> Self {
            Self(told, Cell::new(0))
        }

        fn failing(fault: Fault) -> Self {
            Self::telling(Err(PortError::new(Peer::Git, fault, "no answer")))
        }

        async fn own_commits(&self) -> PortResult<Vec<OwnCommit>> {
            self.1.set(self.1.get() + 1);
            match &self.0 {
                Ok(told) => Ok(told.clone()),
                Err(error) => Err(error.again()),
            }
        }

        /// What a claim does.
        async fn settle(&self, environments: &[&str], memory: &mut Memory) -> PortResult<()> {
            let (tree, app) = registered(environments);
            learn(self.own_commits(), &app, &tree, memory).await?.note(memory);
            Ok(())
        }

        fn asked(&self) -> u32 {
            self.1.get()
        }
    }

    fn committed(memory: &Memory, of: &str, channel: Channel) -> Option<Revision> {
        memory.channel(&environment(of), channel).committed.map(|committed| committed.revision)
    }

    #[test]
    fn a_late_overlay_of_a_stopped_worker_is_recognised_by_what_the_composition_shows() {
        let (tree, app) = registered(&["prod"]);
        let composition = format!(
            "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: citation, environment: prod }}\n\
             image: {{ repository: null, digest: null, revision: null, version: null, build: null, hold: null }}\n\
             infra: {{ repo: atlas/citation, path: deploy, revision: {}, hold: null }}\n",
            revision('e')
        );
        let path = RelPath::parse("apps/citation/prod/composition.yaml").unwrap();
        assert_eq!(overlays(&app, &tree), [], "nothing is deployed yet");
        let files = tree.iter().map(|(path, entry)| (path.clone(), entry.clone()));
        let after: Tree = files.chain([(path, Entry::regular(composition))]).collect();
        let shown = overlays(&app, &after);
        assert_eq!(shown, [(environment("prod"), revision('e'))]);

        let mut memory = Memory::default();
        let abandoned = |of| Committed { commit: None, revision: revision(of), digest: None, key: None };
        let infra = memory.channel_mut(&environment("prod"), Channel::Infra);
        infra.abandoned = vec![abandoned('d'), abandoned('e')];
        recognise(&mut memory, &[], &shown);
        assert_eq!(committed(&memory, "prod", Channel::Infra), Some(revision('e')));
    }

    #[tokio::test]
    async fn an_app_that_was_never_deployed_has_git_asked_once_and_again_when_its_memory_is_lost() {
        let git = Git::telling(Ok(Vec::new()));
        let mut memory = Memory::default();
        for _ in 0..3 {
            git.settle(&["prod"], &mut memory).await.unwrap();
        }
        assert_eq!(git.asked(), 1);
        assert_eq!(committed(&memory, "prod", Channel::Image), None);
        git.settle(&["prod"], &mut Memory::default()).await.unwrap();
        assert_eq!(git.asked(), 2);
    }

    #[tokio::test]
    async fn what_git_tells_is_remembered_and_a_channel_of_which_it_tells_nothing_is_not_asked_about_again() {
        let (_, app) = registered(&["prod"]);
        let git = Git::telling(Ok(vec![own(&app, "prod")]));
        let mut memory = Memory::default();
        for _ in 0..2 {
            git.settle(&["prod"], &mut memory).await.unwrap();
        }
        assert_eq!(git.asked(), 1);
        assert_eq!(committed(&memory, "prod", Channel::Image), Some(revision('c')));
        assert_eq!(committed(&memory, "prod", Channel::Infra), None);
    }

    #[tokio::test]
    async fn an_environment_that_is_new_in_the_registration_is_asked_about() {
        let (_, app) = registered(&["prod", "staging"]);
        let git = Git::telling(Ok(vec![own(&app, "staging")]));
        let mut memory = Memory::default();
        git.settle(&["prod"], &mut memory).await.unwrap();
        git.settle(&["prod", "staging"], &mut memory).await.unwrap();
        assert_eq!(git.asked(), 2);
        assert_eq!(committed(&memory, "staging", Channel::Image), Some(revision('c')));
    }

    #[tokio::test]
    async fn an_answer_that_makes_no_sense_stops_nothing_and_is_asked_for_again() {
        let git = Git::failing(Fault::Unexpected);
        let mut memory = Memory::default();
        for _ in 0..2 {
            git.settle(&["prod"], &mut memory).await.unwrap();
        }
        assert_eq!(git.asked(), 2);
        assert_eq!(memory, Memory::default());
    }

    #[tokio::test]
    async fn an_answer_that_does_not_come_is_waited_for() {
        for fault in [Fault::Transient, Fault::Denied] {
            let error = Git::failing(fault).settle(&["prod"], &mut Memory::default()).await.unwrap_err();
            assert_eq!(error.fault(), fault);
        }
    }
}
