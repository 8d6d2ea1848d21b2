//! What fabrique leaves on the bus, read as any NATS client could.

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, Context};
use fabrique_bed::wait_until;
use futures::StreamExt as _;
use serde_json::Value;

use crate::stage::{Fabrique, Stage};

/// How long the server keeps a consumer of ours after the last read.
const ABANDONED: Duration = Duration::from_secs(5);

/// A build as the history shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildSeen {
    /// Its id.
    pub id: String,
    /// The source revision.
    pub revision: String,
    /// Its phase: `building`, `committed`, `superseded`…
    pub phase: String,
    /// Why it failed or was not committed; empty otherwise.
    pub message: String,
    /// When it ended, in milliseconds since 1970; nothing while it is under way.
    pub ended: Option<u64>,
}

impl Stage {
    async fn bus(&self) -> Result<Context> {
        let nats = self.bed.nats();
        let options = async_nats::ConnectOptions::with_user_and_password(
            nats.user("admin").to_owned(),
            nats.password("admin").to_owned(),
        );
        Ok(jetstream::new(options.connect(nats.address()).await.context("connecting to the bus")?))
    }

    /// The newest wake of an app, zero when there was none: to be passed to [`Stage::settled`].
    ///
    /// # Errors
    /// When the bus cannot be asked.
    pub async fn wanted(&self, app: &str) -> Result<u64> {
        wanted(&self.bus().await?, app).await
    }

