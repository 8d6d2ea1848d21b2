use async_trait::async_trait;
use bytes::Bytes;
use fabrique_core::app::{DeployedInfra, OverlaySource};
use fabrique_core::id::{AppName, Digest, ImageRepository, RepoName, Revision};
use fabrique_core::memory::Committed;
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::{Candidate, judge_image};
use fabrique_core::view::{Declared, InfraView};
use fabrique_gitops::registration::SourceForm;
use fabrique_gitops::{Entry, Rules};
use fabrique_ports::deployments::{CommitFate, NewCommit, OwnCommit, PreparedPush, PushOutcome, Snapshot};
use fabrique_ports::source::{FileKind, SourceFile};
use fabrique_ports::testing::SourceStub;
use fabrique_ports::{Fault, Peer};

use super::*;
use crate::testing::{self, image_view};

const APP: &str = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: citation }\nspec:\n  source: { repo: \
                   atlas/citation, declaration: code-location.manifest.yaml, migrations: sql }\n  image: \
                   registry:80/citation\n  environments:\n    - name: prod\n      infra: { from: head, repo: \
                   atlas/citation, path: deploy }\n      bindings:\n        - { channel: image, file: \
                   kustomization.yaml, path: \"images[name=registry:80/citation].digest\", form: digest }\n";
const KUSTOMIZATION: &str = "images:\n- name: registry:80/citation\n  digest: __CITATION_IMAGE_DIGEST__\n";
const DECLARATION: &str = "codeLocation: citation\nready: true\ncontractVersion: 3\ndependsOn:\n  database: \
                           [pgvector]\n  secrets: [pgvector-pg-auth]\n  migrations: [001-a.sql]\n";
const COMPOSITION: &str = "apps/citation/prod/composition.yaml";
const MIGRATIONS: &str = "migrations/prod/citation/migrations.yaml";

/// The peers: a source whose revisions `a` to `d` have the same files, git that tells of one composition, and a registry
/// that has every image or answers with a fault.
struct World {
    source: SourceStub,
    then: Option<Bytes>,
    registry: Result<bool, Fault>,
}

impl World {
    fn new(then: Option<Bytes>, registry: Result<bool, Fault>) -> Self {
        Self { source: source(), then, registry }
    }
}

fn fault(peer: Peer, fault: Fault) -> PortError {
    PortError::new(peer, fault, "no such thing")
}

fn unasked<T>(peer: Peer) -> PortResult<T> {
    Err(fault(peer, Fault::Unexpected))
}

fn source() -> SourceStub {
    SourceStub::default()
        .directories(|at, directory| {
            match (at.as_str().starts_with(['a', 'b', 'c', 'd']), directory.as_str()) {
                (false, _) => Err(fault(Peer::Git, Fault::Unexpected)),
                (true, "deploy") => {
                    let more = at.as_str().starts_with('d').then(|| file("more.yaml", "kind: ConfigMap\n"));
                    Ok(Some([file("kustomization.yaml", KUSTOMIZATION)].into_iter().chain(more).collect()))
                }
                (true, "sql") => Ok(Some(vec![file("001-a.sql", "SELECT 1;\n")])),
                (true, _) => Ok(None),
            }
        })
        .files(|_, _| Ok(Some(file("code-location.manifest.yaml", DECLARATION))))
}

#[async_trait]
impl Deployments for World {
    async fn snapshot(&self) -> PortResult<Snapshot> {
        unasked(Peer::Git)
    }

    async fn changed_since(&self, _: &Revision, _: &Revision) -> PortResult<Option<Vec<String>>> {
        unasked(Peer::Git)
    }

    async fn prepare(&self, _: &Revision, _: &[NewCommit]) -> PortResult<PreparedPush> {
        unasked(Peer::Git)
    }

    async fn push(&self, _: &PreparedPush) -> PortResult<PushOutcome> {
        unasked(Peer::Git)
    }

    async fn own_commits(&self, _: &Revision, _: &RelPath, _: u32) -> PortResult<Vec<OwnCommit>> {
        unasked(Peer::Git)
    }

    async fn when_others_changed(
        &self,
        _: &Revision,
        _: &RelPath,
        file: &RelPath,
    ) -> PortResult<Option<Bytes>> {
        assert_eq!(file.as_str(), COMPOSITION);
        Ok(self.then.clone())
    }

    async fn fate(&self, _: &Revision, _: &Revision) -> PortResult<CommitFate> {
        unasked(Peer::Git)
    }
}

#[async_trait]
impl Registry for World {
    async fn has(&self, _: &ImageRepository, _: &Digest) -> PortResult<bool> {
        self.registry.map_err(|found| fault(Peer::Registry, found))
    }

    async fn resolve(&self, _: &ImageRepository, _: &str) -> PortResult<Option<Digest>> {
        unasked(Peer::Registry)
    }

    async fn tag(&self, _: &ImageRepository, _: &Digest, _: &str) -> PortResult<()> {
        unasked(Peer::Registry)
    }

    async fn ping(&self, _: &str) -> PortResult<()> {
        unasked(Peer::Registry)
    }
}

fn file(name: &str, text: &str) -> SourceFile {
    SourceFile { path: path(name), kind: FileKind::Regular, content: text.to_owned().into() }
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

fn prod() -> EnvironmentName {
    EnvironmentName::parse("prod").unwrap()
}

fn revision(digit: char) -> Revision {
    Revision::parse(&digit.to_string().repeat(40)).unwrap()
}

fn image(digit: char) -> DeployedImage {
    DeployedImage {
        repository: ImageRepository::parse("registry:80/citation").unwrap(),
        digest: Digest::parse(&format!("sha256:{}", digit.to_string().repeat(64))).unwrap(),
        revision: revision(digit),
        version: None,
        build: None,
    }
}

fn settings(source: SourceForm) -> Settings {
    testing::settings(source, "dagster", Some(testing::runner()))
}

fn parsed(tree: Tree) -> Apps {
    Apps::parse(revision('f'), tree, &Rules { registries: vec!["registry:80".to_owned()] })
}

fn app_of(apps: &Apps) -> &App {
    &apps.registrations.apps[&AppName::parse("citation").unwrap()]
}

/// `cluster/apps` with the image of `a` and the copy of `c`, and what automation remembers of it.
async fn deployed_once() -> (Tree, Memory) {
    let files = [
        ("apps/citation/app.yaml", APP),
        ("contract.yaml", include_str!("../../../../docs/contract.yaml.example")),
    ];
    let tree: Tree = files.into_iter().map(|(name, text)| (path(name), Entry::regular(text))).collect();
    let apps = parsed(tree.clone());
    let (app, world) = (app_of(&apps), World::new(None, Ok(true)));
    let overlay = OverlaySource { repo: RepoName::parse("atlas/citation").unwrap(), path: path("deploy") };
    let infra = DeployedInfra { overlay, revision: revision('c') };
    let files = collect(&world.source, &infra.overlay, &infra.revision).await.unwrap().unwrap();
    let planned = plan::deploy_image(&tree, app, &prod(), &image('a'), None, Timestamp(0));
    let tree = tree.apply(&planned.unwrap().unwrap().changes).unwrap();
    let planned = plan::advance_infra(&tree, app, &prod(), &files, &infra, Timestamp(0));
    let tree = tree.apply(&planned.unwrap().unwrap().changes).unwrap();
    let mut memory = Memory::default();
    let copied = Committed { commit: None, revision: revision('c'), digest: None, key: None };
    memory.channel_mut(&prod(), Channel::Infra).committed = Some(copied);
    (tree, memory)
}

fn text(tree: &Tree, name: &str) -> String {
    String::from_utf8(tree.read(&path(name)).unwrap().unwrap().to_vec()).unwrap()
}

fn with(tree: &Tree, name: &str, text: String) -> Tree {
    let others = tree.iter().filter(|(other, _)| other.as_str() != name);
    let others = others.map(|(other, entry)| (other.clone(), entry.clone()));
    others.chain([(path(name), Entry::regular(text))]).collect()
}

/// A person's edit of the composition: other digits in place of those of one image, or of one revision.
fn edited(tree: &Tree, edits: &[(String, String)]) -> Tree {
    let before = text(tree, COMPOSITION);
    let after = edits.iter().fold(before.clone(), |text, (from, to)| text.replace(from, to));
    assert_ne!(before, after);
    with(tree, COMPOSITION, after)
}

fn other_image(to: char) -> Vec<(String, String)> {
    let (from, to) = (image('a'), image(to));
    vec![
        (from.digest.to_string(), to.digest.to_string()),
        (format!("\"{}\"", from.revision), format!("\"{}\"", to.revision)),
        (format!("revision: {}", from.revision), format!("revision: {}", to.revision)),
    ]
}

fn other_copy(to: char) -> Vec<(String, String)> {
    vec![(revision('c').to_string(), revision(to).to_string())]
}

/// What would follow on a tree, after which the world was asked.
async fn followed(world: &World, tree: Tree, memory: &Memory, source: SourceForm) -> PortResult<Proposal> {
    let (apps, settings) = (parsed(tree), settings(source));
    let ground = ground(world, &apps, &settings);
    propose(ground, memory).await
}

fn ground<'a>(world: &'a World, apps: &'a Apps, settings: &'a Settings) -> Ground<'a> {
    let render = Some(settings);
    let app = app_of(apps);
    Ground {
        source: &world.source,
        deployments: world,
        registry: world,
        apps,
        app,
        render,
        moved: Moved::default(),
    }
}

