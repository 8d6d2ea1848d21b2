//! Commits as a stream for `git fast-import`: blobs, trees and commits by one process, without a work tree.

use std::collections::BTreeMap;
use std::ops::Bound;

use fabrique_core::id::{RelPath, Revision};
use fabrique_ports::deployments::NewCommit;
use fabrique_ports::source::FileKind;

use crate::config::Identity;
use crate::error::GitError;

/// What files the base has, as far as the commits are concerned.
pub(crate) type Known = BTreeMap<RelPath, FileKind>;

/// Everything a stream is made of.
#[derive(Debug)]
pub(crate) struct Import<'a> {
    pub(crate) base: &'a Revision,
    pub(crate) commits: &'a [NewCommit],
    pub(crate) identity: &'a Identity,
    /// Seconds since the epoch.
    pub(crate) time: u64,
    /// A name that nobody else uses meanwhile: fast-import cannot commit without one. It is gone afterwards.
    pub(crate) reference: &'a str,
}

impl Import<'_> {
    /// The stream, whose answers [`parse`] reads.
    ///
    /// # Errors
    /// [`GitError::Commit`] for a commit that must not be made: a file in the place of a directory or the
    /// other way round, a symlink or submodule to be written over, a path into `.git`, a message with a NUL.
    pub(crate) fn stream(&self, mut known: Known) -> Result<Vec<u8>, GitError> {
        let mut stream = Vec::new();
        put(&mut stream, &format!("ls {} \"\"\n", self.base));
        for (number, commit) in (1..).zip(self.commits) {
            self.commit(&mut stream, number, commit)?;
            for path in commit.changes.iter().filter(|(_, content)| content.is_none()).map(|(path, _)| path) {
                known.remove(path);
                put(&mut stream, &format!("D {}\n", quoted(path)));
            }
            for (path, content) in &commit.changes {
                let Some(content) = content else { continue };
                let mode = mode_of(path, &mut known)?;
                put(&mut stream, &format!("M {mode} inline {}\n", quoted(path)));
                data(&mut stream, content);
            }
            put(&mut stream, &format!("\nls :{number} \"\"\nget-mark :{number}\n"));
        }
        let nothing = "0".repeat(self.base.as_str().len());
        put(&mut stream, &format!("reset {}\nfrom {nothing}\n\ndone\n", self.reference));
        Ok(stream)
    }

    fn commit(&self, stream: &mut Vec<u8>, number: usize, commit: &NewCommit) -> Result<(), GitError> {
        if commit.message.contains('\0') || commit.message.trim().is_empty() {
            return Err(GitError::Commit("the message is empty or has a NUL".to_owned()));
        }
        let (name, email, time) = (self.identity.name.trim(), &self.identity.email, self.time);
        put(stream, &format!("commit {}\nmark :{number}\n", self.reference));
        put(stream, &format!("author {name} <{email}> {time} +0000\n"));
        put(stream, &format!("committer {name} <{email}> {time} +0000\n"));
        data(stream, format!("{}\n", commit.message.trim_end()).as_bytes());
        if number == 1 {
            put(stream, &format!("from {}\n", self.base));
        }
        Ok(())
    }
}

/// Reads the answers to a stream of `count` commits: the base's tree, then each commit's tree and id.
///
/// # Errors
/// [`GitError::Commit`] when a commit would change nothing; [`GitError::Malformed`] when the answers make no
/// sense.
pub(crate) fn parse(output: &[u8], count: usize) -> Result<Vec<Revision>, GitError> {
    let text = String::from_utf8_lossy(output);
    let malformed = || GitError::Malformed {
        command: "fast-import",
        what: text.chars().take(200).collect::<String>().escape_debug().to_string(),
    };
    let tree = |line: &str| line.strip_prefix("040000 tree ").map(|rest| rest.trim_end().to_owned());
    let mut lines = text.lines();
    let mut before = lines.next().and_then(tree).ok_or_else(malformed)?;
    let mut commits = Vec::with_capacity(count);
    for number in 1..=count {
        let after = lines.next().and_then(tree).ok_or_else(malformed)?;
        if after == before {
            return Err(GitError::Commit(format!("commit {number} of {count} would change nothing")));
        }
        before = after;
        let commit = lines.next().and_then(|line| Revision::parse(line).ok()).ok_or_else(malformed)?;
        commits.push(commit);
    }
    if lines.next().is_some() { Err(malformed()) } else { Ok(commits) }
}

