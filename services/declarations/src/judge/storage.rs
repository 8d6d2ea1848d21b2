//! All apps together: what they declare fits into what there is.

use std::collections::BTreeMap;

use fabrique_core::id::{AppName, EnvironmentName};

use super::Declared;
use super::needs::listed;
use crate::contract::{Offer, Room};
use crate::manifest::Bucket;
use crate::name::{BucketName, ObjectName};
use crate::{At, Contract, Finding, Quantity};

/// What is summed by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    /// Processor time, in cores.
    Cpu,
    /// Memory, in bytes.
    Memory,
    /// A class of block storage, in bytes.
    Block(ObjectName),
    /// A class of object storage, in bytes.
    Object(ObjectName),
}

/// Who has a part of a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claimant {
    /// An app: its pods, or its volume.
    App(AppName),
    /// A bucket, however many apps share it.
    Bucket(BucketName),
}

/// What is used at present, by store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// By environment and store; nothing is used of a store that is not here.
    pub stores: BTreeMap<(EnvironmentName, Store), Used>,
}

/// What is used of one store at present.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Used {
    /// By everybody, apps included.
    pub total: Quantity,
    /// The parts of it that claimants have already: they stay theirs and are not asked for a second time.
    pub own: BTreeMap<Claimant, Quantity>,
    /// How much there really is, where that is known: less than the contract says counts.
    pub there: Option<Quantity>,
}

/// What is asked of one store, and by which apps.
#[derive(Default)]
struct Claims<'s> {
    amounts: BTreeMap<Claimant, Quantity>,
    apps: BTreeMap<&'s AppName, Quantity>,
}

impl<'s> Claims<'s> {
    fn add(&mut self, claimant: Claimant, app: &'s AppName, amount: Quantity) {
        let claim = self.amounts.entry(claimant).or_default();
        *claim = (*claim).max(amount);
        let told = self.apps.entry(app).or_default();
        *told = *told + amount;
    }

    /// What claimants and everybody else have together once everything declared is there.
    fn needed(&self, used: &Used) -> Quantity {
        let present = |claimant: &Claimant| used.own.get(claimant).copied().unwrap_or_default();
        let counted: Quantity = self.amounts.keys().map(present).sum();
        let others = used.total.saturating_sub(counted);
        others + self.amounts.iter().map(|(claimant, amount)| (*amount).max(present(claimant))).sum()
    }
}

pub(super) fn findings(
    contract: &Contract,
    contract_file: &str,
    declared: &Declared<'_>,
    usage: &Usage,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (environment, offer) in &contract.environments {
        let (place, offer) = (offer.place(), &offer.value);
        findings.extend(disagreements(environment, offer, declared));
        for (store, claims) in claims(environment, offer, declared) {
            let nothing = Used::default();
            let used = usage.stores.get(&(environment.clone(), store.clone())).unwrap_or(&nothing);
            let Some((room, whose)) = limit(room(offer, &store), used.there, place) else { continue };
            let needed = claims.needed(used);
            if needed > room.value.usable() {
                let needed = (needed, !used.total.is_zero());
                findings.push(overfull(contract_file, environment, &store, &(room, whose), needed, &claims));
            }
        }
    }
    findings
}

/// The apps that run in `environment`.
fn in_environment<'d, 's>(
    environment: &'d EnvironmentName,
    declared: &'d Declared<'s>,
) -> impl Iterator<Item = (&'s AppName, &'s super::Subject, &'s crate::Declaration)> {
    let here = declared.iter().filter(move |(_, (subject, _))| subject.environments.contains(environment));
    here.map(|(app, (subject, declaration))| (*app, *subject, *declaration))
}

fn claims<'s>(
    environment: &EnvironmentName,
    offer: &Offer,
    declared: &Declared<'s>,
) -> BTreeMap<Store, Claims<'s>> {
    let mut all: BTreeMap<Store, Claims<'s>> = BTreeMap::new();
    for (app, _, declaration) in in_environment(environment, declared) {
        let mut claim = |store, claimant, amount| all.entry(store).or_default().add(claimant, app, amount);
        let resources = &declaration.resources;
        let own = || Claimant::App(app.clone());
        if let Some(cpu) = &resources.cpu {
            claim(Store::Cpu, own(), cpu.value);
        }
        if let Some(memory) = &resources.memory {
            claim(Store::Memory, own(), memory.value);
        }
        if let (Some(disk), Some(block)) = (&resources.disk, &offer.block) {
            claim(Store::Block(block.default_class.clone()), own(), disk.value);
        }
        for bucket in &declaration.depends_on.buckets {
            let Some(object) = &offer.object else { continue };
            let (name, size, class) = object.resolve(bucket);
            claim(Store::Object(class.clone()), Claimant::Bucket(name.clone()), size);
        }
    }
    all
}

