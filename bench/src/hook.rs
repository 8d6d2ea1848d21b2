//! A tiny webhook server, as a user would put one together: it checks the HMAC and hands the revision on.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Gitea's fast queues deliver in a fifth of a second; its usual ones in three.
const DELIVERED: Duration = Duration::from_secs(30);
/// Deliveries that nobody waits for.
const WAITING: usize = 64;

/// A push that was delivered.
#[derive(Debug)]
pub struct Delivery {
    /// When its head and body were there.
    pub at: Instant,
    /// The revision that the branch points to.
    pub revision: String,
}

/// A listening server. Dropping it ends it.
pub struct Hook {
    /// Where Gitea delivers to.
    pub url: String,
    deliveries: mpsc::Receiver<Delivery>,
    server: JoinHandle<()>,
}

struct Door {
    secret: String,
    deliveries: mpsc::Sender<Delivery>,
}

impl Hook {
    /// Listens on a free port of `address`.
    ///
    /// # Errors
    /// When the address is not this machine's.
    pub async fn listen(address: IpAddr, secret: &str) -> Result<Self> {
        let (send, deliveries) = mpsc::channel(WAITING);
        let listener = TcpListener::bind((address, 0)).await.context("listening for webhooks")?;
        let url = format!("http://{}/hook", listener.local_addr()?);
        let door = Door { secret: secret.to_owned(), deliveries: send };
        let router = Router::new().route("/hook", post(deliver)).with_state(Arc::new(door));
        let server = tokio::spawn(async move {
            // Without a server the next delivery is waited for in vain, which is said there.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, deliveries, server })
    }

    /// Waits for the delivery of `revision`; others are passed over.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn delivered(&mut self, revision: &str) -> Result<Delivery> {
        let next = async {
            while let Some(delivery) = self.deliveries.recv().await {
                if delivery.revision == revision {
                    return Ok(delivery);
                }
            }
            bail!("the webhook server ended")
        };
        tokio::time::timeout(DELIVERED, next).await.with_context(|| format!("no webhook for {revision}"))?
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn deliver(State(door): State<Arc<Door>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let at = Instant::now();
    let signature = headers.get("x-gitea-signature").and_then(|value| hex::decode(value.as_bytes()).ok());
    let believed = Hmac::<Sha256>::new_from_slice(door.secret.as_bytes())
        .is_ok_and(|mac| mac.chain_update(&body).verify_slice(&signature.unwrap_or_default()).is_ok());
    if !believed {
        return StatusCode::FORBIDDEN;
    }
    let push: Value = serde_json::from_slice(&body).unwrap_or_default();
    let Some(revision) = push["after"].as_str().map(str::to_owned) else { return StatusCode::BAD_REQUEST };
    match door.deliveries.try_send(Delivery { at, revision }) {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}
