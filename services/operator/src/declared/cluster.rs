//! What apps declare against what a cluster really has.

mod provided;
mod used;

use std::collections::BTreeSet;

use fabrique_core::id::{AppName, EnvironmentName};
use fabrique_declarations::contract::{self, Offer};
use fabrique_declarations::{At, Contract, Declaration, Declares, Finding, Subject};
use fabrique_gitops::render::Settings;
use fabrique_gitops::{Registrations, Tree};
use fabrique_ports::inventory::{Inventory, Listed, Seen, Wanted};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::OperatorError;

pub(super) use used::usage;

/// The cluster that is asked.
#[derive(Clone)]
pub struct Cluster {
    /// Who reads it.
    pub inventory: Arc<dyn Inventory>,
    /// The environment that it is; the contract's only one when absent.
    pub environment: Option<EnvironmentName>,
    /// Where Applications go, where they are rendered.
    pub settings: Option<Settings>,
}

/// One environment in front of its cluster.
pub(super) struct Site<'a> {
    pub(super) contract: &'a Contract,
    pub(super) environment: &'a EnvironmentName,
    pub(super) offer: &'a At<Offer>,
    pub(super) subjects: &'a BTreeMap<AppName, Subject>,
    pub(super) registrations: &'a Registrations,
    pub(super) tree: &'a Tree,
    pub(super) settings: Option<&'a Settings>,
}

impl<'a> Site<'a> {
    /// The environment of `cluster`.
    ///
    /// # Errors
    /// When the contract does not know it, or none is named and it knows several.
    pub(super) fn environment(
        contract: &'a Contract,
        cluster: &Cluster,
    ) -> Result<(&'a EnvironmentName, &'a At<Offer>), OperatorError> {
        let known: Vec<&EnvironmentName> = contract.environments.keys().collect();
        let one = match (&cluster.environment, known.as_slice()) {
            (Some(named), _) => Some(named),
            (None, [only]) => Some(*only),
            (None, _) => None,
        };
        one.and_then(|one| contract.environments.get_key_value(one)).ok_or_else(|| {
            let known: Vec<&str> = known.into_iter().map(EnvironmentName::as_str).collect();
            OperatorError::WhichEnvironment { known: known.join(", ") }
        })
    }

    /// The apps that run here, with what they declare.
    fn apps(&self) -> impl Iterator<Item = (&'a AppName, &'a str, &'a Declaration)> {
        self.subjects.iter().filter_map(|(app, subject)| match &subject.declares {
            Declares::All(declaration) if subject.environments.contains(self.environment) => {
                Some((app, subject.file.as_str(), &**declaration))
            }
            Declares::All(_) | Declares::Nothing | Declares::Unreadable | Declares::Misregistered => None,
        })
    }

    /// The namespace that an app is deployed into, where that is known.
    fn namespace(&self, app: &AppName) -> Option<String> {
        let first = self.settings.and_then(|settings| settings.destination(self.environment));
        let chosen = self.registrations.choice(app, self.environment).namespace;
        chosen.or_else(|| first.and_then(|place| place.namespaces.first().cloned()))
    }

    /// What has to be looked at for these apps.
    pub(super) fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        for (_, _, declaration) in self.apps() {
            let needs = &declaration.depends_on;
            wanted.databases |= !needs.database.is_empty();
            wanted.buckets |= !needs.buckets.is_empty();
            let secrets = needs.secrets.iter().filter_map(|secret| self.contract.secrets.get(&secret.value));
            wanted.secrets.extend(secrets.map(|secret| secret.value.namespace.as_str().to_owned()));
        }
        wanted
    }

    /// Everything that the cluster does not have of what is declared.
    pub(super) fn findings(&self, seen: &Seen) -> Vec<Finding> {
        let mut findings = self.unreadable(seen);
        findings.extend(self.classes(seen));
        for (app, file, declaration) in self.apps() {
            let mut told = self.databases(seen, file, declaration);
            told.extend(self.secrets(seen, file, declaration));
            told.extend(self.buckets(seen, app, file, declaration));
            told.extend(self.volume(seen, app, file, declaration));
            findings.extend(told.into_iter().map(|finding| finding.concerning([app.clone()])));
        }
        findings.extend(self.ceph(seen));
        findings
    }

    /// What could not be looked at: nothing is right because nobody could see it.
    fn unreadable(&self, seen: &Seen) -> Vec<Finding> {
        let wanted = self.wanted();
        let needing = |of: &dyn Fn(&Declaration) -> bool| -> Vec<AppName> {
            self.apps().filter(|(_, _, declaration)| of(declaration)).map(|(app, ..)| app.clone()).collect()
        };
        let disk = needing(&|declaration| declaration.resources.disk.is_some());
        let cores = needing(&|declaration| {
            declaration.resources.cpu.is_some() || declaration.resources.memory.is_some()
        });
        let buckets = needing(&|declaration| !declaration.depends_on.buckets.is_empty());
        let databases = needing(&|declaration| !declaration.depends_on.database.is_empty());
        let secrets = needing(&|declaration| !declaration.depends_on.secrets.is_empty());
        let both: BTreeSet<AppName> = disk.iter().chain(&buckets).cloned().collect();
        let ceph = match &seen.ceph {
            // Ceph may be run by something else than Rook: then it reports nothing here, and nothing is missing.
            Listed::Unknown => None,
            listed => unlisted("cephclusters.ceph.rook.io", listed, &self.on_ceph(seen)),
        };
        let mut findings = vec![
            unlisted("nodes", &seen.nodes, &cores),
            unlisted("pods", &seen.pods, &cores),
            unlisted("storageclasses", &seen.classes, &both.into_iter().collect::<Vec<_>>()),
            unlisted("persistentvolumeclaims", &seen.volumes, &disk),
            unlisted("objectbucketclaims", &seen.buckets, &buckets),
            unlisted("clusters.postgresql.cnpg.io", &seen.clusters, &databases),
            unlisted("databases.postgresql.cnpg.io", &seen.databases, &databases),
            ceph,
        ];
        for namespace in &wanted.secrets {
            let listed = seen.secrets.get(namespace).unwrap_or(&Listed::Unasked);
            findings.push(unlisted(&format!("secrets of {namespace}"), listed, &secrets));
        }
        findings.into_iter().flatten().collect()
    }

    /// A finding about the environment as a whole.
    fn here(&self, declared: String, found: &str, remedy: &str) -> Finding {
        Finding::between(contract::FILE_NAME, self.offer.place(), declared, found, remedy)
    }
}

/// Why a kind could not be listed, where anybody needs to know.
fn unlisted<T>(kind: &str, listed: &Listed<T>, needing: &[AppName]) -> Option<Finding> {
    let (what, remedy) = match listed {
        _ if needing.is_empty() => return None,
        Listed::All(_) | Listed::Unasked => return None,
        Listed::Denied => (
            format!("{kind} may not be listed in the cluster, so that nothing is known of them"),
            "give whoever asks the rights of docs/declarations.md",
        ),
        Listed::Unknown => (
            format!("the cluster has no {kind}, and apps need them"),
            "install what provides them, or take them out of the contract",
        ),
    };
    Some(Finding::of_file(contract::FILE_NAME, what, remedy).concerning(needing.iter().cloned()))
}

#[cfg(test)]
mod tests;
