//! A set of peers that live and die together.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use tokio::sync::OnceCell;

use crate::buildkit::{Buildkit, BuildkitOptions};
use crate::folder::Folder;
use crate::gitea::{Gitea, GiteaOptions};
use crate::install::{self, Cache, Product};
use crate::nats::{Nats, NatsOptions};
use crate::peer::Peer;
use crate::registry::Registry;
use crate::report::{Reporting, report_on_panic};
use crate::site::Site;

/// Which peers a bed has, and how they differ from the usual.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct BedBuilder {
    nats: Option<NatsOptions>,
    gitea: Option<GiteaOptions>,
    registry: bool,
    buildkit: Vec<BuildkitOptions>,
    address: Option<Ipv4Addr>,
}

impl BedBuilder {
    /// Listening at another address of this machine than loopback, like [`Cluster::CALLER`](crate::Cluster::CALLER) for
    /// peers that a cluster's pods reach. BuildKit daemons stay on loopback and know no registry elsewhere.
    pub fn at(mut self, address: Ipv4Addr) -> Self {
        self.address = Some(address);
        self
    }

    /// With NATS, one user per role.
    pub fn nats(self) -> Self {
        self.nats_with(NatsOptions::default())
    }

    /// With NATS as the options say.
    pub fn nats_with(mut self, options: NatsOptions) -> Self {
        self.nats = Some(options);
        self
    }

    /// With Gitea, its queues fast.
    pub fn gitea(self) -> Self {
        self.gitea_with(GiteaOptions::default())
    }

    /// With Gitea as the options say.
    pub fn gitea_with(mut self, options: GiteaOptions) -> Self {
        self.gitea = Some(options);
        self
    }

    /// With the registry and the base image in it.
    pub fn registry(mut self) -> Self {
        self.registry = true;
        self
    }

    /// With `count` more BuildKit daemons, without TLS. They know the bed's registry when there is one.
    pub fn buildkit(mut self, count: usize) -> Self {
        self.buildkit.extend(std::iter::repeat_n(BuildkitOptions::default(), count));
        self
    }

    /// With one more BuildKit daemon as the options say.
    pub fn buildkit_with(mut self, options: BuildkitOptions) -> Self {
        self.buildkit.push(options);
        self
    }

    /// With all of them: NATS, Gitea, the registry and one BuildKit daemon.
    pub fn all(self) -> Self {
        self.nats().gitea().registry().buildkit(1)
    }

    /// Builds what the cache lacks (minutes, the first time, with progress on standard error), starts all peers
    /// at once and waits until each is ready.
    ///
    /// # Errors
    /// When a peer cannot be built or started, with its name and the end of its log.
    pub async fn start(self) -> Result<Bed> {
        let cache = Cache::open()?;
        let (products, preparing) = (self.products(), cache.clone());
        tokio::task::spawn_blocking(move || install::ensure(&preparing, &products))
            .await
            .context("preparing the bed's binaries")??;
        let folder = Folder::create()?;
        let free = || self.address.map_or_else(Site::free, Site::free_at);
        let registry_site = if self.registry { Some(free()?) } else { None };
        let registry_port = registry_site.as_ref().filter(|_| self.address.is_none()).map(Site::port);
        let cache = &cache;
        let path = folder.path();
        let nats = async {
            let Some(options) = self.nats else { return Ok(None) };
            Nats::start(cache, &subfolder(path, "nats")?, (free()?, free()?), options).await.map(Some)
        };
        let gitea = async {
            let Some(options) = &self.gitea else { return Ok(None) };
            Gitea::start(cache, &subfolder(path, "gitea")?, free()?, options).await.map(Some)
        };
        let registry = async {
            let Some(site) = registry_site else { return Ok(None) };
            Registry::start(cache, &subfolder(path, "registry")?, site).await.map(Some)
        };
        let buildkit = try_join_all(self.buildkit.iter().enumerate().map(async |(number, options)| {
            let folder = subfolder(path, &format!("buildkit-{number}"))?;
            Buildkit::start(cache, &folder, number, registry_port, options).await
        }));
        let (nats, gitea, registry, buildkit) =
            tokio::try_join!(Box::pin(nats), Box::pin(gitea), Box::pin(registry), Box::pin(buildkit))?;
        let peers = Arc::new(Peers { nats, gitea, registry, buildkit, folder: path.to_owned() });
        report_on_panic(peers.clone());
        Ok(Bed { peers, cache: cache.clone(), folder })
    }

    fn products(&self) -> Vec<Product> {
        let wanted = [
            (self.nats.is_some(), [Product::Nats].as_slice()),
            (self.gitea.is_some(), &[Product::Gitea, Product::GiteaData]),
            (self.registry, &[Product::Registry, Product::Busybox]),
            (!self.buildkit.is_empty(), &[Product::Rootlesskit, Product::Buildkit]),
        ];
        wanted.into_iter().filter(|(wanted, _)| *wanted).flat_map(|(_, products)| products).copied().collect()
    }
}

