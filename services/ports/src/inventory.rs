//! What a cluster has, read once: for whoever compares it with what is declared.
//!
//! Amounts are texts as Kubernetes writes them (`500m`, `20Gi`): what they mean is known to whoever sums them. Of a
//! secret only the names of its keys are told, never a value.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;

use crate::PortResult;

/// The most requests of one look, whatever there is and whoever asks.
pub const MOST_REQUESTS: usize = 10;

/// Reads a cluster.
#[async_trait]
pub trait Inventory: Send + Sync {
    /// What there is, in at most [`MOST_REQUESTS`] requests.
    ///
    /// # Errors
    /// When the cluster does not answer, or refuses the credentials. A kind that may not be read, or that it does not
    /// know, is a value: [`Listed::Denied`] and [`Listed::Unknown`].
    async fn look(&self, wanted: &Wanted) -> PortResult<Seen>;
}

/// What is looked for beside what is read in any case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The namespaces whose secrets are named.
    pub secrets: BTreeSet<String>,
    /// Whether databases are.
    pub databases: bool,
    /// Whether buckets are.
    pub buckets: bool,
}

/// One kind of resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed<T> {
    /// All there are.
    All(Vec<T>),
    /// The rights to list them are missing.
    Denied,
    /// The cluster does not know the kind.
    Unknown,
    /// Nobody asked for them.
    Unasked,
}

/// By hand: an empty list of anything would need nothing of it.
impl<T> Default for Listed<T> {
    fn default() -> Self {
        Listed::Unasked
    }
}

impl<T> Listed<T> {
    /// What could be listed.
    #[must_use]
    pub fn items(&self) -> &[T] {
        match self {
            Listed::All(items) => items,
            Listed::Denied | Listed::Unknown | Listed::Unasked => &[],
        }
    }
}

/// A namespace and a name in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Named {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// What a cluster has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// How many requests were made.
    pub requests: usize,
    /// Its nodes.
    pub nodes: Listed<Node>,
    /// Its pods that have not ended.
    pub pods: Listed<Pod>,
    /// Its storage classes.
    pub classes: Listed<Class>,
    /// Claims of volumes.
    pub volumes: Listed<Volume>,
    /// Claims of buckets.
    pub buckets: Listed<Bucket>,
    /// PostgreSQL clusters of CloudNativePG.
    pub clusters: Listed<Cluster>,
    /// Databases of CloudNativePG.
    pub databases: Listed<Database>,
    /// Secrets, by the namespaces that were looked into.
    pub secrets: BTreeMap<String, Listed<Secret>>,
    /// Ceph clusters of Rook, with what they report.
    pub ceph: Listed<Ceph>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether pods of apps may be put onto it: it is ready, not cordoned, and no taint keeps them away.
    pub is_usable: bool,
    /// Processor time for pods, in cores.
    pub cpu: Option<String>,
    /// Memory for pods, in bytes.
    pub memory: Option<String>,
}

/// A pod that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its node, once it has one.
    pub node: Option<String>,
    /// What it asks of a node; containers and, where these ask for more, those before them.
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    /// Whether it ends before the pod's others begin, so that both never ask together.
    pub is_before: bool,
    /// Its image.
    pub image: String,
    /// Requested processor time.
    pub cpu: Option<String>,
    /// Requested memory.
    pub memory: Option<String>,
}

/// A storage class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Who provisions it.
    pub provisioner: String,
    /// The namespace of the Ceph cluster behind it, where it says so.
    pub ceph: Option<String>,
}

/// A PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Which.
    pub at: Named,
    /// Its storage class.
    pub class: Option<String>,
    /// The size that it asks for.
    pub size: Option<String>,
    /// `Pending`, `Bound` or `Lost`.
    pub phase: String,
}

/// An ObjectBucketClaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Which.
    pub at: Named,
    /// Its storage class.
    pub class: Option<String>,
    /// The most that it may hold, where it says so.
    pub size: Option<String>,
    /// `Bound` once the bucket is there.
    pub phase: String,
}

/// A PostgreSQL cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Which.
    pub at: Named,
    /// The database that it was begun with.
    pub first_database: Option<String>,
}

/// A Database resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// Which.
    pub at: Named,
    /// What PostgreSQL calls the database.
    pub database: String,
    /// The PostgreSQL cluster, in the same namespace.
    pub cluster: String,
    /// Whether it is as it should be; nothing while nobody has looked yet.
    pub applied: Option<bool>,
    /// Why not.
    pub message: Option<String>,
}

/// A secret without its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    /// Which.
    pub at: Named,
    /// The names of its keys.
    pub keys: BTreeSet<String>,
}

/// A Ceph cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceph {
    /// Which.
    pub at: Named,
    /// Bytes that are left, before replicas, where it reports them.
    pub bytes_left: Option<u64>,
    /// How it is, in its own words.
    pub health: Option<String>,
}
