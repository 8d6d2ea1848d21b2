//! The receiver's bounds.

use std::time::Duration;

use serde::Deserialize;

/// Gitea's own `DELIVER_TIMEOUT`: an answer after that is an answer to nobody.
const GITEA_GIVES_UP: Duration = Duration::from_secs(5);

/// How much the receiver takes, and for how long it waits. Every field has a default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReceiverConfig {
    /// Where deliveries arrive: `/webhook`.
    pub path: String,
    /// The largest body, in bytes: 4 MiB. Gitea's pushes are some 10 KiB.
    pub max_body: usize,
    /// The most memory that all bodies together may take, in bytes: 64 MiB.
    pub max_buffered: usize,
    /// The most deliveries at work at once: 512. Never counted by address, since there is one Gitea.
    pub max_in_flight: usize,
    /// The most open connections: 1024. Further ones wait in the kernel's backlog.
    pub max_connections: usize,
    /// How long a connection may take to send the head of a request, and how long it may be idle: 10 s.
    /// A delivery sent at the very moment its idle connection is closed is lost, since Gitea does not
    /// send it again: a short time here makes that likely.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// How long a body may take to arrive: 2 s.
    #[serde(with = "humantime_serde")]
    pub body_timeout: Duration,
    /// How long the bus may take to acknowledge: 2 s.
    #[serde(with = "humantime_serde")]
    pub wake_timeout: Duration,
    /// When an answer must be out, counted from the request's head: 4.5 s.
    #[serde(with = "humantime_serde")]
    pub answer_timeout: Duration,
    /// The least time between two readings of the registrations: 250 ms.
    #[serde(with = "humantime_serde")]
    pub reload_spacing: Duration,
    /// How long one reading of the registrations may take: 30 s. A delivery does not wait for it that long.
    #[serde(with = "humantime_serde")]
    pub reload_timeout: Duration,
    /// How old the registrations may become while deliveries for known repositories are answered by them, and how
    /// long such a delivery's own way to its commit is left alone: 5 s. Then they are read again, and the pushes in
    /// question are looked at once more. Without deliveries nothing is read.
    #[serde(with = "humantime_serde")]
    pub reload_age: Duration,
    /// For how long after its first reading of the registrations a push to `cluster/apps` is expected to be delivered
    /// that this reading had seen: 1 h. The forge is seconds behind, or as long as its queue is; sweeps find what is later.
    #[serde(with = "humantime_serde")]
    pub late_pushes: Duration,
    /// The most events waiting to be published: 1024. Further ones are counted and dropped.
    pub event_queue: usize,
    /// The longest life of a connection: 1 h.
    #[serde(with = "humantime_serde")]
    pub connection_age: Duration,
    /// How long deliveries at work may take to finish after a shutdown is asked for: 10 s.
    #[serde(with = "humantime_serde")]
    pub drain_timeout: Duration,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            path: "/webhook".to_owned(),
            max_body: 4 << 20,
            max_buffered: 64 << 20,
            max_in_flight: 512,
            max_connections: 1024,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(2),
            wake_timeout: Duration::from_secs(2),
            answer_timeout: Duration::from_millis(4500),
            reload_spacing: Duration::from_millis(250),
            reload_timeout: Duration::from_secs(30),
            reload_age: Duration::from_secs(5),
            late_pushes: Duration::from_secs(60 * 60),
            event_queue: 1024,
            connection_age: Duration::from_secs(60 * 60),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// A configuration that cannot keep the receiver's promise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ConfigError {
    /// The field.
    pub key: &'static str,
    /// What is wrong with it, and what would be right.
    pub problem: String,
}

impl ReceiverConfig {
    /// Checks the fields against each other.
    ///
    /// # Errors
    /// The first field that is wrong, and the remedy.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key, problem: &str| Err(ConfigError { key, problem: problem.to_owned() });
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
        if !self.path.starts_with('/') || self.path.len() < 2 || !self.path.chars().all(plain) {
            return wrong("path", "must start with / and hold letters, digits, /, -, _ and . only");
        }
        if matches!(self.path.as_str(), "/livez" | "/readyz" | "/metrics") {
            return wrong("path", "is taken by the receiver itself: choose another, like /webhook");
        }
        for (key, count) in [
            ("max_body", self.max_body),
            ("max_in_flight", self.max_in_flight),
            ("max_connections", self.max_connections),
            ("event_queue", self.event_queue),
        ] {
            if count == 0 {
                return wrong(key, "must be at least 1");
            }
        }
        // tokio's semaphores count to here.
        if self.max_buffered > usize::MAX >> 3 || self.max_buffered < self.max_body {
            return wrong("max_buffered", "must hold at least one body: raise it to max_body or more");
        }
        for (key, duration) in [
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
            ("wake_timeout", self.wake_timeout),
            ("reload_timeout", self.reload_timeout),
            ("reload_age", self.reload_age),
            ("connection_age", self.connection_age),
        ] {
            if duration.is_zero() {
                return wrong(key, "must be longer than nothing");
            }
        }
        if self.answer_timeout >= GITEA_GIVES_UP {
            return wrong("answer_timeout", "must be below the 5 s after which Gitea gives up");
        }
        if self.body_timeout + self.wake_timeout > self.answer_timeout {
            return wrong("answer_timeout", "must leave room for body_timeout and wake_timeout together");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound() {
        assert_eq!(ReceiverConfig::default().check(), Ok(()));
    }

    #[test]
    fn what_cannot_keep_the_promise_is_refused_by_its_key() {
        let usual = ReceiverConfig::default;
        for (key, config) in [
            ("path", ReceiverConfig { path: "webhook".to_owned(), ..usual() }),
            ("path", ReceiverConfig { path: "/{all}".to_owned(), ..usual() }),
            ("path", ReceiverConfig { path: "/metrics".to_owned(), ..usual() }),
            ("max_in_flight", ReceiverConfig { max_in_flight: 0, ..usual() }),
            ("max_buffered", ReceiverConfig { max_buffered: 1, ..usual() }),
            ("body_timeout", ReceiverConfig { body_timeout: Duration::ZERO, ..usual() }),
            ("answer_timeout", ReceiverConfig { answer_timeout: Duration::from_secs(5), ..usual() }),
            ("answer_timeout", ReceiverConfig { body_timeout: Duration::from_secs(3), ..usual() }),
        ] {
            assert_eq!(config.check().unwrap_err().key, key);
        }
    }
}
