//! One connection to the bus.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError};
use backon::{BackoffBuilder as _, ExponentialBuilder, Retryable as _};
use fabrique_core::id::BuildId;
use fabrique_ports::PortResult;
use secrecy::ExposeSecret as _;

use crate::batch::Refused;
use crate::config::BusConfig;
use crate::error::BusError;
use crate::logs::LogTail;

/// Refusals kept for the error messages of the calls that they made fail.
const REFUSALS: usize = 16;

/// The bus. Clones share one connection, which lives until the last of them is gone and is made again, for as long as
/// it takes, whenever it breaks.
#[derive(Clone)]
pub struct Bus {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    /// For publishes: bounded by the acknowledgement's timeout.
    publishing: Context,
    /// For questions to JetStream: bounded by the request's timeout.
    asking: Context,
    config: BusConfig,
    refusals: Arc<Refusals>,
    batches: Refused,
    logs: Mutex<HashMap<BuildId, LogTail>>,
}

impl Bus {
    /// Connects, trying again for `timeouts.start`.
    ///
    /// # Errors
    /// When no server could be reached in that time, at once when one refuses the credentials.
    pub async fn connect(config: BusConfig) -> PortResult<Self> {
        let servers = servers(&config)?;
        let refusals = Arc::new(Refusals::default());
        let attempt = || options(&config, &refusals).connect(servers.clone());
        let backoff = ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_secs(2))
            .without_max_times()
            .with_total_delay(Some(config.timeouts.start));
        let connecting = attempt.retry(backoff).when(|error: &ConnectError| !is_refusal(error));
        // The bound of the backoff counts its own delays, not the attempts.
        let client = tokio::time::timeout(config.timeouts.start + config.timeouts.connect, connecting).await;
        match client {
            Ok(Ok(client)) => Ok(Self::over(client, config, refusals)),
            Ok(Err(error)) => Err(failed(&config, &error).into()),
            Err(_) => Err(unreachable(&config, format!("gave up after {:?}", config.timeouts.start)).into()),
        }
    }

    /// Connects in the background, so that a service can start, answer 503 and say so in its readiness while the bus is
    /// away. Until then every call fails with its timeout.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub async fn connect_in_background(config: BusConfig) -> PortResult<Self> {
        let servers = servers(&config)?;
        let refusals = Arc::new(Refusals::default());
        let client = options(&config, &refusals)
            .retry_on_initial_connect()
            .connect(servers)
            .await
            .map_err(|error| unreachable(&config, error.to_string()))?;
        Ok(Self::over(client, config, refusals))
    }

    fn over(client: Client, config: BusConfig, refusals: Arc<Refusals>) -> Self {
        let publishing = ContextBuilder::new().timeout(config.timeouts.ack).build(client.clone());
        let asking = ContextBuilder::new().timeout(config.timeouts.request).build(client.clone());
        let (batches, logs) = (Refused::default(), Mutex::default());
        let inner = Inner { client, publishing, asking, config, refusals, batches, logs };
        Self { inner: Arc::new(inner) }
    }

    /// Whether the connection stands at this moment, as far as this end knows: a dead server is noticed after three
    /// silent `timeouts.ping`.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.inner.client.connection_state() == State::Connected
    }

    /// Sends what is buffered, and ends all subscriptions. Call before the process ends.
    pub async fn close(&self) {
        let drained = tokio::time::timeout(self.inner.config.timeouts.ack, self.inner.client.drain()).await;
        if !matches!(drained, Ok(Ok(()))) {
            tracing::debug!("the connection to the bus was closed without draining");
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.inner.client
    }

    pub(crate) fn publishing(&self) -> &Context {
        &self.inner.publishing
    }

    pub(crate) fn asking(&self) -> &Context {
        &self.inner.asking
    }

    pub(crate) fn config(&self) -> &BusConfig {
        &self.inner.config
    }

    pub(crate) fn batches(&self) -> &Refused {
        &self.inner.batches
    }

    pub(crate) fn logs(&self) -> &Mutex<HashMap<BuildId, LogTail>> {
        &self.inner.logs
    }

    /// The server never answers what it refuses: it sends an error of its own, and the call times out. This puts the
    /// two together, so that a missing permission is not taken for a slow server.
    pub(crate) fn explain(&self, subject: &str, started: Instant, error: BusError) -> BusError {
        match (&error, self.inner.refusals.of(subject, started)) {
            (BusError::Timeout { what, .. }, Some(violation)) => {
                BusError::Forbidden { what: what.clone(), violation }
            }
            _ => error,
        }
    }
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { config, .. } = &*self.inner;
        f.debug_struct("Bus")
            .field("servers", &config.servers)
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}

