//! The bus of `components/nats`: three replicas in pods, and what `init` makes on them.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use fabrique_bed::wait_until;
use fabrique_cluster_tests::image::push_program;
use fabrique_cluster_tests::manifests::{self, IMAGE};
use serde_json::{Value, json};

use crate::ground::{Ground, SOON, builders_alone, ground, kind};
use crate::image::image;
use crate::installed::{job, story};
use crate::program::nats_server;

/// What the component leaves to the overlay, as [`manifests::base_with`] puts it in.
const PLACEHOLDER: &str =
    "registry:80/nats@sha256:0000000000000000000000000000000000000000000000000000000000000000";
/// A server that is asked to leave sends its clients away over half a minute, has one to end, and then catches up on
/// every stream.
const RETURNED: Duration = Duration::from_mins(3);
const ADMIN: &str = "example-nats-password-admin";

#[tokio::test]
async fn init_makes_streams_of_three_replicas_and_one_replica_may_be_gone() {
    let Some(ground) = ground().await else { return };
    let _alone = builders_alone().await;
    let installed = install(ground).await;
    let ready = ["rollout", "status", "--namespace=fabrique", "--timeout=110s", "statefulset/nats"];
    if let Err(error) = ground.cluster.kubectl(&ready).await {
        panic!("{error:#}\n{}", story(ground, "app.kubernetes.io/name=nats").await);
    }
    for server in ["nats-0", "nats-1", "nats-2"] {
        let told = store(ground, server).await.unwrap();
        assert_eq!(
            told["config"]["sync_always"], true,
            "{server} acknowledges what is not on its disk: {told}"
        );
    }
    job(ground, "init", "init-three").await;
    let streams =
        wait_until("three current replicas of each stream", SOON, || settled(ground)).await.unwrap();
    assert!(
        streams.contains_key("FABRIQUE_WAKE") && streams.contains_key("KV_FABRIQUE_RECORDS"),
        "{streams:?}"
    );

    ground
        .cluster
        .kubectl(&["delete", "pod", "nats-1", "--namespace=fabrique", "--wait=false"])
        .await
        .unwrap();
    job(ground, "init", "init-two").await;
    let again = wait_until("three replicas once more", RETURNED, || settled(ground)).await.unwrap();
    assert_eq!(again, streams);
    let objects = installed.objects.clone();
    drop(installed);
    let left = ["get", "--namespace=fabrique", "--ignore-not-found", "--output=name"];
    let left = left.into_iter().chain(objects.iter().map(String::as_str)).collect::<Vec<_>>();
    assert_eq!(ground.cluster.kubectl(&left).await.unwrap(), "");
}

/// What the test put into the namespace that all share. It goes with this, whether the test went well or not, and the
/// bench's configuration is what it was.
struct Installed {
    ground: Ground,
    objects: Vec<String>,
    configuration: String,
}

impl Drop for Installed {
    fn drop(&mut self) {
        let delete = |what: &[&str]| {
            let mut delete = self.ground.cluster.kubectl_command().into_std();
            delete.args(["delete", "--namespace=fabrique", "--ignore-not-found", "--timeout=60s"]);
            let _ = delete.args(what).stdin(Stdio::null()).output();
        };
        delete(&self.objects.iter().map(String::as_str).collect::<Vec<_>>());
        // Their clients are gone, so that nobody is to be asked to leave first.
        delete(&["pods", "--selector=app.kubernetes.io/name=nats", "--now"]);
        self.ground.put_back(&self.configuration);
    }
}

/// An object as kubectl takes it for an argument.
fn named(document: &Value) -> String {
    format!("{}/{}", kind(document), document["metadata"]["name"].as_str().unwrap())
}

/// The component, on disks that go with their pods: the bed has no others.
async fn install(ground: Ground) -> Installed {
    let nats = push_program(ground.cluster, "manifests-test/nats", &nats_server()).await.unwrap();
    let text = manifests::base_with(&["nats"]).await.unwrap().replace(PLACEHOLDER, &nats);
    let mut bus = manifests::documents(&text).unwrap();
    bus.retain(|document| {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        document["metadata"]["namespace"] == "fabrique" && (name.starts_with("nats"))
    });
    for document in bus.iter_mut().filter(|document| kind(document) == "StatefulSet") {
        document["spec"].as_object_mut().unwrap().remove("volumeClaimTemplates");
        let volumes = document["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap();
        volumes.push(json!({ "name": "data", "emptyDir": {} }));
    }
    let examples = std::fs::read_to_string(manifests::root().join("secrets.example.yaml")).unwrap();
    let examples = manifests::documents(&examples).unwrap().into_iter();
    let secrets = examples.filter(|secret| {
        ["fabrique-nats", "fabrique-init"].map(Value::from).contains(&secret["metadata"]["name"])
    });
    let fabrique = image(ground).await;
    let bench = ground.bench().await.into_iter();
    let (configuration, rest): (Vec<_>, Vec<_>) = bench.partition(|document| kind(document) == "ConfigMap");
    let init = rest.into_iter().filter(|document| document["metadata"]["name"] == "init");
    let own: Vec<Value> = bus.into_iter().chain(secrets).chain(init).collect();
    let jobs = ["job/init-three", "job/init-two"].map(str::to_owned);
    let objects = own.iter().map(named).chain(jobs).collect();
    let items: Vec<&Value> = own.iter().chain(&configuration).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
    let list = list
        .replace(IMAGE, fabrique)
        .replace("nats://nats:4222", "nats://nats.fabrique.svc:4222")
        .replace("monitoring: http://nats:8222", "monitoring: http://nats.fabrique.svc:8222\\n  replicas: 3");
    assert!(list.contains(ADMIN) && list.contains("replicas: 3"), "{list}");
    let configuration = json!({ "apiVersion": "v1", "kind": "List", "items": configuration }).to_string();
    let installed = Installed { ground, objects, configuration };
    ground.cluster.apply(&list).await.unwrap();
    installed
}

/// The replicas of each stream, when all of them are current. Only a stream's leader knows that of the others.
async fn settled(ground: Ground) -> Option<BTreeMap<String, usize>> {
    let mut replicas = BTreeMap::new();
    for server in ["nats-0", "nats-1", "nats-2"] {
        let answer = streams(ground, server).await?;
        let led = answer.iter().filter(|stream| stream["cluster"]["leader"] == server);
        for stream in led {
            let others = stream["cluster"]["replicas"].as_array()?;
            let current = others.iter().filter(|other| other["current"] == true && other["offline"] != true);
            if stream["config"]["num_replicas"] != 3 || current.count() != 2 {
                return None;
            }
            replicas.insert(stream["name"].as_str()?.to_owned(), 3);
        }
    }
    (replicas.len() >= 7).then_some(replicas)
}

/// What a server says of the streams that it has.
async fn streams(ground: Ground, server: &str) -> Option<Vec<Value>> {
    store(ground, server).await?["account_details"][0]["stream_detail"].as_array().cloned()
}

/// What a server says of what it stores.
async fn store(ground: Ground, server: &str) -> Option<Value> {
    let ask = "http://127.0.0.1:8222/jsz?streams=true&config=true";
    let curl = ["exec", server, "--namespace=fabrique", "--", "curl", "--silent", "--max-time", "5", ask];
    serde_json::from_str(&ground.cluster.kubectl(&curl).await.ok()?).ok()
}
