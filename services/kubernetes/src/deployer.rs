//! Argo CD from within: the secret that it checks webhooks by, and an Application that proves that it was told.
//!
//! The proof is an Application that watches a branch and that its controller is told to leave alone. Whoever takes webhooks
//! marks every Application of that branch as to be refreshed; nobody takes this mark off again, so that it is seen however
//! late one looks. It deploys nothing: nothing of it is ever compared or synced.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use fabrique_core::id::BranchName;
use fabrique_ports::applications::{ApplicationState, Applications, SyncOperation};
use fabrique_ports::setup::{DeployerInside, KeptSecret};
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams};
use kube::core::Request;
use kube::{Client, Resource as _};
use secrecy::{ExposeSecret, SecretString};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use crate::cluster::read_text;
use crate::error::KubernetesError;
use crate::labels;

/// The annotation of the root Application that says which `root.yaml` it was applied from.
const RENDERED: &str = "fabrique/rendered";
/// How many parts of a sync that failed are told.
const MOST_PARTS: usize = 3;
/// Who owns what is written here.
pub const FIELD_MANAGER: &str = "fabrique-init";
/// Where Argo CD has its secrets.
const SECRET: &str = "argocd-secret";
/// By this key it checks the deliveries of Gitea, whose headers are those of Gogs too.
const CHECKED: &str = "webhook.gogs.secret";
/// By this one people look for it. No Argo CD reads it yet.
const NAMED: &str = "webhook.gitea.secret";
/// The Application that is told.
const PROBE: &str = "fabrique-webhook-probe";
const REFRESH: &str = "argocd.argoproj.io/refresh";
const LEAVE_ALONE: &str = "argocd.argoproj.io/skip-reconcile";

/// Name and password, as a Secret has them.
pub struct Credentials {
    /// The name.
    pub name: String,
    /// The password.
    pub password: SecretString,
}

/// An Argo CD in a namespace of a cluster.
pub struct ArgoNamespace {
    client: Client,
    namespace: String,
    limit: Duration,
}

impl ArgoNamespace {
    /// The one in `namespace`. Each request may take `limit`.
    #[must_use]
    pub fn new(client: Client, namespace: &str, limit: Duration) -> Self {
        Self { client, namespace: namespace.to_owned(), limit }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        what: &'static str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, KubernetesError> {
        ask(&self.client, self.limit, what, request).await
    }

    fn secrets(&self) -> Request {
        Request::new(Secret::url_path(&(), Some(&self.namespace)))
    }

    fn applications(&self) -> Request {
        Request::new(format!("/apis/argoproj.io/v1alpha1/namespaces/{}/applications", self.namespace))
    }

    fn told(&self, error: KubernetesError, thing: &str) -> PortError {
        told(
            error,
            &format!("{thing} in {}", self.namespace),
            "docs/operations.md lists the rights that init needs",
        )
    }
}

