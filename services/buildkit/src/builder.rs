//! One build: a session, a status stream and a solve on one connection.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard_buildkit_proto::moby::buildkit::v1::{
    InfoRequest, ListWorkersRequest, SolveResponse, StatusRequest, StatusResponse,
};
use fabrique_core::build::BuildInputs;
use fabrique_core::failure::FailureKind;
use fabrique_ports::PortResult;
use fabrique_ports::builder::{
    BuildFailure, BuildOutcome, BuildRequest, Builder, Daemon, DaemonInfo, Progress, ProgressSink, Proxy,
};
use fabrique_ports::registry::Registry;
use secrecy::SecretString;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status, Streaming};
use uuid::Uuid;

use crate::base;
use crate::channel::{Control, Dialer};
use crate::config::{BuildkitConfig, LogLimits, Patience};
use crate::digest::{exported_cache, pushed_digest};
use crate::dockerfile;
use crate::egress::Egress;
use crate::error::BuildkitError;
use crate::failure::{self, Verdict, judge};
use crate::fetches::Told;
use crate::handshake::Handshake;
use crate::policy::Permitted;
use crate::redact::Redactor;
use crate::secrets::DirectorySecrets;
use crate::session::{Answers, Session};
use crate::solve::{Extras, GitBase, solve_request};
use crate::status::Steps;
use crate::version::{FLOOR, Version};
use crate::vouched::Vouched;

/// The worker label that names the snapshotter.
const SNAPSHOTTER: &str = "org.mobyproject.buildkit.worker.snapshotter";

/// Builds on BuildKit daemons. Holds no connections: each build opens its own.
pub struct BuildkitBuilder {
    dialer: Dialer,
    floor: Version,
    vouched: Vouched,
    git: GitBase,
    default_token: Option<SecretString>,
    /// By organisation in lower case.
    tokens: BTreeMap<String, SecretString>,
    permitted: Permitted,
    secrets: Option<DirectorySecrets>,
    registry: Option<Arc<dyn Registry>>,
    logs: LogLimits,
    extras: Extras,
    patience: Patience,
}

impl BuildkitBuilder {
    /// A builder after `config`.
    ///
    /// # Errors
    /// When the git base URL or a permitted registry or host cannot be used.
    pub fn new(config: BuildkitConfig) -> Result<Self, BuildkitError> {
        let tokens = config.git_tokens.into_iter();
        Ok(Self {
            git: GitBase::new(&config.git_base)?,
            permitted: Permitted::new(
                &config.permitted_bases,
                &config.permitted_hosts,
                &config.permitted_hosts_of,
            )?,
            dialer: Dialer { tls: config.tls, connect: config.patience.connect },
            floor: config.floor,
            vouched: Vouched::default(),
            default_token: config.git_token,
            tokens: tokens.map(|(org, token)| (org.to_ascii_lowercase(), token)).collect(),
            secrets: config.secrets_dir.map(DirectorySecrets::new),
            registry: None,
            logs: config.logs,
            extras: Extras {
                provenance: config.provenance,
                cache: config.cache,
                step_processes: config.step_processes,
            },
            patience: config.patience,
        })
    }

    /// Asks `registry` whether a base image that could not be resolved exists. Without it the daemon's words
    /// decide whose fault that is.
    #[must_use]
    pub fn with_registry(mut self, registry: Arc<dyn Registry>) -> Self {
        self.registry = Some(registry);
        self
    }

    fn answers(&self, request: &BuildRequest, redactor: &Redactor) -> Answers {
        let own = self.tokens.get(&request.inputs.repo.org().to_ascii_lowercase());
        let token = own.or(self.default_token.as_ref());
        Answers {
            git: token.map(|token| (format!("GIT_AUTH_TOKEN.{}", self.git.host()), token.clone())),
            app: request.app.clone(),
            names: request.inputs.secrets.iter().cloned().collect(),
            store: self.secrets.clone(),
            redactor: redactor.clone(),
        }
    }

