//! Logs of builds: one subject per build, each message some lines.
//!
//! Every message carries how many bytes of log there are up to and including it, so that the cap holds across
//! processes without a count anywhere else. The last message says that the log is closed, and has no lines.

use async_nats::{HeaderMap, HeaderValue};
use async_trait::async_trait;
use bytes::Bytes;
use fabrique_core::id::BuildId;
use fabrique_ports::PortResult;
use fabrique_ports::records::Logs;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};

use crate::codec;
use crate::connection::Bus;
use crate::error::BusError;
use crate::layout::{self, Store};
use crate::reader::{Follow, From, Read};

const BYTES: &str = "Fabrique-Log-Bytes";
const STATE: &str = "Fabrique-Log";
const CAPPED: &str = "capped";
const CLOSED: &str = "closed";
/// Bytes of one message, well below the server's `max_payload` of 1 MB.
const CHUNK: usize = 256 << 10;
/// Bytes of one line; a progress bar without line breaks can be longer.
const LINE: usize = 64 << 10;
/// Logs whose end this process remembers; of others it is read back.
const REMEMBERED: usize = 1024;

/// The end of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogTail {
    bytes: u64,
    capped: bool,
}

#[async_trait]
impl Logs for Bus {
    async fn append_log(&self, build: &BuildId, lines: &[String]) -> PortResult<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut tail = self.tail_of(build).await?;
        // Until everything is acknowledged the end is unknown.
        self.forget(build);
        let cap = self.config().limits.log_bytes_per_build;
        for chunk in chunks(lines) {
            if tail.capped {
                break;
            }
            let fits = tail.bytes + chunk.len() as u64 <= cap;
            let (body, state) = if fits {
                (chunk, None)
            } else {
                (format!("[the log is longer than {cap} bytes: the rest is not kept]"), Some(CAPPED))
            };
            tail = LogTail { bytes: tail.bytes + body.len() as u64, capped: !fits };
            self.store(layout::log(build), headers(tail, state), body.into()).await?;
        }
        self.remember(build, tail);
        Ok(())
    }

    async fn close_log(&self, build: &BuildId) -> PortResult<()> {
        let tail = self.tail_of(build).await?;
        self.store(layout::log(build), headers(tail, Some(CLOSED)), Bytes::new()).await?;
        self.forget(build);
        Ok(())
    }

    async fn read_log(
        &self,
        build: &BuildId,
        follow: bool,
    ) -> PortResult<BoxStream<'static, PortResult<String>>> {
        let source = Follow::open(self, Store::Logs, vec![layout::log(build)], From::Beginning).await?;
        let chunks = stream::unfold(Some(source), move |source| async move {
            let mut source = source?;
            match next_chunk(&mut source, follow).await {
                Ok(Some(lines)) => Some((lines.into_iter().map(Ok).collect::<Vec<_>>(), Some(source))),
                Ok(None) => None,
                Err(error) => Some((vec![Err(error.into())], None)),
            }
        });
        Ok(chunks.flat_map(stream::iter).boxed())
    }
}

impl Bus {
    async fn tail_of(&self, build: &BuildId) -> Result<LogTail, BusError> {
        if let Some(tail) = self.lock_logs().get(build) {
            return Ok(*tail);
        }
        let last = self.last(Store::Logs, &layout::log(build)).await?;
        Ok(last.map(|message| tail(&message.headers)).unwrap_or_default())
    }

    fn remember(&self, build: &BuildId, tail: LogTail) {
        let mut logs = self.lock_logs();
        if logs.len() >= REMEMBERED {
            logs.clear();
        }
        logs.insert(build.clone(), tail);
    }

    fn forget(&self, build: &BuildId) {
        self.lock_logs().remove(build);
    }

    fn lock_logs(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<BuildId, LogTail>> {
        self.logs().lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The lines of the next message; `None` at the end.
async fn next_chunk(source: &mut Follow, follow: bool) -> Result<Option<Vec<String>>, BusError> {
    loop {
        match source.next().await? {
            Read::CaughtUp if follow => {}
            Read::CaughtUp => return Ok(None),
            Read::Message(message) => {
                if state(message.headers.as_ref()) == Some(CLOSED) {
                    return Ok(None);
                }
                let text = String::from_utf8_lossy(&message.payload);
                return Ok(Some(text.split('\n').map(str::to_owned).collect()));
            }
        }
    }
}

/// Joins lines into bodies of at most [`CHUNK`] bytes, each line cut at [`LINE`].
fn chunks(lines: &[String]) -> Vec<String> {
    let mut chunks = Vec::new();
    let mut chunk: Option<String> = None;
    for line in lines {
        let mut line = line.trim_end_matches(['\n', '\r']).to_owned();
        codec::shorten(&mut line, LINE);
        match &mut chunk {
            Some(chunk) if chunk.len() + 1 + line.len() <= CHUNK => {
                chunk.push('\n');
                chunk.push_str(&line);
            }
            _ => chunks.extend(chunk.replace(line)),
        }
    }
    chunks.extend(chunk);
    chunks
}

fn headers(tail: LogTail, state: Option<&'static str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(BYTES, HeaderValue::from(tail.bytes));
    if let Some(state) = state {
        headers.insert(STATE, state);
    }
    headers
}

fn tail(headers: &HeaderMap) -> LogTail {
    let bytes = headers.get(BYTES).and_then(|value| value.as_str().parse().ok()).unwrap_or_default();
    // Lines after the end are dropped too: a worker that lost its build may still be writing.
    let capped = state(Some(headers)).is_some();
    LogTail { bytes, capped }
}

fn state(headers: Option<&HeaderMap>) -> Option<&str> {
    headers.and_then(|headers| headers.get(STATE)).map(HeaderValue::as_str)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let chunks = chunks(&["é".repeat(LINE)]);
        assert_eq!(chunks.len(), 1);
        assert!(chunks[0].len() <= LINE + '…'.len_utf8() && chunks[0].ends_with('…'));
    }

    proptest! {
        #[test]
        fn all_lines_come_back_in_order_in_bounded_chunks(lengths in prop::collection::vec(0..30_000_usize, 0..40)) {
            let lines: Vec<String> = lengths.iter().map(|length| "x".repeat(*length)).collect();
            let chunks = chunks(&lines);
            prop_assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK));
            let back: Vec<String> = chunks.iter().flat_map(|c| c.split('\n')).map(str::to_owned).collect();
            prop_assert_eq!(back, lines);
        }
    }
}
