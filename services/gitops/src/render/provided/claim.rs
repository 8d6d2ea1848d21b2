//! One provided resource, as it is written and read again.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::str::FromStr;

use fabrique_core::id::{AppName, Digest, EnvironmentName, RelPath};
use fabrique_declarations::Quantity;
use fabrique_declarations::name::{DatabaseName, ObjectName};
use fabrique_yaml::{Node, Yaml, flow_text};

use super::{Kind, volume_name};
use crate::layout;
use crate::render::MARK;
use crate::render::stands::{APP, ENVIRONMENT, value};
use crate::tree::Tree;

/// Who asks for it. What is not asked for by anybody any more keeps the last.
const APPS: &str = "fabrique/apps";
/// Neither removing the file nor the Application deletes it, and Argo CD does not complain of that.
const KEPT: &str = "    argocd.argoproj.io/sync-options: Prune=false,Delete=false\n    \
                    argocd.argoproj.io/compare-options: IgnoreExtraneous\n";
/// A claim of many classes is bound when a pod wants it: waiting for that, the pod's Application would wait for ever.
const NOT_AWAITED: &str = "    argocd.argoproj.io/ignore-healthcheck: \"true\"\n";

#[cfg(test)]
thread_local! {
    /// How many claims were read by a test: a claim is a parse of YAML.
    pub(in crate::render) static READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) environment: EnvironmentName,
    pub(super) namespace: String,
    pub(super) apps: BTreeSet<AppName>,
    pub(super) what: What,
}

/// What it claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Bucket { name: String, class: ObjectName, size: Quantity },
    Database { name: DatabaseName, owner: DatabaseName, cluster: ObjectName },
    Volume { app: AppName, class: ObjectName, size: Quantity },
}

impl Claim {
    pub(super) fn file(&self) -> RelPath {
        let (kind, name) = match &self.what {
            What::Bucket { name, .. } => (Kind::Buckets, name.as_str()),
            What::Database { name, .. } => (Kind::Databases, name.as_str()),
            What::Volume { app, .. } => (Kind::Volumes, app.as_str()),
        };
        layout::provided_file(kind.folder(), &self.environment, name)
    }

    pub(super) fn text(&self) -> String {
        let (api, kind, name, what) = match &self.what {
            What::Bucket { name, .. } => {
                ("objectbucket.io/v1alpha1", "ObjectBucketClaim", name.clone(), "the bucket")
            }
            What::Database { name, cluster, .. } => {
                let name = database_resource(cluster.as_str(), name);
                ("postgresql.cnpg.io/v1", "Database", name, "the database")
            }
            What::Volume { app, .. } => ("v1", "PersistentVolumeClaim", volume_name(app), "the volume"),
        };
        let mut text = format!(
            "{MARK} from what apps declare; edits are overwritten.\n\
             # Removing this file removes nothing: to give up {what}, remove the file, then the resource.\n\
             apiVersion: {api}\nkind: {kind}\nmetadata:\n  name: {}\n  namespace: {}\n  labels:\n    \
             app.kubernetes.io/managed-by: fabrique\n",
            flow_text(&name),
            flow_text(&self.namespace),
        );
        if let What::Volume { app, .. } = &self.what {
            // Writing to a String does not fail.
            let _ = writeln!(text, "    {APP}: {}", flow_text(app.as_str()));
        }
        let _ = write!(text, "    {ENVIRONMENT}: {}\n  annotations:\n", flow_text(self.environment.as_str()));
        text.push_str(KEPT);
        if matches!(self.what, What::Volume { .. }) {
            text.push_str(NOT_AWAITED);
        } else {
            let apps: Vec<&str> = self.apps.iter().map(AppName::as_str).collect();
            let _ = writeln!(text, "    {APPS}: {}", flow_text(&apps.join(",")));
        }
        text.push_str(&self.spec());
        text
    }

