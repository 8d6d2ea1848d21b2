//! Peers, organisations, tokens and fabrique's processes.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fabrique_bed::{
    Bed, BedBuilder, BuildkitOptions, GitRepo, GiteaOptions, Moment, Peer, Program, Queues, TlsFiles, Trap,
    Veto, free_port,
};
use serde_json::Value;
use tokio::process::Command;

use crate::config::{self, Pods, Ports, Settings, Tokens};
use crate::look::DEPLOYED;

/// A command for people ends well before this, or hangs.
const COMMAND: Duration = Duration::from_secs(60);
/// How long a push may take to be deployed from pods, of which each is made for a build and some are lost.
const IN_PODS: Duration = Duration::from_mins(3);
/// The secret that webhooks sign with.
const SECRET: &str = "s3cret";

/// The users behind the tokens.
const READER: &str = "fabrique-read";
pub(crate) const REPORTER: &str = "fabrique-status";
const HOOKER: &str = "fabrique-hooks";
/// What the tokens that write may do.
pub(crate) const WRITES: [&str; 2] = ["write:repository", "read:user"];
pub(crate) const DEPLOYER: &str = "fabrique-apps";

/// A bed with `cluster/apps`, tokens and a configuration; fabrique itself is started by hand.
pub struct Stage {
    /// The servers.
    pub bed: Bed,
    /// How fabrique is configured.
    pub settings: Settings,
    binary: PathBuf,
    tokens: Tokens,
    receiver_port: u16,
    started: AtomicUsize,
    config: PathBuf,
    /// How long a push may take to be deployed, faults included. Never slept: only a bound.
    pub(crate) patience: Duration,
}

/// What a stage is made of.
#[derive(Default)]
pub struct StageBuilder {
    settings: Settings,
    builders: usize,
    queues: Queues,
    tls: Option<TlsFiles>,
    address: Option<Ipv4Addr>,
}

impl StageBuilder {
    /// With these settings.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// With that many build daemons instead of one.
    #[must_use]
    pub fn builders(mut self, count: usize) -> Self {
        self.builders = count;
        self
    }

    /// With these queues between a push and its webhook, instead of fast ones.
    #[must_use]
    pub fn queues(mut self, queues: Queues) -> Self {
        self.queues = queues;
        self
    }

    /// With peers at this address, where pods of a cluster reach them, and without a build daemon: builds run in pods,
    /// once [`Stage::build_in`] has told of them.
    #[must_use]
    pub fn beside_pods(mut self, address: Ipv4Addr) -> Self {
        self.address = Some(address);
        self
    }

    /// With build daemons that speak TLS with these certificates.
    #[must_use]
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// Starts the peers and prepares them.
    ///
    /// # Errors
    /// When a peer does not start, with its log.
    pub async fn start(self, binary: impl Into<PathBuf>) -> Result<Stage> {
        let gitea = GiteaOptions { queues: self.queues, ..GiteaOptions::default() };
        let bed = Bed::builder().nats().gitea_with(gitea).registry();
        let bed = match self.address {
            Some(address) => bed.at(address),
            None => {
                let daemon = BuildkitOptions { tls: self.tls, ..BuildkitOptions::default() };
                std::iter::repeat_n(daemon, self.builders.max(1)).fold(bed, BedBuilder::buildkit_with)
            }
        };
        let bed = bed.start().await?;
        bed.gitea().create_org("cluster").await?;
        bed.gitea().create_org("atlas").await?;
        let tokens = tokens(&bed).await?;
        bed.gitea().create_repo("cluster", "apps", true).await?;
        bed.gitea().add_collaborator("cluster", "apps", DEPLOYER, "write").await?;
        bed.gitea().add_collaborator("cluster", "apps", HOOKER, "admin").await?;
        let receiver_port = free_port()?;
        let mut stage = Stage {
            bed,
            settings: self.settings,
            binary: binary.into(),
            tokens,
            receiver_port,
            started: AtomicUsize::new(0),
            config: PathBuf::new(),
            patience: if self.address.is_some() { IN_PODS } else { DEPLOYED },
        };
        stage.configure_people()?;
        stage.command(&["init"]).await?;
        Ok(stage)
    }
}

/// One fabrique process.
pub struct Fabrique {
    /// Its handle.
    pub peer: Peer,
}

impl Stage {
    /// A stage to be described.
    #[must_use]
    pub fn builder() -> StageBuilder {
        StageBuilder::default()
    }

