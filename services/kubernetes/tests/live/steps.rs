//! What a RUN step of a hostile Dockerfile reaches. The pod around it is asked in [`crate::walls`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fabrique_bed::hostile::Step;
use fabrique_bed::{Cluster, Doors, hostile};
use fabrique_core::failure::FailureKind;
use fabrique_kubernetes::network::{AllowList, Egress, HostName};
use fabrique_kubernetes::pki::{BuilderCa, Identity};
use fabrique_ports::Ambient;
use fabrique_ports::builder::BuildOutcome;
use fabrique_ports::egress::{Answer, FetchKind};
use secrecy::ExposeSecret;
use tokio::process::Child;
use tokio::sync::{Mutex, MutexGuard};

use crate::ground::{Ground, Machine, eventually, lease};
use crate::walls;
use crate::workshop::{Recorder, Workshop};

/// A Dockerfile that knocks at doors and says which opened.
fn knock(base: &str, doors: &[&str]) -> String {
    hostile::dockerfile(base, &[hostile::knock(doors)])
}

fn opened(output: &str) -> Vec<&str> {
    assert!(output.contains("knocked"), "{output}");
    hostile::said(output, "open")
}

/// A step that asks for URLs and says what each was answered with.
pub(crate) fn ask(base: &str, urls: &[&str]) -> String {
    let mut dockerfile = format!("FROM {base}\nUSER 0\n");
    for url in urls {
        let curl = "curl --silent --show-error --max-time 10 --output /dev/null";
        writeln!(dockerfile, "RUN {curl} --write-out 'answer %{{http_code}} {url}\\n' {url} || true")
            .unwrap();
    }
    dockerfile
}

pub(crate) fn answers(output: &str) -> BTreeMap<String, String> {
    let parts = |line: &str| {
        let (code, url) = line.strip_prefix("answer ")?.split_once(' ')?;
        Some((url.to_owned(), code.to_owned()))
    };
    output.lines().filter_map(parts).collect()
}

/// To be held by whoever listens in the outside world, or where nobody listens by himself: the addresses are the same
/// for every test. Taken after the ground, or two tests might wait for each other.
pub(crate) async fn outside() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// A web server in the outside world, over TLS where it has an identity.
pub(crate) struct Site {
    _server: Child,
    _folder: tempfile::TempDir,
}

impl Site {
    pub(crate) async fn serve(cluster: &Cluster, port: u16, identity: Option<&Identity>) -> Self {
        const SERVER: &str = "import http.server, ssl, sys\n\
            server = http.server.ThreadingHTTPServer(('198.19.255.10', int(sys.argv[1])), \
            http.server.SimpleHTTPRequestHandler)\n\
            if len(sys.argv) > 2:\n    \
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n    \
            context.load_cert_chain(sys.argv[2])\n    \
            server.socket = context.wrap_socket(server.socket, server_side=True)\n\
            server.serve_forever()\n";
        let folder = tempfile::tempdir().unwrap();
        let mut command = cluster.outside_command().unwrap();
        command.args(["python3", "-c", SERVER, &port.to_string()]);
        if let Some(identity) = identity {
            let chain = folder.path().join("chain.pem");
            let text = format!("{}{}", identity.key.expose_secret(), identity.certificate);
            std::fs::write(&chain, text).unwrap();
            command.arg(chain);
        }
        let root = folder.path().join("root");
        std::fs::create_dir(&root).unwrap();
        command.current_dir(root).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let server = command.spawn().unwrap();
        eventually("the site answers", async || {
            let mut probe = cluster.outside_command().unwrap();
            let script = format!("exec 3<>/dev/tcp/198.19.255.10/{port}");
            probe.args(["bash", "-c", &script]).stderr(Stdio::null());
            probe.status().await.is_ok_and(|status| status.success())
        })
        .await;
        Self { _server: server, _folder: folder }
    }
}

fn listed(port: u16) -> Egress {
    Egress {
        host: HostName::parse("permitted.example").unwrap(),
        port,
        purpose: "packages".into(),
        cidrs: vec!["198.19.255.10/32".parse().unwrap()],
    }
}

