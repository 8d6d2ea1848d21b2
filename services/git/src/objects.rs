//! Reading what `ls-tree -z -l` and `cat-file --batch` write.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use fabrique_ports::source::FileKind;

use crate::error::GitError;
use crate::mirror::Mirror;

/// One entry of a tree that is no directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: FileKind,
    pub(crate) object: String,
    /// In bytes; zero for a submodule.
    pub(crate) size: u64,
    pub(crate) path: Bytes,
}

/// Parses `ls-tree -z -l`: `<mode> <type> <object> <size>TAB<path>NUL`, the size padded with spaces. Directories, which
/// are listed without `-r`, are left out.
pub(crate) fn parse_tree(output: &Bytes) -> Result<Vec<Entry>, GitError> {
    let mut entries = Vec::new();
    for record in output.split(|byte| *byte == 0).filter(|record| !record.is_empty()) {
        let bad = || malformed("ls-tree", record);
        let tab = record.iter().position(|byte| *byte == b'\t').ok_or_else(bad)?;
        let head = std::str::from_utf8(&record[..tab]).map_err(|_| bad())?;
        let mut words = head.split_ascii_whitespace();
        let (Some(mode), Some(_), Some(object), Some(size), None) =
            (words.next(), words.next(), words.next(), words.next(), words.next())
        else {
            return Err(bad());
        };
        let kind = match mode {
            "100644" | "100664" => FileKind::Regular,
            "100755" => FileKind::Executable,
            "120000" => FileKind::Symlink,
            "160000" => FileKind::Submodule,
            "040000" => continue,
            _ => return Err(bad()),
        };
        let size = if kind == FileKind::Submodule { 0 } else { size.parse().map_err(|_| bad())? };
        let path = output.slice_ref(&record[tab + 1..]);
        entries.push(Entry { kind, object: object.to_owned(), size, path });
    }
    Ok(entries)
}

/// Parses `cat-file --batch`: `<object> <type> <size>LF<content>LF`, or `<name> missing LF`. Missing ones are
/// left out.
pub(crate) fn parse_batch(output: &Bytes) -> Result<HashMap<String, Bytes>, GitError> {
    let mut objects = HashMap::new();
    let mut rest = output.clone();
    while !rest.is_empty() {
        let bad = || malformed("cat-file", &output[..output.len().min(80)]);
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or_else(bad)?;
        let line = rest.split_to(end + 1);
        let line = std::str::from_utf8(&line[..end]).map_err(|_| bad())?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [_, "missing"] => {}
            [object, _, size] => {
                let size: usize = size.parse().map_err(|_| bad())?;
                if rest.len() <= size {
                    return Err(bad());
                }
                let content = rest.split_to(size);
                rest = rest.slice(1..);
                objects.insert(object.to_owned(), content);
            }
            _ => return Err(bad()),
        }
    }
    Ok(objects)
}

/// Bytes that a listing of so many files can have: a path is at most 4 KiB, and most are short.
pub(crate) fn listing_bound(files: usize) -> u64 {
    u64::try_from(files).unwrap_or(u64::MAX).saturating_mul(512).max(1 << 20)
}

/// The contents of entries, by object.
pub(crate) async fn contents(
    mirror: &Mirror,
    entries: &[&Entry],
) -> Result<HashMap<String, Bytes>, GitError> {
    let (mut seen, mut names, mut bytes) = (HashSet::new(), String::new(), 0);
    for entry in entries.iter().filter(|entry| entry.kind != FileKind::Submodule) {
        if seen.insert(&entry.object) {
            names.push_str(&entry.object);
            names.push('\n');
            // An object's line is less than 100 bytes.
            bytes += entry.size + 100;
        }
    }
    if names.is_empty() {
        return Ok(HashMap::new());
    }
    let _shared = mirror.shared().await?;
    let call = mirror.call(&["cat-file", "--batch"]).input(names).limit(bytes);
    parse_batch(&call.output().await?.stdout)
}

/// The content of an entry; none for a submodule.
pub(crate) fn content_of(entry: &Entry, contents: &HashMap<String, Bytes>) -> Result<Bytes, GitError> {
    if entry.kind == FileKind::Submodule {
        return Ok(Bytes::new());
    }
    contents.get(&entry.object).cloned().ok_or_else(|| GitError::Malformed {
        command: "cat-file",
        what: format!("object {} is missing", entry.object),
    })
}

/// The committer's time of a raw commit, in seconds since the epoch.
pub(crate) fn committer_time(commit: &[u8]) -> Option<i64> {
    let head = commit.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
    let line = head.into_iter().find_map(|line| line.strip_prefix(b"committer "))?;
    // The name may hold anything but '>', the zone comes last.
    let after = &line[line.iter().rposition(|byte| *byte == b'>')? + 1..];
    std::str::from_utf8(after).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

fn malformed(command: &'static str, bytes: &[u8]) -> GitError {
    let what = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).escape_debug().to_string();
    GitError::Malformed { command, what }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tree_lists_every_kind_with_hostile_names() {
        let sha = "a".repeat(40);
        let output = format!(
            "100644 blob {sha}       5\ta b\n\"c\0100755 blob {sha}  12\tx\0120000 blob {sha} 3\tl\0160000 commit {sha}       -\tsub\0"
        );
        let entries = parse_tree(&Bytes::from(output)).unwrap();
        let seen: Vec<_> =
            entries.iter().map(|e| (e.kind, e.size, String::from_utf8_lossy(&e.path).into_owned())).collect();
        assert_eq!(
            seen,
            [
                (FileKind::Regular, 5, "a b\n\"c".to_owned()),
                (FileKind::Executable, 12, "x".to_owned()),
                (FileKind::Symlink, 3, "l".to_owned()),
                (FileKind::Submodule, 0, "sub".to_owned()),
            ]
        );
    }

    #[test]
    fn a_batch_gives_contents_byte_for_byte_and_leaves_missing_ones_out() {
        let objects =
            parse_batch(&Bytes::from_static(b"aa blob 4\n\n\n\0x\nbb missing\ncc blob 0\n\n")).unwrap();
        assert_eq!(objects.len(), 2);
        assert_eq!(&objects["aa"][..], b"\n\n\0x");
        assert!(objects["cc"].is_empty());
    }

    #[test]
    fn a_cut_off_batch_is_an_error() {
        assert!(parse_batch(&Bytes::from_static(b"aa blob 4\nabc")).is_err());
        assert!(parse_batch(&Bytes::from_static(b"aa blob 4\nabcd")).is_err());
    }

    #[test]
    fn the_committers_time_is_read_past_a_hostile_name() {
        let commit = b"tree 1\nauthor A <a> 1 +0000\ncommitter 7 +0000 <x> 1700000000 -0700\n\ncommitter B <b> 9 +0000\n";
        assert_eq!(committer_time(commit), Some(1_700_000_000));
        assert_eq!(committer_time(b"tree 1\n\ncommitter B <b> 9 +0000\n"), None);
    }

    proptest! {
        #[test]
        fn no_output_makes_the_parsers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bytes = Bytes::from(bytes);
            let _ = (parse_tree(&bytes), parse_batch(&bytes), committer_time(&bytes));
        }
    }
}
