//! `code-location.manifest.yaml`: what an app brings and needs, in its own repository.

mod read;

use fabrique_core::id::AppName;
use schemars::JsonSchema;

use crate::name::{
    APP_NAME, BucketName, ContractVersion, DatabaseName, MigrationFile, ObjectName, RevisionPrefix,
};
use crate::{At, Finding, Quantity};

/// How the file is called. Where it lies is `source.declaration` of the app's registration.
pub const FILE_NAME: &str = "code-location.manifest.yaml";

/// The most items of a list.
pub(crate) const MAX_ITEMS: usize = 64;
/// The most migrations of an app: a ConfigMap that holds them has 1 MiB.
pub(crate) const MAX_MIGRATIONS: usize = 500;

/// What an app declares. Several apps of one repository have one file each.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(title = "code-location.manifest.yaml", rename_all = "camelCase", deny_unknown_fields)]
pub struct Declaration {
    /// The app's name, as in its registration.
    #[schemars(with = "String", regex(pattern = APP_NAME))]
    pub code_location: At<AppName>,
    /// Whether the app attests that this revision is merged and tested. While it says false, nothing of the app is
    /// changed and no app that depends on it either; nothing is deleted.
    #[schemars(with = "bool")]
    pub ready: At<bool>,
    /// The revision to build, by its beginning: it has to be that of exactly one ancestor of the branch's head.
    /// Without it, the head is built.
    #[schemars(with = "Option<RevisionPrefix>")]
    pub revision: Option<At<RevisionPrefix>>,
    /// The version of the cluster's contract that this file was written against.
    #[schemars(with = "ContractVersion")]
    pub contract_version: At<ContractVersion>,
    /// What the app's pods need of a node, and the volume that is attached to them.
    #[schemars(default)]
    pub resources: Resources,
    /// What has to be there before the app is.
    #[schemars(default)]
    pub depends_on: DependsOn,
}

/// What the app's pods need.
#[derive(Debug, Clone, PartialEq, Eq, Default, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    /// Processor time, in cores; at least 1m.
    #[schemars(with = "Option<Quantity>")]
    pub cpu: Option<At<Quantity>>,
    /// Memory, in bytes.
    #[schemars(with = "Option<Quantity>")]
    pub memory: Option<At<Quantity>>,
    /// The size of a volume of the environment's class of block storage, in bytes.
    #[schemars(with = "Option<Quantity>")]
    pub disk: Option<At<Quantity>>,
}

/// What the app depends on. The order of a list says nothing, but for the migrations.
#[derive(Debug, Clone, PartialEq, Eq, Default, JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
pub struct DependsOn {
    /// Apps that are deployed and ready before this one.
    #[schemars(with = "Vec<CodeLocation>", default, length(max = MAX_ITEMS), extend("uniqueItems" = true))]
    pub code_locations: Vec<At<AppName>>,
    /// Databases of the contract.
    #[schemars(with = "Vec<DatabaseName>", default, length(max = MAX_ITEMS), extend("uniqueItems" = true))]
    pub database: Vec<At<DatabaseName>>,
    /// Secrets of the contract.
    #[schemars(with = "Vec<ObjectName>", default, length(max = MAX_ITEMS), extend("uniqueItems" = true))]
    pub secrets: Vec<At<ObjectName>>,
    /// Buckets of object storage. A bare name has the contract's size and class.
    #[schemars(with = "Vec<BucketForm>", default, length(max = MAX_ITEMS), extend("uniqueItems" = true))]
    pub buckets: Vec<Bucket>,
    /// Files of the registration's folder of migrations, in the order in which they are applied.
    #[schemars(with = "Vec<MigrationFile>", default, length(max = MAX_MIGRATIONS), extend("uniqueItems" = true))]
    pub migrations: Vec<At<MigrationFile>>,
}

/// One bucket. Two apps that name the same one share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Its name.
    pub name: At<BucketName>,
    /// Its size in bytes; the contract's default when absent.
    pub size: Option<At<Quantity>>,
    /// Its class of object storage; the contract's default when absent.
    pub storage_class: Option<At<ObjectName>>,
}

impl Declaration {
    /// Reads a declaration; `file` is what findings call it.
    ///
    /// # Errors
    /// Everything that is wrong in the file by itself, at once.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, Vec<Finding>> {
        crate::read::file(file, bytes, read::declaration)
    }
}

/// The rule of an app's name, where it is an item of a list.
#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct CodeLocation(#[schemars(regex(pattern = APP_NAME))] String);

/// The two ways to write a bucket.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum BucketForm {
    /// Its name.
    Name(BucketName),
    /// Its name, with what differs from the contract's defaults.
    Object(BucketObject),
}

/// A bucket with what differs from the contract's defaults.
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct BucketObject {
    /// Its name.
    name: BucketName,
    /// Its size, in bytes.
    size: Option<Quantity>,
    /// Its class of object storage.
    storage_class: Option<ObjectName>,
}

#[cfg(test)]
pub(crate) mod tests;
