//! An app as its operator registered it (`apps/<app>/app.yaml`), and the desired state of one of its
//! environments (`apps/<app>/<environment>/composition.yaml`).
//!
//! These are the parsed forms. How they are spelled in YAML, with which defaults and which refusals, is
//! the business of `fabrique-gitops`.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{
    AppName, BranchName, BuildId, Channel, Digest, EnvironmentName, ImageRepository, Platform, RelPath,
    RepoName, Revision, SecretName, TrustDomain,
};
use crate::quantity::{Bytes, Millicores};
use crate::upstream::Upstream;

/// One registered app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct App {
    /// Its name, unique in `cluster/apps`.
    pub name: AppName,
    /// Where its source is.
    pub source: Source,
    /// The image it is pushed to; no two apps share one.
    pub image: ImageRepository,
    /// How it is built.
    pub build: BuildSpec,
    /// Where it runs. Without any, the app is built and never written back.
    pub environments: Vec<Environment>,
}

/// The branch of a repository that an app follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The repository on the configured forge.
    pub repo: RepoName,
    /// The branch.
    pub branch: BranchName,
    /// The app's declaration inside the repository, where it has one.
    pub declaration: Option<RelPath>,
    /// The folder of the app's migrations inside the repository, where it has one.
    pub migrations: Option<RelPath>,
    /// Where it is mirrored from and validated, where it is.
    pub upstream: Option<Upstream>,
}

/// Everything about the build that the registration decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildSpec {
    /// The directory sent as build context.
    pub context: RelPath,
    /// The Dockerfile, relative to the context.
    pub dockerfile: RelPath,
    /// The stage to build; the last one when absent.
    pub target: Option<String>,
    /// Build arguments. They are part of the image's history: never secrets.
    pub args: BTreeMap<String, String>,
    /// Names of the secrets that RUN steps may mount.
    pub secrets: Vec<SecretName>,
    /// Platforms to build for; several make an index.
    pub platforms: Vec<Platform>,
    /// Globs of the paths whose change asks for a build. The Dockerfile and the declaration are always
    /// watched; empty means everything below the context.
    pub watch: Vec<String>,
    /// The longest a build may take.
    pub timeout: Duration,
    /// The apps that share a daemon with this one.
    pub trust: TrustDomain,
    /// What builds get of their machine. No part of what decides an image.
    pub resources: BuildResources,
    /// Whether the results of its steps go to the registry and come from there; as configured when absent. No part of
    /// what decides an image either.
    pub registry_cache: Option<RegistryCache>,
}

impl BuildSpec {
    /// The Dockerfile's path from the root of the repository.
    #[must_use]
    pub fn dockerfile_in_repo(&self) -> RelPath {
        self.context.join(&self.dockerfile)
    }
}

/// What the builds of one app get of the machine they run on. What is absent is as configured for all apps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BuildResources {
    /// Processor time that is reserved.
    pub cpu: Option<Millicores>,
    /// Processor time that is never exceeded.
    pub cpu_limit: Option<Millicores>,
    /// Memory of the first attempt, reserved and never exceeded.
    pub memory: Option<Bytes>,
    /// After an attempt that ran out of memory the next one has twice as much, up to this.
    pub memory_limit: Option<Bytes>,
    /// Room on the machine's disk beside the cache.
    pub ephemeral_storage: Option<Bytes>,
}

/// What becomes of the results of a build's steps beside the daemon that made them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryCache {
    /// They stay on that daemon.
    Off,
    /// They are kept in the image's repository, and nothing is taken from there.
    Export,
    /// A daemon that lacks them takes what was kept before, and nothing is added.
    Import,
    /// They are kept there, and taken from there.
    Both,
}

impl RegistryCache {
    /// Every word, in the order in which people are told of them.
    pub const ALL: [Self; 4] = [Self::Off, Self::Export, Self::Import, Self::Both];

    /// The word in registrations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Export => "export",
            Self::Import => "import",
            Self::Both => "both",
        }
    }

    /// Whether results are kept.
    #[must_use]
    pub fn exports(self) -> bool {
        matches!(self, Self::Export | Self::Both)
    }

    /// Whether results are taken.
    #[must_use]
    pub fn imports(self) -> bool {
        matches!(self, Self::Import | Self::Both)
    }
}

/// A text that says nothing about the registry's cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of off, export, import, both")]
pub struct NotARegistryCache(String);

impl FromStr for RegistryCache {
    type Err = NotARegistryCache;
    fn from_str(text: &str) -> Result<Self, NotARegistryCache> {
        let word = Self::ALL.into_iter().find(|word| word.as_str() == text);
        word.ok_or_else(|| NotARegistryCache(text.to_owned()))
    }
}

