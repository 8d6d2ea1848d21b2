//! Who reaches whom, asked from inside the pods: with the policies of the bench's overlay, and without them.
//!
//! A door that is closed proves nothing unless it is open otherwise, so that each is knocked at three times: with the
//! policies, without, and with them again.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use fabrique_bed::{Cluster, Doors as Listening, wait_until};
use fabrique_core::time::Timestamp;
use fabrique_kubernetes::config::Isolation;
use fabrique_kubernetes::pki::{BuilderCa, CA_FILE, CERT_FILE, KEY_FILE};
use fabrique_kubernetes::pod::{CONFIG_MAP, DAEMON_PORT, config_files, pod_name};
use secrecy::ExposeSecret as _;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use crate::doors::{self, Doors, address, expected, get, knocked, ready};
use crate::ground::{BUILDS, Ground, Policies, SOON, builders_alone, ground};

/// The namespace of whoever is neither a builder nor ours.
const OTHERS: &str = "isolation";
/// The seats of this test's builders, above those of any pool.
const SEATS: [(u16, Isolation); 2] = [(901, Isolation::Userns), (902, Isolation::Rootless)];

/// One test, because it takes the policies away for a moment.
#[tokio::test]
async fn builders_reach_dns_gitea_registry_and_listed_hosts_and_only_workers_reach_them() {
    let Some(ground) = ground().await else { return };
    let _alone = builders_alone().await;
    let cluster = ground.cluster;
    // What a run that failed has left goes first: its pods hold addresses of the nodes.
    cluster.kubectl(&["delete", "namespace", OTHERS, "--ignore-not-found"]).await.unwrap();
    cluster.kubectl(&["create", "namespace", OTHERS]).await.unwrap();
    let builders = start_builders(ground).await;
    let stranger = start_stranger(cluster).await;
    let world = ["198.19.255.10:443", "198.19.255.10:8443", "198.19.255.11:443"];
    let _listening = Listening::open(cluster, OTHERS, &world).await.unwrap();
    let _caller = TcpListener::bind((Ipv4Addr::new(198, 18, 0, 254), 8443)).await.unwrap();
    let daemon = builders[0].address;

    for (number, builder) in builders.iter().enumerate() {
        let doors = doors(cluster, &builder.node, builders[1 - number].address, stranger);
        let answers = knocked(cluster, BUILDS, &builder.name, &doors).await.unwrap();
        assert_eq!(answers, expected(&doors), "{} on {}, with the policies", builder.name, builder.node);
    }
    way_in(daemon, false).await;
    assert_eq!(own_pod(cluster, "worker", daemon).await, expected(&own_doors(daemon, true)), "a worker");
    assert_eq!(own_pod(cluster, "receiver", daemon).await, expected(&own_doors(daemon, false)), "a receiver");

    let builder = &builders[0];
    let doors = doors(cluster, &builder.node, builders[1].address, stranger);
    let all_open: BTreeMap<String, bool> = expected(&doors).into_keys().map(|door| (door, true)).collect();
    let policies = Policies::of(ground).await;
    cluster.kubectl(&["delete", "networkpolicies", "--all", "--namespace", BUILDS]).await.unwrap();
    let without = until(cluster, &builder.name, &doors, &all_open).await;
    let way_in_without = way_in(daemon, true).await;
    drop(policies);
    let again = until(cluster, &builder.name, &doors, &expected(&doors)).await;
    let way_in_again = way_in(daemon, false).await;
    end(cluster).await;
    assert_eq!((without, way_in_without), (all_open, true), "without the policies");
    assert_eq!((again, way_in_again), (expected(&doors), false), "with the policies again");
}

/// Waits until a stranger's way into a builder is as `wanted`, and returns how it is in the end.
async fn way_in(builder: IpAddr, wanted: bool) -> bool {
    let address = SocketAddr::new(builder, DAEMON_PORT);
    let dialled = || async { (connects(address).await == wanted).then_some(()) };
    if wait_until("the way into a builder", SOON, dialled).await.is_ok() { wanted } else { !wanted }
}

/// Every door of our own pods; `builds` is whether it is a worker, who alone reaches builders.
fn own_doors(daemon: IpAddr, builds: bool) -> Doors {
    let at = |host: &str, port, open| (host.to_owned(), port, open);
    vec![
        at("gitea", 3000, true),
        at("registry", 80, true),
        at("nats", 4222, true),
        at("198.18.0.11", 6443, true),
        at(&daemon.to_string(), DAEMON_PORT, builds),
        // Listed for builders, and for nobody else: what deploys and runs stays inside.
        at("permitted.example", 443, false),
        at("forbidden.example", 443, false),
    ]
}

/// What a pod with the labels of one of our roles reaches, once its policies are in force.
async fn own_pod(cluster: &Cluster, role: &str, daemon: IpAddr) -> BTreeMap<String, bool> {
    let name = format!("isolation-{role}");
    let labels = json!({ "app.kubernetes.io/component": role });
    doors::start_pod(cluster, "fabrique", &name, &labels).await;
    let doors = own_doors(daemon, role == "worker");
    let answers = doors::until(cluster, "fabrique", &name, &doors, &expected(&doors)).await;
    cluster.kubectl(&["delete", "pod", "--namespace=fabrique", "--now", &name]).await.unwrap();
    answers
}

