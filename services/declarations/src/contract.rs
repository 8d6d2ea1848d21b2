//! `contract.yaml`: what the cluster offers, in `cluster/apps`, once.

mod read;

use std::collections::BTreeMap;

use fabrique_core::id::{AppName, EnvironmentName};
use schemars::JsonSchema;
use url::Url;

use crate::name::{
    BucketName, ContractVersion, DatabaseName, ENVIRONMENT_NAME, Namespace, ObjectName, SecretKey,
    VariableName,
};
use crate::{At, Finding, Quantity};

/// How the file is called, at the root of `cluster/apps`.
pub const FILE_NAME: &str = "contract.yaml";

const MAX_VERSIONS: usize = 64;
const MAX_ENVIRONMENTS: usize = 32;
const MAX_NAMES: usize = 1000;
const MAX_CLASSES: usize = 64;
const MAX_KEYS: usize = 64;
const MAX_PLACEHOLDERS: usize = 16;
/// What stands for the app in the name of a placeholder.
const APP: &str = "<APP>";

/// What the cluster offers to apps.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(title = "contract.yaml", rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = crate::schema::with_head)]
pub struct Contract {
    /// The version of this contract. Raise it with every change that an app has to know about.
    pub version: ContractVersion,
    /// The versions whose declarations are accepted, this one among them.
    #[schemars(length(min = 1, max = MAX_VERSIONS), extend("uniqueItems" = true))]
    pub accepts: Vec<ContractVersion>,
    /// Where the cluster's own services are.
    pub endpoints: Endpoints,
    /// The databases that apps may depend on, by name.
    #[schemars(default, with = "BTreeMap<DatabaseName, Database>", extend("maxProperties" = MAX_NAMES))]
    pub databases: BTreeMap<DatabaseName, At<Database>>,
    /// The secrets that apps may depend on, by name.
    #[schemars(default, with = "BTreeMap<ObjectName, Secret>", extend("maxProperties" = MAX_NAMES))]
    pub secrets: BTreeMap<ObjectName, At<Secret>>,
    /// What each environment offers, by name.
    #[schemars(with = "BTreeMap<EnvironmentKey, Offer>", extend("maxProperties" = MAX_ENVIRONMENTS))]
    pub environments: BTreeMap<EnvironmentName, At<Offer>>,
    /// The placeholders that an app's overlay keeps, and where.
    #[schemars(default = "Placeholder::both", length(max = MAX_PLACEHOLDERS))]
    pub placeholders: Vec<Placeholder>,
}

/// Where the cluster's own services are, as seen from inside of it.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct Endpoints {
    /// Gitea: `http://` or `https://`.
    #[schemars(with = "String", extend("format" = "uri"))]
    pub gitea: At<Url>,
    /// Argo CD: `http://` or `https://`.
    #[schemars(with = "String", extend("format" = "uri"))]
    pub argocd: At<Url>,
    /// The registry, as images name it: `host[:port]`.
    #[schemars(with = "String", regex(pattern = read::REGISTRY))]
    pub registry: At<String>,
    /// NATS: `nats://` or `tls://`.
    #[schemars(with = "String", extend("format" = "uri"))]
    pub nats: At<Url>,
}

/// A database.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct Database {
    /// The namespace of its PostgreSQL cluster.
    pub namespace: Namespace,
    /// The name of its PostgreSQL cluster.
    pub cluster: ObjectName,
    /// The role that owns it, where the cluster makes the database for apps; without it, the database has to exist.
    pub owner: Option<DatabaseName>,
}

/// A secret.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct Secret {
    /// The namespace that apps find it in.
    pub namespace: Namespace,
    /// The keys that apps find in it; a derived secret has these and no others.
    #[schemars(length(min = 1, max = MAX_KEYS), extend("uniqueItems" = true))]
    pub keys: Vec<SecretKey>,
    /// Where it is derived from; without it, the secret has to exist.
    pub from: Option<SecretSource>,
}

/// The secret that another one is derived from: the same keys with the same values.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretSource {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub secret: ObjectName,
}

/// What one environment offers.
#[derive(Debug, Clone, PartialEq, Eq, Default, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct Offer {
    /// Processor time of all apps together, in cores. Without it, nothing is summed.
    #[schemars(with = "Option<Room>")]
    pub cpu: Option<At<Room>>,
    /// Memory of all apps together, in bytes. Without it, nothing is summed.
    #[schemars(with = "Option<Room>")]
    pub memory: Option<At<Room>>,
    /// Block storage, for the volume of `resources.disk`.
    pub block: Option<BlockStorage>,
    /// Object storage, for buckets.
    pub object: Option<ObjectStorage>,
}

