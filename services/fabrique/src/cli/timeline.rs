//! What `timeline` takes.

use std::time::Duration;

use clap::Args;
use fabrique_core::id::{AppName, Revision};
use fabrique_core::time::Timestamp;

use super::{parse_duration, parse_time};

#[derive(Debug, Args)]
pub(crate) struct Timeline {
    /// The app.
    pub(crate) app: AppName,
    /// The pushed revision; the one of the newest build when it is not named.
    #[arg(long, value_name = "REVISION")]
    pub(crate) revision: Option<Revision>,
    /// Look at what happened since then. Usually it begins shortly before the build.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION", conflicts_with = "pushed_at")]
    pub(crate) since: Option<Duration>,
    /// When `git push` returned, like 2026-08-14T09:30:00.250Z: the clock starts there.
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    pub(crate) pushed_at: Option<Timestamp>,
    /// How long to wait for the end of a push that is under way.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION", default_value = "2s")]
    pub(crate) wait: Duration,
}
