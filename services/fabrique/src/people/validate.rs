//! `validate`: everything that is wrong with what people wrote, at once.

mod named;
mod policies;

use std::path::Path;

use fabrique_gitops::Rules;
use fabrique_operator::Exit;
use fabrique_operator::validate::{self, Finding, Validation};
use serde::Serialize;

use crate::cli::Validate;
use crate::config::{Config, Problem};
use crate::people::console::Console;
use crate::people::words::count;
use crate::wiring::Adapters;

/// The result for programs: that of the use case, and how many policies were judged, where any were to be.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    validation: &'a Validation,
    #[serde(skip_serializing_if = "Option::is_none")]
    policies: Option<usize>,
}

/// Checks the registrations as they are on the forge, once the files that the configuration names are right; the
/// configuration itself was checked before.
pub(crate) async fn live(console: Console, adapters: &Adapters) -> anyhow::Result<Exit> {
    let configured = named::findings(&adapters.config);
    if !configured.is_empty() {
        return refuse(console, configured);
    }
    let validation = validate::live(&adapters.apps).await?;
    tell(console, &validation, &[registered(&validation)], None)?;
    Ok(validation.exit())
}

/// Checks files; no server is asked.
pub(crate) fn offline(console: Console, wanted: &Validate, config: Option<&Config>) -> anyhow::Result<Exit> {
    let mut validation = nothing();
    let mut checked = Vec::new();
    if let Some(path) = &wanted.path {
        let registries = config.map_or(&wanted.registry, |config| &config.registry.allowed);
        validation = validate::directory(path, &Rules { registries: registries.clone() })?;
        checked.push(registered(&validation));
    }
    let mut policies = None;
    if !wanted.policies.is_empty() {
        let judged = policies::judge(&wanted.policies)?;
        validation.findings.extend(judged.findings);
        checked.push(count(judged.policies, "policy"));
        policies = Some(judged.policies);
    }
    let configured = config.map(named::findings).unwrap_or_default();
    let well_configured = configured.is_empty();
    let validation = validation.with_configuration(configured);
    tell(console, &validation, &checked, policies)?;
    Ok(if well_configured { validation.exit() } else { Exit::Usage })
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
    let validation = nothing().with_configuration(configured);
    if console.is_json() {
        console.json(&validation)?;
    } else {
        findings(console, &validation.findings)?;
    }
    Ok(Exit::Usage)
}

fn nothing() -> Validation {
    Validation { commit: None, apps: 0, findings: Vec::new() }
}

/// `3 apps registered at 9f02c41d77ab`
fn registered(validation: &Validation) -> String {
    let place = validation.commit.as_ref().map(|commit| format!(" at {}", commit.short()));
    format!("{} registered{}", count(validation.apps, "app"), place.unwrap_or_default())
}

fn tell(
    console: Console,
    validation: &Validation,
    checked: &[String],
    policies: Option<usize>,
) -> anyhow::Result<()> {
    if console.is_json() {
        return console.json(&Report { validation, policies });
    }
    findings(console, &validation.findings)?;
    let wrong = count(validation.findings.len(), "finding");
    Ok(console.line(&format!("{}, {wrong}", checked.join(", ")))?)
}

/// One line each, with its place first, as compilers and editors have it.
pub(crate) fn findings(console: Console, findings: &[Finding]) -> anyhow::Result<()> {
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
