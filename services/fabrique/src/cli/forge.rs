//! What commands take that look after repositories on Gitea.

use clap::Subcommand;

use super::taught;

#[derive(Debug, Subcommand)]
pub(crate) enum Hooks {
    /// Create what is missing, repair what differs.
    #[command(after_help = taught!(
        "fabrique hooks ensure --dry-run";
        "0 they are as they should be, 1 some are not (with --dry-run: would be written), 2 configuration, \
         3 Gitea is away, 4 a right is missing"
    ))]
    Ensure {
        /// Say what would be done and do nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Mirror {
    /// Create the mirrors that registrations ask for, let none fetch at an interval of its own, and open each to those
    /// who read it and report on it.
    ///
    /// It stays while a first clone goes on, at most `github.first_clone`.
    #[command(after_help = taught!(
        "fabrique mirror ensure --dry-run";
        "0 they are as they should be, 1 some are not (with --dry-run: would be written), 2 configuration, \
         3 Gitea is away, or a first clone is not over, 4 a right is missing"
    ))]
    Ensure {
        /// Say what would be done and do nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Let every mirror fetch, wait for it, and keep what GitHub says of its branches. Apps are woken by news.
    #[command(after_help = taught!(
        "fabrique mirror sync",
        "fabrique mirror sync --dry-run -o json | jq '.mirrors[].apps[]'";
        "0 every mirror is where GitHub is, 1 one is not, or has no repository, 2 configuration, 3 a peer is away, or \
         GitHub takes no more requests for now, 4 a right is missing"
    ))]
    Sync {
        /// Ask only: let nothing fetch, keep nothing, wake nobody.
        #[arg(long)]
        dry_run: bool,
    },
    /// What is known of GitHub's branches and checks, and how old that is. GitHub is not asked.
    #[command(after_help = taught!(
        "fabrique mirror status",
        "fabrique mirror status -o json | jq '.apps[] | select(.trouble)'";
        "0 all of it is fresh, 1 it is not, or a mirror does not follow, 2 configuration, 3 a peer is away"
    ))]
    Status,
}
