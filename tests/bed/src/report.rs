//! Showing the peers' logs when a test fails.

use std::path::Path;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use crate::folder;

/// Peers with logs.
pub(crate) trait Reporting: Send + Sync {
    /// Where they are.
    fn folder(&self) -> &Path;
    /// The last lines of each.
    fn report(&self) -> String;
}

/// Shows the logs of everything that lives when a test panics: what tests share is never dropped, so its
/// destructor could not do it.
pub(crate) fn report_on_panic(peers: Arc<dyn Reporting>) {
    static LIVING: Mutex<Vec<Weak<dyn Reporting>>> = Mutex::new(Vec::new());
    static HOOK: Once = Once::new();
    {
        let mut living = LIVING.lock().unwrap_or_else(PoisonError::into_inner);
        living.retain(|peers| peers.strong_count() > 0);
        living.push(Arc::downgrade(&peers));
        drop(peers);
    }
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            let Ok(living) = LIVING.try_lock() else { return };
            for peers in living.iter().filter_map(Weak::upgrade) {
                folder::mark_failed(peers.folder());
                show(&peers.report());
            }
        }));
    });
}

#[expect(clippy::print_stderr, reason = "only the macro's output is captured with the failing test's")]
fn show(logs: &str) {
    eprintln!("{logs}");
}
