//! What is seen from outside: on Gitea, at the API server, in Argo CD, and by `fabrique`.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use fabrique_bed::GitRepo;
use fabrique_kubernetes::labels;
use serde_json::Value;

use crate::app::SampleApp;
use crate::installation::{APPS, BUILDS, Installation};
use crate::people;
use crate::until::until;
use crate::verdicts::{self, Deployment};

/// How long a push may take to be committed, faults and a busy machine included.
const COMMITTED: Duration = Duration::from_mins(6);
/// How long Argo CD may take from a commit to an Application that is well.
pub const SYNCED: Duration = Duration::from_secs(60);
const SETTLED: Duration = Duration::from_mins(3);

/// What `prod` of an app is composed of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Composition {
    /// The deployed source revision.
    pub revision: String,
    /// The deployed digest.
    pub digest: String,
}

/// Everything that must not change when nothing is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    /// The head of `cluster/apps`.
    pub head: String,
    /// How many attempts at a build of the app there were.
    pub builds: usize,
    /// The builder pods.
    pub builders: BTreeSet<String>,
    /// The app's pods.
    pub pods: BTreeSet<String>,
    /// Which rollout of the app's Deployment is the newest.
    pub rollout: String,
}

impl Installation {
    /// The composition of an app in `prod`, once an image is deployed.
    ///
    /// # Errors
    /// When Gitea cannot be asked.
    pub async fn composition(&self, app: &str) -> Result<Option<Composition>> {
        let gitea = self.cluster.gitea();
        let path = format!("/repos/cluster/apps/raw/apps/{app}/prod/composition.yaml?ref=main");
        let (status, body) = gitea.api_as(gitea.admin_token(), "GET", &path, None).await?;
        let (200, Value::String(text)) = (status.as_u16(), body) else { return Ok(None) };
        let composition: Value = serde_saphyr::from_str(&text)?;
        let field = |key: &str| composition["image"][key].as_str().map(str::to_owned);
        Ok(field("revision").zip(field("digest")).map(|(revision, digest)| Composition { revision, digest }))
    }

    /// Waits until `prod` shows `revision`, and returns its composition.
    ///
    /// # Errors
    /// When it does not in time, with what fabrique says about it.
    pub async fn deployed(&self, app: &SampleApp, revision: &str) -> Result<Composition> {
        let what = format!("{} to be deployed at {revision}", app.name);
        let deployed = until(&what, COMMITTED, async || match self.composition(&app.name).await? {
            Some(composition) if composition.revision == revision => Ok(composition),
            other => Err(anyhow!("deployed is {other:?}")),
        });
        match deployed.await {
            Ok(composition) => Ok(composition),
            Err(error) => {
                let why = self.ask(&["why", &app.name]).await;
                let builds = self.builds(app).await;
                let worker = self.story("app.kubernetes.io/component=worker").await;
                Err(error.context(format!("why: {why:#?}\nbuilds: {builds:#?}\n{worker}")))
            }
        }
    }

    /// The automatic commits of image channels on `cluster/apps`, newest first.
    ///
    /// # Errors
    /// When git or Gitea refuses.
    pub async fn deployments(&self) -> Result<Vec<Deployment>> {
        let gitea = self.cluster.gitea();
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", "apps")).await?;
        let trailers = ["App", "Channel", "Source-Revision", "Digest"]
            .map(|key| format!("%(trailers:key={key},valueonly,separator=)"));
        let format = format!("--format=%H %ct {}", trailers.join(" "));
        let log = apps.git(&["log", "--author=^fabrique <", &format]).await?;
        let deployments = log.lines().filter_map(|line| match *line.split(' ').collect::<Vec<_>>() {
            [commit, at, app, "image", revision, digest] => Some(Deployment {
                commit: commit.to_owned(),
                at: at.parse().ok()?,
                app: app.to_owned(),
                revision: revision.to_owned(),
                digest: digest.to_owned(),
            }),
            _ => None,
        });
        Ok(deployments.collect())
    }

    /// The head of `cluster/apps`.
    ///
    /// # Errors
    /// When Gitea cannot be asked.
    pub async fn head(&self) -> Result<String> {
        let head = self.cluster.gitea().head("cluster", "apps", "main").await?;
        head.context("cluster/apps without its branch")
    }

    /// Everybody's commits on `cluster/apps` after `revision`, newest first.
    ///
    /// # Errors
    /// When git or Gitea refuses.
    pub async fn commits_since(&self, revision: &str) -> Result<Vec<String>> {
        let gitea = self.cluster.gitea();
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", "apps")).await?;
        let log = apps.git(&["rev-list", &format!("{revision}..HEAD")]).await?;
        Ok(log.lines().map(str::to_owned).collect())
    }