    /// Waits until an app was woken after `since`, and every wake is served.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn settled(&self, app: &str, since: u64) -> Result<()> {
        let what = format!("{app} to settle after wake {since}");
        self.given_back(app, since, &what, |work| work["done"].as_u64()).await
    }

    /// Waits until an app was woken after `since`, and a worker that saw every wake is done with it or waits.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn looked_at(&self, app: &str, since: u64) -> Result<()> {
        let what = format!("a look at {app} after wake {since}");
        let seen = |work: &Value| work["done"].as_u64().max(work["waiting"]["at"].as_u64());
        self.given_back(app, since, &what, seen).await
    }

    /// Waits until an app was woken after `since`, nobody holds it, and its record has come to the newest wake.
    async fn given_back(
        &self,
        app: &str,
        since: u64,
        what: &str,
        come_to: impl Fn(&Value) -> Option<u64>,
    ) -> Result<()> {
        let bus = self.bus().await?;
        wait_until(what, self.patience, || async {
            let wanted = wanted(&bus, app).await.ok().filter(|wanted| *wanted > since)?;
            let work = newest(&bus, "KV_FABRIQUE_WORK", &format!("$KV.FABRIQUE_WORK.{app}")).await.ok()??;
            (come_to(&work) >= Some(wanted) && work["holder"].is_null()).then_some(())
        })
        .await
    }

    /// The worker that has claimed an app; nothing when none has.
    ///
    /// # Errors
    /// When the bus cannot be asked.
    pub async fn holder(&self, app: &str) -> Result<Option<String>> {
        let subject = format!("$KV.FABRIQUE_WORK.{app}");
        let work = newest(&self.bus().await?, "KV_FABRIQUE_WORK", &subject).await?;
        Ok(work.and_then(|work| work["holder"].as_str().map(str::to_owned)))
    }

    /// When an app was given back the last time: a number that grows with every change of any app's record, zero
    /// when it never was claimed.
    ///
    /// # Errors
    /// When the bus cannot be asked.
    pub async fn served(&self, app: &str) -> Result<u64> {
        last(&self.bus().await?, "KV_FABRIQUE_WORK", &format!("$KV.FABRIQUE_WORK.{app}")).await
    }

    /// The digest that is recorded for a build key; nothing when none is.
    ///
    /// # Errors
    /// When the bus cannot be asked.
    pub async fn recorded_digest(&self, key: &str) -> Result<Option<String>> {
        let subject = format!("$KV.FABRIQUE_RECORDS.{key}");
        let record = newest(&self.bus().await?, "KV_FABRIQUE_RECORDS", &subject).await?;
        Ok(record.and_then(|record| record["digest"].as_str().map(str::to_owned)))
    }

    /// The builds of an app, oldest first.
    ///
    /// # Errors
    /// When the bus cannot be asked.
    pub async fn builds(&self, app: &str) -> Result<Vec<BuildSeen>> {
        let bus = self.bus().await?;
        let found = messages(&bus, "KV_FABRIQUE_BUILDS", format!("$KV.FABRIQUE_BUILDS.{app}.*")).await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut builds: Vec<BuildSeen> = found
            .iter()
            .filter_map(|body| serde_json::from_slice::<Value>(body).ok())
            .map(|build| BuildSeen {
                id: text(&build["build"]),
                revision: text(&build["revision"]),
                phase: text(&build["phase"]["phase"]),
                message: text(&build["phase"]["message"]) + &text(&build["phase"]["reason"]),
                ended: build["ended"].as_u64(),
            })
            .collect();
        builds.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(builds)
    }

    /// Waits until the newest build of an app is in `phase`, and returns it.
    ///
    /// # Errors
    /// When it is not in time, with the builds that there are.
    pub async fn build_becomes(&self, app: &str, revision: &str, phase: &str) -> Result<BuildSeen> {
        let found =
            wait_until(&format!("the build of {app} at {revision} to be {phase}"), self.patience, || async {
                let builds = self.builds(app).await.ok()?;
                builds.into_iter().rev().find(|build| build.revision == revision && build.phase == phase)
            })
            .await;
        match found {
            Ok(build) => Ok(build),
            Err(error) => Err(error.context(format!("there are {:?}", self.builds(app).await))),
        }
    }

    /// Has the stream of wakes keep as many messages of an app, as anybody with `nats stream edit` can.
    ///
    /// # Errors
    /// When the bus refuses.
    pub async fn keep_wakes(&self, count: i64) -> Result<()> {
        let bus = self.bus().await?;
        let mut config = bus.get_stream("FABRIQUE_WAKE").await?.cached_info().config.clone();
        config.max_messages_per_subject = count;
        bus.update_stream(&config).await?;
        Ok(())
    }

    /// How many messages of an app the stream of wakes keeps.
    ///
    /// # Errors
    /// When the bus cannot be asked.
    pub async fn kept_wakes(&self) -> Result<i64> {
        let stream = self.bus().await?.get_stream("FABRIQUE_WAKE").await?;
        Ok(stream.cached_info().config.max_messages_per_subject)
    }

    /// How many images are recorded.
    ///
    /// # Errors
    /// When the bus cannot be asked.
    pub async fn recorded(&self) -> Result<u64> {
        let mut records = self.bus().await?.get_stream("KV_FABRIQUE_RECORDS").await?;
        Ok(records.info().await?.state.messages)
    }

    /// Takes everything from the bus and starts it and `fabrique` again, which makes the streams anew at its start.
    ///
    /// # Errors
    /// When one of them does not start, with its log.
    pub async fn lose_the_bus(&self, fabrique: &Fabrique) -> Result<()> {
        let nats = self.bed.nats().peer();
        nats.kill9().await?;
        std::fs::remove_dir_all(self.bed.folder().join("nats/jetstream")).context("the bus's files")?;
        nats.start_again().await?;
        fabrique.peer.kill9().await?;
        fabrique.peer.start_again().await
    }

    /// The bodies of all events on subjects that match `filter`, like `fabrique.decision.citation`.
    ///
    /// # Errors
    /// When the bus cannot be asked.
    pub async fn events(&self, filter: &str) -> Result<Vec<Value>> {
        let bodies = messages(&self.bus().await?, "FABRIQUE_EVENTS", filter.to_owned()).await?;
        bodies.iter().map(|body| Ok(serde_json::from_slice(body)?)).collect()
    }

    /// The trace of every event, oldest first, by subject: the second part of its `traceparent`.
    ///
    /// # Errors
    /// When the bus cannot be asked.
    pub async fn traces(&self) -> Result<Vec<(String, String)>> {
        let events = told(&self.bus().await?, "FABRIQUE_EVENTS", "fabrique.>".to_owned()).await?;
        let trace = |event: Told| {
            let parent = event.headers.as_ref()?.get("traceparent")?.as_str().to_owned();
            Some((event.subject, parent.split('-').nth(1)?.to_owned()))
        };
        Ok(events.into_iter().filter_map(trace).collect())
    }

    /// Waits for a decision about an app whose reason contains `words`, and returns the reason.
    ///
    /// # Errors
    /// When there is none in time, with those that there are.
    pub async fn decided(&self, app: &str, words: &str) -> Result<String> {
        let filter = format!("fabrique.decision.{app}");
        let reasons = async || -> Result<Vec<String>> {
            let decisions = self.events(&filter).await?;
            Ok(decisions.iter().filter_map(|d| d["reason"].as_str().map(str::to_owned)).collect())
        };
        let found =
            wait_until(&format!("a decision about {app} that says {words:?}"), self.patience, || async {
                reasons().await.ok()?.into_iter().rev().find(|reason| reason.contains(words))
            })
            .await;
        match found {
            Ok(reason) => Ok(reason),
            Err(error) => Err(error.context(format!("the decisions were {:#?}", reasons().await?))),
        }
    }

    /// Waits until `count` deliveries about a repository were answered, and returns them all.
    ///
    /// # Errors
    /// When there are not that many in time.
    pub async fn deliveries(&self, org: &str, repo: &str, count: usize) -> Result<Vec<Value>> {
        let filter = format!("fabrique.delivery.{org}.{repo}");
        wait_until(&format!("{count} deliveries about {org}/{repo}"), self.patience, || async {
            self.events(&filter).await.ok().filter(|events| events.len() >= count)
        })
        .await
    }

    /// Waits until the push of a commit was answered: every app that it wakes has its wake.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn delivered(&self, org: &str, repo: &str, commit: &str) -> Result<()> {
        let filter = format!("fabrique.delivery.{org}.{repo}");
        wait_until(&format!("the push of {commit} to {org}/{repo} to be answered"), self.patience, || async {
            self.events(&filter).await.ok()?.iter().any(|told| told["after"] == commit).then_some(())
        })
        .await
    }

    /// What a build printed.
    ///
    /// # Errors
    /// When the bus cannot be asked.
    pub async fn log(&self, build: &str) -> Result<String> {
        let bodies = messages(&self.bus().await?, "FABRIQUE_LOGS", format!("fabrique_log.{build}")).await?;
        Ok(bodies.iter().map(|body| String::from_utf8_lossy(body).into_owned() + "\n").collect())
    }
}

