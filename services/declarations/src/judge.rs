//! All apps against the contract, at once: what is declared has to be there, together it has to fit, and there has to
//! be an order to deploy in.

mod graph;
mod needs;
mod storage;

use std::collections::BTreeMap;

use fabrique_core::id::{AppName, EnvironmentName};

use crate::{Contract, Declaration, Finding, Wait};

pub use storage::{Claimant, Store, Usage, Used};

/// A registered app, as far as this is about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Where it runs.
    pub environments: Vec<EnvironmentName>,
    /// What findings call its registration.
    pub registration: String,
    /// What findings call its declaration.
    pub file: String,
    /// What it declares.
    pub declares: Declares,
}

/// What an app declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declares {
    /// Its registration names no declaration.
    Nothing,
    /// It could not be read, which its reader told.
    Unreadable,
    /// Its registration cannot be used, which its reader told: where it is declared is not known for certain.
    Misregistered,
    /// This.
    All(Box<Declaration>),
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judgement {
    /// Everything that is wrong, by file and line.
    pub findings: Vec<Finding>,
    /// The wave of each declared app that is in no cycle and behind none: strictly greater than that of every app it
    /// depends on, from 0.
    pub waves: BTreeMap<AppName, u32>,
    /// Why apps are left alone although nothing is wrong with them.
    pub waits: BTreeMap<AppName, Vec<Wait>>,
}

impl Judgement {
    /// The findings that keep `app` from being deployed.
    pub fn of<'j>(&'j self, app: &'j AppName) -> impl Iterator<Item = &'j Finding> {
        self.findings.iter().filter(move |finding| finding.apps.contains(app))
    }
}

/// The apps with a declaration that was read, with what findings call it.
type Declared<'s> = BTreeMap<&'s AppName, (&'s Subject, &'s Declaration)>;

/// Judges every app against the contract, which findings call `contract_file`. Every finding names the apps that it
/// keeps from being deployed.
#[must_use]
pub fn judge(
    contract: &Contract,
    contract_file: &str,
    subjects: &BTreeMap<AppName, Subject>,
    usage: &Usage,
) -> Judgement {
    let declared = declared(subjects);
    let mut findings = Vec::new();
    for (app, (subject, declaration)) in &declared {
        let told = needs::findings(contract, subjects, app, subject, declaration);
        findings.extend(told.into_iter().map(|finding| finding.concerning([(*app).clone()])));
    }
    findings.extend(storage::findings(contract, contract_file, &declared, usage));
    let order = graph::order(&declared);
    findings.extend(order.findings);
    findings.sort();
    Judgement { findings, waves: order.waves, waits: waits(subjects, &declared) }
}

/// The dependencies alone: a finding for each app of a circle of those that were read.
#[must_use]
pub fn circles(subjects: &BTreeMap<AppName, Subject>) -> Vec<Finding> {
    let mut findings = graph::order(&declared(subjects)).findings;
    findings.sort();
    findings
}

fn declared(subjects: &BTreeMap<AppName, Subject>) -> Declared<'_> {
    let read = subjects.iter().filter_map(|(app, subject)| match &subject.declares {
        Declares::All(declaration) => Some((app, (subject, declaration.as_ref()))),
        Declares::Nothing | Declares::Unreadable | Declares::Misregistered => None,
    });
    read.collect()
}

fn waits(subjects: &BTreeMap<AppName, Subject>, declared: &Declared<'_>) -> BTreeMap<AppName, Vec<Wait>> {
    let mut all = BTreeMap::new();
    for (app, (_, declaration)) in declared {
        let own = (!declaration.ready.value).then_some(Wait::NotReady);
        let needed = declaration.depends_on.code_locations.iter().map(|needed| &needed.value);
        let others =
            needed.filter_map(|needed| match subjects.get(needed).map(|subject| &subject.declares) {
                None => Some(Wait::DependencyAbsent(needed.clone())),
                Some(Declares::Nothing | Declares::Unreadable) => {
                    Some(Wait::DependencyUndeclared(needed.clone()))
                }
                Some(Declares::Misregistered) => Some(Wait::DependencyMisregistered(needed.clone())),
                Some(Declares::All(other)) if other.ready.value => None,
                Some(Declares::All(_)) => Some(Wait::DependencyNotReady(needed.clone())),
            });
        let waits: Vec<Wait> = own.into_iter().chain(others).collect();
        if !waits.is_empty() {
            all.insert((*app).clone(), waits);
        }
    }
    all
}

#[cfg(test)]
mod tests;