/// Block storage.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct BlockStorage {
    /// The storage class of every volume: one of `classes`.
    pub default_class: ObjectName,
    /// The storage classes, by name.
    #[schemars(with = "BTreeMap<ObjectName, Option<Room>>", extend("maxProperties" = MAX_CLASSES))]
    pub classes: BTreeMap<ObjectName, At<Option<Room>>>,
}

/// Object storage.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectStorage {
    /// The storage class of a bucket that names none: one of `classes`.
    pub default_class: ObjectName,
    /// The size of a bucket that names none, in bytes.
    pub default_size: Quantity,
    /// The storage classes, by name.
    #[schemars(with = "BTreeMap<ObjectName, Option<Room>>", extend("maxProperties" = MAX_CLASSES))]
    pub classes: BTreeMap<ObjectName, At<Option<Room>>>,
}

/// How much there is, and how much of it is for nobody. Without one, nothing is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct Room {
    /// How much there is.
    pub capacity: Quantity,
    /// What stays free: an amount, or hundredths of the capacity like `10%`.
    #[schemars(default, with = "Option<ReserveForm>")]
    pub reserve: Quantity,
}

impl Room {
    /// What apps may have together.
    #[must_use]
    pub fn usable(&self) -> Quantity {
        self.capacity.saturating_sub(self.reserve)
    }
}

/// A text in an app's overlay that the cluster fills.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct Placeholder {
    /// The text, with `<APP>` for the app's name in capitals and with `_` for `-`.
    #[schemars(regex(pattern = read::PLACEHOLDER))]
    pub name: String,
    /// What it is filled with.
    pub form: Form,
    /// Where it stands, as the whole value and nowhere else.
    pub place: Place,
}

/// What a placeholder is filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Form {
    /// `sha256:…`
    Digest,
    /// `registry:80/app@sha256:…`
    Reference,
}

/// Where a placeholder stands.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case", deny_unknown_fields)]
pub enum Place {
    /// A field of the entry of `images` in the overlay's kustomization.
    Images(ImageField),
    /// The value of the environment variable of this name.
    Env(VariableName),
}

/// A field of an entry of `images`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum ImageField {
    /// `images[].digest`
    Digest,
}

impl Placeholder {
    /// The two of a contract that names none: `__<APP>_IMAGE_DIGEST__` at `images[].digest` of the kustomization, and
    /// `__<APP>_IMAGE__` as the value of `DAGSTER_CURRENT_IMAGE`.
    #[must_use]
    pub fn both() -> Vec<Self> {
        let variable = "DAGSTER_CURRENT_IMAGE".parse().ok();
        let digest = Self {
            name: format!("__{APP}_IMAGE_DIGEST__"),
            form: Form::Digest,
            place: Place::Images(ImageField::Digest),
        };
        let reference = variable.map(|variable| Self {
            name: format!("__{APP}_IMAGE__"),
            form: Form::Reference,
            place: Place::Env(variable),
        });
        [Some(digest), reference].into_iter().flatten().collect()
    }

    /// The text for one app.
    #[must_use]
    pub fn of(&self, app: &AppName) -> String {
        self.name.replace(APP, &app.as_str().to_ascii_uppercase().replace('-', "_"))
    }
}

impl Contract {
    /// Reads a contract; `file` is what findings call it.
    ///
    /// # Errors
    /// Everything that is wrong in the file by itself, at once.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, Vec<Finding>> {
        crate::read::file(file, bytes, read::contract)
    }
}

impl ObjectStorage {
    /// The size and the class that a bucket has here.
    #[must_use]
    pub fn resolve<'b>(
        &'b self,
        bucket: &'b crate::manifest::Bucket,
    ) -> (&'b BucketName, Quantity, &'b ObjectName) {
        let size = bucket.size.as_ref().map_or(self.default_size, |size| size.value);
        let class = bucket.storage_class.as_ref().map_or(&self.default_class, |class| &class.value);
        (&bucket.name.value, size, class)
    }
}

/// The rule of an environment's name, where it is a key.
#[derive(JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[schemars(inline)]
struct EnvironmentKey(#[schemars(regex(pattern = ENVIRONMENT_NAME))] String);

/// The two ways to write a reserve.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum ReserveForm {
    /// An amount.
    Amount(Quantity),
    /// Hundredths of the capacity.
    Percent(#[schemars(regex(pattern = read::PERCENT))] String),
}

#[cfg(test)]
mod tests;
