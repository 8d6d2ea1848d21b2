//! What apps ask for against what stands: which claims there are afterwards, and what a person has to decide.

use std::collections::{BTreeMap, BTreeSet};

use fabrique_core::id::{AppName, EnvironmentName};
use fabrique_declarations::manifest::Bucket;
use fabrique_declarations::name::{DatabaseName, ObjectName};
use fabrique_declarations::{At, Quantity};
use fabrique_yaml::Finding;

use super::claim::{self, Claim, What};
use super::{Asks, Kind, Site};
use crate::layout;
use crate::render::{Ground, Rendering};

/// An app that is deployed in an environment.
pub(super) struct Asker<'a> {
    pub(super) app: &'a AppName,
    pub(super) asks: &'a Asks,
    pub(super) namespace: String,
}

/// One app's way to ask for a bucket.
struct Wanted<'a> {
    asker: &'a Asker<'a>,
    bucket: &'a Bucket,
    size: Quantity,
    class: ObjectName,
}

impl Wanted<'_> {
    fn tell(&self, environment: &EnvironmentName, found: &str, remedy: &str) -> Finding {
        let declared = format!("bucket {} with {} of {}", self.bucket.name.value, self.size, self.class);
        let place = (self.bucket.name.line, self.bucket.name.column);
        told(&self.asker.asks.file, place, (&declared, environment), found, remedy)
    }
}

fn told(
    file: &str,
    (line, column): (usize, usize),
    (declared, environment): (&str, &EnvironmentName),
    found: &str,
    remedy: &str,
) -> Finding {
    let what = format!("{declared} is declared in {environment}, {found}");
    Finding { file: file.to_owned(), line, column, what, remedy: remedy.to_owned() }
}

/// The names that a person has to agree on.
fn names<'n>(apps: impl IntoIterator<Item = &'n AppName>) -> String {
    apps.into_iter().map(AppName::as_str).collect::<Vec<_>>().join(", ")
}

/// The apps of which it is not known what they ask for, among those that a claim stands for.
fn unknown<'c>(ground: &Ground<'_>, claim: &'c Claim) -> BTreeSet<&'c AppName> {
    let apps = claim.apps.iter();
    apps.filter(|app| match ground.needs.get(*app) {
        Some(needs) => needs.asks.is_none(),
        // One whose registration cannot be read is registered.
        None => ground.tree.content(&layout::registration_of(app)).is_some(),
    })
    .collect()
}

