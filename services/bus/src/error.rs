//! What can go wrong on the bus, and what helps.

use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{PublishError, PublishErrorKind, RequestError, RequestErrorKind};
use async_nats::jetstream::stream::{
    ConsumerError, ConsumerErrorKind, LastRawMessageError, LastRawMessageErrorKind,
};
use fabrique_ports::{Fault, Peer, PortError};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// An error of the bus.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(String),
    /// No server could be reached.
    #[error("no server of {servers} can be reached: {reason}")]
    Unreachable {
        /// The addresses.
        servers: String,
        /// The last attempt's error.
        reason: String,
    },
    /// The server refused the credentials.
    #[error("the credentials of {user:?} were refused")]
    Refused {
        /// Who tried.
        user: String,
    },
    /// This user may not use this subject.
    #[error("{what}: this user may not: {violation}")]
    Forbidden {
        /// What was tried.
        what: String,
        /// The server's words.
        violation: String,
    },
    /// No answer in time. Whether it was done is not known.
    #[error("{what}: no answer within {} ms", within.as_millis())]
    Timeout {
        /// What was tried.
        what: String,
        /// How long.
        within: Duration,
    },
    /// The connection broke under a call, or nothing answers for JetStream at the moment.
    #[error("{what}: {reason}")]
    Interrupted {
        /// What was tried.
        what: String,
        /// Why.
        reason: String,
    },
    /// The stream is not there, or JetStream has no leader for it at the moment.
    #[error("{what}: there is no stream for it")]
    NoStream {
        /// What was tried.
        what: String,
    },
    /// The server has no room.
    #[error("{what}: the server has no room: {reason}")]
    Full {
        /// What was tried.
        what: String,
        /// The server's words.
        reason: String,
    },
    /// JetStream refused.
    #[error("{what}: {reason}")]
    JetStream {
        /// What was tried.
        what: String,
        /// The server's words.
        reason: String,
        /// Whether the server says it is its own trouble (5xx).
        server_fault: bool,
    },
    /// Something stored cannot be read.
    #[error("{place} cannot be read")]
    Undecodable {
        /// The bucket or stream and the key.
        place: String,
        /// The command that removes it.
        remedy: String,
        /// Why.
        #[source]
        source: Source,
    },
    /// Something cannot be written as JSON.
    #[error("{what} cannot be encoded")]
    Unencodable {
        /// What.
        what: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A command that nobody answered.
    #[error("no worker answered: {reason}")]
    NoWorker {
        /// How it was noticed.
        reason: String,
    },
    /// The client library refused.
    #[error("{what}")]
    Client {
        /// What was tried.
        what: String,
        /// Why.
        #[source]
        source: Source,
    },
}

impl BusError {
    pub(crate) fn transient(&self) -> bool {
        self.fault() == Fault::Transient
    }

    fn fault(&self) -> Fault {
        match self {
            BusError::Unreachable { .. }
            | BusError::Timeout { .. }
            | BusError::Interrupted { .. }
            | BusError::NoStream { .. }
            | BusError::Full { .. }
            | BusError::JetStream { server_fault: true, .. }
            | BusError::NoWorker { .. } => Fault::Transient,
            BusError::Refused { .. } | BusError::Forbidden { .. } => Fault::Denied,
            BusError::Config(_)
            | BusError::JetStream { server_fault: false, .. }
            | BusError::Undecodable { .. }
            | BusError::Unencodable { .. }
            | BusError::Client { .. } => Fault::Unexpected,
        }
    }

    fn remedy(&self) -> Option<String> {
        match self {
            BusError::Unreachable { .. } => {
                Some("is nats-server running, and is the address right?".to_owned())
            }
            BusError::Refused { .. } => Some("check the user and password of this role".to_owned()),
            BusError::Forbidden { .. } => {
                Some("services/bus/README.md lists the permissions of each role".to_owned())
            }
            BusError::NoStream { .. } => {
                Some("`fabrique init` makes the streams; or the bus is restarting".to_owned())
            }
            BusError::Full { .. } => Some("raise max_file_store or free the disk of nats-server".to_owned()),
            BusError::Undecodable { remedy, .. } => Some(remedy.clone()),
            BusError::NoWorker { .. } => Some("is a `fabrique worker` running and connected?".to_owned()),
            BusError::Config(_)
            | BusError::Timeout { .. }
            | BusError::Interrupted { .. }
            | BusError::JetStream { .. }
            | BusError::Unencodable { .. }
            | BusError::Client { .. } => None,
        }
    }

