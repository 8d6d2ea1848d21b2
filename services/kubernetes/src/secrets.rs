//! Derived secrets: exactly the keys that a contract names, copied from another secret.
//!
//! The target is written by server-side apply under a field manager of its own, [`FIELD_MANAGER`], so that what others
//! own of it stays theirs and is seen. A target that is right already is not written: its version stays.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use fabrique_ports::secrets::{Change, Derivation, DerivedSecrets, SecretPlace, Unfit};
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{GetParams, Patch, PatchParams};
use kube::core::Request;
use kube::{Client, Resource as _};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::cluster::read_text;
use crate::error::KubernetesError;
use crate::labels;

/// Who owns the keys of a derived secret.
pub const FIELD_MANAGER: &str = "fabrique-secrets";
/// Where a derived secret is from, for people.
const FROM: &str = "fabrique.dev/derived-from";
/// What an account that derives needs of a source.
const ON_SOURCE: [&str; 1] = ["get"];
/// What it needs of a target. Whoever may patch a secret reads it by that, so `get` adds nothing.
const ON_TARGET: [&str; 3] = ["create", "get", "patch"];

/// Derives secrets in a cluster.
pub struct SecretWriter {
    client: Client,
    limit: Duration,
}

impl SecretWriter {
    /// A writer each of whose requests may take `limit`.
    #[must_use]
    pub fn new(client: Client, limit: Duration) -> Self {
        Self { client, limit }
    }

    async fn get(&self, place: &SecretPlace) -> Result<Option<Secret>, KubernetesError> {
        const WHAT: &str = "read a secret";
        let request = requests(place).get(&place.name, &GetParams::default());
        let request = request.map_err(|_| KubernetesError::Answer { what: WHAT })?;
        match read_text(self.limit, WHAT, self.client.request_text(request)).await {
            Ok(secret) => Ok(Some(secret)),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn apply(
        &self,
        secret: &Secret,
        target: &SecretPlace,
        dry_run: bool,
    ) -> Result<(), KubernetesError> {
        const WHAT: &str = "write a derived secret";
        let params = PatchParams { dry_run, ..PatchParams::apply(FIELD_MANAGER).force() };
        let request = requests(target).patch(&target.name, &params, &Patch::Apply(secret));
        let request = request.map_err(|_| KubernetesError::Answer { what: WHAT })?;
        read_text::<IgnoredAny>(self.limit, WHAT, self.client.request_text(request)).await.map(drop)
    }
}

#[async_trait]
impl DerivedSecrets for SecretWriter {
    async fn derive(&self, derivation: &Derivation, dry_run: bool) -> PortResult<Result<Change, Unfit>> {
        let place = &derivation.source;
        let source = self.get(place).await.map_err(|error| told(error, place))?;
        let data = match wanted(derivation, source.as_ref()) {
            Ok(data) => data,
            Err(unfit) => return Ok(Err(unfit)),
        };
        let place = &derivation.target;
        let stands = self.get(place).await.map_err(|error| told(error, place))?;
        let change = match judge(derivation, &data, stands.as_ref()) {
            Ok(change) => change,
            Err(unfit) => return Ok(Err(unfit)),
        };
        if change != Change::None {
            let secret = derived(derivation, data);
            self.apply(&secret, place, dry_run).await.map_err(|error| told(error, place))?;
        }
        Ok(Ok(change))
    }
}

type Data = BTreeMap<String, ByteString>;

/// Requests for secrets of the namespace of `place`.
fn requests(place: &SecretPlace) -> Request {
    Request::new(Secret::url_path(&(), Some(&place.namespace)))
}

/// What the target has to hold.
fn wanted(derivation: &Derivation, source: Option<&Secret>) -> Result<Data, Unfit> {
    let place = &derivation.source;
    let Some(source) = source else { return Err(Unfit::NoSource(place.clone())) };
    let all = source.data.clone().unwrap_or_default();
    let pick = |key: &String| {
        let (source_place, name) = (place.clone(), key.clone());
        match all.get(key) {
            None => Err(Unfit::NoKey { source_place, key: name }),
            Some(value) if value.0.is_empty() => Err(Unfit::Empty { source_place, key: name }),
            Some(value) => Ok((name, value.clone())),
        }
    };
    derivation.keys.iter().map(pick).collect()
}

/// What has to be done to what stands there.
fn judge(derivation: &Derivation, wanted: &Data, stands: Option<&Secret>) -> Result<Change, Unfit> {
    let Some(stands) = stands else { return Ok(Change::Made) };
    let data = stands.data.clone().unwrap_or_default();
    let target = &derivation.target;
    let extra = data.keys().find(|key| !wanted.contains_key(*key) && !is_ours(stands, key));
    if let Some(key) = extra {
        return Err(Unfit::Foreign { target: target.clone(), key: key.clone() });
    }
    if data == *wanted {
        return Ok(Change::None);
    }
    match stands.immutable {
        Some(true) => Err(Unfit::Immutable(target.clone())),
        Some(false) | None => Ok(Change::Changed),
    }
}

/// Whether a key is owned by nobody but us, so that an apply without it removes it.
fn is_ours(secret: &Secret, key: &str) -> bool {
    let field = format!("f:{key}");
    let entries = secret.metadata.managed_fields.iter().flatten();
    let mut owners = entries.filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        fields.is_some_and(|fields| !fields["f:data"][&field].is_null())
    });
    let ours = |entry: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(FIELD_MANAGER) && entry.operation.as_deref() == Some("Apply")
    };
    owners.next().is_some_and(ours) && owners.next().is_none()
}