fn paths(proposal: &Proposal) -> Vec<&str> {
    let changes = proposal.staged.iter().flat_map(|staged| staged.planned.changes.iter());
    changes.map(|(path, _)| path.as_str()).collect()
}

fn refusal(proposal: &Proposal) -> &str {
    let ([], [(place, _, Verdict::Trouble(why))]) = (&proposal.staged[..], &proposal.refused[..]) else {
        panic!("{proposal:?}")
    };
    assert_eq!(*place, prod());
    why
}

fn then(tree: &Tree) -> Option<Bytes> {
    Some(text(tree, COMPOSITION).into())
}

#[tokio::test]
async fn another_image_by_a_persons_word_brings_what_its_revision_needs() {
    let (tree, memory) = deployed_once().await;
    let world = World::new(then(&tree), Ok(true));
    let proposal =
        followed(&world, edited(&tree, &other_image('b')), &memory, SourceForm::Copy).await.unwrap();
    assert_eq!(paths(&proposal), ["apps/citation/prod/kustomization.yaml", MIGRATIONS]);
    let along = proposal.along.unwrap();
    assert!(along.needs.is_none() && along.here[&prod()].asks.is_some());
    // What is run and asked for is the image's: another copy alone brings neither.
    let proposal =
        followed(&world, edited(&tree, &other_copy('d')), &memory, SourceForm::Copy).await.unwrap();
    assert!(proposal.refused.is_empty() && !paths(&proposal).contains(&MIGRATIONS), "{proposal:?}");
    assert!(proposal.along.unwrap().here.is_empty());
}

