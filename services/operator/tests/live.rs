//! The use cases over the bed's Gitea, NATS and registry, with the real receiver behind the webhook.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use fabrique_bed::{Bed, GitRepo};
use fabrique_bus::{Bus, BusConfig, Login};
use fabrique_core::id::{AppName, BranchName, BuildId, BuildKey, Digest, RepoName, Revision};
use fabrique_core::policy::Policy;
use fabrique_core::time::Timestamp;
use fabrique_git::{AppsRepository, GitConfig, GitDeployments, GitHistory, Identity};
use fabrique_gitea::{Deliveries, Gitea, GiteaConfig, Purpose as TokenPurpose};
use fabrique_gitops::Rules;
use fabrique_observer::{AppsReader, Observer};
use fabrique_operator::doctor::{self, Doctor, Level, Purpose, Report};
use fabrique_operator::hooks::{self, HookResult};
use fabrique_operator::{Exit, Operator, OperatorError, Ports, validate};
use fabrique_ports::PortResult;
use fabrique_ports::bus::{BusRights, BusRole, BusSetup, Command, Event, EventBody, Events};
use fabrique_ports::delivery::Push;
use fabrique_ports::forge::ForgeInspection;
use fabrique_ports::records::{BuildEntry, BuildHistory, BuildPhase, Logs};
use fabrique_ports::upstream::Upstreams;
use fabrique_receiver::{Dependencies, Followers, Receiver, ReceiverConfig, Subscriptions};
use fabrique_registry::{Access, OciRegistry, RegistryConfig};
use futures::StreamExt;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

#[path = "live/declared.rs"]
mod declared;
#[path = "live/mirror.rs"]
mod mirror;

const SECRET: &str = "s3cret";

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp(u64::try_from(since.as_millis()).unwrap())
}

fn ulid() -> String {
    ulid::Ulid::generate().to_string().to_lowercase()
}

struct Clock;

impl fabrique_ports::Ambient for Clock {
    fn now(&self) -> Timestamp {
        now()
    }
    fn ulid(&self) -> String {
        ulid()
    }
    fn jitter(&self) -> f64 {
        0.5
    }
    fn random(&self) -> [u8; 16] {
        [7; 16]
    }
}

/// Nobody follows anything: only test deliveries are sent here.
struct Nobody;

#[async_trait]
impl Subscriptions for Nobody {
    fn followers(&self, _: &RepoName, _: &BranchName) -> Followers {
        Followers::UnknownRepository
    }
    fn is_apps_repo(&self, _: &RepoName, _: &BranchName) -> bool {
        false
    }
    fn loaded(&self) -> bool {
        true
    }
    async fn reload(&self) -> PortResult<BTreeSet<AppName>> {
        Ok(BTreeSet::new())
    }
    async fn missed(&self, _: &Push) -> PortResult<BTreeSet<AppName>> {
        Ok(BTreeSet::new())
    }
}

/// A bed with two good registrations and a wrong one, which no test changes.
struct Cluster {
    bed: Bed,
    head: String,
    hook_url: String,
    _state: tempfile::TempDir,
    git: GitConfig,
}

async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    CLUSTER.get_or_init(|| Box::pin(Cluster::start())).await
}