fn subfolder(bed: &Path, name: &str) -> Result<PathBuf> {
    let folder = bed.join(name);
    std::fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder)
}

/// A set of running peers in one temporary folder. Dropping it kills them and removes the folder; during a panic
/// the folder stays for an hour, for its logs.
#[derive(Debug)]
pub struct Bed {
    peers: Arc<Peers>,
    cache: Cache,
    /// Last, because fields drop in order: the peers must be dead before their files go.
    folder: Folder,
}

impl Bed {
    /// Starts the choice of peers.
    pub fn builder() -> BedBuilder {
        BedBuilder::default()
    }

    /// The bed with all peers that this process's tests share, started on first use. Its peers must be left as
    /// they are: a test that stops one takes a bed of its own.
    ///
    /// # Panics
    /// When it cannot be started, with the reason.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Bed> = OnceCell::const_new();
        let bed = SHARED.get_or_try_init(|| Self::builder().all().start()).await;
        bed.unwrap_or_else(|error| panic!("the shared bed did not start: {error:#}"))
    }

    /// The bus.
    ///
    /// # Panics
    /// When the bed was started without.
    #[must_use]
    pub fn nats(&self) -> &Nats {
        self.peers.nats.as_ref().unwrap_or_else(|| panic!("this bed was started without NATS"))
    }

    /// The forge.
    ///
    /// # Panics
    /// When the bed was started without.
    #[must_use]
    pub fn gitea(&self) -> &Gitea {
        self.peers.gitea.as_ref().unwrap_or_else(|| panic!("this bed was started without Gitea"))
    }

    /// The registry.
    ///
    /// # Panics
    /// When the bed was started without.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        self.peers.registry.as_ref().unwrap_or_else(|| panic!("this bed was started without a registry"))
    }

    /// A builder, counted from 0.
    ///
    /// # Panics
    /// When the bed was started with fewer.
    #[must_use]
    pub fn buildkit(&self, number: usize) -> &Buildkit {
        let daemon = self.peers.buildkit.get(number);
        daemon.unwrap_or_else(|| panic!("this bed has no BuildKit daemon {number}"))
    }

    /// Every builder, in order.
    #[must_use]
    pub fn builders(&self) -> &[Buildkit] {
        &self.peers.buildkit
    }

    /// The bed's own folder, for files that should go when it goes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The `nats` command line, built when the cache lacks it; the server's URL goes in `--server`.
    ///
    /// # Errors
    /// When it cannot be built.
    pub async fn nats_cli(&self) -> Result<tokio::process::Command> {
        let cache = self.cache.clone();
        tokio::task::spawn_blocking(move || install::ensure(&cache, &[Product::NatsCli])).await??;
        let mut command = tokio::process::Command::new(self.cache.folder(Product::NatsCli).join("nats"));
        // It keeps contexts in the home folder: the caller's must not change what a test sees.
        command.env("HOME", self.folder()).env_remove("XDG_CONFIG_HOME").kill_on_drop(true);
        Ok(command)
    }

    /// A small Debian with bash, git and curl in the bed's registry, for `FROM`: built when the cache lacks it, and pushed.
    ///
    /// # Errors
    /// When it cannot be built.
    ///
    /// # Panics
    /// When the bed was started without a registry.
    pub async fn debian(&self) -> Result<String> {
        let cache = self.cache.clone();
        tokio::task::spawn_blocking(move || install::ensure(&cache, &[Product::Debian])).await??;
        let image = self.registry().push_debian(&self.cache.folder(Product::Debian)).await?;
        Ok(format!("{}/{image}", self.registry().host()))
    }

    /// The `buildctl` program, for benchmarks that call it by themselves.
    #[must_use]
    pub fn buildctl(&self) -> PathBuf {
        self.cache.folder(Product::Buildkit).join("buildctl")
    }

    /// The last lines of every peer's log.
    #[must_use]
    pub fn logs(&self) -> String {
        self.peers.report()
    }

    /// Stops every peer in turn, politely, and removes the folder.
    ///
    /// # Errors
    /// When a process cannot be ended.
    pub async fn stop(self) -> Result<()> {
        // Those that talk to others first.
        for peer in self.peers.iter().collect::<Vec<_>>().into_iter().rev() {
            peer.stop().await?;
        }
        Ok(())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.folder.keep();
        }
    }
}

#[derive(Debug)]
struct Peers {
    nats: Option<Nats>,
    gitea: Option<Gitea>,
    registry: Option<Registry>,
    buildkit: Vec<Buildkit>,
    folder: PathBuf,
}

impl Peers {
    fn iter(&self) -> impl Iterator<Item = &Peer> {
        let nats = self.nats.iter().map(Nats::peer);
        let gitea = self.gitea.iter().map(Gitea::peer);
        let registry = self.registry.iter().map(Registry::peer);
        nats.chain(gitea).chain(registry).chain(self.buildkit.iter().map(Buildkit::peer))
    }
}

impl Reporting for Peers {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn report(&self) -> String {
        self.iter().map(Peer::report).collect()
    }
}