/// Every door, from a builder on `node`; `other` is the other builder.
fn doors(cluster: &Cluster, node: &str, other: IpAddr, stranger: IpAddr) -> Doors {
    let at = |host: &str, port, open| (host.to_owned(), port, open);
    let nodes = ["198.18.0.11", "198.18.0.12", "198.18.0.13"];
    let own = nodes[cluster.nodes().iter().position(|name| *name == node).unwrap()];
    vec![
        // By name, and so by DNS.
        at("gitea", 3000, true),
        at("registry", 80, true),
        at("permitted.example", 443, true),
        at("permitted.example", 8443, false),
        at("forbidden.example", 443, false),
        at("198.19.255.11", 443, false),
        // The API server, by its Service and by its node; etcd; the kubelets; the node itself.
        at("198.19.0.1", 443, false),
        at("198.18.0.11", 6443, false),
        at("198.18.0.11", 2379, false),
        at("198.18.0.11", 10250, false),
        at(own, 10250, false),
        at("169.254.169.254", 80, false),
        // The bus, for clients and for who watches it.
        at("nats", 4222, false),
        at("198.18.0.4", 8222, false),
        at(&stranger.to_string(), 8080, false),
        at(&other.to_string(), DAEMON_PORT, false),
        // The machine that the tests run on.
        at("198.18.0.254", 8443, false),
    ]
}

async fn until(
    cluster: &Cluster,
    builder: &str,
    doors: &Doors,
    wanted: &BTreeMap<String, bool>,
) -> BTreeMap<String, bool> {
    doors::until(cluster, BUILDS, builder, doors, wanted).await
}

async fn connects(address: SocketAddr) -> bool {
    tokio::time::timeout(Duration::from_secs(3), TcpStream::connect(address))
        .await
        .is_ok_and(|result| result.is_ok())
}

/// A builder that is ready.
struct Builder {
    name: String,
    node: String,
    address: IpAddr,
}

/// Builders as the worker makes them, one of each isolation.
async fn start_builders(ground: Ground) -> Vec<Builder> {
    let cluster = ground.cluster;
    let mut settings = ground.settings();
    settings.resources.cpu = fabrique_kubernetes::config::Millicores(50);
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": CONFIG_MAP, "namespace": BUILDS },
        "data": config_files(&settings).unwrap(),
    });
    cluster.apply(&config.to_string()).await.unwrap();
    // Their owner must be there, or they are taken for orphans.
    let owner = get(cluster, BUILDS, "configmap", CONFIG_MAP).await.unwrap();
    let owner = owner["metadata"]["uid"].as_str().unwrap();
    let now = Timestamp(u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap());
    let authority = BuilderCa::generate(now, Duration::from_hours(24)).unwrap();
    let authority = BuilderCa::from_pem(&authority.certificate, &authority.key, now).unwrap();
    for (seat, isolation) in SEATS {
        let identity = authority.server(&pod_name(seat), now, Duration::from_hours(24)).unwrap();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": format!("builder-{seat}-tls"), "namespace": BUILDS },
            "stringData": {
                CA_FILE: authority.certificate(),
                CERT_FILE: identity.certificate,
                KEY_FILE: identity.key.expose_secret(),
            },
        });
        cluster.apply(&secret.to_string()).await.unwrap();
        let gone = ["delete", "pod", "--namespace", BUILDS, "--ignore-not-found", "--now", &pod_name(seat)];
        cluster.kubectl(&gone).await.unwrap();
        let pod = ground.builder_with(&settings, isolation, seat, owner);
        cluster.apply(&pod.to_string()).await.unwrap();
    }
    let mut builders = Vec::new();
    for (seat, _) in SEATS {
        let pod = ready(cluster, BUILDS, &pod_name(seat)).await;
        let node = pod["spec"]["nodeName"].as_str().unwrap().to_owned();
        builders.push(Builder { name: pod_name(seat), node, address: address(&pod) });
    }
    builders
}

/// A pod of somebody else that serves on port 8080.
async fn start_stranger(cluster: &Cluster) -> IpAddr {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "stranger", "namespace": OTHERS },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": cluster.images().busybox,
            "command": ["httpd", "-f", "-p", "8080"],
        }] },
    });
    cluster.apply(&pod.to_string()).await.unwrap();
    address(&ready(cluster, OTHERS, "stranger").await)
}

async fn end(cluster: &Cluster) {
    cluster.kubectl(&["delete", "namespace", OTHERS]).await.unwrap();
    let names = SEATS.map(|(seat, _)| pod_name(seat));
    let objects = names.iter().flat_map(|name| [format!("pod/{name}"), format!("secret/{name}-tls")]);
    let objects: Vec<String> = objects.collect();
    let mut delete = vec!["delete", "--namespace", BUILDS, "--now"];
    delete.extend(objects.iter().map(String::as_str));
    cluster.kubectl(&delete).await.unwrap();
}
