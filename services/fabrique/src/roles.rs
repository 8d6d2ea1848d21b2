//! The services: one function per role, and all of them in one process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fabrique_bus::Bus;
use fabrique_gitea::Deliveries;
use fabrique_ports::bus::BusSetup;
use fabrique_receiver::{Dependencies, Drained, Receiver};
use fabrique_worker::{Bounds, Ports, Worker, WorkerConfig};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::ambient::System;
use crate::builders::Builders;
use crate::config::Role;
use crate::metrics::Metrics;
use crate::people::Complaint;
use crate::subscriptions::RegisteredApps;
use crate::wiring::Adapters;

/// Receives webhooks until `stop`.
pub(crate) async fn receiver(
    adapters: &Adapters,
    metrics: Metrics,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let section = &adapters.config.receiver;
    let secrets = [section.secret.get(), section.next_secret.get()].into_iter().flatten().collect();
    let reader = Deliveries::new(secrets).context("receiver.secret")?;
    // A receiver answers 503 while the bus is away instead of not being there.
    let bus = Bus::connect_in_background(adapters.bus_config(Role::Receiver)?).await?;
    let subscriptions = RegisteredApps::new(
        Arc::clone(&adapters.apps),
        Arc::clone(&adapters.deployments) as _,
        adapters.apps_repo.clone(),
        adapters.apps_branch.clone(),
        section.limits.get().late_pushes,
    );
    let connection = bus.clone();
    let receiver = Receiver::new(
        section.limits.get(),
        Dependencies {
            reader: Arc::new(reader),
            wakes: Arc::new(bus.clone()),
            events: Arc::new(bus.clone()),
            subscriptions: Arc::new(subscriptions),
            ambient: Arc::new(System),
            connected: Box::new(move || connection.is_connected()),
            metrics: Box::new(move || metrics.render()),
        },
    )?;
    let listener = listen("receiver.listen", &section.listen).await?;
    let served = receiver.serve(listener, stop).await;
    if let Ok(Drained::Partly) = served {
        tracing::warn!("some deliveries or events were cut off by the shutdown");
    }
    bus.close().await;
    served.map(drop).map_err(Into::into)
}

/// Works until `stop`.
pub(crate) async fn worker(
    adapters: &Adapters,
    metrics: Metrics,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let bus = checked_bus(adapters, Role::Worker).await?;
    let config = worker_config(adapters);
    let builders = Builders::start(adapters, &config.name).await?;
    builders.check().await?;
    let ports = ports(adapters, &bus, &builders);
    serve_health("worker.listen", adapters.config.worker.listen.as_deref(), &bus, metrics, &stop).await?;
    let observer = adapters.observer(Arc::new(bus.clone()));
    tracing::info!(worker = config.name, slots = ports.placement.capacity(), "working");
    let worker = Worker::new(config, ports, observer, Arc::clone(&adapters.apps), Arc::new(System));
    let worked = worker.run(stop).await;
    builders.close().await;
    bus.close().await;
    Ok(worked?)
}

/// Sweeps every `every` until `stop`.
pub(crate) async fn reconciler(
    adapters: &Adapters,
    metrics: Metrics,
    every: Option<Duration>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let bus = checked_bus(adapters, Role::Reconciler).await?;
    let section = &adapters.config.reconciler;
    serve_health("reconciler.listen", section.listen.as_deref(), &bus, metrics, &stop).await?;
    let reconciler = crate::wiring::reconciler(adapters, &bus);
    reconciler.run_every(every.unwrap_or(section.every.get()), stop).await;
    bus.close().await;
    Ok(())
}

/// Every role, each with its own user on the bus. When one fails the others are asked to stop, and give back what they hold.
pub(crate) async fn all(
    adapters: &Adapters,
    metrics: Metrics,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (received, worked, swept) = tokio::join!(
        stopping_others(&stop, receiver(adapters, metrics.clone(), stop.clone())),
        stopping_others(&stop, worker(adapters, metrics.clone(), stop.clone())),
        stopping_others(&stop, reconciler(adapters, metrics, None, stop.clone())),
    );
    received.and(worked).and(swept)
}

async fn stopping_others(
    stop: &CancellationToken,
    role: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let ended = role.await;
    if let Err(error) = &ended {
        tracing::warn!(error = format!("{error:#}"), "a role has failed, the others stop");
        stop.cancel();
    }
    ended
}

