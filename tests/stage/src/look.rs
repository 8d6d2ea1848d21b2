//! What is seen on the servers from outside.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fabrique_bed::wait_until;
use serde_json::Value;

use crate::app::SampleApp;
use crate::stage::Stage;

/// How long a push may take to be deployed in a test, faults included. Never slept: only a bound.
pub(crate) const DEPLOYED: Duration = Duration::from_secs(60);

/// A composition as its text shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Composition {
    /// The deployed source revision.
    pub revision: String,
    /// The deployed digest.
    pub digest: String,
    /// The revision of the copied overlay.
    pub infra: Option<String>,
}

/// An automatic commit of the image channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// The source revision that it deployed.
    pub revision: String,
    /// The digest that it deployed.
    pub digest: String,
}

/// A commit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// `pending`, `success`, `failure` or `error`.
    pub state: String,
    /// Its sentence.
    pub description: String,
}

impl Stage {
    /// A file of `cluster/apps` at its head; nothing when it is not there.
    ///
    /// # Errors
    /// When Gitea cannot be asked.
    pub async fn apps_file(&self, path: &str) -> Result<Option<String>> {
        let gitea = self.bed.gitea();
        let path = format!("/repos/cluster/apps/raw/{path}?ref=main");
        let (status, body) = gitea.api_as(gitea.admin_token(), "GET", &path, None).await?;
        Ok((status == 200).then(|| match body {
            Value::String(text) => text,
            other => other.to_string(),
        }))
    }

    /// The composition of an app in `prod`, once an image is deployed.
    ///
    /// # Errors
    /// When Gitea cannot be asked.
    pub async fn composition(&self, app: &str) -> Result<Option<Composition>> {
        let Some(text) = self.apps_file(&format!("apps/{app}/prod/composition.yaml")).await? else {
            return Ok(None);
        };
        let line = |channel: &str| {
            text.lines().find(|line| line.starts_with(channel)).unwrap_or_default().to_owned()
        };
        let (image, infra) = (line("image:"), line("infra:"));
        let Some(digest) = field(&image, "digest") else { return Ok(None) };
        let revision = field(&image, "revision").context("an image without a revision")?;
        Ok(Some(Composition { revision, digest, infra: field(&infra, "revision") }))
    }

    /// Waits until `prod` shows `revision`, and returns its composition.
    ///
    /// # Errors
    /// When it does not in time, with what `fabrique why` says.
    pub async fn deployed(&self, app: &SampleApp, revision: &str) -> Result<Composition> {
        let name = &app.options.name;
        let what = format!("{name} to be deployed at {revision}");
        let deployed = wait_until(&what, self.patience, || async {
            self.composition(name).await.ok().flatten().filter(|c| c.revision == revision)
        })
        .await;
        match deployed {
            Ok(composition) => Ok(composition),
            Err(error) => {
                let (_, why, _) = self.try_command(&["why", name]).await.unwrap_or_default();
                Err(error.context(format!("fabrique why {name} says:\n{why}")))
            }
        }
    }

    /// The subjects of the commits on `cluster/apps` that touch an app, newest first, automatic ones only.
    ///
    /// # Errors
    /// When git or Gitea refuses.
    pub async fn automatic_commits(&self, app: &str) -> Result<Vec<String>> {
        let apps = self.clone_apps().await?;
        let directory = format!("apps/{app}/");
        let log = apps.git(&["log", "--author=^fabrique <", "--format=%s", "--", &directory]).await?;
        Ok(log.lines().map(str::to_owned).collect())
    }

    /// The automatic image commits of an app on `cluster/apps`, newest first.
    ///
    /// # Errors
    /// When git or Gitea refuses.
    pub async fn image_commits(&self, app: &str) -> Result<Vec<Deployment>> {
        let apps = self.clone_apps().await?;
        let trailer = |key: &str| format!("%(trailers:key={key},valueonly,separator=)");
        let keys = ["App", "Channel", "Source-Revision", "Digest"].map(trailer);
        let format = format!("--format={}", keys.join(" "));
        let log = apps.git(&["log", "--author=^fabrique <", &format]).await?;
        let deployments = log.lines().filter_map(|line| match *line.split(' ').collect::<Vec<_>>() {
            [of, "image", revision, digest] if of == app => {
                Some(Deployment { revision: revision.to_owned(), digest: digest.to_owned() })
            }
            _ => None,
        });
        Ok(deployments.collect())
    }

