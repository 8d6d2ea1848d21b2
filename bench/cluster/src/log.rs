//! The worker's log, line by line.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fabrique_scenarios::OWN;
use futures::stream;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::feed::Feed;
use crate::ground::Ground;

/// What the worker has to log so that the moment shows in which its connection to a daemon is up: two lines for each
/// connection, none for each request.
pub(crate) const DIRECTIVES: &str = "info,h2::client=debug";

const FOLLOWED: Duration = Duration::from_secs(20);

/// A line.
#[derive(Debug)]
pub(crate) struct Line {
    /// When the worker wrote it, by its own clock, which is this machine's.
    pub(crate) at: OffsetDateTime,
    /// Its fields.
    pub(crate) fields: Value,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let fields: Value = serde_json::from_str(text).ok()?;
        let at = OffsetDateTime::parse(fields["timestamp"].as_str()?, &Rfc3339).ok()?;
        Some(Self { at, fields })
    }

    /// Whether this was decided about `app`.
    pub(crate) fn is_decided(&self, app: &str, action: &str) -> bool {
        let fields = &self.fields;
        fields["message"] == "decided" && fields["app"] == app && fields["action"] == action
    }

    /// Whether a build of `app` is on its daemon's doorstep: the next thing is the connection.
    pub(crate) fn is_building(&self, app: &str) -> bool {
        let phase = self.fields["phase"].as_str().unwrap_or_default();
        let build = self.fields["build"].as_str().unwrap_or_default();
        // An attempt is called like its app, with a ULID behind it.
        phase == "Building" && build.rsplit_once('-').is_some_and(|(of, _)| of == app)
    }

    /// Whether an HTTP/2 connection is ready to carry a call.
    pub(crate) fn is_connected(&self) -> bool {
        self.fields["message"] == "client connection bound"
    }
}

/// Follows the log of the one worker from now on.
pub(crate) async fn follow(ground: &Ground) -> Result<Feed<Line>> {
    let workers = ground.installation.list(OWN, "pods", "app.kubernetes.io/component=worker").await?;
    let leaves = |pod: &&Value| pod["metadata"].get("deletionTimestamp").is_some();
    let worker = workers.iter().find(|pod| !leaves(pod)).context("no worker")?;
    let worker = worker["metadata"]["name"].as_str().context("a pod without a name")?;
    let mut command = ground.installation.cluster.kubectl_command();
    command.args(["logs", "--namespace", OWN, "--follow", "--tail=1", worker]);
    let mut logs = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("kubectl logs")?;
    let mut lines = BufReader::new(logs.stdout.take().context("kubectl logs without an output")?).lines();
    // The newest line that is there already: from now on nothing is missed.
    tokio::time::timeout(FOLLOWED, lines.next_line()).await.context("the worker's log is silent")??;
    let lines = stream::unfold((logs, lines), |(logs, mut lines)| async {
        loop {
            let text = lines.next_line().await.ok()??;
            if let Some(line) = Line::parse(&text) {
                return Some((line, (logs, lines)));
            }
        }
    });
    Ok(Feed::of(lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_known_by_its_app() {
        let text = r#"{"timestamp":"2026-11-30T00:23:05.773846Z","level":"INFO","message":"build",
            "build":"app-1-01m8mxay8ty7w4zpv7nzq3edc0","revision":"e54567a1f0c8","phase":"Building"}"#;
        let line = Line::parse(text).unwrap();
        assert!(line.is_building("app-1"));
        assert!(!line.is_building("app") && !line.is_connected());
        assert_eq!(line.at.nanosecond(), 773_846_000);
    }

    #[test]
    fn a_connection_that_is_up_is_told_by_the_library() {
        let text = r#"{"timestamp":"2026-11-30T00:23:05Z","message":"client connection bound","target":"h2::client"}"#;
        assert!(Line::parse(text).unwrap().is_connected());
        assert!(Line::parse("thread panicked").is_none());
    }
}
