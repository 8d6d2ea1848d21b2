//! What the cluster provides to apps: one file for each bucket, volume and database that they declare, and the
//! Applications that bring them.
//!
//! ```text
//! buckets/<environment>/<bucket>.yaml       an ObjectBucketClaim; apps that name the bucket share it
//! databases/<environment>/<database>.yaml   a CloudNativePG Database, where the contract names an owner
//! volumes/<environment>/<app>.yaml          a PersistentVolumeClaim
//! applications/<folder>-<environment>.yaml  what brings them, a wave before the apps
//! ```
//!
//! What holds data is never given up by a machine. A file that nobody asks for any more stays as it is and is told;
//! each resource says `Prune=false,Delete=false`; their Applications prune nothing and have no finalizer.
//!
//! A resource appears with the Application of the first app that asks for it. What an app asks for is not known while
//! its declaration cannot be read or the app waits; then what stands for it stays.

mod application;
mod asked;
pub(super) mod claim;

use std::collections::BTreeSet;

use fabrique_core::app::App;
use fabrique_core::id::{AppName, EnvironmentName, RelPath};
use fabrique_declarations::manifest::Bucket;
use fabrique_declarations::name::{DatabaseName, Namespace};
use fabrique_declarations::{At, Contract, Declaration, Quantity, contract};

use super::settings::Destination;
use super::{Ground, Reason, Rendering, Settings, Withheld};
use crate::layout;
use crate::tree::Tree;

use asked::Asker;
use claim::Claim;

/// What an app asks the cluster to provide.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asks {
    /// What findings call its declaration.
    pub file: String,
    /// The size of its volume.
    pub disk: Option<At<Quantity>>,
    /// Its buckets.
    pub buckets: Vec<Bucket>,
    /// Its databases.
    pub databases: Vec<At<DatabaseName>>,
}

impl Asks {
    /// What `declaration` asks for, which findings call `file`.
    #[must_use]
    pub fn of(file: &str, declaration: &Declaration) -> Self {
        Self {
            file: file.to_owned(),
            disk: declaration.resources.disk,
            buckets: declaration.depends_on.buckets.clone(),
            databases: declaration.depends_on.database.clone(),
        }
    }
}

/// What is provided, each in a folder and by an Application of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// ObjectBucketClaims.
    Buckets,
    /// Databases of CloudNativePG.
    Databases,
    /// PersistentVolumeClaims.
    Volumes,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 3] = [Kind::Buckets, Kind::Databases, Kind::Volumes];

    /// Its folder in `cluster/apps`.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Kind::Buckets => "buckets",
            Kind::Databases => "databases",
            Kind::Volumes => "volumes",
        }
    }
}

/// What the contract of a tree says, when it can be read: whoever validates tells why not.
pub(super) fn contract_of(tree: &Tree) -> Option<Contract> {
    let path = RelPath::parse(contract::FILE_NAME).ok()?;
    let bytes = tree.read(&path).ok()??;
    Contract::parse(contract::FILE_NAME, bytes).ok()
}

/// Whether a tree has a contract, whatever it says.
pub(super) fn has_contract(tree: &Tree) -> bool {
    RelPath::parse(contract::FILE_NAME).is_ok_and(|path| tree.content(&path).is_some())
}

/// The claim of an app's volume, in its namespace.
#[must_use]
pub fn volume_name(app: &AppName) -> String {
    format!("{app}-disk")
}

/// What a database's resource is called in the namespace of its PostgreSQL cluster.
#[must_use]
pub fn database_resource(cluster: &str, database: &DatabaseName) -> String {
    claim::database_resource(cluster, database)
}

/// The places of databases that the cluster makes, which their project has to permit.
pub(super) fn database_namespaces(contract: &Contract) -> BTreeSet<&Namespace> {
    let made = contract.databases.values().filter(|database| database.value.owner.is_some());
    made.map(|database| &database.value.namespace).collect()
}