#[tokio::test]
async fn a_step_in_a_user_namespace_reaches_listed_hosts_and_nothing_else() {
    let list = AllowList { version: 1, hosts: vec![listed(443), listed(8000)], apps: BTreeMap::new() };
    let Some(mut ground) = Ground::with_list("userns", &list).await else { return };
    let _alone = outside().await;
    let outside = BuilderCa::generate(Machine.now(), Duration::from_hours(1)).unwrap();
    let authority = BuilderCa::from_pem(&outside.certificate, &outside.key, Machine.now()).unwrap();
    let identity = authority.server("permitted.example", Machine.now(), Duration::from_hours(1)).unwrap();
    ground.settings.daemon.authorities = Some(outside.certificate);
    let (secure, plain, unlisted) = tokio::join!(
        Site::serve(ground.cluster, 443, Some(&identity)),
        Site::serve(ground.cluster, 8000, None),
        Site::serve(ground.cluster, 8001, None),
    );
    let placement = ground.placement("worker-1").await;
    let (leased, neighbour) = tokio::join!(lease(&placement, "citation"), lease(&placement, "other"));
    let daemon = leased.daemon;
    let own = daemon.address.strip_prefix("tcp://").unwrap();
    let neighbour = neighbour.daemon.address.strip_prefix("tcp://").unwrap().to_owned();
    let workshop = Workshop::new(&ground).await;
    let base = &ground.cluster.images().debian;
    let builder = workshop.builder(&["permitted.example", "permitted.example:8000"]);

    // No way past the proxy: not even to what the pod needs, nor to what is listed.
    let doors = [own, &neighbour, "127.0.0.1:1234", "198.18.0.2:80", "198.18.0.3:3000", "198.19.255.10:443"];
    let doors: Vec<&str> = hostile::CLOSED.into_iter().chain(doors).collect();
    let output = workshop.output(&builder, &daemon, "citation", &knock(base, &doors)).await;
    assert_eq!(opened(&output), Vec::<&str>::new(), "{output}");

    // And through it only to what is listed, on its port.
    let open = ["https://permitted.example/", "http://permitted.example:8000/"];
    let closed = [
        "http://permitted.example:8001/",
        "http://permitted.example/",
        "https://forbidden.example/",
        "http://198.19.255.10:8000/",
        "http://registry/v2/",
        "http://gitea:3000/",
        "http://198.18.0.3:3000/",
        "https://198.18.0.11:6443/",
        "http://169.254.169.254/",
    ];
    let all = [open.as_slice(), &closed].concat();
    let recorder = Arc::new(Recorder::default());
    let outcome = workshop.build_telling(&builder, &daemon, "citation", &ask(base, &all), &recorder).await;
    let output = recorder.output();
    assert!(matches!(outcome, BuildOutcome::Pushed(_)), "{outcome:?}\n{output}");
    let answered = answers(&output);
    for url in open {
        assert_eq!(answered[url], "200", "{url}\n{output}");
    }
    for url in closed {
        assert_eq!(answered[url], "403", "{url}\n{output}");
        assert!(output.contains(&format!("refused, not on the allow list: {url}")), "{output}");
    }
    // All of it is told, with the step that asked and the answer.
    let fetched = recorder.fetched();
    for (url, answer) in answered {
        let told = fetched.iter().find(|fetch| fetch.location == url).unwrap();
        let refused = answer == "403";
        assert_eq!(told.what, FetchKind::Request, "{told:?}");
        assert_eq!(told.answer, if refused { Answer::Refused } else { Answer::Status(200) }, "{told:?}");
        assert_eq!(told.method.as_deref(), (!refused).then_some("GET"), "{told:?}");
        // Whose a refused request was cannot always be told of steps that follow each other this fast.
        assert!(told.step.as_ref().map_or(refused, |step| step.contains(&url)), "{told:?}");
    }

    // Once the host is off the list the same build fails, and says what would permit it.
    let stricter = workshop.builder(&["permitted.example"]);
    let fetch = format!("FROM {base}\nRUN curl --fail --silent http://permitted.example:8000/\n");
    let (failure, _) = workshop.failed(&stricter, &daemon, "citation", &fetch).await;
    assert_eq!(failure.kind, FailureKind::Source);
    let line = "- {host: \"permitted.example\", port: 8000, purpose: \"…\"}";
    assert!(failure.message.contains("http://permitted.example:8000/"), "{failure:?}");
    assert!(failure.message.contains(line), "{failure:?}");
    drop((secure, plain, unlisted));
}

