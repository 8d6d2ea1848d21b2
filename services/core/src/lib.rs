//! The words and the decisions of fabrique, pure.
//!
//! This crate holds the identifiers, what an app and a composition are, and the one function that looks
//! at an app and says what to do next and why ([`decision::decide`]). Everything that acts (workers,
//! receivers, operators) goes through it, so that a push, a timer, a person and the reconciler cannot
//! disagree.
//!
//! It must not know how anything is stored, sent or fetched: no I/O, no async, no clock and no
//! randomness. Time comes in as a value, and so does everything else.

pub mod app;
pub mod build;
mod channel;
pub mod decision;
pub mod failure;
mod hash;
pub mod id;
pub mod image;
pub mod memory;
pub mod policy;
pub mod quantity;
pub mod relation;
pub mod time;
pub mod upstream;
pub mod verdict;
pub mod view;
pub mod work;
