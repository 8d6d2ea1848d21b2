//! A bed with a fabrique on it: what the journeys, the demo and the benchmarks play on.
//!
//! [`Stage`] starts real peers ([`fabrique_bed`]), creates `cluster/apps` and the tokens that each role
//! needs, writes one configuration file, and runs the `fabrique` binary as processes that can be stopped,
//! killed and paused. [`SampleApp`] is an app of one repository with both placeholders bound, as a team
//! would have it. Nothing here reaches into fabrique: it is seen through its command line, its webhook and
//! what it leaves on the servers.

mod app;
mod bus;
mod config;
mod declared;
mod deliver;
mod gate;
mod images;
mod look;
mod outdated;
mod process;
mod stage;
mod tokens;
mod writer;
mod writers;

pub use app::{AppOptions, SampleApp};
pub use bus::BuildSeen;
pub use config::{Pods, Settings};
pub use declared::{CONTRACT, MANIFEST};
pub use fabrique_bed::{Moment, Trap, Veto};
pub use gate::Gate;
pub use images::Manifest;
pub use look::{Composition, Deployment, Status};
pub use outdated::Outdated;
pub use stage::{Fabrique, Stage, StageBuilder};
pub use writers::Writers;
