//! The receiver: a signed webhook in, a durable wake out, and an answer in between.
//!
//! Gitea delivers at most once and gives up after five seconds, so that everything here serves one promise:
//! **what is answered 202 is not lost**, and whatever cannot be kept is answered otherwise, in time. The way
//! of a delivery, each step cheaper than what it protects:
//!
//! 1. method, content type, and a place among the deliveries in flight: 405, 415, 429;
//! 2. the body, within its cap, its time and the memory of all bodies together: 413, 408, 429;
//! 3. the signature over the raw bytes, then the payload: 401, 400;
//! 4. who follows this branch; an unknown repository or a push to `cluster/apps` reads the registrations
//!    again first: 200 with the reason where nobody does;
//! 5. one awaited publish per app: 202 when all are acknowledged, 503 when one is not in two seconds;
//! 6. one log line, and, once the connection has taken the whole answer, an event into a bounded queue;
//! 7. where the answer came from memory, a second look once the registrations are read again: another receiver
//!    may have heard of the newest ones.
//!
//! Nothing is remembered about deliveries: doubled, replayed and old ones wake an app like any other, and
//! the decision sees that nothing is to be done.
//!
//! This crate must not know Gitea, NATS, git or the files of `cluster/apps`: deliveries are read by a
//! [`DeliveryReader`](fabrique_ports::delivery::DeliveryReader), wakes go to
//! [`Wakes`](fabrique_ports::bus::Wakes), and the registrations are a [`Subscriptions`] that the binary
//! makes. Clock and randomness come in as [`Ambient`](fabrique_ports::Ambient), and nothing here decides what is built.

mod answer;
mod body;
mod config;
mod intake;
mod journal;
mod measure;
mod recheck;
mod reload;
mod routes;
mod server;
mod subscriptions;
mod trace;

pub use fabrique_supervisor::TaskEnded;

pub use config::{ConfigError, ReceiverConfig};
pub use measure::describe;
pub use server::{Dependencies, Drained, Receiver};
pub use subscriptions::{Followers, SubscriptionIndex, Subscriptions, Unusable};
