//! The bus against a real nats-server, one user per role.
//!
//! Tests that only add to the bus share a server and keep to apps and builds of their own; tests that break the
//! server start one for themselves.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the whole crate is tests"
)]

mod board;
mod claims;
mod commands;
mod events;
mod faults;
mod logs;
mod permissions;
mod setup;
mod speed;
mod stores;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fabrique_bed::{Bed, NatsOptions};
use fabrique_bus::{Bus, BusConfig};
use fabrique_core::id::{AppName, BuildId, Digest, Revision};
use fabrique_core::time::Timestamp;
use fabrique_ports::bus::{BusSetup as _, WakeCause};
use tokio::sync::OnceCell;

/// How long a test waits for what must happen; never how long it takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server of its own, with the streams made.
async fn own_bed() -> Bed {
    own_bed_with(NatsOptions::default()).await
}

async fn own_bed_with(options: NatsOptions) -> Bed {
    crypto();
    let bed = Bed::builder().nats_with(options).start().await.unwrap();
    let admin = bus(&bed, "admin").await;
    assert_eq!(admin.ensure().await.unwrap(), []);
    bed
}

/// The server that all harmless tests share.
async fn shared_bed() -> &'static Bed {
    static BED: OnceCell<Bed> = OnceCell::const_new();
    BED.get_or_init(own_bed).await
}

fn crypto() {
    // A second test of this process finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn config(bed: &Bed, role: &str) -> BusConfig {
    let nats = bed.nats();
    let mut config = BusConfig::new([nats.address()]).as_user(role, nats.password(role).to_owned().into());
    config.monitoring = Some(nats.monitor_url());
    config.timeouts.ping = Duration::from_secs(1);
    config
}

async fn bus(bed: &Bed, role: &str) -> Bus {
    Bus::connect(config(bed, role)).await.unwrap()
}

/// An app that no other test of this process uses.
fn new_app() -> AppName {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    AppName::parse(&format!("app-{}", NEXT.fetch_add(1, Ordering::Relaxed))).unwrap()
}

fn new_build(app: &AppName) -> BuildId {
    BuildId::new(app, &ulid::Ulid::generate().to_string().to_lowercase()).unwrap()
}

fn push() -> WakeCause {
    let (kind, detail) = ("push".to_owned(), "a push to main".to_owned());
    WakeCause { kind, detail, trace: None, at: Timestamp(1), named: None }
}

fn revision(digit: char) -> Revision {
    Revision::parse(&digit.to_string().repeat(40)).unwrap()
}

fn digest() -> Digest {
    Digest::of(b"an image")
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// A connection without anything of ours.
async fn raw_client(bed: &Bed, role: &str) -> async_nats::Client {
    let nats = bed.nats();
    let options =
        async_nats::ConnectOptions::with_user_and_password(role.to_owned(), nats.password(role).to_owned())
            .custom_inbox_prefix(format!("_INBOX_{role}"))
            .request_timeout(Some(Duration::from_millis(500)));
    options.connect(nats.address()).await.unwrap()
}

/// The administrator's own connection, to break things with.
async fn raw(bed: &Bed) -> async_nats::jetstream::Context {
    crypto();
    async_nats::jetstream::new(raw_client(bed, "admin").await)
}