/// Whether the contract provides anything in an environment that is somewhere.
pub(super) fn is_offered(contract: &Contract, settings: &Settings) -> bool {
    let environments = contract.environments.iter();
    let mut here = environments.filter(|(name, _)| settings.destination(name).is_some());
    here.any(|(_, offer)| offer.value.block.is_some() || offer.value.object.is_some())
        || !database_namespaces(contract).is_empty()
}

/// The environment whose provided resource an app's Application would be mistaken for, if any.
pub(super) fn mistaken(settings: &Settings, file: &RelPath) -> Option<(Kind, EnvironmentName)> {
    let all = settings.destinations.iter().flat_map(|place| Kind::ALL.map(|kind| (kind, &place.environment)));
    let mut same = all.filter(|(kind, place)| layout::provided_application(kind.folder(), place) == *file);
    same.next().map(|(kind, place)| (kind, place.clone()))
}

/// Renders what apps ask for in `only`, or everywhere.
pub(super) fn put(ground: &Ground<'_>, only: Option<&EnvironmentName>, out: &mut Rendering) {
    let Some(contract) = &ground.contract else { return };
    let deployed = Deployed { tree: ground.tree, rendered: out.files.keys().cloned().collect() };
    for place in &ground.settings.destinations {
        if only.is_some_and(|only| *only != place.environment) {
            continue;
        }
        let site = Site { ground, contract, deployed: &deployed, place };
        site.put_buckets(out);
        site.put_volumes(out);
        site.put_databases(out);
        for kind in Kind::ALL {
            let home = if kind == Kind::Databases { site.home() } else { place };
            application::put(ground, kind, home, out);
        }
    }
    out.kept.sort();
    out.kept.dedup();
}

/// The environments in which apps have an Application, once what is rendered is written.
struct Deployed<'a> {
    tree: &'a Tree,
    rendered: BTreeSet<RelPath>,
}

impl Deployed<'_> {
    fn has(&self, app: &AppName, environment: &EnvironmentName) -> bool {
        let file = layout::application_of(app, environment);
        self.rendered.contains(&file) || self.tree.content(&file).is_some()
    }
}

/// One environment.
struct Site<'a> {
    ground: &'a Ground<'a>,
    contract: &'a Contract,
    deployed: &'a Deployed<'a>,
    place: &'a Destination,
}

impl<'a> Site<'a> {
    /// The apps that are deployed here, and what they ask for where that is known.
    fn askers(&self, environment: &EnvironmentName) -> Vec<Asker<'a>> {
        let apps = self.ground.registrations.apps.values();
        apps.filter_map(|app| self.asker(app, environment)).collect()
    }

    /// One of them, where it is one.
    fn asker(&self, app: &'a App, environment: &EnvironmentName) -> Option<Asker<'a>> {
        let ground = self.ground;
        let is_registered = app.environments.iter().any(|place| place.name == *environment);
        if !is_registered || !self.deployed.has(&app.name, environment) {
            return None;
        }
        let asks = ground.needs.get(&app.name)?.asks.as_ref()?;
        let first = ground.settings.destination(environment)?.namespaces.first();
        let choice = ground.registrations.choice(&app.name, environment).namespace;
        Some(Asker { app: &app.name, asks, namespace: choice.or_else(|| first.cloned())? })
    }

    /// Where the databases of this environment's cluster lie: in one environment's folder, or two Applications would
    /// each bring the same resource.
    fn home(&self) -> &'a Destination {
        let ground = self.ground;
        let beside = ground.settings.destinations.iter().filter(|place| place.server == self.place.server);
        let mut beside: Vec<&Destination> = beside.collect();
        beside.sort_by_key(|place| {
            let folder = layout::provided_folder(Kind::Databases.folder(), &place.environment);
            (ground.tree.below(&folder).next().is_none(), &place.environment)
        });
        beside.first().copied().unwrap_or(self.place)
    }

    /// Puts a claim, unless a person wrote its file.
    fn put(&self, claim: &Claim, out: &mut Rendering) {
        let file = claim.file();
        if claim::is_by_hand(self.ground.tree, &file) {
            out.withheld.push(Withheld { file, why: Reason::ByHand });
        } else {
            out.files.insert(file, claim.text());
        }
    }
}
