//! What every live test needs: a repository with a Dockerfile, a request for it, and a sink that remembers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fabrique_bed::{Bed, Buildkit, GitRepo};
use fabrique_buildkit::{BuildkitBuilder, BuildkitConfig};
use fabrique_core::build::BuildInputs;
use fabrique_core::id::{
    AppName, BuildId, BuildKey, Digest, ImageRepository, Platform, RelPath, RepoName, Revision,
};
use fabrique_ports::builder::{
    BuildFailure, BuildOutcome, BuildRequest, Builder, Daemon, Progress, ProgressSink,
};
use fabrique_ports::egress::Fetch;
use fabrique_ports::registry::Registry;
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use tokio_util::sync::CancellationToken;

/// Everything that a build reported.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Vec<Progress>>);

impl ProgressSink for Recorder {
    fn report(&self, progress: Progress) {
        self.0.lock().unwrap().push(progress);
    }
}

impl Recorder {
    pub(crate) fn all(&self) -> Vec<Progress> {
        self.0.lock().unwrap().clone()
    }

    /// Names, errors and lines, one below the other.
    pub(crate) fn text(&self) -> String {
        let shown = self.all().into_iter().map(|progress| match progress {
            Progress::StepStarted { name } => format!("> {name}"),
            Progress::StepEnded { name, cached, error, .. } => format!("< {name} cached={cached} {error:?}"),
            Progress::Log { line } => format!("  {line}"),
            Progress::CacheExported { digest } => format!("cache {digest}"),
            Progress::Egress { fetches, left_out } => format!("fetched {fetches:?} and {left_out} more"),
        });
        shown.collect::<Vec<_>>().join("\n")
    }

    /// What was fetched, once.
    pub(crate) fn fetched(&self) -> Vec<Fetch> {
        let told = |progress| match progress {
            Progress::Egress { fetches, left_out: 0 } => Some(fetches),
            _ => None,
        };
        let [fetches] =
            <[_; 1]>::try_from(self.all().into_iter().filter_map(told).collect::<Vec<_>>()).unwrap();
        fetches.into_iter().map(|(_, fetch)| fetch).collect()
    }

    pub(crate) fn logged(&self, line: &str) -> bool {
        self.all().contains(&Progress::Log { line: line.to_owned() })
    }
}

/// A private repository of its own organisation.
pub(crate) struct Source<'a> {
    pub(crate) bed: &'a Bed,
    pub(crate) org: String,
    pub(crate) git: GitRepo,
}

impl<'a> Source<'a> {
    pub(crate) async fn new(bed: &'a Bed) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let org = format!("atlas{}", COUNT.fetch_add(1, Ordering::Relaxed));
        bed.gitea().create_org(&org).await.unwrap();
        bed.gitea().create_repo(&org, "citation", true).await.unwrap();
        let git = GitRepo::clone(&bed.gitea().clone_url_with_token(&org, "citation")).await.unwrap();
        Self { bed, org, git }
    }

    /// Commits a Dockerfile at the root, pushes, and asks for it to be built.
    pub(crate) async fn dockerfile(&self, content: &str) -> BuildRequest {
        self.git.write("Dockerfile", content).await.unwrap();
        self.pushed().await
    }

    /// Commits and pushes what was written, and asks for it to be built.
    pub(crate) async fn pushed(&self) -> BuildRequest {
        let revision = self.git.commit("Change").await.unwrap();
        self.git.push().await.unwrap();
        self.request(&revision)
    }