impl Cluster {
    async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bed = Bed::builder().gitea().nats().registry().start().await.unwrap();
        let gitea = bed.gitea();
        for (org, repo) in [("cluster", "apps"), ("atlas", "citation"), ("atlas", "search")] {
            // The organisation of the second repository is there already.
            drop(gitea.create_org(org).await);
            gitea.create_repo(org, repo, true).await.unwrap();
        }
        let source = GitRepo::clone(&gitea.clone_url_with_token("atlas", "citation")).await.unwrap();
        source.write("Dockerfile", "FROM scratch\n").await.unwrap();
        let head = source.commit("Add a Dockerfile").await.unwrap();
        source.push().await.unwrap();
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", "apps")).await.unwrap();
        for (app, branch) in [("citation", "main"), ("search", "release"), ("wrong", "-x")] {
            let text = format!(
                "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {app} }}\nspec:\n  \
                 source: {{ repo: atlas/{app}, branch: {branch} }}\n  image: {}/{app}\n  \
                 environments:\n    - {{ name: prod }}\n",
                bed.registry().host()
            );
            apps.write(&format!("apps/{app}/app.yaml"), text).await.unwrap();
        }
        apps.commit("Register apps").await.unwrap();
        apps.push().await.unwrap();
        let admin = bus(&bed, "admin").await;
        assert!(admin.ensure().await.unwrap().iter().all(|finding| !finding.fatal));
        let state = tempfile::tempdir().unwrap();
        let git = git_config(&bed, &state);
        Self { bed, head, hook_url: String::new(), _state: state, git }.with_receiver().await
    }

    /// Starts the receiver on a thread of its own, which outlives the test that happened to be first.
    async fn with_receiver(mut self) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        self.hook_url = format!("http://{}/webhook", listener.local_addr().unwrap());
        let config = bus_config(&self.bed, "receiver");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async move {
                let bus = Arc::new(Bus::connect(config).await.unwrap());
                let dependencies = Dependencies {
                    reader: Arc::new(Deliveries::new(vec![SECRET.into()]).unwrap()),
                    wakes: bus.clone(),
                    events: bus,
                    subscriptions: Arc::new(Nobody),
                    ambient: Arc::new(Clock),
                    connected: Box::new(|| true),
                    metrics: Box::new(String::new),
                };
                let receiver = Receiver::new(ReceiverConfig::default(), dependencies).unwrap();
                let listener = TcpListener::from_std(listener).unwrap();
                receiver.serve(listener, CancellationToken::new()).await.unwrap();
            });
        });
        self
    }

    fn gitea(&self, token: &str) -> Gitea {
        let mut config = GiteaConfig::new(self.bed.gitea().base_url().parse().unwrap());
        let tokens = &mut config.tokens;
        for slot in [&mut tokens.read, &mut tokens.status, &mut tokens.hooks, &mut tokens.apps] {
            *slot = Some(token.into());
        }
        config.hook_secret = Some(SECRET.into());
        config.apps_repo = Some(apps_repo());
        Gitea::new(config).unwrap()
    }

    fn apps(&self) -> Arc<AppsReader> {
        let rules = Rules { registries: vec![self.bed.registry().host()] };
        Arc::new(AppsReader::new(Arc::new(GitDeployments::new(self.git.clone()).unwrap()), rules))
    }

    fn registry(&self) -> Arc<OciRegistry> {
        let access = Access { plain_http: true, ..Access::default() };
        let hosts = BTreeMap::from([(self.bed.registry().host(), access)]);
        Arc::new(OciRegistry::new(RegistryConfig { hosts, ..RegistryConfig::default() }).unwrap())
    }

    async fn operator(&self) -> Operator {
        self.operator_knowing(None).await
    }

    /// The same, with what is known of sources on GitHub.
    async fn operator_knowing(&self, known: Option<Arc<dyn Upstreams>>) -> Operator {
        let bus = Arc::new(bus(&self.bed, "operator").await);
        let registry = self.registry();
        let forge = Arc::new(self.gitea(self.bed.gitea().admin_token()));
        let source = Arc::new(GitHistory::new(self.git.clone()).unwrap());
        let observer = Observer::new(forge, source, registry.clone(), bus.clone(), Policy::default());
        let observer = match known {
            Some(known) => observer.knowing(known),
            None => observer,
        };
        let ports = Ports {
            board: bus.clone(),
            memories: bus.clone(),
            records: bus.clone(),
            registry,
            history: bus.clone(),
            logs: bus.clone(),
            events: bus.clone(),
            commands: bus,
        };
        Operator::new(ports, observer, self.apps(), now)
    }

    async fn examine(&self, token: &str, hook_url: &str) -> Report {
        self.examine_users(token, hook_url, BusRole::ALL.map(|role| (role, role.as_str()))).await
    }

    /// The same, with who logs in to the bus for which role.
    async fn examine_users(
        &self,
        token: &str,
        hook_url: &str,
        users: impl IntoIterator<Item = (BusRole, &str)>,
    ) -> Report {
        let users = users.into_iter().map(|(role, user)| {
            let login: Arc<dyn BusRights> = Arc::new(Login::new(bus_config(&self.bed, user)));
            (role, login)
        });
        let bus = Arc::new(bus(&self.bed, "operator").await);
        let gitea = self.gitea(token);
        let tokens = [
            (Purpose::Read, TokenPurpose::Read),
            (Purpose::Status, TokenPurpose::Status),
            (Purpose::Hooks, TokenPurpose::Hooks),
            (Purpose::Apps, TokenPurpose::Apps),
        ];
        let tokens = tokens.map(|(purpose, token)| {
            let inspection: Arc<dyn ForgeInspection> = Arc::new(gitea.inspecting(token));
            (purpose, inspection)
        });
        let gitea = Arc::new(gitea);
        let ports = doctor::Ports {
            tokens: tokens.to_vec(),
            forge: gitea.clone(),
            hooks: gitea,
            apps: self.apps(),
            registry: self.registry(),
            builders: None,
            bus: bus.clone(),
            users: users.collect(),
            events: bus,
        };
        let mut config = doctor::Config::new(apps_repo(), branch("main"));
        config.hook_url = Some(hook_url.to_owned());
        Doctor::new(ports, config).examine().await
    }
}

