//! Reading a declaration.

use std::collections::BTreeSet;

use fabrique_yaml::{Fields, Node, Reader};

use super::{Bucket, Declaration, DependsOn, MAX_ITEMS, MAX_MIGRATIONS, Resources};
use crate::At;
use crate::read::{Unit, at, list, optional, optional_amount, word};

const FIELDS: [&str; 6] = ["codeLocation", "ready", "revision", "contractVersion", "resources", "dependsOn"];

pub(super) fn declaration(reader: &Reader<'_>, document: &Node) -> Option<Declaration> {
    let root = reader.mapping(document, "the declaration", &FIELDS)?;
    let code_location = root.required("codeLocation").and_then(|node| at(reader, node, "codeLocation"));
    let ready = root.required("ready").and_then(|node| {
        word(reader, node, "ready", &[("true", true), ("false", false)]).map(|ready| At::node(ready, node))
    });
    let revision = optional(&root, "revision", "revision");
    let version = root.required("contractVersion").and_then(|node| at(reader, node, "contractVersion"));
    let resources = match root.get("resources") {
        Some(node) => resources(reader, node),
        None => Some(Resources::default()),
    };
    let depends_on = match root.get("dependsOn") {
        Some(node) => depends_on(reader, node),
        None => Some(DependsOn::default()),
    };
    Some(Declaration {
        code_location: code_location?,
        ready: ready?,
        revision: revision?,
        contract_version: version?,
        resources: resources?,
        depends_on: depends_on?,
    })
}

fn resources(reader: &Reader<'_>, node: &Node) -> Option<Resources> {
    let fields = reader.mapping(node, "resources", &["cpu", "memory", "disk"])?;
    let cpu = optional_amount(&fields, "cpu", "resources.cpu", Unit::Cores);
    let memory = optional_amount(&fields, "memory", "resources.memory", Unit::Bytes);
    let disk = optional_amount(&fields, "disk", "resources.disk", Unit::Bytes);
    Some(Resources { cpu: cpu?, memory: memory?, disk: disk? })
}

fn depends_on(reader: &Reader<'_>, node: &Node) -> Option<DependsOn> {
    let known = ["codeLocations", "database", "secrets", "buckets", "migrations"];
    let fields = reader.mapping(node, "dependsOn", &known)?;
    let code_locations = list(&fields, "codeLocations", "dependsOn.codeLocations", MAX_ITEMS);
    let database = list(&fields, "database", "dependsOn.database", MAX_ITEMS);
    let secrets = list(&fields, "secrets", "dependsOn.secrets", MAX_ITEMS);
    let buckets = buckets(&fields);
    let migrations = list(&fields, "migrations", "dependsOn.migrations", MAX_MIGRATIONS);
    Some(DependsOn {
        code_locations: code_locations?,
        database: database?,
        secrets: secrets?,
        buckets: buckets?,
        migrations: migrations?,
    })
}

fn buckets(fields: &Fields<'_>) -> Option<Vec<Bucket>> {
    let Some(node) = fields.get("buckets") else { return Some(Vec::new()) };
    let reader = fields.reader;
    let (mut buckets, mut seen, mut right) = (Vec::new(), BTreeSet::new(), true);
    for item in reader.list(node, "dependsOn.buckets", MAX_ITEMS) {
        let Some(bucket) = bucket(reader, item) else {
            right = false;
            continue;
        };
        if !seen.insert(bucket.name.value.clone()) {
            reader.report(item, format!("dependsOn.buckets names {} twice", bucket.name.value), "keep one");
        }
        buckets.push(bucket);
    }
    right.then_some(buckets)
}

fn bucket(reader: &Reader<'_>, node: &Node) -> Option<Bucket> {
    if node.text().is_some() {
        let name = at(reader, node, "dependsOn.buckets")?;
        return Some(Bucket { name, size: None, storage_class: None });
    }
    let fields = reader.mapping(node, "a bucket", &["name", "size", "storageClass"])?;
    let name = fields.required("name").and_then(|node| at(reader, node, "dependsOn.buckets.name"));
    let size = optional_amount(&fields, "size", "dependsOn.buckets.size", Unit::Bytes);
    let storage_class = optional(&fields, "storageClass", "dependsOn.buckets.storageClass");
    Some(Bucket { name: name?, size: size?, storage_class: storage_class? })
}
