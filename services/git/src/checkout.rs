//! A person's checkout of a repository, of which nothing is changed.

use std::path::Path;

use crate::command::Git;
use crate::config::GitConfig;
use crate::error::GitError;

/// The most bytes of a list of files.
const LONGEST_LIST: u64 = 64 << 20;
/// How a file is marked that is in the commit and was left out of the folder.
const LEFT_OUT: &str = "S ";

/// What a folder holds of the commit that is checked out in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checkout {
    /// All of it, but for what somebody removed.
    Whole,
    /// A part: this file, for one, was left out by a sparse checkout.
    Part(String),
    /// Git keeps no list of the folder's files, so that nobody knows.
    Unknown,
}

impl Checkout {
    /// Looks at `folder`, the root of a work tree, and at what is below `under` in it.
    ///
    /// # Errors
    /// When git cannot be run, or does not understand what it finds.
    pub async fn of(config: &GitConfig, folder: &Path, under: &str) -> Result<Self, GitError> {
        let directory = std::path::absolute(folder.join(".git"));
        let directory = directory.map_err(|source| GitError::State { path: folder.to_owned(), source })?;
        if !directory.exists() {
            return Ok(Checkout::Unknown);
        }
        let git = Git::new(config);
        let listed = git.call(&["ls-files", "--cached", "-t", "-z"]);
        let listed = listed.at(&directory).limit(LONGEST_LIST).output().await?;
        let text = String::from_utf8_lossy(&listed.stdout);
        let mut files = text.split_terminator('\0').peekable();
        if files.peek().is_none() {
            return Ok(Checkout::Unknown);
        }
        let mut left_out = files.filter_map(|file| file.strip_prefix(LEFT_OUT));
        let left_out = left_out.find(|file| Path::new(file).starts_with(under));
        Ok(left_out.map_or(Checkout::Whole, |file| Checkout::Part(file.to_owned())))
    }
}
