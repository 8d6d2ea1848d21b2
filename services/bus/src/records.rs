//! Image records and memories.

use async_trait::async_trait;
use fabrique_core::id::{AppName, BuildKey};
use fabrique_core::memory::Memory;
use fabrique_ports::PortResult;
use fabrique_ports::records::{ImageRecord, Memories, Records, Swap, Versioned};

use crate::connection::Bus;
use crate::kv;
use crate::layout::{self, Store};

#[async_trait]
impl Records for Bus {
    async fn record(&self, key: &BuildKey) -> PortResult<Option<ImageRecord>> {
        Ok(self.record_at(key).await?.value)
    }

    async fn record_at(&self, key: &BuildKey) -> PortResult<Versioned<Option<ImageRecord>>> {
        let Some(entry) = self.entry(Store::Records, layout::record(key)).await? else {
            return Ok(Versioned::default());
        };
        let record: Option<ImageRecord> = entry.decode()?;
        // A record under another key's name must never lead to that image.
        let value = record.filter(|record| record.key == *key);
        Ok(Versioned { value, revision: entry.revision })
    }

    async fn swap_record(&self, record: &ImageRecord, revision: u64) -> PortResult<Swap> {
        let value = kv::encode("an image record", record)?;
        Ok(self.swap(Store::Records, layout::record(&record.key), value, revision).await?)
    }
}

#[async_trait]
impl Memories for Bus {
    async fn memory(&self, app: &AppName) -> PortResult<Versioned<Memory>> {
        let Some(entry) = self.entry(Store::Memory, app.as_str()).await? else {
            return Ok(Versioned::default());
        };
        // A deleted memory starts at zero: its swap finds the marker by itself.
        Ok(entry.decode()?.map(|value| Versioned { value, revision: entry.revision }).unwrap_or_default())
    }

    async fn swap_memory(&self, app: &AppName, memory: &Memory, revision: u64) -> PortResult<Swap> {
        let value = kv::encode("a memory", memory)?;
        Ok(self.swap(Store::Memory, app.as_str(), value, revision).await?)
    }

    /// One that cannot be read is reported in the log and left out: asking for it by name says what is wrong with it,
    /// and the others go on.
    async fn memories(&self) -> PortResult<Vec<(AppName, Memory)>> {
        let mut memories = Vec::new();
        for entry in self.entries(Store::Memory, ">").await? {
            let read = entry.decode::<Memory>();
            match (AppName::parse(&entry.key), read) {
                (Ok(app), Ok(Some(memory))) => memories.push((app, memory)),
                (Ok(_), Ok(None)) => {}
                (Ok(_), Err(error)) => tracing::error!(%error, "a memory is left out"),
                (Err(error), _) => tracing::warn!(%error, "ignored a key of the memories"),
            }
        }
        Ok(memories)
    }
}
