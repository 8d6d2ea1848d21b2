//! Sweeps over the bed's Gitea, NATS and registry, with every webhook dropped: there is none.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream;
use async_trait::async_trait;
use fabrique_bed::{Bed, GitRepo};
use fabrique_bus::{Bus, BusConfig};
use fabrique_core::build::BuildInputs;
use fabrique_core::id::{AppName, BranchName, BuildId, Digest, ImageRepository, RelPath, RepoName, Revision};
use fabrique_core::memory::{Built, Memory};
use fabrique_core::policy::Policy;
use fabrique_core::relation::Relation;
use fabrique_core::time::Timestamp;
use fabrique_git::{AppsRepository, GitConfig, GitDeployments, GitHistory, Identity};
use fabrique_gitea::{Gitea, GiteaConfig};
use fabrique_gitops::Rules;
use fabrique_observer::{AppsReader, Observer};
use fabrique_ports::Ambient as _;
use fabrique_ports::PortResult;
use fabrique_ports::bus::{Board, BusSetup, EventBody, Events};
use fabrique_ports::forge::{BranchHead, BranchTip, CommitStatus, Forge, ForgeFile, StatusOutcome};
use fabrique_ports::records::{Memories, Swap};
use fabrique_ports::registry::Registry;
use fabrique_ports::source::{ChangedPaths, SourceFile, SourceHistory};
use fabrique_reconciler::{Config, Depth, Ports, Reconciler, Sweep};
use fabrique_registry::{Access, OciRegistry, RegistryConfig};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

#[path = "live/history.rs"]
mod history;
#[path = "live/images.rs"]
mod images;
#[path = "live/leases.rs"]
mod leases;

/// Calls that may reach the forge or the registry: all of them, those at work, and the most that ever were.
#[derive(Default)]
struct Calls {
    all: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

/// What a sweep cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    /// Calls that may have reached the forge.
    forge: usize,
    /// Requests to the registry.
    registry: usize,
    /// Messages that were stored in any stream or bucket of the bus.
    written: u64,
}

/// Counts the calls that may reach a server, and passes them on.
struct Counted<T> {
    inner: T,
    calls: Arc<Calls>,
}

impl<T> Counted<T> {
    fn count(&self) -> &T {
        self.calls.all.fetch_add(1, Ordering::SeqCst);
        &self.inner
    }
}

#[async_trait]
impl Forge for Counted<Gitea> {
    async fn branch_head(&self, repo: &RepoName, branch: &BranchName) -> PortResult<BranchHead> {
        let at_work = self.calls.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.calls.most.fetch_max(at_work, Ordering::SeqCst);
        let head = self.count().branch_head(repo, branch).await;
        self.calls.now.fetch_sub(1, Ordering::SeqCst);
        head
    }
    async fn branch_tip(&self, repo: &RepoName, branch: &BranchName) -> PortResult<Option<BranchTip>> {
        self.count().branch_tip(repo, branch).await
    }

    async fn was_pushed(&self, repo: &RepoName, revision: &Revision) -> PortResult<bool> {
        self.count().was_pushed(repo, revision).await
    }
    async fn file(
        &self,
        repo: &RepoName,
        revision: &Revision,
        path: &RelPath,
    ) -> PortResult<Option<ForgeFile>> {
        self.count().file(repo, revision, path).await
    }
    async fn set_status(
        &self,
        repo: &RepoName,
        revision: &Revision,
        status: &CommitStatus,
    ) -> PortResult<StatusOutcome> {
        self.count().set_status(repo, revision, status).await
    }
}

