//! What each role may and may not do.

use fabrique_bus::Login;
use fabrique_core::id::{AppName, BranchName, BuildKey, CheckName, RepoName, Revision};
use fabrique_core::memory::Memory;
use fabrique_core::time::Timestamp;
use fabrique_core::upstream::{CheckState, UpstreamState};
use fabrique_core::work::WorkRecord;
use fabrique_ports::bus::{
    Board as _, BusRights as _, BusRole, BusSetup as _, Command, Commands as _, Event, EventBody,
    Events as _, Request, Wakes as _,
};
use fabrique_ports::records::{
    BuildEntry, BuildHistory as _, BuildPhase, Logs as _, Memories as _, Records as _, Swap,
};
use fabrique_ports::upstream::Upstreams as _;
use fabrique_ports::{Fault, PortResult};
use futures::StreamExt as _;

use crate::{bus, config, new_app, new_build, own_bed, push, raw_client, shared_bed, within};

fn denied<T: std::fmt::Debug>(what: &str, outcome: PortResult<T>) {
    let error = outcome.expect_err(what);
    assert_eq!(error.fault(), Fault::Denied, "{what}: {error}");
    assert!(error.to_string().contains("Permissions Violation"), "{what}: {error}");
}

fn decision(app: &AppName) -> Event {
    let body = EventBody::Decision {
        app: app.clone(),
        target: None,
        action: "nothing".to_owned(),
        reason: "none".to_owned(),
        dead_letter: false,
    };
    Event { id: ulid::Ulid::generate().to_string(), at: Timestamp(0), trace: None, body }
}

#[tokio::test]
async fn the_receiver_wakes_and_reports_and_nothing_else() {
    let bus = bus(shared_bed().await, "receiver").await;
    let app = new_app();
    bus.wake(&app, &push()).await.unwrap();
    let warning = EventBody::Warning { app: None, message: "x".to_owned() };
    bus.publish(&Event { body: warning, ..decision(&app) }).await.unwrap();
    let key = BuildKey::parse(&"d".repeat(64)).unwrap();
    let request = Request { app: app.clone(), command: Command::Release, caller: String::new() };
    let (work, thought) = (WorkRecord::default(), Memory { rebuild: 1, ..Memory::default() });
    let (publish, swap, memory, item, record, log, items, ensure, send) = tokio::join!(
        async { bus.publish(&decision(&app)).await },
        bus.swap_work(&app, &work, 0),
        bus.swap_memory(&app, &thought, 0),
        bus.work_of(&app),
        bus.record(&key),
        async { bus.close_log(&new_build(&app)).await },
        bus.all_work(),
        bus.ensure(),
        bus.send(&request),
    );
    denied("publishing a decision", publish);
    denied("claiming", swap);
    denied("writing a memory", memory);
    denied("reading an item", item);
    denied("reading a record", record);
    denied("closing a log", log);
    denied("listing items", items);
    denied("making streams", ensure);
    denied("sending commands", send);
}

#[tokio::test]
async fn the_worker_does_its_work_and_cannot_change_the_streams() {
    let bed = shared_bed().await;
    let bus = bus(bed, "worker").await;
    let app = new_app();
    bus.swap_memory(&app, &Memory::default(), 0).await.unwrap();
    bus.memories().await.unwrap();
    bus.builds(None, 1).await.unwrap();
    bus.publish(&decision(&app)).await.unwrap();
    let context = async_nats::jetstream::new(raw_client(bed, "worker").await);
    assert!(context.delete_stream("FABRIQUE_WAKE").await.is_err());
    context.get_stream("FABRIQUE_WAKE").await.unwrap().purge().await.unwrap_err();
    let delivery = context.publish("fabrique.delivery.a.b", "forged".into()).await.unwrap();
    assert!(
        tokio::time::timeout(std::time::Duration::from_millis(500), delivery.into_future()).await.is_err()
    );
}

#[tokio::test]
async fn the_reconciler_reads_and_wakes_and_ends_attempts_and_does_no_work() {
    let bus = bus(shared_bed().await, "reconciler").await;
    let app = new_app();
    bus.wake(&app, &push()).await.unwrap();
    bus.all_work().await.unwrap();
    bus.memories().await.unwrap();
    bus.builds(Some(&app), 5).await.unwrap();
    let attempt = BuildEntry {
        build: new_build(&app),
        app: app.clone(),
        key: BuildKey::parse(&"d".repeat(64)).unwrap(),
        revision: Revision::parse(&"1".repeat(40)).unwrap(),
        reason: "it is not built yet".to_owned(),
        phase: BuildPhase::Superseded { by: None },
        daemon: None,
        queued: Timestamp(0),
        ended: Some(Timestamp(1)),
        egress: None,
    };
    assert!(matches!(bus.swap_build(&attempt, 0).await.unwrap(), Swap::Done(_)));
    bus.close_log(&attempt.build).await.unwrap();
    let (work, thought) = (WorkRecord::default(), Memory::default());
    let (swap, memory, decided) =
        tokio::join!(bus.swap_work(&app, &work, 0), bus.swap_memory(&app, &thought, 0), async {
            bus.publish(&decision(&app)).await
        });
    denied("claiming", swap);
    denied("writing a memory", memory);
    denied("publishing a decision", decided);
}

