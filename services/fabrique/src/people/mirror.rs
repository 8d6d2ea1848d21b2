//! `mirror`: pull mirrors of GitHub and what its checks say.

use std::sync::Arc;

use fabrique_core::upstream::CheckState;
use fabrique_operator::Exit;
use fabrique_operator::mirror::{
    self, Clones, EnsuredMirror, EnsuredMirrors, MirrorResult, MirrorStatus, RightResult, SyncPorts, Synced,
    UpstreamFacts, mirrored,
};

use crate::ambient;
use crate::cli::Mirror;
use crate::config::Role;
use crate::people::console::{Console, remark};
use crate::people::progress::{Progress, showing};
use crate::people::table::{Cell, Table, Tone};
use crate::people::trouble::{Complaint, sentence};
use crate::people::{session, words};
use crate::wiring::Adapters;

/// Runs one of the commands.
pub(crate) async fn run(console: Console, adapters: &Adapters, command: Mirror) -> anyhow::Result<Exit> {
    match command {
        Mirror::Ensure { dry_run } => ensure(console, adapters, dry_run).await,
        Mirror::Sync { dry_run } => sync(console, adapters, dry_run).await,
        Mirror::Status => status(console, adapters).await,
    }
}

async fn ensure(console: Console, adapters: &Adapters, dry_run: bool) -> anyhow::Result<Exit> {
    let apps = adapters.apps.read().await?;
    let wanted = mirrored(&apps.registrations);
    let github = &adapters.config.github;
    let progress = Progress::new("looking at mirrors");
    let tell = |what: String| progress.tell(what);
    let clones = Clones { base: &github.clone_url, limit: github.first_clone.get(), tell: &tell };
    let ensuring = mirror::ensure(&*adapters.forge, &wanted, &clones, dry_run);
    let ensured = on_the_way(adapters, dry_run, progress.during(ensuring)).await?;
    if console.is_json() {
        console.json(&ensured)?;
    } else {
        console.wrapped_table(&ensured_table(&ensured))?;
    }
    Ok(ensured.exit())
}

fn ensured_table(ensured: &EnsuredMirrors) -> Table {
    let mut table = Table::new(&["REPOSITORY", "MIRRORS", "RESULT", "WHAT"]);
    for mirror in &ensured.mirrors {
        let (tone, word) = match (mirror.result, ensured.dry_run) {
            (MirrorResult::Present, _) => (Tone::Good, "present"),
            (MirrorResult::Created, true) => (Tone::Busy, "would be created"),
            (MirrorResult::Created, false) => (Tone::Good, "created"),
            (MirrorResult::Quieted, true) => (Tone::Busy, "would fetch only when told"),
            (MirrorResult::Quieted, false) => (Tone::Good, "fetches only when told now"),
            (MirrorResult::Cloning, _) => (Tone::Busy, "being cloned"),
            (MirrorResult::Refused, _) => (Tone::Bad, "refused"),
            (MirrorResult::Failed, _) => (Tone::Bad, "failed"),
        };
        table.row([
            mirror.repo.to_string().into(),
            mirror.from.as_str().into(),
            Cell::toned(tone, word),
            what(mirror).into(),
        ]);
    }
    table
}

/// What is the matter with a mirror, and with whose right in it.
fn what(mirror: &EnsuredMirror) -> String {
    let rights = mirror.rights.iter().filter_map(|right| match right.result {
        RightResult::Present => None,
        RightResult::Granted => {
            Some(format!("{} for {}", right.needs, right.account.as_deref().unwrap_or_default()))
        }
        RightResult::Unseen | RightResult::Missing => Some(right.detail.clone()),
    });
    let detail = Some(mirror.detail.clone()).filter(|detail| !detail.is_empty());
    detail.into_iter().chain(rights).collect::<Vec<_>>().join("; ")
}

/// Does something for which Gitea has to reach GitHub. Where this process is its way there, that is open for as long; what
/// is being fetched at the end is waited for.
async fn on_the_way<T>(
    adapters: &Adapters,
    dry_run: bool,
    work: impl Future<Output = T>,
) -> anyhow::Result<T> {
    let opened = if dry_run { Ok(None) } else { adapters.relay().await };
    let way = opened.map_err(|error| Complaint::usage(sentence(&error)))?;
    let done = work.await;
    // What goes this way may be another's first clone, which a Service brought here.
    if let Some(way) = way
        && !way.close(adapters.config.github.first_clone.get()).await
    {
        remark("Gitea was still fetching after github.first_clone, and was cut off: a later run begins anew");
    }
    Ok(done)
}

