//! Looking at an app: gathers from the truth everything that the decision reads.
//!
//! The worker acts on such a view, `fabrique why` prints one and the reconciler compares by it, so that
//! the three cannot see different things. [`AppsReader`] keeps the newest parsed state of `cluster/apps`;
//! [`Observer`] turns it, the forge's head, the source's history and fabrique's own records into a
//! [`fabrique_core::view::View`].
//!
//! This crate only reads. It must not know who asks, and it decides nothing.

mod ahead;
mod apps;
mod checks;
mod compare;
pub mod declared;
mod gather;
mod gathering;
pub mod migrations;
pub mod overlays;
mod recent;
mod round;
pub mod watch;

pub use ahead::Ahead;
pub use apps::{Apps, AppsReader, entry};
pub use gather::{CandidateView, Observer};