#[tokio::test]
async fn the_operator_reads_everything_and_wakes_nobody() {
    let bus = bus(shared_bed().await, "operator").await;
    let app = new_app();
    bus.all_work().await.unwrap();
    bus.memories().await.unwrap();
    bus.usage().await.unwrap();
    drop(bus.tail(None, Some(Timestamp(0))).await.unwrap());
    drop(bus.read_log(&new_build(&app), false).await.unwrap().collect::<Vec<_>>().await);
    denied("waking", bus.wake(&app, &push()).await);
}

#[tokio::test]
async fn the_observer_publishes_nothing() {
    let bus = bus(shared_bed().await, "observer").await;
    denied("waking", bus.wake(&new_app(), &push()).await);
}

#[tokio::test]
async fn every_user_of_the_reference_may_do_what_it_must_and_nothing_that_it_must_not() {
    let bed = shared_bed().await;
    for role in BusRole::ALL {
        let findings = Login::new(config(bed, role.as_str())).rights(role).await.unwrap();
        assert_eq!(findings, [], "{role:?}");
    }
}

#[tokio::test]
async fn rights_that_are_missing_or_too_wide_are_found_out_and_trying_them_changes_nothing() {
    let bed = own_bed().await;
    let (worker, app) = (bus(&bed, "worker").await, new_app());
    worker.wake(&app, &push()).await.unwrap();
    worker.swap_memory(&app, &Memory::default(), 0).await.unwrap();
    let admin = bus(&bed, "admin").await;
    let before = admin.usage().await.unwrap();
    let mut commands = worker.serve().await.unwrap();

    // The administrator may do everything, so everything was tried that a receiver must not do.
    let findings = Login::new(config(&bed, "admin")).rights(BusRole::Receiver).await.unwrap();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].fatal && findings[0].what.starts_with("the receiver may "), "{findings:?}");
    assert!(findings[0].what.ends_with("more, and must not"), "{findings:?}");

    let findings = Login::new(config(&bed, "reconciler")).rights(BusRole::Worker).await.unwrap();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].what.starts_with("the worker may not publish decision events"), "{findings:?}");
    assert!(findings[0].remedy.contains("services/bus/README.md"), "{findings:?}");

    let findings = Login::new(config(&bed, "worker")).rights(BusRole::Receiver).await.unwrap();
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(
        findings[0].what.contains("may not publish delivery events (fabrique.delivery.*.*)"),
        "{findings:?}"
    );
    assert!(findings[1].what.contains("may write logs"), "{findings:?}");

    assert_eq!(admin.usage().await.unwrap(), before);
    assert_eq!(admin.inspect().await.unwrap(), []);
    let operator = bus(&bed, "operator").await;
    let request = Request { app: app.clone(), command: Command::Retry, caller: "ada".to_owned() };
    let asked = tokio::spawn(async move { operator.send(&request).await });
    let heard = within("the command", commands.next()).await.unwrap();
    assert_eq!(heard.request().app, app, "no trial was taken for a command");
    asked.abort();
}

#[tokio::test]
async fn a_password_that_is_not_the_users_is_refused() {
    let mut config = config(shared_bed().await, "worker");
    config = config.as_user("worker", "wrong-word".to_owned().into());
    let error = Login::new(config).rights(BusRole::Worker).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Denied, "{error}");
    assert!(!format!("{error:?}").contains("wrong-word"), "{error:?}");
}

#[tokio::test]
async fn the_mirror_job_says_what_github_said_and_whoever_decides_by_it_cannot_write_it() {
    let bed = shared_bed().await;
    let (mirror, worker, app) = (bus(bed, "mirror").await, bus(bed, "worker").await, new_app());
    assert_eq!(worker.upstream(&app).await.unwrap(), None);
    let state = UpstreamState {
        github: RepoName::parse("acme/citation").unwrap(),
        branch: BranchName::parse("main").unwrap(),
        checks: [CheckName::parse("build (linux)").unwrap()].into(),
        asked: Timestamp(7),
        head: Some(Revision::parse(&"1".repeat(40)).unwrap()),
        results: [(CheckName::parse("build (linux)").unwrap(), CheckState::Pending)].into(),
        passed: vec![Revision::parse(&"2".repeat(40)).unwrap()],
        pinned: None,
        mirrored: None,
        behind_since: Some(Timestamp(5)),
    };
    mirror.put_upstream(&app, &state).await.unwrap();
    mirror.wake(&app, &push()).await.unwrap();
    assert_eq!(mirror.upstream(&app).await.unwrap(), Some(state.clone()));
    for role in ["worker", "reconciler", "operator"] {
        let reader = bus(bed, role).await;
        assert_eq!(reader.upstream(&app).await.unwrap(), Some(state.clone()), "{role}");
        denied(role, reader.put_upstream(&app, &state).await);
    }
    denied("reading a memory", mirror.memory(&app).await);
    denied("claiming", mirror.swap_work(&app, &WorkRecord::default(), 0).await);
}
