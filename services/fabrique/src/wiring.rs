//! From configuration to adapters. Nothing here decides anything.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use fabrique_buildkit::{BuildkitConfig, Provenance, Tls, TlsFiles, TlsIdentity};
use fabrique_bus::{Bus, BusConfig};
use fabrique_core::app::RegistryCache;
use fabrique_core::id::{BranchName, RepoName};
use fabrique_core::policy::Policy;
use fabrique_git::{AppsRepository, GitConfig, GitDeployments, GitHistory, Identity, ReadTokens};
use fabrique_gitea::{Gitea, GiteaConfig, Tokens};
use fabrique_github::{Github, GithubConfig, Relay, RelayConfig};
use fabrique_gitops::Rules;
use fabrique_observer::{AppsReader, Observer};
use fabrique_reconciler::Reconciler;
use fabrique_registry::{Access, Credentials, OciRegistry, RegistryConfig};
use secrecy::SecretString;
use url::Url;

use crate::ambient::{self, System};
use crate::config::{Config, Role};
use crate::forges::Forges;

/// Everything that needs no connection to be made.
pub(crate) struct Adapters {
    pub(crate) config: Config,
    pub(crate) apps_repo: RepoName,
    pub(crate) apps_branch: BranchName,
    /// For hooks and inspection; sources are read through `forge`.
    pub(crate) gitea: Gitea,
    pub(crate) forge: Arc<Forges>,
    pub(crate) source: Arc<GitHistory>,
    /// How git is run, also in a person's checkout.
    pub(crate) git: GitConfig,
    pub(crate) deployments: Arc<GitDeployments>,
    pub(crate) registry: Arc<OciRegistry>,
    pub(crate) apps: Arc<AppsReader>,
    read_tokens: BTreeMap<String, SecretString>,
}

impl Adapters {
    /// Makes the adapters that `config`, which was checked, describes.
    pub(crate) fn new(config: Config) -> anyhow::Result<Self> {
        let apps_repo = RepoName::parse(&config.gitea.apps_repo)?;
        let apps_branch = BranchName::parse(&config.gitea.apps_branch)?;
        let base = Url::parse(&config.gitea.url).context("gitea.url")?;
        let read_tokens = match &config.gitea.read_tokens_dir {
            Some(directory) => read_tokens(directory)?,
            None => BTreeMap::new(),
        };
        let git = git_config(&config, &base, &apps_repo, &apps_branch, &read_tokens);
        let deployments = Arc::new(GitDeployments::new(git.clone())?);
        let rules = Rules { registries: config.registry.allowed.clone() };
        let api = gitea_config(&config, base, &apps_repo)?;
        let forge = Arc::new(Forges::new(&api, &read_tokens)?);
        let apps = AppsReader::new(Arc::clone(&deployments) as _, rules).asking(
            Arc::clone(&forge) as _,
            apps_repo.clone(),
            apps_branch.clone(),
        );
        Ok(Self {
            gitea: Gitea::new(api)?,
            forge,
            source: Arc::new(GitHistory::new(git.clone())?),
            git,
            registry: Arc::new(OciRegistry::new(registry_config(&config))?),
            apps: Arc::new(apps),
            deployments,
            apps_repo,
            apps_branch,
            read_tokens,
            config,
        })
    }

    /// The bounds of retries and supersedes.
    pub(crate) fn policy(&self) -> Policy {
        let worker = &self.config.worker;
        Policy {
            max_attempts: worker.max_attempts.into(),
            backoff_base: worker.backoff_base.get(),
            backoff_max: worker.backoff_max.get(),
            dead_letter_rest: worker.dead_letter_rest.get(),
            max_supersedes: worker.max_supersedes.into(),
        }
    }

    /// An observer that reads what is kept from `bus`.
    pub(crate) fn observer(&self, bus: Arc<Bus>) -> Observer {
        Observer::new(
            Arc::clone(&self.forge) as _,
            Arc::clone(&self.source) as _,
            Arc::clone(&self.registry) as _,
            Arc::clone(&bus) as _,
            self.policy(),
        )
        .knowing(bus)
        .rendering(self.config.render.enabled.then(|| self.config.render_settings()).flatten())
    }

