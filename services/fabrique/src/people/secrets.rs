//! `secrets`: those of the contract that are derived from others.

use std::time::Duration;

use fabrique_kubernetes::secrets::{Account, SecretWriter, rbac};
use fabrique_operator::Exit;
use fabrique_operator::secrets::{self, DerivedReport, DerivedSecret, Outcome};

use crate::builders;
use crate::cli::Secrets;
use crate::people::console::Console;
use crate::people::table::{Cell, Table, Tone};
use crate::people::trouble::{Complaint, sentence};
use crate::wiring::Adapters;

/// How long one request to the API server may take.
const REQUEST: Duration = Duration::from_secs(10);

/// Brings derived secrets in line with what they are derived from.
pub(crate) async fn run(console: Console, adapters: &Adapters, wanted: &Secrets) -> anyhow::Result<Exit> {
    let apps = adapters.apps.read().await?;
    let derivations = secrets::derivations(&apps.contract, wanted.only.as_deref())?;
    if let Some(account) = &wanted.rbac {
        let Some((namespace, name)) = account.split_once('/') else {
            return Err(Complaint::usage("--rbac: write NAMESPACE/ACCOUNT, like fabrique/secrets").into());
        };
        for document in rbac(&derivations, Account { namespace, name }) {
            console.text(&format!("---\n{}", serde_saphyr::to_string(&document)?))?;
        }
        return Ok(Exit::Ok);
    }
    let client = match &wanted.context {
        None => builders::client().await,
        context @ Some(_) => builders::client_of(context.as_deref()).await,
    };
    let client = client.map_err(|error| Complaint::usage(sentence(&error)))?;
    let writer = SecretWriter::new(client, REQUEST);
    let report = secrets::derive(&writer, &derivations, wanted.dry_run).await?;
    if console.is_json() {
        console.json(&report)?;
    } else {
        console.wrapped_table(&table(&report))?;
        let would = if report.dry_run { "would be changed" } else { "changed" };
        console.line(&format!("{} {would}", report.changed))?;
    }
    Ok(report.exit())
}

fn table(report: &DerivedReport) -> Table {
    let mut table = Table::new(&["SECRET", "FROM", "RESULT", "WHAT"]);
    for secret in &report.secrets {
        let why = secret.why.as_deref().unwrap_or_default();
        table.row([
            secret.secret.as_str().into(),
            secret.from.as_str().into(),
            result(secret, report.dry_run),
            why.into(),
        ]);
    }
    table
}

fn result(secret: &DerivedSecret, dry_run: bool) -> Cell {
    let (tone, word) = match (secret.outcome, dry_run) {
        (Outcome::Unchanged, _) => (Tone::Good, "unchanged"),
        (Outcome::Made, true) => (Tone::Busy, "would be made"),
        (Outcome::Made, false) => (Tone::Good, "made"),
        (Outcome::Changed, true) => (Tone::Busy, "would be changed"),
        (Outcome::Changed, false) => (Tone::Good, "changed"),
        (Outcome::Refused, _) => (Tone::Bad, "refused"),
    };
    Cell::toned(tone, word)
}
