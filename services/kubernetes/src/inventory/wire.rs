//! Answers of the API server, as far as they are looked at.

use std::collections::{BTreeMap, BTreeSet};

use fabrique_ports::inventory as seen;
use fabrique_ports::inventory::Named;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// An item that becomes a value.
pub(super) trait Seen: DeserializeOwned {
    type Value;
    fn seen(self) -> Self::Value;
}

#[derive(Deserialize)]
pub(super) struct Items<T> {
    pub(super) items: Vec<T>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    namespace: String,
    name: String,
}

impl From<Metadata> for Named {
    fn from(metadata: Metadata) -> Self {
        Self { namespace: metadata.namespace, name: metadata.name }
    }
}

type Amounts = BTreeMap<String, String>;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Resources {
    requests: Amounts,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Phase {
    phase: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Node {
    metadata: Metadata,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeSpec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Deserialize)]
struct Taint {
    effect: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeStatus {
    allocatable: Amounts,
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

impl Seen for Node {
    type Value = seen::Node;
    fn seen(self) -> seen::Node {
        let Self { metadata, spec, mut status } = self;
        let kept_away = spec.taints.iter().any(|taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute"));
        let ready = status.conditions.iter().any(|is| is.r#type == "Ready" && is.status == "True");
        seen::Node {
            name: metadata.name,
            is_usable: ready && !spec.unschedulable && !kept_away,
            cpu: status.allocatable.remove("cpu"),
            memory: status.allocatable.remove("memory"),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Pod {
    metadata: Metadata,
    spec: PodSpec,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    image: String,
    resources: Resources,
    restart_policy: Option<String>,
}

impl Container {
    fn seen(mut self, is_init: bool) -> seen::Container {
        // An init container that always restarts runs beside the others.
        let is_before = is_init && self.restart_policy.as_deref() != Some("Always");
        let requests = &mut self.resources.requests;
        let (cpu, memory) = (requests.remove("cpu"), requests.remove("memory"));
        seen::Container { is_before, image: self.image, cpu, memory }
    }
}

impl Seen for Pod {
    type Value = seen::Pod;
    fn seen(self) -> seen::Pod {
        let Self { metadata, spec } = self;
        let before = spec.init_containers.into_iter().map(|container| container.seen(true));
        let containers = spec.containers.into_iter().map(|container| container.seen(false)).chain(before);
        seen::Pod { namespace: metadata.namespace, node: spec.node_name, containers: containers.collect() }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Class {
    metadata: Metadata,
    provisioner: String,
    parameters: Amounts,
}

impl Seen for Class {
    type Value = seen::Class;
    fn seen(mut self) -> seen::Class {
        // Rook's provisioners carry its namespace before these names; where Ceph is, its parameters say.
        let place = if self.provisioner.ends_with(".csi.ceph.com") {
            self.parameters.remove("clusterID")
        } else if self.provisioner.ends_with(".ceph.rook.io/bucket") {
            self.parameters.remove("objectStoreNamespace")
        } else {
            None
        };
        seen::Class { name: self.metadata.name, provisioner: self.provisioner, ceph: place }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Volume {
    metadata: Metadata,
    spec: VolumeSpec,
    status: Phase,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct VolumeSpec {
    storage_class_name: Option<String>,
    resources: Resources,
}

impl Seen for Volume {
    type Value = seen::Volume;
    fn seen(mut self) -> seen::Volume {
        seen::Volume {
            at: self.metadata.into(),
            class: self.spec.storage_class_name,
            size: self.spec.resources.requests.remove("storage"),
            phase: self.status.phase,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Bucket {
    metadata: Metadata,
    spec: BucketSpec,
    status: Phase,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct BucketSpec {
    storage_class_name: Option<String>,
    additional_config: Amounts,
}

impl Seen for Bucket {
    type Value = seen::Bucket;
    fn seen(mut self) -> seen::Bucket {
        seen::Bucket {
            at: self.metadata.into(),
            class: self.spec.storage_class_name,
            size: self.spec.additional_config.remove("maxSize"),
            phase: self.status.phase,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Cluster {
    metadata: Metadata,
    spec: ClusterSpec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ClusterSpec {
    bootstrap: Option<Bootstrap>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Bootstrap {
    initdb: Option<Init>,
    recovery: Option<Init>,
    pg_basebackup: Option<Init>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Init {
    database: Option<String>,
}

/// What CloudNativePG calls the first database where nobody says.
const FIRST_DATABASE: &str = "app";

impl Seen for Cluster {
    type Value = seen::Cluster;
    fn seen(self) -> seen::Cluster {
        let first_database = match self.spec.bootstrap {
            None | Some(Bootstrap { initdb: None, recovery: None, pg_basebackup: None }) => {
                Some(FIRST_DATABASE.to_owned())
            }
            Some(Bootstrap { initdb: Some(init), .. }) => {
                Some(init.database.unwrap_or_else(|| FIRST_DATABASE.to_owned()))
            }
            Some(Bootstrap { recovery, pg_basebackup, .. }) => {
                recovery.or(pg_basebackup).and_then(|init| init.database)
            }
        };
        seen::Cluster { at: self.metadata.into(), first_database }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Database {
    metadata: Metadata,
    spec: DatabaseSpec,
    status: DatabaseStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DatabaseSpec {
    name: String,
    cluster: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DatabaseStatus {
    applied: Option<bool>,
    message: Option<String>,
}

impl Seen for Database {
    type Value = seen::Database;
    fn seen(self) -> seen::Database {
        seen::Database {
            at: self.metadata.into(),
            database: self.spec.name,
            cluster: self.spec.cluster.name,
            applied: self.status.applied,
            message: self.status.message,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Secret {
    metadata: Metadata,
    data: BTreeMap<String, IgnoredAny>,
}

impl Seen for Secret {
    type Value = seen::Secret;
    fn seen(self) -> seen::Secret {
        let keys: BTreeSet<String> = self.data.into_keys().collect();
        seen::Secret { at: self.metadata.into(), keys }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Ceph {
    metadata: Metadata,
    status: CephStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CephStatus {
    ceph: Option<Reported>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Reported {
    health: Option<String>,
    capacity: Option<Capacity>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Capacity {
    bytes_available: Option<u64>,
}

impl Seen for Ceph {
    type Value = seen::Ceph;
    fn seen(self) -> seen::Ceph {
        let reported = self.status.ceph.unwrap_or_default();
        let bytes_left = reported.capacity.and_then(|capacity| capacity.bytes_available);
        seen::Ceph { at: self.metadata.into(), bytes_left, health: reported.health }
    }
}
