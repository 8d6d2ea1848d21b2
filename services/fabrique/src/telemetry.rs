//! Logs: to standard error, as lines for people or as JSON.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::cli::{Global, LogFormat};

/// Starts logging. Once per process.
pub(crate) fn start(global: &Global) -> anyhow::Result<()> {
    // The bus's client tells every connection as news; what matters of it is told by the adapter.
    // A database tells of what a migration does, by the migration's own words.
    let directives = format!("async_nats=off,sqlx=warn,{}", global.log);
    let filter = EnvFilter::try_new(directives).with_context(|| format!("--log {:?}", global.log))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Colours in a file or a pipe only get in the way of whoever searches it.
    let subscriber = subscriber.with_ansi(std::io::stderr().is_terminal());
    match global.log_format {
        LogFormat::Text => subscriber.with_target(false).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}
