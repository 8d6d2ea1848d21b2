//! Which daemons have said that they are new enough.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabrique_ports::builder::Daemon;

/// More daemons than one worker uses in a day; beyond it all are asked again.
const MOST: usize = 1024;

/// Daemons that need not be asked for their version again.
#[derive(Debug, Default)]
pub(crate) struct Vouched(Mutex<HashSet<Daemon>>);

impl Vouched {
    pub(crate) fn knows(&self, daemon: &Daemon) -> bool {
        self.daemons().contains(daemon)
    }

    pub(crate) fn add(&self, daemon: &Daemon) {
        let mut daemons = self.daemons();
        if daemons.len() >= MOST {
            daemons.clear();
        }
        daemons.insert(daemon.clone());
    }

    pub(crate) fn forget(&self, daemon: &Daemon) {
        self.daemons().remove(daemon);
    }

    fn daemons(&self) -> MutexGuard<'_, HashSet<Daemon>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(at: usize) -> Daemon {
        Daemon {
            name: "builder-0".into(),
            address: format!("tcp://a:{at}"),
            tls_name: None,
            isolation: None,
            proxy: None,
        }
    }

    #[test]
    fn a_daemon_is_known_by_its_address_until_it_is_forgotten() {
        let vouched = Vouched::default();
        vouched.add(&daemon(1));
        assert!(vouched.knows(&daemon(1)) && !vouched.knows(&daemon(2)));
        vouched.forget(&daemon(1));
        assert!(!vouched.knows(&daemon(1)));
    }

    #[test]
    fn the_memory_is_bounded() {
        let vouched = Vouched::default();
        (0..=MOST).for_each(|at| vouched.add(&daemon(at)));
        assert_eq!(vouched.daemons().len(), 1);
        assert!(vouched.knows(&daemon(MOST)));
    }
}
