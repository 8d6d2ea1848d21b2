//! Rootless BuildKit.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::install::{Account, Cache, Product, user_namespaces_restricted};
use crate::peer::{Peer, Ready};
use crate::ports::free_port;
use crate::spawn::Launch;
use crate::template::fill;

/// Certificates in PEM files. The bed copies them to where the daemon can read them.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// What clients' certificates must be signed by; nobody is asked for one when `None`.
    pub ca: Option<PathBuf>,
    /// The daemon's certificate, valid for 127.0.0.1.
    pub cert: PathBuf,
    /// The daemon's key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// The daemon's flag for each file, what it is called in the daemon's home, and where it comes from.
    fn files(&self) -> impl Iterator<Item = (&'static str, &'static str, &Path)> {
        let ca = self.ca.as_deref().map(|ca| ("--tlscacert", "ca.pem", ca));
        let own: [(_, _, &Path); 2] =
            [("--tlscert", "cert.pem", &self.cert), ("--tlskey", "key.pem", &self.key)];
        ca.into_iter().chain(own)
    }
}

/// What a test may ask of a daemon beyond the usual.
#[derive(Debug, Clone, Default)]
pub struct BuildkitOptions {
    /// TLS on the TCP address, mutual with an authority for clients; plain when `None`.
    pub tls: Option<TlsFiles>,
    /// Tables appended to `buildkitd.toml`.
    pub extra_toml: String,
}

/// One daemon of a bed: rootlesskit and buildkitd in a user, mount and pid namespace of their own, without the
/// process sandbox, on the host's network.
#[derive(Debug)]
pub struct Buildkit {
    peer: Peer,
    port: u16,
    socket: PathBuf,
    buildctl: PathBuf,
}

impl Buildkit {
    /// `registry` is the port of a plain-http registry that the daemon may talk to.
    pub(crate) async fn start(
        cache: &Cache,
        folder: &Path,
        number: usize,
        registry: Option<u16>,
        options: &BuildkitOptions,
    ) -> Result<Self> {
        let port = free_port()?;
        let account = Account::for_builds()?;
        let bin = share_binaries(cache, folder)?;
        let home = Home::prepare(folder, registry, options, &account)?;
        let socket = home.run.join("buildkitd.sock");
        let buildctl = cache.folder(Product::Buildkit).join("buildctl");
        let launch = Launch {
            program: bin.join("rootlesskit"),
            args: arguments(&bin, &home, port, &socket, options.tls.as_ref()),
            env: vec![
                ("HOME".to_owned(), text(&home.path)),
                ("USER".to_owned(), account.name.clone()),
                ("TMPDIR".to_owned(), text(&home.path)),
                ("XDG_RUNTIME_DIR".to_owned(), text(&home.run)),
            ],
            folder: home.path.clone(),
            user: account.switch.then(|| account.name.clone()),
            entry: None,
        };
        // The socket never speaks TLS, so one probe serves both kinds.
        let probe = ["--addr", &format!("unix://{}", text(&socket)), "debug", "workers"].map(str::to_owned);
        let ready = Ready::Command(buildctl.clone(), probe.into());
        let name = format!("buildkit-{number}");
        let log = folder.join(format!("{name}.log"));
        let peer = Peer::start(&name, launch, ready, log).await.with_context(|| hint(&name))?;
        Ok(Self { peer, port, socket, buildctl })
    }

    /// The process: rootlesskit, with the daemon and its builds below it.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// `tcp://127.0.0.1:PORT`, with TLS when it was asked for.
    #[must_use]
    pub fn address(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    /// `unix://…`, never with TLS.
    #[must_use]
    pub fn unix_address(&self) -> String {
        format!("unix://{}", text(&self.socket))
    }

    /// A `buildctl` command for this daemon, to which arguments can be added.
    #[must_use]
    pub fn buildctl(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.buildctl);
        command.args(["--addr", &self.unix_address()]).kill_on_drop(true);
        command
    }
}

fn hint(name: &str) -> String {
    let remedy = "AppArmor may forbid it here: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0";
    if user_namespaces_restricted() {
        format!("starting {name} ({remedy})")
    } else {
        format!("starting {name}")
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Links (or copies) the binaries to where the daemon's user can walk: a cache below /root is closed to it.
fn share_binaries(cache: &Cache, folder: &Path) -> Result<PathBuf> {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin)?;
    for (product, name) in [(Product::Buildkit, "buildkitd"), (Product::Rootlesskit, "rootlesskit")] {
        let (from, to) = (cache.folder(product).join(name), bin.join(name));
        if fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
        }
    }
    Ok(bin)
}

/// The daemon's own folders, which belong to its user.
struct Home {
    path: PathBuf,
    run: PathBuf,
    state: PathBuf,
    config: PathBuf,
}

impl Home {
    fn prepare(
        folder: &Path,
        registry: Option<u16>,
        options: &BuildkitOptions,
        account: &Account,
    ) -> Result<Self> {
        let path = folder.join("home");
        let home = Self {
            run: path.join("run"),
            state: path.join("state"),
            config: path.join("buildkitd.toml"),
            path,
        };
        for made in [&home.path, &home.run, &home.state] {
            fs::create_dir_all(made)?;
        }
        let registry = registry
            .map_or_else(String::new, |port| format!("[registry.\"127.0.0.1:{port}\"]\n  http = true\n"));
        let values = [("REGISTRY", registry.as_str()), ("EXTRA", &options.extra_toml)];
        fs::write(&home.config, fill(include_str!("../config/buildkitd.toml"), &values)?)?;
        let mut owned = vec![home.path.clone(), home.run.clone(), home.state.clone(), home.config.clone()];
        if let Some(tls) = &options.tls {
            for (_, name, from) in tls.files() {
                let to = home.path.join(name);
                fs::copy(from, &to).with_context(|| format!("copying {}", from.display()))?;
                fs::set_permissions(&to, Permissions::from_mode(0o600))?;
                owned.push(to);
            }
        }
        if account.switch {
            for path in owned {
                chown(&path, Some(account.uid), Some(account.gid))?;
            }
        }
        Ok(home)
    }
}

fn arguments(bin: &Path, home: &Home, port: u16, socket: &Path, tls: Option<&TlsFiles>) -> Vec<String> {
    let mut args: Vec<String> = ["--net=host", "--copy-up=/etc", "--pidns"].map(str::to_owned).into();
    args.push(format!("--state-dir={}", text(&home.path.join("rootlesskit"))));
    args.push(text(&bin.join("buildkitd")));
    args.extend(["--rootless", "--oci-worker-no-process-sandbox"].map(str::to_owned));
    args.extend(["--config".to_owned(), text(&home.config), "--root".to_owned(), text(&home.state)]);
    args.extend(["--addr".to_owned(), format!("unix://{}", text(socket))]);
    args.extend(["--addr".to_owned(), format!("tcp://127.0.0.1:{port}")]);
    for (flag, name, _) in tls.into_iter().flat_map(TlsFiles::files) {
        args.extend([flag.to_owned(), text(&home.path.join(name))]);
    }
    args
}