    /// Waits until `prod` shows `revision` and its status says so, and checks that exactly one automatic
    /// commit brought it, with the digest that the registry serves under the readable tag.
    ///
    /// # Errors
    /// When any of it is otherwise, with what is there.
    pub async fn committed_once(&self, app: &SampleApp, revision: &str) -> Result<Composition> {
        let name = &app.options.name;
        let composition = self.deployed(app, revision).await?;
        self.status_becomes(app, revision, "success").await?;
        let tag = &revision[..12];
        let what = format!("the tag {tag}");
        let served = wait_until(&what, self.patience, || async {
            self.bed.registry().digest(name, tag).await.ok().flatten()
        });
        let served = served.await?;
        ensure!(served == composition.digest, "{tag} is {served}, deployed is {}", composition.digest);
        let commits = self.image_commits(name).await?;
        let of_revision: Vec<_> = commits.iter().filter(|commit| commit.revision == revision).collect();
        let expected = Deployment { revision: revision.to_owned(), digest: served };
        ensure!(of_revision == [&expected], "not exactly one commit for {revision}: {commits:#?}");
        Ok(composition)
    }

    /// How many manifests the registry stores for an image of its own, tagged or not. Read from its disk, so
    /// that it can be asked while other peers are frozen.
    #[must_use]
    pub fn stored_manifests(&self, image: &str) -> usize {
        let path =
            format!("registry/store/docker/registry/v2/repositories/{image}/_manifests/revisions/sha256");
        std::fs::read_dir(self.bed.folder().join(path)).map_or(0, Iterator::count)
    }

    /// Waits until the registry stores a manifest of an image that had none.
    ///
    /// # Errors
    /// When it does not in time.
    pub async fn image_stored(&self, image: &str) -> Result<()> {
        let stored = async || (self.stored_manifests(image) > 0).then_some(());
        wait_until(&format!("an image of {image} to be pushed"), self.patience, stored).await
    }

    /// The status of an app's build on a revision; nothing when there is none.
    ///
    /// # Errors
    /// When Gitea cannot be asked.
    pub async fn status(&self, repo: &str, revision: &str, app: &str) -> Result<Option<Status>> {
        self.status_of(repo, revision, &format!("fabrique/build/{app}")).await
    }

    /// Waits until an app's declaration has a status on a revision, and returns it.
    ///
    /// # Errors
    /// When it has none in time, with what `fabrique why` says.
    pub async fn declaration_status(&self, app: &SampleApp, revision: &str) -> Result<Status> {
        let name = &app.options.name;
        let context = format!("fabrique/declaration/{name}");
        let what = format!("the status of the declaration of {name} at {revision}");
        let reached = wait_until(&what, self.patience, || async {
            self.status_of(&app.options.repo, revision, &context).await.ok().flatten()
        });
        match reached.await {
            Ok(status) => Ok(status),
            Err(error) => {
                let (_, why, _) = self.try_command(&["why", name]).await.unwrap_or_default();
                Err(error.context(format!("fabrique why {name} says:\n{why}")))
            }
        }
    }

    async fn status_of(&self, repo: &str, revision: &str, context: &str) -> Result<Option<Status>> {
        let gitea = self.bed.gitea();
        let path = format!("/repos/atlas/{repo}/commits/{revision}/status");
        let (_, body) = gitea.api_as(gitea.admin_token(), "GET", &path, None).await?;
        let statuses = body["statuses"].as_array().cloned().unwrap_or_default();
        Ok(statuses.iter().find(|s| s["context"] == context).map(|s| Status {
            state: s["status"].as_str().unwrap_or_default().to_owned(),
            description: s["description"].as_str().unwrap_or_default().to_owned(),
        }))
    }

    /// Waits until an app's build status on a revision is `state`, and returns it.
    ///
    /// # Errors
    /// When it is not in time, with what `fabrique why` says.
    pub async fn status_becomes(&self, app: &SampleApp, revision: &str, state: &str) -> Result<Status> {
        let name = &app.options.name;
        let what = format!("the build status of {name} at {revision} to be {state}");
        let reached = wait_until(&what, self.patience, || async {
            let status = self.status(&app.options.repo, revision, name).await.ok().flatten();
            status.filter(|status| status.state == state)
        })
        .await;
        match reached {
            Ok(status) => Ok(status),
            Err(error) => {
                let last = self.status(&app.options.repo, revision, name).await?;
                let (_, why, _) = self.try_command(&["why", name]).await.unwrap_or_default();
                Err(error.context(format!("it is {last:?}; fabrique why {name} says:\n{why}")))
            }
        }
    }
}

/// A field of a flow mapping on one line.
fn field(line: &str, key: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!("{key}: "))?;
    let value = rest.split([',', ' ', '}']).next()?.trim_matches('"');
    (!value.is_empty() && value != "null").then(|| value.to_owned())
}
