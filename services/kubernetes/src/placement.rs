//! [`KubernetesPlacement`]: the pool, driven by a watch on the builder pods and by those who ask for a place.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::AppName;
use fabrique_ports::builder::{
    Autopsy, BuildFailure, Condition, Daemon, Need, Placed, Placement, PlacementLease,
};
use fabrique_ports::{Ambient, PortResult};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::runtime::watcher as watch;
use kube::runtime::watcher::{self, Event};
use tokio::sync::{Notify, oneshot, watch as channel};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::autopsy::Cause;
use crate::cluster::{Cluster, Make};
use crate::config::{IsolationSetting, Settings};
use crate::error::KubernetesError;
use crate::isolation::{self, Choice, choose};
use crate::labels;
use crate::pki::BuilderCa;
use crate::pod::{DAEMON_PORT, pod_name};
use crate::pool::{
    Action, Attempt, End, FIRST_PAUSE, Fate, Grant, Holder, Phase, Pool, Retirement, Rules, Ticket, Uid, read,
};
use crate::proxy;

/// The pool looks at itself this often when nothing happens: waits end and ages pass without an event.
const TICK: Duration = Duration::from_millis(500);

/// For a daemon to take a connection, and between attempts at one that does not.
const KNOCK: Duration = Duration::from_secs(2);

/// Leases daemons in pods. Dropping it stops the watch; pods stay, and the next worker finds them.
pub struct KubernetesPlacement {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

struct Shared {
    cluster: Cluster,
    state: Mutex<State>,
    /// Something happened that may ask for a decision.
    look: Notify,
    /// Counts changes of the view, for those who wait for one.
    seen: channel::Sender<u64>,
}

struct State {
    pool: Pool,
    /// How the pods of this pool are made.
    make: Arc<Make>,
    /// Where grants are sent.
    callers: HashMap<Ticket, oneshot::Sender<Grant>>,
}

impl KubernetesPlacement {
    /// Checks the settings, chooses the isolation, writes `buildkitd.toml` and starts to watch. `worker` names this
    /// worker among all.
    ///
    /// # Errors
    /// When the settings are wrong, or the API server does not answer or refuses.
    pub async fn start(
        client: Client,
        settings: Settings,
        ca: Arc<BuilderCa>,
        worker: &str,
        ambient: Arc<dyn Ambient>,
    ) -> Result<Self, KubernetesError> {
        let findings = settings.validate();
        if !findings.is_empty() {
            return Err(KubernetesError::Settings { findings });
        }
        let since = ambient.now();
        let me = Holder { worker: worker.to_owned(), incarnation: ambient.ulid() };
        let cluster = Cluster::new(client, settings, ca, ambient);
        let choice = choose(&cluster.settings, cluster.nodes().await?.as_deref());
        tracing::info!(
            isolation = choice.isolation.as_str(),
            reason = choice.reason,
            "builders are isolated"
        );
        let generation = cluster.generation(choice.isolation)?;
        cluster.owner(&generation).await?;
        let rules = Rules {
            pool: cluster.settings.pool.clone(),
            isolation: choice.isolation,
            generation: generation.name.clone(),
            since,
            resources: cluster.settings.resources,
            apps: cluster.settings.apps.clone(),
            longest_pause: cluster.settings.patience.longest_pause,
            me,
        };
        let shared = Arc::new(Shared {
            cluster,
            state: Mutex::new(State {
                pool: Pool::new(rules),
                make: Arc::new(Make {
                    isolation: choice.isolation,
                    reason: choice.reason,
                    generation,
                    since,
                }),
                callers: HashMap::new(),
            }),
            look: Notify::new(),
            seen: channel::Sender::new(0),
        });
        let tasks = vec![
            tokio::spawn(follow(Arc::clone(&shared))),
            tokio::spawn(drive(Arc::clone(&shared))),
            tokio::spawn(reconsider(Arc::clone(&shared))),
        ];
        Ok(Self { shared, tasks })
    }

    /// The isolation of new daemons, and why.
    #[must_use]
    pub fn choice(&self) -> Choice {
        let make = Arc::clone(&self.shared.state().make);
        Choice { isolation: make.isolation, reason: make.reason.clone() }
    }

