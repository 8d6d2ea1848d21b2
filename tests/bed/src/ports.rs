//! Loopback ports that stay ours.

use std::fs::File;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

use crate::folder;

/// Below Linux's default ephemeral range (32768 and up): an outgoing connection can then never sit on the port
/// of a peer that is down for a moment.
const RANGE: Range<u16> = 20_000..32_000;
const ATTEMPTS: usize = 1_000;

/// One locked file per port handed out. The locks end with the process, which is what keeps test binaries that
/// run at the same time apart.
static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A free TCP port on 127.0.0.1 that no other bed on this machine will be given while this process lives.
///
/// # Errors
/// When a thousand random candidates are all taken, or the lock folder cannot be written.
pub fn free_port() -> Result<u16> {
    let locks = folder::base()?.join("ports");
    std::fs::create_dir_all(&locks).context("creating the folder of port locks")?;
    for _ in 0..ATTEMPTS {
        let port = rand::random_range(RANGE);
        let lock = File::create(locks.join(port.to_string())).context("creating a port lock")?;
        if lock.try_lock().is_err() || TcpListener::bind(("127.0.0.1", port)).is_err() {
            continue;
        }
        HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(lock);
        return Ok(port);
    }
    bail!("no free port on 127.0.0.1 among {ATTEMPTS} candidates in {RANGE:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_handed_out_twice() {
        let mut ports: Vec<u16> = (0..50).map(|_| free_port().unwrap()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 50);
    }
}
