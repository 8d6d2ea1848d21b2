//! The OCI registry, and the base image in it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::http;
use crate::install::{BUSYBOX_BLOBS, Cache, LAYER, LAYER_DIGEST, Product, architecture, digest};
use crate::peer::{Peer, Ready};
use crate::site::Site;
use crate::spawn::Launch;
use crate::template::{fill, secret};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const BASE: &str = "base/busybox";
pub(crate) const DEBIAN: &str = "base/debian";
/// Where programs are in images of that Debian.
pub(crate) const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long the garbage of a small registry may take on a busy machine.
const COLLECTED: Duration = Duration::from_secs(60);
/// The tag of every image that is there from the start.
const BASE_TAG: &str = "1";

/// The registry of a bed: plain http, no users, deletion allowed, data on disk.
#[derive(Debug)]
pub struct Registry {
    peer: Peer,
    site: Site,
    /// What this process started it from.
    own: Option<Own>,
}

#[derive(Debug)]
struct Own {
    program: PathBuf,
    config: PathBuf,
}

/// What a registry asks for.
#[derive(Debug)]
pub(crate) struct Credentials {
    password: String,
    hash: String,
}

impl Credentials {
    pub(crate) const USER: &str = "node";

    /// A password that nobody else has, and what the registry compares it with.
    pub(crate) fn new() -> Result<Self> {
        let (password, mut salt) = (secret(), secret());
        salt.truncate(21);
        // The system's own library knows the one kind of hash that the registry takes. The cheapest of its rounds.
        let script = format!("my $word = <STDIN>; chomp $word; print crypt($word, q($2b$04${salt}u));");
        let mut perl = Command::new("perl");
        let mut perl = perl.args(["-e", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        perl.stdin.take().context("no way to perl")?.write_all(password.as_bytes())?;
        let output = perl.wait_with_output()?;
        let hash = String::from_utf8(output.stdout)?;
        ensure!(output.status.success() && hash.starts_with("$2b$"), "perl makes no hash of a password");
        Ok(Self { password, hash })
    }

    pub(crate) fn password(&self) -> &str {
        &self.password
    }
}

impl Registry {
    pub(crate) async fn start(cache: &Cache, folder: &Path, site: Site) -> Result<Self> {
        let store = folder.join("store");
        fs::create_dir_all(&store)?;
        let ready = Ready::Http(format!("http://{}/v2/", site.socket()));
        let registry = Self::serve(cache, folder, &store, site, ("", ready)).await?;
        registry.push_busybox(&cache.folder(Product::Busybox)).await.context("pushing the base image")?;
        Ok(registry)
    }

    /// One more over the store of another, which answers nobody without these credentials.
    pub(crate) async fn start_guarded(
        cache: &Cache,
        folder: &Path,
        store: &Path,
        site: Site,
        credentials: &Credentials,
    ) -> Result<Self> {
        let file = folder.join("htpasswd");
        fs::write(&file, format!("{}:{}\n", Credentials::USER, credentials.hash))?;
        let auth = format!("auth:\n  htpasswd: {{ realm: bed, path: \"{}\" }}\n", file.display());
        // Anybody may ask for this.
        let ready = Ready::Http(format!("http://{}/", site.socket()));
        Self::serve(cache, folder, store, site, (&auth, ready)).await
    }

    async fn serve(
        cache: &Cache,
        folder: &Path,
        store: &Path,
        site: Site,
        (more, ready): (&str, Ready),
    ) -> Result<Self> {
        let config = folder.join("registry.yaml");
        let values = [
            ("ADDRESS", site.address().to_string()),
            ("PORT", site.port().to_string()),
            ("STORE", store.to_string_lossy().into_owned()),
        ];
        let values = values.each_ref().map(|(name, value)| (*name, value.as_str()));
        let text = fill(include_str!("../config/registry.yaml"), &values)?;
        fs::write(&config, text + more).context("writing the configuration of the registry")?;
        let program = cache.folder(Product::Registry).join("registry");
        let launch = Launch {
            program: program.clone(),
            args: vec!["serve".to_owned(), config.to_string_lossy().into_owned()],
            env: vec![("OTEL_TRACES_EXPORTER".to_owned(), "none".to_owned())],
            folder: folder.to_owned(),
            user: None,
            entry: site.entry(),
        };
        let peer = Peer::start("registry", launch, ready, folder.join("registry.log")).await?;
        Ok(Self { peer, site, own: Some(Own { program, config }) })
    }

    /// One that runs already.
    pub(crate) fn attached(peer: Peer, site: Site) -> Self {
        Self { peer, site, own: None }
    }

    /// Stops it and starts it again so that it takes no push, as registries are during their garbage collection.
    ///
    /// # Errors
    /// When it is another process's, or does not come back.
    pub async fn make_read_only(&self) -> Result<()> {
        let config = &self.own()?.config;
        let text = fs::read_to_string(config)?;
        let read_only =
            text.replace("storage:\n", "storage:\n  maintenance: { readonly: { enabled: true } }\n");
        ensure!(read_only != text, "its configuration has no storage");
        self.peer.stop().await?;
        fs::write(config, read_only)?;
        self.peer.start_again().await
    }

    /// Stops it, removes what no tag leads to, as its operators do at night, and starts it again.
    ///
    /// # Errors
    /// When it is another process's, cannot be swept, or does not come back.
    pub async fn collect_garbage(&self) -> Result<()> {
        let own = self.own()?;
        self.peer.stop().await?;
        let mut collect = tokio::process::Command::new(&own.program);
        collect.args(["garbage-collect", "--delete-untagged"]).arg(&own.config).kill_on_drop(true);
        collect.env("OTEL_TRACES_EXPORTER", "none");
        let output =
            tokio::time::timeout(COLLECTED, collect.output()).await.context("collecting hangs")??;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.peer.start_again().await
    }

    fn own(&self) -> Result<&Own> {
        self.own.as_ref().context("the registry is another process's")
    }

    /// The process.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// `127.0.0.1:PORT`, what image names start with.
    #[must_use]
    pub fn host(&self) -> String {
        self.site.socket().to_string()
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}", self.host())
    }

    /// `127.0.0.1:PORT/base/busybox:1`, a static busybox with all its applets, for `FROM`. It cannot resolve
    /// names: static busybox crashes when it tries.
    #[must_use]
    pub fn busybox(&self) -> String {
        format!("{}/{BASE}:{BASE_TAG}", self.host())
    }

    /// The digest of the base image.
    pub(crate) fn busybox_digest(cache: &Cache) -> Result<String> {
        Ok(digest(&fs::read(cache.folder(Product::Busybox).join("manifest.json"))?))
    }

    /// The digest of a manifest by tag or digest, or `None` when the registry has none.
    ///
    /// # Errors
    /// When the registry does not answer, or answers anything but 200 and 404.
    pub async fn digest(&self, repository: &str, reference: &str) -> Result<Option<String>> {
        let url = format!("{}/v2/{repository}/manifests/{reference}", self.base_url());
        let accept = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json";
        let answer = http::client()?.head(url).header("Accept", accept).send().await?;
        if answer.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        ensure!(answer.status().is_success(), "the registry answered {}", answer.status());
        let digest = answer.headers().get("Docker-Content-Digest").context("no digest in the answer")?;
        Ok(Some(digest.to_str()?.to_owned()))
    }

    /// All tags of a repository, sorted; empty when there is no such repository.
    ///
    /// # Errors
    /// When the registry does not answer, or answers anything but 200 and 404.
    pub async fn tags(&self, repository: &str) -> Result<Vec<String>> {
        let url = format!("{}/v2/{repository}/tags/list", self.base_url());
        let answer = http::client()?.get(url).send().await?;
        if answer.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(Vec::new());
        }
        let body: serde_json::Value = answer.error_for_status()?.json().await?;
        let tags = body["tags"].as_array().into_iter().flatten();
        let mut tags: Vec<String> = tags.filter_map(|tag| tag.as_str().map(str::to_owned)).collect();
        tags.sort_unstable();
        Ok(tags)
    }