    /// Waits until every claim of ours is taken off, at most for `patience`: what a worker that stops leaves claimed
    /// is recycled, its cache with it. Says whether nothing is left.
    pub async fn drain(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut seen = self.shared.seen.subscribe();
        loop {
            if !self.shared.state().pool.holds_something() {
                return true;
            }
            self.shared.look.notify_one();
            if tokio::time::timeout_at(deadline, seen.changed()).await.is_err() {
                return false;
            }
        }
    }
}

impl Drop for KubernetesPlacement {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

#[async_trait]
impl Placement for KubernetesPlacement {
    async fn acquire(&self, need: &Need) -> PortResult<Placed> {
        let settings = &self.shared.cluster.settings;
        let refusal = settings.max.refusal(&need.resources).or_else(|| settings.pool.refusal(need.timeout));
        if let Some(refusal) = refusal {
            return Ok(Placed::Refused(refusal));
        }
        let mut place = self.shared.join(need);
        match tokio::time::timeout(need.patience, place.granted()).await {
            Ok(daemon) => Ok(Placed::Lease(PlacementLease { daemon, slot: 0 })),
            Err(_) => Ok(Placed::Full(self.shared.state().pool.why_waiting(place.ticket))),
        }
    }

    async fn release(&self, lease: PlacementLease, condition: Condition) {
        let Some((seat, address)) = seat_and_address(&lease.daemon) else {
            tracing::warn!(daemon = lease.daemon.name, "what was given back is no builder pod");
            return;
        };
        let mut state = self.shared.state();
        let uid = state.pool.held(seat, address).map(|daemon| daemon.uid.clone());
        let given = uid.is_some_and(|uid| state.pool.give_back(&uid, condition == Condition::Doubt));
        drop(state);
        if !given {
            tracing::info!(daemon = lease.daemon.name, "a daemon was given back that is gone");
        }
        self.shared.look.notify_one();
    }

    /// A step that was killed in a pod that is well counts as out of memory for as long as more memory can be had: the
    /// kernel may end one process (cgroup v1, `singleProcessOOMKill`), of which the pod's status says nothing. At the
    /// limit the failure stays the step's.
    async fn autopsy(&self, daemon: &Daemon, failure: &BuildFailure) -> Autopsy {
        let Some((seat, address)) = seat_and_address(daemon) else {
            let why = "is no builder pod".to_owned();
            return Autopsy::Died { kind: FailureKind::Infrastructure, why };
        };
        let shared = &self.shared;
        let cause = match shared.fate(seat, address).await {
            Fate::Over(end) => Some(shared.cause(end).await),
            Fate::Alive { node } => {
                let app = shared.app_on(seat, address);
                let cause = shared.cause_of_silence(seat, address, node.as_deref()).await;
                if let Some(cause) = &cause {
                    shared.keep_away(cause, app.as_ref(), node.as_deref());
                }
                cause
            }
        };
        match cause {
            Some(cause) => cause.into(),
            None if failure.killed && shared.grow(shared.app_on(seat, address).as_ref()) => {
                Autopsy::OutOfMemory
            }
            None => Autopsy::Alive,
        }
    }

    fn capacity(&self) -> usize {
        self.shared.cluster.settings.pool.total.into()
    }

    fn daemons(&self) -> Vec<Daemon> {
        let state = self.shared.state();
        let settings = &self.shared.cluster.settings;
        state.pool.daemons().filter_map(|daemon| endpoint(settings, daemon)).collect()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, need: &Need) -> Place<'_> {
        let (caller, grant) = oneshot::channel();
        let mut state = self.state();
        let (app, trust, now) = (need.app.clone(), need.trust.clone(), self.cluster.now());
        let ticket = state.pool.ask(app, trust, &need.resources, need.patience, now);
        state.callers.insert(ticket, caller);
        drop(state);
        self.look.notify_one();
        Place { shared: self, ticket, grant, taken: false }
    }

    /// Changes the view and has it looked at.
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.seen.send_modify(|count| *count = count.wrapping_add(1));
        self.look.notify_one();
    }

