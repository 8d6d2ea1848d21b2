//! The cluster's images behind a registry that asks who wants them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Cluster;
use super::node::plain_registry;
use crate::folder::Folder;
use crate::install::Cache;
use crate::registry::{Credentials, Registry};
use crate::site::Site;

/// A second registry over the store of the cluster's own, at the caller's address. It answers nobody without
/// credentials; nodes speak plain http to it. It ends when this is dropped.
#[derive(Debug)]
pub struct Guarded {
    registry: Registry,
    credentials: Credentials,
    hosts: Vec<PathBuf>,
    _folder: Folder,
}

impl Cluster {
    /// Starts one.
    ///
    /// # Errors
    /// When it does not start, or a node cannot be told of it.
    pub async fn guarded_registry(&self) -> Result<Guarded> {
        let (folder, site) = (Folder::create()?, Site::free_at(Self::CALLER)?);
        let (store, credentials) = (self.parts.folder.join("registry/store"), Credentials::new()?);
        let registry =
            Registry::start_guarded(&Cache::open()?, folder.path(), &store, site, &credentials).await?;
        let mut guarded = Guarded { registry, credentials, hosts: Vec::new(), _folder: folder };
        for node in self.nodes() {
            let machine = self.parts.folder.join(node);
            guarded.hosts.push(plain_registry(&machine, &guarded.host(), &guarded.host())?);
        }
        Ok(guarded)
    }
}

impl Guarded {
    /// `198.18.0.254:PORT`, what names of its images start with.
    #[must_use]
    pub fn host(&self) -> String {
        self.registry.host()
    }

    /// One of the cluster's images by the name that it has here.
    ///
    /// # Errors
    /// When it is none of the cluster's.
    pub fn image(&self, image: &str) -> Result<String> {
        let path =
            image.strip_prefix(super::images::HOST).context("not an image of the cluster's registry")?;
        Ok(format!("{}{path}", self.host()))
    }

    /// Whom it answers.
    #[must_use]
    pub fn user(&self) -> &str {
        Credentials::USER
    }

    /// That user's password.
    #[must_use]
    pub fn password(&self) -> &str {
        self.credentials.password()
    }
}

/// Nodes that others use too know nothing of it any more.
impl Drop for Guarded {
    fn drop(&mut self) {
        for hosts in &self.hosts {
            let _ = fs::remove_dir_all(hosts);
        }
    }
}