async fn sync(console: Console, adapters: &Adapters, dry_run: bool) -> anyhow::Result<Exit> {
    let github = adapters.github().map_err(|error| Complaint::usage(sentence(&error)))?;
    let bus = Arc::new(session::connect(adapters, Role::Mirror).await?);
    let apps = adapters.apps.read().await?;
    let ports = SyncPorts {
        origin: Arc::new(github),
        mirrors: Arc::clone(&adapters.forge) as _,
        forge: Arc::clone(&adapters.forge) as _,
        source: Arc::clone(&adapters.source) as _,
        upstreams: Arc::clone(&bus) as _,
        wakes: bus,
        clock: Arc::new(ambient::now),
    };
    let (wanted, patience) = (mirrored(&apps.registrations), adapters.config.github.patience.get());
    let syncing = mirror::sync(&ports, &wanted, patience, dry_run);
    let synced = on_the_way(adapters, dry_run, showing("following GitHub", syncing)).await?;
    if console.is_json() {
        console.json(&synced)?;
    } else {
        console.wrapped_table(&synced_table(&synced))?;
        if let Some(until) = synced.limited_until {
            console.line(&format!("GitHub takes no more requests until {}", words::when(until)))?;
        }
    }
    Ok(synced.exit())
}

fn synced_table(synced: &Synced) -> Table {
    let mut table = Table::new(&["REPOSITORY", "APP", "BRANCH", "GITHUB", "GITEA", "PASSED", "WHAT"]);
    for mirror in &synced.mirrors {
        let repo = mirror.repo.to_string();
        if let Some(why) = &mirror.failed {
            let [app, branch, there, here, passed] = [""; 5].map(Cell::from);
            table.row([repo.as_str().into(), app, branch, there, here, passed, Cell::toned(Tone::Bad, why)]);
        }
        for app in &mirror.apps {
            let (tone, word) = match (app.head == app.mirrored, app.woken, synced.dry_run) {
                (false, _, _) => (Tone::Bad, "the mirror does not follow"),
                (true, true, true) => (Tone::Busy, "would be woken"),
                (true, true, false) => (Tone::Good, "woken"),
                (true, false, _) => (Tone::Good, "nothing new"),
            };
            table.row([
                repo.as_str().into(),
                app.app.to_string().into(),
                app.branch.to_string().into(),
                words::short(app.head.as_ref()).into(),
                words::short(app.mirrored.as_ref()).into(),
                words::short(app.passed.as_ref()).into(),
                Cell::toned(tone, word),
            ]);
        }
    }
    table
}

async fn status(console: Console, adapters: &Adapters) -> anyhow::Result<Exit> {
    let bus = session::connect(adapters, Role::Operator).await?;
    let apps = adapters.apps.read().await?;
    let fresh_for = adapters.config.github.fresh_for.get();
    let status = mirror::status(&bus, &apps.registrations, ambient::now(), fresh_for).await?;
    if console.is_json() {
        console.json(&status)?;
    } else {
        console.wrapped_table(&status_table(&status))?;
    }
    Ok(status.exit())
}

fn status_table(status: &MirrorStatus) -> Table {
    let mut table = Table::new(&["APP", "GITHUB", "BRANCH", "AT", "PASSED", "CHECKS", "ASKED", "WHAT"]);
    for app in &status.apps {
        let what = match &app.trouble {
            Some(trouble) => Cell::toned(Tone::Bad, trouble.clone()),
            None => Cell::from(""),
        };
        table.row([
            app.app.to_string().into(),
            app.github.to_string().into(),
            app.branch.to_string().into(),
            words::short(app.head.as_ref()).into(),
            words::short(app.passed.as_ref()).into(),
            checks(app).into(),
            app.asked.map(words::when).unwrap_or_default().into(),
            what,
        ]);
    }
    table
}

/// What each check says of the head on GitHub.
pub(crate) fn checks(upstream: &UpstreamFacts) -> String {
    let told = upstream.checks.iter().map(|(check, state)| match state {
        Some(state @ (CheckState::Passed | CheckState::Pending | CheckState::Failed { .. })) => {
            format!("{check} {state}")
        }
        None => format!("{check} did not run"),
    });
    told.collect::<Vec<_>>().join(", ")
}
