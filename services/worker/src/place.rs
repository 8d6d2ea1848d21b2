//! A place to build that is never forgotten.

use std::ops::Deref;
use std::sync::Arc;

use fabrique_ports::builder::{Condition, Placement, PlacementLease};
use tokio::runtime::Handle;

/// A leased place, given back once. Dropped before that, by a session that panics or is stopped in the middle, it is
/// given back in doubt: a lease is renewed for as long as the worker lives, and nobody else would ever build there.
pub(crate) struct Place {
    placement: Arc<dyn Placement>,
    lease: PlacementLease,
    given_back: bool,
}

impl Place {
    pub(crate) fn new(placement: Arc<dyn Placement>, lease: PlacementLease) -> Self {
        Self { placement, lease, given_back: false }
    }

    pub(crate) async fn give_back(mut self, condition: Condition) {
        self.given_back = true;
        self.placement.release(self.lease.clone(), condition).await;
    }
}

impl Deref for Place {
    type Target = PlacementLease;

    fn deref(&self) -> &PlacementLease {
        &self.lease
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.given_back {
            return;
        }
        // Without a runtime the worker is at its end, and its leases with it.
        let Ok(runtime) = Handle::try_current() else { return };
        tracing::error!(
            daemon = self.lease.daemon.name,
            "a build was dropped; its daemon is given back in doubt"
        );
        let (placement, lease) = (Arc::clone(&self.placement), self.lease.clone());
        runtime.spawn(async move { placement.release(lease, Condition::Doubt).await });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use fabrique_ports::PortResult;
    use fabrique_ports::builder::{Autopsy, BuildFailure, Daemon, Need, Placed};
    use tokio::sync::Notify;

    use super::*;

    #[derive(Default)]
    struct Places {
        given_back: Mutex<Vec<(PlacementLease, Condition)>>,
        again: Notify,
    }

    #[async_trait]
    impl Placement for Places {
        async fn acquire(&self, _: &Need) -> PortResult<Placed> {
            Ok(Placed::Full("nobody asks".to_owned()))
        }

        async fn release(&self, lease: PlacementLease, condition: Condition) {
            self.given_back.lock().unwrap().push((lease, condition));
            self.again.notify_one();
        }

        async fn autopsy(&self, _: &Daemon, _: &BuildFailure) -> Autopsy {
            Autopsy::Alive
        }

        fn capacity(&self) -> usize {
            1
        }

        fn daemons(&self) -> Vec<Daemon> {
            Vec::new()
        }
    }

    fn leased() -> (Arc<Places>, PlacementLease, Place) {
        let places = Arc::new(Places::default());
        let daemon = Daemon {
            name: "bk-0".into(),
            address: "tcp://198.18.0.9:1234".into(),
            tls_name: None,
            isolation: None,
            proxy: None,
        };
        let lease = PlacementLease { daemon, slot: 3 };
        let place = Place::new(Arc::clone(&places) as Arc<dyn Placement>, lease.clone());
        (places, lease, place)
    }

    #[tokio::test]
    async fn a_build_that_panics_gives_its_daemon_back_in_doubt() {
        let (places, lease, place) = leased();
        let build = tokio::spawn(async move {
            assert_eq!(place.slot, 0, "what nobody expected");
        });
        assert!(build.await.unwrap_err().is_panic());
        places.again.notified().await;
        assert_eq!(*places.given_back.lock().unwrap(), [(lease, Condition::Doubt)]);
    }

    #[tokio::test]
    async fn what_is_given_back_is_given_back_once() {
        let (places, lease, place) = leased();
        place.give_back(Condition::Clean).await;
        tokio::task::yield_now().await;
        assert_eq!(*places.given_back.lock().unwrap(), [(lease, Condition::Clean)]);
    }
}