    /// What the pod's status says, once it says more than that all is well, or for as long as a node may need to
    /// report.
    async fn fate(&self, seat: u16, address: IpAddr) -> Fate {
        let deadline = Instant::now() + self.cluster.autopsy_patience();
        let mut seen = self.seen.subscribe();
        loop {
            let fate = self.state().pool.fate(seat, address);
            let over = matches!(fate, Fate::Over(_));
            if over || !matches!(tokio::time::timeout_at(deadline, seen.changed()).await, Ok(Ok(()))) {
                return fate;
            }
        }
    }

    async fn cause(&self, end: End) -> Cause {
        // What is the node's fault by the pod's own status has been noted where that was seen, by every worker.
        let noted = end.cause.is_the_nodes();
        let cause = self.with_node(end.cause, end.node.as_deref()).await;
        if !noted {
            self.keep_away(&cause, end.app.as_ref(), end.node.as_deref());
        }
        if cause == Cause::OutOfMemory {
            self.grow(end.app.as_ref());
        }
        cause
    }

    /// Why a daemon does not answer whose pod is well as far as anybody can say; nothing when it answers. A node that
    /// stopped reporting cannot tell that its pods stopped too, and is taken for lost only after a while.
    async fn cause_of_silence(&self, seat: u16, address: IpAddr, node: Option<&str>) -> Option<Cause> {
        let deadline = Instant::now() + self.cluster.settings.patience.node;
        let mut seen = self.seen.subscribe();
        loop {
            if self.node(node).await.is_some_and(|node| crate::autopsy::is_lost(&node)) {
                return Some(Cause::NodeLost);
            }
            let fate = self.state().pool.fate(seat, address);
            if let Fate::Over(end) = fate {
                return Some(self.cause(end).await);
            }
            if answers(address).await {
                return None;
            }
            if Instant::now() >= deadline {
                return Some(Cause::Silent);
            }
            let _ = tokio::time::timeout(KNOCK, seen.changed()).await;
        }
    }

    /// The app's next build keeps away from a node that is to blame.
    fn keep_away(&self, cause: &Cause, app: Option<&AppName>, node: Option<&str>) {
        if let (true, Some(app), Some(node)) = (cause.is_the_nodes(), app, node) {
            self.state().pool.avoid(app, node, self.cluster.now());
        }
    }

    /// Which app builds on the daemon that we hold in `seat` at `address`.
    fn app_on(&self, seat: u16, address: IpAddr) -> Option<AppName> {
        self.state().pool.held(seat, address)?.apps.first().cloned()
    }

    /// The app's next daemon has more memory, if it may; says whether.
    fn grow(&self, app: Option<&AppName>) -> bool {
        let Some(app) = app else { return false };
        let Some(memory) = self.state().pool.grow(app) else { return false };
        tracing::info!(%app, %memory, "the next daemon has more memory");
        true
    }

    async fn node(&self, name: Option<&str>) -> Option<Node> {
        self.cluster.node(name?).await
    }

    /// An eviction from a node that takes no more pods is a drain, and a deletion on a node that stopped reporting
    /// is the node's end.
    async fn with_node(&self, cause: Cause, name: Option<&str>) -> Cause {
        if !matches!(cause, Cause::Evicted | Cause::Deleted) {
            return cause;
        }
        let node = self.node(name).await;
        cause.on(node.as_ref())
    }

    async fn perform(&self, action: Action, make: &Make) {
        if let Action::Delete { seat, why, .. } = &action {
            log_retirement(*seat, why);
        }
        let attempt = self.cluster.perform(&action, make).await;
        if let Attempt::Failed(problem) = &attempt {
            tracing::warn!(problem, "the API server did not do what was asked");
        }
        let (now, jitter) = (self.cluster.now(), self.cluster.jitter());
        self.change(|state| match &action {
            Action::Create { seat, number, trust, .. } => {
                if matches!(attempt, Attempt::Done(_)) {
                    tracing::info!(pod = pod_name(*seat), %trust, "a builder was made");
                }
                state.pool.created(*seat, *number, attempt, now, jitter);
            }
            Action::Claim { uid, .. } => {
                let grant = state.pool.claimed(uid, attempt, now);
                if let Some(grant) = grant {
                    state.deliver(grant);
                }
            }
            Action::Release { uid, .. } => state.pool.released(uid, attempt, now),
            Action::Renew { uid, .. } => state.pool.renewed(uid, attempt, now),
            Action::Look { uid, .. } => state.pool.looked(uid, attempt, now),
            Action::Delete { uid, .. } => state.pool.deleted(uid, &attempt, now),
        });
    }
}

