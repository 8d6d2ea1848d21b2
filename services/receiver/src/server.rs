//! Connections: accepted within bounds, served, and let go in an orderly way.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use backon::{BackoffBuilder as _, ExponentialBuilder};
use fabrique_ports::bus::{Event, Events, Wakes};
use fabrique_ports::delivery::DeliveryReader;
use fabrique_supervisor::{Supervisor, TaskEnded};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{ConfigError, ReceiverConfig};
use crate::intake::Intake;
use crate::journal::{self, Journal};
use crate::measure;
use crate::recheck::{self, Rechecks};
use crate::reload::Reloads;
use crate::routes::{self, Health};
use crate::subscriptions::Subscriptions;
use fabrique_ports::Ambient;

/// The head of a request and what hyper reads ahead, per connection.
const CONNECTION_BUFFER: usize = 64 << 10;
/// The pause after a failed accept: out of file descriptors, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The tasks in the background, each completing "the task that …".
const PUBLISHING: &str = "publishes events";
const KEEPING: &str = "looks again at pushes that were answered from memory";
const LOADING: &str = "reads the registrations first";

/// What the receiver is wired to.
pub struct Dependencies {
    /// Verifies and reads deliveries.
    pub reader: Arc<dyn DeliveryReader>,
    /// Where wakes go.
    pub wakes: Arc<dyn Wakes>,
    /// Where events go.
    pub events: Arc<dyn Events>,
    /// Who follows what.
    pub subscriptions: Arc<dyn Subscriptions>,
    /// Clock and randomness.
    pub ambient: Arc<dyn Ambient>,
    /// Whether the bus is connected at this moment, for `/readyz`.
    pub connected: Box<dyn Fn() -> bool + Send + Sync>,
    /// Renders the metrics as Prometheus text, for `/metrics`.
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
}

/// How a shutdown went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every delivery at work was answered and every event published.
    Completely,
    /// The time for it ran out.
    Partly,
}

/// The receiver, ready to serve.
pub struct Receiver {
    intake: Arc<Intake>,
    health: Arc<Health>,
    events: Arc<dyn Events>,
    queue: mpsc::Receiver<Event>,
}

impl Receiver {
    /// Wires a receiver. Nothing runs yet.
    ///
    /// # Errors
    /// When the configuration cannot keep the receiver's promise.
    pub fn new(config: ReceiverConfig, deps: Dependencies) -> Result<Self, ConfigError> {
        config.check()?;
        let (journal, queue) = Journal::new(config.event_queue);
        let reloads = Reloads::new(deps.subscriptions, &config);
        let intake = Intake {
            reader: deps.reader,
            wakes: deps.wakes,
            reloads: Arc::new(reloads),
            rechecks: Rechecks::default(),
            journal,
            ambient: deps.ambient,
            places: Arc::new(Semaphore::new(config.max_in_flight)),
            memory: Arc::new(Semaphore::new(config.max_buffered)),
            at_work: TaskTracker::new(),
            config,
        };
        let health =
            Health { connected: deps.connected, metrics: deps.metrics, draining: AtomicBool::new(false) };
        Ok(Self { intake: Arc::new(intake), health: Arc::new(health), events: deps.events, queue })
    }

    /// The routes alone, for a server that is already there. Its connections, the readings of the registrations
    /// that no delivery waits for and the publishing of events are then the caller's: [`serve`](Self::serve) does
    /// it all.
    pub fn router(&self) -> Router {
        routes::router(&self.intake, &self.health)
    }

    /// Serves until `shutdown`, then stops accepting, lets deliveries at work finish, publishes what events
    /// are left, reads the registrations once more where pushes wait for that, and returns. Whatever takes longer
    /// than `drain_timeout` is cut.
    ///
    /// # Errors
    /// When a task in the background ended by itself, which stops the receiver in the same way.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> Result<Drained, TaskEnded> {
        let router = self.router();
        let Self { intake, health, events, queue } = self;
        let (shutdown, closing) = (shutdown.child_token(), CancellationToken::new());
        let mut supervisor = Supervisor::new("receiver");
        supervisor.start(PUBLISHING, journal::publish(queue, events, closing.clone()));
        supervisor.start(KEEPING, recheck::keep_up(Arc::clone(&intake), closing.clone()));
        supervisor.start(LOADING, load(Arc::clone(&intake.reloads), shutdown.clone()));
        let connections = TaskTracker::new();

        let accepting = accept(listener, &router, &intake.config, &connections, &shutdown);
        let served = supervisor.serve(accepting, &shutdown).await;

        health.draining.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + intake.config.drain_timeout;
        connections.close();
        intake.at_work.close();
        let quiet = async {
            connections.wait().await;
            intake.at_work.wait().await;
        };
        let answered = tokio::time::timeout_at(deadline, quiet).await.is_ok();
        closing.cancel();
        // A forge that is away at this very moment makes no delivery less answered: the reconciler heals that.
        let left = supervisor.all_ended(deadline).await;
        match served.and(left)? {
            left if answered && !left.contains(&PUBLISHING) => Ok(Drained::Completely),
            _ => Ok(Drained::Partly),
        }
    }
}

/// Accepts connections until `shutdown`. At the most of them it waits for one to end before it accepts the
/// next, which then waits in the kernel's backlog.
async fn accept(
    listener: TcpListener,
    router: &Router,
    config: &ReceiverConfig,
    connections: &TaskTracker,
    shutdown: &CancellationToken,
) {
    let places = Arc::new(Semaphore::new(config.max_connections));
    let next = async || {
        let place = Arc::clone(&places).acquire_owned().await;
        (listener.accept().await, place)
    };
    loop {
        let (accepted, place) = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            next = next() => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let limits = Limits::of(config);
                let (router, shutdown) = (router.clone(), shutdown.clone());
                connections.spawn(async move {
                    let _counted = measure::Counted::connection();
                    connection(stream, router, limits, shutdown).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The bounds of one connection.
#[derive(Clone, Copy)]
struct Limits {
    header: Duration,
    age: Duration,
    drain: Duration,
}

impl Limits {
    fn of(config: &ReceiverConfig) -> Self {
        Self { header: config.header_timeout, age: config.connection_age, drain: config.drain_timeout }
    }
}

async fn connection(stream: TcpStream, router: Router, limits: Limits, shutdown: CancellationToken) {
    // Answers are one small write each; nothing is gained by waiting for more.
    let _ = stream.set_nodelay(true);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(CONNECTION_BUFFER)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = until_leaving(limits.age, &shutdown) => {
            served.as_mut().graceful_shutdown();
            timeout(limits.drain, served.as_mut()).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn until_leaving(age: Duration, shutdown: &CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = sleep(age) => {}
    }
}

/// Reads the registrations for the first time, for as long as it takes, and then waits for `shutdown` like the others.
async fn load(reloads: Arc<Reloads>, shutdown: CancellationToken) {
    tokio::select! {
        () = first_reading(&reloads) => shutdown.cancelled().await,
        () = shutdown.cancelled() => {}
    }
}

async fn first_reading(reloads: &Arc<Reloads>) {
    let mut delays = ExponentialBuilder::default()
        .with_jitter()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(10))
        .without_max_times()
        .build();
    while !reloads.subscriptions().loaded() {
        let patience = Instant::now() + reloads.patience();
        if reloads.fresh(patience).await.is_err() {
            sleep(delays.next().unwrap_or(Duration::from_secs(10))).await;
        }
    }
}