    /// An error from the JetStream API.
    pub(crate) fn jetstream(what: &str, error: &jetstream::Error) -> Self {
        let (what, reason) = (what.to_owned(), error.to_string());
        match error.error_code() {
            ErrorCode::STREAM_NOT_FOUND => BusError::NoStream { what },
            // "resource limits exceeded", "insufficient storage resources", a bucket at its max_bytes.
            ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
            | ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED
            | ErrorCode::MEMORY_RESOURCES_EXCEEDED
            | ErrorCode::STREAM_STORE_FAILED => BusError::Full { what, reason },
            // A full disk as a server meets it while it makes a stream, and servers of which none has the room.
            _ if ["no space left", "insufficient storage"].iter().any(|words| reason.contains(words)) => {
                BusError::Full { what, reason }
            }
            _ => BusError::JetStream { what, reason, server_fault: error.code() >= 500 },
        }
    }

    pub(crate) fn publish(what: &str, within: Duration, error: PublishError) -> Self {
        let owned = what.to_owned();
        match error.kind() {
            PublishErrorKind::TimedOut => BusError::Timeout { what: owned, within },
            PublishErrorKind::StreamNotFound => BusError::NoStream { what: owned },
            PublishErrorKind::BrokenPipe => {
                BusError::Interrupted { what: owned, reason: "the connection broke".to_owned() }
            }
            PublishErrorKind::MaxAckPending => BusError::Interrupted {
                what: owned,
                reason: "too many publishes await their answer".to_owned(),
            },
            PublishErrorKind::WrongLastMessageId
            | PublishErrorKind::WrongLastSequence
            | PublishErrorKind::MaxPayloadExceeded
            | PublishErrorKind::Other => Self::from_source(what, error),
        }
    }

    pub(crate) fn request(what: &str, within: Duration, error: RequestError) -> Self {
        let owned = what.to_owned();
        match error.kind() {
            RequestErrorKind::TimedOut => BusError::Timeout { what: owned, within },
            RequestErrorKind::NoResponders => {
                BusError::Interrupted { what: owned, reason: "JetStream does not answer".to_owned() }
            }
            RequestErrorKind::InvalidSubject | RequestErrorKind::Other => Self::from_source(what, error),
        }
    }

    pub(crate) fn consumer(what: &str, within: Duration, error: ConsumerError) -> Self {
        match error.kind() {
            ConsumerErrorKind::TimedOut => BusError::Timeout { what: what.to_owned(), within },
            ConsumerErrorKind::JetStream(inner) => Self::jetstream(what, &inner),
            ConsumerErrorKind::Request
            | ConsumerErrorKind::InvalidConsumerType
            | ConsumerErrorKind::InvalidName
            | ConsumerErrorKind::Other => Self::from_source(what, error),
        }
    }

    /// `None` when there is simply no such message.
    pub(crate) fn read(what: &str, within: Duration, error: LastRawMessageError) -> Option<Self> {
        match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => None,
            LastRawMessageErrorKind::JetStream(inner) => Some(Self::jetstream(what, &inner)),
            LastRawMessageErrorKind::InvalidSubject | LastRawMessageErrorKind::Other => {
                Some(match find::<RequestError>(&error).map(RequestError::kind) {
                    Some(RequestErrorKind::TimedOut) => BusError::Timeout { what: what.to_owned(), within },
                    Some(RequestErrorKind::NoResponders) => BusError::Interrupted {
                        what: what.to_owned(),
                        reason: "JetStream does not answer".to_owned(),
                    },
                    Some(RequestErrorKind::InvalidSubject | RequestErrorKind::Other) | None => {
                        Self::from_source(what, error)
                    }
                })
            }
        }
    }

    /// An error whose kind says nothing, but whose chain may hold what JetStream answered.
    pub(crate) fn from_source(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Self {
        match find::<jetstream::Error>(&error) {
            Some(inner) => Self::jetstream(what, inner),
            None => BusError::Client { what: what.to_owned(), source: Box::new(error) },
        }
    }

    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, BusError::Timeout { .. })
    }
}

/// The first error of type `E` in the chain below `error`.
pub(crate) fn find<'a, E: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a E> {
    std::iter::successors(error.source(), |error| error.source()).find_map(|error| error.downcast_ref::<E>())
}

impl From<BusError> for PortError {
    fn from(error: BusError) -> Self {
        let port = PortError::new(Peer::Bus, error.fault(), error.to_string());
        let port = match error.remedy() {
            Some(remedy) => port.remedy(remedy),
            None => port,
        };
        port.caused_by(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_room_is_recognised_in_each_of_its_ways_to_say_so() {
        for (code, words, full) in [
            (10047, "insufficient storage resources available", true),
            (10023, "insufficient resources", true),
            (10049, "mkdir /data/streams: no space left on device", true),
            (10005, "no suitable peers for placement, insufficient storage", true),
            (10005, "no suitable peers for placement, peer offline", false),
            (10049, "permission denied", false),
        ] {
            let answer = serde_json::json!({ "code": 500, "err_code": code, "description": words });
            let error = BusError::jetstream("making it", &serde_json::from_value(answer).unwrap());
            assert_eq!(matches!(error, BusError::Full { .. }), full, "{error}");
            assert!(error.transient(), "{error}");
        }
    }
}