#[tokio::test]
async fn a_slip_in_a_composition_refuses_its_environment_and_is_no_error() {
    let (tree, memory) = deployed_once().await;
    let at = |registry| World::new(then(&tree), registry);
    // A registry that does not let fabrique in, or is none.
    for found in [Fault::Denied, Fault::Unexpected] {
        let edited = edited(&tree, &other_image('b'));
        let proposal = followed(&at(Err(found)), edited, &memory, SourceForm::Copy).await.unwrap();
        assert!(refusal(&proposal).contains(COMPOSITION), "{proposal:?}");
    }
    // A revision that the repository does not have.
    let proposal = followed(&at(Ok(true)), edited(&tree, &other_copy('9')), &memory, SourceForm::Copy).await;
    assert!(refusal(&proposal.unwrap()).contains("correct what the composition names"));
    // One that does not answer may answer later.
    let edited = edited(&tree, &other_image('b'));
    let unanswered = followed(&at(Err(Fault::Transient)), edited, &memory, SourceForm::Copy).await;
    assert!(unanswered.unwrap_err().transient());
}

#[tokio::test]
async fn no_application_names_an_image_that_the_registry_does_not_have() {
    let (tree, memory) = deployed_once().await;
    let file = "applications/citation-prod.yaml";
    let tree = with(&tree, file, "# Generated by fabrique\nkind: Application\n".to_owned());
    for (has, refused) in [(true, false), (false, true)] {
        let world = World::new(then(&tree), Ok(has));
        let proposal = followed(&world, tree.clone(), &memory, SourceForm::Repository).await.unwrap();
        assert_eq!((proposal.staged.is_empty(), proposal.refused.len()), (refused, usize::from(refused)));
        if refused {
            assert!(refusal(&proposal).contains("the registry has no registry:80/citation@sha256:aaaa"));
        }
        // Nor does it get there beside an overlay that automation commits. Another image takes its place.
        let (apps, settings) = (parsed(tree.clone()), settings(SourceForm::Repository));
        let mut overlay = automatic(&apps);
        for staged in &mut overlay.staged {
            staged.automatic.as_mut().unwrap().1 = Channel::Infra;
        }
        comes_first(&mut overlay, ground(&world, &apps, &settings), &memory).await.unwrap();
        assert_eq!(overlay.staged.is_empty(), refused);
        let mut image = automatic(&apps);
        comes_first(&mut image, ground(&world, &apps, &settings), &memory).await.unwrap();
        assert_eq!((image.staged.len(), image.refused.len()), (1, 0));
    }
}