/// Name and password from the keys `username` and `password` of a Secret.
///
/// # Errors
/// When there is no such Secret, or it lacks one of them; when the API server refuses or does not answer in `limit`.
pub async fn credentials(
    client: &Client,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> PortResult<Credentials> {
    let place = format!("the secret {namespace}/{name}");
    let request = Request::new(Secret::url_path(&(), Some(namespace))).get(name, &GetParams::default());
    let secret: Secret = ask(client, limit, "read it", request).await.map_err(|error| {
        told(error, &place, "name another one in init.admin_secret, or get the right to read it")
    })?;
    let data = secret.data.unwrap_or_default();
    let text = |key: &str| {
        let value = data.get(key).and_then(|value| std::str::from_utf8(&value.0).ok());
        let value = value.map(|text| text.trim_end_matches(['\n', '\r'])).filter(|text| !text.is_empty());
        value.map(str::to_owned).ok_or_else(|| {
            PortError::new(Peer::Cluster, Fault::Denied, format!("{place} has nothing under {key}"))
                .remedy("it has to have the keys username and password")
        })
    };
    Ok(Credentials { name: text("username")?, password: text("password")?.into() })
}

async fn ask<T: DeserializeOwned>(
    client: &Client,
    limit: Duration,
    what: &'static str,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<T, KubernetesError> {
    let request = request.map_err(|_| KubernetesError::Answer { what: "a request that can be made" })?;
    read_text(limit, what, client.request_text(request)).await
}

#[async_trait]
impl DeployerInside for ArgoNamespace {
    async fn secret(&self) -> PortResult<KeptSecret> {
        let request = self.secrets().get(SECRET, &GetParams::default());
        let secret: Secret = self.ask("read it", request).await.map_err(|error| self.told(error, SECRET))?;
        kept(&secret.data.unwrap_or_default()).map_err(|key| {
            PortError::new(
                Peer::Cluster,
                Fault::Denied,
                format!("{SECRET} has something under {key} that is no text"),
            )
            .remedy("remove that key, and a new secret is made")
        })
    }

    async fn keep_secret(&self, secret: &SecretString) -> PortResult<()> {
        let value = || ByteString(secret.expose_secret().as_bytes().to_vec());
        let patch = Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..Default::default() },
            data: Some([CHECKED, NAMED].map(|key| (key.to_owned(), value())).into()),
            ..Default::default()
        };
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let request = self.secrets().patch(SECRET, &params, &Patch::Apply(&patch));
        let written: Result<IgnoredAny, _> = self.ask("write it", request).await;
        written.map(drop).map_err(|error| self.told(error, SECRET))
    }

    async fn place_probe(&self, url: &str, branch: &BranchName) -> PortResult<()> {
        self.remove_probe().await?;
        let probe = probe(&self.namespace, url, branch);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let request = self.applications().patch(PROBE, &params, &Patch::Apply(&probe));
        let made: Result<IgnoredAny, _> = self.ask("make it", request).await;
        made.map(drop).map_err(|error| self.told(error, "an Application"))
    }

    async fn probe_was_told(&self) -> PortResult<bool> {
        let request = self.applications().get(PROBE, &GetParams::default());
        let probe: Value =
            self.ask("look at it", request).await.map_err(|error| self.told(error, "an Application"))?;
        Ok(!probe["metadata"]["annotations"][REFRESH].is_null())
    }

    async fn remove_probe(&self) -> PortResult<()> {
        let request = self.applications().delete(PROBE, &DeleteParams::default());
        match self.ask::<IgnoredAny>("remove it", request).await {
            Ok(_) => Ok(()),
            Err(error) if error.status() == Some(404) => Ok(()),
            Err(error) => Err(self.told(error, "an Application")),
        }
    }
}

#[async_trait]
impl Applications for ArgoNamespace {
    async fn application(&self, name: &str) -> PortResult<Option<ApplicationState>> {
        let request = self.applications().get(name, &GetParams::default());
        match self.ask::<Value>("look at it", request).await {
            Ok(application) => Ok(Some(state(&application))),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => {
                let rights = "docs/operations.md lists the rights that seed needs";
                Err(told(error, &format!("the Application {name} in {}", self.namespace), rights))
            }
        }
    }
}

/// What an Application says of itself. Until it was compared it says nothing.
fn state(application: &Value) -> ApplicationState {
    let status = &application["status"];
    let text = |value: &Value| value.as_str().unwrap_or("Unknown").to_owned();
    let images = status["summary"]["images"].as_array().into_iter().flatten();
    let images = images.filter_map(|image| image.as_str().map(str::to_owned));
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut messages = conditions
        .map(|condition| &condition["message"])
        .chain([&status["operationState"]["message"], &status["health"]["message"]]);
    let operation = &status["operationState"];
    ApplicationState {
        sync: text(&status["sync"]["status"]),
        health: text(&status["health"]["status"]),
        revisions: revisions(&status["sync"]),
        operation: operation.is_object().then(|| sync_operation(operation)),
        images: images.collect(),
        message: messages.find_map(|message| message.as_str().map(str::to_owned)),
        rendered: application["metadata"]["annotations"][RENDERED].as_str().map(str::to_owned),
    }
}

