//! Files that hold one secret each, for their owner alone.
//!
//! A file appears whole or not at all, and one that is there is never written. A token is known by name before it is made:
//! the name is noted beside the file, so that a token whose value was lost by an interruption is found and revoked.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};

use crate::error::OperatorError;

/// Read and write for the owner.
const OWNER_ONLY: u32 = 0o600;

/// What the file holds, if it is there. Line ends at its end are no part of it, and without anything else it is refused.
pub(super) fn read(path: &Path) -> Result<Option<SecretString>, OperatorError> {
    match fs::read_to_string(path) {
        Ok(text) => match text.trim_end_matches(['\n', '\r']) {
            "" => Err(OperatorError::EmptySecret { path: path.display().to_string() }),
            secret => Ok(Some(secret.to_owned().into())),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed(path, source)),
    }
}

/// Makes the file, which is not there.
pub(super) fn write(path: &Path, secret: &SecretString) -> Result<(), OperatorError> {
    put(path, "part", secret.expose_secret()).map_err(|source| failed(path, source))
}

/// The name of the token that was to be made for this file, if that was not finished.
pub(super) fn noted(path: &Path) -> Result<Option<String>, OperatorError> {
    let note = beside(path, "pending");
    Ok(read(&note)?.map(|name| name.expose_secret().to_owned()))
}

/// Notes the name of the token that is made for this file.
pub(super) fn note(path: &Path, name: &str) -> Result<(), OperatorError> {
    forget(path)?;
    let note = beside(path, "pending");
    put(&note, "part", name).map_err(|source| failed(&note, source))
}

/// Removes that note.
pub(super) fn forget(path: &Path) -> Result<(), OperatorError> {
    let note = beside(path, "pending");
    remove(&note).map_err(|source| failed(&note, source))
}

/// Removes what an interruption left beside a file that is there: it was written, and the rest was not done.
pub(super) fn tidy(path: &Path) -> Result<(), OperatorError> {
    if !path.exists() {
        return Ok(());
    }
    let note = beside(path, "pending");
    for left in [beside(&note, "part"), note, beside(path, "part")] {
        remove(&left).map_err(|source| failed(&left, source))?;
    }
    Ok(())
}

/// Whether a file could be made there: what is missing is told before anything is made elsewhere.
pub(super) fn has_folder(path: &Path) -> bool {
    folder(path).is_dir()
}

fn put(path: &Path, suffix: &str, text: &str) -> io::Result<()> {
    let part = beside(path, suffix);
    remove(&part)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    // Unlike a rename this fails where somebody else was first.
    let linked = fs::hard_link(&part, path);
    remove(&part)?;
    linked?;
    fs::File::open(folder(path))?.sync_all()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}"))
}

fn failed(path: &Path, source: io::Error) -> OperatorError {
    OperatorError::SecretFile { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn text(path: &Path) -> String {
        read(path).unwrap().unwrap().expose_secret().to_owned()
    }

    #[test]
    fn what_an_interruption_left_goes_only_beside_a_file_that_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("read-token");
        note(&path, "fabrique read 1").unwrap();
        tidy(&path).unwrap();
        assert_eq!(noted(&path).unwrap().as_deref(), Some("fabrique read 1"), "it is to be revoked yet");
        write(&path, &"value".to_owned().into()).unwrap();
        fs::write(beside(&path, "part"), "val").unwrap();
        tidy(&path).unwrap();
        assert_eq!(noted(&path).unwrap(), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(text(&path), "value");
    }

    #[test]
    fn an_empty_file_is_no_secret_and_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("argocd-secret");
        for nothing in ["", "\n", "\r\n\n"] {
            fs::write(&path, nothing).unwrap();
            let told = read(&path).unwrap_err().to_string();
            assert!(told.contains("argocd-secret: the file is empty; write the secret into it"), "{told}");
        }
        fs::write(&path, "value\r\n").unwrap();
        assert_eq!(text(&path), "value");
    }

    #[test]
    fn a_file_is_its_owners_alone_and_never_written_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("apps-token");
        assert!(read(&path).unwrap().is_none() && has_folder(&path));
        write(&path, &"one".into()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, OWNER_ONLY);
        let refused = write(&path, &"two".into()).unwrap_err().to_string();
        assert!(refused.contains("apps-token") && !refused.contains("two"), "{refused}");
        assert_eq!(text(&path), "one");
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["apps-token"], "nothing is left beside it");
    }

    #[test]
    fn what_an_interruption_left_is_no_hindrance() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("apps-token");
        fs::write(beside(&path, "part"), "half of a to").unwrap();
        write(&path, &"whole".into()).unwrap();
        assert_eq!(text(&path), "whole");
    }

    #[test]
    fn the_name_of_a_token_is_known_until_its_file_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("apps-token");
        assert_eq!(noted(&path).unwrap(), None);
        note(&path, "fabrique apps 1").unwrap();
        note(&path, "fabrique apps 2").unwrap();
        assert_eq!(noted(&path).unwrap().as_deref(), Some("fabrique apps 2"));
        forget(&path).unwrap();
        forget(&path).unwrap();
        assert_eq!(noted(&path).unwrap(), None);
    }
}
