//! Events: headers, bodies, tails.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use fabrique_bus::Bus;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{AppName, EnvironmentName, RepoName};
use fabrique_core::time::Timestamp;
use fabrique_ports::bus::{Event, EventBody, Events as _};
use fabrique_ports::records::BuildPhase;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::{bus, config, digest, new_app, new_build, own_bed, raw, revision, shared_bed, within};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp(u64::try_from(since.as_millis()).unwrap())
}

fn event(body: EventBody) -> Event {
    Event {
        id: ulid::Ulid::generate().to_string(),
        at: Timestamp(1_788_000_000_123),
        trace: Some(TRACE.to_owned()),
        body,
    }
}

fn decision(app: &AppName, reason: &str) -> Event {
    let (target, action, reason) = (Some(revision('1')), "build".to_owned(), reason.to_owned());
    event(EventBody::Decision { app: app.clone(), target, action, reason, dead_letter: false })
}

fn every_kind(app: &AppName) -> Vec<Event> {
    let build = new_build(app);
    let phases = [
        BuildPhase::Queued,
        BuildPhase::Preparing,
        BuildPhase::Building,
        BuildPhase::Pushed { digest: digest() },
        BuildPhase::Committed { digest: digest(), commits: vec![revision('3'), revision('4')] },
        BuildPhase::NotCommitted { digest: digest(), reason: "held".to_owned() },
        BuildPhase::Failed { kind: FailureKind::Environment, message: "evicted".to_owned() },
        BuildPhase::Superseded { by: Some(revision('5')) },
        BuildPhase::Superseded { by: None },
    ];
    let changed =
        |phase| EventBody::Build { app: app.clone(), build: build.clone(), revision: revision('2'), phase };
    let mut bodies: Vec<EventBody> = phases.into_iter().map(changed).collect();
    bodies.extend([
        EventBody::Delivery {
            repo: RepoName::parse("atlas/citation.api_v2").unwrap(),
            reference: "refs/heads/main".to_owned(),
            after: revision('2').to_string(),
            delivery: "7b9e".to_owned(),
            woken: vec![app.clone()],
            ignored: None,
        },
        EventBody::Decision {
            app: app.clone(),
            target: None,
            action: "wait".to_owned(),
            reason: "…".to_owned(),
            dead_letter: true,
        },
        EventBody::Step {
            app: app.clone(),
            build: build.clone(),
            name: "[2/3] RUN make".to_owned(),
            cached: false,
            millis: 1500,
            error: Some("exit code 2\nmake: no rule".to_owned()),
        },
        EventBody::Commit {
            app: app.clone(),
            environment: EnvironmentName::parse("prod").unwrap(),
            channel: "image".to_owned(),
            commit: revision('3'),
            revision: revision('2'),
            digest: Some(digest()),
        },
        EventBody::Command {
            app: app.clone(),
            verb: "release".to_owned(),
            caller: "ada@workstation".to_owned(),
            outcome: "released".to_owned(),
        },
        EventBody::Warning { app: Some(app.clone()), message: "the registry lost a digest".to_owned() },
    ]);
    bodies.into_iter().map(event).collect()
}

#[tokio::test]
async fn every_kind_of_event_comes_back_as_it_was_in_order() {
    let bed = own_bed().await;
    let (admin, operator) = (bus(&bed, "admin").await, bus(&bed, "operator").await);
    let app = new_app();
    let mut sent = every_kind(&app);
    sent.push(event(EventBody::Warning { app: None, message: "the disk is nearly full".to_owned() }));
    for event in &sent {
        admin.publish(event).await.unwrap();
    }
    let tail = operator.tail(None, Some(Timestamp(0))).await.unwrap();
    let read: Vec<Event> = within("the events", tail.take(sent.len()).try_collect()).await.unwrap();
    assert_eq!(read, sent);
}

#[tokio::test]
async fn the_tail_of_one_app_has_its_deliveries_and_nothing_of_others() {
    let bed = own_bed().await;
    let (admin, operator) = (bus(&bed, "admin").await, bus(&bed, "operator").await);
    // Another app whose name begins like this one's, and an organisation of this one's name.
    let (app, other) = (AppName::parse("citation").unwrap(), AppName::parse("citation-eu").unwrap());
    let delivery = |org: &str, woken: &AppName| {
        event(EventBody::Delivery {
            repo: RepoName::parse(&format!("{org}/x")).unwrap(),
            reference: "refs/heads/main".to_owned(),
            after: revision('1').to_string(),
            delivery: String::new(),
            woken: vec![woken.clone()],
            ignored: None,
        })
    };
    let mine = [delivery("atlas", &app), decision(&app, "mine")];
    let events =
        [decision(&other, "not mine"), mine[0].clone(), delivery("citation", &other), mine[1].clone()];
    for event in &events {
        admin.publish(event).await.unwrap();
    }
    let tail = operator.tail(Some(&app), Some(Timestamp(0))).await.unwrap();
    let read: Vec<Event> = within("the events", tail.take(2).try_collect()).await.unwrap();
    assert_eq!(read, mine);
}

