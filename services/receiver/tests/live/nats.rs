//! A real NATS of a test's own, and all that is published there.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use fabrique_bed::{Bed, wait_until};
use fabrique_bus::{Bus, BusConfig};
use fabrique_ports::bus::{BusSetup as _, WakeCause};
use fabrique_receiver::ReceiverConfig;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::support::{FakeRegistrations, Running};

/// How long what comes after an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Wakes and events as any client hears them, in the order in which the server took them.
#[derive(Default)]
struct Heard {
    wakes: Vec<(String, WakeCause)>,
    deliveries: Vec<Delivery>,
}

/// An event about a delivery, and its trace.
pub(crate) type Delivery = (Value, Option<String>);

/// The server, and a listener beside the receiver.
pub(crate) struct Nats {
    pub(crate) bed: Bed,
    listener: async_nats::Client,
    subscription: Mutex<(Subscriber, Heard)>,
}

impl Nats {
    /// With streams and without a message.
    pub(crate) async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bed = Bed::builder().nats().start().await.unwrap();
        let admin = connect(&bed, "admin").await;
        assert_eq!(admin.ensure().await.unwrap(), []);
        let (user, password) = (bed.nats().user("admin"), bed.nats().password("admin"));
        let options =
            async_nats::ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned());
        let listener = options.connect(bed.nats().address()).await.unwrap();
        let subscription = listener.subscribe("fabrique.>").await.unwrap();
        listener.flush().await.unwrap();
        Self { bed, listener, subscription: Mutex::new((subscription, Heard::default())) }
    }

    /// A receiver on this bus, in the role of a receiver.
    pub(crate) async fn receiver(&self, config: ReceiverConfig, apps: Arc<FakeRegistrations>) -> Running {
        let bus = Arc::new(connect(&self.bed, "receiver").await);
        Running::start(config, bus, apps).await
    }

    /// Why an app was woken, each time. What was acknowledged is in it.
    pub(crate) async fn causes_of(&self, app: &str) -> Vec<WakeCause> {
        self.hear(|heard| heard.wakes.iter().filter(|(of, _)| of == app).map(|(_, c)| c.clone()).collect())
            .await
    }

    /// How often an app was woken.
    pub(crate) async fn wakes_of(&self, app: &str) -> usize {
        self.causes_of(app).await.len()
    }

    /// How often any app was woken.
    pub(crate) async fn wakes(&self) -> usize {
        self.hear(|heard| heard.wakes.len()).await
    }

    /// Waits for the first `count` events about deliveries: they come after the answers.
    pub(crate) async fn deliveries(&self, count: usize) -> Vec<Delivery> {
        let enough = async || {
            let deliveries = self.hear(|heard| heard.deliveries.clone()).await;
            (deliveries.len() >= count).then_some(deliveries)
        };
        wait_until(&format!("{count} events about deliveries"), PATIENCE, enough).await.unwrap()
    }

    async fn hear<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        let (subscription, heard) = &mut *self.subscription.lock().await;
        // What the server took before this comes to the listener before this.
        let inbox = self.listener.new_inbox();
        let mut marker = self.listener.subscribe(inbox.clone()).await.unwrap();
        self.listener.publish(inbox, "".into()).await.unwrap();
        tokio::time::timeout(PATIENCE, marker.next()).await.unwrap().unwrap();
        while let Some(message) = subscription.next().now_or_never().flatten() {
            let subject = message.subject.as_str();
            if let Some(app) = subject.strip_prefix("fabrique.wake.") {
                heard.wakes.push((app.to_owned(), serde_json::from_slice(&message.payload).unwrap()));
            } else if subject.starts_with("fabrique.delivery.") {
                let trace = message.headers.as_ref().and_then(|headers| headers.get("traceparent"));
                let trace = trace.map(|trace| trace.as_str().to_owned());
                heard.deliveries.push((serde_json::from_slice(&message.payload).unwrap(), trace));
            }
        }
        look(heard)
    }
}

/// A client in a role of the bed.
pub(crate) async fn connect(bed: &Bed, role: &str) -> Bus {
    let mut config = BusConfig::new([bed.nats().address()]);
    config = config.as_user(role, bed.nats().password(role).to_owned().into());
    config.timeouts.ping = Duration::from_secs(1);
    Bus::connect(config).await.unwrap()
}
