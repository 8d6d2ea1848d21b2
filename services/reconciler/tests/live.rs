//! Sweeps over the bed's Gitea, NATS and registry, with every webhook dropped: there is none.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
use fabrique_ports::forge::{BranchHead, BranchTip, CommitStatus, Forge, StatusOutcome};
use fabrique_ports::records::{Memories, Swap};
use fabrique_ports::source::{ChangedPaths, SourceFile, SourceHistory};
use fabrique_reconciler::{Config, Depth, Ports, Reconciler, Sweep};
use fabrique_registry::{Access, OciRegistry, RegistryConfig};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

#[path = "live/history.rs"]
mod history;

/// Calls that may reach the forge: all of them, those at work, and the most that ever were.
#[derive(Default)]
struct Calls {
    all: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Counts the calls that may reach the forge, and passes them on.
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

    async fn has_commit(&self, repo: &RepoName, revision: &Revision) -> PortResult<bool> {
        self.count().has_commit(repo, revision).await
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
    registry: Arc<OciRegistry>,
    reconciler: Reconciler,
    calls: Arc<Calls>,
    _state: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        Self::ending_attempts_as("reconciler").await
    }

    async fn ending_attempts_as(role: &str) -> Self {
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
        let registry = Arc::new(registry(&bed));
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
            registry: registry.clone(),
            events: bus,
        };
        let reconciler = Reconciler::new(Config::default(), ports, observer, reader, Arc::new(Clock));
        Self { bed, apps, admin, registry, reconciler, calls, _state: state }
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
        let (wanted, record, at) = self.admin.desk(&app).await.unwrap();
        let served = record.claimed_by("worker").released(wanted);
        assert!(matches!(self.admin.swap_work(&app, &served, at).await.unwrap(), Swap::Done(_)));
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

    async fn sweep(&self, depth: Depth) -> (Sweep, usize) {
        self.calls.all.store(0, Ordering::SeqCst);
        let sweep = self.reconciler.sweep(depth).await.unwrap();
        (sweep, self.calls.all.load(Ordering::SeqCst))
    }
}

async fn bus(bed: &Bed, role: &str) -> Bus {
    let config = BusConfig::new([bed.nats().address()])
        .as_user(bed.nats().user(role), bed.nats().password(role).into());
    Bus::connect(config).await.unwrap()
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
    assert_eq!(woken(&cluster.sweep(Depth::Heads).await.0), [""; 0]);

    let digest = Digest::of(b"an image");
    for (app, repo) in &repos {
        cluster.deploy(app, app, &repo.head().await.unwrap(), &digest).await;
    }
    cluster.publish().await;
    let (sweep, calls) = cluster.sweep(Depth::Heads).await;
    assert_eq!((woken(&sweep), sweep.looked, calls), (vec![], 3, 3));

    // One head moves in a watched path, one in another: only the first is a difference.
    for (app, path) in [("a", "src/main.py"), ("b", "README.md")] {
        repos[app].write(path, "news\n").await.unwrap();
        repos[app].commit("Change a file").await.unwrap();
        repos[app].push().await.unwrap();
    }
    let (sweep, calls) = cluster.sweep(Depth::Heads).await;
    assert_eq!(woken(&sweep), ["a"]);
    assert!(calls <= 6, "{calls} requests for three apps");

    let (stop, reconciler) = (CancellationToken::new(), cluster.reconciler);
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { reconciler.run_every(Duration::from_secs(3600), stop).await }
    });
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
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
    let host = cluster.bed.registry().host();
    let kept = cluster.register("kept", "base/busybox").await;
    let lost = cluster.register("lost", "lost").await;
    let busybox = ImageRepository::parse(&format!("{host}/base/busybox")).unwrap();
    let digest =
        fabrique_ports::registry::Registry::resolve(&*cluster.registry, &busybox, "1").await.unwrap();
    let digest = digest.unwrap();
    cluster.deploy("kept", "base/busybox", &kept.head().await.unwrap(), &digest).await;
    cluster.deploy("lost", "lost", &lost.head().await.unwrap(), &Digest::of(b"nobody has this")).await;
    cluster.publish().await;
    let key = remember_build(&cluster, &kept.head().await.unwrap(), &digest).await;
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
async fn five_hundred_apps_cost_one_request_each_and_never_more_than_eight_at_once() {
    let cluster = Cluster::start().await;
    let repo = cluster.register("app-0", "app-0").await;
    let (head, digest) = (repo.head().await.unwrap(), Digest::of(b"an image"));
    for number in 0..500 {
        let app = format!("app-{number}");
        cluster.write_registration(&app, "app-0", &app).await;
        cluster.write_composition(&app, &app, &head, &digest).await;
    }
    cluster.publish().await;
    let (sweep, calls) = cluster.sweep(Depth::Heads).await;
    assert_eq!((woken(&sweep), sweep.looked, calls), (vec![], 500, 500));
    assert!(cluster.calls.most.load(Ordering::SeqCst) <= 8);
}

/// Writes the memory of a worker that built `kept`; returns the tag that keeps its image.
async fn remember_build(cluster: &Cluster, revision: &str, digest: &Digest) -> String {
    let inputs = BuildInputs {
        repo: RepoName::parse("atlas/kept").unwrap(),
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
        build: BuildId::new(&name("kept"), &Clock.ulid()).unwrap(),
        key: inputs.key(),
        revision: inputs.revision.clone(),
        digest: digest.clone(),
    };
    let memory = Memory { built: Some(built), ..Memory::default() };
    let swap = cluster.admin.swap_memory(&name("kept"), &memory, 0).await.unwrap();
    assert!(matches!(swap, Swap::Done(_)));
    inputs.key().keep_tag()
}
