//! Whether everything that fabrique needs is there, and what to do where it is not.
//!
//! Checks run at once, each within a time of its own, so that one peer that hangs does not hide what the
//! others say. Every answer that is not `ok` carries a remedy.

mod builders;
mod bus;
mod forge;
mod pushes;
mod registry;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use fabrique_core::id::{BranchName, RepoName};
use fabrique_declarations::contract;
use fabrique_observer::{Apps, AppsReader};
use fabrique_ports::PortError;
use fabrique_ports::builder::{Builder, Daemon};
use fabrique_ports::bus::{BusRights, BusRole, BusSetup, Events};
use fabrique_ports::forge::{Forge, ForgeInspection, Hooks};
use fabrique_ports::registry::RegistryInspection;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use serde::Serialize;

use crate::endpoints::{Configured, contradictions};
use crate::exit::Exit;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, and a person should change something.
    Warn,
    /// It does not work.
    Fail,
}

/// One check's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked: `gitea`, `cluster/apps`, `token status`, `registry registry:80`.
    pub name: String,
    /// How it went.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What to do next; empty when all is well.
    pub remedy: String,
}

impl Check {
    pub(crate) fn ok(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { name: name.into(), level: Level::Ok, what: what.into(), remedy: String::new() }
    }

    pub(crate) fn warn(name: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.into(), level: Level::Warn, what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn fail(name: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.into(), level: Level::Fail, what: what.into(), remedy: remedy.into() }
    }

    /// A peer that did not answer as it should. Most errors know best themselves what helps.
    pub(crate) fn error(name: impl Into<String>, error: &PortError) -> Self {
        let usual = if error.transient() {
            "is it running, and is the configured address right?"
        } else {
            "check the configured credentials and what they may do"
        };
        Self::fail(name, error.finding(), error.advice().unwrap_or(usual))
    }
}

/// Every answer, in the order of the checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The answers.
    pub checks: Vec<Check>,
}

impl Report {
    /// The worst level.
    #[must_use]
    pub fn level(&self) -> Level {
        self.checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok)
    }

    /// How the process ends: warnings are no failure.
    #[must_use]
    pub fn exit(&self) -> Exit {
        Exit::ok_if(self.level() < Level::Fail)
    }
}

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// Reading sources.
    Read,
    /// Setting commit statuses.
    Status,
    /// Looking after webhooks.
    Hooks,
    /// Reading and writing `cluster/apps`.
    Apps,
}

impl Purpose {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Purpose::Read => "read",
            Purpose::Status => "status",
            Purpose::Hooks => "hooks",
            Purpose::Apps => "apps",
        }
    }
}

/// What the doctor looks at. What is absent is not checked.
#[derive(Clone)]
pub struct Ports {
    /// The forge as seen with the token of each purpose.
    pub tokens: Vec<(Purpose, Arc<dyn ForgeInspection>)>,
    /// Heads.
    pub forge: Arc<dyn Forge>,
    /// Webhooks.
    pub hooks: Arc<dyn Hooks>,
    /// The registrations.
    pub apps: Arc<AppsReader>,
    /// The registry.
    pub registry: Arc<dyn RegistryInspection>,
    /// The build daemons that are expected to answer, and how they are asked.
    pub builders: Option<(Vec<Daemon>, Arc<dyn Builder>)>,
    /// The bus.
    pub bus: Arc<dyn BusSetup>,
    /// The users of the bus whose credentials are known here, and how each logs in.
    pub users: Vec<(BusRole, Arc<dyn BusRights>)>,
    /// Events, by which deliveries are seen to arrive.
    pub events: Arc<dyn Events>,
}

/// What the doctor is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// `cluster/apps`.
    pub apps_repo: RepoName,
    /// The branch that is deployed.
    pub apps_branch: BranchName,
    /// Where webhooks deliver to; without it webhooks are not checked.
    pub hook_url: Option<String>,
    /// Whether the forge's adapter knows the secret that webhooks sign with. Without it they cannot be compared with
    /// what `hooks ensure` makes, and only their addresses are looked at.
    pub hook_secret: bool,
    /// Hosts of registries to ask besides those of registered apps: `registry:80`.
    pub registries: Vec<String>,
    /// The oldest BuildKit that is supported, for the remedy.
    pub builder_floor: Option<String>,
    /// The cluster's own services as they are configured, for the contract to agree with.
    pub services: Option<Configured>,
    /// How long things may take, and of how many a sample is.
    pub bounds: Bounds,
}

impl Config {
    /// The usual bounds, and no webhooks.
    #[must_use]
    pub fn new(apps_repo: RepoName, apps_branch: BranchName) -> Self {
        Self {
            apps_repo,
            apps_branch,
            hook_url: None,
            hook_secret: false,
            registries: Vec::new(),
            builder_floor: None,
            services: None,
            bounds: Bounds::default(),
        }
    }
}

/// How long the doctor waits, what is slow, and of how many a sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The longest a check may take, those of webhooks aside.
    pub timeout: Duration,
    /// The longest a test delivery is waited for.
    pub delivery_timeout: Duration,
    /// A slower delivery is worth a warning.
    pub slow_delivery: Duration,
    /// Where half of fabrique's own pushes come back more slowly, that is worth one too.
    pub slow_push: Duration,
    /// At how many repositories the delay is measured. Test deliveries are sent one after another, so that
    /// they do not wait for each other.
    pub deliveries: usize,
    /// At how many image repositories of each registry a push is tried.
    pub pushes: usize,
}

