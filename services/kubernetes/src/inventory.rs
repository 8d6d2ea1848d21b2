//! What the cluster has, read in at most ten requests, with the rights of whoever asks.
//!
//! Each kind is one list over the whole cluster, so that the number of requests does not grow with that of apps. Secrets
//! are listed by namespace while there are requests left for that, and over the whole cluster otherwise; their values
//! are skipped where the answer is read, and never become a value here.
//!
//! [`RULES`] is every right that is used. What may not be read is told as such, and the rest is read all the same.

mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fabrique_ports::inventory::{Class, Inventory, Listed, MOST_REQUESTS, Secret, Seen, Wanted};
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use futures::future::try_join_all;
use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use serde::de::DeserializeOwned;

use crate::cluster::read_text;
use crate::error::KubernetesError;
use crate::rbac::{Rule, Scope};
use wire::Items;

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/pods";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const VOLUMES: &str = "/api/v1/persistentvolumeclaims";
const BUCKETS: &str = "/apis/objectbucket.io/v1alpha1/objectbucketclaims";
const CLUSTERS: &str = "/apis/postgresql.cnpg.io/v1/clusters";
const DATABASES: &str = "/apis/postgresql.cnpg.io/v1/databases";
const CEPH: &str = "/apis/ceph.rook.io/v1/cephclusters";
/// Pods that ended ask for nothing any more.
const RUNNING: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Every right that is used: to list, and nothing else. Secrets only where apps find them.
pub const RULES: &[Rule] = &[
    listing(Scope::Cluster, "", "nodes", "what nodes have for pods"),
    listing(Scope::Cluster, "", "pods", "what pods ask of nodes"),
    listing(Scope::Cluster, "", "persistentvolumeclaims", "which volumes there are"),
    listing(Scope::Cluster, "storage.k8s.io", "storageclasses", "whether a class exists"),
    listing(Scope::Cluster, "objectbucket.io", "objectbucketclaims", "whether a bucket is bound"),
    listing(Scope::Cluster, "postgresql.cnpg.io", "clusters", "whether a database's cluster exists"),
    listing(Scope::Cluster, "postgresql.cnpg.io", "databases", "whether a database exists"),
    listing(Scope::Cluster, "ceph.rook.io", "cephclusters", "what Ceph reports to have left"),
    listing(Scope::Namespace, "", "secrets", "whether a secret has its keys"),
];

const fn listing(scope: Scope, group: &'static str, resource: &'static str, purpose: &'static str) -> Rule {
    Rule { scope, group, resource, verbs: &["list"], purpose }
}

/// Reads a cluster through its API server.
pub struct ClusterInventory {
    client: Client,
    patience: Duration,
}

/// The requests of one look.
struct Look<'a> {
    inventory: &'a ClusterInventory,
    requests: AtomicUsize,
}

/// Where secrets are listed: everywhere, or in these namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Secrets {
    Everywhere,
    In(BTreeSet<String>),
}

impl ClusterInventory {
    /// Reads with `client`, waiting for each answer at most `patience`.
    #[must_use]
    pub fn new(client: Client, patience: Duration) -> Self {
        Self { client, patience }
    }
}

#[async_trait]
impl Inventory for ClusterInventory {
    async fn look(&self, wanted: &Wanted) -> PortResult<Seen> {
        let look = Look { inventory: self, requests: AtomicUsize::new(0) };
        look.all(wanted).await.map_err(port_error)
    }
}