fn bus_config(bed: &Bed, role: &str) -> BusConfig {
    let mut config = BusConfig::new([bed.nats().address()])
        .as_user(bed.nats().user(role), bed.nats().password(role).into());
    config.monitoring = Some(bed.nats().monitor_url());
    config
}

async fn bus(bed: &Bed, role: &str) -> Bus {
    Bus::connect(bus_config(bed, role)).await.unwrap()
}

fn git_config(bed: &Bed, state: &tempfile::TempDir) -> GitConfig {
    let apps = AppsRepository {
        repo: apps_repo(),
        branch: branch("main"),
        token: Some(bed.gitea().admin_token().into()),
        identity: Identity::default(),
    };
    let base = bed.gitea().base_url().parse().unwrap();
    let mut config = GitConfig::new(state.path().to_owned(), base, apps);
    config.read.default = Some(bed.gitea().admin_token().into());
    config
}

fn apps_repo() -> RepoName {
    RepoName::parse("cluster/apps").unwrap()
}

fn branch(name: &str) -> BranchName {
    BranchName::parse(name).unwrap()
}

/// The worst level of the checks whose name starts with `name`, of which there must be one.
fn level(report: &Report, name: &str) -> Level {
    let levels = report.checks.iter().filter(|check| check.name.starts_with(name)).map(|check| check.level);
    levels.max().unwrap_or_else(|| panic!("no check is called {name}: {report:#?}"))
}

#[tokio::test]
async fn hooks_are_made_once_and_the_doctor_measures_their_delay() {
    let cluster = cluster().await;
    let gitea = cluster.gitea(cluster.bed.gitea().admin_token());
    let apps = cluster.apps().read().await.unwrap();
    let watched = hooks::watched(&apps.registrations, (&apps_repo(), &branch("main")));
    let ensure = |dry_run| hooks::ensure(&gitea, watched.clone(), &cluster.hook_url, dry_run);

    let dry = ensure(true).await;
    let made = ensure(false).await;
    let again = ensure(false).await;
    for (ensured, result) in
        [(&dry, HookResult::Created), (&made, HookResult::Created), (&again, HookResult::Present)]
    {
        let found: Vec<_> =
            ensured.repositories.iter().map(|hook| (hook.repo.to_string(), hook.result)).collect();
        let expected =
            ["atlas/citation", "atlas/search", "cluster/apps"].map(|repo| (repo.to_owned(), result));
        assert_eq!(found, expected);
    }
    assert_eq!([dry.exit(), made.exit(), again.exit()], [Exit::Findings, Exit::Ok, Exit::Ok]);

    let report = cluster.examine(cluster.bed.gitea().admin_token(), &cluster.hook_url).await;
    for name in ["gitea", "token", "cluster/apps", "nats", "registry", "push", "webhooks", "webhook delay"] {
        assert_eq!(level(&report, name), Level::Ok, "{name}: {report:#?}");
    }
    let pushes = report.checks.iter().find(|check| check.name.starts_with("push ")).unwrap();
    assert_eq!(pushes.what, "takes pushes to 2 repositories");
    for role in BusRole::ALL {
        assert_eq!(level(&report, &format!("nats user {}", role.as_str())), Level::Ok, "{report:#?}");
    }
    let measured: Vec<_> =
        report.checks.iter().filter_map(|check| check.name.strip_prefix("webhook delay ")).collect();
    assert_eq!(measured, ["cluster/apps", "atlas/citation"]);
    assert_eq!(level(&report, "registrations"), Level::Fail);
    assert_eq!(report.exit(), Exit::Findings);
}

