//! The configuration file of a stage's fabrique.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use fabrique_bed::Bed;

/// What a test may want otherwise. Durations are as in the configuration file: `500ms`, `2s`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The workers' lease.
    pub lease: String,
    /// The first backoff.
    pub backoff_base: String,
    /// The longest backoff.
    pub backoff_max: String,
    /// The rest of a dead letter.
    pub dead_letter_rest: String,
    /// Attempts before one.
    pub max_attempts: u32,
    /// The time between two sweeps.
    pub sweep_every: String,
    /// How long a build waits for a daemon.
    pub patience: String,
    /// How long running work may go on after SIGTERM.
    pub grace: String,
    /// How long a build daemon may give no sign of life.
    pub silence: String,
    /// Attach provenance attestations.
    pub provenance: bool,
    /// Where build secrets lie.
    pub secrets_dir: Option<PathBuf>,
    /// Builds run in pods; on the bed's daemons when absent.
    pub pods: Option<Pods>,
}

/// What a worker has to know to build in pods of a cluster.
#[derive(Debug, Clone)]
pub struct Pods {
    /// Reaches the cluster's API server with a worker's rights.
    pub kubeconfig: PathBuf,
    /// `builders.yaml`.
    pub builders: String,
    /// The authority of builders' and workers' certificates, in PEM.
    pub authority: String,
    /// Its key, in PEM.
    pub key: String,
    /// The allow-list, where anything outside may be fetched.
    pub allow_list: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: "3s".to_owned(),
            backoff_base: "200ms".to_owned(),
            backoff_max: "2s".to_owned(),
            dead_letter_rest: "5s".to_owned(),
            max_attempts: 5,
            // Journeys that are about the reconciler run it themselves.
            sweep_every: "1h".to_owned(),
            patience: "10s".to_owned(),
            grace: "10s".to_owned(),
            silence: "1m".to_owned(),
            provenance: false,
            secrets_dir: None,
            pods: None,
        }
    }
}

/// Tokens by purpose, each of a user of its own.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    pub(crate) read: String,
    pub(crate) status: String,
    pub(crate) hooks: String,
    pub(crate) apps: String,
}

/// What one process's configuration differs in.
pub(crate) struct Ports {
    pub(crate) receiver: u16,
    pub(crate) worker: u16,
}

/// Writes secrets and the configuration file of one process into `folder`.
pub(crate) fn write(
    folder: &Path,
    bed: &Bed,
    settings: &Settings,
    tokens: &Tokens,
    secret: &str,
    ports: &Ports,
    hook_url: &str,
) -> Result<PathBuf> {
    let secret_file = |name: &str, value: &str| -> Result<String> {
        let path = folder.join(name);
        std::fs::write(&path, value)?;
        Ok(path.display().to_string())
    };
    let mut text = String::new();
    writeln!(text, "gitea:")?;
    writeln!(text, "  url: {}", bed.gitea().base_url())?;
    for (name, token) in
        [("read", &tokens.read), ("status", &tokens.status), ("hooks", &tokens.hooks), ("apps", &tokens.apps)]
    {
        writeln!(text, "  {name}_token_file: {}", secret_file(&format!("{name}-token"), token)?)?;
    }
    writeln!(text, "nats:")?;
    writeln!(text, "  servers: [\"{}\"]", bed.nats().address())?;
    writeln!(text, "  monitoring: {}", bed.nats().monitor_url())?;
    // A worker on a busy machine is slower with a person's command than one that people wait for.
    writeln!(text, "  timeouts: {{ command: 30s }}")?;
    writeln!(text, "  users:")?;
    for role in fabrique_bed::ROLES {
        let file = secret_file(&format!("nats-{role}"), bed.nats().password(role))?;
        writeln!(text, "    {role}: {{ password_file: {file} }}")?;
    }
    let registry = bed.registry().host();
    writeln!(text, "registry:\n  allowed: [\"{registry}\"]\n  plain_http: [\"{registry}\"]")?;
    writeln!(
        text,
        "buildkit:\n  provenance: {}\n  timeouts: {{ silence: {} }}",
        settings.provenance, settings.silence
    )?;
    if let Some(dir) = &settings.secrets_dir {
        writeln!(text, "  secrets_dir: {}", dir.display())?;
    }
    builders(&mut text, bed, settings.pods.as_ref(), &secret_file)?;
    writeln!(text, "receiver:\n  listen: 127.0.0.1:{}", ports.receiver)?;
    writeln!(text, "  public_url: {hook_url}")?;
    writeln!(text, "  secret_file: {}", secret_file("webhook-secret", secret)?)?;
    writeln!(text, "worker:\n  listen: 127.0.0.1:{}", ports.worker)?;
    writeln!(
        text,
        "  lease: {}\n  patience: {}\n  grace: {}",
        settings.lease, settings.patience, settings.grace
    )?;
    writeln!(text, "  backoff_base: {}\n  backoff_max: {}", settings.backoff_base, settings.backoff_max)?;
    writeln!(
        text,
        "  max_attempts: {}\n  dead_letter_rest: {}",
        settings.max_attempts, settings.dead_letter_rest
    )?;
    writeln!(text, "reconciler:\n  every: {}", settings.sweep_every)?;
    writeln!(text, "state:\n  dir: {}", folder.join("state").display())?;
    let path = folder.join("fabrique.yaml");
    std::fs::write(&path, text)?;
    Ok(path)
}

/// Goes on with `buildkit`.
fn builders(
    text: &mut String,
    bed: &Bed,
    pods: Option<&Pods>,
    file: &dyn Fn(&str, &str) -> Result<String>,
) -> Result<()> {
    let Some(pods) = pods else {
        if !bed.builders().is_empty() {
            writeln!(text, "  daemons:")?;
        }
        for (number, daemon) in bed.builders().iter().enumerate() {
            writeln!(text, "    - {{ name: daemon-{number}, address: \"{}\" }}", daemon.address())?;
        }
        return Ok(());
    };
    if let Some(list) = &pods.allow_list {
        writeln!(text, "  allow_list_file: {}", file("allow-list.yaml", list)?)?;
    }
    writeln!(text, "kubernetes:\n  builders_file: {}", file("builders.yaml", &pods.builders)?)?;
    writeln!(text, "  ca_cert_file: {}", file("builder-ca.crt", &pods.authority)?)?;
    writeln!(text, "  ca_key_file: {}", file("builder-ca.key", &pods.key)?)?;
    Ok(())
}
