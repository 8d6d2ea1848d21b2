//! The files of `cluster/apps` at one commit, immutable.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use fabrique_core::id::RelPath;
use fabrique_yaml::escaped;

use crate::changes::Changes;
use crate::refusal::Refusal;

/// What git's file mode says about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// `100644`
    Regular,
    /// `100755`
    Executable,
    /// `120000`: never followed, never read, never written.
    Symlink,
    /// `160000`: a submodule, whose content is not in this repository.
    Submodule,
}

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: FileKind,
    /// Its content; for a symlink, the target's path.
    pub bytes: Bytes,
}

impl Entry {
    /// A regular file.
    #[must_use]
    pub fn regular(bytes: impl Into<Bytes>) -> Self {
        Self { kind: FileKind::Regular, bytes: bytes.into() }
    }
}

/// A view of the files of `cluster/apps`. Cloning is cheap in bytes, not in entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    entries: BTreeMap<RelPath, Entry>,
}

impl FromIterator<(RelPath, Entry)> for Tree {
    fn from_iter<I: IntoIterator<Item = (RelPath, Entry)>>(entries: I) -> Self {
        Self { entries: entries.into_iter().collect() }
    }
}

impl Tree {
    /// The file at `path`, or nothing when there is none.
    ///
    /// # Errors
    /// [`Refusal::PathRefused`] when `path`, or a directory on the way to it, is a symlink or a submodule.
    pub fn read(&self, path: &RelPath) -> Result<Option<&Bytes>, Refusal> {
        if let Some(obstacle) = self.first_link(path) {
            return Err(refused(
                path,
                &format!("{} is a symlink or a submodule", escaped(obstacle.as_str())),
            ));
        }
        Ok(self.entries.get(path).map(|entry| &entry.bytes))
    }

    /// Every entry at or below `directory`, in order.
    pub fn below<'t>(
        &'t self,
        directory: &'t RelPath,
    ) -> impl Iterator<Item = (&'t RelPath, &'t Entry)> + 't {
        // Text order puts `a/b-x` between `a/b` and `a/b/c`: the range ends with the common prefix and the
        // filter respects segments.
        let prefix = if directory.is_root() { "" } else { directory.as_str() };
        let first = if directory.is_root() { Bound::Unbounded } else { Bound::Included(directory) };
        self.entries
            .range((first, Bound::Unbounded))
            .take_while(move |(path, _)| path.as_str().starts_with(prefix))
            .filter(move |(path, _)| path.is_within(directory))
    }

    /// Every entry, in order of path.
    pub fn iter(&self) -> impl Iterator<Item = (&RelPath, &Entry)> {
        self.entries.iter()
    }

    /// The tree after `changes`.
    ///
    /// # Errors
    /// [`Refusal::PathRefused`] when a change touches a symlink or a submodule, or makes a file where a
    /// directory is (or the reverse).
    pub fn apply(&self, changes: &Changes) -> Result<Tree, Refusal> {
        let mut after = self.clone();
        for (path, change) in changes.iter() {
            if let Some(obstacle) = self.first_link(path) {
                return Err(refused(
                    path,
                    &format!("{} is a symlink or a submodule", escaped(obstacle.as_str())),
                ));
            }
            match change {
                Some(content) => {
                    let kind = self.entries.get(path).map_or(FileKind::Regular, |entry| entry.kind);
                    after.entries.insert(path.clone(), Entry { kind, bytes: content.clone() })
                }
                None => after.entries.remove(path),
            };
        }
        for (path, change) in changes.iter() {
            if change.is_none() {
                continue;
            }
            let file_above = ancestors(path).find(|above| after.entries.contains_key(above));
            let something_below = after.below(path).any(|(below, _)| below != path);
            if let Some(above) = file_above {
                return Err(refused(
                    path,
                    &format!("{} is a file, not a directory", escaped(above.as_str())),
                ));
            }
            if something_below {
                return Err(refused(path, "a directory of that name exists"));
            }
        }
        Ok(after)
    }

    pub(crate) fn content(&self, path: &RelPath) -> Option<&Bytes> {
        self.entries.get(path).map(|entry| &entry.bytes)
    }

    fn first_link(&self, path: &RelPath) -> Option<RelPath> {
        let is_link = |at: &RelPath| {
            self.entries.get(at).is_some_and(|e| matches!(e.kind, FileKind::Symlink | FileKind::Submodule))
        };
        ancestors(path).chain(std::iter::once(path.clone())).find(is_link)
    }
}

/// The directories on the way to `path`, outermost first, without the root and without `path` itself.
fn ancestors(path: &RelPath) -> impl Iterator<Item = RelPath> {
    path.as_str().match_indices('/').filter_map(|(at, _)| RelPath::parse(&path.as_str()[..at]).ok())
}

fn refused(path: &RelPath, why: &str) -> Refusal {
    Refusal::PathRefused { path: escaped(path.as_str()), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Scope;
    use fabrique_core::id::{AppName, EnvironmentName};

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    fn tree(files: &[(&str, FileKind)]) -> Tree {
        files
            .iter()
            .map(|(p, kind)| (path(p), Entry { kind: *kind, bytes: Bytes::from_static(b"x") }))
            .collect()
    }

    fn prod() -> Scope {
        Scope::Environment(AppName::parse("a").unwrap(), EnvironmentName::parse("prod").unwrap())
    }

    #[test]
    fn below_respects_path_segments() {
        let tree = tree(&[
            ("a/b", FileKind::Regular),
            ("a/b-x", FileKind::Regular),
            ("a/c/d", FileKind::Regular),
            ("a/c-x/d", FileKind::Regular),
        ]);
        let below = |dir: &str| tree.below(&path(dir)).map(|(p, _)| p.to_string()).collect::<Vec<_>>();
        assert_eq!(below("a/b"), ["a/b"]);
        assert_eq!(below("a/c"), ["a/c/d"]);
        assert_eq!(below("."), ["a/b", "a/b-x", "a/c-x/d", "a/c/d"]);
    }

    #[test]
    fn invariant_15_symlinks_on_the_way_are_neither_read_nor_written() {
        for kind in [FileKind::Symlink, FileKind::Submodule] {
            let tree = tree(&[("apps/a/prod", kind), ("apps/a/app.yaml", kind)]);
            assert!(matches!(tree.read(&path("apps/a/prod/x.yaml")), Err(Refusal::PathRefused { .. })));
            assert!(matches!(tree.read(&path("apps/a/app.yaml")), Err(Refusal::PathRefused { .. })));
            let mut changes = Changes::within(prod());
            changes.write(path("apps/a/prod/x.yaml"), "y").unwrap();
            assert!(matches!(tree.apply(&changes), Err(Refusal::PathRefused { .. })));
        }
    }

    #[test]
    fn a_file_never_takes_the_place_of_a_directory() {
        let tree = tree(&[("apps/a/prod/x/y.yaml", FileKind::Regular), ("apps/a/prod/f", FileKind::Regular)]);
        for bad in ["apps/a/prod/x", "apps/a/prod/f/g"] {
            let mut changes = Changes::within(prod());
            changes.write(path(bad), "y").unwrap();
            assert!(matches!(tree.apply(&changes), Err(Refusal::PathRefused { .. })), "{bad}");
        }
    }
}
