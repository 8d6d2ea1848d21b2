//! Publishing and reading events.

use async_trait::async_trait;
use fabrique_core::id::AppName;
use fabrique_core::time::Timestamp;
use fabrique_ports::PortResult;
use fabrique_ports::bus::{Event, Events};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};

use crate::batch::Outgoing;
use crate::codec::{self, NotAnEvent};
use crate::connection::Bus;
use crate::error::BusError;
use crate::layout::{self, Store};
use crate::reader::{Follow, From, Message, Read};
use crate::token;

#[async_trait]
impl Events for Bus {
    async fn publish(&self, event: &Event) -> PortResult<()> {
        let Outgoing { subject, headers, body } = outgoing(event, &self.source())?;
        self.store(subject, headers, body).await?;
        Ok(())
    }

    async fn publish_all(&self, events: &[Event]) -> PortResult<()> {
        let source = self.source();
        let messages = || events.iter().map(|event| outgoing(event, &source)).collect();
        Ok(self.store_all(messages).await?)
    }

    /// An event that cannot be read is one error in the stream, which goes on; one of a kind that this version does not
    /// know is passed over. After `timeouts.outage` without the bus the stream ends with an error.
    async fn tail(
        &self,
        app: Option<&AppName>,
        since: Option<Timestamp>,
    ) -> PortResult<BoxStream<'static, PortResult<Event>>> {
        let filters = app.map_or_else(Vec::new, layout::events_of);
        let from = since.map_or(From::Now, From::Since);
        let source = Follow::open(self, Store::Events, filters, from).await?;
        let app = app.cloned();
        let events = stream::unfold(Some(source), move |source| {
            let app = app.clone();
            async move {
                let mut source = source?;
                match next_event(&mut source, app.as_ref()).await {
                    Ok(event) => Some((event, Some(source))),
                    Err(error) => Some((Err(error.into()), None)),
                }
            }
        });
        Ok(events.boxed())
    }
}

impl Bus {
    /// Who tells, as CloudEvents name it.
    fn source(&self) -> String {
        format!("/fabrique/{}", token::encode(&self.config().name))
    }
}

fn outgoing(event: &Event, source: &str) -> Result<Outgoing, BusError> {
    let (headers, body) = codec::encode(event, source)
        .map_err(|source| BusError::Unencodable { what: "an event".to_owned(), source })?;
    Ok(Outgoing { subject: layout::event(event), headers, body })
}

/// The outer error ends the stream.
async fn next_event(source: &mut Follow, app: Option<&AppName>) -> Result<PortResult<Event>, BusError> {
    loop {
        let Read::Message(message) = source.next().await? else { continue };
        match codec::decode(message.headers.as_ref(), &message.payload) {
            Ok(event) if app.is_none_or(|app| codec::concerns(&event, app)) => return Ok(Ok(event)),
            Ok(_) => {}
            Err(NotAnEvent::UnknownType(kind)) => tracing::debug!(kind, "passed over an event"),
            Err(error) => return Ok(Err(undecodable(&message, error).into())),
        }
    }
}

fn undecodable(message: &Message, error: NotAnEvent) -> BusError {
    let stream = Store::Events.stream();
    BusError::Undecodable {
        place: format!("{stream}/{} at {}", message.subject, message.sequence),
        remedy: format!("`nats stream get {stream} {}` shows it", message.sequence),
        source: error.into(),
    }
}
