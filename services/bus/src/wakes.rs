//! Wakes: one publish, one acknowledgement.

use async_nats::HeaderMap;
use async_trait::async_trait;
use fabrique_core::id::AppName;
use fabrique_core::work::Generation;
use fabrique_ports::PortResult;
use fabrique_ports::bus::{WakeCause, Wakes};

use crate::connection::Bus;
use crate::error::BusError;
use crate::layout::{self, Store};
use crate::{codec, kv};

/// The stream refuses messages beyond 8 KiB, and a lost wake is worse than a shortened sentence.
const DETAIL: usize = 1000;

#[async_trait]
impl Wakes for Bus {
    async fn wake(&self, app: &AppName, cause: &WakeCause) -> PortResult<Generation> {
        let mut cause = cause.clone();
        codec::shorten(&mut cause.detail, DETAIL);
        let mut headers = HeaderMap::new();
        if let Some(trace) = cause.trace.take_if(|trace| !codec::is_traceparent(trace)) {
            tracing::debug!(trace, "not a traceparent: left out");
        }
        if let Some(trace) = &cause.trace {
            headers.insert(codec::TRACEPARENT, trace.as_str());
        }
        let body = kv::encode("a wake", &cause)?;
        let ack = self.store(layout::wake(app), headers, body).await?;
        Ok(Generation(ack.sequence))
    }
}

impl Bus {
    /// An app's newest wake; zero when there is none.
    pub(crate) async fn newest_wake(&self, app: &AppName) -> Result<Generation, BusError> {
        let message = self.last(Store::Wake, &layout::wake(app)).await?;
        Ok(Generation(message.map_or(0, |message| message.sequence)))
    }
}
