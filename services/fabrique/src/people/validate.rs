//! `validate`: everything that is wrong with what people wrote, at once.

mod named;
mod policies;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fabrique_core::id::{AppName, Revision};
use fabrique_declarations::{Wait, contract};
use fabrique_gitops::Rules;
use fabrique_kubernetes::inventory::ClusterInventory;
use fabrique_operator::Exit;
use fabrique_operator::declared::{self, Cluster, Declared};
use fabrique_operator::endpoints;
use fabrique_operator::validate::{self, Finding, Validation};
use serde::Serialize;

use crate::builders;
use crate::cli::Validate;
use crate::config::{Config, Problem};
use crate::people::console::Console;
use crate::people::services;
use crate::people::trouble::{Complaint, sentence};
use crate::people::words::count;
use crate::wiring::Adapters;
use policies::Judged;

/// How long one answer of the API server is waited for: some are lists of everything.
const PATIENCE: Duration = Duration::from_secs(30);

/// The result for programs: the findings of everything that was checked, and how much of each there was.
#[derive(Debug, Default, Serialize)]
struct Report {
    commit: Option<Revision>,
    apps: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    declarations: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlays: Option<usize>,
    /// Asked of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policies: Option<usize>,
    findings: Vec<Told>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    waits: BTreeMap<AppName, Vec<Wait>>,
    /// The same for people.
    #[serde(skip)]
    checked: Vec<String>,
}

/// A finding with what is declared and what was found, where there is such a thing.
type Told = fabrique_declarations::Finding;

fn told(finding: Finding) -> Told {
    let Finding { file, line, column, what, remedy } = finding;
    Told { line, column, ..Told::of_file(file, what, remedy) }
}

impl Report {
    fn registrations(&mut self, validation: Validation) {
        // `3 apps registered at 9f02c41d77ab`
        let place = validation.commit.as_ref().map(|commit| format!(" at {}", commit.short()));
        let apps = count(validation.apps, "app");
        self.checked.push(format!("{apps} registered{}", place.unwrap_or_default()));
        (self.commit, self.apps) = (validation.commit, validation.apps);
        self.findings.extend(validation.findings.into_iter().map(told));
        self.findings.extend(validation.beyond);
    }

    fn declared(&mut self, declared: Declared) {
        self.checked.push(count(declared.declarations, "declaration"));
        self.checked.extend(declared.overlays.map(|overlays| count(overlays, "overlay")));
        self.checked.extend(declared.requests.map(|requests| count(requests, "cluster request")));
        self.requests = declared.requests;
        (self.declarations, self.overlays) = (Some(declared.declarations), declared.overlays);
        self.findings.extend(declared.findings);
        self.waits = declared.waits;
    }

    fn policies(&mut self, judged: Judged) {
        self.checked.push(count(judged.policies, "policy"));
        self.policies = Some(judged.policies);
        self.findings.extend(judged.findings.into_iter().map(told));
    }

    fn exit(&self) -> Exit {
        Exit::ok_if(self.findings.is_empty())
    }

    fn print(&self, console: Console) -> anyhow::Result<()> {
        if console.is_json() {
            return console.json(self);
        }
        findings(console, &self.findings)?;
        for (app, waits) in &self.waits {
            let waits: Vec<String> = waits.iter().map(Wait::to_string).collect();
            console.line(&format!("{app} waits: {}", waits.join("; ")))?;
        }
        let wrong = count(self.findings.len(), "finding");
        Ok(console.line(&format!("{}, {wrong}", self.checked.join(", ")))?)
    }
}

/// Checks the registrations as they are on the forge, and what their apps declare against the contract, once the files
/// that the configuration names are right; the configuration itself was checked before. With `only`, what is told is
/// about that app.
pub(crate) async fn live(console: Console, adapters: &Adapters, wanted: &Validate) -> anyhow::Result<Exit> {
    let only = wanted.app.as_ref();
    let configured = named::findings(&adapters.config);
    if !configured.is_empty() {
        return refuse(console, configured);
    }
    let most = named::ceiling(&adapters.config);
    let mut validation = validate::live(&adapters.apps, most.as_ref()).await?;
    if let Some(app) = only {
        let own = format!("apps/{app}/");
        validation.findings.retain(|finding| finding.file.starts_with(&own));
        validation.beyond.retain(|finding| finding.file.starts_with(&own));
    }
    let ports = declared::Ports {
        forge: Arc::clone(&adapters.forge) as _,
        source: Arc::clone(&adapters.source) as _,
    };
    let mut report = Report::default();
    report.registrations(validation);
    // What a contract says of the cluster is about no app.
    if let (None, Ok(Some(contract))) = (only, &adapters.apps.read().await?.contract) {
        let configured = services::configured(&adapters.config);
        report.findings.extend(endpoints::contradictions(contract, contract::FILE_NAME, &configured));
    }
    let declared = if wanted.live {
        let cluster = cluster(adapters, wanted).await?;
        declared::against(&cluster, &adapters.apps, &ports, only).await?
    } else {
        let settings = adapters.config.render_settings();
        declared::live(&adapters.apps, &ports, settings.as_ref(), only).await?
    };
    report.declared(declared);
    report.print(console)?;
    Ok(report.exit())
}