    /// Waits until Argo CD shows `commit` and the app is well, with one pod that runs the digest that the commit
    /// names and knows it; says how long after the commit.
    ///
    /// # Errors
    /// When it does not in [`SYNCED`], with the last objection.
    pub async fn running(&self, app: &SampleApp, deployment: &Deployment) -> Result<Duration> {
        until(&format!("{} to be at {}", app.name, deployment.commit), SYNCED, async || {
            let application = self.get("argocd", "application", &app.name).await?;
            Ok(verdicts::synced_and_healthy(&application, &deployment.commit)?)
        })
        .await?;
        self.runs(app, &deployment.digest).await?;
        let now = std::time::UNIX_EPOCH.elapsed()?;
        Ok(now.saturating_sub(Duration::from_secs(deployment.at)))
    }

    /// Waits until an app has one pod, which runs this digest and knows it. Where several apps were committed to, Argo
    /// CD shows the last of those commits for all.
    ///
    /// # Errors
    /// When it does not in [`SYNCED`], with the last objection.
    pub async fn runs(&self, app: &SampleApp, digest: &str) -> Result<()> {
        until(&format!("{} to run {digest}", app.name), SYNCED, async || {
            let pods = self.pods(app).await?;
            let [pod] = pods.as_slice() else { return Err(anyhow!("{} pods", pods.len())) };
            verdicts::runs_digest(pod, &app.name, &app.image, digest)?;
            Ok(verdicts::knows_its_image(pod, &app.name, "DAGSTER_CURRENT_IMAGE")?)
        })
        .await
    }

    /// As [`Self::runs`], for an app that several commits within seconds changed. Argo CD before 3.6 drops a request to
    /// refresh that arrives while it works on the one before (argo-cd issue 28392), goes on showing the earlier commit
    /// as Synced, and finds the newer one with its next poll. Only where it shows that is it asked, as the poll would.
    ///
    /// # Errors
    /// When the app does not run the digest in [`SYNCED`] although Argo CD knew of the commit, or was asked.
    pub async fn runs_in_the_end(&self, app: &SampleApp, deployment: &Deployment) -> Result<()> {
        let Err(late) = self.runs(app, &deployment.digest).await else { return Ok(()) };
        let application = self.get("argocd", "application", &app.name).await?;
        let Some(shown) = verdicts::synced_to(&application) else { return Err(late) };
        if !self.commits_since(shown).await?.contains(&deployment.commit) {
            return Err(late);
        }
        self.refreshed(app).await?;
        self.runs(app, &deployment.digest).await
    }

