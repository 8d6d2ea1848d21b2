//! Changing an app's memory by compare-and-swap.

use std::sync::Arc;

use fabrique_core::id::AppName;
use fabrique_core::memory::Memory;
use fabrique_ports::records::{Memories, Swap, Versioned};
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use tokio::sync::Mutex;

use crate::lease::Fence;

/// How many swaps are tried before something must be wrong with the store.
const SWAPS: usize = 20;

/// One app's memory, read once and kept current by its own writes. Another writer (a command, a worker
/// that took over) makes a swap fail; then it is read again and the change is made again.
pub(crate) struct AppMemory {
    app: AppName,
    memories: Arc<dyn Memories>,
    fence: Option<Fence>,
    current: Mutex<Versioned<Memory>>,
}

impl AppMemory {
    /// Reads the memory of `app`. With a fence, it is written only while the claim holds; a command by a
    /// person needs none.
    pub(crate) async fn read(
        memories: Arc<dyn Memories>,
        app: &AppName,
        fence: Option<Fence>,
    ) -> PortResult<Arc<Self>> {
        let current = Mutex::new(memories.memory(app).await?);
        Ok(Arc::new(Self { app: app.clone(), memories, fence, current }))
    }

    pub(crate) fn app(&self) -> &AppName {
        &self.app
    }

    /// The memory as last read or written here.
    pub(crate) async fn get(&self) -> Memory {
        self.current.lock().await.value.clone()
    }

    /// Reads it again.
    pub(crate) async fn refresh(&self) -> PortResult<Memory> {
        let mut current = self.current.lock().await;
        *current = self.memories.memory(&self.app).await?;
        Ok(current.value.clone())
    }

    /// Makes `change` and writes it, unless it changes nothing.
    pub(crate) async fn update(&self, change: impl Fn(&mut Memory) + Send + Sync) -> PortResult<Memory> {
        let mut current = self.current.lock().await;
        for _ in 0..SWAPS {
            let mut next = current.value.clone();
            change(&mut next);
            if next == current.value {
                return Ok(next);
            }
            match self.memories.swap_memory(&self.app, &next, current.revision).await? {
                Swap::Done(revision) => {
                    *current = Versioned { value: next.clone(), revision };
                    return Ok(next);
                }
                Swap::Lost => {
                    self.check_fence().await?;
                    *current = self.memories.memory(&self.app).await?;
                }
            }
        }
        let message = format!("the memory of {} changed {SWAPS} times while it was being written", self.app);
        Err(PortError::new(Peer::Bus, Fault::Transient, message))
    }

    async fn check_fence(&self) -> PortResult<()> {
        match &self.fence {
            Some(fence) if !fence.holds().await? => {
                let message = format!("{} was taken over by another worker", self.app);
                Err(PortError::new(Peer::Bus, Fault::Transient, message))
            }
            Some(_) | None => Ok(()),
        }
    }
}