    fn start(
        &self,
        control: &Control,
        request: &BuildRequest,
        proxy: Option<&Proxy>,
        progress: Arc<dyn ProgressSink>,
    ) -> Run {
        let redactor = Redactor::default();
        let egress = self.permitted.egress(&request.app);
        let session = Session::open(control.clone(), self.answers(request, &redactor), egress.clone());
        let reference = Uuid::new_v4().simple().to_string();
        let source = self.git.source(&request.inputs.repo, &request.inputs.revision, &request.inputs.context);
        let mut solve =
            solve_request(request, &source, &self.permitted, self.extras, &reference, session.id());
        if let Some(proxy) = proxy {
            crate::proxy::tell(&mut solve.frontend_attrs, proxy);
        }
        let (mut solving, mut watching) = (control.clone(), control.clone());
        Run {
            // The daemon waits 6 s for the reference that a status asks for, so neither call waits for the other.
            solve: Some(Box::pin(async move { solving.solve(solve).await })),
            status: Updates::Opening(Box::pin(async move {
                watching.status(StatusRequest { r#ref: reference }).await
            })),
            steps: Steps::new(self.logs, redactor.clone()),
            session,
            egress,
            redactor,
            progress,
            patience: self.patience,
        }
    }

    async fn settle(
        &self,
        ending: Ending,
        run: Run,
        daemon: &Daemon,
        limit: Duration,
    ) -> PortResult<BuildOutcome> {
        let failed = |kind, message: String| {
            let log_tail = run.steps.stopped_tail();
            Ok(BuildOutcome::Failed(BuildFailure { log_tail, ..BuildFailure::new(kind, message) }))
        };
        match ending {
            Ending::Solved(Ok(answer)) => {
                if let Some(digest) = exported_cache(&answer.exporter_response) {
                    run.progress.report(Progress::CacheExported { digest });
                }
                match pushed_digest(&answer.exporter_response) {
                    Ok(digest) => Ok(BuildOutcome::Pushed(digest)),
                    Err(problem) => {
                        Err(BuildkitError::Digest { daemon: daemon.name.clone(), problem }.into())
                    }
                }
            }
            Ending::Solved(Err(status)) => {
                let mut failure =
                    match judge(&status, &run.steps, &run.redactor, &self.permitted, &daemon.name) {
                        Verdict::Known(failure) => failure,
                        Verdict::Base { reference, failure } => {
                            let registry = self.registry.as_deref();
                            base::settle(&reference, failure, registry, self.patience.base).await
                        }
                    };
                if failure.kind == FailureKind::Source
                    && let Some(remedy) = run.egress.remedy(&run.redactor)
                {
                    failure.message = format!("{}; {remedy}", failure.message);
                }
                Ok(BuildOutcome::Failed(failure))
            }
            Ending::Cancelled => Ok(BuildOutcome::Cancelled),
            Ending::TimedOut => {
                failed(FailureKind::Source, format!("took longer than its timeout of {}", Span(limit)))
            }
            Ending::Silent => failed(
                FailureKind::Infrastructure,
                format!("build daemon {} was silent for {}", daemon.name, Span(self.patience.silence)),
            ),
        }
    }

    /// Asks a daemon whether builds may be sent to it, for those who want to know before the first one.
    ///
    /// # Errors
    /// [`BuildkitError::TooOld`] below the floor; any other when it does not answer.
    pub async fn admit(&self, daemon: &Daemon) -> Result<(), BuildkitError> {
        self.admitted(daemon).await.map(drop)
    }

    /// A connection to a daemon that may be used: what those below the floor are known to let a Dockerfile do is
    /// not to be found out by an app. Asked once a daemon; daemons in pods come and go all the time.
    async fn admitted(&self, daemon: &Daemon) -> Result<Control, BuildkitError> {
        let control = self.dialer.dial(daemon).await.inspect_err(|_| self.vouched.forget(daemon))?;
        if !self.vouched.knows(daemon) {
            let version = self.version(daemon, control.clone()).await?;
            let new_enough = |version: Version| version.supported() && version.reaches(self.floor);
            if !Version::parse(&version).is_some_and(new_enough) {
                let (daemon, floor) = (daemon.name.clone(), self.floor);
                return Err(BuildkitError::TooOld { daemon, version, floor });
            }
            self.vouched.add(daemon);
        }
        Ok(control)
    }

    /// The version as the daemon prints it.
    async fn version(&self, daemon: &Daemon, mut control: Control) -> Result<String, BuildkitError> {
        let info = self.ask(daemon, "its version", control.info(InfoRequest {})).await?;
        Ok(info.buildkit_version.map(|version| version.version).unwrap_or_default())
    }

    /// One call about the daemon itself, in time.
    async fn ask<T>(
        &self,
        daemon: &Daemon,
        what: &'static str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, BuildkitError> {
        let (name, limit) = (daemon.name.clone(), self.patience.probe);
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(match Handshake::of(&status) {
                Some(handshake) => {
                    BuildkitError::Handshake { daemon: name, address: daemon.address.clone(), handshake }
                }
                None => BuildkitError::Call { daemon: name, what, status: Box::new(status) },
            }),
            Err(_) => Err(BuildkitError::Slow { daemon: name, what, limit }),
        }
    }
}

#[async_trait]
impl Builder for BuildkitBuilder {
    async fn build(
        &self,
        daemon: &Daemon,
        request: &BuildRequest,
        progress: Arc<dyn ProgressSink>,
        cancel: CancellationToken,
    ) -> PortResult<BuildOutcome> {
        let deadline = Instant::now() + request.timeout;
        let control = tokio::select! {
            control = self.admitted(daemon) => control?,
            () = cancel.cancelled() => return Ok(BuildOutcome::Cancelled),
        };
        let mut run = self.start(&control, request, daemon.proxy.as_ref(), progress);
        let ending = run.until_the_end(deadline, &cancel).await;
        run.wind_up().await;
        let outcome = self.settle(ending, run, daemon, request.timeout).await;
        match &outcome {
            Ok(BuildOutcome::Pushed(_) | BuildOutcome::Cancelled) => {}
            Ok(BuildOutcome::Failed(failure)) if failure.kind == FailureKind::Source => {}
            // Another daemon may have this address next.
            Ok(BuildOutcome::Failed(_)) | Err(_) => self.vouched.forget(daemon),
        }
        outcome
    }