#[async_trait]
impl SourceHistory for Counted<GitHistory> {
    async fn prefetch(&self, repo: &RepoName, revision: &Revision) -> PortResult<()> {
        self.count().prefetch(repo, revision).await
    }
    async fn relation(&self, repo: &RepoName, from: &Revision, to: &Revision) -> PortResult<Relation> {
        self.count().relation(repo, from, to).await
    }
    async fn changed_paths(
        &self,
        repo: &RepoName,
        from: &Revision,
        to: &Revision,
    ) -> PortResult<ChangedPaths> {
        // Both revisions are in the clone once they were related: this asks nobody.
        self.inner.changed_paths(repo, from, to).await
    }
    async fn commit_time(&self, repo: &RepoName, revision: &Revision) -> PortResult<i64> {
        self.count().commit_time(repo, revision).await
    }
    async fn read_directory(
        &self,
        repo: &RepoName,
        revision: &Revision,
        directory: &RelPath,
    ) -> PortResult<Option<Vec<SourceFile>>> {
        self.count().read_directory(repo, revision, directory).await
    }
    async fn read_file(
        &self,
        repo: &RepoName,
        revision: &Revision,
        path: &RelPath,
    ) -> PortResult<Option<SourceFile>> {
        self.count().read_file(repo, revision, path).await
    }
    async fn ancestors(&self, repo: &RepoName, head: &Revision, prefix: &str) -> PortResult<Vec<Revision>> {
        self.count().ancestors(repo, head, prefix).await
    }
}

#[async_trait]
impl Registry for Counted<OciRegistry> {
    async fn has(&self, image: &ImageRepository, digest: &Digest) -> PortResult<bool> {
        self.count().has(image, digest).await
    }
    async fn resolve(&self, image: &ImageRepository, tag: &str) -> PortResult<Option<Digest>> {
        self.count().resolve(image, tag).await
    }
    async fn tag(&self, image: &ImageRepository, digest: &Digest, tag: &str) -> PortResult<()> {
        self.count().tag(image, digest, tag).await
    }
    async fn ping(&self, host: &str) -> PortResult<()> {
        self.count().ping(host).await
    }
}

struct Clock;

impl fabrique_ports::Ambient for Clock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Timestamp(u64::try_from(since.as_millis()).unwrap())
    }
    fn ulid(&self) -> String {
        ulid::Ulid::generate().to_string().to_lowercase()
    }
    fn jitter(&self) -> f64 {
        0.5
    }
    fn random(&self) -> [u8; 16] {
        [7; 16]
    }
}

