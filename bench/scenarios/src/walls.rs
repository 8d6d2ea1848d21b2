//! The network policies around builders, and those who stand outside of them.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::{Cluster, Doors, hostile};
use fabrique_cluster_tests::manifests;
use serde_json::{Value, json};

use crate::installation::{BUILDS, Installation};
use crate::overlay::kind;
use crate::until::until;
use crate::verdicts;

/// The namespace of pods that are neither builders nor ours.
const STRANGERS: &str = "scenarios-strangers";
/// What the world listens on: a host that nobody listed, and a listed one on another port.
const WORLD: [&str; 2] = ["198.19.255.11:443", "198.19.255.10:80"];
/// What images, and policies on all nodes, may take on a busy machine.
const SOON: Duration = Duration::from_mins(2);

/// Somebody behind every address that is closed to builds, until this is dropped: a door with nobody behind it is
/// closed without any wall.
pub struct Neighbourhood {
    /// The addresses, each with its port.
    pub doors: Vec<String>,
    _listening: Doors,
}

impl Neighbourhood {
    /// Opens the doors.
    ///
    /// # Errors
    /// When one of those behind them is not there in time.
    pub async fn open(cluster: &Cluster) -> Result<Self> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": STRANGERS } });
        cluster.apply(&namespace.to_string()).await?;
        let listening = Doors::open(cluster, STRANGERS, &WORLD).await?;
        let stranger = stranger(cluster).await?;
        let mut doors: Vec<String> = hostile::CLOSED.iter().map(|&door| door.to_owned()).collect();
        doors.push(format!("{stranger}:8080"));
        Ok(Self { doors, _listening: listening })
    }

    /// The step that knocks at all of them.
    #[must_use]
    pub fn knock(&self) -> hostile::Step {
        hostile::knock(&self.doors.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// The address of a pod of somebody else that serves on port 8080.
async fn stranger(cluster: &Cluster) -> Result<String> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "stranger", "namespace": STRANGERS },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": cluster.images().busybox, "command": ["httpd", "-f", "-p", "8080"],
        }] },
    });
    cluster.apply(&pod.to_string()).await?;
    let ready = format!("--timeout={}s", SOON.as_secs());
    let namespace = format!("--namespace={STRANGERS}");
    cluster.kubectl(&["wait", &namespace, "--for=condition=Ready", &ready, "pod/stranger"]).await?;
    let address = "--output=jsonpath={.status.podIP}";
    cluster.kubectl(&["get", "pod", "stranger", &namespace, address]).await
}

/// The policies of the builders' namespace, taken away. They are made again when this is dropped, however the look
/// without them ended.
pub struct Policies {
    installation: &'static Installation,
    all: String,
}

impl Policies {
    /// Takes them away.
    ///
    /// # Errors
    /// When the API server refuses, or the overlay has none.
    pub async fn take_away(installation: &'static Installation) -> Result<Self> {
        let documents = manifests::documents(&manifests::overlay("bench").await?)?;
        let ours = |document: &Value| {
            kind(document) == "NetworkPolicy" && document["metadata"]["namespace"] == BUILDS
        };
        let policies: Vec<Value> = documents.into_iter().filter(ours).collect();
        ensure!(!policies.is_empty(), "an overlay without policies for builders");
        let all = json!({ "apiVersion": "v1", "kind": "List", "items": policies }).to_string();
        let away = Self { installation, all };
        let delete = ["delete", "networkpolicies", "--all", "--namespace", BUILDS];
        installation.cluster.kubectl(&delete).await?;
        Ok(away)
    }
}

impl Drop for Policies {
    /// Nothing can be awaited here, and nobody told: whoever relies on them looks whether they are in force.
    fn drop(&mut self) {
        let mut apply = self.installation.cluster.kubectl_command().into_std();
        apply.args(["apply", "--server-side", "--force-conflicts", "--filename=-"]);
        let Ok(mut child) = apply.stdin(Stdio::piped()).stdout(Stdio::null()).spawn() else { return };
        if let Some(mut input) = child.stdin.take() {
            let _ = input.write_all(self.all.as_bytes());
        }
        let _ = child.wait();
    }
}

impl Installation {
    /// Waits until exactly those of the doors that are `wanted` let in whoever knocks from inside a builder's pod.
    ///
    /// # Errors
    /// When others do, or fewer, for too long: with those that did.
    pub async fn lets_builder(&self, pod: &str, knocks: &Neighbourhood, wanted: &[String]) -> Result<()> {
        let knock = knocks.knock();
        let command = ["exec", "--namespace", BUILDS, pod, "--", "bash", "-c", knock.command()];
        until(&format!("the doors around {pod}"), SOON, async || {
            let said = self.cluster.kubectl(&command).await.context("nobody knocked")?;
            Ok(verdicts::opened(&said, wanted)?)
        })
        .await
    }
}
