//! What fabrique leaves on the bus, as any client may read it.

use anyhow::{Context as _, Result};
use async_nats::ConnectOptions;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::{self, Context};
use fabrique_bed::Nats;
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::Value;
use time::OffsetDateTime;

use crate::feed::Feed;

/// A message.
#[derive(Debug)]
pub(crate) struct Told {
    /// Its subject.
    pub(crate) subject: String,
    /// When the server stored it.
    pub(crate) at: OffsetDateTime,
    /// Its body; null when that is no JSON.
    pub(crate) body: Value,
}

/// The bus, as its administrator.
pub(crate) async fn connect(nats: &Nats) -> Result<Context> {
    let options =
        ConnectOptions::with_user_and_password("admin".to_owned(), nats.password("admin").to_owned());
    Ok(jetstream::new(options.connect(nats.address()).await.context("connecting to the bus")?))
}

/// Everything that is stored from now on below `subject`.
pub(crate) async fn listen(bus: &Context, stream: &str, subject: &str) -> Result<Feed<Told>> {
    let config = OrderedConfig {
        filter_subject: subject.to_owned(),
        deliver_policy: DeliverPolicy::New,
        ..OrderedConfig::default()
    };
    let stream = bus.get_stream(stream).await.with_context(|| format!("no stream {stream}"))?;
    let messages = stream.create_consumer(config).await?.messages().await?;
    let told = messages.into_stream().filter_map(|message| async {
        let message = message.ok()?;
        let at = message.info().ok()?.published;
        let body = serde_json::from_slice(&message.payload).unwrap_or_default();
        Some(Told { subject: message.subject.to_string(), at, body })
    });
    Ok(Feed::of(told))
}
