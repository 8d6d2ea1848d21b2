//! What an app says it brings and needs, what a cluster offers, and whether the two agree. Pure.
//!
//! The app's repository **declares**: `code-location.manifest.yaml` ([`Declaration`]) names what the app needs
//! of the cluster and the version of the contract that it was written against. The cluster **validates**:
//! `contract.yaml` in `cluster/apps` ([`Contract`]) says what there is, in one place and without a copy
//! elsewhere. A contract that is copied drifts in silence; one that is declared against fails loudly.
//!
//! | question | answer |
//! | --- | --- |
//! | is this file right by itself? | [`Declaration::parse`], [`Contract::parse`] |
//! | can all apps have what they declare, together, and in which order? | [`judge`] |
//! | which revision does a declaration mean? | [`pin`] |
//! | may the app be changed now? | [`Wait`] |
//! | does an overlay keep its placeholders where they are filled? | [`overlay`] |
//! | how does an editor know the files? | [`schema`] |
//!
//! Every answer is *all* findings at once ([`Finding`]): where, what is declared, what was found, and what to do.
//!
//! It must not know how files are fetched, which apps are registered where, or what runs in a cluster: what is
//! used at present comes in as a value ([`Usage`]).

mod at;
pub mod contract;
mod finding;
pub mod judge;
pub mod manifest;
pub mod name;
pub mod overlay;
pub mod pin;
pub mod quantity;
mod read;
pub mod schema;
mod wait;

pub use at::At;
pub use contract::Contract;
pub use finding::Finding;
pub use judge::{Declares, Judgement, Subject, Usage, circles, judge};
pub use manifest::Declaration;
pub use quantity::Quantity;
pub use wait::Wait;