fn sync_operation(operation: &Value) -> SyncOperation {
    let of = [&operation["syncResult"], &operation["operation"]["sync"]].map(revisions);
    // The operation says how many parts failed, and each of them why.
    let failed = operation["syncResult"]["resources"].as_array().into_iter().flatten().filter(|resource| {
        let failed = |key: &str, word: &str| resource[key].as_str() == Some(word);
        failed("hookPhase", "Failed") || failed("hookPhase", "Error") || failed("status", "SyncFailed")
    });
    let part = failed.filter_map(|part| {
        let told =
            [&part["kind"], &part["name"], &part["message"]].map(|value| value.as_str().unwrap_or_default());
        (!told[2].is_empty()).then(|| format!("{} {}: {}", told[0], told[1], told[2]))
    });
    let messages = operation["message"].as_str().map(str::to_owned).into_iter().chain(part.take(MOST_PARTS));
    let message = messages.collect::<Vec<_>>().join("; ");
    SyncOperation {
        phase: operation["phase"].as_str().unwrap_or("Unknown").to_owned(),
        revisions: of.into_iter().find(|revisions| !revisions.is_empty()).unwrap_or_default(),
        message: Some(message).filter(|message| !message.is_empty()),
    }
}

/// The commit of one source, or those of several.
fn revisions(of: &Value) -> Vec<String> {
    let several = of["revisions"].as_array().into_iter().flatten();
    let mut revisions: Vec<String> = several.filter_map(|one| one.as_str().map(str::to_owned)).collect();
    if revisions.is_empty() {
        revisions.extend(of["revision"].as_str().filter(|one| !one.is_empty()).map(str::to_owned));
    }
    revisions
}

/// What counts of a Secret, or the key under which there is no text.
fn kept(data: &BTreeMap<String, ByteString>) -> Result<KeptSecret, &'static str> {
    let Some(value) = data.get(CHECKED).filter(|value| !value.0.is_empty()) else {
        return Ok(KeptSecret::Nothing);
    };
    let text = std::str::from_utf8(&value.0).map_err(|_| CHECKED)?;
    let secret = SecretString::from(text.to_owned());
    Ok(if data.get(NAMED) == Some(value) { KeptSecret::This(secret) } else { KeptSecret::Partly(secret) })
}

fn probe(namespace: &str, url: &str, branch: &BranchName) -> Value {
    json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {
            "name": PROBE,
            "namespace": namespace,
            "labels": { labels::MANAGED_BY: labels::FABRIQUE },
            "annotations": { LEAVE_ALONE: "true" },
        },
        "spec": {
            "project": "default",
            "source": { "repoURL": url, "targetRevision": branch.as_str(), "path": "." },
            "destination": { "server": "https://kubernetes.default.svc", "namespace": namespace },
        },
    })
}