/// A cluster of its own: repositories, bus, registry, and a reconciler with the reconciler's rights.
struct Cluster {
    bed: Bed,
    apps: GitRepo,
    admin: Bus,
    reconciler: Reconciler,
    reader: Arc<AppsReader>,
    calls: Arc<Calls>,
    registry_calls: Arc<Calls>,
    streams: jetstream::Context,
    _state: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        Self::ending_attempts_as("reconciler").await
    }

    async fn ending_attempts_as(role: &str) -> Self {
        Self::with(role, Config::default()).await
    }

    /// Whose reconciler ends attempts in this role.
    async fn with(role: &str, config: Config) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bed = Bed::builder().gitea().nats().registry().start().await.unwrap();
        for org in ["cluster", "atlas"] {
            bed.gitea().create_org(org).await.unwrap();
        }
        bed.gitea().create_repo("cluster", "apps", true).await.unwrap();
        let apps = GitRepo::clone(&bed.gitea().clone_url_with_token("cluster", "apps")).await.unwrap();
        let admin = bus(&bed, "admin").await;
        assert!(admin.ensure().await.unwrap().iter().all(|finding| !finding.fatal));
        let state = tempfile::tempdir().unwrap();
        let calls = Arc::new(Calls::default());
        let git = git_config(&bed, &state);
        let forge = Counted { inner: Gitea::new(gitea_config(&bed)).unwrap(), calls: Arc::clone(&calls) };
        let source = Counted { inner: GitHistory::new(git.clone()).unwrap(), calls: Arc::clone(&calls) };
        let registry_calls = Arc::new(Calls::default());
        let registry = Arc::new(Counted { inner: registry(&bed), calls: Arc::clone(&registry_calls) });
        let bus = Arc::new(bus(&bed, "reconciler").await);
        let observer = Observer::new(
            Arc::new(forge),
            Arc::new(source),
            registry.clone(),
            bus.clone(),
            Policy::default(),
        );
        let ending = Arc::new(self::bus(&bed, role).await);
        let rules = Rules { registries: vec![bed.registry().host()] };
        let reader = Arc::new(AppsReader::new(Arc::new(GitDeployments::new(git).unwrap()), rules));
        let ports = Ports {
            board: bus.clone(),
            wakes: bus.clone(),
            memories: bus.clone(),
            history: ending.clone(),
            logs: ending,
            records: bus.clone(),
            registry,
            events: bus,
        };
        let reconciler = Reconciler::new(config, ports, observer, Arc::clone(&reader), Arc::new(Clock));
        let streams = streams(&bed).await;
        Self { bed, apps, admin, reconciler, reader, calls, registry_calls, streams, _state: state }
    }

    /// Registers an app with a repository of its own.
    async fn register(&self, app: &str, image: &str) -> GitRepo {
        self.bed.gitea().create_repo("atlas", app, true).await.unwrap();
        let repo = GitRepo::clone(&self.bed.gitea().clone_url_with_token("atlas", app)).await.unwrap();
        repo.write("src/Dockerfile", "FROM scratch\n").await.unwrap();
        repo.commit("Add a Dockerfile").await.unwrap();
        repo.push().await.unwrap();
        self.write_registration(app, app, image).await;
        repo
    }

    async fn write_registration(&self, app: &str, repo: &str, image: &str) {
        let registration = format!(
            "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {app} }}\nspec:\n  \
             source: {{ repo: atlas/{repo} }}\n  image: {}/{image}\n  build: {{ context: src }}\n  \
             environments:\n    - {{ name: prod }}\n",
            self.bed.registry().host()
        );
        self.apps.write(&format!("apps/{app}/app.yaml"), registration).await.unwrap();
    }

    /// Makes the app look deployed at `revision`, and served.
    async fn deploy(&self, app: &str, image: &str, revision: &str, digest: &Digest) {
        self.write_composition(app, image, revision, digest).await;
        let app = name(app);
        let (wanted, record, at) = self.admin.work_of(&app).await.unwrap();
        let served = record.claimed_by("worker").released(wanted);
        assert!(matches!(self.admin.swap_work(&app, &served, at).await.unwrap(), Swap::Done(_)));
    }

    /// Ends a look at the app as a worker does: it is served, and what was seen of it is noted.
    async fn look(&self, app: &str) {
        let (apps, app) = (self.reader.read().await.unwrap(), name(app));
        let seen = apps.seen_of(&apps.registrations.apps[&app]);
        let (wanted, record, at) = self.admin.work_of(&app).await.unwrap();
        let looked = record.claimed_by("worker").released(wanted).having_seen(Some(seen));
        assert!(matches!(self.admin.swap_work(&app, &looked, at).await.unwrap(), Swap::Done(_)));
    }

    async fn write_composition(&self, app: &str, image: &str, revision: &str, digest: &Digest) {
        let composition = format!(
            "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: {app}, environment: prod }}\n\
             image: {{ repository: {}/{image}, digest: \"{digest}\", revision: {revision} }}\n",
            self.bed.registry().host()
        );
        self.apps.write(&format!("apps/{app}/prod/composition.yaml"), composition).await.unwrap();
    }

    async fn publish(&self) {
        self.apps.commit("Change the cluster").await.unwrap();
        self.apps.push().await.unwrap();
    }

    async fn sweep(&self, depth: Depth) -> (Sweep, Cost) {
        let stored = self.stored().await;
        self.calls.all.store(0, Ordering::SeqCst);
        self.registry_calls.all.store(0, Ordering::SeqCst);
        let sweep = self.reconciler.sweep(depth).await.unwrap();
        let cost = Cost {
            forge: self.calls.all.load(Ordering::SeqCst),
            registry: self.registry_calls.all.load(Ordering::SeqCst),
            written: self.stored().await - stored,
        };
        (sweep, cost)
    }

    /// How many messages were ever stored on the bus.
    async fn stored(&self) -> u64 {
        let streams: Vec<_> = self.streams.streams().collect().await;
        streams.into_iter().map(|stream| stream.unwrap().state.last_sequence).sum()
    }

    /// The digest of an image that the registry has.
    async fn busybox(&self) -> Digest {
        let image = ImageRepository::parse(&format!("{}/base/busybox", self.bed.registry().host())).unwrap();
        registry(&self.bed).resolve(&image, "1").await.unwrap().unwrap()
    }
}