impl Look<'_> {
    async fn all(&self, wanted: &Wanted) -> Result<Seen, KubernetesError> {
        let (nodes, pods, classes, volumes) = tokio::try_join!(
            self.list::<wire::Node>("list nodes", NODES, ""),
            self.list::<wire::Pod>("list pods", PODS, RUNNING),
            self.list::<wire::Class>("list storage classes", CLASSES, ""),
            self.list::<wire::Volume>("list claims of volumes", VOLUMES, ""),
        )?;
        let (buckets, clusters, databases) = tokio::try_join!(
            self.list_if::<wire::Bucket>(wanted.buckets, "list claims of buckets", BUCKETS),
            self.list_if::<wire::Cluster>(wanted.databases, "list PostgreSQL clusters", CLUSTERS),
            self.list_if::<wire::Database>(wanted.databases, "list databases", DATABASES),
        )?;
        let has_ceph = classes.items().iter().any(|class: &Class| class.ceph.is_some());
        let ceph = self.list_if::<wire::Ceph>(has_ceph, "list Ceph clusters", CEPH).await?;
        let secrets = self.secrets(wanted).await?;
        let requests = self.requests.load(Ordering::Relaxed);
        Ok(Seen { requests, nodes, pods, classes, volumes, buckets, clusters, databases, secrets, ceph })
    }

    async fn list_if<T: wire::Seen>(
        &self,
        wanted: bool,
        what: &'static str,
        path: &str,
    ) -> Result<Listed<T::Value>, KubernetesError> {
        if wanted { self.list::<T>(what, path, "").await } else { Ok(Listed::Unasked) }
    }

    async fn list<T: wire::Seen>(
        &self,
        what: &'static str,
        path: &str,
        fields: &str,
    ) -> Result<Listed<T::Value>, KubernetesError> {
        match self.read::<Items<T>>(what, path, fields).await {
            Ok(list) => Ok(Listed::All(list.items.into_iter().map(T::seen).collect())),
            Err(error) => match error.status() {
                Some(403) => Ok(Listed::Denied),
                Some(404) => Ok(Listed::Unknown),
                _ => Err(error),
            },
        }
    }

    async fn read<T: DeserializeOwned>(
        &self,
        what: &'static str,
        path: &str,
        fields: &str,
    ) -> Result<T, KubernetesError> {
        let mut params = ListParams::default();
        if !fields.is_empty() {
            params = params.fields(fields);
        }
        let request = Request::new(path).list(&params).map_err(|_| KubernetesError::Answer { what })?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        read_text(self.inventory.patience, what, self.inventory.client.request_text(request)).await
    }

    async fn secrets(&self, wanted: &Wanted) -> Result<BTreeMap<String, Listed<Secret>>, KubernetesError> {
        const WHAT: &str = "list secrets";
        match places(wanted) {
            Secrets::In(namespaces) => {
                let lists = namespaces.into_iter().map(|namespace| async move {
                    let path = format!("/api/v1/namespaces/{namespace}/secrets");
                    Ok::<_, KubernetesError>((namespace, self.list::<wire::Secret>(WHAT, &path, "").await?))
                });
                Ok(try_join_all(lists).await?.into_iter().collect())
            }
            Secrets::Everywhere => {
                let all = self.list::<wire::Secret>(WHAT, "/api/v1/secrets", "").await?;
                let of = |namespace: &String| {
                    let listed = match &all {
                        Listed::All(secrets) => Listed::All(
                            secrets
                                .iter()
                                .filter(|secret| secret.at.namespace == *namespace)
                                .cloned()
                                .collect(),
                        ),
                        Listed::Denied | Listed::Unknown | Listed::Unasked => Listed::Denied,
                    };
                    (namespace.clone(), listed)
                };
                Ok(wanted.secrets.iter().map(of).collect())
            }
        }
    }
}

/// Where secrets are listed, so that all requests together are not too many.
fn places(wanted: &Wanted) -> Secrets {
    // Nodes, pods, classes, volumes, and Ceph where it is.
    let others = 5 + usize::from(wanted.buckets) + 2 * usize::from(wanted.databases);
    if wanted.secrets.len() <= MOST_REQUESTS - others {
        Secrets::In(wanted.secrets.clone())
    } else {
        Secrets::Everywhere
    }
}

fn port_error(error: KubernetesError) -> PortError {
    let (fault, remedy) = match error.status() {
        Some(401 | 403) => (Fault::Denied, "log in to the cluster again, or name another --context"),
        Some(400..500) => (Fault::Unexpected, "is this the API server of Kubernetes?"),
        _ if matches!(error, KubernetesError::Answer { .. }) => {
            (Fault::Unexpected, "is this the API server of Kubernetes?")
        }
        _ => (Fault::Transient, "is the API server reachable from here, and is KUBECONFIG right?"),
    };
    PortError::new(Peer::Cluster, fault, error.to_string()).remedy(remedy).caused_by(error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::wire::Seen as _;
    use super::*;

    proptest! {
        #[test]
        fn whatever_is_wanted_the_requests_are_at_most_ten(
            namespaces in 0usize..40, databases in any::<bool>(), buckets in any::<bool>(),
        ) {
            let secrets = (0..namespaces).map(|number| format!("n{number}")).collect();
            let wanted = Wanted { secrets, databases, buckets };
            let secrets = match places(&wanted) {
                Secrets::In(namespaces) => namespaces.len(),
                Secrets::Everywhere => 1,
            };
            let others = 5 + usize::from(buckets) + 2 * usize::from(databases);
            prop_assert!(secrets + others <= MOST_REQUESTS);
        }
    }

    #[test]
    fn a_secret_is_read_by_its_keys_and_its_values_go_nowhere() {
        let text = r#"{"items": [{"metadata": {"namespace": "dagster", "name": "pg"},
            "data": {"username": "aHVudGVy", "password": "czNjcjN0"}}]}"#;
        let items: Items<wire::Secret> = serde_json::from_str(text).unwrap();
        let seen: Vec<Secret> = items.items.into_iter().map(wire::Secret::seen).collect();
        let told = format!("{seen:?}");
        assert!(told.contains("password") && !told.contains("czNjcjN0"), "{told}");
    }
}