fn told(error: KubernetesError, thing: &str, rights: &'static str) -> PortError {
    let (fault, remedy) = match error.status() {
        Some(401 | 403) => (Fault::Denied, Some(rights)),
        Some(404) => (Fault::Denied, Some("is it there, in that namespace of that cluster?")),
        Some(400 | 405 | 409 | 422) => (Fault::Unexpected, None),
        _ if matches!(error, KubernetesError::Answer { .. }) => {
            (Fault::Unexpected, Some("is this the API server of Kubernetes?"))
        }
        _ => (Fault::Transient, None),
    };
    let port = PortError::new(Peer::Cluster, fault, format!("{thing}: {error}"));
    let port = if let Some(remedy) = remedy { port.remedy(remedy) } else { port };
    port.caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<KeptSecret, &'static str> {
        let data =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
        kept(&data.collect())
    }

    #[test]
    fn what_counts_is_the_key_that_argo_cd_reads() {
        assert!(matches!(with(&[]), Ok(KeptSecret::Nothing)));
        assert!(
            matches!(with(&[(NAMED, "a")]), Ok(KeptSecret::Nothing)),
            "by this one alone nothing is checked"
        );
        assert!(matches!(with(&[(CHECKED, "")]), Ok(KeptSecret::Nothing)));
        let is = |kept: Result<KeptSecret, _>| match kept {
            Ok(KeptSecret::This(secret)) => (secret.expose_secret().to_owned(), true),
            Ok(KeptSecret::Partly(secret)) => (secret.expose_secret().to_owned(), false),
            _ => panic!("nothing"),
        };
        assert_eq!(is(with(&[(CHECKED, "a"), (NAMED, "a")])), ("a".to_owned(), true));
        assert_eq!(is(with(&[(CHECKED, "a")])), ("a".to_owned(), false));
        assert_eq!(is(with(&[(CHECKED, "a"), (NAMED, "b")])), ("a".to_owned(), false));
        let binary = [(CHECKED.to_owned(), ByteString(vec![0xff]))].into();
        assert_eq!(kept(&binary).err(), Some(CHECKED));
    }

    #[test]
    fn an_application_tells_how_it_is_and_one_that_was_never_compared_is_not_well() {
        let fresh = state(&json!({ "metadata": { "name": "citation-prod" } }));
        assert!(!fresh.is_well() && fresh.images.is_empty() && fresh.rendered.is_none(), "{fresh:?}");
        let root = json!({ "metadata": { "annotations": { "fabrique/rendered": "sha256:aa" } } });
        assert_eq!(state(&root).rendered.as_deref(), Some("sha256:aa"));
        let told = state(&json!({ "status": {
            "sync": { "status": "Synced" }, "health": { "status": "Healthy" },
            "summary": { "images": ["registry:80/citation@sha256:aa"] },
            "operationState": { "message": "successfully synced" },
        } }));
        assert!(told.is_well() && told.images.contains("registry:80/citation@sha256:aa"), "{told:?}");
        let broken = state(&json!({ "status": {
            "sync": { "status": "Unknown" }, "health": { "status": "Healthy" },
            "conditions": [{ "type": "ComparisonError", "message": "no such path" }],
            "operationState": { "message": "an older one" },
        } }));
        assert_eq!((broken.is_well(), broken.message.as_deref()), (false, Some("no such path")));
    }

    #[test]
    fn an_application_tells_which_commit_it_saw_and_what_its_last_sync_failed_at() {
        let told = state(&json!({ "status": {
            "sync": { "status": "OutOfSync", "revision": "bb" }, "health": { "status": "Healthy" },
            "operationState": {
                "phase": "Failed", "message": "one or more tasks failed (retried 5 times)",
                "operation": { "sync": { "revision": "zz" } },
                "syncResult": { "revision": "bb", "resources": [
                    { "kind": "ConfigMap", "name": "migrations", "status": "Synced", "message": "created" },
                    { "kind": "Job", "name": "migrate", "hookPhase": "Failed", "message": "Job has reached the backoff limit" },
                ] },
            },
        } }));
        let operation = told.operation.unwrap();
        assert!(operation.is_failed());
        assert_eq!((&told.revisions, &operation.revisions), (&vec!["bb".to_owned()], &vec!["bb".to_owned()]));
        let message = operation.message.unwrap();
        assert_eq!(
            message,
            "one or more tasks failed (retried 5 times); Job migrate: Job has reached the backoff limit"
        );
        let two = state(&json!({ "status": {
            "sync": { "revisions": ["aa", "bb"] },
            "operationState": { "phase": "Running", "operation": { "sync": { "revisions": ["aa", "bb"] } } },
        } }));
        let operation = two.operation.unwrap();
        assert!(!operation.is_failed() && operation.revisions == two.revisions && two.revisions.len() == 2);
    }

    #[test]
    fn the_probe_is_left_alone_by_the_controller_and_syncs_nothing() {
        let probe =
            probe("argocd", "http://gitea:3000/cluster/apps.git", &BranchName::parse("main").unwrap());
        assert_eq!(probe["metadata"]["annotations"][LEAVE_ALONE], "true");
        assert!(probe["spec"]["syncPolicy"].is_null() && probe["metadata"]["finalizers"].is_null());
    }
}
