//! One app: whatever it names is there.

use std::collections::BTreeMap;
use std::fmt::Display;

use fabrique_core::id::{AppName, EnvironmentName};
use fabrique_yaml::did_you_mean;

use super::{Declares, Subject};
use crate::contract::Offer;
use crate::{At, Contract, Declaration, Finding};

/// How many names a message lists.
const SHOWN: usize = 8;

pub(super) fn findings(
    contract: &Contract,
    subjects: &BTreeMap<AppName, Subject>,
    app: &AppName,
    subject: &Subject,
    declaration: &Declaration,
) -> Vec<Finding> {
    let mut needs = Needs { file: &subject.file, findings: Vec::new() };
    needs.identity(app, declaration);
    needs.version(contract, declaration);
    for database in &declaration.depends_on.database {
        needs.known("database", database, &contract.databases, "the contract has");
    }
    for secret in &declaration.depends_on.secrets {
        needs.known("secret", secret, &contract.secrets, "the contract has");
    }
    for needed in &declaration.depends_on.code_locations {
        needs.code_location(subjects, app, subject, needed);
    }
    for environment in &subject.environments {
        match contract.environments.get(environment) {
            Some(offer) => needs.storage(environment, &offer.value, declaration),
            None => needs.environment(contract, subject, environment),
        }
    }
    needs.findings
}

struct Needs<'a> {
    file: &'a str,
    findings: Vec<Finding>,
}

impl Needs<'_> {
    fn tell(&mut self, place: At<()>, declared: String, found: String, remedy: String) {
        self.findings.push(Finding::between(self.file, place, declared, found, remedy));
    }

    fn identity(&mut self, app: &AppName, declaration: &Declaration) {
        let name = &declaration.code_location;
        if name.value != *app {
            let declared = format!("codeLocation {}", name.value);
            let remedy = format!("write codeLocation: {app}, or register it under its own name");
            self.tell(name.place(), declared, format!("the app is registered as {app}"), remedy);
        }
    }

    fn version(&mut self, contract: &Contract, declaration: &Declaration) {
        let version = &declaration.contract_version;
        if contract.accepts.contains(&version.value) {
            return;
        }
        let accepted = listed(contract.accepts.iter());
        let remedy = if version.value > contract.version {
            format!(
                "write contractVersion: {}, or let an operator raise the contract first",
                contract.version
            )
        } else {
            format!("read what changed in the contract, then write contractVersion: {}", contract.version)
        };
        let declared = format!("contractVersion {}", version.value);
        self.tell(version.place(), declared, format!("the contract accepts {accepted}"), remedy);
    }

    /// A name that the contract has to know.
    fn known<K: Ord + Display, V>(
        &mut self,
        kind: &str,
        wanted: &At<K>,
        known: &BTreeMap<K, V>,
        whose: &str,
    ) {
        if known.contains_key(&wanted.value) {
            return;
        }
        let names: Vec<String> = known.keys().map(K::to_string).collect();
        let remedy = near(&wanted.value.to_string(), &names)
            .unwrap_or_else(|| "use one of these, or let an operator add it to the contract".to_owned());
        let found = format!("{whose} {}", listed(names.iter()));
        self.tell(wanted.place(), format!("{kind} {}", wanted.value), found, remedy);
    }

    fn code_location(
        &mut self,
        subjects: &BTreeMap<AppName, Subject>,
        app: &AppName,
        subject: &Subject,
        needed: &At<AppName>,
    ) {
        // A dependency on itself is told as a cycle.
        if needed.value == *app {
            return;
        }
        let declared = format!("code-location {}", needed.value);
        let Some(other) = subjects.get(&needed.value) else {
            let names: Vec<String> = subjects.keys().map(AppName::to_string).collect();
            let remedy = near(needed.value.as_str(), &names)
                .unwrap_or_else(|| format!("register it in apps/{}/app.yaml, or remove it", needed.value));
            return self.tell(needed.place(), declared, "no such app is registered".to_owned(), remedy);
        };
        match other.declares {
            Declares::Nothing => {
                let remedy = format!("add source.declaration to apps/{}/app.yaml", needed.value);
                self.tell(
                    needed.place(),
                    declared,
                    "its registration names no declaration".to_owned(),
                    remedy,
                );
            }
            Declares::Unreadable => {
                let remedy = format!("correct {}", other.file);
                self.tell(needed.place(), declared, "its declaration cannot be read".to_owned(), remedy);
            }
            // A slip of others is no finding about this one, which waits; nor is known where the other one runs.
            Declares::Misregistered => return,
            Declares::All(_) => {}
        }
        let missing =
            subject.environments.iter().filter(|environment| !other.environments.contains(environment));
        let missing: Vec<&EnvironmentName> = missing.collect();
        if !missing.is_empty() {
            let found = format!("it does not run in {}", listed(missing.iter()));
            let remedy = format!("add the environment to apps/{}/app.yaml", needed.value);
            self.tell(needed.place(), format!("code-location {}", needed.value), found, remedy);
        }
    }

    fn environment(&mut self, contract: &Contract, subject: &Subject, environment: &EnvironmentName) {
        let names: Vec<String> = contract.environments.keys().map(EnvironmentName::to_string).collect();
        let remedy = near(environment.as_str(), &names)
            .unwrap_or_else(|| "let an operator add it to the contract, or remove it".to_owned());
        let place = At { value: (), line: 0, column: 0 };
        let found = format!("the contract has {}", listed(names.iter()));
        self.findings.push(Finding::between(
            &subject.registration,
            place,
            format!("environment {environment}"),
            found,
            remedy,
        ));
    }

    fn storage(&mut self, environment: &EnvironmentName, offer: &Offer, declaration: &Declaration) {
        if let (Some(disk), None) = (&declaration.resources.disk, &offer.block) {
            let found = format!("the contract has no block storage in {environment}");
            let remedy = "remove resources.disk, or let an operator add block to the contract".to_owned();
            self.tell(disk.place(), format!("disk {}", disk.value), found, remedy);
        }
        for bucket in &declaration.depends_on.buckets {
            let Some(object) = &offer.object else {
                let found = format!("the contract has no object storage in {environment}");
                let remedy = "remove the bucket, or let an operator add object to the contract".to_owned();
                self.tell(bucket.name.place(), format!("bucket {}", bucket.name.value), found, remedy);
                continue;
            };
            if let Some(class) = &bucket.storage_class {
                let whose = format!("object storage of {environment} has");
                self.known("storageClass", class, &object.classes, &whose);
            }
        }
    }
}

fn near(wanted: &str, known: &[String]) -> Option<String> {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    did_you_mean(wanted, &known).map(|near| format!("did you mean {near}?"))
}

/// `a, b, c`, and how many more.
pub(super) fn listed<T: Display>(all: impl Iterator<Item = T>) -> String {
    let all: Vec<String> = all.map(|one| one.to_string()).collect();
    match all.len() {
        0 => "none".to_owned(),
        count if count > SHOWN => format!("{} and {} more", all[..SHOWN].join(", "), count - SHOWN),
        _ => all.join(", "),
    }
}