#[tokio::test]
async fn a_token_without_rights_and_missing_webhooks_are_found_each_with_a_remedy() {
    let cluster = cluster().await;
    let gitea = cluster.bed.gitea();
    gitea.create_user("weak").await.unwrap();
    for (org, repo) in [("atlas", "citation"), ("atlas", "search"), ("cluster", "apps")] {
        gitea.add_collaborator(org, repo, "weak", "read").await.unwrap();
    }
    let token = gitea.create_token("weak", &["read:repository", "read:user"]).await.unwrap();
    let report = cluster.examine(&token, "http://127.0.0.1:1/elsewhere").await;
    assert_eq!(level(&report, "token read"), Level::Ok, "{report:#?}");
    for name in ["token status", "token hooks", "cluster/apps", "webhooks"] {
        assert_eq!(level(&report, name), Level::Fail, "{name}: {report:#?}");
    }
    assert!(report.checks.iter().all(|check| check.level == Level::Ok || !check.remedy.is_empty()));
}

#[tokio::test]
async fn a_branch_that_is_protected_against_the_apps_token_is_found_with_a_remedy() {
    let cluster = Box::pin(Cluster::start()).await;
    let gitea = cluster.bed.gitea();
    let rule = serde_json::json!({ "rule_name": "main", "enable_push": false });
    gitea.api("POST", "/repos/cluster/apps/branch_protections", Some(rule)).await.unwrap();
    let report = cluster.examine(gitea.admin_token(), "http://127.0.0.1:1/elsewhere").await;
    let found = |check: &&doctor::Check| check.name == "cluster/apps" && check.level == Level::Fail;
    let check = report.checks.iter().find(found).unwrap_or_else(|| panic!("{report:#?}"));
    assert_eq!(check.what, "main is protected against pushes with the apps token");
    assert_eq!(check.remedy, "let the token's user push in the protection of that branch");
}

#[tokio::test]
async fn a_registry_that_takes_no_push_and_users_with_other_rights_are_found_each_with_a_remedy() {
    let cluster = Box::pin(Cluster::start()).await;
    cluster.bed.registry().make_read_only().await.unwrap();
    let users =
        [(BusRole::Receiver, "admin"), (BusRole::Worker, "receiver"), (BusRole::Operator, "operator")];
    let token = cluster.bed.gitea().admin_token();
    let report = cluster.examine_users(token, "http://127.0.0.1:1/elsewhere", users).await;
    let expected = [
        ("registry ", Level::Ok),
        ("push ", Level::Fail),
        ("nats user receiver", Level::Fail),
        ("nats user worker", Level::Fail),
        ("nats user operator", Level::Ok),
        ("nats users", Level::Ok),
    ];
    for (name, expected) in expected {
        assert_eq!(level(&report, name), expected, "{name}: {report:#?}");
    }
    let told = |name: &str| {
        let check = report.checks.iter().find(|check| check.name.starts_with(name)).unwrap();
        format!("{} → {}", check.what, check.remedy)
    };
    for (name, words) in [
        ("push ", "refuses 2 of 2 pushes tried, to citation, search: "),
        ("push ", "read-only"),
        ("nats user receiver", "and must not"),
        ("nats user worker", "the worker may not "),
        ("nats users", "reconciler, observer"),
    ] {
        assert!(told(name).contains(words), "{}", told(name));
    }
    assert!(report.checks.iter().all(|check| check.level == Level::Ok || !check.remedy.is_empty()));
}