async fn bus(bed: &Bed, role: &str) -> Bus {
    let config = BusConfig::new([bed.nats().address()])
        .as_user(bed.nats().user(role), bed.nats().password(role).into());
    Bus::connect(config).await.unwrap()
}

async fn streams(bed: &Bed) -> jetstream::Context {
    let (user, password) = (bed.nats().user("admin"), bed.nats().password("admin"));
    let options = async_nats::ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned());
    jetstream::new(options.connect(bed.nats().address()).await.unwrap())
}

fn gitea_config(bed: &Bed) -> GiteaConfig {
    let mut config = GiteaConfig::new(bed.gitea().base_url().parse().unwrap());
    config.tokens.read = Some(bed.gitea().admin_token().into());
    config.tokens.apps = Some(bed.gitea().admin_token().into());
    config
}

fn git_config(bed: &Bed, state: &tempfile::TempDir) -> GitConfig {
    let apps = AppsRepository {
        repo: RepoName::parse("cluster/apps").unwrap(),
        branch: BranchName::parse("main").unwrap(),
        token: Some(bed.gitea().admin_token().into()),
        identity: Identity::default(),
    };
    let base = bed.gitea().base_url().parse().unwrap();
    let mut config = GitConfig::new(state.path().to_owned(), base, apps);
    config.read.default = Some(bed.gitea().admin_token().into());
    config
}

fn registry(bed: &Bed) -> OciRegistry {
    let access = Access { plain_http: true, ..Access::default() };
    let hosts = BTreeMap::from([(bed.registry().host(), access)]);
    OciRegistry::new(RegistryConfig { hosts, ..RegistryConfig::default() }).unwrap()
}

fn name(app: &str) -> AppName {
    AppName::parse(app).unwrap()
}

fn woken(sweep: &Sweep) -> Vec<&str> {
    assert_eq!(sweep.failed, []);
    sweep.woken.iter().map(|woken| woken.app.as_str()).collect()
}

