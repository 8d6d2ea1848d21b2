//! Builds on leased daemons, with the driver that the product uses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabrique_bed::GitRepo;
use fabrique_buildkit::{BuildkitBuilder, BuildkitConfig, IssueTls, IssuedTls, Tls};
use fabrique_core::build::BuildInputs;
use fabrique_core::id::{AppName, BuildId, BuildKey, ImageRepository, RelPath, RepoName, Revision};
use fabrique_kubernetes::network::{AllowList, Egress};
use fabrique_kubernetes::pki::ClientCertificates;
use fabrique_ports::Ambient;
use fabrique_ports::builder::{
    BuildFailure, BuildOutcome, BuildRequest, Builder, Daemon, Progress, ProgressSink,
};
use fabrique_ports::egress::Fetch;
use tokio_util::sync::CancellationToken;

use crate::ground::{Ground, Machine};

/// A private repository of its own organisation, and the way to have it built.
pub(crate) struct Workshop {
    pub(crate) token: String,
    org: String,
    git: GitRepo,
    git_base: String,
    certificates: Arc<Issuer>,
}

impl Workshop {
    pub(crate) async fn new(ground: &Ground) -> Self {
        let org = ground.namespace.replace("builders-", "org");
        let gitea = ground.cluster.gitea();
        gitea.create_org(&org).await.unwrap();
        gitea.create_repo(&org, "citation", true).await.unwrap();
        let git = GitRepo::clone(&gitea.clone_url_with_token(&org, "citation")).await.unwrap();
        Self {
            token: gitea.admin_token().to_owned(),
            org,
            git,
            git_base: gitea.base_url(),
            certificates: Arc::new(Issuer(ground.certificates())),
        }
    }

    /// A builder whose builds may fetch from `hosts`.
    pub(crate) fn builder(&self, hosts: &[&str]) -> BuildkitBuilder {
        let mut config = self.config();
        config.permitted_hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        BuildkitBuilder::new(config).unwrap()
    }

    /// A builder whose builds may fetch from what this list says, each app's own among it.
    pub(crate) fn builder_of(&self, list: &AllowList) -> BuildkitBuilder {
        let mut config = self.config();
        config.permitted_hosts = list.hosts.iter().map(Egress::authority).collect();
        let own = list.apps.iter();
        let own = own.map(|(app, own)| (app.clone(), own.hosts.iter().map(Egress::authority).collect()));
        config.permitted_hosts_of = own.collect();
        BuildkitBuilder::new(config).unwrap()
    }

    /// How this workshop's builders are configured, to be varied.
    pub(crate) fn config(&self) -> BuildkitConfig {
        let mut config = BuildkitConfig::new(self.git_base.parse().unwrap());
        config.git_tokens = BTreeMap::from([
            (self.org.clone(), self.token.clone().into()),
            ("other".to_owned(), "the token of somebody else".into()),
        ]);
        config.permitted_bases = vec!["registry:80".into()];
        config.tls = Some(Tls::Issued(Arc::clone(&self.certificates) as _));
        config
    }

    /// Commits a Dockerfile and asks for it to be built for `app`.
    pub(crate) async fn dockerfile(&self, app: &str, content: &str) -> BuildRequest {
        self.git.write("Dockerfile", content).await.unwrap();
        let revision = self.git.commit("Change").await.unwrap();
        self.git.push().await.unwrap();
        BuildRequest {
            build: BuildId::parse(&format!("{app}-01k0000000000000000000000a")).unwrap(),
            key: BuildKey::parse(&"ab".repeat(32)).unwrap(),
            app: AppName::parse(app).unwrap(),
            inputs: BuildInputs {
                repo: RepoName::parse(&format!("{}/citation", self.org)).unwrap(),
                revision: Revision::parse(&revision).unwrap(),
                context: RelPath::root(),
                dockerfile: RelPath::parse("Dockerfile").unwrap(),
                target: None,
                args: BTreeMap::new(),
                secrets: vec![],
                platforms: vec![],
                rebuild: 0,
            },
            image: ImageRepository::parse(&format!("registry:80/{}/{app}", self.org)).unwrap(),
            no_cache: false,
            cache: None,
            registry_cache: None,
            epoch: 1_760_000_000,
            timeout: Duration::from_secs(180),
        }
    }

    /// Has a Dockerfile built and says how it ended, and everything it printed.
    pub(crate) async fn build(
        &self,
        builder: &BuildkitBuilder,
        daemon: &Daemon,
        app: &str,
        dockerfile: &str,
    ) -> (BuildOutcome, String) {
        let recorder = Arc::new(Recorder::default());
        let outcome = self.build_telling(builder, daemon, app, dockerfile, &recorder).await;
        (outcome, recorder.output())
    }

    /// The same, and what it prints can be read meanwhile.
    pub(crate) async fn build_telling(
        &self,
        builder: &BuildkitBuilder,
        daemon: &Daemon,
        app: &str,
        dockerfile: &str,
        recorder: &Arc<Recorder>,
    ) -> BuildOutcome {
        let request = self.dockerfile(app, dockerfile).await;
        let built = builder.build(daemon, &request, recorder.clone(), CancellationToken::new());
        built.await.unwrap()
    }

    pub(crate) async fn failed(
        &self,
        builder: &BuildkitBuilder,
        daemon: &Daemon,
        app: &str,
        dockerfile: &str,
    ) -> (BuildFailure, String) {
        match self.build(builder, daemon, app, dockerfile).await {
            (BuildOutcome::Failed(failure), output) => (failure, output),
            (other, output) => panic!("not failed but {other:?}\n{output}"),
        }
    }

    /// What a Dockerfile that builds prints.
    pub(crate) async fn output(
        &self,
        builder: &BuildkitBuilder,
        daemon: &Daemon,
        app: &str,
        dockerfile: &str,
    ) -> String {
        match self.build(builder, daemon, app, dockerfile).await {
            (BuildOutcome::Pushed(_), output) => output,
            (other, output) => panic!("not pushed but {other:?}\n{output}"),
        }
    }
}

/// The lines that a build printed, and what it fetched.
#[derive(Default)]
pub(crate) struct Recorder {
    lines: Mutex<Vec<String>>,
    fetched: Mutex<Vec<Fetch>>,
}

impl ProgressSink for Recorder {
    fn report(&self, progress: Progress) {
        match progress {
            Progress::Log { line } => self.lines.lock().unwrap().push(line),
            Progress::Egress { fetches, .. } => {
                self.fetched.lock().unwrap().extend(fetches.into_iter().map(|(_, fetch)| fetch));
            }
            Progress::StepStarted { .. } | Progress::StepEnded { .. } | Progress::CacheExported { .. } => {}
        }
    }
}

impl Recorder {
    pub(crate) fn output(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    pub(crate) fn fetched(&self) -> Vec<Fetch> {
        self.fetched.lock().unwrap().clone()
    }
}

#[derive(Debug)]
struct Issuer(ClientCertificates);

impl IssueTls for Issuer {
    fn issue(&self) -> Result<IssuedTls, String> {
        let identity = self.0.current(Machine.now()).map_err(|error| error.to_string())?;
        let ca = self.0.authority().to_owned();
        Ok(IssuedTls { ca, cert: identity.certificate, key: identity.key })
    }
}
