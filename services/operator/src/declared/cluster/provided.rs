//! What is there of databases, secrets, storage classes, buckets and volumes.

use std::collections::{BTreeMap, BTreeSet};

use fabrique_core::id::AppName;
use fabrique_declarations::name::{BucketName, DatabaseName, ObjectName};
use fabrique_declarations::{At, Declaration, Finding, Quantity, contract};
use fabrique_gitops::layout;
use fabrique_gitops::render::{Kind, volume_name};
use fabrique_ports::inventory::{Listed, Seen};

use super::Site;

/// How a claim is called that has what it asks for.
const BOUND: &str = "Bound";
/// How a volume's claim is called that has lost it.
const LOST: &str = "Lost";

impl Site<'_> {
    /// Whether a resource was rendered, so that it is on its way; one that people make has to be there.
    fn is_rendered(&self, kind: Kind, name: &str) -> bool {
        let file = layout::provided_file(kind.folder(), self.environment, name);
        matches!(self.tree.read(&file), Ok(Some(_)))
    }

    /// Whether what is missing comes with the first deployment of an app: rendering is on, and it is not there yet.
    fn is_still_to_come(&self, kind: Kind, name: &str) -> bool {
        self.settings.is_some_and(|settings| settings.destination(self.environment).is_some())
            && !self.is_rendered(kind, name)
    }

    pub(super) fn databases(&self, seen: &Seen, file: &str, declaration: &Declaration) -> Vec<Finding> {
        let (Listed::All(clusters), Listed::All(databases)) = (&seen.clusters, &seen.databases) else {
            return Vec::new();
        };
        let mut findings = Vec::new();
        for wanted in &declaration.depends_on.database {
            let Some(offered) = self.contract.databases.get(&wanted.value).map(|offered| &offered.value)
            else {
                continue;
            };
            let (namespace, cluster) = (offered.namespace.as_str(), offered.cluster.as_str());
            let mut tell = |found: String, remedy: &str| {
                let declared = format!("database {}", wanted.value);
                findings.push(Finding::between(file, wanted.place(), declared, found, remedy));
            };
            let there = clusters.iter().find(|at| (&*at.at.namespace, &*at.at.name) == (namespace, cluster));
            let Some(there) = there else {
                let found = format!("there is no PostgreSQL cluster {namespace}/{cluster}");
                tell(found, "make it, or correct the contract");
                continue;
            };
            let mut named = databases.iter().filter(|database| {
                (&*database.at.namespace, &*database.cluster) == (namespace, cluster)
                    && database.database == wanted.value.as_str()
            });
            match named.next() {
                Some(database) if database.applied == Some(true) => {}
                Some(database) => {
                    let why = database.message.as_deref().unwrap_or("nobody has applied it yet");
                    let found = format!("Database {namespace}/{} is not applied: {why}", database.at.name);
                    tell(found, "look at CloudNativePG's operator");
                }
                None if there.first_database.as_deref() == Some(wanted.value.as_str()) => {}
                None if offered.owner.is_some() => self.missing_database(&wanted.value, &mut tell),
                None => {
                    let found = format!(
                        "{namespace}/{cluster} was not begun with it, and no Database of CloudNativePG names it"
                    );
                    tell(found, "make a Database for it, or name an owner in the contract, then it is made");
                }
            }
        }
        findings
    }

    fn missing_database(&self, name: &DatabaseName, tell: &mut impl FnMut(String, &str)) {
        if !self.is_still_to_come(Kind::Databases, name.as_str()) {
            let remedy = "let Argo CD sync the Application that brings it, or make it";
            tell("no Database of CloudNativePG names it".to_owned(), remedy);
        }
    }

    pub(super) fn secrets(&self, seen: &Seen, file: &str, declaration: &Declaration) -> Vec<Finding> {
        let mut findings = Vec::new();
        for wanted in &declaration.depends_on.secrets {
            let Some(offered) = self.contract.secrets.get(&wanted.value).map(|offered| &offered.value) else {
                continue;
            };
            let namespace = offered.namespace.as_str();
            let Some(Listed::All(secrets)) = seen.secrets.get(namespace) else { continue };
            let there =
                secrets.iter().find(|at| at.at.namespace == namespace && at.at.name == wanted.value.as_str());
            let remedy = match &offered.from {
                Some(from) => {
                    let (namespace, source) = (&from.namespace, &from.secret);
                    format!("`fabrique secrets --only {}` derives it from {namespace}/{source}", wanted.value)
                }
                None => "whoever keeps it has to put it there".to_owned(),
            };
            let declared = format!("secret {}", wanted.value);
            let found = match there {
                None => format!("there is no secret {namespace}/{}", wanted.value),
                Some(secret) => {
                    let keys = offered.keys.iter().map(|key| key.as_str());
                    let missing: Vec<&str> = keys.filter(|key| !secret.keys.contains(*key)).collect();
                    if missing.is_empty() {
                        continue;
                    }
                    format!("{namespace}/{} has no {}", wanted.value, missing.join(", "))
                }
            };
            findings.push(Finding::between(file, wanted.place(), declared, found, remedy));
        }
        findings
    }

    /// Classes that apps use and the cluster does not know, once each.
    pub(super) fn classes(&self, seen: &Seen) -> Vec<Finding> {
        let Listed::All(classes) = &seen.classes else { return Vec::new() };
        let mut used: BTreeMap<ObjectName, (&'static str, Vec<AppName>)> = BTreeMap::new();
        for (app, _, declaration) in self.apps() {
            if let (Some(_), Some(block)) = (&declaration.resources.disk, &self.offer.value.block) {
                let class = block.default_class.clone();
                used.entry(class).or_insert(("block", Vec::new())).1.push(app.clone());
            }
            for bucket in &declaration.depends_on.buckets {
                let Some(object) = &self.offer.value.object else { continue };
                let (_, _, class) = object.resolve(bucket);
                let apps = &mut used.entry(class.clone()).or_insert(("object", Vec::new())).1;
                if apps.last() != Some(app) {
                    apps.push(app.clone());
                }
            }
        }
        let missing =
            used.into_iter().filter(|(name, _)| !classes.iter().any(|class| class.name == name.as_str()));
        missing
            .map(|(name, (kind, apps))| {
                let declared = format!("class {name} of {kind} storage in {}", self.environment);
                let remedy = "make it, or correct the contract";
                Finding::between(
                    contract::FILE_NAME,
                    self.place_of(&name),
                    declared,
                    "the cluster has no such storage class",
                    remedy,
                )
                .concerning(apps)
            })
            .collect()
    }

    /// Where the contract names a class; the environment where it does not.
    fn place_of(&self, class: &ObjectName) -> At<()> {
        let (block, object) = (&self.offer.value.block, &self.offer.value.object);
        let classes = block.iter().map(|block| &block.classes);
        let mut classes = classes.chain(object.iter().map(|object| &object.classes));
        classes.find_map(|classes| classes.get(class)).map_or_else(|| self.offer.place(), At::place)
    }

    pub(super) fn buckets(
        &self,
        seen: &Seen,
        app: &AppName,
        file: &str,
        declaration: &Declaration,
    ) -> Vec<Finding> {
        let Listed::All(claims) = &seen.buckets else { return Vec::new() };
        if self.offer.value.object.is_none() {
            return Vec::new();
        }
        let namespace = self.namespace(app);
        let mut findings = Vec::new();
        for bucket in &declaration.depends_on.buckets {
            let name: &BucketName = &bucket.name.value;
            let mut tell = |found: String, remedy: &str| {
                let declared = format!("bucket {name}");
                findings.push(Finding::between(file, bucket.name.place(), declared, found, remedy));
            };
            let called: Vec<_> = claims.iter().filter(|claim| claim.at.name == name.as_str()).collect();
            let here =
                called.iter().find(|claim| namespace.as_ref().is_none_or(|own| claim.at.namespace == *own));
            match (here, called.first()) {
                (Some(claim), _) if claim.phase == BOUND => {}
                (Some(claim), _) => {
                    let phase = if claim.phase.is_empty() { "not looked at" } else { &claim.phase };
                    let found = format!("its claim {}/{name} is {phase}, not {BOUND}", claim.at.namespace);
                    tell(found, "look at whoever provisions its class");
                }
                (None, Some(elsewhere)) => {
                    let found =
                        format!("its claim is in {}, and so are its credentials", elsewhere.at.namespace);
                    tell(found, "deploy the app there, or use another bucket");
                }
                (None, None) if self.is_still_to_come(Kind::Buckets, name.as_str()) => {}
                (None, None) => {
                    let found = "there is no ObjectBucketClaim of that name".to_owned();
                    tell(found, "let Argo CD sync the Application that brings it, or make it");
                }
            }
        }
        findings
    }

    pub(super) fn volume(
        &self,
        seen: &Seen,
        app: &AppName,
        file: &str,
        declaration: &Declaration,
    ) -> Option<Finding> {
        let (disk, _) = declaration.resources.disk.as_ref().zip(self.offer.value.block.as_ref())?;
        let (Listed::All(volumes), Some(namespace)) = (&seen.volumes, self.namespace(app)) else {
            return None;
        };
        // Whoever renders no Applications makes volumes with the app, under any name.
        self.settings?;
        let name = volume_name(app);
        let there = volumes.iter().find(|at| at.at.namespace == namespace && at.at.name == name);
        let found = match there {
            // One that waits for its first pod is well.
            Some(volume) if volume.phase != LOST => return None,
            Some(_) => format!("its claim {namespace}/{name} has lost its volume"),
            None if self.is_still_to_come(Kind::Volumes, app.as_str()) => return None,
            None => format!("there is no claim {namespace}/{name}"),
        };
        let remedy = "look at whoever provisions its class, and at the Application that brings it";
        let declared = format!("disk {}", disk.value);
        Some(Finding::between(file, disk.place(), declared, found, remedy))
    }

    /// The apps with storage of a class that Ceph is behind.
    pub(super) fn on_ceph(&self, seen: &Seen) -> Vec<AppName> {
        let behind: Vec<&str> = seen
            .classes
            .items()
            .iter()
            .filter(|class| class.ceph.is_some())
            .map(|class| &*class.name)
            .collect();
        let claims = super::used::claims(self).into_iter();
        let on_ceph =
            claims.filter(|claim| claim.class().is_some_and(|class| behind.contains(&class.as_str())));
        let apps: BTreeSet<AppName> = on_ceph.flat_map(|claim| claim.apps).collect();
        apps.into_iter().collect()
    }

    /// What is declared and not there yet, against what Ceph has left. Replicas are not known here: what does not fit
    /// without them does not fit.
    pub(super) fn ceph(&self, seen: &Seen) -> Vec<Finding> {
        let usage = super::used::usage(self, seen);
        let mut findings = Vec::new();
        for ceph in seen.ceph.items() {
            let behind = |class: &ObjectName| {
                let mut classes = seen.classes.items().iter();
                classes.any(|at| at.name == class.as_str() && at.ceph.as_ref() == Some(&ceph.at.namespace))
            };
            let (mut more, mut apps) = (Quantity::default(), Vec::new());
            for claim in super::used::claims(self) {
                if claim.class().is_some_and(&behind) {
                    let missing = claim.beyond(&usage, self.environment);
                    more = more + missing;
                    apps.extend((!missing.is_zero()).then_some(claim.apps).into_iter().flatten());
                }
            }
            apps.sort();
            apps.dedup();
            let Some(left) = ceph.bytes_left.map(Quantity::whole).filter(|left| more > *left) else {
                continue;
            };
            let declared = format!("{} more of Ceph's storage in {}", more.rounded(), self.environment);
            let health = ceph.health.as_deref().unwrap_or("health unknown");
            let found =
                format!("{}/{} reports {} left ({health})", ceph.at.namespace, ceph.at.name, left.rounded());
            findings.push(self.here(declared, &found, "declare less, or add disks").concerning(apps));
        }
        findings
    }
}
