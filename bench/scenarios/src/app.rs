//! An app as a team would have it: a private repository with a Dockerfile and an overlay with two placeholders, its
//! registration on `cluster/apps`, and the Application that deploys what fabrique writes there.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::GitRepo;
use serde_json::json;

use crate::forge;
use crate::installation::{APPS, Installation};
use crate::until::until;

/// How long receivers may refuse: only a bound.
const ACCEPTED: Duration = Duration::from_mins(1);

/// A registered app and the clone that its developers push from.
#[derive(Debug)]
pub struct SampleApp {
    /// Its name, which its repository in `atlas`, its container and its Application have too.
    pub name: String,
    /// The image without a digest.
    pub image: String,
    source: GitRepo,
    base: String,
}

impl SampleApp {
    /// Creates the repository with a first push, registers the app and hooks it. Returns it with the revision that
    /// will be deployed.
    ///
    /// # Errors
    /// When a server refuses.
    pub async fn create(installation: &Installation, name: &str) -> Result<(Self, String)> {
        let mut created = Self::create_all(installation, &[name.to_owned()]).await?;
        created.pop().context("no app")
    }

    /// The same for several, which are registered and hooked together.
    ///
    /// # Errors
    /// When a server refuses.
    pub async fn create_all(installation: &Installation, names: &[String]) -> Result<Vec<(Self, String)>> {
        let cluster = installation.cluster;
        let gitea = cluster.gitea();
        let mut created = Vec::new();
        for name in names {
            let app = Self {
                name: name.clone(),
                image: format!("registry:80/{name}"),
                source: forge::source(gitea, name).await?,
                base: cluster.images().busybox.clone(),
            };
            app.write().await?;
            let first = app.push("first").await?;
            created.push((app, first));
        }
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", "apps")).await?;
        for (app, _) in &created {
            app.register(&apps, &gitea.clone_url("cluster", "apps")).await?;
        }
        apps.commit(&format!("Register {}", names.join(", "))).await?;
        apps.push().await.context("somebody else pushed to cluster/apps meanwhile")?;
        installation.job("hooks").await?;
        // Gitea tells once, and who is refused on a busy machine waits for a sweep, which no gate makes for this.
        for (app, first) in &created {
            until("the first push to be accepted", ACCEPTED, async || {
                let answer = installation.deliver_push(&app.repo(), &"0".repeat(40), first).await?;
                ensure!(answer == 202, "the receiver answered {answer}");
                Ok(())
            })
            .await?;
        }
        Ok(created)
    }

    /// The repository's name.
    #[must_use]
    pub fn repo(&self) -> String {
        format!("atlas/{}", self.name)
    }

    /// Changes what is in the image, commits and pushes. Returns the revision.
    ///
    /// # Errors
    /// When git or Gitea refuses.
    pub async fn push(&self, message: &str) -> Result<String> {
        self.push_steps(message, "RUN echo built > /built").await
    }

    /// The same with other steps, each run anew.
    ///
    /// # Errors
    /// When git or Gitea refuses.
    pub async fn push_steps(&self, message: &str, steps: &str) -> Result<String> {
        let base = &self.base;
        self.push_dockerfile(message, &format!("FROM {base}\nCOPY message /message\n{steps}\n")).await
    }

    /// The same with a Dockerfile of any kind, beside which lies a `message` that no other build had.
    ///
    /// # Errors
    /// When git or Gitea refuses.
    pub async fn push_dockerfile(&self, message: &str, dockerfile: &str) -> Result<String> {
        self.source.write("Dockerfile", dockerfile).await?;
        self.source.write("message", message).await?;
        let revision = self.source.commit(message).await?;
        self.source.push().await?;
        Ok(revision)
    }

    async fn write(&self) -> Result<()> {
        let (name, image) = (&self.name, &self.image);
        let placeholder = name.to_uppercase().replace('-', "_");
        let kustomization = format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [deployment.yaml]\n\
             patches:\n  - path: patch-s3-envfrom.yaml\nimages:\n  - name: {image}\n    \
             digest: __{placeholder}_IMAGE_DIGEST__ # filled by cluster\n"
        );
        let patch = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: {name} }}\nspec:\n  template:\n    spec:\n      \
             containers:\n        - name: {name}\n          env:\n            - name: DAGSTER_CURRENT_IMAGE\n              \
             value: __{placeholder}_IMAGE__\n"
        );
        let container = json!({
            "name": name, "image": image, "command": ["/bin/busybox", "sleep", "2147483647"],
            "resources": { "requests": { "cpu": "1m", "memory": "4Mi" } },
        });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "terminationGracePeriodSeconds": 1, "containers": [container] },
                },
            },
        });
        for (file, content) in [
            ("kustomization.yaml", kustomization),
            ("patch-s3-envfrom.yaml", patch),
            ("deployment.yaml", serde_saphyr::to_string(&deployment)?),
        ] {
            self.source.write(&format!("deploy/overlays/prod/{file}"), content).await?;
        }
        Ok(())
    }

    /// Writes the registration, and the Application, into a clone of `cluster/apps`.
    async fn register(&self, apps: &GitRepo, url: &str) -> Result<()> {
        let name = &self.name;
        apps.write(&format!("apps/{name}/app.yaml"), self.registration()).await?;
        let application = forge::application(name, url, &format!("apps/{name}/prod"), APPS);
        apps.write(&format!("argocd/{name}.yaml"), serde_saphyr::to_string(&application)?).await
    }

    fn registration(&self) -> String {
        let (name, image, repo) = (&self.name, &self.image, self.repo());
        format!(
            "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {name} }}\nspec:\n  \
             source: {{ repo: {repo}, branch: main }}\n  image: {image}\n  \
             environments:\n    - name: prod\n      image: {{ from: build }}\n      \
             infra: {{ from: head, repo: {repo}, path: deploy/overlays/prod }}\n      bindings:\n        \
             - {{ channel: image, file: kustomization.yaml, path: \"images[name={image}].digest\", form: digest }}\n        \
             - {{ channel: image, file: patch-s3-envfrom.yaml, path: \"spec.template.spec.containers[0].env[name=DAGSTER_CURRENT_IMAGE].value\", form: reference }}\n"
        )
    }
}
