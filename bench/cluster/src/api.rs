//! The API server, asked as its administrator by way of `kubectl proxy`: a process for each question would cost more
//! than what is measured.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::{Cluster, wait_until};
use futures::stream;
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use crate::feed::Feed;

const START: Duration = Duration::from_secs(20);
const REQUEST: Duration = Duration::from_secs(20);
/// How long pods may take to be gone.
const GONE: Duration = Duration::from_secs(60);

/// The API server. Dropping it ends the proxy.
pub(crate) struct Api {
    base: String,
    client: Client,
    _proxy: Child,
}

/// An object that changed.
pub(crate) struct Seen {
    /// When it was heard of.
    pub(crate) at: Instant,
    /// What it is like now.
    pub(crate) object: Value,
}

impl Api {
    /// Starts the proxy.
    pub(crate) async fn open(cluster: &Cluster) -> Result<Self> {
        let mut command = cluster.kubectl_command();
        command.args(["proxy", "--port=0"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut proxy = command.spawn().context("starting kubectl proxy")?;
        let mut line = String::new();
        let said = proxy.stdout.take().context("kubectl proxy without an output")?;
        tokio::time::timeout(START, BufReader::new(said).read_line(&mut line))
            .await
            .context("kubectl proxy does not start")??;
        let address = line.trim().rsplit(' ').next().filter(|word| word.contains(':'));
        let address = address.with_context(|| format!("kubectl proxy says {line:?}"))?;
        let client = Client::builder().no_proxy().connect_timeout(REQUEST).build()?;
        Ok(Self { base: format!("http://{address}"), client, _proxy: proxy })
    }

    /// One object, or a list.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        let request = self.client.get(format!("{}{path}", self.base)).timeout(REQUEST);
        answer(request.send().await?).await.with_context(|| format!("GET {path}"))
    }

    /// Makes an object in the collection at `path`.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let request = self.client.post(format!("{}{path}", self.base)).timeout(REQUEST);
        answer(request.json(object).send().await?).await.with_context(|| format!("POST {path}"))
    }

    /// Deletes an object at once, or all of a collection; what is not there is as good.
    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        let at_once = if path.contains('?') { "&gracePeriodSeconds=0" } else { "?gracePeriodSeconds=0" };
        let request = self.client.delete(format!("{}{path}{at_once}", self.base)).timeout(REQUEST);
        let response = request.send().await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(());
        }
        answer(response).await.map(drop).with_context(|| format!("DELETE {path}"))
    }

    /// Waits until a list is empty.
    pub(crate) async fn gone(&self, path: &str) -> Result<()> {
        wait_until(&format!("{path} to be empty"), GONE, || async {
            let list = self.get(path).await.ok()?;
            list["items"].as_array().is_some_and(Vec::is_empty).then_some(())
        })
        .await
    }

    /// Everything that changes in a list, beginning with all that is there.
    pub(crate) async fn watch(&self, path: &str) -> Result<Feed<Seen>> {
        let and = if path.contains('?') { '&' } else { '?' };
        let request = self.client.get(format!("{}{path}{and}watch=1", self.base));
        let response = request.send().await?;
        ensure!(response.status().is_success(), "watching {path}: {}", response.status());
        let lines = stream::unfold((response, Vec::new()), |(mut response, mut rest)| async move {
            let line = next_line(&mut response, &mut rest).await?;
            let event: Value = serde_json::from_slice(&line).ok()?;
            let seen = Seen { at: Instant::now(), object: event["object"].clone() };
            Some((seen, (response, rest)))
        });
        Ok(Feed::of(lines))
    }
}

/// The next line of an answer that goes on; nothing at its end.
async fn next_line(response: &mut Response, rest: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            return Some(rest.drain(..=end).collect());
        }
        rest.extend_from_slice(&response.chunk().await.ok()??);
    }
}

async fn answer(response: Response) -> Result<Value> {
    let status = response.status();
    let text = response.text().await?;
    ensure!(status.is_success(), "{status}: {text}");
    Ok(serde_json::from_str(&text)?)
}

/// Whether a pod is ready.
pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}
