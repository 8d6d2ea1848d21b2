//! An app as a team would have it: a repository with a Dockerfile and an overlay with two placeholders,
//! and its registration.

use std::fmt::Write as _;

use anyhow::Result;
use fabrique_bed::GitRepo;

use crate::stage::Stage;

/// How an app is made. The defaults are an app of its own repository in `atlas`, deployed to `prod` from an
/// overlay that follows the head.
#[derive(Debug, Clone)]
pub struct AppOptions {
    /// Its name, and its repository's unless that is given.
    pub name: String,
    /// Its repository in `atlas`.
    pub repo: String,
    /// Whether only its members may read it.
    pub private: bool,
    /// The folder that holds everything of the app, for several in one repository; `.` for the root.
    pub context: String,
    /// Whether it is deployed anywhere.
    pub deployed: bool,
    /// Whether the manifests are copied from the overlay, or kept in `cluster/apps`.
    pub overlay: bool,
    /// Whether the registration names the places of the image; else the overlay's placeholders are the places.
    pub bindings: bool,
    /// The globs that ask for a build; everything below the context when empty.
    pub watch: Vec<String>,
    /// Lines that are added to the `build:` mapping: `args: { A: b }`.
    pub build: Vec<String>,
    /// Whether webhook #2 is there.
    pub hook: bool,
}

impl AppOptions {
    /// The defaults for an app called `name`.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            repo: name.to_owned(),
            private: false,
            context: ".".to_owned(),
            deployed: true,
            overlay: true,
            bindings: true,
            watch: Vec::new(),
            build: Vec::new(),
            hook: true,
        }
    }
}

/// A registered app and the clone that its developers push from.
pub struct SampleApp {
    /// How it was made.
    pub options: AppOptions,
    /// Its developers' clone.
    pub source: GitRepo,
    /// The image it is pushed to.
    pub image: String,
    base: String,
}

impl SampleApp {
    /// Creates the repository and the first commit, registers the app, and hooks it. Nothing is pushed to the
    /// source yet, so that the test decides about the first push.
    ///
    /// # Errors
    /// When a server refuses.
    pub async fn create(stage: &Stage, options: AppOptions) -> Result<Self> {
        let source = stage.create_source("atlas", &options.repo, options.private).await?;
        let app = Self::over(stage, options, source);
        if app.options.hook {
            stage.hook("atlas", &app.options.repo).await?;
        }
        app.write_source("first").await?;
        app.register(stage).await?;
        Ok(app)
    }

    /// The same over a clone that is there already, for a second app in one repository. Nothing is written.
    #[must_use]
    pub fn over(stage: &Stage, options: AppOptions, source: GitRepo) -> Self {
        let image = format!("{}/{}", stage.bed.registry().host(), options.name);
        Self { image, base: stage.bed.registry().busybox(), options, source }
    }

    /// The path of a file of the app in its repository.
    #[must_use]
    pub fn path(&self, file: &str) -> String {
        if self.options.context == "." { file.to_owned() } else { format!("{}/{file}", self.options.context) }
    }