/// The cluster that is asked, with the rights of whoever runs this.
async fn cluster(adapters: &Adapters, wanted: &Validate) -> anyhow::Result<Cluster> {
    let client = builders::client_of(wanted.context.as_deref()).await;
    let client = client.map_err(|error| Complaint::usage(sentence(&error)))?;
    Ok(Cluster {
        inventory: Arc::new(ClusterInventory::new(client, PATIENCE)),
        environment: wanted.environment.clone(),
        settings: adapters.config.render_settings(),
    })
}

/// Checks files; no server is asked.
pub(crate) fn offline(console: Console, wanted: &Validate, config: Option<&Config>) -> anyhow::Result<Exit> {
    let configured = config.map(named::findings).unwrap_or_default();
    let well_configured = configured.is_empty();
    let mut report = Report { findings: configured.into_iter().map(told).collect(), ..Report::default() };
    if let Some(path) = &wanted.path {
        if wanted.is_cluster_apps(path) {
            if wanted.contract.is_some() {
                let what = format!(
                    "{} is cluster/apps, which has its own contract; leave out --contract",
                    path.display()
                );
                return Err(Complaint::usage(what).into());
            }
            let registries = config.map_or(&wanted.registry, |config| &config.registry.allowed);
            let rules = Rules { registries: registries.clone() };
            let most = config.and_then(named::ceiling);
            report.registrations(validate::directory(path, &rules, most.as_ref())?);
            if let Some(config) = config {
                report.findings.extend(endpoints::in_directory(path, &services::configured(config))?);
            }
        } else {
            let declared = declared::directory(path, &wanted.overlay, wanted.contract.as_deref())?;
            if declared.declarations == 0 && declared.findings.is_empty() {
                let path = path.display();
                let what = "holds no code-location.manifest.yaml, and no registration of cluster/apps";
                return Err(Complaint::usage(format!("{path} {what}")).into());
            }
            report.declared(declared);
        }
    }
    if !wanted.policies.is_empty() {
        report.policies(policies::judge(&wanted.policies)?);
    }
    report.print(console)?;
    Ok(if well_configured { report.exit() } else { Exit::Usage })
}

/// Tells what is wrong with the configuration, which leaves the registrations unchecked.
pub(crate) fn configuration(console: Console, problems: &[Problem]) -> anyhow::Result<Exit> {
    let findings = problems.iter().map(|problem| Finding {
        file: problem.key.clone(),
        line: 0,
        column: 0,
        what: problem.what.clone(),
        remedy: problem.remedy.clone(),
    });
    refuse(console, findings.collect())
}

fn refuse(console: Console, configured: Vec<Finding>) -> anyhow::Result<Exit> {
    let report = Report { findings: configured.into_iter().map(told).collect(), ..Report::default() };
    if console.is_json() {
        console.json(&report)?;
    } else {
        findings(console, &report.findings)?;
    }
    Ok(Exit::Usage)
}

/// One line each, with its place first, as compilers and editors have it.
pub(crate) fn findings<F: Display>(console: Console, findings: &[F]) -> anyhow::Result<()> {
    for finding in findings {
        console.line(&finding.to_string())?;
    }
    Ok(())
}

/// YAML that is none, or that says something else than it should.
fn not_read(file: &Path, error: &serde_saphyr::Error, remedy: String) -> Finding {
    let said = error.without_snippet().to_string();
    let Some(location) = error.location() else { return whole_file(file, said, remedy) };
    let (line, column) = (location.line(), location.column());
    let place = |number: u64| usize::try_from(number).unwrap_or_default();
    // The place comes first, as for every finding, and need not be said again.
    let what = said.strip_suffix(&format!(" at line {line}, column {column}")).unwrap_or(&said);
    let finding = whole_file(file, what.to_owned(), remedy);
    Finding { line: place(line), column: place(column), ..finding }
}

fn whole_file(file: &Path, what: String, remedy: String) -> Finding {
    Finding { file: file.display().to_string(), line: 0, column: 0, what, remedy }
}
