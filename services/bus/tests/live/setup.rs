//! Making and checking the streams.

use std::time::Duration;

use fabrique_bed::{Bed, NatsOptions};
use fabrique_bus::{Bus, BusConfig};
use fabrique_ports::bus::BusSetup as _;

use crate::{bus, config, crypto, own_bed, raw, within};

#[tokio::test]
async fn ensuring_twice_finds_nothing_to_do() {
    let bed = own_bed().await;
    let admin = bus(&bed, "admin").await;
    assert_eq!(admin.ensure().await.unwrap(), []);
    assert_eq!(admin.inspect().await.unwrap(), []);
    let usage = admin.usage().await.unwrap();
    assert_eq!(usage.len(), 8);
    assert!(usage.values().all(|(messages, _)| *messages == 0));
}

#[tokio::test]
async fn two_that_ensure_at_once_both_succeed() {
    crypto();
    let bed = Bed::builder().nats().start().await.unwrap();
    let (one, other) = (bus(&bed, "admin").await, bus(&bed, "admin").await);
    let (first, second) = tokio::join!(one.ensure(), other.ensure());
    assert_eq!(first.unwrap(), []);
    assert_eq!(second.unwrap(), []);
}

#[tokio::test]
async fn what_differs_is_reported_with_the_command_and_never_changed() {
    let bed = own_bed().await;
    let context = raw(&bed).await;
    let mut stream = context.get_stream("FABRIQUE_WAKE").await.unwrap();
    let mut changed = stream.cached_info().config.clone();
    changed.max_messages_per_subject = 10;
    context.update_stream(&changed).await.unwrap();
    let mut config = config(&bed, "admin");
    config.limits.events_bytes /= 2;
    let admin = Bus::connect(config).await.unwrap();
    for findings in [admin.ensure().await.unwrap(), admin.inspect().await.unwrap()] {
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].fatal && !findings[1].fatal);
        assert_eq!(findings[0].what, "FABRIQUE_WAKE: max_msgs_per_subject is 10, wanted 1");
        assert_eq!(findings[1].remedy, "`nats stream edit FABRIQUE_EVENTS --max-bytes=536870912`");
    }
    assert_eq!(stream.info().await.unwrap().config.max_messages_per_subject, 10);
}

#[tokio::test]
async fn a_missing_stream_is_fatal_and_inspecting_does_not_make_it() {
    let bed = own_bed().await;
    raw(&bed).await.delete_stream("KV_FABRIQUE_RECORDS").await.unwrap();
    let operator = bus(&bed, "operator").await;
    for _ in 0..2 {
        let findings = operator.inspect().await.unwrap();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].fatal && findings[0].what.contains("KV_FABRIQUE_RECORDS is missing"));
    }
}

#[tokio::test]
async fn a_server_that_lets_anyone_in_and_syncs_late_is_found_out() {
    crypto();
    let options = NatsOptions { open: true, ..NatsOptions::default() };
    let bed = Bed::builder().nats_with(options).start().await.unwrap();
    let mut config = BusConfig::new([bed.nats().address()]);
    config.monitoring = Some(bed.nats().monitor_url());
    let bus = Bus::connect(config.clone()).await.unwrap();
    assert_eq!(bus.ensure().await.unwrap(), []);
    let findings = bus.inspect().await.unwrap();
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(!findings[0].fatal && findings[0].what.contains("syncs only every 120s"), "{findings:?}");
    assert!(findings[1].fatal && findings[1].what.contains("lets anyone in"), "{findings:?}");

    config.monitoring = None;
    let findings = Bus::connect(config).await.unwrap().inspect().await.unwrap();
    assert!(findings[0].what.contains("not known"), "{findings:?}");
}

/// Waiting makes no room: long before `timeouts.start` is over, the server is believed.
#[tokio::test]
async fn a_server_without_room_is_told_soon_and_in_its_own_words() {
    crypto();
    let options = NatsOptions { max_file_store: Some(1 << 20), ..NatsOptions::default() };
    let bed = Bed::builder().nats_with(options).start().await.unwrap();
    let mut config = config(&bed, "admin");
    config.timeouts.start = Duration::from_secs(300);
    let admin = Bus::connect(config).await.unwrap();
    let error = within("the refusal", admin.ensure()).await.unwrap_err();
    let text = error.to_string();
    for words in ["making KV_FABRIQUE_WORK", "no room", "insufficient storage", "10047", "max_file_store"] {
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test]
async fn an_address_with_a_user_in_it_is_refused_without_repeating_it() {
    let error = Bus::connect(BusConfig::new(["nats://ada:secret@127.0.0.1:4222"])).await.unwrap_err();
    assert!(!error.transient() && !error.to_string().contains("secret"), "{error}");
    let error = Bus::connect(BusConfig::new(Vec::<String>::new())).await.unwrap_err();
    assert!(error.to_string().contains("no server"), "{error}");
}
