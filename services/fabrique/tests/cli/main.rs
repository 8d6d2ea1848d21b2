//! The command line as people and programs meet it: every command against real servers.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

mod answers;
mod documented;
mod hooks;
mod init;
mod render;
mod seed;
mod support;
mod trouble;
mod usage;
mod validate;