impl Site<'_> {
    /// One claim for each bucket, shared by the apps that name it.
    pub(super) fn put_buckets(&self, out: &mut Rendering) {
        let environment = &self.place.environment;
        let Some(offer) = self.contract.environments.get(environment) else { return };
        let Some(object) = &offer.value.object else { return };
        let askers = self.askers(environment);
        let mut wanted: BTreeMap<&str, Vec<Wanted<'_>>> = BTreeMap::new();
        for asker in &askers {
            for bucket in &asker.asks.buckets {
                let (name, size, class) = object.resolve(bucket);
                let class = class.clone();
                wanted.entry(name.as_str()).or_default().push(Wanted { asker, bucket, size, class });
            }
        }
        let mut standing: BTreeMap<String, Claim> = BTreeMap::new();
        for (_, claim) in claim::standing(self.ground.tree, Kind::Buckets, environment) {
            let What::Bucket { name, .. } = &claim.what else { continue };
            standing.insert(name.clone(), claim);
        }
        let stands: Vec<String> = standing.keys().cloned().collect();
        let names: BTreeSet<&str> = stands.iter().map(String::as_str).chain(wanted.keys().copied()).collect();
        for name in names {
            let mut wanted = wanted.remove(name).unwrap_or_default();
            if let (Some(first), false) = (wanted.first(), standing.contains_key(name))
                && let Some(other) = self.elsewhere(name)
            {
                let found = format!("and in {other}, on the same API server");
                let remedy = "call it otherwise there, or keep one of the two: a bucket's name is one for all environments";
                out.findings.push(first.tell(environment, &found, remedy));
                continue;
            }
            match self.bucket(name, &mut wanted, standing.remove(name).as_ref()) {
                Ok(Some(claim)) => self.put(&claim, out),
                Ok(None) => out.kept.push(layout::provided_file(Kind::Buckets.folder(), environment, name)),
                Err(findings) => out.findings.extend(findings),
            }
        }
    }

    /// The other environments of the same API server.
    fn beside(&self) -> impl Iterator<Item = &EnvironmentName> {
        let all = self.ground.settings.destinations.iter();
        let beside = all
            .filter(|place| place.server == self.place.server && place.environment != self.place.environment);
        beside.map(|place| &place.environment)
    }

    /// One of them that has, or asks for, a bucket of this name.
    fn elsewhere(&self, name: &str) -> Option<&EnvironmentName> {
        self.beside().find(|other| {
            let is_offered =
                self.contract.environments.get(other).is_some_and(|offer| offer.value.object.is_some());
            let file = layout::provided_file(Kind::Buckets.folder(), other, name);
            let asked = || {
                let askers = self.askers(other);
                askers
                    .iter()
                    .any(|asker| asker.asks.buckets.iter().any(|bucket| bucket.name.value.as_str() == name))
            };
            self.ground.tree.content(&file).is_some() || (is_offered && asked())
        })
    }

    /// The claim of a bucket, or nothing where nobody asks for it any more.
    fn bucket(
        &self,
        name: &str,
        wanted: &mut [Wanted<'_>],
        standing: Option<&Claim>,
    ) -> Result<Option<Claim>, Vec<Finding>> {
        let environment = &self.place.environment;
        if let Some(What::Bucket { class, .. }) = standing.map(|claim| &claim.what) {
            // A default that changes concerns new buckets.
            wanted.iter_mut().filter(|wanted| wanted.bucket.storage_class.is_none()).for_each(|wanted| {
                wanted.class = class.clone();
            });
        }
        let unknown = standing.map(|claim| unknown(self.ground, claim)).unwrap_or_default();
        let mut apps: BTreeSet<AppName> = unknown.iter().map(|app| (*app).clone()).collect();
        let Some(first) = wanted.first() else {
            return Ok(standing.cloned().filter(|_| !apps.is_empty()).map(|claim| Claim { apps, ..claim }));
        };
        let found = self.disagreements(wanted, standing, &unknown);
        if !found.is_empty() {
            return Err(found);
        }
        apps.extend(wanted.iter().map(|wanted| wanted.asker.app.clone()));
        if name.parse::<ObjectName>().is_err() {
            let found = "no resource of Kubernetes can be called so";
            return Err(vec![first.tell(environment, found, "write no dot beside another, or a hyphen")]);
        }
        let what = What::Bucket { name: name.to_owned(), class: first.class.clone(), size: first.size };
        let namespace = first.asker.namespace.clone();
        Ok(Some(Claim { environment: environment.clone(), namespace, apps, what }))
    }

    /// What keeps these apps from having one bucket.
    fn disagreements(
        &self,
        wanted: &[Wanted<'_>],
        standing: Option<&Claim>,
        unknown: &BTreeSet<&AppName>,
    ) -> Vec<Finding> {
        let environment = &self.place.environment;
        let mut findings = Vec::new();
        for one in wanted {
            let differs = |other: &&Wanted<'_>| (other.size, &other.class) != (one.size, &one.class);
            if let Some(other) = wanted.iter().find(differs) {
                let found = format!("{} asks for {} of {}", other.asker.app, other.size, other.class);
                findings.push(one.tell(environment, &found, "agree on one size and one class"));
                continue;
            }
            if let Some(other) = wanted.iter().find(|other| other.asker.namespace != one.asker.namespace) {
                let found =
                    format!("{} shares it from the namespace {}", other.asker.app, other.asker.namespace);
                let remedy = "deploy both into one namespace: its credentials are in one";
                findings.push(one.tell(environment, &found, remedy));
                continue;
            }
            let Some(claim) = standing else { continue };
            let What::Bucket { class, size, .. } = &claim.what else { continue };
            let stands = format!("it is there with {size} of {class} in the namespace {}", claim.namespace);
            if one.class != *class {
                let remedy = "a bucket keeps its class: copy what is in it to another one";
                findings.push(one.tell(environment, &stands, remedy));
            } else if one.asker.namespace != claim.namespace {
                let remedy = "a bucket keeps its namespace: its credentials are there";
                findings.push(one.tell(environment, &stands, remedy));
            } else if one.size != *size && unknown.iter().any(|app| *app != one.asker.app) {
                let found = format!("{stands} for {}", names(unknown.iter().copied()));
                let remedy =
                    "agree with them, then let `fabrique render` change it: it reads what all declare";
                findings.push(one.tell(environment, &found, remedy));
            }
        }
        findings
    }

    /// One claim for each app with a disk.
    pub(super) fn put_volumes(&self, out: &mut Rendering) {
        let environment = &self.place.environment;
        let Some(offer) = self.contract.environments.get(environment) else { return };
        let Some(block) = &offer.value.block else { return };
        let mut standing: BTreeMap<AppName, Claim> = BTreeMap::new();
        for (file, claim) in claim::standing(self.ground.tree, Kind::Volumes, environment) {
            let What::Volume { app, .. } = &claim.what else { continue };
            let is_known = unknown(self.ground, &claim).is_empty();
            standing.insert(app.clone(), claim);
            if is_known {
                out.kept.push(file);
            }
        }
        for asker in self.askers(environment) {
            let Some(disk) = &asker.asks.disk else { continue };
            let stands = standing.get(asker.app);
            if stands.is_none()
                && let Some(other) = self.volume_elsewhere(&asker)
            {
                let declared = format!("a volume of {} in the namespace {}", disk.value, asker.namespace);
                let found = format!("and in {other}, in that namespace of the same API server");
                let remedy = "deploy one of the two into another namespace: one claim cannot be two volumes";
                let place = (disk.line, disk.column);
                out.findings.push(told(&asker.asks.file, place, (&declared, environment), &found, remedy));
                continue;
            }
            match self.volume(&asker, disk, stands, &block.default_class) {
                Ok(claim) => {
                    out.kept.retain(|kept| *kept != claim.file());
                    self.put(&claim, out);
                }
                Err(finding) => {
                    out.kept.retain(|kept| stands.is_none_or(|stands| *kept != stands.file()));
                    out.findings.push(finding);
                }
            }
        }
    }

    /// Another environment of the same API server in which the app has, or asks for, its volume in the same namespace:
    /// it is called after the app.
    fn volume_elsewhere(&self, asker: &Asker<'_>) -> Option<&EnvironmentName> {
        let registered = self.ground.registrations.apps.get(asker.app);
        self.beside().find(|other| {
            let stands = claim::of_volume(self.ground.tree, other, asker.app)
                .is_some_and(|claim| claim.namespace == asker.namespace);
            let offer = self.contract.environments.get(other);
            let is_offered = offer.is_some_and(|offer| offer.value.block.is_some());
            let asked = || {
                let there = registered.and_then(|app| self.asker(app, other));
                there.is_some_and(|asks| asks.asks.disk.is_some() && asks.namespace == asker.namespace)
            };
            stands || (is_offered && asked())
        })
    }

    fn volume(
        &self,
        asker: &Asker<'_>,
        disk: &At<Quantity>,
        standing: Option<&Claim>,
        default_class: &ObjectName,
    ) -> Result<Claim, Finding> {
        let environment = &self.place.environment;
        let (app, size, namespace) = (asker.app.clone(), disk.value, asker.namespace.clone());
        let declared = format!("a volume of {size} in the namespace {namespace}");
        let refuse = |found: &str, remedy: &str| {
            let place = (disk.line, disk.column);
            Err(told(&asker.asks.file, place, (&declared, environment), found, remedy))
        };
        let mut class = default_class.clone();
        if let Some(claim) = standing
            && let What::Volume { class: stands, size: before, .. } = &claim.what
        {
            // A volume keeps its class; a default that changes concerns new ones.
            class = stands.clone();
            if claim.namespace != namespace {
                let found = format!("it is there in the namespace {}", claim.namespace);
                return refuse(&found, "a volume keeps its namespace: copy what is in it, or deploy there");
            }
            if *before > size {
                return refuse(&format!("it has {before}"), "a volume never shrinks: declare at least that");
            }
        }
        let apps = BTreeSet::from([app.clone()]);
        let what = What::Volume { app, class, size };
        Ok(Claim { environment: environment.clone(), namespace, apps, what })
    }

    /// One resource for each database that the contract has made, once for each cluster.
    pub(super) fn put_databases(&self, out: &mut Rendering) {
        let home = &self.home().environment;
        let mut wanted: BTreeMap<&DatabaseName, BTreeSet<AppName>> = BTreeMap::new();
        let beside = self.ground.settings.destinations.iter();
        for place in beside.filter(|place| place.server == self.place.server) {
            for asker in self.askers(&place.environment) {
                for database in &asker.asks.databases {
                    wanted.entry(&database.value).or_default().insert(asker.app.clone());
                }
            }
        }
        for (file, claim) in claim::standing(self.ground.tree, Kind::Databases, home) {
            let What::Database { name, .. } = &claim.what else { continue };
            let unknown: BTreeSet<AppName> = unknown(self.ground, &claim).into_iter().cloned().collect();
            let known = self.contract.databases.get_key_value(name);
            match (known, wanted.contains_key(name) || !unknown.is_empty()) {
                (Some((name, _)), true) => wanted.entry(name).or_default().extend(unknown),
                // What the contract does not know any more, a person decides about.
                (None, _) | (_, false) => out.kept.push(file),
            }
        }
        for (name, apps) in wanted {
            let Some(database) = self.contract.databases.get(name).map(|database| &database.value) else {
                continue;
            };
            let Some(owner) = database.owner.clone() else { continue };
            let what = What::Database { name: name.clone(), owner, cluster: database.cluster.clone() };
            let namespace = database.namespace.as_str().to_owned();
            self.put(&Claim { environment: home.clone(), namespace, apps, what }, out);
        }
    }
}
