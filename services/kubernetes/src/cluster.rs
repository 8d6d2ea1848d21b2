//! The API server, as far as the placement talks to it: each call with a timeout, nothing decided.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fabrique_core::time::Timestamp;
use fabrique_ports::Ambient;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Client, Resource, ResourceExt};
use secrecy::ExposeSecret;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use crate::config::{Isolation, Settings};
use crate::error::KubernetesError;
use crate::labels;
use crate::pki::{BuilderCa, CA_FILE, CERT_FILE, Identity, KEY_FILE};
use crate::pod::{CONFIG_MAP, Generation, PodPlan, builder_pod, config_files, generation, pod_name};
use crate::pool::{Action, Attempt, Daemon, read};

/// Who owns the fields that are written. Of the ConfigMap each generation owns its own, by this and its name.
const FIELD_MANAGER: &str = "fabrique";
/// Generations besides our own whose files stay in the ConfigMap, which may not grow for ever.
const KEPT_GENERATIONS: usize = 3;

/// How pods are made.
pub(crate) struct Make {
    pub(crate) isolation: Isolation,
    /// Why this one.
    pub(crate) reason: String,
    pub(crate) generation: Generation,
    /// When we were started.
    pub(crate) since: Timestamp,
}

pub(crate) struct Cluster {
    client: Client,
    pub(crate) pods: Api<Pod>,
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
            config_maps: Api::namespaced(client.clone(), namespace),
            nodes: Api::all(client.clone()),
            client,
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
    pub(crate) async fn owner(&self, generation: &Generation) -> Result<OwnerReference, KubernetesError> {
        let manager = manager(generation);
        let files = Some(config_files(&self.settings)?);
        let written = self.config_map(&manager, Some(own_labels()), files).await?;
        for old in forgotten(&written, &manager) {
            // Applying nothing at all gives up what was applied before, and the API server forgets who did.
            self.config_map(&old, None, None).await?;
        }
        owner_of(&written)
    }

    async fn config_map(
        &self,
        manager: &str,
        labels: Option<BTreeMap<String, String>>,
        files: Option<BTreeMap<String, String>>,
    ) -> Result<ConfigMap, KubernetesError> {
        let map = ConfigMap {
            metadata: ObjectMeta { name: Some(CONFIG_MAP.to_owned()), labels, ..Default::default() },
            data: files,
            ..Default::default()
        };
        let params = PatchParams::apply(manager).force();
        let patch = Patch::Apply(&map);
        self.call("write the builders' ConfigMap", self.config_maps.patch(CONFIG_MAP, &params, &patch)).await
    }

    /// The generation of pods of `isolation`.
    pub(crate) fn generation(&self, isolation: Isolation) -> Result<Generation, KubernetesError> {
        Ok(generation(&self.settings, isolation, &config_files(&self.settings)?))
    }

    /// Does what the pool decided.
    pub(crate) async fn perform(&self, action: &Action, make: &Make) -> Attempt {
        let pod = match action {
            Action::Create { .. } => self.create(action, make).await,
            Action::Claim { uid, seat, version, claim, apps, builds, .. } => {
                let apps: Vec<&str> = apps.iter().map(fabrique_core::id::AppName::as_str).collect();
                let notes = json!({
                    labels::CLAIM: claim.to_string(),
                    labels::CLAIM_LIMIT: self.settings.pool.claim.as_millis().to_string(),
                    labels::APPS: apps.join(","),
                    labels::BUILDS: builds.to_string(),
                });
                self.annotate("claim a builder", *seat, &uid.0, Some(version), notes).await
            }
            Action::Release { uid, seat, version } => {
                let idle_since = self.ambient.now().0.to_string();
                let notes = json!({
                    labels::CLAIM: Value::Null,
                    labels::CLAIM_LIMIT: Value::Null,
                    labels::IDLE_SINCE: idle_since,
                });
                self.annotate("release a builder", *seat, &uid.0, Some(version), notes).await
            }
            Action::Renew { uid, seat, claim } => {
                let notes = json!({ labels::CLAIM: claim.to_string() });
                self.annotate("renew a claim", *seat, &uid.0, None, notes).await
            }
            Action::Look { uid, seat } => self.read(*seat, &uid.0).await,
            Action::Delete { uid, seat, version, .. } => {
                return self.delete_for_good(*seat, &uid.0, version.clone()).await;
            }
        };
        attempt(pod)
    }

