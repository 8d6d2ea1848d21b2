//! What is used at present, by whom, and how much there really is.

use std::collections::{BTreeMap, BTreeSet};

use fabrique_core::id::{AppName, EnvironmentName};
use fabrique_declarations::Quantity;
use fabrique_declarations::judge::{Claimant, Store, Usage, Used};
use fabrique_declarations::name::{BucketName, ObjectName};
use fabrique_gitops::render::volume_name;
use fabrique_ports::inventory::{Container, Listed, Pod, Seen};

use super::Site;

/// What an app claims of a class of storage.
pub(super) struct StorageClaim {
    store: Store,
    claimant: Claimant,
    size: Quantity,
    pub(super) apps: BTreeSet<AppName>,
}

impl StorageClaim {
    pub(super) fn class(&self) -> Option<&ObjectName> {
        match &self.store {
            Store::Block(class) | Store::Object(class) => Some(class),
            Store::Cpu | Store::Memory => None,
        }
    }

    /// What of it is not there yet.
    pub(super) fn beyond(&self, usage: &Usage, environment: &EnvironmentName) -> Quantity {
        let used = usage.stores.get(&(environment.clone(), self.store.clone()));
        let own = used.and_then(|used| used.own.get(&self.claimant)).copied().unwrap_or_default();
        self.size.saturating_sub(own)
    }
}

/// Every claim of storage, a shared bucket once.
pub(super) fn claims(site: &Site<'_>) -> Vec<StorageClaim> {
    let mut all: BTreeMap<(Store, Claimant), (Quantity, BTreeSet<AppName>)> = BTreeMap::new();
    let mut add = |store, claimant, size: Quantity, app: &AppName| {
        let claim = all.entry((store, claimant)).or_default();
        claim.0 = claim.0.max(size);
        claim.1.insert(app.clone());
    };
    for (app, _, declaration) in site.apps() {
        if let (Some(disk), Some(block)) = (&declaration.resources.disk, &site.offer.value.block) {
            add(Store::Block(block.default_class.clone()), Claimant::App(app.clone()), disk.value, app);
        }
        for bucket in &declaration.depends_on.buckets {
            let Some(object) = &site.offer.value.object else { continue };
            let (name, size, class) = object.resolve(bucket);
            add(Store::Object(class.clone()), Claimant::Bucket(name.clone()), size, app);
        }
    }
    let claims = all.into_iter();
    claims.map(|((store, claimant), (size, apps))| StorageClaim { store, claimant, size, apps }).collect()
}

/// What is used of everything in this environment.
pub(in crate::declared) fn usage(site: &Site<'_>, seen: &Seen) -> Usage {
    let mut usage = Usage::default();
    compute(site, seen, &mut usage);
    storage(site, seen, &mut usage);
    usage
}

fn used<'u>(usage: &'u mut Usage, site: &Site<'_>, store: Store) -> &'u mut Used {
    usage.stores.entry((site.environment.clone(), store)).or_default()
}

fn add(used: &mut Used, amount: Quantity, owner: Option<Claimant>) {
    used.total = used.total + amount;
    if let Some(owner) = owner {
        let own = used.own.entry(owner).or_default();
        *own = *own + amount;
    }
}

/// An amount of the cluster; what is no quantity asks for nothing that can be summed.
fn amount(text: Option<&String>) -> Quantity {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Processor time and memory: what the usable nodes have, and what pods on them, or without one yet, ask for.
fn compute(site: &Site<'_>, seen: &Seen, usage: &mut Usage) {
    let (Listed::All(nodes), Listed::All(pods)) = (&seen.nodes, &seen.pods) else { return };
    let usable = || nodes.iter().filter(|node| node.is_usable);
    let names: BTreeSet<&str> = usable().map(|node| node.name.as_str()).collect();
    let cpu = usable().map(|node| amount(node.cpu.as_ref())).sum();
    let memory = usable().map(|node| amount(node.memory.as_ref())).sum();
    used(usage, site, Store::Cpu).there = Some(cpu);
    used(usage, site, Store::Memory).there = Some(memory);
    for pod in pods.iter().filter(|pod| pod.node.as_ref().is_none_or(|node| names.contains(node.as_str()))) {
        let owner = owner(site, pod).map(Claimant::App);
        add(used(usage, site, Store::Cpu), asked(pod, |container| container.cpu.as_ref()), owner.clone());
        add(used(usage, site, Store::Memory), asked(pod, |container| container.memory.as_ref()), owner);
    }
}

/// What a pod asks for: its containers together, or one that runs before them where that asks for more.
fn asked(pod: &Pod, of: impl Fn(&Container) -> Option<&String>) -> Quantity {
    let (before, together): (Vec<&Container>, Vec<&Container>) =
        pod.containers.iter().partition(|container| container.is_before);
    let together = together.into_iter().map(|container| amount(of(container))).sum();
    let before = before.into_iter().map(|container| amount(of(container))).max().unwrap_or_default();
    before.max(together)
}

/// The app that a pod is of: one of its containers runs the app's image.
fn owner(site: &Site<'_>, pod: &Pod) -> Option<AppName> {
    let runs = |image: &str| {
        pod.containers.iter().any(|container| {
            container
                .image
                .strip_prefix(image)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['@', ':']))
        })
    };
    let here = site.registrations.apps.values().filter(|app| {
        let namespace = site.namespace(&app.name);
        let in_place = namespace.is_none_or(|namespace| namespace == pod.namespace);
        in_place && app.environments.iter().any(|place| place.name == *site.environment)
    });
    let mut running = here.filter(|app| runs(&app.image.to_string()));
    running.next().map(|app| app.name.clone())
}

/// Volumes and buckets, by class.
fn storage(site: &Site<'_>, seen: &Seen, usage: &mut Usage) {
    let volumes: BTreeMap<(String, String), &AppName> = site
        .registrations
        .apps
        .keys()
        .filter_map(|app| Some(((site.namespace(app)?, volume_name(app)), app)))
        .collect();
    for volume in seen.volumes.items() {
        let Some(class) = volume.class.as_ref().and_then(|class| class.parse::<ObjectName>().ok()) else {
            continue;
        };
        let own = volumes.get(&(volume.at.namespace.clone(), volume.at.name.clone()));
        let owner = own.map(|app| Claimant::App((*app).clone()));
        add(used(usage, site, Store::Block(class)), amount(volume.size.as_ref()), owner);
    }
    for bucket in seen.buckets.items() {
        let Some(class) = bucket.class.as_ref().and_then(|class| class.parse::<ObjectName>().ok()) else {
            continue;
        };
        let owner = bucket.at.name.parse::<BucketName>().ok().map(Claimant::Bucket);
        add(used(usage, site, Store::Object(class)), amount(bucket.size.as_ref()), owner);
    }
}
