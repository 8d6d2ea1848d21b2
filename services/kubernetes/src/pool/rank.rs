//! Which daemon an app gets: the one that has its cache, or else one by rendezvous hashing with bounded load.

use std::cmp::Reverse;

use fabrique_core::id::{AppName, Digest};

use super::daemon::Daemon;

/// A daemon is given further apps only while it remembers at most this share of what would be even.
const LOAD: (usize, usize) = (5, 4);

/// The best of `free` for `app`. `all` are the daemons of the trust domain, over which apps are spread.
pub(super) fn best<'a>(app: &AppName, free: &[&'a Daemon], all: &[&Daemon]) -> Option<&'a Daemon> {
    let apps: usize = all.iter().map(|daemon| daemon.apps.len()).sum::<usize>() + 1;
    let bound = (apps * LOAD.0).div_ceil(all.len().max(1) * LOAD.1);
    let key = |daemon: &&Daemon| {
        let position = daemon.apps.iter().position(|other| other == app);
        let full = position.is_none() && daemon.apps.len() >= bound;
        // The one that built it most recently; else one with room; else the hash decides.
        (position.is_none(), position, full, Reverse(score(app, daemon.seat)))
    };
    free.iter().copied().min_by_key(key)
}

/// The hash is of the seat and not of the pod: a daemon that is made anew in a seat inherits its apps.
fn score(app: &AppName, seat: u16) -> Digest {
    Digest::of(format!("{app}\0{seat}").as_bytes())
}
