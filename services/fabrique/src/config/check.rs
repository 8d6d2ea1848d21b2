//! What types cannot check: keys that belong together, addresses, bounds.

use std::fmt;
use std::net::SocketAddr;

use fabrique_core::id::{BranchName, RepoName};
use figment::error::Kind as FigmentKind;
use serde::Serialize;
use serde_json::Value;
use url::Url;

use super::keys::{self, Key, Kind};
use super::sections::Config;
use super::{github, init, reference, render, seed};

/// What is shown of a name that nobody knows.
const LONGEST_NAME: usize = 64;

/// One thing that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// The key.
    pub(crate) key: String,
    /// What is wrong.
    pub(crate) what: String,
    /// What to do.
    pub(crate) remedy: String,
}

impl Problem {
    pub(crate) fn new(key: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { key: key.into(), what: what.into(), remedy: remedy.into() }
    }

    pub(super) fn of_figment(error: &figment::Error) -> Self {
        let place = error.metadata.as_ref().and_then(|m| m.source.as_ref()).map(|s| format!(" in {s}"));
        let place = place.unwrap_or_default();
        if let FigmentKind::UnknownField(name, known) | FigmentKind::UnknownVariant(name, known) = &error.kind
        {
            return Self::unknown(&error.path, name, known, &place);
        }
        let key = if error.path.is_empty() { "configuration".to_owned() } else { error.path.join(".") };
        let what = format!("{}{place}", error.kind);
        Self::new(key, what, "correct the key; `fabrique validate` checks the whole configuration")
    }

    /// A name below `path` that is none of the `known` ones.
    fn unknown(path: &[String], name: &str, known: &[&str], place: &str) -> Self {
        let name: String = name.escape_debug().take(LONGEST_NAME).collect();
        let remedy = match fabrique_gitops::did_you_mean(&name, known) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("there are: {}", known.join(", ")),
        };
        // A key of a map of names is told without itself.
        let mut key = path.to_vec();
        if path.last().is_none_or(|last| *last != name) {
            key.push(name);
        }
        Self::new(key.join("."), format!("an unknown key{place}"), remedy)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.key, self.what, self.remedy)
    }
}

/// Everything that is wrong with a configuration whose types are right.
pub(super) fn check(config: &Config) -> Vec<Problem> {
    let mut problems = Problems::default();
    check_peers(config, &mut problems);
    check_receiver(config, &mut problems);
    check_work(config, &mut problems);
    check_listeners(config, &mut problems);
    render::check(config, &mut problems);
    init::check(config, &mut problems);
    seed::check(config, &mut problems);
    github::check(config, &mut problems);
    check_bounds(config, &mut problems);
    problems.0
}

#[derive(Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    pub(super) fn need(&mut self, ok: bool, key: &str, what: &str, remedy: &str) {
        if !ok {
            self.0.push(Problem::new(key, what, remedy));
        }
    }
}

fn check_peers(config: &Config, problems: &mut Problems) {
    let gitea = &config.gitea;
    let root = "set it to Gitea's root, like http://gitea:3000/";
    problems.need(is_http(&gitea.url), "gitea.url", "not an http(s) URL without credentials", root);
    let repo = RepoName::parse(&gitea.apps_repo).is_ok();
    problems.need(repo, "gitea.apps_repo", "not organisation/name", "write cluster/apps");
    let branch = BranchName::parse(&gitea.apps_branch).is_ok();
    problems.need(branch, "gitea.apps_branch", "not a branch name", "write main");
    let nats = &config.nats;
    let example = "list at least one, like nats://nats:4222";
    problems.need(!nats.servers.is_empty(), "nats.servers", "no server", example);
    let bare = nats.servers.iter().all(|server| !server.contains('@'));
    problems.need(bare, "nats.servers", "an address carries credentials", "put them in nats.users.<role>");
    let somewhere = !config.registry.allowed.is_empty();
    problems.need(
        somewhere,
        "registry.allowed",
        "no registry",
        "list where images may be pushed, like registry:80",
    );
    for (index, listed) in config.registry.addresses.iter().enumerate() {
        let key = format!("registry.addresses.{index}.address");
        let bare = Url::parse(&format!("http://{}/", listed.address));
        let bare =
            bare.is_ok_and(|url| url.path() == "/" && url.username().is_empty() && url.query().is_none());
        problems.need(bare, &key, "not a host with a port", "write 127.0.0.1:5000");
        let key = format!("registry.addresses.{index}.host");
        let registry = &config.registry;
        let host = |registry: &String| registry.split('/').next().unwrap_or_default() == listed.host;
        let known = registry.allowed.iter().chain(&registry.bases).any(host);
        let remedy = "write one of those hosts, like registry:80";
        problems.need(known, &key, "no registry of registry.allowed or registry.bases", remedy);
        // A certificate is for the name, and the name is not where it answers.
        let plain = registry.plain_http.contains(&listed.host) || !known;
        let remedy = "list it in registry.plain_http, or have the name resolve to the address";
        problems.need(plain, &key, "is reached over TLS, whose certificate is not the address's", remedy);
    }
    problems.need(
        config.state.dir.is_absolute(),
        "state.dir",
        "not an absolute path",
        "write /var/lib/fabrique",
    );
}