#[tokio::test]
async fn from_the_past_to_the_present_there_is_no_gap_and_no_repetition() {
    let bed = own_bed().await;
    let (worker, operator) = (bus(&bed, "worker").await, bus(&bed, "operator").await);
    let app = new_app();
    let since = now();
    let publishing = {
        let app = app.clone();
        tokio::spawn(async move {
            for number in 0..300 {
                worker.publish(&decision(&app, &number.to_string())).await.unwrap();
            }
        })
    };
    // Opened in the middle of it.
    let tail = operator.tail(None, Some(since)).await.unwrap();
    let read: Vec<Event> = within("all events", tail.take(300).try_collect()).await.unwrap();
    publishing.await.unwrap();
    for (number, event) in read.iter().enumerate() {
        let EventBody::Decision { reason, .. } = &event.body else { panic!("{event:?}") };
        assert_eq!(reason, &number.to_string());
    }
}

#[tokio::test]
async fn without_a_since_only_what_comes_is_told_also_across_a_restart_of_the_server() {
    let bed = own_bed().await;
    let (worker, operator) = (bus(&bed, "worker").await, bus(&bed, "operator").await);
    let app = new_app();
    worker.publish(&decision(&app, "past")).await.unwrap();
    let mut tail = operator.tail(Some(&app), None).await.unwrap();
    bed.nats().peer().kill9().await.unwrap();
    bed.nats().peer().start_again().await.unwrap();
    within("the connection", async { while worker.publish(&decision(&app, "after")).await.is_err() {} })
        .await;
    let told = within("the event after the restart", tail.next()).await.unwrap().unwrap();
    assert!(matches!(told.body, EventBody::Decision { reason, .. } if reason == "after"));
}

#[tokio::test]
async fn the_same_event_twice_is_stored_once() {
    let bed = own_bed().await;
    let worker = bus(&bed, "worker").await;
    let event = decision(&new_app(), "once");
    worker.publish(&event).await.unwrap();
    worker.publish(&event).await.unwrap();
    let info = raw(&bed).await.get_stream("FABRIQUE_EVENTS").await.unwrap();
    assert_eq!(info.cached_info().state.messages, 1);
}

#[tokio::test]
async fn several_at_once_are_stored_in_their_order_and_once_with_batches_and_without() {
    let bed = own_bed().await;
    let (admin, operator) = (bus(&bed, "admin").await, bus(&bed, "operator").await);
    let app = new_app();
    let many = || [every_kind(&app), every_kind(&app)].concat();
    let (together, apart) = (many(), many());
    admin.publish_all(&together).await.unwrap();
    admin.publish_all(&together).await.unwrap();
    let context = raw(&bed).await;
    let stream = context.get_stream("FABRIQUE_EVENTS").await.unwrap();
    let config = stream.cached_info().config.clone();
    assert!(config.allow_atomic_publish);
    let without = async_nats::jetstream::stream::Config { allow_atomic_publish: false, ..config };
    context.update_stream(&without).await.unwrap();
    bus(&bed, "admin").await.publish_all(&apart).await.unwrap();
    let both = [together, apart].concat();
    let tail = operator.tail(None, Some(Timestamp(0))).await.unwrap();
    let read: Vec<Event> = within("the events", tail.take(both.len()).try_collect()).await.unwrap();
    assert_eq!(read, both);
    let info = context.get_stream("FABRIQUE_EVENTS").await.unwrap();
    assert_eq!(info.cached_info().state.messages, both.len() as u64);
    let mut batches = Vec::new();
    for sequence in 1..=both.len() as u64 {
        let message = stream.get_raw_message(sequence).await.unwrap();
        batches.push(message.headers.get("Nats-Batch-Id").map(ToString::to_string));
    }
    let (with, without) = batches.split_at(both.len() / 2);
    assert!(with[0].is_some() && with.iter().all(|batch| *batch == with[0]), "one batch: {with:?}");
    assert!(without.iter().all(Option::is_none), "no batch: {without:?}");
}

