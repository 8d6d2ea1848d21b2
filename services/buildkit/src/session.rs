//! The session: a tunnel through which the daemon calls back.
//!
//! `Session` carries raw bytes both ways; inside them the daemon is the gRPC *client* and we are the server. It
//! must serve the health check, or the daemon hangs up after two failed ones (checked every 5 s), it answers
//! secrets, and it judges what is fetched. Everything else stays unimplemented: no files of ours, no registry credentials, no ssh agent.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use bollard_buildkit_proto::health::health_check_response::ServingStatus;
use bollard_buildkit_proto::health::health_server::{Health, HealthServer};
use bollard_buildkit_proto::health::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use bollard_buildkit_proto::moby::buildkit::secrets::v1::secrets_server::{Secrets, SecretsServer};
use bollard_buildkit_proto::moby::buildkit::secrets::v1::{GetSecretRequest, GetSecretResponse};
use bollard_buildkit_proto::moby::buildkit::v1::BytesMessage;
use fabrique_core::id::{AppName, SecretName};
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt};
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

use crate::channel::Control;
use crate::egress::{self, Egress};
use crate::redact::Redactor;
use crate::secrets::DirectorySecrets;

const METHODS: [&str; 3] =
    ["/grpc.health.v1.Health/Check", "/moby.buildkit.secrets.v1.Secrets/GetSecret", egress::METHOD];
const BUFFER: usize = 64 * 1024;

/// An open tunnel; dropping it closes it.
pub(crate) struct Session {
    id: String,
    heard: watch::Receiver<Instant>,
    _pump: AbortOnDropHandle<()>,
}

impl Session {
    /// Starts a tunnel without waiting for it: the daemon waits for the session that a solve names, so the two
    /// calls can travel together.
    pub(crate) fn open(control: Control, answers: Answers, egress: Egress) -> Self {
        let id = Uuid::new_v4().simple().to_string();
        let (hear, heard) = watch::channel(Instant::now());
        let pump = tokio::spawn(pump(control, id.clone(), (answers, egress), hear));
        Self { id, heard, _pump: AbortOnDropHandle::new(pump) }
    }

    /// The id that a solve names.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Ends when the daemon has not sent anything for `limit`.
    pub(crate) async fn silent(&self, limit: Duration) {
        loop {
            let until = *self.heard.borrow() + limit;
            tokio::time::sleep_until(until).await;
            if *self.heard.borrow() + limit <= Instant::now() {
                return;
            }
        }
    }
}

async fn pump(
    mut control: Control,
    id: String,
    (answers, egress): (Answers, Egress),
    hear: watch::Sender<Instant>,
) {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let (from_server, to_server) = tokio::io::split(ours);
    // The transport holds what is sent and the server holds the other end, each until the other lets go: without a
    // word from here both, and the connection with them, would outlive the session.
    let closed = CancellationToken::new();
    let _close = closed.clone().drop_guard();
    let outgoing = ReaderStream::with_capacity(from_server, BUFFER)
        .map_while(Result::ok)
        .map(|bytes| BytesMessage { data: bytes.into() });
    let outgoing = futures::StreamExt::take_until(outgoing, closed.cancelled_owned());
    let tunnel = async {
        match control.session(request(&id, outgoing)).await {
            Ok(incoming) => receive(incoming.into_inner(), to_server, &hear).await,
            Err(status) => Err(status),
        }
    };
    tokio::select! {
        served = serve(theirs, answers, egress) => {
            tracing::debug!(error = served.err().map(tracing::field::display), "session server ended");
        }
        ended = tunnel => {
            // The solve tells what matters; this only helps to understand it.
            tracing::debug!(error = ended.err().map(|status| status.message().to_owned()), "session ended");
        }
    }
}

fn request<S>(id: &str, outgoing: S) -> Request<S> {
    let mut request = Request::new(outgoing);
    let metadata = request.metadata_mut();
    if let Ok(id) = MetadataValue::<Ascii>::try_from(id) {
        metadata.insert("x-docker-expose-session-uuid", id);
    }
    metadata.insert("x-docker-expose-session-sharedkey", MetadataValue::from_static(""));
    for method in METHODS {
        metadata.append("x-docker-expose-session-grpc-method", MetadataValue::from_static(method));
    }
    request
}

