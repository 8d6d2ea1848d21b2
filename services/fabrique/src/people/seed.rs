//! `seed`: apps brought up in one environment, after a person agreed to the plan.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use fabrique_kubernetes::deployer::ArgoNamespace;
use fabrique_kubernetes::secrets::SecretWriter;
use fabrique_operator::seed::{
    self, Consent, Ground, Known, Pace, Said, SeedReport, Step, StepResult, Webhooks, Wish, guard,
};
use fabrique_operator::{Exit, OperatorError, declared};
use fabrique_ports::applications::Applications;
use fabrique_ports::forge::Hooks;
use fabrique_ports::secrets::DerivedSecrets;
use kube::config::Kubeconfig;

use crate::builders;
use crate::cli::Seed;
use crate::config::Config;
use crate::people::agreement;
use crate::people::caller::caller;
use crate::people::console::{Console, remark};
use crate::people::init;
use crate::people::inside::{self, Named};
use crate::people::progress::{Progress, showing};
use crate::people::session;
use crate::people::table::{Cell, Table, Tone};
use crate::people::trouble::{Complaint, sentence};
use crate::wiring::Adapters;

/// How long one request to the API server may take.
const REQUEST: Duration = Duration::from_secs(10);

/// Prints the plan, asks, and has it carried out.
pub(crate) async fn seed(console: Console, adapters: &Adapters, asked: &Seed) -> anyhow::Result<Exit> {
    inside::reached_from_here(peers(&adapters.config))?;
    let apps = adapters.apps.read().await?;
    let environment = guard::environment(&apps.registrations, &asked.apps, asked.environment.as_ref())?;
    let known = adapters.config.seed.known();
    let found = if known.is_empty() { None } else { context(asked)? };
    let said = Said {
        environment: &environment,
        named: asked.environment.is_some(),
        found: found.as_deref(),
        asked: asked.context.is_some(),
    };
    let here = guard::admit(&known, &said).map_err(OperatorError::from)?;
    let production = guard::is_production(here, &said, asked.dry_run).map_err(OperatorError::from)?;
    let consent = guard::consent(&environment, production, asked.yes, asked.confirm.as_ref());
    let consent = consent.map_err(OperatorError::from)?;
    if consent != Consent::Given && !asked.dry_run && !agreement::can_be_had(console) {
        let remedy = "say --yes, or --dry-run to see the plan";
        return Err(Complaint::usage(format!("nobody can be asked here; {remedy}")).into());
    }
    let site = Site::reach(adapters, here).await?;
    let settings = adapters.config.render_settings().filter(|_| adapters.config.render.enabled);
    let operator = session::operator(adapters).await?;
    let declared = declared::Ports {
        forge: Arc::clone(&adapters.forge) as _,
        source: Arc::clone(&adapters.source) as _,
    };
    let ground = Ground {
        operator: &operator,
        declared: &declared,
        settings: settings.as_ref(),
        webhooks: Webhooks {
            port: &*site.hooks,
            url: site.url,
            apps: (&adapters.apps_repo, &adapters.apps_branch),
        },
        secrets: site.secrets.as_ref().map(|port| port as &dyn DerivedSecrets),
        deployer: site.argocd.as_ref().map(|port| port as &dyn Applications),
    };
    let wish = Wish { apps: unique(asked), environment, no_build: asked.no_build };
    Box::pin(run(console, asked, &ground, &wish, (&known, consent))).await
}

async fn run(
    console: Console,
    asked: &Seed,
    ground: &Ground<'_>,
    wish: &Wish,
    (known, consent): (&[Known], Consent),
) -> anyhow::Result<Exit> {
    let looking = seed::prepare(ground, wish, asked.limit);
    let prepared = Box::pin(showing("looking at what is there", looking)).await?;
    let planned = SeedReport::planned(&prepared.plan, asked.dry_run);
    // With nothing to do and nobody in the way there is nothing to agree to.
    if asked.dry_run || planned.is_refused() || prepared.plan.is_done() {
        return told(console, &planned, asked.dry_run);
    }
    if !console.is_json() {
        console.wrapped_table(&table(&planned))?;
    }
    let consent = guard::consent_to(known, &wish.environment, &prepared.plan.elsewhere, consent);
    if let Consent::Asked(name) = consent.map_err(OperatorError::from)?
        && !guard::agrees(&answer(name.as_ref().map(|name| name.as_str()))?, name.as_ref())
    {
        remark("not agreed: nothing was changed");
        return Ok(Exit::Findings);
    }
    let progress = Progress::new("seeding");
    let tell = |what: String| progress.tell(what);
    let pace = Pace { limit: asked.limit, caller: &caller(), tell: &tell };
    let report = Box::pin(progress.during(seed::carry_out(ground, wish, prepared, &pace))).await;
    if !console.is_json() {
        console.line("")?;
    }
    told(console, &report, false)
}

/// Prints a report.
fn told(console: Console, report: &SeedReport, dry_run: bool) -> anyhow::Result<Exit> {
    if console.is_json() {
        console.json(report)?;
        return Ok(report.exit());
    }
    console.wrapped_table(&table(report))?;
    let would = match (dry_run, report.is_refused()) {
        (_, true) => return Ok(console.line("nothing was changed").map(|()| report.exit())?),
        (true, false) => "would be changed",
        (false, false) => "changed",
    };
    if let Some(why) = &report.unseen {
        console.line(&format!("what came of it was not seen: {why}; run it again"))?;
    }
    console.line(&format!("{} {would}", report.changed))?;
    Ok(report.exit())
}

fn table(report: &SeedReport) -> Table {
    let mut table = Table::new(&["STEP", "OF", "RESULT", "WHAT"]);
    for step in &report.steps {
        table.row([
            step.step.as_str().into(),
            step.subject.as_str().into(),
            result(step),
            step.what.as_str().into(),
        ]);
    }
    table
}