/// Serves health and metrics of a role that runs alone, where an address is configured.
async fn serve_health(
    key: &str,
    address: Option<&str>,
    bus: &Bus,
    metrics: Metrics,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(address) = address else { return Ok(()) };
    let listener = listen(key, address).await?;
    let connection = bus.clone();
    tokio::spawn(crate::health::serve(listener, metrics, move || connection.is_connected(), stop.clone()));
    Ok(())
}

/// Connects, makes what is missing where the configuration may, and reports what differs.
pub(crate) async fn checked_bus(adapters: &Adapters, role: Role) -> anyhow::Result<Bus> {
    let bus = adapters.bus(role).await?;
    if adapters.has_user(Role::Admin) {
        let admin = adapters.bus(Role::Admin).await?;
        // What differs is told by the inspection below.
        admin.ensure().await?;
        admin.close().await;
    }
    let findings = bus.inspect().await?;
    let mut fatal = Vec::new();
    for finding in findings {
        if finding.fatal {
            fatal.push(format!("{} ({})", finding.what, finding.remedy));
        } else {
            tracing::warn!(remedy = finding.remedy, "{}", finding.what);
        }
    }
    if !fatal.is_empty() {
        // As `init` ends on the same findings.
        return Err(Complaint::findings(format!("the bus is not ready: {}", fatal.join("; "))).into());
    }
    Ok(bus)
}

fn ports(adapters: &Adapters, bus: &Bus, builders: &Builders) -> Ports {
    let bus = Arc::new(bus.clone());
    Ports {
        forge: Arc::clone(&adapters.forge) as _,
        source: Arc::clone(&adapters.source) as _,
        deployments: Arc::clone(&adapters.deployments) as _,
        registry: Arc::clone(&adapters.registry) as _,
        placement: Arc::clone(&builders.placement),
        builder: Arc::clone(&builders.builder) as _,
        board: Arc::clone(&bus) as _,
        wakes: Arc::clone(&bus) as _,
        memories: Arc::clone(&bus) as _,
        records: Arc::clone(&bus) as _,
        history: Arc::clone(&bus) as _,
        logs: Arc::clone(&bus) as _,
        events: Arc::clone(&bus) as _,
        commands: bus as _,
    }
}

fn worker_config(adapters: &Adapters) -> WorkerConfig {
    let section = &adapters.config.worker;
    let name = holder(section.name.as_deref());
    let bounds = Bounds {
        lease: section.lease.get(),
        looks: section.looks.into(),
        patience: section.patience.get(),
        backoff_base: section.backoff_base.get(),
        backoff_max: section.backoff_max.get(),
        // The other half is left for carrying it out, and for the answer.
        command_patience: adapters.config.nats.timeouts.get().command / 2,
        grace: section.grace.get(),
        pending_after: section.pending_after.get(),
        log_flush: section.log_flush.get(),
    };
    let render = adapters.config.render_settings().filter(|_| adapters.config.render.enabled);
    let (apps_repo, link) = (adapters.apps_repo.clone(), section.status_link.clone());
    WorkerConfig { name, apps_repo, link, render, bounds }
}

/// Who holds what this worker claims: never the same twice, since workers of one configuration, or one that was started
/// again, would take each other's claims for their own.
fn holder(name: Option<&str>) -> String {
    let process = || {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}-{}", host.trim(), std::process::id())
    };
    format!("{}-{}", name.map_or_else(process, str::to_owned), crate::ambient::ulid())
}

async fn listen(key: &str, address: &str) -> anyhow::Result<TcpListener> {
    // The configuration was checked.
    let parsed: SocketAddr = address
        .parse()
        .map_err(|_| Complaint::usage(format!("{key}: {address:?} is not an address like 0.0.0.0:8080")))?;
    let listener = TcpListener::bind(parsed).await;
    let listener = listener.with_context(|| format!("{key}: cannot listen on {address}; is it in use?"))?;
    tracing::info!(%address, "listening");
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_role_that_fails_has_the_others_stop_and_cuts_none_of_them() {
        let stop = CancellationToken::new();
        let mut gave_back = false;
        let (failed, other) = tokio::join!(
            stopping_others(&stop, async { anyhow::bail!("the committer panicked") }),
            stopping_others(&stop, async {
                stop.cancelled().await;
                tokio::task::yield_now().await;
                gave_back = true;
                Ok(())
            }),
        );
        assert!(failed.is_err() && other.is_ok() && gave_back);
    }

    #[test]
    fn two_workers_of_one_configuration_hold_under_names_of_their_own() {
        for name in [None, Some("builder")] {
            let [one, other] = [holder(name), holder(name)];
            assert_ne!(one, other);
            assert!(one.starts_with(name.unwrap_or_default()), "{one}");
        }
    }
}
