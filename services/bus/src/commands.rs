//! Operators' commands: core NATS request and reply. They are not stored: a command that no worker hears at once is an
//! error that the operator sees, not something that happens later.

use std::time::Instant;

use async_nats::{Request as NatsRequest, RequestErrorKind, Subject};
use async_trait::async_trait;
use fabrique_ports::PortResult;
use fabrique_ports::bus::{Commands, PendingCommand, Reply, Request};
use futures::StreamExt as _;
use futures::stream::BoxStream;

use crate::codec;
use crate::connection::Bus;
use crate::error::BusError;
use crate::kv;
use crate::layout;

/// A request is a name, a verb and a caller.
const LARGEST: usize = 16 << 10;

#[async_trait]
impl Commands for Bus {
    async fn send(&self, request: &Request) -> PortResult<Reply> {
        let (started, within) = (Instant::now(), self.config().timeouts.command);
        let subject = layout::command(request.command.verb(), &request.app);
        let body = kv::encode("a command", request)?;
        let sending = NatsRequest::new().payload(body).timeout(Some(within));
        let answer = self.client().send_request(subject.clone(), sending).await.map_err(|error| {
            let no_worker = |reason: String| BusError::NoWorker { reason };
            match error.kind() {
                RequestErrorKind::NoResponders => no_worker("none is listening".to_owned()),
                RequestErrorKind::TimedOut => {
                    let timeout = BusError::Timeout { what: subject.clone(), within };
                    match self.explain(&subject, started, timeout) {
                        timeout if timeout.is_timeout() => no_worker(format!(
                            "nothing came within {} s; it may still be carried out",
                            within.as_secs()
                        )),
                        forbidden => forbidden,
                    }
                }
                RequestErrorKind::InvalidSubject
                | RequestErrorKind::MaxPayloadExceeded
                | RequestErrorKind::Other => BusError::from_source(&subject, error),
            }
        })?;
        let reply = serde_json::from_slice(&answer.payload).map_err(|source| BusError::Undecodable {
            place: format!("the answer to {subject}"),
            remedy: "is the worker of another version?".to_owned(),
            source: source.into(),
        })?;
        Ok(reply)
    }

    /// The subscription lives as long as the stream and is made again with each connection. A request that makes no
    /// sense is answered here.
    async fn serve(&self) -> PortResult<BoxStream<'static, Box<dyn PendingCommand>>> {
        let group = layout::COMMAND_GROUP.to_owned();
        let arriving = self.client().queue_subscribe(layout::COMMANDS, group).await;
        let arriving = arriving.map_err(|error| BusError::from_source(layout::COMMANDS, error))?;
        // The server must know of the subscription before this returns, or the first command finds nobody.
        let flushed = tokio::time::timeout(self.config().timeouts.request, self.client().flush()).await;
        if !matches!(flushed, Ok(Ok(()))) {
            return Err(BusError::Timeout {
                what: layout::COMMANDS.to_owned(),
                within: self.config().timeouts.request,
            }
            .into());
        }
        let bus = self.clone();
        let pending = arriving.filter_map(move |message| {
            let bus = bus.clone();
            async move { bus.receive(message).await }
        });
        Ok(pending.boxed())
    }
}

impl Bus {
    async fn receive(&self, message: async_nats::Message) -> Option<Box<dyn PendingCommand>> {
        let reply_to = message.reply?;
        match parse(&message.subject, &message.payload) {
            Ok(request) => Some(Box::new(Pending { bus: self.clone(), request, reply_to })),
            Err(reason) => {
                tracing::warn!(subject = %message.subject, reason, "a command makes no sense");
                if let Err(error) = self.answer(reply_to, &Reply { done: false, message: reason }).await {
                    tracing::warn!(%error, "the answer was not sent");
                }
                None
            }
        }
    }

    async fn answer(&self, to: Subject, reply: &Reply) -> Result<(), BusError> {
        let body = kv::encode("an answer", reply)?;
        let within = self.config().timeouts.ack;
        let sending = async {
            self.client()
                .publish(to, body)
                .await
                .map_err(|error| BusError::from_source("an answer", error))?;
            self.client().flush().await.map_err(|error| BusError::from_source("an answer", error))
        };
        let sent = tokio::time::timeout(within, sending).await;
        sent.unwrap_or_else(|_| Err(BusError::Timeout { what: "an answer".to_owned(), within }))
    }
}

/// Permissions are given by subject, so the body must say the same as the subject.
fn parse(subject: &str, body: &[u8]) -> Result<Request, String> {
    if body.len() > LARGEST {
        return Err(format!("the request is longer than {LARGEST} bytes"));
    }
    let mut request: Request =
        serde_json::from_slice(body).map_err(|error| format!("the request cannot be read: {error}"))?;
    if layout::command(request.command.verb(), &request.app) != subject {
        return Err("the request names another app or verb than its subject".to_owned());
    }
    codec::shorten(&mut request.caller, 200);
    Ok(request)
}

struct Pending {
    bus: Bus,
    request: Request,
    reply_to: Subject,
}

#[async_trait]
impl PendingCommand for Pending {
    fn request(&self) -> &Request {
        &self.request
    }

    async fn reply(self: Box<Self>, reply: Reply) -> PortResult<()> {
        Ok(self.bus.answer(self.reply_to.clone(), &reply).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REBUILD: &str =
        r#"{"app":"citation","command":{"verb":"rebuild","no_cache":true},"caller":"ada@host"}"#;

    #[test]
    fn a_request_must_say_what_its_subject_says() {
        assert!(parse("fabrique.command.rebuild.citation", REBUILD.as_bytes()).is_ok());
        for subject in ["fabrique.command.retry.citation", "fabrique.command.rebuild.other"] {
            assert!(parse(subject, REBUILD.as_bytes()).unwrap_err().contains("another app or verb"));
        }
    }

    #[test]
    fn garbage_is_refused_with_a_reason() {
        assert!(parse("fabrique.command.retry.a", b"\xff{").unwrap_err().contains("cannot be read"));
        assert!(parse("fabrique.command.retry.a", &[b' '; LARGEST + 1]).unwrap_err().contains("longer"));
    }
}