fn derived(derivation: &Derivation, data: Data) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(derivation.target.name.clone()),
            labels: Some([(labels::MANAGED_BY.to_owned(), labels::FABRIQUE.to_owned())].into()),
            annotations: Some([(FROM.to_owned(), derivation.source.to_string())].into()),
            ..Default::default()
        },
        data: Some(data),
        ..Default::default()
    }
}

fn told(error: KubernetesError, place: &SecretPlace) -> PortError {
    let (fault, remedy) = match error.status() {
        Some(401 | 403) => (Fault::Denied, Some("`fabrique secrets --rbac` prints the rights that it needs")),
        Some(404) => (Fault::Denied, Some("is its namespace there?")),
        Some(400 | 405 | 409 | 422) => (Fault::Unexpected, None),
        _ if matches!(error, KubernetesError::Answer { .. }) => {
            (Fault::Unexpected, Some("is this the API server of Kubernetes?"))
        }
        _ => (Fault::Transient, None),
    };
    let port = PortError::new(Peer::Cluster, fault, format!("the secret {place}: {error}"));
    let port = if let Some(remedy) = remedy { port.remedy(remedy) } else { port };
    port.caused_by(error)
}

/// The account that derives secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// Every right that deriving needs, and no more, as manifests: in each namespace a Role that may read the sources and
/// write the targets by name, and its RoleBinding.
#[must_use]
pub fn rbac(derivations: &[Derivation], account: Account<'_>) -> Vec<Value> {
    let mut namespaces: BTreeMap<&str, BTreeMap<&[&str], Vec<&str>>> = BTreeMap::new();
    for Derivation { target, source, .. } in derivations {
        let places: [(&SecretPlace, &[&str]); 2] = [(source, &ON_SOURCE), (target, &ON_TARGET)];
        for (place, verbs) in places {
            let names = namespaces.entry(&place.namespace).or_default().entry(verbs).or_default();
            names.push(&place.name);
        }
    }
    let documents = namespaces.into_iter().flat_map(|(namespace, rules)| {
        let rules = rules.into_iter().map(|(verbs, mut names)| {
            names.sort_unstable();
            names.dedup();
            json!({ "apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": verbs })
        });
        let metadata = json!({ "name": FIELD_MANAGER, "namespace": namespace });
        let api_version = "rbac.authorization.k8s.io/v1";
        let role = json!({
            "apiVersion": api_version, "kind": "Role", "metadata": metadata, "rules": rules.collect::<Vec<_>>(),
        });
        let binding = json!({
            "apiVersion": api_version, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": FIELD_MANAGER },
            "subjects": [{ "kind": "ServiceAccount", "name": account.name, "namespace": account.namespace }],
        });
        [role, binding]
    });
    documents.collect()
}

#[cfg(test)]
mod tests;
