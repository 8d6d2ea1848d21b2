//! `init`: what an installation needs before its first app.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use fabrique_argocd::{ArgoCd, WEBHOOK};
use fabrique_gitea::Administrator;
use fabrique_kubernetes::deployer::{ArgoNamespace, credentials};
use fabrique_operator::Exit;
use fabrique_operator::setup::plan::{HookTo, TokenFor};
use fabrique_operator::setup::{
    self, GateReport, GateResult, HookWish, Installation, Options, Place, SetupReport, Wanted,
};
use fabrique_ports::forge::Hooks;
use fabrique_ports::setup::{DeployerDoor, DeployerInside};
use secrecy::SecretString;
use url::Url;

use crate::ambient::System;
use crate::builders;
use crate::cli::Init;
use crate::config::{Config, Role, Secret};
use crate::people::console::Console;
use crate::people::inside::{self, Named};
use crate::people::progress::showing;
use crate::people::session;
use crate::people::table::{Cell, Table, Tone};
use crate::people::trouble::{Complaint, sentence};
use crate::wiring::Adapters;

/// How long one request to Argo CD or to the API server may take.
const REQUEST: Duration = Duration::from_secs(10);

/// Passes every gate and tells what came of each.
pub(crate) async fn init(console: Console, adapters: &Adapters, asked: &Init) -> anyhow::Result<Exit> {
    let config = &adapters.config;
    inside::reached_from_here(peers(config))?;
    let options = Options { dry_run: asked.dry_run, limit: config.init.limit.get() };
    let wanted = config.init.has_administrator().then(|| wanted(adapters)).transpose()?;
    let cluster = if config.init.kubernetes { Some(cluster(config).await?) } else { None };
    // It is mostly a job that is started with the bus.
    let bus = session::connect_within(adapters, Role::Admin, Duration::MAX).await?;
    let report = match wanted {
        None => setup::run(&bus, None, options).await,
        Some(wanted) => {
            let forge = administrator(adapters, cluster.as_ref()).await?;
            let signed = forge.clone();
            let hooks = move |secret: SecretString| Box::new(signed.hooks(secret)) as Box<dyn Hooks>;
            let door = door(config)?;
            let inside =
                cluster.map(|client| ArgoNamespace::new(client, &config.render.argocd_namespace, REQUEST));
            let of = Installation {
                wanted,
                forge: &forge,
                hooks: &hooks,
                door: door.as_ref().map(|door| door as &dyn DeployerDoor),
                inside: inside.as_ref().map(|inside| inside as &dyn DeployerInside),
                ambient: &System,
            };
            showing("passing gates", setup::run(&bus, Some(&of), options)).await
        }
    };
    bus.close().await;
    if console.is_json() {
        console.json(&report)?;
    } else {
        tell(console, &report)?;
    }
    Ok(report.exit())
}

/// Who is asked, by the keys that name them: without an administrator it is the bus alone.
fn peers(config: &Config) -> impl Iterator<Item = Named> {
    let has_forge = config.init.has_administrator();
    let peers = inside::forge_and_bus(config).filter(move |(key, _)| has_forge || *key != "gitea.url");
    let door = config.init.argocd_url.as_deref().filter(|_| has_forge);
    peers.chain(door.and_then(|url| inside::host_of("init.argocd_url", url)))
}

fn tell(console: Console, report: &SetupReport) -> anyhow::Result<()> {
    console.wrapped_table(&table(report))?;
    for finding in &report.findings {
        console.line(&format!("{}; {}", finding.what, finding.remedy))?;
    }
    let would = if report.dry_run { "would be changed" } else { "changed" };
    console.line(&format!("{} {would}", report.changed))?;
    Ok(())
}

fn table(report: &SetupReport) -> Table {
    let mut table = Table::new(&["GATE", "RESULT", "WHAT"]);
    for gate in &report.gates {
        table.row([gate.gate.as_str().into(), result(gate), gate.what.join("; ").into()]);
    }
    table
}

fn result(gate: &GateReport) -> Cell {
    let (tone, word) = match gate.result {
        GateResult::Passed => (Tone::Good, "passed"),
        GateResult::Changed => (Tone::Good, "made"),
        GateResult::WouldChange => (Tone::Busy, "would be made"),
        GateResult::Unproven => (Tone::Busy, "unproven"),
        GateResult::Failed => (Tone::Bad, "failed"),
        GateResult::NotReached => (Tone::Busy, "not reached"),
    };
    Cell::toned(tone, word)
}

async fn cluster(config: &Config) -> anyhow::Result<kube::Client> {
    let client = builders::client_of(config.init.context.as_deref()).await;
    client.map_err(|error| Complaint::usage(format!("init.kubernetes: {}", sentence(&error))).into())
}