    /// GitHub, as the job that asks there reaches it.
    pub(crate) fn github(&self) -> anyhow::Result<Github> {
        let section = &self.config.github;
        let mut config = GithubConfig::new(Url::parse(&section.url).context("github.url")?);
        config.token = section.token.get();
        config.proxy = section.proxy.as_deref().map(Url::parse).transpose().context("github.proxy")?;
        config.authority =
            section.ca_file.as_ref().map(std::fs::read).transpose().context("github.ca_file")?;
        config.timeouts = section.timeouts.get();
        Ok(Github::new(&config, Arc::new(ambient::now))?)
    }

    /// Gitea's way to GitHub, where this process is to be it.
    pub(crate) async fn relay(&self) -> anyhow::Result<Option<Relay>> {
        let section = &self.config.github;
        let Some(listen) = &section.relay else { return Ok(None) };
        let config = RelayConfig {
            listen: listen.parse().context("github.relay")?,
            to: Url::parse(&section.clone_url).context("github.clone_url")?,
            proxy: section.proxy.as_deref().map(Url::parse).transpose().context("github.proxy")?,
        };
        Ok(Some(Relay::open(config).await.context("github.relay")?))
    }

    /// How build daemons are driven.
    pub(crate) fn buildkit_config(&self) -> anyhow::Result<BuildkitConfig> {
        let section = &self.config.buildkit;
        let registry = &self.config.registry;
        let git_url = section.git_url.as_ref().unwrap_or(&self.config.gitea.url);
        let mut config = BuildkitConfig::new(Url::parse(git_url).context("buildkit.git_url")?);
        config.git_token = self.config.gitea.read_token.get();
        config.git_tokens.clone_from(&self.read_tokens);
        config.permitted_bases =
            if registry.bases.is_empty() { registry.allowed.clone() } else { registry.bases.clone() };
        config.permitted_hosts.clone_from(&section.permitted_hosts);
        config.secrets_dir.clone_from(&section.secrets_dir);
        config.patience = section.timeouts.get();
        config.logs = section.logs.get();
        if section.provenance {
            config.provenance = Provenance::Min;
        }
        if section.registry_cache {
            config.cache = RegistryCache::Both;
        }
        config.step_processes = section.step_processes.map(Into::into);
        let tls = &section.tls;
        let identity = tls.cert_file.clone().zip(tls.key_file.clone());
        let identity = identity.map(|(cert, key)| TlsIdentity { cert, key });
        config.tls = tls.ca_file.clone().map(|ca| Tls::Files(TlsFiles { ca, identity }));
        Ok(config)
    }

    /// How `role` reaches the bus.
    pub(crate) fn bus_config(&self, role: Role) -> anyhow::Result<BusConfig> {
        let section = &self.config.nats;
        let user = section.users.get(&role).cloned().unwrap_or_default();
        let mut config = BusConfig::new(section.servers.iter());
        role.as_str().clone_into(&mut config.name);
        if let Some(password) = user.password.get() {
            config = config.as_user(user.user.unwrap_or_else(|| role.as_str().to_owned()), password);
        }
        config.replicas = section.replicas.into();
        config.monitoring.clone_from(&section.monitoring);
        config.timeouts = section.timeouts.get();
        config.limits = section.limits.get();
        config.tls.authority.clone_from(&section.tls.ca_file);
        config.tls.identity = match (&section.tls.cert_file, &section.tls.key_file) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(anyhow!("nats.tls: cert_file and key_file belong together; set both or neither"));
            }
        };
        Ok(config)
    }

    /// Connects to the bus as `role`.
    pub(crate) async fn bus(&self, role: Role) -> anyhow::Result<Bus> {
        Ok(Bus::connect(self.bus_config(role)?).await?)
    }

    /// Whether the configuration can speak as `role`.
    pub(crate) fn has_user(&self, role: Role) -> bool {
        self.config.nats.users.get(&role).is_some_and(|user| user.password.is_set())
    }
}