/// The mode to write a file with: an executable stays one.
fn mode_of(path: &RelPath, known: &mut Known) -> Result<&'static str, GitError> {
    let refuse = |why: &str| Err(GitError::Commit(format!("{path:?} {why}")));
    if path.is_root() || path.as_str().split('/').any(|part| part.eq_ignore_ascii_case(".git")) {
        return refuse("is not a file that may be written");
    }
    let mut parents = path.as_str().match_indices('/').map(|(end, _)| &path.as_str()[..end]);
    if parents.any(|parent| RelPath::parse(parent).is_ok_and(|parent| known.contains_key(&parent))) {
        return refuse("is below a file");
    }
    let after = known.range((Bound::Excluded(path), Bound::Unbounded));
    // Between a directory's name and its files there may be others, like `a-b` between `a` and `a/b`.
    let siblings = after.take_while(|(other, _)| other.as_str().starts_with(path.as_str()));
    if siblings.into_iter().any(|(other, _)| other.is_within(path)) {
        return refuse("is a directory");
    }
    match *known.entry(path.clone()).or_insert(FileKind::Regular) {
        FileKind::Regular => Ok("100644"),
        FileKind::Executable => Ok("100755"),
        FileKind::Symlink | FileKind::Submodule => refuse("is a symlink or submodule"),
    }
}

fn put(stream: &mut Vec<u8>, text: &str) {
    stream.extend_from_slice(text.as_bytes());
}

fn data(stream: &mut Vec<u8>, bytes: &[u8]) {
    put(stream, &format!("data {}\n", bytes.len()));
    stream.extend_from_slice(bytes);
    stream.push(b'\n');
}

/// A path in fast-import's C-style quotes. A [`RelPath`] has neither backslashes nor control characters.
fn quoted(path: &RelPath) -> String {
    format!("\"{}\"", path.as_str().replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    fn stream(
        known: &[(&str, FileKind)],
        changes: &[(&str, Option<&'static str>)],
    ) -> Result<String, GitError> {
        let changes = changes
            .iter()
            .map(|(p, content)| (path(p), content.map(|text| Bytes::from_static(text.as_bytes()))));
        let commits = [NewCommit { changes: changes.collect(), message: "Deploy\n\nImage: x\n".to_owned() }];
        let import = Import {
            base: &Revision::parse(&"a".repeat(40)).unwrap(),
            commits: &commits,
            identity: &Identity::default(),
            time: 1_700_000_000,
            reference: "refs/fabrique/1",
        };
        let known = known.iter().map(|(p, kind)| (path(p), *kind)).collect();
        import.stream(known).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn a_stream_deletes_before_it_writes_and_keeps_modes() {
        let known = [("a/run", FileKind::Executable), ("b", FileKind::Regular)];
        let text = stream(&known, &[("a/run", Some("#!\n")), ("b", None), ("b/\"c\"", Some(""))]).unwrap();
        let changes: Vec<&str> =
            text.lines().filter(|line| line.starts_with("M ") || line.starts_with("D ")).collect();
        assert_eq!(changes, ["D \"b\"", "M 100755 inline \"a/run\"", "M 100644 inline \"b/\\\"c\\\"\""]);
        assert!(text.contains("data 17\nDeploy\n\nImage: x\n\n"), "{text}");
    }

    #[test]
    fn what_must_not_be_written_is_refused() {
        let regular = FileKind::Regular;
        for (known, change) in [
            ([("a", regular)], "a/b"),
            ([("a/b/c", regular)], "a/b"),
            ([("a", FileKind::Symlink)], "a"),
            ([("a", FileKind::Symlink)], "a/b"),
            ([("a", FileKind::Submodule)], "a"),
            ([("x", regular)], "a/.GIT/hooks/x"),
            ([("x", regular)], "."),
        ] {
            let refused = stream(&known, &[(change, Some("x"))]);
            assert!(matches!(refused, Err(GitError::Commit(_))), "{change}: {refused:?}");
        }
        assert!(stream(&[("a-b", regular)], &[("a", Some("x"))]).is_ok());
    }

    #[test]
    fn a_commit_that_changes_nothing_is_refused() {
        let (one, two) = ("1".repeat(40), "2".repeat(40));
        let answers =
            |trees: [&str; 2]| format!("040000 tree {}\t\n040000 tree {}\t\n{one}\n", trees[0], trees[1]);
        assert_eq!(parse(answers([&one, &two]).as_bytes(), 1).unwrap()[0].as_str(), one);
        assert!(matches!(parse(answers([&one, &one]).as_bytes(), 1), Err(GitError::Commit(_))));
        assert!(matches!(parse(b"", 1), Err(GitError::Malformed { .. })));
        assert!(matches!(parse(answers([&one, &two]).as_bytes(), 2), Err(GitError::Malformed { .. })));
    }
}
