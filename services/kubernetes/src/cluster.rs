//! The API server, as far as the placement talks to it: each call with a timeout, nothing decided.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fabrique_core::time::Timestamp;
use fabrique_ports::Ambient;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use crate::config::{Isolation, Settings};
use crate::error::KubernetesError;
use crate::labels;
use crate::pki::{BuilderCa, CA_FILE, CERT_FILE, Identity, KEY_FILE};
use crate::pod::{CONFIG_MAP, PodPlan, builder_pod, config_files, generation, pod_name};
use crate::pool::{Action, Attempt, Daemon, read};

/// Who owns the fields that server-side apply writes.
const FIELD_MANAGER: &str = "fabrique";

pub(crate) struct Cluster {
    pub(crate) pods: Api<Pod>,
    secrets: Api<Secret>,
    config_maps: Api<ConfigMap>,
    nodes: Api<Node>,
    pub(crate) settings: Settings,
    ca: Arc<BuilderCa>,
    ambient: Arc<dyn Ambient>,
}

impl Cluster {
    pub(crate) fn new(
        client: Client,
        settings: Settings,
        ca: Arc<BuilderCa>,
        ambient: Arc<dyn Ambient>,
    ) -> Self {
        let namespace = &settings.namespace;
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            secrets: Api::namespaced(client.clone(), namespace),
            config_maps: Api::namespaced(client.clone(), namespace),
            nodes: Api::all(client),
            settings,
            ca,
            ambient,
        }
    }

    async fn call<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, KubernetesError> {
        call(self.settings.patience.request, what, request).await
    }

    /// All nodes; nothing when they may not be read.
    pub(crate) async fn nodes(&self) -> Result<Option<Vec<Node>>, KubernetesError> {
        match self.call("list nodes", self.nodes.list(&ListParams::default())).await {
            Ok(nodes) => Ok(Some(nodes.items)),
            Err(error) if error.status() == Some(403) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A node, where it is there and may be read.
    pub(crate) async fn node(&self, name: &str) -> Option<Node> {
        match self.call("read a node", self.nodes.get(name)).await {
            Ok(node) => Some(node),
            Err(error) => {
                tracing::debug!(node = name, %error, "the node was not read");
                None
            }
        }
    }

    /// Writes `buildkitd.toml` and answers with what owns all builder pods. Done before each pod, since pods whose
    /// owner is gone are collected at once.
    pub(crate) async fn owner(&self) -> Result<OwnerReference, KubernetesError> {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(CONFIG_MAP.to_owned()),
                labels: Some(
                    [(labels::MANAGED_BY, labels::FABRIQUE), (labels::COMPONENT, labels::BUILDER)]
                        .map(|(key, value)| (key.to_owned(), value.to_owned()))
                        .into(),
                ),
                ..Default::default()
            },
            data: Some(config_files(&self.settings)?),
            ..Default::default()
        };
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&map);
        let written = self.config_maps.patch(CONFIG_MAP, &params, &patch);
        let written = self.call("write the builders' ConfigMap", written).await?;
        owner_of(&written)
    }

    /// The generation of pods of `isolation`.
    pub(crate) fn generation(&self, isolation: Isolation) -> Result<String, KubernetesError> {
        Ok(generation(&self.settings, isolation, &config_files(&self.settings)?))
    }

    /// Does what the pool decided.
    pub(crate) async fn perform(&self, action: &Action, isolation: Isolation, generation: &str) -> Attempt {
        let pod = match action {
            Action::Create { .. } => self.create(action, isolation, generation).await,
            Action::Claim { uid, seat, version, claim, apps, builds, .. } => {
                let apps: Vec<&str> = apps.iter().map(fabrique_core::id::AppName::as_str).collect();
                let notes = json!({
                    labels::CLAIM: claim.to_string(),
                    labels::APPS: apps.join(","),
                    labels::BUILDS: builds.to_string(),
                });
                self.annotate("claim a builder", *seat, &uid.0, Some(version), notes).await
            }
            Action::Release { uid, seat, version } => {
                let idle_since = self.ambient.now().0.to_string();
                let notes = json!({ labels::CLAIM: Value::Null, labels::IDLE_SINCE: idle_since });
                self.annotate("release a builder", *seat, &uid.0, Some(version), notes).await
            }
            Action::Renew { uid, seat, claim } => {
                let notes = json!({ labels::CLAIM: claim.to_string() });
                self.annotate("renew a claim", *seat, &uid.0, None, notes).await
            }
            Action::Delete { uid, seat, version, .. } => self.delete(*seat, &uid.0, version.clone()).await,
        };
        match pod {
            Ok(Some(daemon)) => Attempt::Done(Box::new(daemon)),
            Ok(None) => Attempt::Conflict,
            Err(error) if error.is_conflict() => Attempt::Conflict,
            Err(error) => Attempt::Failed(error.to_string()),
        }
    }

    /// The pod first and its certificate right after: the Secret belongs to the pod, and the node waits for it.
    async fn create(
        &self,
        action: &Action,
        isolation: Isolation,
        generation: &str,
    ) -> Result<Option<Daemon>, KubernetesError> {
        let Action::Create { seat, trust, memory } = action else { return Ok(None) };
        let name = pod_name(*seat);
        // Of its own, since the Secret of the seat's last pod may still be on its way out.
        let secret = format!("{name}-{}", self.ambient.ulid());
        let life = self.settings.pool.deadline();
        let identity = self.ca.server(&name, self.ambient.now(), life)?;
        let owner = self.owner().await?;
        let (settings, memory) = (&self.settings, *memory);
        let plan = PodPlan { settings, isolation, seat: *seat, trust, memory, secret: &secret, owner };
        let pod = builder_pod(&plan, generation);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let pod = self.call("create a builder", self.pods.create(&params, &pod)).await?;
        let certificate = certificate(&secret, owner_of(&pod)?, &identity, self.ca.certificate());
        if let Err(error) =
            self.call("create a builder's certificate", self.secrets.create(&params, &certificate)).await
        {
            // Without it the pod would hang about until it is overdue.
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if let Err(error) = self.delete(*seat, &uid, None).await {
                tracing::warn!(pod = name, %error, "a pod without a certificate was left behind");
            }
            return Err(error);
        }
        Ok(read(&pod))
    }

    /// Writes annotations of exactly this pod, and where a version is given on condition of it.
    async fn annotate(
        &self,
        what: &'static str,
        seat: u16,
        uid: &str,
        version: Option<&String>,
        notes: Value,
    ) -> Result<Option<Daemon>, KubernetesError> {
        let mut metadata = json!({ "uid": uid, "annotations": notes });
        if let Some(version) = version {
            metadata["resourceVersion"] = json!(version);
        }
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let name = pod_name(seat);
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let pod = self.call(what, self.pods.patch(&name, &params, &patch)).await?;
        Ok(read(&pod))
    }

    async fn delete(
        &self,
        seat: u16,
        uid: &str,
        version: Option<String>,
    ) -> Result<Option<Daemon>, KubernetesError> {
        let grace = u32::try_from(self.settings.patience.ending.as_secs()).unwrap_or(u32::MAX);
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: version };
        let params = DeleteParams {
            grace_period_seconds: Some(grace),
            preconditions: Some(preconditions),
            ..Default::default()
        };
        let deleted = self.call("delete a builder", self.pods.delete(&pod_name(seat), &params)).await?;
        Ok(deleted.left().as_ref().and_then(read))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.ambient.now()
    }

    pub(crate) fn jitter(&self) -> f64 {
        self.ambient.jitter()
    }

    /// How long a pod's status is given to tell what happened.
    pub(crate) fn autopsy_patience(&self) -> Duration {
        self.settings.patience.autopsy
    }
}

