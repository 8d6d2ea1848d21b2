//! A bus that could not be reached, for whoever has to go on without it.

use std::collections::BTreeMap;

use async_trait::async_trait;
use fabrique_core::id::AppName;
use fabrique_core::time::Timestamp;
use fabrique_ports::bus::{BusFinding, BusSetup, Event, Events};
use fabrique_ports::{PortError, PortResult};
use futures::stream::BoxStream;

/// Answers every call with the error that the connection ended with.
pub(crate) struct Away(pub(crate) PortError);

#[async_trait]
impl BusSetup for Away {
    async fn ensure(&self) -> PortResult<Vec<BusFinding>> {
        Err(self.0.again())
    }

    async fn inspect(&self) -> PortResult<Vec<BusFinding>> {
        Err(self.0.again())
    }

    async fn usage(&self) -> PortResult<BTreeMap<String, (u64, u64)>> {
        Err(self.0.again())
    }
}

#[async_trait]
impl Events for Away {
    async fn publish(&self, _: &Event) -> PortResult<()> {
        Err(self.0.again())
    }

    async fn tail(
        &self,
        _: Option<&AppName>,
        _: Option<Timestamp>,
    ) -> PortResult<BoxStream<'static, PortResult<Event>>> {
        Err(self.0.again())
    }
}