    /// Writes the app's files, with `message` in the image.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub async fn write_source(&self, message: &str) -> Result<()> {
        let dockerfile = format!("FROM {}\nRUN echo built > /built\nCOPY message /message\n", self.base);
        self.source.write(&self.path("Dockerfile"), dockerfile).await?;
        self.source.write(&self.path("message"), message).await?;
        let upper = self.options.name.to_uppercase().replace('-', "_");
        let (name, image) = (&self.options.name, &self.image);
        let kustomization = format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [deployment.yaml]\npatches:\n  - path: patch-s3-envfrom.yaml\nimages:\n  - name: {image}\n    digest: __{upper}_IMAGE_DIGEST__ # filled by cluster\n"
        );
        let patch = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: {name} }}\nspec:\n  template:\n    spec:\n      containers:\n        - name: {name}\n          env:\n            - name: DAGSTER_CURRENT_IMAGE\n              value: __{upper}_IMAGE__\n"
        );
        let deployment = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: {name} }}\nspec:\n  selector: {{ matchLabels: {{ app: {name} }} }}\n  template:\n    metadata: {{ labels: {{ app: {name} }} }}\n    spec:\n      containers:\n        - name: {name}\n          image: {image}\n"
        );
        for (file, content) in [
            ("kustomization.yaml", kustomization),
            ("patch-s3-envfrom.yaml", patch),
            ("deployment.yaml", deployment),
        ] {
            self.source.write(&self.path(&format!("deploy/overlays/prod/{file}")), content).await?;
        }
        Ok(())
    }

    /// Changes what is in the image, commits and pushes. Returns the revision.
    ///
    /// # Errors
    /// When git or Gitea refuses.
    pub async fn push(&self, message: &str) -> Result<String> {
        self.source.write(&self.path("message"), message).await?;
        let revision = self.source.commit(message).await?;
        self.source.push().await?;
        Ok(revision)
    }

    /// Replaces the Dockerfile's steps after `FROM`, commits and pushes. Returns the revision.
    ///
    /// # Errors
    /// When git or Gitea refuses.
    pub async fn push_steps(&self, steps: &str) -> Result<String> {
        self.source.write(&self.path("Dockerfile"), format!("FROM {}\n{steps}\n", self.base)).await?;
        let subject = format!("Change the steps: {}", steps.lines().next().unwrap_or_default());
        let revision = self.source.commit(&subject).await?;
        self.source.push().await?;
        Ok(revision)
    }

    /// Pushes the registration to `cluster/apps`.
    ///
    /// # Errors
    /// When git or Gitea refuses.
    pub async fn register(&self, stage: &Stage) -> Result<()> {
        let apps = stage.clone_apps().await?;
        self.write_registration(&apps).await?;
        apps.commit(&format!("Register {}", self.options.name)).await?;
        apps.push().await
    }

    /// Writes the registration, and the manifests where people keep them, into a clone of `cluster/apps`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub async fn write_registration(&self, apps: &GitRepo) -> Result<()> {
        let options = &self.options;
        apps.write(&format!("apps/{}/app.yaml", options.name), self.registration()?).await?;
        if options.deployed && !options.overlay {
            let kustomization = format!(
                "resources: []\nimages:\n  - name: {}\n    digest: sha256:{}\n",
                self.image,
                "0".repeat(64)
            );
            apps.write(&format!("apps/{}/prod/kustomization.yaml", options.name), kustomization).await?;
        }
        Ok(())
    }

    /// The registration's text.
    ///
    /// # Errors
    /// Never.
    pub fn registration(&self) -> Result<String> {
        let AppOptions { name, repo, context, .. } = &self.options;
        let mut text = String::new();
        writeln!(text, "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {name} }}\nspec:")?;
        writeln!(text, "  source: {{ repo: atlas/{repo}, branch: main }}\n  image: {}", self.image)?;
        writeln!(text, "  build:\n    context: {context}")?;
        if !self.options.watch.is_empty() {
            writeln!(text, "    watch: {:?}", self.options.watch)?;
        }
        for line in &self.options.build {
            writeln!(text, "    {line}")?;
        }
        if !self.options.deployed {
            return Ok(text);
        }
        writeln!(text, "  environments:\n    - name: prod\n      image: {{ from: build }}")?;
        if self.options.overlay {
            let path = self.path("deploy/overlays/prod");
            writeln!(text, "      infra: {{ from: head, repo: atlas/{repo}, path: {path} }}")?;
        }
        if !self.options.bindings {
            return Ok(text);
        }
        writeln!(text, "      bindings:")?;
        let digest = format!("images[name={}].digest", self.image);
        writeln!(
            text,
            "        - {{ channel: image, file: kustomization.yaml, path: \"{digest}\", form: digest }}"
        )?;
        if self.options.overlay {
            let value = "spec.template.spec.containers[0].env[name=DAGSTER_CURRENT_IMAGE].value";
            writeln!(
                text,
                "        - {{ channel: image, file: patch-s3-envfrom.yaml, path: \"{value}\", form: reference }}"
            )?;
        }
        Ok(text)
    }
}