/// What holds such a step is these two walls: with neither of them it reaches what it must not, and each alone is
/// enough.
#[tokio::test]
async fn a_step_in_a_user_namespace_is_held_by_each_of_two_walls_and_by_nothing_else() {
    let Some(ground) = Ground::with_policies("userns").await else { return };
    let _alone = outside().await;
    let _site = Site::serve(ground.cluster, 8001, None).await;
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    let workshop = Workshop::new(&ground).await;
    // A host outside, Argo CD, and NATS where it tells of itself.
    let places = ["permitted.example:8001", "198.18.0.5:8080", "198.18.0.4:8222"];
    let answered = async |hosts: &[&str], round: &str| {
        let urls = ["", "healthz", "healthz"];
        let urls = places.iter().zip(urls).map(|(place, path)| format!("http://{place}/{path}?{round}"));
        let urls: Vec<String> = urls.collect();
        let dockerfile =
            ask(&ground.cluster.images().debian, &urls.iter().map(String::as_str).collect::<Vec<_>>());
        let builder = workshop.builder(hosts);
        let output = workshop.output(&builder, &leased.daemon, "citation", &dockerfile).await;
        let answered = answers(&output);
        urls.iter().map(|url| answered[url].clone()).collect::<Vec<_>>()
    };
    let by_the_pods_alone = answered(&places, "pod").await;
    assert!(!by_the_pods_alone.contains(&"200".to_owned()), "{by_the_pods_alone:?}");

    ground.kubectl(&["delete", "networkpolicy", "--all"]).await;
    let pod = &leased.daemon.name;
    eventually("the pod's wall is away", async || walls::open(&ground, pod, &places).await == places).await;
    assert_eq!(answered(&[], "solve").await, ["403"; 3], "by the solve's alone");
    assert_eq!(answered(&places, "neither").await, ["200"; 3], "without either");
}

/// Without the proxy network a step has the network of its pod: the policy is the only wall, and what the pod needs
/// is open to the step too. An app's digests come from our own records, whatever a step writes into the registry.
#[tokio::test]
async fn a_rootless_step_reaches_what_its_pod_reaches_and_no_more() {
    let Some(ground) = Ground::with_policies("rootless").await else { return };
    let _alone = outside().await;
    let world = ["198.19.255.11:443", "198.19.255.10:80"];
    let _listening = Doors::open(ground.cluster, &ground.namespace, &world).await.unwrap();
    let placement = ground.placement("worker-1").await;
    let (leased, neighbour) = tokio::join!(lease(&placement, "citation"), lease(&placement, "other"));
    let neighbour = neighbour.daemon.address.strip_prefix("tcp://").unwrap().to_owned();
    let workshop = Workshop::new(&ground).await;
    let base = &ground.cluster.images().debian;
    let builder = workshop.builder(&[]);
    let open = ["198.18.0.2:80", "198.18.0.3:3000", "127.0.0.1:1234"];
    let doors: Vec<&str> = hostile::CLOSED.into_iter().chain([neighbour.as_str()]).chain(open).collect();
    let output = workshop.output(&builder, &leased.daemon, "citation", &knock(base, &doors)).await;
    assert_eq!(opened(&output), open, "{output}");

    // Somebody is behind each: the same step finds them all without the policies, or the walls would prove nothing.
    ground.kubectl(&["delete", "networkpolicy", "--all"]).await;
    let pod = &leased.daemon.name;
    eventually("the doors are open", async || walls::open(&ground, pod, &doors).await == doors).await;
    // On a busy machine one of so many may be late. Steps are cached by what they say.
    let mut rounds = 0;
    eventually("the step finds the doors open", async || {
        rounds += 1;
        let again = Step::new(format!("echo round {rounds}")).and(&hostile::knock(&doors));
        let again = hostile::dockerfile(base, &[again]);
        opened(&workshop.output(&builder, &leased.daemon, "citation", &again).await) == doors
    })
    .await;
}