    async fn push_busybox(&self, blobs: &Path) -> Result<()> {
        for name in BUSYBOX_BLOBS {
            let blob = fs::read(blobs.join(name))?;
            self.push_blob(BASE, None, &digest(&blob), blob).await?;
        }
        self.push_manifest(BASE, BASE_TAG, fs::read(blobs.join("manifest.json"))?).await
    }

    /// Pushes the small Debian, whose layer is in `folder`, and returns it by digest, without the registry.
    pub(crate) async fn push_debian(&self, folder: &Path) -> Result<String> {
        let config = json!({ "Env": [PATH], "Cmd": ["/bin/bash"] });
        let digest = self.push_image(DEBIAN, None, &[folder], &config).await?;
        Ok(format!("{DEBIAN}@{digest}"))
    }

    /// Pushes an image made of layers that products are, and returns its digest. `config` is what the image says
    /// of a container: its command, user and environment. Layers that the repository `from` has are not sent again.
    pub(crate) async fn push_image(
        &self,
        repository: &str,
        from: Option<&str>,
        layers: &[&Path],
        config: &Value,
    ) -> Result<String> {
        let (mut descriptors, mut digests) = (Vec::new(), Vec::new());
        for folder in layers {
            let digest = fs::read_to_string(folder.join(LAYER_DIGEST))?;
            let layer = folder.join(LAYER);
            let size = fs::metadata(&layer)?.len();
            self.push_blob(repository, from, &digest, tokio::fs::read(&layer).await?).await?;
            let kind = "application/vnd.oci.image.layer.v1.tar";
            descriptors.push(json!({ "mediaType": kind, "digest": digest, "size": size }));
            digests.push(digest);
        }
        let config = json!({
            "architecture": architecture(), "os": "linux", "config": config,
            "rootfs": { "type": "layers", "diff_ids": digests },
        });
        let config = config.to_string().into_bytes();
        let (config_digest, size) = (digest(&config), config.len());
        self.push_blob(repository, None, &config_digest, config).await?;
        let kind = "application/vnd.oci.image.config.v1+json";
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "layers": descriptors,
            "config": { "mediaType": kind, "digest": config_digest, "size": size },
        });
        let manifest = manifest.to_string().into_bytes();
        let digest = digest(&manifest);
        self.push_manifest(repository, BASE_TAG, manifest).await?;
        Ok(digest)
    }

    /// Pushes a blob as anybody who may write to the registry can, and returns its digest.
    ///
    /// # Errors
    /// When the registry does not answer, or refuses.
    pub async fn put_blob(&self, repository: &str, blob: Vec<u8>) -> Result<String> {
        let digest = digest(&blob);
        self.push_blob(repository, None, &digest, blob).await?;
        Ok(digest)
    }

    async fn push_manifest(&self, repository: &str, tag: &str, manifest: Vec<u8>) -> Result<()> {
        let url = format!("{}/v2/{repository}/manifests/{tag}", self.base_url());
        let answer = http::client()?.put(url).header("Content-Type", MANIFEST).body(manifest).send().await?;
        ensure!(answer.status().is_success(), "manifest: {} {}", answer.status(), answer.text().await?);
        Ok(())
    }

    async fn push_blob(
        &self,
        repository: &str,
        from: Option<&str>,
        digest: &str,
        blob: Vec<u8>,
    ) -> Result<()> {
        let url = format!("{}/v2/{repository}/blobs/uploads/", self.base_url());
        let mut asking = http::client()?.post(url);
        if let Some(from) = from {
            asking = asking.query(&[("mount", digest), ("from", from)]);
        }
        let answer = asking.send().await?.error_for_status()?;
        if answer.status() == reqwest::StatusCode::CREATED {
            return Ok(());
        }
        let location = answer.headers().get("Location").context("no upload location")?.to_str()?;
        let url = if location.starts_with('/') { self.base_url() + location } else { location.to_owned() };
        let answer = http::client()?
            .put(url)
            .query(&[("digest", digest)])
            .header("Content-Type", "application/octet-stream")
            .body(blob)
            .send()
            .await?;
        ensure!(answer.status().is_success(), "blob {digest}: {} {}", answer.status(), answer.text().await?);
        Ok(())
    }
}
