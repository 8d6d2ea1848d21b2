//! A place that is taken, and a source that is fetched, before it is known whether anything is to be built.
//!
//! The decision needs the history of the source, and while that is fetched a daemon can fetch the commit itself. If
//! nothing is built after all, a daemon has fetched a commit in vain: no step has run and nothing was pushed.

use std::sync::Arc;
use std::time::Duration;

use fabrique_core::app::App;
use fabrique_core::build::BuildInputs;
use fabrique_ports::builder::{Condition, Need, Placed, PlacementLease};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::attend::Shop;

/// A start that was made early. To be ended by [`Early::place`] or [`Early::give_back`].
pub(crate) struct Early {
    inputs: BuildInputs,
    lease: oneshot::Receiver<PlacementLease>,
    fetch: AbortOnDropHandle<()>,
}

impl Early {
    /// Takes a place for a build of `app` from `inputs` if one is free, and has its daemon fetch the source.
    pub(crate) fn begin(shop: &Arc<Shop>, app: &App, inputs: BuildInputs) -> Self {
        let (found, lease) = oneshot::channel();
        let (shop, name, wanted) = (Arc::clone(shop), app.name.clone(), inputs.clone());
        let need = Need { app: name.clone(), trust: app.build.trust.clone(), patience: Duration::ZERO };
        let fetch = tokio::spawn(async move {
            let ports = &shop.ports;
            let Ok(Placed::Lease(lease)) = ports.placement.acquire(&need).await else { return };
            let daemon = lease.daemon.clone();
            if let Err(unwanted) = found.send(lease) {
                return ports.placement.release(unwanted, Condition::Clean).await;
            }
            if let Err(error) = ports.builder.prefetch(&daemon, &name, &wanted).await {
                tracing::debug!(app = %name, daemon = daemon.name, %error, "the source was not fetched ahead");
            }
        });
        Self { inputs, lease, fetch: AbortOnDropHandle::new(fetch) }
    }

    /// Whether this is a start of the build from `inputs`.
    pub(crate) fn is_of(&self, inputs: &BuildInputs) -> bool {
        self.inputs == *inputs
    }

    /// The place, if one was free, and the fetch, which ends when it is dropped.
    pub(crate) async fn place(self) -> (Option<PlacementLease>, Option<AbortOnDropHandle<()>>) {
        (self.lease.await.ok(), Some(self.fetch))
    }

    /// Ends it: there is nothing to build.
    pub(crate) async fn give_back(self, shop: &Shop) {
        if let (Some(lease), _fetch) = self.place().await {
            shop.ports.placement.release(lease, Condition::Clean).await;
        }
    }
}