fn check_receiver(config: &Config, problems: &mut Problems) {
    let receiver = &config.receiver;
    let url = receiver.public_url.as_deref().is_none_or(is_http);
    let remedy = "write the receiver's webhook address as Gitea reaches it";
    problems.need(url, "receiver.public_url", "not an http(s) URL", remedy);
    let user = config.registry.user.is_some() == config.registry.password.is_set();
    problems.need(user, "registry.user", "user and password belong together", "set both or neither");
    for (key, tls) in [("nats.tls", &config.nats.tls), ("buildkit.tls", &config.buildkit.tls)] {
        let paired = tls.cert_file.is_some() == tls.key_file.is_some();
        let remedy = "set cert_file and key_file, or neither";
        problems.need(paired, key, "a certificate without its key, or a key without its certificate", remedy);
    }
    // Without an authority the daemons would be spoken to in plain text, and the certificate shown to nobody.
    let tls = &config.buildkit.tls;
    let trusts = tls.ca_file.is_some() || tls.cert_file.is_none();
    let remedy = "name the authority that signed the daemons' certificates";
    problems.need(trusts, "buildkit.tls.ca_file", "a certificate to show and nobody to trust", remedy);
    if let Err(error) = receiver.limits.get().check() {
        let key = format!("receiver.limits.{}", error.key);
        problems.need(false, &key, &error.problem, "leave it out for the default");
    }
}

fn check_work(config: &Config, problems: &mut Problems) {
    let worker = &config.worker;
    let backoff = worker.backoff_base.get() <= worker.backoff_max.get();
    let remedy = "raise it to worker.backoff_base or more";
    problems.need(backoff, "worker.backoff_max", "shorter than the first wait", remedy);
    let placement = config.buildkit.placement.get();
    let pauses = placement.first_pause <= placement.longest_pause;
    let remedy = "raise it to first_pause or more";
    problems.need(pauses, "buildkit.placement.longest_pause", "shorter than the first pause", remedy);
    let both = config.kubernetes.builders_file.is_some() && !config.buildkit.daemons.is_empty();
    let remedy = "remove buildkit.daemons, or kubernetes.builders_file";
    problems.need(!both, "kubernetes.builders_file", "builds run in pods or on listed daemons", remedy);
    for (index, daemon) in config.buildkit.daemons.iter().enumerate() {
        let key = |field: &str| format!("buildkit.daemons.{index}.{field}");
        let address = daemon.address.starts_with("tcp://") || daemon.address.starts_with("unix:///");
        problems.need(address, &key("address"), "neither tcp:// nor unix:///", "write tcp://host:1234");
        problems.need(!daemon.name.is_empty(), &key("name"), "empty", "give each daemon a name");
    }
}

/// Where to listen. A role finds out what is wrong with it only once it has spoken to its peers.
fn check_listeners(config: &Config, problems: &mut Problems) {
    let addresses = [
        ("receiver.listen", Some(&config.receiver.listen)),
        ("worker.listen", config.worker.listen.as_ref()),
        ("reconciler.listen", config.reconciler.listen.as_ref()),
    ];
    for (key, address) in addresses {
        let parsed = address.is_none_or(|address| address.parse::<SocketAddr>().is_ok());
        problems.need(
            parsed,
            key,
            "not an IP address with a port",
            "write one like 0.0.0.0:8080 or [::]:8080",
        );
    }
}

/// Waits, numbers and sizes, each against the bounds of its type.
fn check_bounds(config: &Config, problems: &mut Problems) {
    let Ok(values) = serde_json::to_value(config) else { return };
    for key in keys::all() {
        for (place, value) in key.values(&values) {
            if !is_within(&key.kind, value) {
                let written = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let what = format!("{written} is out of bounds");
                problems.need(false, &place, &what, &within(&key));
            }
        }
    }
}

fn is_within(kind: &Kind, value: &Value) -> bool {
    match kind {
        Kind::Wait { least, most } => value.as_str().is_some_and(|text| {
            let wait = humantime::parse_duration(text).unwrap_or_default();
            (u128::from(*least)..=u128::from(*most)).contains(&wait.as_millis())
        }),
        Kind::Count { least, most } | Kind::Bytes { least, most } => {
            value.as_u64().is_some_and(|number| (*least..=*most).contains(&number))
        }
        Kind::Secret
        | Kind::Switch
        | Kind::List
        | Kind::Sections
        | Kind::File
        | Kind::Folder
        | Kind::Text => true,
    }
}

/// `write 1s to 1h; the default is 1m`
fn within(key: &Key) -> String {
    let default = reference::default(key).map(|default| format!("; the default is {default}"));
    format!("write {}{}", reference::values(&key.kind), default.unwrap_or_default())
}

pub(super) fn is_http(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none()
    })
}
