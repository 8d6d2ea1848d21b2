use std::sync::atomic::{AtomicBool, Ordering};

use fabrique_core::app::BuildResources;
use fabrique_core::build::BuildInputs;
use fabrique_core::id::{AppName, TrustDomain};
use fabrique_ports::builder::{BuildOutcome, BuildRequest, DaemonInfo, ProgressSink};
use fabrique_ports::{Fault, Peer, PortError};
use tokio_util::sync::CancellationToken;

use super::*;

/// A daemon's health on a switch: what is under test is the accounting around it.
#[derive(Default)]
struct Health(AtomicBool);

#[async_trait]
impl Builder for Health {
    async fn build(
        &self,
        _: &Daemon,
        _: &BuildRequest,
        _: Arc<dyn ProgressSink>,
        _: CancellationToken,
    ) -> PortResult<BuildOutcome> {
        unreachable!("a placement builds nothing")
    }

    fn refuses(&self, _: &BuildInputs, _: &str) -> Option<BuildFailure> {
        unreachable!("a placement builds nothing")
    }

    async fn probe(&self, _: &Daemon) -> PortResult<DaemonInfo> {
        if self.0.load(Ordering::SeqCst) {
            return Ok(DaemonInfo {
                version: String::new(),
                supported: true,
                snapshotter: None,
                platforms: vec![],
            });
        }
        Err(PortError::new(Peer::Builder, Fault::Transient, "connection refused"))
    }
}

fn daemons(slots: &[usize]) -> Vec<StaticDaemon> {
    let entries = slots.iter().enumerate().map(|(at, &slots)| StaticDaemon {
        daemon: Daemon {
            name: format!("bk-{at}"),
            address: format!("tcp://127.0.0.1:{}", 1000 + at),
            tls_name: None,
            isolation: None,
            proxy: None,
        },
        slots,
    });
    entries.collect()
}

fn placement(slots: &[usize]) -> (Arc<StaticPlacement>, Arc<Health>) {
    let health = Arc::new(Health::default());
    let placement = StaticPlacement::new(daemons(slots), health.clone(), StaticSettings::default()).unwrap();
    (Arc::new(placement), health)
}

fn need(app: &str, patience: u64) -> Need {
    Need {
        app: AppName::parse(app).unwrap(),
        trust: TrustDomain::parse("atlas").unwrap(),
        resources: BuildResources::default(),
        timeout: Duration::from_secs(60),
        patience: Duration::from_secs(patience),
    }
}