    /// A refusal is either that the pod has changed, or that it is there no more: only the second is an end, and the
    /// API server says the same of both.
    async fn delete_for_good(&self, seat: u16, uid: &str, version: Option<String>) -> Attempt {
        let refused = match attempt(self.delete(seat, uid, version).await) {
            Attempt::Conflict => Attempt::Conflict,
            other => return other,
        };
        match self.read(seat, uid).await {
            Ok(None) => Attempt::Gone,
            Ok(Some(_)) | Err(_) => refused,
        }
    }

    /// The pod first and its certificate right after: the Secret belongs to the pod, and the node waits for it.
    async fn create(&self, action: &Action, make: &Make) -> Result<Option<Daemon>, KubernetesError> {
        let Action::Create { seat, trust, resources, avoid, .. } = action else { return Ok(None) };
        let name = pod_name(*seat);
        // Of its own, since the Secret of the seat's last pod may still be on its way out.
        let secret = format!("{name}-{}", self.ambient.ulid());
        let life = self.settings.pool.deadline();
        let identity = self.ca.server(&name, self.ambient.now(), life)?;
        let plan = PodPlan {
            settings: &self.settings,
            isolation: make.isolation,
            seat: *seat,
            trust,
            resources: *resources,
            avoid,
            secret: &secret,
            owner: self.owner(&make.generation).await?,
            since: make.since,
            reason: &make.reason,
        };
        let pod = builder_pod(&plan, &make.generation);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let pod = self.call("create a builder", self.pods.create(&params, &pod)).await?;
        let certificate = certificate(&secret, owner_of(&pod)?, &identity, self.ca.certificate());
        let (namespace, limit) = (&self.settings.namespace, self.settings.patience.request);
        if let Err(error) = write_certificate(&self.client, namespace, &certificate, limit).await {
            // Without it the pod would hang about until it is overdue.
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if let Err(error) = self.delete(*seat, &uid, None).await {
                tracing::warn!(pod = name, %error, "a pod without a certificate was left behind");
            }
            return Err(error);
        }
        Ok(read(&pod))
    }