fn git_config(
    config: &Config,
    base: &Url,
    repo: &RepoName,
    branch: &BranchName,
    read_tokens: &BTreeMap<String, SecretString>,
) -> GitConfig {
    let gitea = &config.gitea;
    let apps = AppsRepository {
        repo: repo.clone(),
        branch: branch.clone(),
        token: gitea.apps_token.get(),
        identity: Identity { name: gitea.author_name.clone(), email: gitea.author_email.clone() },
    };
    let mut git = GitConfig::new(config.state.dir.clone(), base.clone(), apps);
    git.ca_file.clone_from(&gitea.ca_file);
    git.timeouts = config.git.timeouts.get();
    git.limits = config.git.limits.get();
    git.read = ReadTokens { by_org: read_tokens.clone(), default: gitea.read_token.get() };
    git
}

fn gitea_config(config: &Config, base: Url, apps_repo: &RepoName) -> anyhow::Result<GiteaConfig> {
    let gitea = &config.gitea;
    let receiver = &config.receiver;
    let authority = gitea.ca_file.as_ref().map(std::fs::read).transpose().context("gitea.ca_file")?;
    Ok(GiteaConfig {
        authority,
        tokens: Tokens {
            read: gitea.read_token.get(),
            status: gitea.status_token.get(),
            hooks: gitea.hooks_token.get(),
            apps: gitea.apps_token.get(),
        },
        apps_repo: Some(apps_repo.clone()),
        hook_secret: receiver.next_secret.get().or(receiver.secret.get()),
        former_hook_secret: receiver.next_secret.get().and(receiver.secret.get()),
        clone_token: config.github.clone_token.get(),
        timeouts: gitea.timeouts.get(),
        ..GiteaConfig::new(base)
    })
}

fn registry_config(config: &Config) -> RegistryConfig {
    let section = &config.registry;
    let host = |registry: &String| registry.split('/').next().unwrap_or_default().to_owned();
    let credentials = || match (&section.user, section.password.get()) {
        (Some(user), Some(password)) => Credentials::Basic { user: user.clone(), password },
        _ => Credentials::Anonymous,
    };
    let hosts = section.allowed.iter().chain(&section.bases).map(host);
    let hosts = hosts.map(|host| {
        let address = section.addresses.iter().find(|listed| listed.host == host);
        let access = Access {
            plain_http: section.plain_http.contains(&host),
            credentials: credentials(),
            address: address.map(|listed| listed.address.clone()),
        };
        (host, access)
    });
    RegistryConfig { hosts: hosts.collect(), timeouts: section.timeouts.get() }
}

fn read_tokens(directory: &Path) -> anyhow::Result<BTreeMap<String, SecretString>> {
    let problem = || format!("gitea.read_tokens_dir: {}", directory.display());
    let mut tokens = BTreeMap::new();
    for entry in std::fs::read_dir(directory).with_context(problem)? {
        let entry = entry.with_context(problem)?;
        let Some(org) = entry.file_name().to_str().map(str::to_owned) else { continue };
        // Kubernetes mounts secrets with hidden bookkeeping entries beside the files.
        if org.starts_with('.') || !entry.path().is_file() {
            continue;
        }
        let token = std::fs::read_to_string(entry.path()).with_context(problem)?;
        tokens.insert(org, SecretString::from(token.trim_end().to_owned()));
    }
    Ok(tokens)
}

/// A reconciler over `bus`.
pub(crate) fn reconciler(adapters: &Adapters, bus: &Bus) -> Reconciler {
    let bus = Arc::new(bus.clone());
    let section = &adapters.config.reconciler;
    let ports = fabrique_reconciler::Ports {
        board: Arc::clone(&bus) as _,
        wakes: Arc::clone(&bus) as _,
        memories: Arc::clone(&bus) as _,
        history: Arc::clone(&bus) as _,
        logs: Arc::clone(&bus) as _,
        records: Arc::clone(&bus) as _,
        registry: Arc::clone(&adapters.registry) as _,
        events: Arc::clone(&bus) as _,
    };
    let config = fabrique_reconciler::Config {
        concurrency: section.concurrency.into(),
        full_every: section.full_every.into(),
        lease: adapters.config.worker.lease.get(),
    };
    Reconciler::new(config, ports, adapters.observer(bus), Arc::clone(&adapters.apps), Arc::new(System))
}