#[tokio::test]
async fn with_every_webhook_lost_one_sweep_wakes_all_and_the_next_finds_nothing_to_do() {
    let cluster = Cluster::start().await;
    let mut repos = BTreeMap::new();
    for app in ["a", "b", "c"] {
        repos.insert(app, cluster.register(app, app).await);
    }
    cluster.publish().await;
    let (sweep, _) = cluster.sweep(Depth::Heads).await;
    assert_eq!(woken(&sweep), ["a", "b", "c"]);
    assert!(sweep.woken.iter().all(|woken| woken.reason.ends_with("is not built yet")), "{sweep:?}");

    // Their wakes are durable: nobody needs another one.
    let (sweep, cost) = cluster.sweep(Depth::Heads).await;
    assert_eq!((woken(&sweep), cost.written), (vec![], 0));

    let digest = Digest::of(b"an image");
    for (app, repo) in &repos {
        cluster.deploy(app, app, &repo.head().await.unwrap(), &digest).await;
    }
    cluster.publish().await;
    let (sweep, cost) = cluster.sweep(Depth::Heads).await;
    assert_eq!((woken(&sweep), sweep.looked), (vec![], 3));
    assert_eq!(cost, Cost { forge: 3, registry: 0, written: 0 });

    // One head moves in a watched path, one in another: only the first is a difference.
    for (app, path) in [("a", "src/main.py"), ("b", "README.md")] {
        repos[app].write(path, "news\n").await.unwrap();
        repos[app].commit("Change a file").await.unwrap();
        repos[app].push().await.unwrap();
    }
    let (sweep, cost) = cluster.sweep(Depth::Heads).await;
    assert_eq!((woken(&sweep), cost.written), (vec!["a"], 1));
    assert!(cost.forge + cost.registry <= 6, "{cost:?} for three apps");

    let (stop, reconciler) = (CancellationToken::new(), cluster.reconciler);
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { reconciler.run_every(Duration::from_secs(3600), stop).await }
    });
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_edit_of_which_no_webhook_told_wakes_its_app_until_somebody_has_looked() {
    let cluster = Cluster::start().await;
    let image = Digest::of(b"an image");
    let mut heads = BTreeMap::new();
    for app in ["a", "b"] {
        let head = cluster.register(app, app).await.head().await.unwrap();
        cluster.deploy(app, app, &head, &image).await;
        heads.insert(app, head);
    }
    cluster.publish().await;
    let (sweep, _) = cluster.sweep(Depth::Heads).await;
    assert_eq!(woken(&sweep), [""; 0], "what nobody looked at shows by itself what it needs");
    for app in heads.keys() {
        cluster.look(app).await;
    }
    let (sweep, cost) = cluster.sweep(Depth::Heads).await;
    assert_eq!((woken(&sweep), cost), (vec![], Cost { forge: 2, registry: 0, written: 0 }));

    // The same revision, so that nothing else is to be told of it.
    cluster.write_composition("a", "a", &heads["a"], &Digest::of(b"another image")).await;
    cluster.publish().await;
    let (sweep, cost) = cluster.sweep(Depth::Heads).await;
    assert_eq!((woken(&sweep), cost), (vec!["a"], Cost { forge: 2, registry: 0, written: 1 }));
    assert!(sweep.woken[0].reason.starts_with("its files in cluster/apps changed"), "{sweep:?}");
    let (sweep, cost) = cluster.sweep(Depth::Heads).await;
    assert_eq!((woken(&sweep), cost.written), (vec![], 0), "its wake is durable");

    // Whatever came of the look: it is told once.
    cluster.look("a").await;
    let (sweep, cost) = cluster.sweep(Depth::Heads).await;
    assert_eq!((woken(&sweep), cost.written), (vec![], 0));
}

#[tokio::test]
async fn an_app_that_cannot_be_looked_at_stops_no_other() {
    let cluster = Cluster::start().await;
    cluster.register("new", "new").await;
    let repo = cluster.register("deployed", "deployed").await;
    cluster.deploy("deployed", "deployed", &repo.head().await.unwrap(), &Digest::of(b"an image")).await;
    cluster.apps.write("apps/wrong/app.yaml", "nonsense: true\n").await.unwrap();
    cluster.publish().await;
    cluster.bed.registry().peer().stop().await.unwrap();

    let (sweep, _) = cluster.sweep(Depth::Full).await;
    assert_eq!(sweep.looked, 2);
    assert_eq!(sweep.woken.iter().map(|w| w.app.as_str()).collect::<Vec<_>>(), ["new"]);
    assert_eq!(sweep.failed.iter().map(|f| f.app.as_str()).collect::<Vec<_>>(), ["deployed"]);
    assert!(sweep.findings.iter().any(|f| f.what.starts_with("apps/wrong/app.yaml:")), "{sweep:?}");
}