    fn spec(&self) -> String {
        match &self.what {
            What::Bucket { name, class, size } => format!(
                "spec:\n  bucketName: {}\n  storageClassName: {}\n  additionalConfig:\n    maxSize: {}\n",
                flow_text(name),
                flow_text(class.as_str()),
                flow_text(&size.to_string()),
            ),
            What::Database { name, owner, cluster } => format!(
                "spec:\n  name: {}\n  owner: {}\n  cluster: {{ name: {} }}\n  databaseReclaimPolicy: retain\n",
                flow_text(name.as_str()),
                flow_text(owner.as_str()),
                flow_text(cluster.as_str()),
            ),
            What::Volume { class, size, .. } => format!(
                "spec:\n  accessModes: [ReadWriteOnce]\n  storageClassName: {}\n  resources:\n    \
                 requests: {{ storage: {} }}\n",
                flow_text(class.as_str()),
                flow_text(&size.to_string()),
            ),
        }
    }

    /// Reads what was rendered; nothing of a file that is not, or says something else.
    pub(super) fn read(
        kind: Kind,
        environment: &EnvironmentName,
        path: &RelPath,
        bytes: &[u8],
    ) -> Option<Self> {
        let stem = path.as_str().rsplit('/').next()?.strip_suffix(".yaml")?;
        if !is_rendered(bytes) {
            return None;
        }
        #[cfg(test)]
        READ.with(|read| read.set(read.get() + 1));
        let yaml = Yaml::parse(bytes).ok()?;
        let document = yaml.documents().first()?;
        let spec = |keys: &[&str]| below(document, &[&["spec"], keys].concat());
        let size = |keys: &[&str]| spec(keys).and_then(parsed::<Quantity>);
        let class = || spec(&["storageClassName"]).and_then(parsed::<ObjectName>);
        let apps = below(document, &["metadata", "annotations", APPS]).and_then(Node::text);
        let mut apps: BTreeSet<AppName> =
            apps.unwrap_or_default().split(',').filter_map(|app| AppName::parse(app).ok()).collect();
        let what = match kind {
            Kind::Buckets => What::Bucket {
                name: stem.to_owned(),
                class: class()?,
                size: size(&["additionalConfig", "maxSize"])?,
            },
            Kind::Databases => What::Database {
                name: stem.parse().ok()?,
                owner: spec(&["owner"]).and_then(parsed)?,
                cluster: spec(&["cluster", "name"]).and_then(parsed)?,
            },
            Kind::Volumes => {
                let app = AppName::parse(stem).ok()?;
                apps.insert(app.clone());
                What::Volume { app, class: class()?, size: size(&["resources", "requests", "storage"])? }
            }
        };
        let namespace = below(document, &["metadata", "namespace"])?.text()?.to_owned();
        Some(Self { environment: environment.clone(), namespace, apps, what })
    }
}

/// The claims of a kind that stand in an environment, by file.
pub(super) fn standing(tree: &Tree, kind: Kind, environment: &EnvironmentName) -> Vec<(RelPath, Claim)> {
    let folder = layout::provided_folder(kind.folder(), environment);
    let files = tree.below(&folder);
    files
        .filter_map(|(path, entry)| Some((path.clone(), Claim::read(kind, environment, path, &entry.bytes)?)))
        .collect()
}

/// The claim of an app's volume that stands in an environment.
pub(super) fn of_volume(tree: &Tree, environment: &EnvironmentName, app: &AppName) -> Option<Claim> {
    let file = layout::provided_file(Kind::Volumes.folder(), environment, app.as_str());
    Claim::read(Kind::Volumes, environment, &file, tree.content(&file)?)
}

/// Whether a person wrote what stands there.
pub(super) fn is_by_hand(tree: &Tree, file: &RelPath) -> bool {
    tree.content(file).is_some_and(|bytes| !is_rendered(bytes))
}

pub(super) fn is_rendered(bytes: &[u8]) -> bool {
    bytes.starts_with(MARK.as_bytes())
}

fn below<'n>(node: &'n Node, keys: &[&str]) -> Option<&'n Node> {
    keys.iter().try_fold(node, |node, key| value(node, key))
}

fn parsed<T: FromStr>(node: &Node) -> Option<T> {
    node.text()?.parse().ok()
}

/// `<cluster>-<database>`, with digits of its own where PostgreSQL's name is none of Kubernetes.
pub(in crate::render) fn database_resource(cluster: &str, database: &DatabaseName) -> String {
    let name = format!("{cluster}-{database}");
    if name.parse::<ObjectName>().is_ok() {
        return name;
    }
    let digest = Digest::of(name.as_bytes());
    format!("{}-{}", name.replace('_', "-").trim_end_matches('-'), digest.short())
}