impl Default for Bounds {
    /// 10 s for a check and for a delivery, 1.5 s for a fast one, measured at two repositories. Of fabrique's own
    /// pushes 0.6 s: through channels they took 0.2 to 0.35 s, and through Gitea's own queues 0.8 to 3.8 s, as these
    /// are asked again after up to 2 s each and sooner where they were in use a moment ago.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            delivery_timeout: Duration::from_secs(10),
            slow_delivery: Duration::from_millis(1500),
            slow_push: Duration::from_millis(600),
            deliveries: 2,
            pushes: 20,
        }
    }
}

/// Checks everything there is.
#[derive(Clone)]
pub struct Doctor {
    pub(crate) ports: Ports,
    pub(crate) config: Config,
}

impl Doctor {
    /// A doctor for these ports.
    #[must_use]
    pub fn new(ports: Ports, config: Config) -> Self {
        Self { ports, config }
    }

    /// Runs every check. Nothing is changed anywhere. Test deliveries are sent where webhooks are checked, an upload is
    /// begun and cancelled where images are pushed, and the bus is asked for what it has to refuse.
    pub async fn examine(&self) -> Report {
        self.examine_telling(&|_| {}).await
    }

    /// The same, and calls `waiting` with the names of the checks that are still running whenever those change:
    /// some of them take seconds.
    pub async fn examine_telling(&self, waiting: &(dyn Fn(&[&str]) + Sync)) -> Report {
        let Bounds { timeout, delivery_timeout, .. } = self.config.bounds;
        waiting(&["registrations"]);
        // Without registrations the rest can still be told.
        let (apps, registrations) = self.registrations().await;
        let apps = apps.as_deref();
        // Those that are sent, and a look at those that came by themselves.
        let deliveries = u32::try_from(self.config.bounds.deliveries).unwrap_or(1).saturating_add(1);
        let deliveries = delivery_timeout.saturating_mul(deliveries);
        let groups: [(&str, Duration, BoxFuture<'_, Vec<Check>>); 7] = [
            ("gitea", timeout * 2, Box::pin(forge::server(self))),
            ("cluster/apps", timeout, Box::pin(forge::deployments(self))),
            ("tokens", timeout * 2, Box::pin(forge::rights(self, apps))),
            ("nats", timeout * 3, Box::pin(bus::server(self))),
            ("registry", timeout * 3, Box::pin(registry::registries(self, apps))),
            ("buildkitd", timeout * 2, Box::pin(builders::daemons(self))),
            ("webhooks", timeout + deliveries, Box::pin(webhooks::webhooks(self, apps))),
        ];
        let mut left: Vec<&str> = groups.iter().map(|(name, _, _)| *name).collect();
        waiting(&left);
        let mut running: FuturesUnordered<_> = groups
            .into_iter()
            .enumerate()
            .map(|(place, (name, limit, checks))| async move {
                let checks =
                    tokio::time::timeout(limit, checks).await.unwrap_or_else(|_| vec![silent(name, limit)]);
                (place, name, checks)
            })
            .collect();
        let mut answers = Vec::new();
        while let Some((place, name, checks)) = running.next().await {
            left.retain(|other| *other != name);
            waiting(&left);
            answers.push((place, checks));
        }
        answers.sort_by_key(|(place, _)| *place);
        let checks = answers.into_iter().flat_map(|(_, checks)| checks).chain(registrations).collect();
        Report { checks }
    }

    /// One peer's answer, or that it gave none in time: one that hangs must not hide its neighbours.
    pub(crate) async fn within(&self, name: &str, check: impl Future<Output = Check>) -> Check {
        let limit = self.config.bounds.timeout;
        tokio::time::timeout(limit, check).await.unwrap_or_else(|_| silent(name, limit))
    }

    async fn registrations(&self) -> (Option<Arc<Apps>>, Vec<Check>) {
        let name = "registrations";
        let limit = self.config.bounds.timeout;
        let apps = match tokio::time::timeout(limit, self.ports.apps.read()).await {
            Ok(Ok(apps)) => apps,
            Ok(Err(error)) => return (None, vec![Check::error(name, &error)]),
            Err(_) => {
                let what = format!("cluster/apps could not be fetched within {} s", limit.as_secs());
                return (None, vec![Check::fail(name, what, "is Gitea overloaded, or the network slow?")]);
            }
        };
        let registrations = &apps.registrations;
        let mut checks: Vec<Check> = registrations
            .findings
            .iter()
            .map(|finding| {
                let what = format!("{}:{}:{}: {}", finding.file, finding.line, finding.column, finding.what);
                Check::fail(name, what, finding.remedy.clone())
            })
            .collect();
        if checks.is_empty() {
            let what = format!("{} apps at {}", registrations.apps.len(), apps.commit.short());
            checks.push(Check::ok(name, what));
        }
        if let (Some(services), Ok(Some(contract))) = (&self.config.services, &apps.contract) {
            let found = contradictions(contract, contract::FILE_NAME, services);
            checks.extend(found.into_iter().map(|finding| {
                let what = format!("{}:{}:{}: {}", finding.file, finding.line, finding.column, finding.what);
                Check::warn("contract", what, finding.remedy)
            }));
        }
        (Some(apps), checks)
    }
}

fn silent(name: &str, limit: Duration) -> Check {
    let what = format!("no answer within {} s", limit.as_secs());
    Check::fail(name, what, "is it running, reachable and not overloaded?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_no_failure_and_failures_are() {
        let report = |checks| Report { checks };
        assert_eq!(report(vec![]).exit(), Exit::Ok);
        assert_eq!(report(vec![Check::ok("a", ""), Check::warn("b", "", "")]).exit(), Exit::Ok);
        assert_eq!(report(vec![Check::fail("a", "", ""), Check::ok("b", "")]).exit(), Exit::Findings);
    }
}
