//! Build secrets: where their values come from.

use std::path::PathBuf;

use fabrique_core::id::{AppName, SecretName};
use secrecy::SecretSlice;
use tokio::io::AsyncReadExt;

/// The largest secret in bytes: BuildKit's own limit.
pub const SECRET_LIMIT: usize = 500 * 1024;

/// A secret's bytes, which may be binary. Debug shows nothing of them.
pub type SecretValue = SecretSlice<u8>;

/// One file for each secret: `<root>/<app>/<name>`, as a Kubernetes secret volume lays them out. Read when a
/// build asks, so that a rotated secret counts from the next build on. An app can only ever be answered its own.
#[derive(Debug, Clone)]
pub struct DirectorySecrets {
    root: PathBuf,
}

impl DirectorySecrets {
    /// The secrets below `root`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The value of `app`'s secret `name`, or nothing when there is none.
    ///
    /// # Errors
    /// When it cannot be read, or is larger than [`SECRET_LIMIT`].
    pub async fn read(&self, app: &AppName, name: &SecretName) -> std::io::Result<Option<SecretValue>> {
        // Both names are validated: neither can hold a slash nor be `..`.
        let path = self.root.join(app.as_str()).join(name.as_str());
        let file = match tokio::fs::File::open(&path).await {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut value = Vec::new();
        file.take(SECRET_LIMIT as u64 + 1).read_to_end(&mut value).await?;
        if value.len() > SECRET_LIMIT {
            return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "larger than 500 KiB"));
        }
        Ok(Some(value.into()))
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn name(text: &str) -> SecretName {
        SecretName::parse(text).unwrap()
    }

    #[tokio::test]
    async fn an_app_reads_its_own_secrets_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("one")).unwrap();
        std::fs::write(dir.path().join("one/pypi"), b"\x00binary\n").unwrap();
        std::fs::write(dir.path().join("shared"), b"x").unwrap();
        let store = DirectorySecrets::new(dir.path());
        let (one, two) = (AppName::parse("one").unwrap(), AppName::parse("two").unwrap());
        let value = store.read(&one, &name("pypi")).await.unwrap().unwrap();
        assert_eq!(value.expose_secret(), b"\x00binary\n");
        assert!(!format!("{value:?}").contains("binary"));
        assert!(store.read(&two, &name("pypi")).await.unwrap().is_none());
        assert!(store.read(&one, &name("shared")).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_secret_over_the_limit_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("one")).unwrap();
        std::fs::write(dir.path().join("one/big"), vec![b'x'; SECRET_LIMIT + 1]).unwrap();
        let store = DirectorySecrets::new(dir.path());
        assert!(store.read(&AppName::parse("one").unwrap(), &name("big")).await.is_err());
    }
}