/// Gitea's administrator, by the configuration or by a Secret.
pub(super) async fn administrator(
    adapters: &Adapters,
    cluster: Option<&kube::Client>,
) -> anyhow::Result<Administrator> {
    let init = &adapters.config.init;
    let given = init.admin_user.as_ref().zip(init.admin_password.get());
    match (given, cluster) {
        (Some((name, password)), _) => Ok(Administrator::of(&adapters.gitea, name, password)),
        (None, Some(client)) => {
            let (namespace, name) = init.admin_place();
            let found = credentials(client, namespace, name, REQUEST).await?;
            Ok(Administrator::of(&adapters.gitea, &found.name, found.password))
        }
        (None, None) => Err(Complaint::usage("init.admin_user: not set; set it with its password").into()),
    }
}

fn door(config: &Config) -> anyhow::Result<Option<ArgoCd>> {
    let Some(url) = &config.init.argocd_url else { return Ok(None) };
    let root = Url::parse(url).context("init.argocd_url")?;
    let pem = config.init.argocd_ca_file.as_ref().map(std::fs::read).transpose();
    let pem = pem.map_err(|error| Complaint::usage(format!("init.argocd_ca_file: {error}")))?;
    Ok(Some(ArgoCd::new(root, pem.as_deref(), REQUEST)?))
}

fn wanted(adapters: &Adapters) -> anyhow::Result<Wanted> {
    let config = &adapters.config;
    let gitea = &config.gitea;
    let tokens = [
        (TokenFor::Read, &gitea.read_token_file, &gitea.read_token),
        (TokenFor::Status, &gitea.status_token_file, &gitea.status_token),
        (TokenFor::Hooks, &gitea.hooks_token_file, &gitea.hooks_token),
        (TokenFor::Apps, &gitea.apps_token_file, &gitea.apps_token),
    ];
    let tokens = tokens.into_iter().filter_map(|(purpose, file, value)| Some((purpose, place(file, value)?)));
    let gitea_url = config.render.gitea_url.as_ref().unwrap_or(&gitea.url);
    Ok(Wanted {
        repo: adapters.apps_repo.clone(),
        branch: adapters.apps_branch.clone(),
        tokens: tokens.collect(),
        hooks: hooks(config)?,
        deployer_url: format!("{}/{}.git", gitea_url.trim_end_matches('/'), adapters.apps_repo),
    })
}

fn hooks(config: &Config) -> anyhow::Result<BTreeMap<HookTo, HookWish>> {
    let (init, receiver) = (&config.init, &config.receiver);
    let mut hooks = BTreeMap::new();
    let Some(url) = receiver.public_url.clone() else {
        let remedy = "set it to the receiver's webhook address as Gitea reaches it";
        return Err(Complaint::usage(format!("receiver.public_url: not set; {remedy}")).into());
    };
    // While secrets are rotated, new hooks sign with the next one.
    let secret = match &receiver.next_secret.get() {
        Some(next) => Some(Place::Given(next.clone())),
        None => place(&receiver.secret_file, &receiver.secret),
    };
    let Some(secret) = secret else {
        let remedy = "name a file: the secret is made when it is not there";
        return Err(Complaint::usage(format!("receiver.secret_file: not set; {remedy}")).into());
    };
    hooks.insert(HookTo::Receiver, HookWish { url, secret });
    if let Some(root) = &init.argocd_url
        && let Some(secret) = place(&init.argocd_secret_file, &init.argocd_secret)
    {
        let below = || format!("{}/{WEBHOOK}", root.trim_end_matches('/'));
        let url = init.argocd_webhook_url.clone().unwrap_or_else(below);
        hooks.insert(HookTo::Deployer, HookWish { url, secret });
    }
    Ok(hooks)
}

fn place(file: &Option<PathBuf>, value: &Secret) -> Option<Place> {
    match file {
        Some(path) => Some(Place::File(path.clone())),
        None => value.get().map(Place::Given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_only_pods_resolve_are_told_with_their_key() {
        let told = |gitea: &str, nats: &str, argocd: Option<&str>, administrator: bool| {
            let mut config = Config::default();
            gitea.clone_into(&mut config.gitea.url);
            config.nats.servers = vec![nats.to_owned()];
            config.init.argocd_url = argocd.map(str::to_owned);
            config.init.kubernetes = administrator;
            peers(&config).find(|(_, host)| inside::is_inside(host)).map(|(key, _)| key)
        };
        let (gitea, nats) = ("http://127.0.0.1:3000/", "nats://127.0.0.1:4222");
        let (svc, server) =
            ("http://gitea-http.gitea.svc:3000/", "https://argocd-server.argocd.svc.cluster.local");
        assert_eq!(told(gitea, nats, Some("https://127.0.0.1:8080"), true), None);
        assert_eq!(told(svc, nats, None, true), Some("gitea.url"));
        assert_eq!(told(gitea, "nats://nats.bus.svc:4222", None, false), Some("nats.servers"));
        assert_eq!(told(gitea, nats, Some(server), true), Some("init.argocd_url"));
        // Nobody asks them then.
        assert_eq!(told(svc, nats, Some(server), false), None);
    }
}
