//! What `render` takes.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Render {
    /// A checkout of cluster/apps to render, and to write what differs into.
    #[arg(long, value_name = "DIR")]
    pub(crate) path: Option<PathBuf>,
    /// Write nothing; fail when a file is not as rendered.
    #[arg(long)]
    pub(crate) check: bool,
    /// Also remove the Applications of what is not registered any more. Once that is pushed, Argo CD removes
    /// everything that they deployed. It shows them and asks first, and takes a whole checkout by git.
    #[arg(long, requires = "path", conflicts_with = "check")]
    pub(crate) remove: bool,
    /// Do not ask whether to remove.
    #[arg(long, requires = "remove")]
    pub(crate) yes: bool,
}