/// One request, in time.
pub(crate) async fn call<T>(
    limit: Duration,
    what: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, KubernetesError> {
    match tokio::time::timeout(limit, request).await {
        Ok(answer) => answer.map_err(|source| KubernetesError::Api { what, source: Box::new(source) }),
        Err(_) => Err(KubernetesError::Slow { what, limit }),
    }
}

fn owner_of<T>(object: &T) -> Result<OwnerReference, KubernetesError>
where
    T: Resource<DynamicType = ()>,
{
    Ok(OwnerReference {
        api_version: T::api_version(&()).into_owned(),
        kind: T::kind(&()).into_owned(),
        name: object.name_any(),
        uid: object.uid().ok_or(KubernetesError::Answer { what: "the object's uid" })?,
        ..Default::default()
    })
}

/// A pod's certificate, never to be changed.
fn certificate(name: &str, owner: OwnerReference, identity: &Identity, authority: &str) -> Secret {
    let data =
        [(CA_FILE, authority), (CERT_FILE, &identity.certificate), (KEY_FILE, identity.key.expose_secret())];
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(labels::MANAGED_BY.to_owned(), labels::FABRIQUE.to_owned())].into()),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        immutable: Some(true),
        type_: Some("kubernetes.io/tls".to_owned()),
        string_data: Some(data.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        data: None,
    }
}