    /// Has whatever is started from now on build in these pods.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn build_in(&mut self, pods: Pods) -> Result<()> {
        self.settings.pods = Some(pods);
        self.configure_people()
    }

    /// Where webhook #2 delivers to.
    #[must_use]
    pub fn hook_url(&self) -> String {
        hook_url(self.receiver_port)
    }

    /// The secret of webhook #2.
    #[must_use]
    pub fn hook_secret(&self) -> &'static str {
        SECRET
    }

    /// The configuration file that commands for people use.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The binary.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Starts `fabrique all`.
    ///
    /// # Errors
    /// When it is not ready within a minute, with its log.
    pub async fn all(&self) -> Result<Fabrique> {
        self.all_with(&[]).await
    }

    /// Starts `fabrique all` with more environment.
    ///
    /// # Errors
    /// As [`Stage::all`].
    pub async fn all_with(&self, env: &[(&str, &str)]) -> Result<Fabrique> {
        self.spawn("all", &["all"], self.receiver_port, env).await
    }

    /// Starts `fabrique worker` alone.
    ///
    /// # Errors
    /// As [`Stage::all`].
    pub async fn worker(&self) -> Result<Fabrique> {
        self.spawn("worker", &["worker"], free_port()?, &[]).await
    }

    /// Starts `fabrique worker` with more environment.
    ///
    /// # Errors
    /// As [`Stage::all`].
    pub async fn worker_with(&self, env: &[(&str, &str)]) -> Result<Fabrique> {
        self.spawn("worker", &["worker"], free_port()?, env).await
    }

    /// Starts `fabrique receiver` alone.
    ///
    /// # Errors
    /// As [`Stage::all`].
    pub async fn receiver(&self) -> Result<Fabrique> {
        self.spawn("receiver", &["receiver"], self.receiver_port, &[]).await
    }

    /// Starts one more `fabrique receiver` with more environment. No webhook leads to it: the answer has its address.
    ///
    /// # Errors
    /// As [`Stage::all`].
    pub async fn another_receiver(&self, env: &[(&str, &str)]) -> Result<(Fabrique, String)> {
        let port = free_port()?;
        let receiver = self.spawn("receiver", &["receiver"], port, env).await?;
        Ok((receiver, hook_url(port)))
    }

    async fn spawn(
        &self,
        name: &str,
        args: &[&str],
        receiver_port: u16,
        env: &[(&str, &str)],
    ) -> Result<Fabrique> {
        let number = self.number();
        let folder = self.bed.folder().join(format!("{name}-{number}"));
        let worker_port = free_port()?;
        let config = self.configure_at(&folder, &Ports { receiver: receiver_port, worker: worker_port })?;
        let ready_port = if name == "worker" { worker_port } else { receiver_port };
        let mut env: Vec<(String, String)> =
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        env.push(("FABRIQUE_CONFIG".to_owned(), config.display().to_string()));
        if let Some(pods) = &self.settings.pods {
            env.push(("KUBECONFIG".to_owned(), pods.kubeconfig.display().to_string()));
        }
        env.push(("FABRIQUE_LOG".to_owned(), "info,fabrique_worker=debug".to_owned()));
        let program = Program {
            name: format!("fabrique-{name}-{number}"),
            executable: self.binary.clone(),
            args: args.iter().map(ToString::to_string).collect(),
            env,
            folder,
            ready_url: format!("http://127.0.0.1:{ready_port}/readyz"),
        };
        Ok(Fabrique { peer: Peer::run(program).await? })
    }

    /// Sets a trap for the next push to `cluster/apps`.
    ///
    /// # Errors
    /// When the forge's folder is not as expected.
    pub fn trap(&self, moment: Moment) -> Result<Trap> {
        self.bed.gitea().trap("cluster", "apps", moment)
    }

    /// Has the forge refuse every push to `cluster/apps` that changes something at or below `path`, with these words.
    ///
    /// # Errors
    /// When the forge's folder is not as expected.
    pub fn veto(&self, path: &str, words: &str) -> Result<Veto> {
        self.bed.gitea().veto("cluster", "apps", path, words)
    }

    /// A number that nothing else on this stage has.
    pub(crate) fn number(&self) -> usize {
        self.started.fetch_add(1, Ordering::Relaxed)
    }

    fn configure_people(&mut self) -> Result<()> {
        let folder = self.bed.folder().join("people");
        self.config = self.configure_at(&folder, &Ports { receiver: self.receiver_port, worker: 0 })?;
        Ok(())
    }

    fn configure_at(&self, folder: &Path, ports: &Ports) -> Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        config::write(folder, &self.bed, &self.settings, &self.tokens, SECRET, ports, &self.hook_url())
    }

    /// Runs a command for people and returns what it printed.
    ///
    /// # Errors
    /// When it does not end with 0, with both outputs.
    pub async fn command(&self, args: &[&str]) -> Result<String> {
        let (code, stdout, stderr) = self.try_command(args).await?;
        ensure!(code == 0, "fabrique {}: exit {code}\n{stdout}{stderr}", args.join(" "));
        Ok(stdout)
    }

    /// Runs a command for people and returns its exit code and both outputs.
    ///
    /// # Errors
    /// When it cannot be started or hangs.
    pub async fn try_command(&self, args: &[&str]) -> Result<(i32, String, String)> {
        self.try_command_with(&[], args).await
    }

    /// The same with more environment.
    ///
    /// # Errors
    /// As [`Stage::try_command`].
    pub async fn try_command_with(
        &self,
        env: &[(&str, &str)],
        args: &[&str],
    ) -> Result<(i32, String, String)> {
        let output = Command::new(&self.binary)
            .args(args)
            .envs(env.iter().copied())
            .env("FABRIQUE_CONFIG", &self.config)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(COMMAND, output)
            .await
            .with_context(|| format!("fabrique {} hangs", args.join(" ")))??;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr)))
    }

    /// Runs a command for people with `-o json`.
    ///
    /// # Errors
    /// When it fails or prints something else.
    pub async fn json(&self, args: &[&str]) -> Result<Value> {
        let mut all = args.to_vec();
        all.extend(["-o", "json"]);
        let text = self.command(&all).await?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }

    /// Creates a source repository that every purpose's user has its rights in.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn create_source(&self, org: &str, repo: &str, private: bool) -> Result<GitRepo> {
        self.bed.gitea().create_repo(org, repo, private).await?;
        self.admit(org, repo).await?;
        GitRepo::clone(&self.bed.gitea().clone_url_with_token(org, repo)).await
    }

    /// Gives every purpose's user its rights in a repository that is there already.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn admit(&self, org: &str, repo: &str) -> Result<()> {
        for (user, right) in [(READER, "read"), (REPORTER, "write"), (HOOKER, "admin")] {
            self.bed.gitea().add_collaborator(org, repo, user, right).await?;
        }
        Ok(())
    }

    /// Lets the user of the hooks token make repositories in an organisation, as mirrors have to be made.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn let_make_repositories(&self, org: &str) -> Result<()> {
        let gitea = self.bed.gitea();
        let teams = gitea.api("GET", &format!("/orgs/{org}/teams"), None).await?;
        let owners = teams.as_array().and_then(|teams| teams.iter().find(|team| team["name"] == "Owners"));
        let owners = owners.and_then(|team| team["id"].as_i64()).context("no team of owners")?;
        gitea.api("PUT", &format!("/teams/{owners}/members/{HOOKER}"), None).await?;
        Ok(())
    }

    /// A clone of `cluster/apps`, for what people do there.
    ///
    /// # Errors
    /// When it cannot be cloned.
    pub async fn clone_apps(&self) -> Result<GitRepo> {
        GitRepo::clone(&self.bed.gitea().clone_url_with_token("cluster", "apps")).await
    }

    /// Creates webhook #2 on a repository, outside of fabrique's own `hooks ensure`.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn hook(&self, org: &str, repo: &str) -> Result<i64> {
        self.bed.gitea().create_webhook(org, repo, &self.hook_url(), SECRET).await
    }

    /// Removes every webhook of a repository: from now on its pushes are told to nobody.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn drop_hooks(&self, org: &str, repo: &str) -> Result<()> {
        let path = format!("/repos/{org}/{repo}/hooks");
        let (_, hooks) = self.bed.gitea().api_as(self.bed.gitea().admin_token(), "GET", &path, None).await?;
        let Some(hooks) = hooks.as_array() else { bail!("no list of hooks: {hooks}") };
        for hook in hooks {
            let path = format!("/repos/{org}/{repo}/hooks/{}", hook["id"]);
            self.bed.gitea().api("DELETE", &path, None).await?;
        }
        Ok(())
    }
}

fn hook_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/webhook")
}

/// A user and a token for each purpose, with no more rights than it needs.
async fn tokens(bed: &Bed) -> Result<Tokens> {
    let token = async |user: &str, scopes: &[&str]| -> Result<String> {
        bed.gitea().create_user(user).await?;
        bed.gitea().create_token(user, scopes).await
    };
    Ok(Tokens {
        read: token(READER, &["read:repository", "read:user"]).await?,
        status: token(REPORTER, &WRITES).await?,
        hooks: token(HOOKER, &WRITES).await?,
        apps: token(DEPLOYER, &WRITES).await?,
    })
}