    /// Has Argo CD look at an app's folder, as it does by itself every ten minutes: what a webhook tells while it cannot
    /// reach the API server is lost on it.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn refreshed(&self, app: &SampleApp) -> Result<()> {
        let refresh = "argocd.argoproj.io/refresh=normal";
        let args = ["annotate", "application", &app.name, "--namespace=argocd", "--overwrite", refresh];
        self.cluster.kubectl(&args).await.map(drop)
    }

    /// The app's pods, without those that are leaving.
    ///
    /// # Errors
    /// When the API server cannot be asked.
    pub async fn pods(&self, app: &SampleApp) -> Result<Vec<Value>> {
        let mut pods = self.list(APPS, "pods", &format!("app={}", app.name)).await?;
        pods.retain(|pod| pod["metadata"].get("deletionTimestamp").is_none());
        Ok(pods)
    }

    /// The attempts at builds of an app, newest first.
    ///
    /// # Errors
    /// When they cannot be asked for.
    pub async fn builds(&self, app: &SampleApp) -> Result<Vec<Value>> {
        let builds = self.ask(&["builds", &app.name]).await?;
        builds.as_array().cloned().with_context(|| format!("no list of builds: {builds}"))
    }

    /// The builder pods.
    ///
    /// # Errors
    /// When the API server cannot be asked.
    pub async fn builders(&self) -> Result<Vec<Value>> {
        self.list(BUILDS, "pods", &labels::builders()).await
    }

    /// Waits until an attempt at `revision` is under way in a pod, and returns the pod's name.
    ///
    /// # Errors
    /// When none is in time.
    pub async fn building(&self, app: &SampleApp, revision: &str) -> Result<String> {
        until(&format!("{} to be built at {revision}", app.name), COMMITTED, async || {
            let builds = self.builds(app).await?;
            let building = builds
                .iter()
                .find(|build| build["revision"] == revision && build["phase"]["phase"] == "building");
            building.and_then(builder_of).map(str::to_owned).with_context(|| format!("{builds:?}"))
        })
        .await
    }

    /// Waits until an attempt at `revision` has failed, and returns it.
    ///
    /// # Errors
    /// When none has in time.
    pub async fn failed(&self, app: &SampleApp, revision: &str) -> Result<Value> {
        until(&format!("a build of {} to fail at {revision}", app.name), COMMITTED, async || {
            let builds = self.builds(app).await?;
            let failed = builds
                .iter()
                .find(|build| build["revision"] == revision && build["phase"]["phase"] == "failed");
            failed.cloned().with_context(|| format!("{builds:?}"))
        })
        .await
    }

    /// The webhooks of a repository, as Gitea has them.
    ///
    /// # Errors
    /// When Gitea cannot be asked.
    pub async fn hooks(&self, repo: &str) -> Result<Value> {
        self.cluster.gitea().api("GET", &format!("/repos/{repo}/hooks"), None).await
    }

    /// Every status that the commit of a revision was given, as Gitea shows them to its committer.
    ///
    /// # Errors
    /// When Gitea cannot be asked.
    pub async fn statuses(&self, app: &SampleApp, revision: &str) -> Result<Value> {
        let path = format!("/repos/{}/statuses/{revision}?limit=50", app.repo());
        self.cluster.gitea().api("GET", &path, None).await
    }

    /// The events of a push, up to the end of its first attempt.
    ///
    /// # Errors
    /// When they cannot be asked for.
    pub async fn timeline(&self, app: &SampleApp, revision: &str) -> Result<Value> {
        // It ends with 1 when that is not a commit.
        let any_end = "fabrique \"$@\" || [ $? = 1 ]";
        let command = ["exec", people::POD, "--container", people::NAME, "--", "sh", "-c", any_end, "sh"];
        let wanted = ["timeline", &app.name, "--revision", revision, "--output=json"];
        let text = self.kubectl(&[command.as_slice(), &wanted].concat()).await?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }

    /// What an attempt printed.
    ///
    /// # Errors
    /// When it cannot be asked for.
    pub async fn log(&self, build: &Value) -> Result<String> {
        let id = build["build"].as_str().context("a build without a name")?;
        self.tell(&["logs", id]).await
    }

    /// Waits until no builder is claimed, doubted or half gone, and none has left a secret.
    ///
    /// # Errors
    /// When there are orphans after a while.
    pub async fn no_orphans(&self) -> Result<()> {
        until("the builders to be at rest", SETTLED, async || {
            let pods = self.builders().await?;
            let secrets = self.list(BUILDS, "secrets", &labels::builders()).await?;
            Ok(verdicts::no_orphans(&pods, &secrets)?)
        })
        .await
    }

    /// Waits until every wake of an app is served.
    ///
    /// # Errors
    /// When one is not in time.
    pub async fn at_rest(&self, app: &SampleApp, wanted_at_least: u64) -> Result<()> {
        until(&format!("{} to be at rest", app.name), SETTLED, async || {
            let why = self.ask(&["why", &app.name]).await?;
            let (wanted, done) = (why["wanted"].as_u64(), why["done"].as_u64());
            ensure!(wanted == done && wanted >= Some(wanted_at_least), "{wanted:?} wanted, {done:?} served");
            ensure!(why["action"] == "nothing", "it still wants: {}: {}", why["action"], why["reason"]);
            Ok(())
        })
        .await
    }

    /// Waits until every wake of an app is served, whatever it still lacks.
    ///
    /// # Errors
    /// When one is not in time.
    pub async fn at_rest_or_behind(&self, app: &SampleApp) -> Result<()> {
        until(&format!("{} to be left alone", app.name), SETTLED, async || {
            let why = self.ask(&["why", &app.name]).await?;
            ensure!(why["wanted"] == why["done"], "{} wanted, {} served", why["wanted"], why["done"]);
            Ok(())
        })
        .await
    }

    /// The newest wake of an app.
    ///
    /// # Errors
    /// When it cannot be asked for.
    pub async fn wanted(&self, app: &SampleApp) -> Result<u64> {
        let why = self.ask(&["why", &app.name]).await?;
        why["wanted"].as_u64().with_context(|| format!("no wakes in {why}"))
    }

    /// What is there now.
    ///
    /// # Errors
    /// When somebody cannot be asked.
    pub async fn footprint(&self, app: &SampleApp) -> Result<Footprint> {
        let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let deployment = self.get(APPS, "deployment", &app.name).await?;
        let rollout = &deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
        Ok(Footprint {
            head: self.head().await?,
            builds: self.builds(app).await?.len(),
            builders: self.builders().await?.iter().map(uid).collect(),
            pods: self.pods(app).await?.iter().map(uid).collect(),
            rollout: rollout.as_str().unwrap_or_default().to_owned(),
        })
    }

    /// How many pushes to `cluster/apps` Argo CD was told of by a webhook.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub async fn pushes_heard(&self) -> Result<usize> {
        let log = tokio::fs::read_to_string(self.cluster.argocd().server().log_path()).await?;
        Ok(verdicts::pushes_heard(&log, "cluster/apps"))
    }
}

/// The pod that an attempt ran in; behind its name stands how it is isolated.
#[must_use]
pub fn builder_of(build: &Value) -> Option<&str> {
    build["daemon"].as_str()?.split(' ').next()
}