/// What has to follow, and what of it would be the trouble of its environment; whether something is left open.
async fn trouble_of(ground: Ground<'_>, memory: &Memory) -> (usize, Vec<EnvironmentName>, bool) {
    let wanted = wanted(ground, &suspects(ground, memory)).await.unwrap();
    let proposal = propose(ground, memory).await.unwrap();
    let (left, open) = wanted.left(ground.moved, &proposal.refused);
    (proposal.refused.len(), left.into_keys().collect(), open)
}

#[tokio::test]
async fn an_application_that_cannot_follow_is_left_open_and_stops_nothing() {
    let (tree, memory) = deployed_once().await;
    let stale = "# Generated by fabrique\nkind: Application\n".to_owned();
    let tree = with(&tree, "applications/citation-prod.yaml", stale);
    let files = Moved { files: true, ..Moved::default() };
    let world = |registry| World::new(then(&tree), registry);
    // The namespace moved to one in which the database of the deployed revision is not: the push that says so may come.
    let place = "    - name: prod\n";
    let moved = text(&tree, "apps/citation/app.yaml")
        .replace(place, &format!("{place}      application: {{ namespace: elsewhere }}\n"));
    let elsewhere = with(&tree, "apps/citation/app.yaml", moved);
    let mut settings = settings(SourceForm::Copy);
    settings.destinations[0].namespaces.push("elsewhere".to_owned());
    for (tree, registry, refused) in [(&elsewhere, true, 1), (&tree, false, 1), (&tree, true, 0)] {
        let (world, apps) = (world(Ok(registry)), parsed(tree.clone()));
        let ground = Ground { moved: files, ..ground(&world, &apps, &settings) };
        let found = trouble_of(ground, &memory).await;
        assert_eq!(found, (refused, vec![], refused > 0), "{registry}");
        let mut automatic = automatic(&apps);
        comes_first(&mut automatic, ground, &memory).await.unwrap();
        assert_eq!((automatic.staged.len(), automatic.refused.len()), (1, 0));
    }
    // Files that cannot follow are their environment's trouble, and wait for a person.
    let (world, apps) = (world(Ok(false)), parsed(edited(&tree, &other_image('b'))));
    let ground = Ground { moved: files, ..ground(&world, &apps, &settings) };
    assert_eq!(trouble_of(ground, &memory).await, (1, vec![prod()], false));
}

#[tokio::test]
async fn an_application_of_another_form_follows_an_edit_and_nothing_else() {
    let (tree, memory) = deployed_once().await;
    let stale = "# Generated by fabrique\nkind: Application\n".to_owned();
    let tree = with(&tree, "applications/citation-prod.yaml", stale);
    let world = World::new(then(&tree), Ok(true));
    let (apps, settings) = (parsed(tree), settings(SourceForm::Copy));
    let ground = ground(&world, &apps, &settings);
    let still = propose(ground, &memory).await.unwrap();
    assert!(
        still.staged.is_empty() && still.refused.is_empty(),
        "another worker may render it so: {still:?}"
    );
    let moved = Moved { files: true, ..Moved::default() };
    let edited = propose(Ground { moved, ..ground }, &memory).await.unwrap();
    assert_eq!((edited.staged.len(), edited.refused.len()), (1, 0));
}