/// The server's recent "Permissions Violation" errors.
#[derive(Default)]
struct Refusals {
    recent: Mutex<VecDeque<(Instant, String)>>,
}

impl Refusals {
    fn note(&self, message: String) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == REFUSALS {
            recent.pop_front();
        }
        recent.push_back((Instant::now(), message));
    }

    fn of(&self, subject: &str, since: Instant) -> Option<String> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let quoted = format!("\"{subject}\"");
        recent
            .iter()
            .rev()
            .find(|(at, text)| *at >= since && text.contains(&quoted))
            .map(|(_, text)| text.clone())
    }
}

/// The options of every connection of this configuration, as its user.
fn options(config: &BusConfig, refusals: &Arc<Refusals>) -> ConnectOptions {
    let refusals = Arc::clone(refusals);
    let options = anonymous_options(config).event_callback(move |event| {
        let refusals = Arc::clone(&refusals);
        async move { note(&event, &refusals) }
    });
    as_user(config, options)
}

/// With the user of this configuration.
pub(crate) fn as_user(config: &BusConfig, options: ConnectOptions) -> ConnectOptions {
    match &config.credentials {
        Some(who) => options.user_and_password(who.user.clone(), who.password.expose_secret().to_owned()),
        None => options,
    }
}

/// The same without a user.
pub(crate) fn anonymous_options(config: &BusConfig) -> ConnectOptions {
    let timeouts = &config.timeouts;
    let options = ConnectOptions::new()
        .name(&config.name)
        .custom_inbox_prefix(config.inbox_prefix())
        .connection_timeout(timeouts.connect)
        .request_timeout(Some(timeouts.request))
        .ping_interval(timeouts.ping)
        .reconnect_delay_callback(reconnect_delay)
        .require_tls(config.tls.required);
    let options = match &config.tls.authority {
        Some(file) => options.add_root_certificates(file.clone()),
        None => options,
    };
    match &config.tls.identity {
        Some((certificate, key)) => options.add_client_certificate(certificate.clone(), key.clone()),
        None => options,
    }
}

/// At once, then doubling from 50 ms to 4 s with jitter, so that a restarted server is not met by all at once.
fn reconnect_delay(attempt: usize) -> Duration {
    match attempt {
        0 | 1 => Duration::ZERO,
        _ => ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_secs(2))
            .without_max_times()
            .build()
            .nth((attempt - 2).min(8))
            .unwrap_or(Duration::from_secs(4)),
    }
}

fn note(event: &Event, refusals: &Refusals) {
    match event {
        Event::Connected => tracing::info!("connected to the bus"),
        Event::Disconnected => tracing::warn!("disconnected from the bus, reconnecting"),
        Event::ServerError(ServerError::Other(message)) => {
            tracing::warn!(message, "the bus refuses");
            refusals.note(message.clone());
        }
        Event::LameDuckMode
        | Event::Draining
        | Event::Closed
        | Event::SlowConsumer(_)
        | Event::ServerError(_)
        | Event::ClientError(_) => tracing::debug!(%event, "the bus"),
    }
}

pub(crate) fn servers(config: &BusConfig) -> Result<Vec<ServerAddr>, BusError> {
    if config.servers.is_empty() {
        return Err(BusError::Config("no server of the bus is configured".to_owned()));
    }
    let parse = |text: &String| {
        let address: ServerAddr = text
            .parse()
            .map_err(|error| BusError::Config(format!("an address of the bus is not valid: {error}")))?;
        if address.has_user_pass() {
            let message =
                "an address of the bus carries a user: give it as credentials, addresses are logged";
            return Err(BusError::Config(message.to_owned()));
        }
        Ok(address)
    };
    config.servers.iter().map(parse).collect()
}

fn is_refusal(error: &ConnectError) -> bool {
    matches!(error.kind(), ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication)
}

/// Why there is no connection.
pub(crate) fn failed(config: &BusConfig, error: &ConnectError) -> BusError {
    if is_refusal(error) {
        let user = config.credentials.as_ref().map_or_else(String::new, |who| who.user.clone());
        return BusError::Refused { user };
    }
    unreachable(config, error.to_string())
}

fn unreachable(config: &BusConfig, reason: String) -> BusError {
    BusError::Unreachable { servers: config.servers.join(", "), reason }
}
