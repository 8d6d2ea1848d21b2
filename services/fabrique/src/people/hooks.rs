//! `hooks ensure`: webhook #2 where it has to be.

use fabrique_operator::Exit;
use fabrique_operator::hooks::{self, Ensured, EnsuredHook, HookResult};

use crate::people::console::Console;
use crate::people::progress::showing;
use crate::people::table::{Cell, Table, Tone};
use crate::people::trouble::Complaint;
use crate::wiring::Adapters;

/// Creates and repairs webhooks, or says what would be done. Needs Gitea only.
pub(crate) async fn ensure(console: Console, adapters: &Adapters, dry_run: bool) -> anyhow::Result<Exit> {
    let receiver = &adapters.config.receiver;
    let Some(url) = &receiver.public_url else {
        let remedy = "set it to the receiver's webhook address as Gitea reaches it";
        return Err(Complaint::usage(format!("receiver.public_url: not set; {remedy}")).into());
    };
    if !receiver.secret.is_set() && !receiver.next_secret.is_set() {
        let remedy = "name the file with the webhook's secret in receiver.secret_file";
        return Err(Complaint::usage(format!("receiver.secret: not set; {remedy}")).into());
    }
    let apps = adapters.apps.read().await?;
    let watched = hooks::watched(&apps.registrations, (&adapters.apps_repo, &adapters.apps_branch));
    let ensured = showing("looking at webhooks", hooks::ensure(&adapters.gitea, watched, url, dry_run)).await;
    if console.is_json() {
        console.json(&ensured)?;
    } else {
        console.wrapped_table(&table(&ensured))?;
    }
    Ok(ensured.exit())
}

fn table(ensured: &Ensured) -> Table {
    let mut table = Table::new(&["REPOSITORY", "BRANCHES", "WEBHOOK", "WHAT"]);
    for hook in &ensured.repositories {
        let repo = hook.repo.to_string();
        table.row([
            repo.into(),
            hook.branch_filter.as_str().into(),
            result(hook, ensured.dry_run),
            hook.detail.as_str().into(),
        ]);
    }
    table
}

fn result(hook: &EnsuredHook, dry_run: bool) -> Cell {
    let (tone, word) = match (hook.result, dry_run) {
        (HookResult::Present, _) => (Tone::Good, "present"),
        (HookResult::Created, true) => (Tone::Busy, "would be created"),
        (HookResult::Created, false) => (Tone::Good, "created"),
        (HookResult::Repaired, true) => (Tone::Busy, "would be repaired"),
        (HookResult::Repaired, false) => (Tone::Good, "repaired"),
        (HookResult::NoRepository, _) => (Tone::Bad, "no repository"),
        (HookResult::Failed, _) => (Tone::Bad, "failed"),
    };
    Cell::toned(tone, word)
}