fn room(offer: &Offer, store: &Store) -> Option<At<Room>> {
    let of_class = |classes: &BTreeMap<ObjectName, At<Option<Room>>>, class: &ObjectName| {
        let At { value, line, column } = *classes.get(class)?;
        Some(At { value: value?, line, column })
    };
    match store {
        Store::Cpu => offer.cpu,
        Store::Memory => offer.memory,
        Store::Block(class) => offer.block.as_ref().and_then(|block| of_class(&block.classes, class)),
        Store::Object(class) => offer.object.as_ref().and_then(|object| of_class(&object.classes, class)),
    }
}

/// Who says how much there is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Contract,
    Cluster,
}

/// What counts of what the contract says and what there really is. The reserve is the contract's.
fn limit(room: Option<At<Room>>, there: Option<Quantity>, place: At<()>) -> Option<(At<Room>, Whose)> {
    let Some(there) = there else { return room.map(|room| (room, Whose::Contract)) };
    match room {
        Some(room) if room.value.capacity <= there => Some((room, Whose::Contract)),
        Some(At { value, line, column }) => {
            Some((At { value: Room { capacity: there, ..value }, line, column }, Whose::Cluster))
        }
        None => {
            let (At { line, column, .. }, reserve) = (place, Quantity::default());
            Some((At { value: Room { capacity: there, reserve }, line, column }, Whose::Cluster))
        }
    }
}

fn overfull(
    contract_file: &str,
    environment: &EnvironmentName,
    store: &Store,
    (room, whose): &(At<Room>, Whose),
    (needed, is_with_others): (Quantity, bool),
    claims: &Claims<'_>,
) -> Finding {
    let (what, remedy) = match store {
        Store::Cpu => (" cores".to_owned(), "add nodes"),
        Store::Memory => (" of memory".to_owned(), "add nodes"),
        Store::Block(class) => (format!(" of block storage of {class}"), "add disks"),
        Store::Object(class) => (format!(" of object storage of {class}"), "add disks"),
    };
    let mut largest: Vec<_> = claims.apps.iter().collect();
    largest.sort_by_key(|(app, amount)| (std::cmp::Reverse(**amount), **app));
    let by = listed(largest.iter().map(|(app, amount)| format!("{app} {}", amount.rounded())));
    let others = if is_with_others { ", with what others use already" } else { "" };
    let declared = format!("{}{what} in {environment} ({by}{others})", needed.rounded());
    let Room { capacity, reserve } = room.value;
    let there = match whose {
        Whose::Contract => "there is",
        Whose::Cluster => "the cluster has",
    };
    let found = format!(
        "{there} {} less a reserve of {}: {} are too much",
        capacity.rounded(),
        reserve.rounded(),
        needed.saturating_sub(room.value.usable()).rounded()
    );
    let remedy = match whose {
        Whose::Contract => format!("declare less, or {remedy} and raise the capacity here"),
        Whose::Cluster => format!("declare less, or {remedy}"),
    };
    Finding::between(contract_file, room.place(), declared, found, remedy)
        .concerning(claims.apps.keys().map(|app| (*app).clone()))
}

/// One app's way to ask for a bucket.
struct Asked<'s> {
    app: &'s AppName,
    file: &'s str,
    bucket: &'s Bucket,
    size: Quantity,
    class: ObjectName,
}

/// Apps that share a bucket have to say the same about it.
fn disagreements(environment: &EnvironmentName, offer: &Offer, declared: &Declared<'_>) -> Vec<Finding> {
    let Some(object) = &offer.object else { return Vec::new() };
    let mut buckets: BTreeMap<&BucketName, Vec<Asked<'_>>> = BTreeMap::new();
    for (app, subject, declaration) in in_environment(environment, declared) {
        for bucket in &declaration.depends_on.buckets {
            let (_, size, class) = object.resolve(bucket);
            let asked = Asked { app, file: &subject.file, bucket, size, class: class.clone() };
            buckets.entry(&bucket.name.value).or_default().push(asked);
        }
    }
    let mut findings = Vec::new();
    for (name, sharing) in buckets {
        for asked in &sharing {
            let differs = |other: &&Asked<'_>| (other.size, &other.class) != (asked.size, &asked.class);
            let others: Vec<String> = sharing
                .iter()
                .filter(differs)
                .map(|other| format!("{} {} of {}", other.app, other.size, other.class))
                .collect();
            if others.is_empty() {
                continue;
            }
            let declared = format!("bucket {name} with {} of {} in {environment}", asked.size, asked.class);
            let found = format!("others share it and declare {}", listed(others.iter()));
            let remedy = "agree on one size and one class, or use another bucket";
            findings.push(
                Finding::between(asked.file, asked.bucket.name.place(), declared, found, remedy)
                    .concerning(sharing.iter().map(|asked| asked.app.clone())),
            );
        }
    }
    findings
}
