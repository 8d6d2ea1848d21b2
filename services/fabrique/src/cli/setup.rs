//! What commands take that set an installation up.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Say what would be done and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}
