//! Fabrique as an operator installs it and as a team uses it, on the test bed's Kubernetes cluster with Argo CD: what
//! the scenarios play on.
//!
//! [`Installation`] brings fabrique in from its own image through `k8s/overlays/bench`; [`SampleApp`] is an app with an
//! overlay of its own that Argo CD deploys; [`verdicts`] are the pure predicates that say whether what is seen is what
//! was promised. Nothing here reaches into fabrique, and it is seen only through what people see too: Gitea, the API
//! server, Argo CD, and `fabrique … -o json` in a pod.

mod app;
mod forge;
mod installation;
pub mod kill;
mod look;
mod overlay;
mod people;
pub mod record;
mod until;
pub mod verdicts;
mod walls;

pub use app::SampleApp;
pub use fabrique_kubernetes::config::Isolation;
pub use forge::{Seeded, application, source};
pub use installation::{APPS, BUILDS, Installation, OWN};
pub use look::{Composition, Footprint, SYNCED, builder_of};
pub use overlay::Changes;
pub use until::until;
pub use verdicts::Deployment;
pub use walls::{Neighbourhood, Policies};
