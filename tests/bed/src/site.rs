//! Where a peer listens.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::Result;

use crate::ports::free_port;
use crate::spawn::Entry;

/// An address and a port, in the caller's network or in a namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    socket: SocketAddrV4,
    entry: Option<Entry>,
}

impl Site {
    /// A free port on loopback.
    pub(crate) fn free() -> Result<Self> {
        Self::free_at(Ipv4Addr::LOCALHOST)
    }

    /// A port of another address of this machine that no other bed is given.
    pub(crate) fn free_at(address: Ipv4Addr) -> Result<Self> {
        free_port().map(|port| Self { socket: SocketAddrV4::new(address, port), entry: None })
    }

    /// A port on loopback.
    pub(crate) fn loopback(port: u16) -> Self {
        Self { socket: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), entry: None }
    }

    /// An address of the namespaces that `entry` leads to. All ports are free there.
    pub(crate) fn inside(entry: Entry, address: Ipv4Addr, port: u16) -> Self {
        Self { socket: SocketAddrV4::new(address, port), entry: Some(entry) }
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        *self.socket.ip()
    }

    pub(crate) fn port(&self) -> u16 {
        self.socket.port()
    }

    pub(crate) fn socket(&self) -> SocketAddrV4 {
        self.socket
    }

    /// How a process gets to where it may listen here.
    pub(crate) fn entry(&self) -> Option<Entry> {
        self.entry
    }
}
