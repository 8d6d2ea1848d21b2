//! The pending status of a build.

use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

/// A pending status that is on its way, or waits for its build to last.
pub(crate) struct Pending {
    setting: JoinHandle<()>,
    unneeded: CancellationToken,
}

impl Pending {
    /// Does `set` in the background, once the build has lasted for `wait`: one that is over before has no use for a
    /// pending status, and the request would take the forge's time while the forge is asked for the source.
    pub(crate) fn after(wait: Duration, set: impl Future<Output = ()> + Send + 'static) -> Self {
        let unneeded = CancellationToken::new();
        let over = unneeded.clone();
        let setting = tokio::spawn(async move {
            tokio::select! {
                () = over.cancelled() => {}
                () = tokio::time::sleep(wait) => set.await,
            }
        });
        Self { setting, unneeded }
    }

    /// The build is over: what is not on its way yet stays here.
    pub(crate) fn over(&self) {
        self.unneeded.cancel();
    }

    /// Waits until nothing is on its way any more.
    ///
    /// # Errors
    /// When it panicked.
    pub(crate) async fn gone(self) -> Result<(), JoinError> {
        self.over();
        self.setting.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const AFTER: Duration = Duration::from_secs(1);

    fn watched() -> (Arc<AtomicBool>, impl Future<Output = ()> + Send + 'static) {
        let set = Arc::new(AtomicBool::new(false));
        let setting = Arc::clone(&set);
        (set, async move { setting.store(true, Ordering::SeqCst) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_build_sets_no_pending_status() {
        let (set, setting) = watched();
        let pending = Pending::after(AFTER, setting);
        tokio::time::sleep(AFTER / 2).await;
        pending.over();
        tokio::time::sleep(AFTER * 2).await;
        pending.gone().await.unwrap();
        assert!(!set.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn a_longer_build_sets_one() {
        let (set, setting) = watched();
        let pending = Pending::after(AFTER, setting);
        tokio::time::sleep(AFTER * 2).await;
        pending.gone().await.unwrap();
        assert!(set.load(Ordering::SeqCst));
    }
}
