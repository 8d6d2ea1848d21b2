//! Signed deliveries over many connections, by a client that costs next to nothing.
//!
//! On a machine of few cores a comfortable HTTP client would take its share of what is measured. This one writes
//! requests that were made and signed before and reads no more of an answer than it must.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use fabrique_bed::webhook;
use fabrique_stage::Stage;
use futures::future::try_join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fleet::FleetApp;

/// Bounds a run in which the server stopped answering.
const LONGEST: Duration = Duration::from_secs(120);
/// Commits in a payload, as many as Gitea lists at most. It brings the body to the usual size of some KiB.
const COMMITS: usize = 5;

/// What one run came to.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// Answers a second.
    pub(crate) rate: f64,
    /// The milliseconds of each.
    pub(crate) millis: Vec<f64>,
}

/// Does `count` of something, `workers` of them at once; `worker` goes on for as long as it is given numbers.
pub(crate) async fn run<F>(workers: usize, count: usize, worker: impl Fn(Turns) -> F) -> Result<Run>
where
    F: Future<Output = Result<Vec<f64>>> + Send + 'static,
{
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let tasks = (0..workers).map(|_| tokio::spawn(worker(Turns { next: Arc::clone(&next), count })));
    let all =
        tokio::time::timeout(LONGEST, try_join_all(tasks)).await.context("the load was not answered")??;
    let took = started.elapsed().as_secs_f64();
    let millis: Vec<f64> = all.into_iter().collect::<Result<Vec<_>>>()?.concat();
    ensure!(millis.len() == count, "{} of {count} were answered", millis.len());
    Ok(Run { rate: millis.len() as f64 / took, millis })
}

/// The numbers that are left to do, shared by all workers.
pub(crate) struct Turns {
    next: Arc<AtomicUsize>,
    count: usize,
}

impl Iterator for Turns {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < self.count)
    }
}

/// One signed delivery for each app, as the bytes of a request.
pub(crate) fn requests(stage: &Stage, apps: &[FleetApp]) -> Result<Arc<Vec<Bytes>>> {
    let url = stage.hook_url();
    let (host, path) =
        url.trim_start_matches("http://").split_once('/').context("no path in the hook's URL")?;
    let requests = apps.iter().map(|app| {
        let body = payload(app).to_string();
        let signature = webhook::signature(stage.hook_secret(), body.as_bytes())?;
        Ok(Bytes::from(format!(
            "POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nX-Gitea-Event: push\r\n\
             X-Gitea-Delivery: f6266f16-1bf3-46a5-9ea4-602e06ead473\r\nX-Gitea-Signature: {signature}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )))
    });
    Ok(Arc::new(requests.collect::<Result<_>>()?))
}

fn payload(app: &FleetApp) -> serde_json::Value {
    let FleetApp { name, repo, head } = app;
    let person = json!({ "name": "Ada", "email": "ada@example.org", "username": "ada" });
    let commit = json!({
        "id": head, "message": "Change the message of the day, and say why at some length\n",
        "url": format!("http://gitea.example.org/atlas/{repo}/commit/{head}"), "author": person, "committer": person,
        "verification": null, "timestamp": "2026-08-01T12:00:00+02:00",
        "added": [], "removed": [], "modified": ["src/message", "src/lib.rs", "deploy/overlays/prod/values.yaml"],
    });
    let text = "x".repeat(3000);
    json!({
        "ref": format!("refs/heads/{name}"), "before": "0".repeat(40), "after": head,
        "compare_url": "", "commits": vec![commit.clone(); COMMITS], "total_commits": COMMITS, "head_commit": commit,
        "repository": { "id": 1, "name": repo, "full_name": format!("atlas/{repo}"), "description": text },
        "pusher": person, "sender": person,
    })
}

/// Delivers over one connection for as long as there are turns, each to be answered with 202.
pub(crate) async fn deliver(address: String, requests: Arc<Vec<Bytes>>, turns: Turns) -> Result<Vec<f64>> {
    let mut stream = TcpStream::connect(&address).await.context("connecting to the receiver")?;
    stream.set_nodelay(true)?;
    let (mut millis, mut answer) = (Vec::new(), Vec::new());
    for turn in turns {
        let started = Instant::now();
        stream.write_all(&requests[turn % requests.len()]).await?;
        read_answer(&mut stream, &mut answer).await?;
        millis.push(started.elapsed().as_secs_f64() * 1e3);
        ensure!(
            answer.starts_with(b"HTTP/1.1 202"),
            "a delivery was answered with {}",
            String::from_utf8_lossy(&answer)
        );
    }
    Ok(millis)
}

/// Reads one answer whose length is given, as the receiver's is.
async fn read_answer(stream: &mut TcpStream, answer: &mut Vec<u8>) -> Result<()> {
    answer.clear();
    loop {
        ensure!(stream.read_buf(answer).await? > 0, "the receiver hung up");
        let Some(head) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.context("an answer without a length")?.trim().parse()?;
        while answer.len() < head + 4 + length {
            ensure!(stream.read_buf(answer).await? > 0, "the receiver hung up");
        }
        return Ok(());
    }
}

/// Where the receiver listens.
pub(crate) fn address(stage: &Stage) -> Result<String> {
    let url = stage.hook_url();
    let host = url.trim_start_matches("http://").split('/').next().context("no host in the hook's URL")?;
    Ok(host.to_owned())
}