impl State {
    /// To whoever waits. One who has gone away in the meantime gives it back.
    fn deliver(&mut self, grant: Grant) {
        let uid = grant.daemon.uid.clone();
        let refused = match self.callers.remove(&grant.ticket) {
            Some(caller) => caller.send(grant).is_err(),
            None => true,
        };
        if refused {
            self.pool.give_back(&uid, false);
        }
    }
}

/// A place in the queue. Dropping it leaves the queue, or gives back a daemon that was granted and not taken.
struct Place<'a> {
    shared: &'a Shared,
    ticket: Ticket,
    grant: oneshot::Receiver<Grant>,
    taken: bool,
}

impl Place<'_> {
    async fn granted(&mut self) -> Daemon {
        let settings = &self.shared.cluster.settings;
        match (&mut self.grant).await.ok().and_then(|grant| endpoint(settings, &grant.daemon)) {
            Some(daemon) => {
                self.taken = true;
                daemon
            }
            // The sender is dropped only together with this place, and only ready daemons are granted.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut state = self.shared.state();
        state.callers.remove(&self.ticket);
        state.pool.leave(self.ticket);
        if let Ok(grant) = self.grant.try_recv() {
            state.pool.give_back(&grant.daemon.uid, false);
        }
        drop(state);
        self.shared.look.notify_one();
    }
}

/// Carries out what the pool decides, for as long as the placement lives.
async fn drive(shared: Arc<Shared>) {
    let mut tasks = JoinSet::new();
    loop {
        let (actions, make) = {
            let (now, jitter) = (shared.cluster.now(), shared.cluster.jitter());
            let mut state = shared.state();
            (state.pool.decide(now, jitter), Arc::clone(&state.make))
        };
        for action in actions {
            let (shared, make) = (Arc::clone(&shared), Arc::clone(&make));
            // Bounded: at most one for each seat and each one who waits.
            tasks.spawn(async move { shared.perform(action, &make).await });
        }
        while tasks.try_join_next().is_some() {}
        let _ = tokio::time::timeout(TICK, shared.look.notified()).await;
    }
}

/// Looks at the nodes again and again: one that was added since may lack user namespaces.
async fn reconsider(shared: Arc<Shared>) {
    let settings = &shared.cluster.settings;
    if settings.isolation != IsolationSetting::Auto {
        return;
    }
    loop {
        tokio::time::sleep(settings.patience.nodes).await;
        if let Err(error) = shared.reconsider().await {
            tracing::warn!(%error, "whether nodes offer user namespaces was not seen; trying again");
        }
    }
}

/// Keeps the view, for as long as the placement lives: lists, watches, and starts over when the API server was away or
/// has forgotten where we were. Always with a list, which says what there is that was made meanwhile.
async fn follow(shared: Arc<Shared>) {
    loop {
        let config = watcher::Config::default().labels(&labels::builders());
        let mut events = watch(shared.cluster.pods.clone(), config).boxed();
        let mut listed = Vec::new();
        let error = loop {
            match events.try_next().await {
                Ok(Some(event)) => shared.take(event, &mut listed),
                Ok(None) => return,
                Err(error) => break error,
            }
        };
        tracing::warn!(%error, "the builder pods are not being watched; trying again");
        let now = shared.cluster.now();
        shared.state().pool.blinked(now);
        tokio::time::sleep(FIRST_PAUSE.mul_f64(0.5 + shared.cluster.jitter())).await;
    }
}

impl Shared {
    async fn reconsider(&self) -> Result<(), KubernetesError> {
        let nodes = self.cluster.nodes().await?;
        let current = self.state().make.isolation;
        let Some(choice) = isolation::reconsider(&self.cluster.settings, nodes.as_deref(), current) else {
            return Ok(());
        };
        let Choice { isolation, reason } = choice;
        let generation = self.cluster.generation(isolation)?;
        self.cluster.owner(&generation).await?;
        tracing::warn!(isolation = isolation.as_str(), reason, "new builders are isolated otherwise");
        let since = self.cluster.now();
        self.change(|state| {
            state.pool.turn(isolation, generation.name.clone(), since);
            state.make = Arc::new(Make { isolation, reason, generation, since });
        });
        Ok(())
    }