async fn wanted(bus: &Context, app: &str) -> Result<u64> {
    last(bus, "FABRIQUE_WAKE", &format!("fabrique.wake.{app}")).await
}

/// The sequence of the newest message on a subject, zero when there is none.
async fn last(bus: &Context, stream: &str, subject: &str) -> Result<u64> {
    let stream = bus.get_stream_no_info(stream).await?;
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => Ok(message.sequence),
        Err(error) if error.kind() == jetstream::stream::LastRawMessageErrorKind::NoMessageFound => Ok(0),
        Err(error) => Err(error.into()),
    }
}

async fn newest(bus: &Context, stream: &str, subject: &str) -> Result<Option<Value>> {
    let stream = bus.get_stream_no_info(stream).await?;
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => Ok(Some(serde_json::from_slice(&message.payload)?)),
        Err(error) if error.kind() == jetstream::stream::LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The bodies of what a stream holds now on subjects that match `filter`, oldest first.
async fn messages(bus: &Context, stream: &str, filter: String) -> Result<Vec<Vec<u8>>> {
    Ok(told(bus, stream, filter).await?.into_iter().map(|told| told.body).collect())
}

/// A message of a stream.
struct Told {
    subject: String,
    headers: Option<HeaderMap>,
    body: Vec<u8>,
}

/// What a stream holds now on subjects that match `filter`, oldest first.
async fn told(bus: &Context, stream: &str, filter: String) -> Result<Vec<Told>> {
    let config = pull::Config {
        filter_subject: filter,
        ack_policy: AckPolicy::None,
        memory_storage: true,
        inactive_threshold: ABANDONED,
        ..pull::Config::default()
    };
    let consumer = bus.create_consumer_on_stream(config, stream).await?;
    let mut told = Vec::new();
    loop {
        // At the end of what there is, the server answers an empty batch instead of waiting.
        let mut batch = consumer.fetch().max_messages(256).messages().await?;
        let before = told.len();
        while let Some(message) = batch.next().await {
            let message = message.map_err(|error| anyhow::anyhow!("reading {stream}: {error}"))?.message;
            let (subject, body) = (message.subject.to_string(), message.payload.to_vec());
            told.push(Told { subject, headers: message.headers, body });
        }
        if told.len() == before {
            return Ok(told);
        }
    }
}