async fn receive(
    mut incoming: Streaming<BytesMessage>,
    mut to_server: tokio::io::WriteHalf<DuplexStream>,
    hear: &watch::Sender<Instant>,
) -> Result<(), Status> {
    while let Some(message) = incoming.message().await? {
        hear.send_replace(Instant::now());
        if to_server.write_all(&message.data).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn serve(io: DuplexStream, answers: Answers, egress: Egress) -> Result<(), tonic::transport::Error> {
    // One connection, and then none: an incoming stream that ended would end the server with it.
    let connections = tokio_stream::once(Ok::<_, io::Error>(io)).chain(tokio_stream::pending());
    tonic::transport::Server::builder()
        .add_service(HealthServer::new(Healthy))
        .add_service(SecretsServer::new(answers))
        .add_service(egress)
        .serve_with_incoming(connections)
        .await
}

struct Healthy;

#[tonic::async_trait]
impl Health for Healthy {
    async fn check(
        &self,
        _request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() }))
    }

    async fn list(
        &self,
        _request: Request<HealthListRequest>,
    ) -> Result<Response<HealthListResponse>, Status> {
        Err(Status::unimplemented("list"))
    }

    type WatchStream = std::pin::Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        _request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("watch"))
    }
}

/// What one build's session answers.
pub(crate) struct Answers {
    /// The id under which the daemon asks for the git token, and the token. Only the host-scoped id: the unscoped
    /// one is offered to every git URL that a Dockerfile names.
    pub(crate) git: Option<(String, SecretString)>,
    /// Whose secrets.
    pub(crate) app: AppName,
    /// Which of them this build may mount.
    pub(crate) names: BTreeSet<SecretName>,
    /// Where their values are.
    pub(crate) store: Option<DirectorySecrets>,
    /// Learns every value that was answered.
    pub(crate) redactor: Redactor,
}

impl Answers {
    async fn answer(&self, id: &str) -> Result<Vec<u8>, Status> {
        if let Some((_, token)) = self.git.as_ref().filter(|(git, _)| git == id) {
            let token = token.expose_secret().as_bytes();
            self.redactor.remember(token);
            // What git sends: BuildKit makes basic credentials of the token.
            self.redactor.remember(&[b"x-access-token:", token].concat());
            return Ok(token.to_vec());
        }
        let unknown = || Status::not_found(format!("no secret {id:?}"));
        let name = SecretName::parse(id).ok().filter(|name| self.names.contains(name)).ok_or_else(unknown)?;
        let store = self.store.as_ref().ok_or_else(unknown)?;
        match store.read(&self.app, &name).await {
            Ok(Some(value)) => {
                self.redactor.remember(value.expose_secret());
                Ok(value.expose_secret().to_vec())
            }
            Ok(None) => {
                tracing::warn!(app = %self.app, secret = %name, "the build asked for a secret that has no value");
                Err(unknown())
            }
            Err(error) => {
                tracing::warn!(app = %self.app, secret = %name, %error, "cannot read a build secret");
                Err(Status::unavailable(format!("secret {name} cannot be read")))
            }
        }
    }
}

#[tonic::async_trait]
impl Secrets for Answers {
    async fn get_secret(
        &self,
        request: Request<GetSecretRequest>,
    ) -> Result<Response<GetSecretResponse>, Status> {
        let data = self.answer(&request.into_inner().id).await?;
        Ok(Response::new(GetSecretResponse { data }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(dir: &std::path::Path) -> Answers {
        std::fs::create_dir_all(dir.join("citation")).unwrap();
        std::fs::write(dir.join("citation/pypi"), "p4ssw0rd").unwrap();
        std::fs::write(dir.join("citation/other"), "not for this build").unwrap();
        Answers {
            git: Some(("GIT_AUTH_TOKEN.gitea:3000".into(), "t0ken".into())),
            app: AppName::parse("citation").unwrap(),
            names: [SecretName::parse("pypi").unwrap()].into(),
            store: Some(DirectorySecrets::new(dir)),
            redactor: Redactor::default(),
        }
    }

    #[tokio::test]
    async fn answers_the_git_host_and_this_builds_secrets_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let answers = answers(dir.path());
        assert_eq!(answers.answer("GIT_AUTH_TOKEN.gitea:3000").await.unwrap(), b"t0ken");
        assert_eq!(answers.answer("pypi").await.unwrap(), b"p4ssw0rd");
        for foreign in
            ["GIT_AUTH_TOKEN", "GIT_AUTH_HEADER.gitea:3000", "GIT_AUTH_TOKEN.evil:3000", "other", "../x", ""]
        {
            let status = answers.answer(foreign).await.unwrap_err();
            assert_eq!(status.code(), tonic::Code::NotFound, "{foreign}");
        }
    }

    #[tokio::test]
    async fn what_was_answered_is_masked() {
        let dir = tempfile::tempdir().unwrap();
        let answers = answers(dir.path());
        answers.answer("pypi").await.unwrap();
        assert_eq!(answers.redactor.mask("it is p4ssw0rd".into()), "it is ***");
    }
}
