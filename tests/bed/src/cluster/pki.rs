//! The cluster's authority, and who it vouches for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::plan::{API_PORT, API_SERVICE, CONTROL, NODES};

/// The folder of the certificates of one cluster.
#[derive(Debug)]
pub(crate) struct Pki {
    folder: PathBuf,
    ca: String,
}

/// Somebody the authority vouches for: user `name` of `group`, and a server at `hosts`.
struct Subject<'a> {
    /// The name of its files.
    file: &'a str,
    name: &'a str,
    group: Option<&'a str>,
    hosts: Vec<String>,
}

impl Pki {
    /// Makes the authority, a certificate for every component and a kubeconfig for those that ask the API server.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "fabrique-bed");
        let ca = params.self_signed(&key)?.pem();
        let pki = Self { folder: folder.to_owned(), ca };
        fs::write(pki.ca(), &pki.ca)?;
        // Signs certificates that are asked for through the API.
        fs::write(pki.key("ca"), key.serialize_pem())?;
        // Signs the tokens of service accounts, and checks them.
        let tokens = KeyPair::generate()?;
        fs::write(pki.key("tokens"), tokens.serialize_pem())?;
        fs::write(pki.token_checker(), tokens.public_key_pem())?;
        let issuer = Issuer::new(params, key);

        pki.issue(
            &issuer,
            &Subject { file: "api-server", name: "kube-apiserver", group: None, hosts: api_hosts() },
        )?;
        let etcd = vec![CONTROL.address.to_string()];
        pki.issue(&issuer, &Subject { file: "etcd", name: "etcd", group: None, hosts: etcd })?;
        let users = [
            ("admin", "admin", Some("system:masters")),
            ("kubelets-client", "kube-apiserver-kubelet-client", Some("system:masters")),
            ("controller-manager", "system:kube-controller-manager", None),
            ("scheduler", "system:kube-scheduler", None),
            ("kube-proxy", "system:kube-proxy", None),
            ("kube-router", "bed:kube-router", None),
            ("argocd", "bed:argocd", None),
        ];
        for (file, name, group) in users {
            pki.issue(&issuer, &Subject { file, name, group, hosts: Vec::new() })?;
            pki.write_kubeconfig(file)?;
        }
        for node in NODES {
            let name = format!("system:node:{}", node.name);
            let hosts = vec![node.name.to_owned(), node.address.to_string()];
            pki.issue(
                &issuer,
                &Subject { file: node.name, name: &name, group: Some("system:nodes"), hosts },
            )?;
            pki.write_kubeconfig(node.name)?;
        }
        Ok(pki)
    }

    /// What [`Pki::create`] left in a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let ca = fs::read_to_string(folder.join("ca.crt")).context("reading the cluster's authority")?;
        Ok(Self { folder: folder.to_owned(), ca })
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.certificate("ca")
    }

    pub(crate) fn certificate(&self, file: &str) -> PathBuf {
        self.folder.join(format!("{file}.crt"))
    }

    pub(crate) fn key(&self, file: &str) -> PathBuf {
        self.folder.join(format!("{file}.key"))
    }

    /// The public half of the key `tokens`.
    pub(crate) fn token_checker(&self) -> PathBuf {
        self.folder.join("tokens.pub")
    }

    pub(crate) fn kubeconfig(&self, file: &str) -> PathBuf {
        self.folder.join(format!("{file}.kubeconfig"))
    }

    /// A kubeconfig for a token, complete in itself. Its context names `namespace`.
    pub(crate) fn token_kubeconfig(&self, user: &str, namespace: &str, token: &str) -> String {
        self.kubeconfig_of(user, namespace, &format!("token: {token}"))
    }

    fn issue(&self, issuer: &Issuer<'_, KeyPair>, subject: &Subject<'_>) -> Result<()> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(subject.hosts.clone())?;
        params.distinguished_name.push(DnType::CommonName, subject.name);
        if let Some(group) = subject.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !subject.hosts.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let certificate = params.signed_by(&key, issuer)?;
        fs::write(self.certificate(subject.file), certificate.pem())?;
        fs::write(self.key(subject.file), key.serialize_pem())
            .with_context(|| format!("writing the key of {}", subject.file))
    }

    fn write_kubeconfig(&self, user: &str) -> Result<()> {
        let read = |path: PathBuf| fs::read(path).map(|pem| STANDARD.encode(pem));
        let (certificate, key) = (read(self.certificate(user))?, read(self.key(user))?);
        let credentials = format!("client-certificate-data: {certificate}, client-key-data: {key}");
        // Argo CD takes its own namespace from there.
        let namespace = if user == "argocd" { "argocd" } else { "default" };
        fs::write(self.kubeconfig(user), self.kubeconfig_of(user, namespace, &credentials))?;
        Ok(())
    }

    fn kubeconfig_of(&self, user: &str, namespace: &str, credentials: &str) -> String {
        let ca = STANDARD.encode(&self.ca);
        let server = format!("https://{}:{API_PORT}", CONTROL.address);
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: bed\n\
             clusters: [{{name: bed, cluster: {{server: '{server}', certificate-authority-data: {ca}}}}}]\n\
             contexts: [{{name: bed, context: {{cluster: bed, user: '{user}', namespace: {namespace}}}}}]\n\
             users: [{{name: '{user}', user: {{{credentials}}}}}]\n"
        )
    }
}

fn api_hosts() -> Vec<String> {
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let addresses = [CONTROL.address, API_SERVICE].map(|address| address.to_string());
    names.map(str::to_owned).into_iter().chain(addresses).collect()
}