#[tokio::test]
async fn an_app_that_nobody_woke_is_told_with_what_to_do_about_it() {
    let cluster = cluster().await;
    let operator = cluster.operator().await;
    let status = operator.status().await.unwrap();
    let apps: Vec<_> = status.apps.iter().map(|app| (app.app.as_str(), app.action.as_str())).collect();
    assert_eq!(apps, [("citation", "build"), ("search", "nothing")]);
    assert_eq!(status.apps[0].target.as_ref().map(|target| target.as_str()), Some(cluster.head.as_str()));
    assert!(status.apps[1].reason.contains("atlas/search has no branch release"), "{status:#?}");
    assert_eq!(status.findings.len(), 1);

    let why = operator.why("citation").await.unwrap();
    assert!(why.key.is_some() && why.record.is_none());
    assert!(why.next.starts_with("no wake is waiting"), "{why:#?}");
    assert_eq!(operator.dead_letters().await.unwrap(), []);
    assert_eq!(operator.builds(Some("citation"), 10).await.unwrap(), []);
}

#[tokio::test]
async fn what_does_not_exist_is_answered_with_what_was_meant() {
    let cluster = cluster().await;
    let operator = cluster.operator().await;
    let error = operator.why("citatoin").await.unwrap_err();
    assert_eq!(error.to_string(), "citatoin is not a registered app; did you mean citation?");
    let error = operator.why("wrong").await.unwrap_err();
    let told = error.to_string();
    assert!(told.contains("apps/wrong/app.yaml:5:40: ") && told.contains("fabrique validate"), "{told}");
    assert_eq!(error.exit(), Exit::Findings);
    let error = operator.build("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").await.unwrap_err();
    assert!(matches!(error, OperatorError::UnknownBuild(_)));
    assert_eq!(error.exit(), Exit::Usage);
    // No worker runs here.
    let error = operator.command("citation", Command::Retry, "ada@laptop").await.unwrap_err();
    assert_eq!(error.exit(), Exit::Unreachable, "{error}");
}

#[tokio::test]
async fn the_live_registrations_are_validated_with_places() {
    let cluster = cluster().await;
    let validation = validate::live(&cluster.apps(), None).await.unwrap();
    assert_eq!((validation.apps, validation.exit()), (2, Exit::Findings));
    let finding = &validation.findings[0];
    assert_eq!((finding.file.as_str(), finding.line), ("apps/wrong/app.yaml", 5));
}

#[tokio::test]
async fn a_push_is_followed_from_its_decision_to_its_commit_and_its_log_is_read() {
    let cluster = cluster().await;
    let operator = cluster.operator().await;
    let worker = bus(&cluster.bed, "worker").await;
    let (app, start) = (AppName::parse("search").unwrap(), now());
    let revision = Revision::parse(&"1b".repeat(20)).unwrap();
    let entry = BuildEntry {
        build: BuildId::new(&app, &ulid()).unwrap(),
        app: app.clone(),
        key: BuildKey::parse(&"ab".repeat(32)).unwrap(),
        revision: revision.clone(),
        reason: "1b1b1b1b1b1b is not built yet".to_owned(),
        phase: BuildPhase::Building,
        daemon: None,
        queued: start,
        ended: None,
        egress: None,
    };
    worker.put_build(&entry).await.unwrap();
    worker.append_log(&entry.build, &["one".to_owned(), "two".to_owned()]).await.unwrap();
    let logs = operator.logs(entry.build.as_str(), true).await.unwrap();
    worker.close_log(&entry.build).await.unwrap();
    let lines: Vec<String> = logs.map(|line| line.unwrap()).collect().await;
    assert_eq!(lines, ["one", "two"]);

    let (digest, build) = (Digest::of(b"an image"), entry.build.clone());
    let committed = BuildPhase::Committed { digest: digest.clone(), commits: vec![revision.clone()] };
    let bodies = [BuildPhase::Building, BuildPhase::Pushed { digest }, committed].map(|phase| {
        EventBody::Build { app: app.clone(), build: build.clone(), revision: revision.clone(), phase }
    });
    for body in bodies {
        worker.publish(&Event { id: ulid(), at: now(), trace: None, body }).await.unwrap();
    }
    let patience = Duration::from_secs(20);
    let timeline = operator.timeline(&app, &revision, start, true, patience).await.unwrap();
    let stages: Vec<_> = timeline.rows.iter().map(|row| row.stage).collect();
    assert_eq!(stages, ["push", "build", "digest", "build"]);
    assert_eq!(timeline.exit(), Exit::Ok, "{timeline}");
}
