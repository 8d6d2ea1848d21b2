//! The only place that writes to standard output and standard error.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is where the command line prints")]

use serde::Serialize;

use crate::config::Problem;

/// One line of a result.
pub(crate) fn line(text: &str) {
    println!("{text}");
}

/// A result for programs.
pub(crate) fn json(value: &impl Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("fabrique: the result cannot be printed: {error}"),
    }
}

/// A problem of the configuration.
pub(crate) fn problem(problem: &Problem) {
    eprintln!("fabrique: {problem}");
}

/// What went wrong, with its causes, on one line.
pub(crate) fn complain(error: &anyhow::Error) {
    eprintln!("fabrique: {error:#}");
}