    fn refuses(&self, inputs: &BuildInputs, dockerfile: &str) -> Option<BuildFailure> {
        let mut images = dockerfile::needed(dockerfile, inputs).into_iter();
        let refused = images.find(|image| !self.permitted.allows_image(&image.reference))?;
        Some(failure::refused(&refused, &self.permitted, inputs.dockerfile.as_str()))
    }

    async fn probe(&self, daemon: &Daemon) -> PortResult<DaemonInfo> {
        let control = self.dialer.dial(daemon).await?;
        let mut listing = control.clone();
        let (text, workers) = tokio::try_join!(
            self.version(daemon, control),
            self.ask(daemon, "its workers", listing.list_workers(ListWorkersRequest { filter: vec![] })),
        )?;
        let version = Version::parse(&text);
        if version.is_none() {
            tracing::warn!(
                daemon = daemon.name,
                version = text,
                "cannot tell whether it is at least {FLOOR}"
            );
        }
        let worker = workers.record.into_iter().next().unwrap_or_default();
        let platforms = worker.platforms.iter().map(|platform| {
            let parts = [&platform.os, &platform.architecture, &platform.variant];
            parts.into_iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/")
        });
        Ok(DaemonInfo {
            supported: version.is_some_and(Version::supported),
            version: text,
            snapshotter: worker.labels.get(SNAPSHOTTER).cloned(),
            platforms: platforms.collect(),
        })
    }
}

/// A call under way; dropping it cancels it at the daemon too.
type Call<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// How the waiting ended.
enum Ending {
    Solved(Result<SolveResponse, Status>),
    Cancelled,
    TimedOut,
    Silent,
}

/// A build under way.
struct Run {
    /// Dropping it cancels the build at the daemon.
    solve: Option<Call<SolveResponse>>,
    status: Updates,
    steps: Steps,
    session: Session,
    egress: Egress,
    redactor: Redactor,
    progress: Arc<dyn ProgressSink>,
    patience: Patience,
}

impl Run {
    async fn until_the_end(&mut self, deadline: Instant, cancel: &CancellationToken) -> Ending {
        let mut cancelled_at = None;
        let ending = loop {
            let Some(solve) = self.solve.as_mut() else { break Ending::Cancelled };
            // Once the manifest is on its way the image is as good as pushed, and the caller wants its digest; but
            // a registry that hangs must not hold up a cancellation.
            let grace = if self.steps.pushing() { self.patience.ending } else { Duration::ZERO };
            tokio::select! {
                biased;
                answer = solve => break Ending::Solved(answer.map(Response::into_inner)),
                update = self.status.next() => self.apply(update),
                () = stopped(cancel, &mut cancelled_at, grace) => break Ending::Cancelled,
                () = tokio::time::sleep_until(deadline) => break Ending::TimedOut,
                () = self.session.silent(self.patience.silence) => break Ending::Silent,
            }
        };
        self.solve = None;
        ending
    }