#[tokio::test]
async fn an_unreadable_event_is_an_error_and_an_unknown_one_is_passed_over() {
    let bed = own_bed().await;
    let (worker, operator) = (bus(&bed, "worker").await, bus(&bed, "operator").await);
    let context = raw(&bed).await;
    let app = new_app();
    for kind in ["fabrique.v1.Decision", "fabrique.v2.Decision", "fabrique.v1.Promoted"] {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("ce-type", kind);
        let subject = format!("fabrique.decision.{app}");
        context.publish_with_headers(subject, headers, "{\"app\":7}".into()).await.unwrap().await.unwrap();
    }
    worker.publish(&decision(&app, "well")).await.unwrap();
    let mut tail = operator.tail(Some(&app), Some(Timestamp(0))).await.unwrap();
    let error = within("the error", tail.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains(&format!("fabrique.decision.{app} at 1")), "{error}");
    let next = within("the event", tail.next()).await.unwrap().unwrap();
    assert!(matches!(next.body, EventBody::Decision { reason, .. } if reason == "well"));
}

#[tokio::test]
async fn headers_are_cloudevents_and_the_trace() {
    let bed = own_bed().await;
    let event = decision(&new_app(), "because");
    bus(&bed, "worker").await.publish(&event).await.unwrap();
    let stream = raw(&bed).await.get_stream("FABRIQUE_EVENTS").await.unwrap();
    let message = stream.get_raw_message(1).await.unwrap();
    let headers: BTreeMap<String, String> =
        message.headers.iter().map(|(name, values)| (name.to_string(), values[0].to_string())).collect();
    let EventBody::Decision { app, .. } = &event.body else { panic!("{event:?}") };
    let wanted = [
        ("Nats-Msg-Id", event.id.as_str()),
        ("ce-datacontenttype", "application/json"),
        ("ce-id", event.id.as_str()),
        ("ce-source", "/fabrique/worker"),
        ("ce-specversion", "1.0"),
        ("ce-subject", app.as_str()),
        ("ce-time", "2026-08-29T10:40:00.123Z"),
        ("ce-type", "fabrique.v1.Decision"),
        ("traceparent", TRACE),
    ];
    let wanted: BTreeMap<String, String> =
        wanted.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    assert_eq!(headers, wanted);
}

#[tokio::test]
async fn an_observer_reads_along_with_the_nats_command_line() {
    let bed = shared_bed().await;
    let nats = bed.nats();
    let mut command = bed.nats_cli().await.unwrap();
    command.args(["--server", &nats.address(), "--inbox-prefix", "_INBOX_observer", "sub", "fabrique.>"]);
    command.env("NATS_USER", "observer").env("NATS_PASSWORD", nats.password("observer"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let worker = bus(bed, "worker").await;
    let app = new_app();
    // The subscription exists some time after the process: events are repeated until one is shown.
    let shown = within("the event on the observer's screen", async {
        let mut seen = String::new();
        loop {
            worker.publish(&decision(&app, "no watched path changed")).await.unwrap();
            while let Ok(line) = tokio::time::timeout(Duration::from_millis(200), output.next_line()).await {
                seen.push_str(&line.unwrap().expect("the command ended"));
                seen.push('\n');
                if seen.contains("no watched path changed") {
                    return seen;
                }
            }
        }
    })
    .await;
    child.kill().await.unwrap();
    assert!(shown.contains(&format!("fabrique.decision.{app}")), "{shown}");
    assert!(shown.contains("\"action\":\"build\""), "{shown}");
}

/// Deletes the one reader of the events, and waits until it is opened again.
async fn lose_the_reader(events: &async_nats::jetstream::stream::Stream) {
    let names = async || events.consumer_names().try_collect::<Vec<String>>().await.unwrap();
    let lost = names().await.pop().unwrap();
    events.delete_consumer(&lost).await.unwrap();
    within("the next reader", async { while names().await.iter().all(|name| *name == lost) {} }).await;
}

#[tokio::test]
async fn two_short_losses_far_apart_on_a_quiet_stream_are_no_outage() {
    let bed = own_bed().await;
    let mut config = config(&bed, "operator");
    config.timeouts.outage = Duration::from_secs(1);
    let operator = Bus::connect(config).await.unwrap();
    let app = new_app();
    let mut tail = operator.tail(Some(&app), None).await.unwrap();
    let hearing = tokio::spawn(async move { tail.next().await.unwrap() });
    let events = raw(&bed).await.get_stream("FABRIQUE_EVENTS").await.unwrap();
    lose_the_reader(&events).await;
    // Longer than a reader lives that hears nothing from the server.
    tokio::time::sleep(Duration::from_secs(7)).await;
    lose_the_reader(&events).await;
    bus(&bed, "worker").await.publish(&decision(&app, "after")).await.unwrap();
    let told = within("the event after the losses", hearing).await.unwrap().unwrap();
    assert!(matches!(told.body, EventBody::Decision { reason, .. } if reason == "after"));
}
