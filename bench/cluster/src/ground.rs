//! Fabrique on the cluster, and everything that it is looked at through.

use std::io::Write as _;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use async_nats::jetstream::Context;
use fabrique_bed::Cluster;
use fabrique_scenarios::{BUILDS, Changes, Installation, Isolation};
use reqwest::Client;
use serde_json::{Value, json};

use crate::api::{self, Api};
use crate::bare::Key;
use crate::{bus, log};

/// This machine on the cluster's network.
pub(crate) const HOST: &str = "198.18.0.254";
/// The builders' pods; a query in the API server's paths.
pub(crate) const BUILDERS: &str = "/api/v1/namespaces/fabrique-builds/pods?labelSelector=\
    app.kubernetes.io/component%3Dfabrique-builder%2Capp.kubernetes.io/managed-by%3Dfabrique";
/// How many daemons there are at most.
pub(crate) const DAEMONS: usize = 4;
const POLICY: &str = "bench-from-host";
const REQUEST: Duration = Duration::from_secs(30);

/// Everything that figures are measured on.
pub(crate) struct Ground {
    pub(crate) installation: Installation,
    pub(crate) api: Api,
    pub(crate) bus: Context,
    pub(crate) client: Client,
    /// To builders.
    pub(crate) key: Key,
}

impl Ground {
    /// Installs fabrique with four daemons that are made when they are wanted.
    pub(crate) async fn prepare(binary: &Path) -> Result<Self> {
        if let Err(obstacle) = Cluster::possible() {
            anyhow::bail!("there can be no cluster here: {obstacle}");
        }
        // Refused when the process has a provider already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        say("the cluster");
        let cluster = Box::pin(Cluster::shared()).await;
        say("fabrique is installed, once nobody else has it installed");
        let changes = changes(binary);
        let installation = Box::pin(Installation::install_with(cluster, Isolation::Userns, changes)).await?;
        cluster.apply(&from_host().to_string()).await?;
        let client = Client::builder().no_proxy().timeout(REQUEST).build()?;
        Ok(Self {
            api: Api::open(cluster).await?,
            bus: bus::connect(cluster.nats()).await?,
            key: Key::take(&installation).await?,
            client,
            installation,
        })
    }

    /// Closes the door that was opened for this program.
    pub(crate) async fn leave(&self) -> Result<()> {
        self.api
            .delete(&format!("/apis/networking.k8s.io/v1/namespaces/{BUILDS}/networkpolicies/{POLICY}"))
            .await
    }

    /// One of fabrique's builders that is ready.
    pub(crate) async fn builder(&self) -> Result<Value> {
        let builders = self.api.get(BUILDERS).await?;
        let ready = builders["items"].as_array().into_iter().flatten().find(|pod| api::is_ready(pod));
        ready.cloned().context("no builder is ready")
    }

    /// Takes all of fabrique's builders away, and waits until they are gone.
    pub(crate) async fn take_away_builders(&self) -> Result<()> {
        self.api.delete(BUILDERS).await.context("deleting builders")?;
        self.api.gone(BUILDERS).await
    }
}

/// What is measured is not the scenarios' hurry but fabrique's own defaults, on four small daemons.
fn changes(binary: &Path) -> Changes {
    Changes {
        binary: Some(binary.to_owned()),
        fabrique: json!({ "worker": { "lease": "30s" } }),
        builders: json!({
            "pool": { "total": DAEMONS, "per_domain": DAEMONS, "warm_wait": "3s", "claim": "90s" },
            "cache": { "size": "4Gi" },
        }),
        worker_log: Some(log::DIRECTIVES.to_owned()),
    }
}

/// Builders let workers in and nobody else; the bare arms come from this machine.
fn from_host() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": POLICY, "namespace": BUILDS },
        "spec": {
            "podSelector": { "matchLabels": { "app.kubernetes.io/component": "fabrique-builder" } },
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": [{ "ipBlock": { "cidr": format!("{HOST}/32") } }],
                "ports": [{ "port": 1234, "protocol": "TCP" }],
            }],
        },
    })
}

/// A name that no earlier run used.
pub(crate) fn fresh(name: &str) -> String {
    format!("{name}-{:06x}", rand::random::<u32>() & 0x00ff_ffff)
}

/// Tells those who wait how far it is.
pub(crate) fn say(what: &str) {
    static START: OnceLock<Instant> = OnceLock::new();
    let seconds = START.get_or_init(Instant::now).elapsed().as_secs();
    // Nobody has to listen.
    let _ = writeln!(std::io::stderr(), "bench {:02}:{:02} {what}", seconds / 60, seconds % 60);
}
