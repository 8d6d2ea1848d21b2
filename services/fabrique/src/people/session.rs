//! The peers as a person at the command line meets them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fabrique_bus::Bus;
use fabrique_operator::{Operator, Ports};

use crate::ambient;
use crate::config::Role;
use crate::wiring::Adapters;

/// A person waits less patiently for a bus than a service does. `nats.timeouts.start` shortens it, and makes it no
/// longer: whoever wants to wait more asks again.
const PATIENCE: Duration = Duration::from_secs(3);

/// Connects to the bus as `role`, with a person's patience.
pub(crate) async fn connect(adapters: &Adapters, role: Role) -> anyhow::Result<Bus> {
    connect_within(adapters, role, PATIENCE).await
}

/// Connects to the bus as `role`, trying for `limit`, or for `nats.timeouts.start` where that is less.
pub(crate) async fn connect_within(adapters: &Adapters, role: Role, limit: Duration) -> anyhow::Result<Bus> {
    let mut config = adapters.bus_config(role)?;
    config.timeouts.start = config.timeouts.start.min(limit);
    let connected = Bus::connect(config).await;
    if adapters.has_user(role) {
        return Ok(connected?);
    }
    connected.with_context(|| {
        let role = role.as_str();
        format!("no credentials for the role {role}, set nats.users.{role}.password_file")
    })
}

/// The use cases over the bus as `operator`.
pub(crate) async fn operator(adapters: &Adapters) -> anyhow::Result<Operator> {
    let bus = Arc::new(connect(adapters, Role::Operator).await?);
    let ports = Ports {
        board: Arc::clone(&bus) as _,
        memories: Arc::clone(&bus) as _,
        records: Arc::clone(&bus) as _,
        registry: Arc::clone(&adapters.registry) as _,
        history: Arc::clone(&bus) as _,
        logs: Arc::clone(&bus) as _,
        events: Arc::clone(&bus) as _,
        commands: Arc::clone(&bus) as _,
    };
    let operator = Operator::new(ports, adapters.observer(bus), Arc::clone(&adapters.apps), ambient::now);
    Ok(operator.fresh_for(adapters.config.github.fresh_for.get()))
}
