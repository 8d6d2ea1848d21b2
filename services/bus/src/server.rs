//! What the server says about itself.

use std::time::Duration;

use fabrique_ports::bus::BusFinding;
use serde::Deserialize;

use crate::config::{BusConfig, Credentials, Timeouts};
use crate::connection::{Bus, anonymous_options, servers};

/// The configuration of JetStream is a few hundred bytes.
const LARGEST: usize = 1 << 20;
/// Before it a server lacks consumer pause, per-message TTL and fixes against lost streams.
const FLOOR: (i64, i64, i64) = (2, 11, 0);
/// Before it a server takes no message as part of a batch.
const BATCHES: (i64, i64, i64) = (2, 12, 0);

/// The part of `/jsz` that matters. `sync_interval` is in nanoseconds; `sync_always` overrides it.
#[derive(Debug, Deserialize)]
struct JetStreamZ {
    config: JetStreamConfig,
}

#[derive(Debug, Deserialize)]
struct JetStreamConfig {
    #[serde(default)]
    sync_always: bool,
    #[serde(default)]
    sync_interval: u64,
}

/// Findings about the server's version, its syncing and its doors.
pub(crate) async fn inspect(bus: &Bus) -> Vec<BusFinding> {
    let (syncing, door) = tokio::join!(syncing(bus.config()), open_door(bus.config()));
    version(bus).into_iter().chain(syncing).chain(door).collect()
}

fn version(bus: &Bus) -> Option<BusFinding> {
    let (major, minor, patch) = FLOOR;
    let info = bus.client().try_server_info()?;
    (!bus.client().is_server_compatible(major, minor, patch)).then(|| BusFinding {
        fatal: true,
        what: format!("nats-server {} is older than {major}.{minor}.{patch}", info.version),
        remedy: format!("upgrade it to {major}.{minor} or newer"),
    })
}

/// Whether the server knows atomic batches, as far as it has introduced itself.
pub(crate) fn knows_batches(bus: &Bus) -> bool {
    let (major, minor, patch) = BATCHES;
    bus.client().is_server_compatible(major, minor, patch)
}

async fn syncing(config: &BusConfig) -> Option<BusFinding> {
    let warn =
        |what: String, remedy: &str| Some(BusFinding { fatal: false, what, remedy: remedy.to_owned() });
    let Some(base) = &config.monitoring else {
        return warn(
            "whether the server syncs writes is not known: clients cannot see it".to_owned(),
            "set `http:` in the server's configuration and its address as the bus's monitoring address",
        );
    };
    match ask(base, config.timeouts.request).await {
        Err(reason) => warn(
            format!("the monitoring endpoint {base} does not answer: {reason}"),
            "check the address; it is the server's `http:` port",
        ),
        Ok(JetStreamConfig { sync_always: true, .. }) => None,
        Ok(JetStreamConfig { sync_interval, .. }) => {
            let interval = Duration::from_nanos(sync_interval);
            warn(
                format!("the server syncs only every {interval:?}: a power failure loses acknowledged wakes"),
                "set `sync_interval: always` in the `jetstream` block of the server's configuration",
            )
        }
    }
}

async fn ask(base: &str, within: Duration) -> Result<JetStreamConfig, String> {
    let client = reqwest::Client::builder().timeout(within).build().map_err(|error| error.to_string())?;
    let url = format!("{}/jsz", base.trim_end_matches('/'));
    let answer = client.get(url).send().await.and_then(reqwest::Response::error_for_status);
    let mut answer = answer.map_err(|error| error.without_url().to_string())?;
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(|error| error.without_url().to_string())? {
        body.extend_from_slice(&part);
        if body.len() > LARGEST {
            return Err("the answer is too long".to_owned());
        }
    }
    let answer: JetStreamZ = serde_json::from_slice(&body).map_err(|error| format!("not NATS: {error}"))?;
    Ok(answer.config)
}

/// Tries to come in without a user. A server that maps such connections to a user with rights of its own
/// (`no_auth_user`) lets anyone in too.
async fn open_door(config: &BusConfig) -> Option<BusFinding> {
    let servers = servers(config).ok()?;
    let Timeouts { connect, request, .. } = config.timeouts;
    let stranger = anonymous_options(config).name("fabrique doctor, without credentials");
    // A server whose addresses are several may be tried at each.
    let entered = tokio::time::timeout(connect + request, stranger.connect(servers)).await;
    let Ok(Ok(client)) = entered else { return None };
    if tokio::time::timeout(request, client.drain()).await.is_err() {
        tracing::debug!("the connection without credentials was not drained");
    }
    let who = config.credentials.as_ref().map_or("", |Credentials { user, .. }| user.as_str());
    Some(BusFinding {
        fatal: true,
        what: format!(
            "the server lets anyone in: a connection without credentials was accepted, not only {who:?}"
        ),
        remedy: "give the server an `authorization` block with one user per role, and no `no_auth_user`"
            .to_owned(),
    })
}
