//! Apps that are built and committed, and deployed by nobody: one repository, one commit, a branch for each.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use fabrique_bed::GitRepo;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::StatusCode;

use crate::bus::{self, Told};
use crate::feed::Feed;
use crate::ground::{Ground, fresh};

/// Deliveries under way at once.
const AT_ONCE: usize = 64;
/// Who is told "not now" comes back.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// What Gitea says was before a branch's first commit.
const ROOT: &str = "0000000000000000000000000000000000000000";

/// What is in the apps' images, besides the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Image {
    /// A label: no step runs.
    Label,
    /// What a step made that no other app has, and that no message changes.
    Step,
}

impl Image {
    fn steps(self) -> &'static str {
        match self {
            Self::Label => "LABEL app=$APP",
            Self::Step => "RUN echo $APP > /app",
        }
    }
}

/// Registered apps.
pub(crate) struct Fleet {
    /// Their names, which are their branches' too.
    pub(crate) names: BTreeSet<String>,
    repo: String,
    source: GitRepo,
    head: String,
}

/// A push to all of their branches.
pub(crate) struct Pushed {
    before: String,
    /// The revision that all of them are at.
    pub(crate) revision: String,
}

impl Fleet {
    /// Registers `count` apps, which wakes them for the first time: to be built at the head.
    pub(crate) async fn register(ground: &Ground, name: &str, count: u32, image: Image) -> Result<Self> {
        let cluster = ground.installation.cluster;
        let repo = fresh(name);
        let names: BTreeSet<String> = (0..count).map(|number| format!("{repo}-{number:03}")).collect();
        let source = fabrique_scenarios::source(cluster.gitea(), &repo).await?;
        let dockerfile =
            format!("FROM {}\nARG APP\n{}\nCOPY message /message\n", cluster.images().busybox, image.steps());
        source.write("Dockerfile", dockerfile).await?;
        let mut fleet = Self { names, repo, source, head: String::new() };
        fleet.push("first").await?;
        let apps = GitRepo::clone(&cluster.gitea().clone_url_with_token("cluster", "apps")).await?;
        for name in &fleet.names {
            apps.write(&format!("apps/{name}/app.yaml"), registration(&fleet.repo, name)).await?;
            let kustomization = format!(
                "resources: []\nimages:\n  - name: registry:80/{name}\n    digest: sha256:{}\n",
                "0".repeat(64)
            );
            apps.write(&format!("apps/{name}/prod/kustomization.yaml"), kustomization).await?;
        }
        apps.commit(&format!("Register {count} apps of {}", fleet.repo)).await?;
        apps.push().await.context("somebody else pushed to cluster/apps meanwhile")?;
        Ok(fleet)
    }

    /// Their repository in `atlas`.
    pub(crate) fn repo(&self) -> &str {
        &self.repo
    }

    /// What brought all branches where they are now.
    pub(crate) fn last(&self) -> Pushed {
        Pushed { before: ROOT.to_owned(), revision: self.head.clone() }
    }

    /// Where all branches are.
    pub(crate) fn head(&self) -> &str {
        &self.head
    }

    /// Pushes another message to all branches. Nobody is told.
    pub(crate) async fn push(&mut self, message: &str) -> Result<Pushed> {
        self.source.write("message", message).await?;
        let revision = self.source.commit(message).await?;
        let branches: Vec<String> = self.names.iter().map(|name| format!("HEAD:refs/heads/{name}")).collect();
        let mut push = vec!["push", "--quiet", "origin"];
        push.extend(branches.iter().map(String::as_str));
        self.source.git(&push).await?;
        let before = std::mem::replace(&mut self.head, revision.clone());
        Ok(Pushed { before: if before.is_empty() { ROOT.to_owned() } else { before }, revision })
    }

    /// Tells of a push to every branch at once, as Gitea would one after the other.
    pub(crate) async fn deliver(&self, ground: &Ground, pushed: &Pushed) -> Result<()> {
        let deliveries = self.names.iter().map(|name| self.deliver_one(ground, name, pushed));
        stream::iter(deliveries).buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn deliver_one(&self, ground: &Ground, name: &str, pushed: &Pushed) -> Result<()> {
        let repo = format!("atlas/{}", self.repo);
        let mut status = StatusCode::OK;
        for _ in 0..ATTEMPTS {
            let branch = (repo.as_str(), name);
            let installation = &ground.installation;
            let request = installation.delivery(&ground.client, branch, &pushed.before, &pushed.revision)?;
            status = request.send().await.context("delivering")?.status();
            if status == StatusCode::ACCEPTED {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        bail!("a delivery was answered with {status}, {ATTEMPTS} times")
    }
}

/// What is told of builds from now on: an entry of the history each time one moves on.
pub(crate) async fn builds(ground: &Ground) -> Result<Feed<Told>> {
    bus::listen(&ground.bus, "KV_FABRIQUE_BUILDS", "$KV.FABRIQUE_BUILDS.>").await
}

/// Builds that ended, until the last of `names` is committed at `revision`.
pub(crate) async fn committed(
    builds: &mut Feed<Told>,
    names: &BTreeSet<String>,
    revision: &str,
    limit: Duration,
) -> Result<Vec<Built>> {
    let (mut left, mut ended) = (names.clone(), Vec::new());
    let found = builds.find("every build to be committed", limit, |told| {
        let built =
            Built::of(told).filter(|built| built.revision == revision && names.contains(&built.app))?;
        if built.committed {
            left.remove(&built.app);
        }
        ended.push(built);
        left.is_empty().then_some(())
    });
    let found = found.await;
    found.with_context(|| {
        format!("{} of {} are not, {:?} among them", left.len(), names.len(), left.first())
    })?;
    Ok(ended)
}

/// An attempt that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Built {
    pub(crate) build: String,
    pub(crate) app: String,
    pub(crate) revision: String,
    /// Its pod; empty when it had none.
    pub(crate) daemon: String,
    pub(crate) committed: bool,
}

impl Built {
    pub(crate) fn of(told: &Told) -> Option<Self> {
        let entry = &told.body;
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let phase = entry["phase"]["phase"].as_str()?;
        let ended = ["committed", "not_committed", "failed", "superseded"].contains(&phase);
        ended.then(|| Self {
            build: text("build"),
            app: text("app"),
            revision: text("revision"),
            // Behind the name stands how it is isolated.
            daemon: text("daemon").split(' ').next().unwrap_or_default().to_owned(),
            committed: phase == "committed",
        })
    }
}

fn registration(repo: &str, name: &str) -> String {
    format!(
        "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {name} }}\nspec:\n  \
         source: {{ repo: atlas/{repo}, branch: {name} }}\n  image: registry:80/{name}\n  \
         build: {{ args: {{ APP: {name} }} }}\n  environments:\n    - name: prod\n      image: {{ from: build }}\n      \
         bindings:\n        - {{ channel: image, file: kustomization.yaml, path: \"images[name=registry:80/{name}].digest\", form: digest }}\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use time::OffsetDateTime;

    use super::*;

    #[test]
    fn an_attempt_that_goes_on_has_not_ended() {
        let told = |phase: &str| Told {
            subject: String::new(),
            at: OffsetDateTime::UNIX_EPOCH,
            body: json!({
                "build": "a-1", "app": "a", "revision": "r", "daemon": "builder-2 (userns)",
                "phase": { "phase": phase },
            }),
        };
        assert_eq!(Built::of(&told("building")), None);
        let built = Built::of(&told("committed")).unwrap();
        assert_eq!((built.daemon.as_str(), built.committed), ("builder-2", true));
        assert!(!Built::of(&told("failed")).unwrap().committed);
    }
}