    fn take(&self, event: Event<Pod>, listed: &mut Vec<crate::pool::Daemon>) {
        let now = self.cluster.now();
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(pod) => listed.extend(read(&pod)),
            Event::InitDone => {
                let all = std::mem::take(listed);
                self.change(|state| state.pool.resync(all, now));
            }
            Event::Apply(pod) => {
                if let Some(daemon) = read(&pod) {
                    self.change(|state| state.pool.see(daemon, now));
                }
            }
            Event::Delete(pod) => {
                if let Some(uid) = pod.metadata.uid.clone() {
                    self.change(|state| state.pool.gone(&Uid(uid), read(&pod).as_ref(), now));
                }
            }
        }
    }
}

fn log_retirement(seat: u16, why: &Retirement) {
    let pod = pod_name(seat);
    match why {
        Retirement::Over(cause) => tracing::info!(pod, %cause, "a builder that is over is removed"),
        Retirement::Overdue(Some(cause)) => tracing::warn!(pod, %cause, "a builder is given up"),
        Retirement::Overdue(None) => tracing::warn!(pod, "a builder that did not become ready is given up"),
        Retirement::Abandoned => tracing::warn!(pod, "a builder whose worker is gone is recycled"),
        Retirement::Unfinished => {
            tracing::warn!(
                pod,
                "a builder that was made without an answer has no certificate, and is removed"
            );
        }
        Retirement::Doubt => tracing::info!(pod, "a builder in doubt is recycled"),
        Retirement::Unproven => {
            tracing::warn!(pod, "a builder that passed its gate while the API server was away is removed");
        }
        Retirement::Outdated | Retirement::Spent | Retirement::Idle | Retirement::Reclaimed => {
            tracing::info!(pod, ?why, "a builder is retired");
        }
    }
}

/// Whether anything listens: who it is, is the builder's to ask.
async fn answers(address: IpAddr) -> bool {
    let connected = tokio::net::TcpStream::connect((address, DAEMON_PORT));
    matches!(tokio::time::timeout(KNOCK, connected).await, Ok(Ok(_)))
}

/// How a daemon is dialled: by its address, under its pod's name.
pub(crate) fn endpoint(settings: &Settings, daemon: &crate::pool::Daemon) -> Option<Daemon> {
    let Phase::Ready(address) = daemon.phase else { return None };
    let name = pod_name(daemon.seat);
    let address = format!("tcp://{}", SocketAddr::new(address, DAEMON_PORT));
    let isolation = daemon.isolation.as_str();
    let isolation = Some(match &daemon.reason {
        Some(reason) => format!("{isolation}: {reason}"),
        None => isolation.to_owned(),
    });
    Some(Daemon {
        tls_name: Some(name.clone()),
        name,
        address,
        isolation,
        proxy: proxy::of(settings, daemon.isolation),
    })
}

/// What [`endpoint`] made it from. The address tells a pod from the next one in its seat.
fn seat_and_address(daemon: &Daemon) -> Option<(u16, IpAddr)> {
    let seat = daemon.name.strip_prefix("builder-")?.parse().ok()?;
    let address: SocketAddr = daemon.address.strip_prefix("tcp://")?.parse().ok()?;
    Some((seat, address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{AppDaemon, settings};

    #[test]
    fn a_lease_names_its_pod() {
        let daemon = AppDaemon::ready(3).daemon();
        let endpoint = endpoint(&settings(), &daemon).unwrap();
        assert_eq!(endpoint.tls_name.as_deref(), Some("builder-3"));
        assert_eq!(endpoint.address, "tcp://198.18.128.3:1234");
        assert_eq!(seat_and_address(&endpoint), Some((3, AppDaemon::address(3))));
        assert_eq!(endpoint.to_string(), "builder-3 (userns)");
        let chosen = crate::pool::Daemon { reason: Some("it is configured".into()), ..daemon };
        assert_eq!(
            super::endpoint(&settings(), &chosen).unwrap().to_string(),
            "builder-3 (userns: it is configured)"
        );
        let other = Daemon {
            name: "bk-1".into(),
            address: "tcp://a:1".into(),
            tls_name: None,
            isolation: None,
            proxy: None,
        };
        assert_eq!(seat_and_address(&other), None);
    }
}
