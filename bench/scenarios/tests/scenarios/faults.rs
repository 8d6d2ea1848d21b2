//! What the faults of gate 4 have in common: a build that is under way when they strike, and what is promised after.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fabrique_scenarios::{BUILDS, Installation, SampleApp, builder_of, until, verdicts};
use serde_json::Value;

use crate::gates::fresh;

/// How long after its push a build is not through yet, in whichever attempt: enough to be found under way on a busy
/// machine, and disturbed.
const UNDER_WAY: Duration = Duration::from_secs(20);
/// How long a pod may take to be gone.
const GONE: Duration = Duration::from_secs(90);

/// A build that was seen under way.
pub(crate) struct UnderWay<'a> {
    installation: &'a Installation,
    app: &'a SampleApp,
    revision: String,
    /// The pod that it was seen in.
    pub(crate) pod: String,
    /// The node of that pod.
    pub(crate) node: String,
    uid: Value,
}

impl<'a> UnderWay<'a> {
    /// Pushes something that builds until a while later, and waits until it does.
    pub(crate) async fn push(installation: &'a Installation, app: &'a SampleApp) -> Result<Self> {
        Self::push_until(installation, app, UNDER_WAY).await
    }

    /// The same, until a while that is not the usual one.
    pub(crate) async fn push_until(
        installation: &'a Installation,
        app: &'a SampleApp,
        under_way: Duration,
    ) -> Result<Self> {
        let end = (std::time::UNIX_EPOCH.elapsed()? + under_way).as_secs();
        let step = format!("RUN while [ $(date +%s) -lt {end} ]; do sleep 1; done");
        let revision = app.push_steps(&fresh("slow"), &step).await?;
        let pod = installation.building(app, &revision).await?;
        let found = installation.get(BUILDS, "pod", &pod).await?;
        let node = found["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        Ok(Self { installation, app, revision, pod, node, uid: found["metadata"]["uid"].clone() })
    }

    /// Waits until the pod is gone, and until `why` has told of it, which it does until the next attempt is through.
    pub(crate) async fn loses_its_pod(&self, words: &[&str]) -> Result<()> {
        tokio::try_join!(self.pod_is_gone(), self.why_tells(words)).map(drop)
    }

    /// Its name may be given again.
    async fn pod_is_gone(&self) -> Result<()> {
        until(&format!("{} to be gone", self.pod), GONE, async || {
            let pods = self.installation.builders().await?;
            ensure!(!pods.iter().any(|pod| pod["metadata"]["uid"] == self.uid), "it is still there");
            Ok(())
        })
        .await
    }

    async fn why_tells(&self, words: &[&str]) -> Result<()> {
        until("`why` to tell of it", GONE, async || {
            let why = self.installation.ask(&["why", &self.app.name]).await?;
            Ok(verdicts::why_tells(&why, &self.revision, words)?)
        })
        .await
    }

    /// Waits until its image is what `cluster/apps` shows and what the app runs, whether or not Argo CD has heard of
    /// that commit by itself.
    pub(crate) async fn runs_in_the_end(&self) -> Result<()> {
        let Self { installation, app, revision, .. } = self;
        installation.deployed(app, revision).await?;
        let deployments = installation.deployments().await?;
        let deployment = verdicts::committed_once(&deployments, &app.name, revision)?;
        installation.runs_in_the_end(app, deployment).await
    }

    /// Waits until the build is through, on another node than the one that it was seen on.
    pub(crate) async fn is_through_elsewhere(&self) -> Result<()> {
        let Self { installation, app, revision, .. } = self;
        installation.deployed(app, revision).await?;
        let builds = installation.builds(app).await?;
        let last = builds.iter().find(|build| build["revision"] == revision.as_str());
        let pod = last.and_then(builder_of).context("no attempt in a pod")?;
        let pod = installation.get(BUILDS, "pod", pod).await?;
        let node = &pod["spec"]["nodeName"];
        ensure!(node.is_string() && *node != self.node, "it was tried again on {node}, where it had failed");
        Ok(())
    }

    /// See [`ends_in_one_commit`].
    pub(crate) async fn ends_in_one_commit(self, told: Told<'_>) -> Result<()> {
        ends_in_one_commit(self.installation, self.app, &self.revision, told).await
    }
}

/// What was told of a build's first attempt, besides what `why` said meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Told<'a> {
    /// Nothing: it is the only one.
    Nothing,
    /// How it ended, by the history. A worker that went away is no failure of the build.
    InHistory(&'a [&'a str]),
    /// How it ended, by the history, the events and the commit status.
    Everywhere(&'a [&'a str]),
}

/// One commit, one pod that runs it, no orphan, and what happened is told.
pub(crate) async fn ends_in_one_commit(
    installation: &Installation,
    app: &SampleApp,
    revision: &str,
    told: Told<'_>,
) -> Result<()> {
    installation.deployed(app, revision).await?;
    let deployments = installation.deployments().await?;
    let deployment = verdicts::committed_once(&deployments, &app.name, revision)?;
    installation.running(app, deployment).await?;
    installation.at_rest(app, 0).await?;
    verdicts::committed_once(&installation.deployments().await?, &app.name, revision)?;
    installation.no_orphans().await?;
    let builds = installation.builds(app).await?;
    match told {
        Told::Nothing => verdicts::built_at_once(&builds, revision)?,
        Told::InHistory(words) => verdicts::reason_told(&builds, revision, words)?,
        Told::Everywhere(words) => {
            verdicts::reason_told(&builds, revision, words)?;
            verdicts::events_tell(&installation.timeline(app, revision).await?, revision, words)?;
            verdicts::status_tells(&installation.statuses(app, revision).await?, &app.name, words)?;
        }
    }
    Ok(())
}