    pub(crate) fn request(&self, revision: &str) -> BuildRequest {
        let image = format!("{}/{}", self.bed.registry().host(), self.org);
        BuildRequest {
            build: BuildId::parse("citation-01k0000000000000000000000a").unwrap(),
            key: BuildKey::parse(&"ab".repeat(32)).unwrap(),
            app: AppName::parse("citation").unwrap(),
            inputs: BuildInputs {
                repo: RepoName::parse(&format!("{}/citation", self.org)).unwrap(),
                revision: Revision::parse(revision).unwrap(),
                context: RelPath::root(),
                dockerfile: RelPath::parse("Dockerfile").unwrap(),
                target: None,
                args: BTreeMap::new(),
                secrets: vec![],
                platforms: vec![Platform::parse("linux/amd64").unwrap()],
                rebuild: 0,
            },
            image: ImageRepository::parse(&image).unwrap(),
            no_cache: false,
            cache: None,
            registry_cache: None,
            epoch: 1_760_000_000,
            timeout: Duration::from_secs(120),
        }
    }
}

/// What a daemon of the bed is called.
pub(crate) fn daemon(buildkit: &Buildkit) -> Daemon {
    Daemon {
        name: buildkit.peer().name().to_owned(),
        address: buildkit.address(),
        tls_name: None,
        isolation: None,
        proxy: None,
    }
}

/// The bed's forge with a token, and its registry for base images.
pub(crate) fn config(bed: &Bed) -> BuildkitConfig {
    let mut config = BuildkitConfig::new(bed.gitea().base_url().parse().unwrap());
    config.git_token = Some(bed.gitea().admin_token().into());
    config.permitted_bases = vec![bed.registry().host()];
    config
}

pub(crate) fn builder(bed: &Bed) -> BuildkitBuilder {
    BuildkitBuilder::new(config(bed)).unwrap().with_registry(Arc::new(Asked(bed.registry().base_url())))
}

/// A build with a sink of its own.
pub(crate) async fn build(
    builder: &BuildkitBuilder,
    buildkit: &Buildkit,
    request: &BuildRequest,
) -> (BuildOutcome, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let outcome =
        builder.build(&daemon(buildkit), request, recorder.clone(), CancellationToken::new()).await.unwrap();
    (outcome, recorder)
}

pub(crate) async fn pushed(
    builder: &BuildkitBuilder,
    buildkit: &Buildkit,
    request: &BuildRequest,
) -> (Digest, Arc<Recorder>) {
    match build(builder, buildkit, request).await {
        (BuildOutcome::Pushed(digest), recorder) => (digest, recorder),
        (other, recorder) => panic!("not pushed but {other:?}\n{}", recorder.text()),
    }
}

pub(crate) async fn failed(
    builder: &BuildkitBuilder,
    buildkit: &Buildkit,
    request: &BuildRequest,
) -> (BuildFailure, Arc<Recorder>) {
    match build(builder, buildkit, request).await {
        (BuildOutcome::Failed(failure), recorder) => (failure, recorder),
        (other, recorder) => panic!("not failed but {other:?}\n{}", recorder.text()),
    }
}

/// The registry's answer over plain HTTP: the least of a client, since adapters do not know each other.
pub(crate) struct Asked(pub(crate) String);

#[async_trait]
impl Registry for Asked {
    async fn has(&self, image: &ImageRepository, digest: &Digest) -> PortResult<bool> {
        self.resolve(image, digest.as_str()).await.map(|found| found.is_some())
    }

    async fn resolve(&self, image: &ImageRepository, tag: &str) -> PortResult<Option<Digest>> {
        let unreachable = |_| PortError::new(Peer::Registry, Fault::Transient, "unreachable");
        let url = format!("{}/v2/{}/manifests/{tag}", self.0, image.name());
        let accept = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json";
        let answer = reqwest::Client::new().head(url).header("Accept", accept).send().await;
        let answer = answer.map_err(unreachable)?;
        let digest = answer.headers().get("Docker-Content-Digest").and_then(|value| value.to_str().ok());
        Ok(digest.filter(|_| answer.status().is_success()).and_then(|digest| Digest::parse(digest).ok()))
    }

    async fn tag(&self, _: &ImageRepository, _: &Digest, _: &str) -> PortResult<()> {
        unreachable!("a builder sets no tags")
    }

    async fn ping(&self, _: &str) -> PortResult<()> {
        unreachable!("a builder pings nobody")
    }
}