#[tokio::test]
async fn another_contract_stays_open_while_files_keep_it_from_being_followed() {
    let (tree, memory) = deployed_once().await;
    let ours = "# Generated by fabrique\nmetadata:\n  labels: { fabrique/app: citation, fabrique/environment: prod }\n";
    let tree = with(&tree, "applications/citation-prod.yaml", ours.to_owned());
    let kustomization = "apps/citation/prod/kustomization.yaml";
    let binding = |to: &str| {
        let digest = image('a').digest.to_string();
        with(&tree, kustomization, text(&tree, kustomization).replace(&digest, to))
    };
    let (drifting, broken) =
        (binding(image('b').digest.as_str()), with(&tree, kustomization, "a: [".to_owned()));
    let lagging = edited(&tree, &other_copy('d'));
    let (world, settings) = (World::new(then(&tree), Ok(true)), settings(SourceForm::Copy));
    for (tree, stays) in [(&tree, false), (&drifting, true), (&broken, true), (&lagging, true)] {
        let apps = parsed(tree.clone());
        for contract in [false, true] {
            let moved = Moved { contract, ..Moved::default() };
            let ground = Ground { moved, ..ground(&world, &apps, &settings) };
            assert_eq!(trouble_of(ground, &memory).await, (0, vec![], contract && stays));
        }
    }
}

/// A commit of automation: a newer image.
fn automatic(apps: &Apps) -> Proposal {
    let newer = image('b');
    let planned = plan::deploy_image(&apps.tree, app_of(apps), &prod(), &newer, None, Timestamp(0));
    let (revision, digest) = (newer.revision, Some(newer.digest));
    let committed = Committed { commit: None, revision, digest, key: None };
    let automatic = Some((prod(), Channel::Image, committed));
    let staged = vec![Staged { planned: planned.unwrap().unwrap(), automatic }];
    Proposal { staged, ..Proposal::default() }
}

#[tokio::test]
async fn automation_commits_nothing_beside_an_edit_that_is_not_followed_yet() {
    let (tree, memory) = deployed_once().await;
    let edited = edited(&tree, &other_copy('d'));
    let world = World::new(then(&tree), Ok(true));
    let (apps, settings) = (parsed(edited.clone()), settings(SourceForm::Copy));
    let mut proposal = automatic(&apps);
    comes_first(&mut proposal, ground(&world, &apps, &settings), &memory).await.unwrap();
    assert!(refusal(&proposal).contains("follows first"), "{proposal:?}");

    // A revision at which the overlay is the same leaves nothing behind.
    let same = self::edited(&tree, &other_copy('b'));
    let same = parsed(same);
    let mut proposal = automatic(&same);
    comes_first(&mut proposal, ground(&world, &same, &settings), &memory).await.unwrap();
    assert_eq!((proposal.staged.len(), proposal.refused.len()), (1, 0));

    // Once it is followed, git tells that the files are as the composition wants them.
    let world = World::new(then(&edited), Ok(true));
    let mut proposal = automatic(&apps);
    comes_first(&mut proposal, ground(&world, &apps, &settings), &memory).await.unwrap();
    assert_eq!((proposal.staged.len(), proposal.refused.len()), (1, 0));
}

#[test]
fn what_is_not_followed_is_the_trouble_of_its_environment_alone() {
    let seen = |name: &str| EnvironmentView {
        name: EnvironmentName::parse(name).unwrap(),
        image: image_view(),
        infra: InfraView::default(),
    };
    let mut environments = [seen("prod"), seen("bench")];
    let left = [(prod(), "the registry has no such image".to_owned())].into();
    Followed { left, ..Followed::default() }.show_in(&mut environments);
    let judged =
        environments.each_ref().map(|e| judge_image(e, Candidate::Target, false, &Declared::default()));
    assert_eq!(judged, [Verdict::Trouble("the registry has no such image".to_owned()), Verdict::Advance]);
    assert_eq!(environments[0].infra.trouble, environments[0].image.trouble);
}

#[tokio::test]
async fn the_copy_follows_with_its_application_also_to_the_revision_that_automation_copied_last() {
    let (tree, mut memory) = deployed_once().await;
    let copied = Committed { commit: None, revision: revision('d'), digest: None, key: None };
    memory.channel_mut(&prod(), Channel::Infra).committed = Some(copied);
    let stale = "# Generated by fabrique\nkind: Application\n".to_owned();
    let tree = with(&tree, "applications/citation-prod.yaml", stale);
    let world = World::new(then(&tree), Ok(true));
    for (to, brings) in [('d', vec!["apps/citation/prod/more.yaml"]), ('b', vec![])] {
        let edited = edited(&tree, &other_copy(to));
        let proposal = followed(&world, edited, &memory, SourceForm::Repository).await.unwrap();
        assert_eq!((proposal.staged.len(), paths(&proposal)), (1, brings), "{proposal:?}");
    }
}