fn result(step: &Step) -> Cell {
    let (tone, word) = match step.result {
        StepResult::There => (Tone::Good, "there"),
        StepResult::Changed => (Tone::Good, "changed"),
        StepResult::WouldChange => (Tone::Busy, "to change"),
        StepResult::WouldWait => (Tone::Busy, "to wait for"),
        StepResult::Refused => (Tone::Bad, "refused"),
        StepResult::Failed => (Tone::Bad, "failed"),
        StepResult::NotReached => (Tone::Busy, "not reached"),
        StepResult::Unseen => (Tone::Busy, "not seen"),
    };
    Cell::toned(tone, word)
}

/// Who is reached from here beside the bus and the forge.
struct Site {
    hooks: Box<dyn Hooks>,
    url: String,
    secrets: Option<SecretWriter>,
    argocd: Option<ArgoNamespace>,
}

impl Site {
    async fn reach(adapters: &Adapters, here: Option<&Known>) -> anyhow::Result<Self> {
        let config = &adapters.config;
        let receiver = &config.receiver;
        let Some(url) = receiver.public_url.clone() else {
            let remedy = "set it to the receiver's webhook address as Gitea reaches it";
            return Err(Complaint::usage(format!("receiver.public_url: not set; {remedy}")).into());
        };
        let Some(secret) = receiver.next_secret.get().or(receiver.secret.get()) else {
            let remedy = "name the file with the webhook's secret in receiver.secret_file";
            return Err(Complaint::usage(format!("receiver.secret: not set; {remedy}")).into());
        };
        let cluster = match here {
            Some(here) => {
                let client = builders::client_of(Some(&here.context)).await;
                Some(client.map_err(|error| Complaint::usage(sentence(&error)))?)
            }
            None => None,
        };
        // Whoever has no token of this purpose here may be the administrator.
        let as_administrator = !config.gitea.hooks_token.is_set() && config.init.has_administrator();
        let hooks: Box<dyn Hooks> = if as_administrator {
            Box::new(init::administrator(adapters, cluster.as_ref()).await?.hooks(secret))
        } else {
            Box::new(adapters.gitea.clone())
        };
        let namespace = &config.render.argocd_namespace;
        let argocd = cluster.clone().map(|client| ArgoNamespace::new(client, namespace, REQUEST));
        let secrets = cluster.map(|client| SecretWriter::new(client, REQUEST));
        Ok(Self { hooks, url, secrets, argocd })
    }
}

/// The context that is meant: the one that was named, or the current one of KUBECONFIG.
fn context(asked: &Seed) -> anyhow::Result<Option<String>> {
    if let Some(context) = &asked.context {
        return Ok(Some(context.clone()));
    }
    // A pod has an account and no file.
    if env::var_os("KUBECONFIG").is_none() && inside::is_pod() {
        return Ok(None);
    }
    let read = Kubeconfig::read();
    let read = read.map_err(|error| Complaint::usage(format!("KUBECONFIG cannot be read: {error}")))?;
    Ok(read.current_context.filter(|context| !context.is_empty()))
}

/// Who is asked, by the keys that name them.
fn peers(config: &Config) -> impl Iterator<Item = Named> {
    let forwarded = move |registry: &str| {
        let host = registry.split('/').next().unwrap_or_default();
        let listed = config.registry.addresses.iter().find(|listed| listed.host == host);
        let reached = listed.map_or(host, |listed| listed.address.as_str());
        reached.split(':').next().unwrap_or_default().to_owned()
    };
    let registries =
        config.registry.allowed.iter().map(move |registry| ("registry.addresses", forwarded(registry)));
    inside::forge_and_bus(config).chain(registries)
}

/// Asks the person at the terminal. For what is production, or may be, the answer is its name.
fn answer(production: Option<&str>) -> anyhow::Result<String> {
    let question = match production {
        Some(name) => format!("Type the name of the environment, {name}, to go on: "),
        None => "Go on? yes or oui: ".to_owned(),
    };
    Ok(agreement::answer(&question)?)
}

/// The apps, each once.
fn unique(asked: &Seed) -> Vec<fabrique_core::id::AppName> {
    let mut apps = Vec::new();
    for app in &asked.apps {
        if !apps.contains(app) {
            apps.push(app.clone());
        }
    }
    apps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_only_pods_resolve_are_told_with_their_key() {
        let config = |gitea: &str, nats: &str, registry: &str, address: Option<&str>| {
            let mut config = Config::default();
            gitea.clone_into(&mut config.gitea.url);
            config.nats.servers = vec![nats.to_owned()];
            config.registry.allowed = vec![registry.to_owned()];
            let listed = address.map(|address| crate::config::AddressSection {
                host: "registry.infra.svc.cluster.local:80".to_owned(),
                address: address.to_owned(),
            });
            config.registry.addresses = listed.into_iter().collect();
            peers(&config).find(|(_, host)| inside::is_inside(host)).map(|(key, _)| key)
        };
        let (gitea, nats) = ("http://127.0.0.1:3000/", "nats://127.0.0.1:4222");
        let inside = "registry.infra.svc.cluster.local:80";
        assert_eq!(config(gitea, nats, "registry:80/team", None), None);
        let svc = "http://gitea-http.gitea.svc.cluster.local:3000/";
        assert_eq!(config(svc, nats, "registry:80", None), Some("gitea.url"));
        assert_eq!(config(gitea, "nats://nats.bus.svc:4222", "registry:80", None), Some("nats.servers"));
        assert_eq!(config(gitea, nats, inside, None), Some("registry.addresses"));
        assert_eq!(config(gitea, nats, inside, Some("127.0.0.1:5000")), None);
    }
}
