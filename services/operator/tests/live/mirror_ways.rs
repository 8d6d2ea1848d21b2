//! Several mirrors at once, and the way by which Gitea reaches what they mirror.

use std::net::SocketAddr;

use fabrique_bed::{MutualTls, Secured};
use fabrique_core::upstream::UpstreamState;
use fabrique_github::{Relay, RelayConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::*;

/// Several mirrors of the one repository, the names in the order in which GitHub was asked about them.
const MANY: [&str; 7] = ["delta", "alpha", "golf", "bravo", "foxtrot", "charlie", "echo"];
/// How many mirrors are brought up to date at once.
const AT_ONCE: usize = 4;

async fn many() -> World {
    let world = World::start().await;
    let sources = MANY.map(|name| format!("{{ repo: atlas/{name}, github: acme/{name}, checks: [ci] }}"));
    let apps: Vec<(&str, &str)> = MANY.iter().copied().zip(sources.iter().map(String::as_str)).collect();
    world.apps.git(&["rm", "--quiet", "apps/citation/app.yaml"]).await.unwrap();
    world.register_all(&apps).await;
    let writer = bus(&world.cluster.bed, "mirror").await;
    for (at, name) in (1_u64..).zip(MANY) {
        let state = UpstreamState {
            github: RepoName::parse(&format!("acme/{name}")).unwrap(),
            branch: BranchName::parse("main").unwrap(),
            checks: BTreeSet::new(),
            asked: Timestamp(at),
            head: None,
            results: BTreeMap::new(),
            passed: Vec::new(),
            pinned: None,
            mirrored: None,
            behind_since: None,
        };
        writer.put_upstream(&AppName::parse(name).unwrap(), &state).await.unwrap();
    }
    world
}

/// The repositories that GitHub was asked about, each once, in order.
fn asked_about(github: &RecordedGithub) -> Vec<String> {
    let mut names = Vec::new();
    for asked in github.asked() {
        let name = asked.path.trim_start_matches("/repos/acme/").split('/').next().unwrap().to_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[tokio::test]
async fn a_limit_of_github_stops_all_that_are_under_way_and_the_longest_unasked_were_first() {
    let world = many().await;
    let reset = (now().0 / 1000 + 600).to_string();
    let limit = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset.as_str())];
    for _ in 0..MANY.len() {
        world.github.next_answer(403, &limit, serde_json::json!({ "message": "API rate limit exceeded" }));
    }
    let limited = world.sync(SHORT, false).await;
    // Which of those that are under way at once comes to its request first is nobody's to say.
    let asked = asked_about(&world.github);
    assert!((1..=AT_ONCE).contains(&asked.len()), "{asked:?}: none after the limit");
    assert!(asked.iter().all(|name| MANY[..AT_ONCE].contains(&name.as_str())), "{asked:?}: {limited:?}");
    assert_eq!((limited.mirrors.len(), limited.exit()), (MANY.len(), Exit::Unreachable));
    assert!(limited.mirrors.iter().all(|mirror| mirror.failed.is_some()), "{limited:?}");
    let told: Vec<String> = limited.mirrors.iter().map(|mirror| mirror.repo.to_string()).collect();
    assert!(told.is_sorted(), "by name, whoever was first: {told:?}");
}

#[tokio::test]
async fn mirrors_that_do_not_follow_are_waited_for_together() {
    let world = many().await;
    world
        .upstream
        .write(
            "Dockerfile",
            "FROM scratch
",
        )
        .await
        .unwrap();
    world.upstream.commit("first").await.unwrap();
    world.upstream.push().await.unwrap();
    let from = world.cluster.bed.gitea().clone_url("acme", "citation");
    for name in MANY {
        let body = serde_json::json!({
            "clone_addr": from, "repo_owner": "atlas", "repo_name": name, "mirror": true, "mirror_interval": "0s",
        });
        world.cluster.bed.gitea().api("POST", "/repos/migrate", Some(body)).await.unwrap();
    }
    // GitHub has one that cannot be fetched.
    world
        .upstream
        .write(
            "Dockerfile",
            "FROM scratch
# second
",
        )
        .await
        .unwrap();
    world.upstream.commit("second").await.unwrap();
    for name in MANY {
        world.github.push(&format!("acme/{name}"), "main", &world.upstream).await.unwrap();
    }
    let (patience, before) = (Duration::from_secs(6), Instant::now());
    let synced = world.sync(patience, false).await;
    let took = before.elapsed();
    assert!(synced.mirrors.iter().all(|mirror| mirror.failed.is_none()), "{synced:?}");
    assert_eq!((synced.mirrors.len(), synced.exit()), (MANY.len(), Exit::Findings));
    // Two rounds of four, and not seven.
    assert!(took >= patience * 2 && took < patience * 5, "{took:?}");
    assert_eq!(asked_about(&world.github).len(), MANY.len());
}

/// Gitea has no way to `acme/citation` but a proxy at `port`, behind which nobody is.
struct Closed {
    world: World,
    port: u16,
    /// Where it is cloned from, over TLS.
    base: String,
    _door: Secured,
    _folder: tempfile::TempDir,
}

impl Closed {
    async fn start() -> Self {
        let (folder, port, door) = (tempfile::tempdir().unwrap(), free_port().unwrap(), free_port().unwrap());
        let tls = MutualTls::create(folder.path()).unwrap();
        let extra_ini = format!(
            "[proxy]\nPROXY_ENABLED = true\nPROXY_URL = http://127.0.0.1:{port}\nPROXY_HOSTS = 127.0.0.1:{door}\n\
             [git.config]\nhttp.sslCAInfo = {}\n",
            tls.ca.display()
        );
        let world = World::start_with(GiteaOptions { extra_ini, ..GiteaOptions::default() }).await;
        let gitea = world.cluster.bed.gitea().base_url();
        let to = gitea.trim_start_matches("http://").to_owned();
        let listen = format!("127.0.0.1:{door}");
        let base = format!("https://{listen}/");
        let _door = Secured::open(None, &listen, &to, &tls.one_way()).await.unwrap();
        Self { world, port, base, _door, _folder: folder }
    }

    async fn way(&self) -> Relay {
        self.way_at(self.port).await
    }

    async fn way_at(&self, port: u16) -> Relay {
        let config = RelayConfig {
            listen: format!("127.0.0.1:{port}").parse().unwrap(),
            to: self.base.parse().unwrap(),
            proxy: None,
        };
        Relay::open(config).await.unwrap()
    }

    async fn ensure(&self) -> EnsuredMirrors {
        self.world.ensure_by(&self.world.gitea(), &self.base, false).await
    }

    /// Holds whoever comes this way until it leads to a relay.
    async fn hold(&self) -> Held {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        let (came, arrived) = watch::channel(false);
        let (to, led) = watch::channel(None::<SocketAddr>);
        let serving = tokio::spawn(async move {
            let mut tunnels = JoinSet::new();
            while let Ok((mut from, _)) = listener.accept().await {
                let mut led = led.clone();
                came.send_replace(true);
                tunnels.spawn(async move {
                    let to = (*led.wait_for(Option::is_some).await.ok()?)?;
                    let mut there = TcpStream::connect(to).await.ok()?;
                    copy_bidirectional(&mut from, &mut there).await.ok()
                });
            }
        });
        Held { arrived, to, serving }
    }
}

/// A way on which everybody waits. Dropped, it cuts them off.
struct Held {
    arrived: watch::Receiver<bool>,
    to: watch::Sender<Option<SocketAddr>>,
    serving: JoinHandle<()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Held {
    async fn cut(mut self) {
        self.serving.abort();
        drop((&mut self.serving).await);
    }

    async fn is_asked(&mut self) {
        timeout(LONG, self.arrived.wait_for(|arrived| *arrived)).await.unwrap().unwrap();
    }
}

/// One request to Gitea may take so long, and a first clone takes longer.
const REQUEST: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_first_clone_that_takes_longer_than_a_request_is_stayed_for() {
    let closed = Closed::start().await;
    let first = closed.world.commit("first").await;
    let held = closed.hold().await;
    let relay = closed.way_at(0).await;
    let bed = closed.world.cluster.bed.gitea();
    let mut config = GiteaConfig::new(bed.base_url().parse().unwrap());
    config.tokens = Tokens { hooks: Some(bed.admin_token().into()), ..Tokens::default() };
    config.timeouts.request = REQUEST;
    let gitea = Gitea::new(config).unwrap();
    let mut ensuring = Box::pin(closed.world.ensure_within(&gitea, &closed.base, LONG, false));
    let early = timeout(REQUEST * 2, &mut ensuring).await;
    assert!(early.is_err(), "it did not stay: {early:?}");
    held.to.send_replace(Some(relay.address()));
    let made = ensuring.await;
    assert_eq!((results(&made), made.exit()), (vec![MirrorResult::Created], Exit::Ok), "{made:?}");
    assert_eq!(bed.head("atlas", "citation", "main").await.unwrap().as_deref(), Some(first.as_str()));
}

#[tokio::test]
async fn what_a_clone_that_was_cut_off_left_is_removed_and_it_is_begun_anew() {
    let closed = Closed::start().await;
    let first = closed.world.commit("first").await;
    let mut held = closed.hold().await;
    tokio::select! {
        made = closed.ensure() => panic!("nothing was held: {made:?}"),
        () = held.is_asked() => {}
    }
    // Whoever asked is gone, and then the way.
    held.cut().await;
    let way = closed.way().await;
    let limit = Duration::from_secs(10);
    wait_until("the mirror to be made anew", LONG, || async {
        let made = closed.world.ensure_within(&closed.world.gitea(), &closed.base, limit, false).await;
        (made.exit() == Exit::Ok).then_some(())
    })
    .await
    .unwrap();
    let gitea = closed.world.cluster.bed.gitea();
    assert_eq!(gitea.head("atlas", "citation", "main").await.unwrap().as_deref(), Some(first.as_str()));
    assert!(way.close(LONG).await);
}

#[tokio::test]
async fn gitea_reaches_github_while_the_sync_is_its_way_and_neither_before_nor_after() {
    let closed = Closed::start().await;
    let first = closed.world.commit("first").await;
    let before = closed.ensure().await;
    assert_ne!(before.exit(), Exit::Ok, "{before:?}");

    let way = closed.way().await;
    let made = closed.ensure().await;
    assert_eq!(made.exit(), Exit::Ok, "{made:?}");
    assert!(way.close(LONG).await, "the clone is over");
    let gitea = closed.world.cluster.bed.gitea();
    assert_eq!(gitea.head("atlas", "citation", "main").await.unwrap().as_deref(), Some(first.as_str()));

    let second = closed.world.commit("second").await;
    let without = closed.world.sync(SHORT, false).await;
    assert_eq!(without.exit(), Exit::Findings, "{without:?}");
    assert_eq!(without.mirrors[0].apps[0].mirrored.as_ref(), Some(&first));

    // It opens in the middle of a sync: what failed before is asked for again.
    let asked = closed.world.github.asked().len();
    let (synced, way) = tokio::join!(closed.world.sync(LONG, false), async {
        let github = &closed.world.github;
        wait_until("it to have begun", LONG, || async { (github.asked().len() > asked).then_some(()) })
            .await
            .unwrap();
        closed.way().await
    });
    let app = &synced.mirrors[0].apps[0];
    assert_eq!((app.head.as_ref(), app.mirrored.as_ref()), (Some(&second), Some(&second)), "{synced:?}");
    // Both are kept, for whoever asks later.
    let known = bus(&closed.world.cluster.bed, "operator").await;
    let known = known.upstream(&AppName::parse("citation").unwrap()).await.unwrap().unwrap();
    assert_eq!((known.head.as_ref(), known.mirrored.as_ref()), (Some(&second), Some(&second)));

    // However it ends.
    drop(way);
    closed.world.commit("third").await;
    let after = closed.world.sync(SHORT, false).await;
    assert_eq!(after.mirrors[0].apps[0].mirrored.as_ref(), Some(&second), "{after:?}");
}
