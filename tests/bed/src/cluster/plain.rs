//! Registries elsewhere that nodes speak plain http to.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::Cluster;
use super::node::plain_registry;

/// What lets nodes pull from a registry. They know nothing of it any more when this is dropped.
#[derive(Debug)]
#[must_use = "nodes know it for as long as this is kept"]
pub struct Plain(Vec<PathBuf>);

impl Cluster {
    /// Has every node speak plain http to the registry that images call `host`, an address and a port.
    ///
    /// # Errors
    /// When a node cannot be told.
    pub fn plain_registry(&self, host: &str) -> Result<Plain> {
        let mut plain = Plain(Vec::new());
        for node in self.nodes() {
            plain.0.push(plain_registry(&self.parts.folder.join(node), host, host)?);
        }
        Ok(plain)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        for hosts in &self.0 {
            let _ = fs::remove_dir_all(hosts);
        }
    }
}
