//! The door of Argo CD that webhooks come in by: whether it is there, and whose pushes it takes.
//!
//! Argo CD has no parser for Gitea. Gitea's deliveries carry the headers of Gogs as well, and Argo CD checks them as such:
//! by `webhook.gogs.secret`. With that unset it takes everybody's, so what it *refuses* is asked as well as what it takes.
//!
//! This crate must not know Kubernetes, where Argo CD keeps that secret, nor Gitea, which sends what counts.

use std::time::Duration;

use async_trait::async_trait;
use fabrique_ports::setup::DeployerDoor;
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::{Certificate, Client, Response, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use sha2::Sha256;
use url::Url;

/// Where every Argo CD takes webhooks.
pub const WEBHOOK: &str = "api/webhook";

/// A running Argo CD.
#[derive(Debug, Clone)]
pub struct ArgoCd {
    client: Client,
    root: Url,
}

impl ArgoCd {
    /// The one at `root`, like `https://argocd.example.org/`. With `authority`, certificates in PEM to trust instead of the
    /// system's. A request may take `limit`.
    ///
    /// # Errors
    /// When a certificate cannot be read.
    pub fn new(root: Url, authority: Option<&[u8]>, limit: Duration) -> PortResult<Self> {
        let unusable = |error: reqwest::Error| {
            PortError::new(Peer::Deployer, Fault::Denied, "its authority's certificates cannot be read")
                .remedy("name a file with certificates in PEM in init.argocd_ca_file")
                .caused_by(error)
        };
        let mut builder = Client::builder()
            .user_agent(concat!("fabrique/", env!("CARGO_PKG_VERSION")))
            .timeout(limit)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        if let Some(pem) = authority {
            builder = builder.tls_certs_only(Certificate::from_pem_bundle(pem).map_err(unusable)?);
        }
        Ok(Self { client: builder.build().map_err(unusable)?, root })
    }

    fn at(&self, path: &str) -> PortResult<Url> {
        let mut url = self.root.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => drop(segments.pop_if_empty().extend(path.split('/'))),
            Err(()) => {
                return Err(PortError::new(
                    Peer::Deployer,
                    Fault::Denied,
                    format!("{} is no web address", self.root),
                ));
            }
        }
        Ok(url)
    }

    /// Posts a push of Gogs about a repository that nobody has, as `secret` signs it.
    async fn post(&self, secret: &SecretString) -> PortResult<Response> {
        let nowhere = "http://fabrique.invalid/nobody/nothing";
        let commit = "0".repeat(40);
        let body = json!({
            "ref": "refs/heads/main", "before": commit, "after": commit, "commits": [],
            "repository": { "html_url": nowhere, "clone_url": format!("{nowhere}.git"), "default_branch": "main" },
        })
        .to_string();
        let request = self
            .client
            .post(self.at(WEBHOOK)?)
            .header("Content-Type", "application/json")
            .header("X-Gogs-Event", "push")
            .header("X-Gogs-Signature", signature(secret, body.as_bytes()))
            .body(body);
        request.send().await.map_err(no_answer)
    }
}

#[async_trait]
impl DeployerDoor for ArgoCd {
    async fn answers(&self) -> PortResult<()> {
        let answer = self.client.get(self.at("healthz")?).send().await.map_err(no_answer)?;
        if answer.status() == StatusCode::OK {
            Ok(())
        } else {
            Err(odd(answer.status(), "whether it is healthy"))
        }
    }

    async fn takes(&self, secret: &SecretString) -> PortResult<bool> {
        let status = self.post(secret).await?.status();
        match status {
            StatusCode::OK => Ok(true),
            // So it says of a signature that is wrong. A push that it cannot read it would not take from anybody.
            StatusCode::BAD_REQUEST => Ok(false),
            _ => Err(odd(status, "a webhook")),
        }
    }
}

fn signature(secret: &SecretString, body: &[u8]) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(secret.expose_secret().as_bytes())
        .map(|mac| mac.chain_update(body).finalize().into_bytes())
        .unwrap_or_default();
    hex::encode(mac)
}

fn no_answer(error: reqwest::Error) -> PortError {
    let why = if error.is_timeout() { "timed out".to_owned() } else { innermost(&error) };
    PortError::new(Peer::Deployer, Fault::Transient, format!("no answer: {why}"))
        .remedy("is init.argocd_url its address from here?")
        .caused_by(error.without_url())
}

fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string().chars().take(200).flat_map(char::escape_debug).collect()
}

fn odd(status: StatusCode, asked: &str) -> PortError {
    let fault = if status.is_server_error() { Fault::Transient } else { Fault::Unexpected };
    PortError::new(Peer::Deployer, fault, format!("{status} to {asked}"))
        .remedy("init.argocd_url has to be the root of Argo CD, with the scheme that it speaks")
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::HeaderMap;
    use axum::routing::{get, post};

    use super::*;

    /// As Argo CD answers on the wire; the real one is asked where there is a cluster.
    async fn argo(secret: &'static str) -> ArgoCd {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let checks = move |headers: HeaderMap, body: String| async move {
            let signed = signature(&secret.into(), body.as_bytes());
            let good = headers["x-gogs-signature"] == *signed && headers["x-gogs-event"] == "push";
            if good { StatusCode::OK } else { StatusCode::BAD_REQUEST }
        };
        let routes =
            Router::new().route("/cd/api/webhook", post(checks)).route("/cd/healthz", get(|| async {}));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let root = format!("http://{}/cd/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        ArgoCd::new(root.parse().unwrap(), None, Duration::from_secs(10)).unwrap()
    }

    #[tokio::test]
    async fn it_is_asked_below_its_own_path_and_takes_what_its_secret_signed() {
        let argo = argo("s3cret").await;
        argo.answers().await.unwrap();
        assert!(argo.takes(&"s3cret".into()).await.unwrap());
        assert!(!argo.takes(&"another".into()).await.unwrap());
    }

    #[tokio::test]
    async fn somebody_else_at_its_address_is_told() {
        let mut argo = argo("s3cret").await;
        argo.root = argo.root.join("/elsewhere/").unwrap();
        let error = argo.takes(&"s3cret".into()).await.unwrap_err();
        assert_eq!(error.fault(), Fault::Unexpected);
        assert!(error.to_string().contains("init.argocd_url"), "{error}");
    }

    #[tokio::test]
    async fn nobody_at_its_address_is_worth_another_try() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let root = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let argo = ArgoCd::new(root.parse().unwrap(), None, Duration::from_secs(10)).unwrap();
        assert_eq!(argo.answers().await.unwrap_err().fault(), Fault::Transient);
    }
}
