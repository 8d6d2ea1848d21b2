//! The files that Argo CD reads: where it is, and where environments are.

use std::time::Duration;

use fabrique_core::id::{Digest, EnvironmentName, ImageRepository, RepoName};
use fabrique_gitops::registration::SourceForm;
use fabrique_gitops::render::migrations::Runner;
use fabrique_gitops::render::{Destination, IN_CLUSTER, Settings, is_label};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounded::{DAY, SECOND, Wait};
use super::check::{Problems, is_http};
use super::sections::Config;

/// Rendering for Argo CD.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RenderSection {
    /// Workers commit an Application together with what it deploys. Off, people write it, or run `fabrique render`.
    pub(crate) enabled: bool,
    /// Gitea's root as Argo CD reaches it; `gitea.url` when absent.
    pub(crate) gitea_url: Option<String>,
    /// The namespace of Argo CD.
    pub(crate) argocd_namespace: String,
    /// The name of the root Application.
    pub(crate) root: String,
    /// The AppProject of the apps; the root's is called the same with `-root` behind it.
    pub(crate) project: String,
    /// What Applications read where an environment does not say: the filled `copy`, or the app's own `repository`.
    pub(crate) source: String,
    /// Where environments are. Of one that is not listed, nothing is rendered.
    pub(crate) destinations: Vec<DestinationSection>,
    /// How migrations are run.
    pub(crate) migrations: MigrationsSection,
}

/// How migrations are run before a sync.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MigrationsSection {
    /// fabrique's own image, by digest: `registry:80/fabrique@sha256:…`. Without it, no app that declares migrations is deployed.
    pub(crate) image: Option<String>,
    /// How connections to databases are encrypted: libpq's `sslmode`, one of `disable`, `prefer` and `require`.
    pub(crate) sslmode: String,
    /// How long one run may take.
    pub(crate) limit: Wait<{ 10 * SECOND }, DAY>,
}

impl Default for MigrationsSection {
    fn default() -> Self {
        Self { image: None, sslmode: "require".to_owned(), limit: Duration::from_mins(15).into() }
    }
}

impl Default for RenderSection {
    fn default() -> Self {
        Self {
            enabled: false,
            gitea_url: None,
            argocd_namespace: "argocd".to_owned(),
            root: "root".to_owned(),
            project: "fabrique-apps".to_owned(),
            source: SourceForm::default().as_str().to_owned(),
            destinations: Vec::new(),
            migrations: MigrationsSection::default(),
        }
    }
}

/// Where an environment is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationSection {
    /// The environment.
    #[schemars(extend("x-required" = true))]
    pub(crate) environment: String,
    /// The API server, as Argo CD knows the cluster.
    #[serde(default = "in_cluster")]
    pub(crate) server: String,
    /// The namespaces that apps may be deployed into; the first where an app does not choose.
    #[schemars(extend("x-required" = true))]
    pub(crate) namespaces: Vec<String>,
}

fn in_cluster() -> String {
    IN_CLUSTER.to_owned()
}

impl MigrationsSection {
    fn runner(&self) -> Option<Runner> {
        let limit = u32::try_from(self.limit.get().as_secs()).unwrap_or(u32::MAX);
        Some(Runner { image: self.image.clone()?, tls: self.sslmode.clone(), limit })
    }
}

impl Config {
    /// What is rendered with, if it is said where anything is. The configuration was checked.
    pub(crate) fn render_settings(&self) -> Option<Settings> {
        let section = &self.render;
        if section.destinations.is_empty() {
            return None;
        }
        let destinations = section.destinations.iter().map(|place| {
            Some(Destination {
                environment: EnvironmentName::parse(&place.environment).ok()?,
                server: place.server.clone(),
                namespaces: place.namespaces.clone(),
            })
        });
        Some(Settings {
            gitea: section.gitea_url.as_ref().unwrap_or(&self.gitea.url).clone(),
            repo: RepoName::parse(&self.gitea.apps_repo).ok()?,
            branch: self.gitea.apps_branch.clone(),
            argocd_namespace: section.argocd_namespace.clone(),
            root: section.root.clone(),
            project: section.project.clone(),
            source: SourceForm::parse(&section.source)?,
            destinations: destinations.collect::<Option<_>>()?,
            runner: section.migrations.runner(),
        })
    }
}

pub(super) fn check(config: &Config, problems: &mut Problems) {
    let section = &config.render;
    let url = section.gitea_url.as_deref().is_none_or(is_http);
    problems.need(
        url,
        "render.gitea_url",
        "not an http(s) URL without credentials",
        "write http://gitea:3000/",
    );
    let names = [
        ("render.argocd_namespace", &section.argocd_namespace),
        ("render.root", &section.root),
        ("render.project", &section.project),
    ];
    for (key, name) in names {
        problems.need(is_label(name), key, "not a name of Kubernetes", "use a-z, 0-9 and -, 63 at most");
    }
    let image = section.migrations.image.as_deref();
    let pinned = image.is_none_or(|image| {
        image.rsplit_once('@').is_some_and(|(name, digest)| {
            ImageRepository::parse(name).is_ok() && Digest::parse(digest).is_ok()
        })
    });
    let remedy = "write registry:80/fabrique@sha256:…: a tag can be moved";
    problems.need(pinned, "render.migrations.image", "not an image by digest", remedy);
    let unfit = match section.migrations.sslmode.as_str() {
        "disable" | "prefer" | "require" => None,
        "verify-ca" | "verify-full" => Some("needs the authority of the databases, and the Job has none"),
        _ => Some("no such mode"),
    };
    problems.need(unfit.is_none(), "render.migrations.sslmode", unfit.unwrap_or_default(), "write require");
    let source = SourceForm::parse(&section.source).is_some();
    problems.need(source, "render.source", "no such form", "write copy or repository");
    let somewhere = !section.enabled || !section.destinations.is_empty();
    let remedy = "list where environments are: { environment: prod, namespaces: [apps] }";
    problems.need(somewhere, "render.destinations", "no environment, and rendering is enabled", remedy);
    for (index, place) in section.destinations.iter().enumerate() {
        let key = |field: &str| format!("render.destinations.{index}.{field}");
        let name = &place.environment;
        let parsed = EnvironmentName::parse(name).is_ok();
        problems.need(parsed, &key("environment"), "not the name of an environment", "write prod");
        let twice = section.destinations.iter().take(index).any(|other| other.environment == *name);
        problems.need(!twice, &key("environment"), "listed twice", "keep one");
        problems.need(
            is_http(&place.server),
            &key("server"),
            "not a URL",
            "write https://kubernetes.default.svc",
        );
        let some = !place.namespaces.is_empty();
        problems.need(some, &key("namespaces"), "no namespace", "list at least one, like apps");
        for namespace in &place.namespaces {
            let refused = Settings::refuses(&section.argocd_namespace, namespace);
            let what = format!("{namespace} {}", refused.unwrap_or_default());
            problems.need(refused.is_none(), &key("namespaces"), &what, "name a namespace of apps");
        }
    }
}