    /// Reads the rest of the stream, which ends when the daemon is done with the build: the last lines, or, after
    /// a cancellation, that its steps have stopped.
    async fn wind_up(&mut self) {
        let until = Instant::now() + self.patience.ending;
        while !self.status.ended() {
            match tokio::time::timeout_at(until, self.status.next()).await {
                Ok(update) => self.apply(update),
                Err(_) => {
                    tracing::warn!("the daemon did not end the build's output in time");
                    break;
                }
            }
        }
        let rest = self.steps.finish();
        let refused = self.egress.told(&self.redactor).into_iter().map(|line| Progress::Log { line });
        let Told { fetches, left_out } = self.egress.fetched(self.steps.proxied(), &self.redactor);
        let egress = Progress::Egress { fetches, left_out };
        rest.into_iter().chain(refused).chain([egress]).for_each(|report| self.progress.report(report));
    }

    fn apply(&mut self, update: Option<StatusResponse>) {
        let Some(update) = update else { return };
        update.vertexes.iter().for_each(|vertex| self.egress.saw(vertex));
        for report in self.steps.apply(update) {
            self.progress.report(report);
        }
    }
}

/// Ends `grace` after the token was cancelled, which `since` remembers from one call to the next.
async fn stopped(cancel: &CancellationToken, since: &mut Option<Instant>, grace: Duration) {
    cancel.cancelled().await;
    let since = *since.get_or_insert_with(Instant::now);
    if !grace.is_zero() {
        tokio::time::sleep_until(since + grace).await;
    }
}

/// The status stream. It is for people and for the failure's last lines: that it breaks does not fail a build.
enum Updates {
    Opening(Call<Streaming<StatusResponse>>),
    Open(Box<Streaming<StatusResponse>>),
    Ended,
}

impl Updates {
    /// The next update; never ends once the stream has, so that a select does not spin.
    async fn next(&mut self) -> Option<StatusResponse> {
        let outcome = match self {
            Self::Opening(call) => match call.await {
                Ok(stream) => {
                    *self = Self::Open(Box::new(stream.into_inner()));
                    return None;
                }
                Err(status) => Err(status),
            },
            Self::Open(stream) => stream.message().await,
            Self::Ended => std::future::pending().await,
        };
        match outcome {
            Ok(Some(update)) => return Some(update),
            Ok(None) => {}
            Err(status) => tracing::debug!(error = status.message(), "the status stream broke"),
        }
        *self = Self::Ended;
        None
    }

    fn ended(&self) -> bool {
        matches!(self, Self::Ended)
    }
}

/// A duration as people write it: `30m`, `1m 30s`, `500ms`.
struct Span(Duration);

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, millis) = (self.0.as_secs(), self.0.subsec_millis());
        match (seconds / 60, seconds % 60) {
            (0, 0) => write!(f, "{millis}ms"),
            (0, seconds) => write!(f, "{seconds}s"),
            (minutes, 0) => write!(f, "{minutes}m"),
            (minutes, seconds) => write!(f, "{minutes}m {seconds}s"),
        }
    }
}
