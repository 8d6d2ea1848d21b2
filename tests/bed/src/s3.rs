//! Buckets with access keys: versitygw, which speaks S3 and keeps objects in files.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::folder::Folder;
use crate::install::{self, Cache, Product};
use crate::peer::{Peer, Ready};
use crate::site::Site;
use crate::spawn::Launch;
use crate::template::secret;

/// Who may do anything.
const ADMIN: &str = "admin";
const LONGEST: Duration = Duration::from_secs(30);

/// A server of its own, without TLS. Dropping it kills it and removes its folder.
#[derive(Debug)]
pub struct S3 {
    peer: Peer,
    site: Site,
    program: PathBuf,
    password: String,
    /// Last, because fields drop in order.
    _folder: Folder,
}

impl S3 {
    /// The region that requests are signed for.
    pub const REGION: &str = "us-east-1";

    /// One without buckets at an address of this machine, built when the cache lacks it.
    ///
    /// # Errors
    /// When it cannot be had or started, with the end of its log.
    pub async fn start_at(address: Ipv4Addr) -> Result<Self> {
        let preparing = tokio::task::spawn_blocking(|| {
            let cache = Cache::open()?;
            install::ensure(&cache, &[Product::S3])?;
            anyhow::Ok((cache.folder(Product::S3).join("versitygw"), Folder::create()?))
        });
        let (program, folder) = preparing.await.context("preparing the S3 server")??;
        let below = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).map(|()| path.to_string_lossy().into_owned())
        };
        // Beside the objects, since not every file system has attributes.
        let (users, attributes, objects) = (below("users")?, below("attributes")?, below("objects")?);
        let (site, password) = (Site::free_at(address)?, secret());
        let listen = site.socket().to_string();
        let args = ["--quiet", "--health", "/health", "--region", Self::REGION, "--port", &listen];
        let args = args.into_iter().chain(["--iam-dir", &users, "posix", "--sidecar", &attributes, &objects]);
        let launch = Launch {
            program: program.clone(),
            args: args.map(str::to_owned).collect(),
            env: vec![
                ("ROOT_ACCESS_KEY".to_owned(), ADMIN.to_owned()),
                ("ROOT_SECRET_KEY".to_owned(), password.clone()),
            ],
            folder: folder.path().to_owned(),
            user: None,
            entry: site.entry(),
        };
        let ready = Ready::Http(format!("http://{listen}/health"));
        let peer = Peer::start("s3", launch, ready, folder.path().join("s3.log")).await?;
        Ok(Self { peer, site, program, password, _folder: folder })
    }

    /// The process.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddrV4 {
        self.site.socket()
    }

    /// Makes somebody who may use what is theirs.
    ///
    /// # Errors
    /// When the server refuses, also because there is one with this key.
    pub async fn create_user(&self, access_key: &str, secret_key: &str) -> Result<()> {
        let args = ["create-user", "--access", access_key, "--secret", secret_key, "--role", "user"];
        self.administer(&args).await.map(drop)
    }

    /// Makes a bucket that nobody but `owner` may use.
    ///
    /// # Errors
    /// When the server refuses, also because there is one of this name.
    pub async fn create_bucket(&self, name: &str, owner: &str) -> Result<()> {
        self.administer(&["create-bucket", "--owner", owner, "--bucket", name]).await.map(drop)
    }

    /// The names of all buckets, sorted.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn buckets(&self) -> Result<Vec<String>> {
        let table = self.administer(&["list-buckets"]).await?;
        // Below two lines of headings.
        let names = table.lines().skip(2).filter_map(|line| line.split_whitespace().next());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    async fn administer(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.arg("admin").args(args).kill_on_drop(true);
        command.env("ADMIN_ENDPOINT_URL", format!("http://{}", self.address()));
        command.env("ADMIN_REGION", Self::REGION);
        command.env("ADMIN_ACCESS_KEY", ADMIN).env("ADMIN_SECRET_KEY", &self.password);
        let output =
            tokio::time::timeout(LONGEST, command.output()).await.context("the S3 server hangs")??;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", args[0], told.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
