//! Certificates for a builder that speaks TLS.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::buildkit::TlsFiles;

/// An authority of its own with a certificate for each side, as PEM files.
#[derive(Debug, Clone)]
pub struct MutualTls {
    /// The authority that signed both.
    pub ca: PathBuf,
    /// For 127.0.0.1, or whatever the server is.
    pub server_cert: PathBuf,
    /// The key of `server_cert`.
    pub server_key: PathBuf,
    /// For the client "fabrique".
    pub client_cert: PathBuf,
    /// The key of `client_cert`.
    pub client_key: PathBuf,
}

impl MutualTls {
    /// Makes everything new in `folder`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn create(folder: &Path) -> Result<Self> {
        Self::create_for(folder, "127.0.0.1")
    }

    /// The same with a server at another address or of a name.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn create_for(folder: &Path, server: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = write(folder, "ca.pem", &params.self_signed(&key)?.pem())?;
        let issuer = Issuer::new(params, key);
        let (server_cert, server_key) =
            signed(folder, "server", server, ExtendedKeyUsagePurpose::ServerAuth, &issuer)?;
        let (client_cert, client_key) =
            signed(folder, "client", "fabrique", ExtendedKeyUsagePurpose::ClientAuth, &issuer)?;
        Ok(Self { ca, server_cert, server_key, client_cert, client_key })
    }

    /// The daemon's side, for [`crate::BuildkitOptions`].
    #[must_use]
    pub fn server(&self) -> TlsFiles {
        TlsFiles { ca: Some(self.ca.clone()), ..self.one_way() }
    }

    /// The side of a daemon that shows a certificate and asks nobody for one.
    #[must_use]
    pub fn one_way(&self) -> TlsFiles {
        TlsFiles { ca: None, cert: self.server_cert.clone(), key: self.server_key.clone() }
    }
}

fn signed(
    folder: &Path,
    role: &str,
    subject: &str,
    usage: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(PathBuf, PathBuf)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([subject.to_owned()])?;
    params.extended_key_usages.push(usage);
    let cert = params.signed_by(&key, issuer)?;
    let cert = write(folder, &format!("{role}.pem"), &cert.pem())?;
    Ok((cert, write(folder, &format!("{role}-key.pem"), &key.serialize_pem())?))
}

fn write(folder: &Path, name: &str, pem: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, pem).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}
