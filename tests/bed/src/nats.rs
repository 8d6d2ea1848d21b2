//! NATS with JetStream.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::install::{Cache, Product};
use crate::peer::{Peer, Ready};
use crate::site::Site;
use crate::spawn::Launch;
use crate::template::fill;

/// The users of the bus, one per role. `admin` may do anything; the others what `config/nats.conf` says.
pub const ROLES: [&str; 7] = ["receiver", "worker", "reconciler", "operator", "observer", "mirror", "admin"];

const DEFAULT_FILE_STORE: u64 = 4 << 30;

/// What a test may ask of the bus beyond the usual.
#[derive(Debug, Clone, Copy, Default)]
pub struct NatsOptions {
    /// Bytes that JetStream may keep on disk, 4 GiB when `None`. A small number is a full disk.
    pub max_file_store: Option<u64>,
    /// No users at all: anyone may do anything, and writes are not synced.
    pub open: bool,
}

/// The bus of a bed.
#[derive(Debug)]
pub struct Nats {
    peer: Peer,
    site: Site,
    monitor: Site,
    /// One per entry of [`ROLES`]; none on an open bus.
    passwords: Vec<String>,
}

impl Nats {
    /// Listens at `site`, and at `monitor` for who watches it; both in the same network.
    pub(crate) async fn start(
        cache: &Cache,
        folder: &Path,
        (site, monitor): (Site, Site),
        options: NatsOptions,
    ) -> Result<Self> {
        let store = folder.join("jetstream");
        fs::create_dir_all(&store)?;
        let passwords: Vec<String> =
            if options.open { Vec::new() } else { ROLES.iter().map(|_| crate::template::secret()).collect() };
        let names: Vec<String> =
            ROLES.iter().map(|role| format!("PASSWORD_{}", role.to_uppercase())).collect();
        let (port_text, monitor_text) = (site.port().to_string(), monitor.port().to_string());
        let address = site.address().to_string();
        let max_file_store = options.max_file_store.unwrap_or(DEFAULT_FILE_STORE).to_string();
        let store_text = store.to_string_lossy();
        let mut values = vec![
            ("ADDRESS", address.as_str()),
            ("PORT", &port_text),
            ("MONITOR_PORT", &monitor_text),
            ("STORE", &store_text),
            ("MAX_FILE_STORE", &max_file_store),
        ];
        values.extend(names.iter().map(String::as_str).zip(passwords.iter().map(String::as_str)));
        let template = match options.open {
            true => include_str!("../config/nats-open.conf"),
            false => include_str!("../config/nats.conf"),
        };
        let config = folder.join("nats.conf");
        fs::write(&config, fill(template, &values)?).context("writing the configuration of NATS")?;
        let launch = Launch {
            program: cache.folder(Product::Nats).join("nats-server"),
            args: vec!["--config".to_owned(), config.to_string_lossy().into_owned()],
            env: Vec::new(),
            folder: folder.to_owned(),
            user: None,
            entry: site.entry(),
        };
        let ready = Ready::Http(format!("http://{}/healthz?js-enabled-only=true", monitor.socket()));
        let peer = Peer::start("nats", launch, ready, folder.join("nats.log")).await?;
        Ok(Self { peer, site, monitor, passwords })
    }

    /// One that runs already, with a password for each of [`ROLES`].
    pub(crate) fn attached(peer: Peer, (site, monitor): (Site, Site), passwords: Vec<String>) -> Self {
        Self { peer, site, monitor, passwords }
    }

    /// One per entry of [`ROLES`]; none on an open bus.
    pub(crate) fn passwords(&self) -> &[String] {
        &self.passwords
    }

    /// The process.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// `nats://user:password@127.0.0.1:PORT` for a role of [`ROLES`]; without a user on an open bus.
    ///
    /// # Panics
    /// When there is no such role.
    #[must_use]
    pub fn url(&self, role: &str) -> String {
        if self.passwords.is_empty() {
            return self.address();
        }
        format!("nats://{role}:{}@{}", self.password(role), self.site.socket())
    }

    /// `nats://127.0.0.1:PORT`, without a user.
    #[must_use]
    pub fn address(&self) -> String {
        format!("nats://{}", self.site.socket())
    }

    /// The user name of a role, which is the role's name.
    ///
    /// # Panics
    /// When there is no such role.
    #[must_use]
    pub fn user(&self, role: &str) -> &'static str {
        ROLES[index(role)]
    }

    /// The password of a role, new for each bed.
    ///
    /// # Panics
    /// When there is no such role, or the bus is open.
    #[must_use]
    pub fn password(&self, role: &str) -> &str {
        &self.passwords[index(role)]
    }

    /// The base of the monitoring endpoints, like `/jsz` and `/connz`.
    #[must_use]
    pub fn monitor_url(&self) -> String {
        format!("http://{}", self.monitor.socket())
    }
}

fn index(role: &str) -> usize {
    let found = ROLES.iter().position(|known| *known == role);
    found.unwrap_or_else(|| panic!("the bus has no role {role:?}, only {ROLES:?}"))
}