    /// Exactly this pod as it is now, past every cache. A list of one: the right to list is there anyway.
    async fn read(&self, seat: u16, uid: &str) -> Result<Option<Daemon>, KubernetesError> {
        let params = ListParams::default().fields(&format!("metadata.name={}", pod_name(seat)));
        let pods = self.call("read a builder", self.pods.list(&params)).await?;
        Ok(pods.items.iter().filter_map(read).find(|daemon| daemon.uid.0 == uid))
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

/// What the pool is told of an answer.
fn attempt(pod: Result<Option<Daemon>, KubernetesError>) -> Attempt {
    match pod {
        Ok(Some(daemon)) => Attempt::Done(Box::new(daemon)),
        Ok(None) => Attempt::Conflict,
        Err(error) if error.is_conflict() => Attempt::Conflict,
        Err(error) => Attempt::Failed(error.to_string()),
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

/// The text of an answer, read here: kube's own way writes an answer that it cannot read to the log, secrets
/// with it.
pub(crate) async fn read_text<T: DeserializeOwned>(
    limit: Duration,
    what: &'static str,
    text: impl Future<Output = kube::Result<String>>,
) -> Result<T, KubernetesError> {
    let text = call(limit, what, text).await?;
    // What serde says about a text may have parts of it.
    serde_json::from_str(&text).map_err(|_| KubernetesError::Answer { what: "what can be read" })
}

/// The answer has the private key too, so it is read by [`read_text`].
async fn write_certificate(
    client: &Client,
    namespace: &str,
    certificate: &Secret,
    limit: Duration,
) -> Result<(), KubernetesError> {
    const WHAT: &str = "create a builder's certificate";
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    let body = serde_json::to_vec(certificate).map_err(|_| KubernetesError::Answer { what: WHAT })?;
    let request = Request::new(Secret::url_path(&(), Some(namespace))).create(&params, body);
    let request = request.map_err(|_| KubernetesError::Answer { what: WHAT })?;
    read_text::<IgnoredAny>(limit, WHAT, client.request_text(request)).await.map(drop)
}

/// The labels of everything that is the builders', by which operators find it: see [`labels::builders`].
fn own_labels() -> BTreeMap<String, String> {
    let labels = [(labels::MANAGED_BY, labels::FABRIQUE), (labels::COMPONENT, labels::BUILDER)];
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn manager(generation: &Generation) -> String {
    format!("{FIELD_MANAGER}-{}", generation.name)
}

/// Who else applied the ConfigMap and is to be forgotten: whoever has no file in it, and of those who have, whoever has
/// changed his for longest, beyond those that are kept.
fn forgotten(map: &ConfigMap, own: &str) -> Vec<String> {
    let (mut with_files, mut forgotten) = (Vec::new(), Vec::new());
    for entry in map.metadata.managed_fields.iter().flatten() {
        let manager = entry.manager.as_deref().filter(|name| name.starts_with(FIELD_MANAGER) && *name != own);
        let Some(manager) = manager.filter(|_| entry.operation.as_deref() == Some("Apply")) else { continue };
        if has_files(entry) {
            with_files.push((entry.time.as_ref().map(|time| time.0), manager.to_owned()));
        } else {
            forgotten.push(manager.to_owned());
        }
    }
    with_files.sort();
    let surplus = with_files.len().saturating_sub(KEPT_GENERATIONS);
    forgotten.extend(with_files.into_iter().take(surplus).map(|(_, manager)| manager));
    forgotten
}

fn has_files(entry: &ManagedFieldsEntry) -> bool {
    let data = entry.fields_v1.as_ref().and_then(|fields| fields.0.get("f:data")?.as_object());
    data.is_some_and(|data| data.keys().any(|key| key.starts_with("f:")))
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
            labels: Some(own_labels()),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        immutable: Some(true),
        type_: Some("kubernetes.io/tls".to_owned()),
        string_data: Some(data.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        data: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Log, answering};

    #[test]
    fn a_certificate_is_found_by_the_selector_of_builders() {
        let identity = Identity { certificate: "theirs".to_owned(), key: "of nobody else".into() };
        let pod = OwnerReference { uid: "u1".to_owned(), ..Default::default() };
        let secret = certificate("builder-0-1", pod.clone(), &identity, "of all");
        let labels = secret.metadata.labels.unwrap();
        for wanted in labels::builders().split(',') {
            let (key, value) = wanted.split_once('=').unwrap();
            assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
        }
        assert_eq!(secret.metadata.owner_references, Some(vec![pod]));
    }

    /// The API server answers with what it was given, and somebody in between may spoil that.
    #[tokio::test]
    async fn a_private_key_is_not_told_to_anybody_when_the_answer_cannot_be_read() {
        let log = Log::default();
        let _logged = tracing::subscriber::set_default(log.clone());
        let identity = Identity { certificate: "theirs".to_owned(), key: "hunter2".into() };
        let secret = certificate("builder-0-1", OwnerReference::default(), &identity, "of all");
        let limit = Duration::from_secs(10);
        for spoilt in [
            r#"{"metadata": {"name": "builder-0-1"}, "stringData": {"tls.key": "hunter2"}, "data"#,
            r#"{"metadata": "hunter2", "data": {"tls.key": "hunter2"}}"#,
        ] {
            let client = answering(spoilt).await;
            let written = write_certificate(&client, "builders", &secret, limit).await;
            let told = format!("{written:?} {}", log.text());
            assert!(!told.contains("hunter2"), "{told}");
        }
        tracing::warn!(seen = "by the log");
        assert!(log.text().contains("by the log"), "what is logged is seen here");
    }

    #[test]
    fn the_files_of_the_last_generations_are_kept_and_older_ones_given_up() {
        let entry = |manager: &str, minute: u8, operation: &str, data: Value| {
            json!({
                "manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1",
                "time": format!("2026-11-29T20:{minute:02}:00Z"),
                "fieldsV1": { "f:data": data, "f:metadata": { "f:labels": { "f:a": {} } } },
            })
        };
        let file = || json!({ "f:userns-1.toml": {} });
        let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "managedFields": [
            entry("fabrique-own", 0, "Apply", file()),
            entry("fabrique-d", 4, "Apply", file()),
            entry("fabrique-a", 1, "Apply", file()),
            entry("fabrique", 2, "Apply", file()),
            entry("fabrique-c", 3, "Apply", file()),
            // As earlier releases left those behind that they had forgotten.
            entry("fabrique-e", 5, "Apply", json!({})),
            entry("fabrique-f", 6, "Apply", Value::Null),
            entry("kubectl-edit", 0, "Update", file()),
            entry("fabrique-x", 0, "Update", file()),
        ] } }))
        .unwrap();
        assert_eq!(forgotten(&map, "fabrique-own"), ["fabrique-e", "fabrique-f", "fabrique-a"]);
        assert_eq!(forgotten(&ConfigMap::default(), "fabrique-own"), Vec::<String>::new());
    }
}
