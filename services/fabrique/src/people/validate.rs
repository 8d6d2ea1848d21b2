//! `validate`: everything that is wrong with what people wrote, at once.

use std::path::Path;

use fabrique_gitops::Rules;
use fabrique_operator::Exit;
use fabrique_operator::validate::{self, Finding, Validation};

use crate::config::Problem;
use crate::people::console::Console;
use crate::people::words::count;
use crate::wiring::Adapters;

/// Checks the registrations as they are on the forge; the configuration was checked before.
pub(crate) async fn live(console: Console, adapters: &Adapters) -> anyhow::Result<Exit> {
    print(console, &validate::live(&adapters.apps).await?)
}

/// Checks a working copy; no server is asked.
pub(crate) fn offline(console: Console, directory: &Path, registries: &[String]) -> anyhow::Result<Exit> {
    let rules = Rules { registries: registries.to_vec() };
    print(console, &validate::directory(directory, &rules)?)
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
    let nothing = Validation { commit: None, apps: 0, findings: Vec::new() };
    let validation = nothing.with_configuration(findings.collect());
    if console.is_json() {
        console.json(&validation)?;
    } else {
        self::findings(console, &validation.findings)?;
    }
    Ok(Exit::Usage)
}

fn print(console: Console, validation: &Validation) -> anyhow::Result<Exit> {
    if console.is_json() {
        console.json(validation)?;
    } else {
        findings(console, &validation.findings)?;
        let place =
            validation.commit.as_ref().map(|commit| format!(" at {}", commit.short())).unwrap_or_default();
        let (good, wrong) = (count(validation.apps, "app"), count(validation.findings.len(), "finding"));
        console.line(&format!("{good} registered{place}, {wrong}"))?;
    }
    Ok(validation.exit())
}

/// One line each, with its place first, as compilers and editors have it.
pub(crate) fn findings(console: Console, findings: &[Finding]) -> anyhow::Result<()> {
    for finding in findings {
        console.line(&finding.to_string())?;
    }
    Ok(())
}