async fn lease(placement: &StaticPlacement, app: &str) -> PlacementLease {
    match placement.acquire(&need(app, 10)).await.unwrap() {
        Placed::Lease(lease) => lease,
        Placed::Full(why) | Placed::Refused(why) => panic!("no lease: {why}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_app_goes_back_to_its_daemon_and_apps_spread() {
    let (placement, _) = placement(&[1, 1, 1]);
    let mut used = std::collections::BTreeSet::new();
    for app in ["one", "two", "three", "four", "five", "six", "seven", "eight"] {
        let first = lease(&placement, app).await;
        placement.release(first.clone(), Condition::Clean).await;
        let second = lease(&placement, app).await;
        assert_eq!(first, second);
        used.insert(second.daemon.name.clone());
        placement.release(second, Condition::Clean).await;
    }
    assert!(used.len() > 1, "{used:?}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_warm_daemon_is_waited_for_a_little_and_then_another_is_taken() {
    let (placement, _) = placement(&[1, 1]);
    let start = Instant::now();
    let warm = lease(&placement, "one").await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    let cold = lease(&placement, "one").await;
    assert_ne!(warm.daemon, cold.daemon);
    assert!(start.elapsed() >= StaticSettings::default().warm_wait, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_comes_back_goes_to_whoever_waits_for_it() {
    let (placement, _) = placement(&[1]);
    let held = lease(&placement, "one").await;
    let waiting = tokio::spawn({
        let placement = placement.clone();
        async move { lease(&placement, "two").await }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!waiting.is_finished());
    placement.release(held, Condition::Clean).await;
    waiting.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn patience_ends_with_the_reason() {
    let (placement, _) = placement(&[2]);
    let (_one, _two) = (lease(&placement, "one").await, lease(&placement, "two").await);
    let start = Instant::now();
    let full = placement.acquire(&need("three", 7)).await.unwrap();
    assert_eq!(full, Placed::Full("all 2 slots are taken".into()));
    assert_eq!(start.elapsed(), Duration::from_secs(7));
    assert_eq!(placement.shared.state().callers.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_holds_nothing() {
    let (placement, _) = placement(&[1]);
    let held = lease(&placement, "one").await;
    let wanted = need("two", 10);
    let mut waiting = Box::pin(placement.acquire(&wanted));
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut waiting).await.is_err());
    // The grant and the caller's end cross.
    placement.release(held, Condition::Clean).await;
    drop(waiting);
    lease(&placement, "three").await;
}

#[tokio::test(start_paused = true)]
async fn a_doubtful_daemon_is_closed_until_it_answers() {
    let (placement, health) = placement(&[1]);
    let held = lease(&placement, "one").await;
    placement.release(held, Condition::Doubt).await;
    let full = placement.acquire(&need("one", 60)).await.unwrap();
    assert_eq!(full, Placed::Full("no daemon answers (bk-0)".into()));
    health.0.store(true, Ordering::SeqCst);
    let start = Instant::now();
    lease_within(&placement, 120).await;
    assert!(start.elapsed() <= StaticSettings::default().longest_pause * 2, "{:?}", start.elapsed());
}

async fn lease_within(placement: &StaticPlacement, patience: u64) {
    let placed = placement.acquire(&need("one", patience)).await.unwrap();
    assert!(matches!(placed, Placed::Lease(_)), "{placed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_autopsy_tells_the_living_from_the_dead() {
    let (placement, health) = placement(&[1]);
    let daemon = &placement.daemons()[0];
    let lost = BuildFailure::new(FailureKind::Infrastructure, "lost");
    let Autopsy::Died { kind: FailureKind::Infrastructure, why } = placement.autopsy(daemon, &lost).await
    else {
        panic!("not dead")
    };
    assert!(why.contains("connection refused"), "{why}");
    health.0.store(true, Ordering::SeqCst);
    assert_eq!(placement.autopsy(daemon, &lost).await, Autopsy::Alive);
    let killed = BuildFailure { killed: true, ..lost };
    assert_eq!(placement.autopsy(daemon, &killed).await, Autopsy::Alive);
}

#[tokio::test(start_paused = true)]
async fn a_slot_given_back_twice_is_one_slot() {
    let (placement, _) = placement(&[1]);
    let held = lease(&placement, "one").await;
    placement.release(held.clone(), Condition::Clean).await;
    placement.release(held, Condition::Clean).await;
    let _one = lease(&placement, "one").await;
    assert!(matches!(placement.acquire(&need("two", 1)).await.unwrap(), Placed::Full(_)));
}

#[test]
fn a_list_of_daemons_is_checked() {
    let new = |entries: Vec<StaticDaemon>| {
        StaticPlacement::new(entries, Arc::new(Health::default()), StaticSettings::default()).err()
    };
    assert!(new(daemons(&[1, 2])).is_none());
    assert!(new(vec![]).is_some());
    assert!(new(daemons(&[1, 0])).is_some());
    let mut twice = daemons(&[1, 1]);
    twice[1].daemon.name = twice[0].daemon.name.clone();
    assert!(new(twice).is_some());
    let mut nowhere = daemons(&[1]);
    nowhere[0].daemon.address = "localhost".into();
    assert!(new(nowhere).is_some());
}

/// Many callers, some of whom lose patience, some of whom doubt what they had.
#[tokio::test(start_paused = true)]
async fn no_slot_is_leased_twice_and_all_come_back() {
    let (placement, health) = placement(&[1, 2, 1]);
    health.0.store(true, Ordering::SeqCst);
    let held = Arc::new(Mutex::new(std::collections::HashSet::new()));
    let callers = (0..200_u64).map(|n| {
        let (placement, held) = (placement.clone(), held.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(n * 37 % 500)).await;
            let need = need(&format!("app-{}", n % 7), 1 + n % 40);
            let Placed::Lease(lease) = placement.acquire(&need).await.unwrap() else { return false };
            assert!(held.lock().unwrap().insert((lease.daemon.name.clone(), lease.slot)), "{lease:?}");
            tokio::time::sleep(Duration::from_millis(100 + n * 53 % 900)).await;
            assert!(held.lock().unwrap().remove(&(lease.daemon.name.clone(), lease.slot)));
            let condition = if n % 11 == 0 { Condition::Doubt } else { Condition::Clean };
            placement.release(lease, condition).await;
            true
        })
    });
    let mut served = 0;
    for caller in callers.collect::<Vec<_>>() {
        served += usize::from(caller.await.unwrap());
    }
    assert!(served > 100 && served < 200, "{served}");
    let everything = leases(&placement, placement.capacity()).await;
    assert_eq!(everything.len(), placement.capacity());
}

async fn leases(placement: &StaticPlacement, count: usize) -> Vec<PlacementLease> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(lease(placement, "one").await);
    }
    all
}