#[tokio::test]
async fn a_missing_keep_tag_is_restored_and_a_lost_image_is_reported() {
    let cluster = Cluster::start().await;
    let kept = cluster.register("kept", "base/busybox").await;
    let lost = cluster.register("lost", "lost").await;
    let digest = cluster.busybox().await;
    cluster.deploy("kept", "base/busybox", &kept.head().await.unwrap(), &digest).await;
    cluster.deploy("lost", "lost", &lost.head().await.unwrap(), &Digest::of(b"nobody has this")).await;
    cluster.publish().await;
    let key = remember_build(&cluster, "kept", &kept.head().await.unwrap(), &digest).await;
    let mut events = cluster.admin.tail(Some(&name("lost")), Some(Timestamp(0))).await.unwrap();

    let (sweep, _) = cluster.sweep(Depth::Full).await;
    assert_eq!(woken(&sweep), [""; 0]);
    let restored: Vec<_> = sweep.restored.iter().map(|r| (r.app.as_str(), r.tag.as_str())).collect();
    assert_eq!(restored, [("kept", key.as_str())]);
    assert!(cluster.bed.registry().tags("base/busybox").await.unwrap().contains(&key));
    assert_eq!(sweep.findings.len(), 1);
    assert!(sweep.findings[0].what.contains("the registry lost"), "{sweep:?}");
    let event = tokio::time::timeout(Duration::from_secs(10), events.next()).await.unwrap().unwrap().unwrap();
    assert!(
        matches!(&event.body, EventBody::Warning { message, .. } if message.contains("lost")),
        "{event:?}"
    );

    let (sweep, _) = cluster.sweep(Depth::Full).await;
    assert_eq!(sweep.restored, []);
}

#[tokio::test]
async fn a_full_sweep_asks_the_registry_once_for_each_image_and_writes_nothing_when_nothing_differs() {
    let cluster = Cluster::start().await;
    let digest = cluster.busybox().await;
    let repo = cluster.register("a", "base/busybox").await;
    let head = repo.head().await.unwrap();
    cluster.deploy("a", "base/busybox", &head, &digest).await;
    remember_build(&cluster, "a", &head, &digest).await;
    cluster.publish().await;
    let (sweep, _) = cluster.sweep(Depth::Full).await;
    assert_eq!((sweep.looked, sweep.restored.len()), (1, 1), "{sweep:?}");

    let (sweep, cost) = cluster.sweep(Depth::Full).await;
    assert_eq!((woken(&sweep), sweep.restored.len(), sweep.findings.len()), (vec![], 0, 0), "{sweep:?}");
    assert_eq!(cost, Cost { forge: 1, registry: 1, written: 0 }, "two requests for one app");
}

#[tokio::test]
async fn five_hundred_apps_cost_one_request_for_each_branch_and_never_more_than_eight_at_once() {
    const REPOSITORIES: usize = 20;
    let cluster = Cluster::start().await;
    let digest = Digest::of(b"an image");
    let mut heads = Vec::new();
    for number in 0..REPOSITORIES {
        let name = format!("app-{number}");
        heads.push(cluster.register(&name, &name).await.head().await.unwrap());
    }
    for number in 0..500 {
        let (app, repo) = (format!("app-{number}"), number % REPOSITORIES);
        cluster.write_registration(&app, &format!("app-{repo}"), &app).await;
        cluster.write_composition(&app, &app, &heads[repo], &digest).await;
    }
    cluster.publish().await;
    let (sweep, cost) = cluster.sweep(Depth::Heads).await;
    assert_eq!((woken(&sweep), sweep.looked), (vec![], 500));
    assert_eq!(cost, Cost { forge: REPOSITORIES, registry: 0, written: 0 });
    assert!(cluster.calls.most.load(Ordering::SeqCst) <= 8);
}

/// Writes the memory of a worker that built `app`; returns the tag that keeps its image.
async fn remember_build(cluster: &Cluster, app: &str, revision: &str, digest: &Digest) -> String {
    let inputs = BuildInputs {
        repo: RepoName::parse(&format!("atlas/{app}")).unwrap(),
        revision: Revision::parse(revision).unwrap(),
        context: RelPath::parse("src").unwrap(),
        dockerfile: RelPath::parse("Dockerfile").unwrap(),
        target: None,
        args: BTreeMap::new(),
        secrets: vec![],
        platforms: vec![],
        rebuild: 0,
    };
    let built = Built {
        build: BuildId::new(&name(app), &Clock.ulid()).unwrap(),
        key: inputs.key(),
        revision: inputs.revision.clone(),
        digest: digest.clone(),
    };
    let memory = Memory { built: Some(built), ..Memory::default() };
    let swap = cluster.admin.swap_memory(&name(app), &memory, 0).await.unwrap();
    assert!(matches!(swap, Swap::Done(_)));
    inputs.key().keep_tag()
}