/// One place where an app runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Its name, unique in the app.
    pub name: EnvironmentName,
    /// Where its image comes from.
    pub image: ImageFrom,
    /// Where its manifests come from.
    pub infra: InfraFrom,
    /// The places in its files that must show a channel's value.
    pub bindings: Vec<Binding>,
}

/// Where an environment's image comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageFrom {
    /// Every build of the newest target.
    Build,
    /// Promotion from another environment, by a person only.
    Environment(EnvironmentName),
}

/// Where an environment's manifests come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InfraFrom {
    /// Nothing is copied: people keep the files in `cluster/apps`.
    Files,
    /// The overlay at the head of the source's branch.
    Head(OverlaySource),
    /// The overlay at a revision that a person sets in the composition.
    Pinned(OverlaySource),
    /// Promotion from another environment, by a person only.
    Environment(EnvironmentName),
}

impl InfraFrom {
    /// The overlay that is copied from the app's repository, if any.
    #[must_use]
    pub fn overlay(&self) -> Option<&OverlaySource> {
        match self {
            InfraFrom::Head(overlay) | InfraFrom::Pinned(overlay) => Some(overlay),
            InfraFrom::Files | InfraFrom::Environment(_) => None,
        }
    }
}

/// A plain overlay in an app's repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlaySource {
    /// The repository on the configured forge.
    pub repo: RepoName,
    /// The overlay's directory.
    pub path: RelPath,
}

/// A place in a file of `apps/<app>/<environment>/` that must show a channel's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Whose value is shown.
    pub channel: Channel,
    /// The file, relative to the environment's directory.
    pub file: RelPath,
    /// The scalar, in the path language of `fabrique-gitops`: `images[name=registry:80/app].digest`.
    pub path: String,
    /// How the value is spelled there.
    pub form: BindingForm,
}

/// How a binding spells its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BindingForm {
    /// `sha256:…`
    Digest,
    /// `registry:80/app@sha256:…`
    Reference,
    /// `registry:80/app=registry:80/app@sha256:…`, the only safe entry of Argo CD's `kustomize.images`.
    KustomizeImage,
    /// The revision.
    Revision,
    /// The version: the chart's, or the image's for people.
    Version,
}

/// The desired state of one environment: the only place where an image and an infra meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Composition {
    /// The app.
    pub app: AppName,
    /// The environment.
    pub environment: EnvironmentName,
    /// The image channel.
    pub image: ImageState,
    /// The infra channel.
    pub infra: InfraState,
}

impl Composition {
    /// The deployed revisions that automation would move in `environment`, as its registration has it.
    pub fn followed(&self, environment: &Environment) -> impl Iterator<Item = &Revision> {
        let image = self.image.deployed.as_ref().filter(|_| environment.image == ImageFrom::Build);
        let infra = self.infra.deployed.as_ref().filter(|_| matches!(environment.infra, InfraFrom::Head(_)));
        [image.map(|image| &image.revision), infra.map(|infra| &infra.revision)].into_iter().flatten()
    }
}

/// The image channel of a composition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageState {
    /// What is deployed; nothing before the first build.
    pub deployed: Option<DeployedImage>,
    /// A person's word that automation leaves this channel alone.
    pub hold: Option<Hold>,
}

/// A deployed image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeployedImage {
    /// The image name.
    pub repository: ImageRepository,
    /// The deployed digest.
    pub digest: Digest,
    /// The source revision it was built from.
    pub revision: Revision,
    /// A version for people.
    pub version: Option<String>,
    /// The build that made it; absent when a person wrote the composition.
    pub build: Option<BuildId>,
}

/// The infra channel of a composition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InfraState {
    /// What is deployed; nothing before the first copy, and always nothing for [`InfraFrom::Files`].
    pub deployed: Option<DeployedInfra>,
    /// The chart that people chose, where the manifests name one.
    pub chart: Option<Chart>,
    /// A person's word that automation leaves this channel alone.
    pub hold: Option<Hold>,
}

/// A chart at a version. Nothing of it is copied: what installs it reads its version from a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chart {
    /// Where it is published, as whoever installs it names the place.
    pub repo: String,
    /// Its name there.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// Deployed manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeployedInfra {
    /// Where they were copied from.
    pub overlay: OverlaySource,
    /// At which revision.
    pub revision: Revision,
}

/// A channel that automation leaves alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Who said so.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when, RFC 3339; for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Until when, RFC 3339; without it, until released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}
