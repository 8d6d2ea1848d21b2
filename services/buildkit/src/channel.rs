//! Connections to daemons: TCP with or without (m)TLS, and unix sockets.

use std::path::PathBuf;
use std::time::Duration;

use bollard_buildkit_proto::moby::buildkit::v1::control_client::ControlClient;
use fabrique_ports::builder::Daemon;
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret;
use tokio::net::UnixStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

use crate::config::{IssuedTls, Tls, TlsFiles};
use crate::error::BuildkitError;
use crate::handshake::Handshake;

/// BuildKit's own limit on messages; tonic's is 4 MiB.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;
/// The kernel asks a silent peer whether it still lives. HTTP/2 pings would not do: grpc-go takes more than one
/// in five minutes for an attack and hangs up.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// A daemon's control API over one connection.
pub(crate) type Control = ControlClient<Channel>;

/// Opens connections, one for each build.
#[derive(Debug, Clone)]
pub(crate) struct Dialer {
    pub(crate) tls: Option<Tls>,
    pub(crate) connect: Duration,
}

impl Dialer {
    pub(crate) async fn dial(&self, daemon: &Daemon) -> Result<Control, BuildkitError> {
        let connecting = async {
            match Address::parse(&daemon.address)? {
                Address::Unix(path) => self.unix(daemon, path).await,
                Address::Tcp(authority) => self.tcp(daemon, &authority).await,
            }
        };
        let channel = tokio::time::timeout(self.connect, connecting).await.map_err(|_| {
            BuildkitError::Slow { daemon: daemon.name.clone(), what: "the connection", limit: self.connect }
        })??;
        Ok(ControlClient::new(channel)
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT))
    }

    async fn unix(&self, daemon: &Daemon, path: PathBuf) -> Result<Channel, BuildkitError> {
        // The URI only fills the authority header.
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://localhost")
            .connect_with_connector(connector)
            .await
            .map_err(|source| connect_error(daemon, source))
    }

    async fn tcp(&self, daemon: &Daemon, authority: &str) -> Result<Channel, BuildkitError> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{authority}"))
            .map_err(|_| BuildkitError::Address { address: daemon.address.clone() })?
            .connect_timeout(self.connect)
            .tcp_keepalive(Some(TCP_KEEPALIVE));
        if let Some(tls) = &self.tls {
            let mut tls = match tls {
                Tls::Files(files) => from_files(files).await?,
                Tls::Issued(issuer) => issuer
                    .issue()
                    .map(|issued| from_memory(&issued))
                    .map_err(|problem| BuildkitError::Config { key: "client certificate", problem })?,
            };
            if let Some(name) = &daemon.tls_name {
                tls = tls.domain_name(name);
            }
            endpoint = endpoint
                .tls_config(tls)
                .map_err(|source| BuildkitError::Tls { daemon: daemon.name.clone(), source })?;
        }
        endpoint.connect().await.map_err(|source| connect_error(daemon, source))
    }
}

fn connect_error(daemon: &Daemon, source: tonic::transport::Error) -> BuildkitError {
    if let Some(handshake) = Handshake::of(&source) {
        let (daemon, address) = (daemon.name.clone(), daemon.address.clone());
        return BuildkitError::Handshake { daemon, address, handshake };
    }
    BuildkitError::Connect { daemon: daemon.name.clone(), address: daemon.address.clone(), source }
}

fn from_memory(issued: &IssuedTls) -> ClientTlsConfig {
    ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&issued.ca))
        .identity(Identity::from_pem(&issued.cert, issued.key.expose_secret()))
}

async fn from_files(files: &TlsFiles) -> Result<ClientTlsConfig, BuildkitError> {
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&files.ca).await?));
    if let Some(identity) = &files.identity {
        tls = tls.identity(Identity::from_pem(read(&identity.cert).await?, read(&identity.key).await?));
    }
    Ok(tls)
}

async fn read(path: &PathBuf) -> Result<Vec<u8>, BuildkitError> {
    tokio::fs::read(path).await.map_err(|source| BuildkitError::TlsFile { path: path.clone(), source })
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl Address {
    pub(crate) fn parse(address: &str) -> Result<Self, BuildkitError> {
        let wrong = || BuildkitError::Address { address: address.to_owned() };
        match address.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(("tcp", authority)) => {
                let parsed: Uri = format!("http://{authority}/").parse().map_err(|_| wrong())?;
                let complete = parsed.port_u16().is_some() && !authority.contains(['/', '@', '?']);
                if complete { Ok(Self::Tcp(authority.to_owned())) } else { Err(wrong()) }
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_tcp_with_a_port_or_an_absolute_unix_path() {
        assert_eq!(Address::parse("tcp://10.0.0.1:1234").unwrap(), Address::Tcp("10.0.0.1:1234".into()));
        assert_eq!(Address::parse("tcp://[::1]:1234").unwrap(), Address::Tcp("[::1]:1234".into()));
        assert_eq!(Address::parse("unix:///run/b.sock").unwrap(), Address::Unix("/run/b.sock".into()));
        for wrong in
            ["", "tcp://host", "tcp://u@host:1", "tcp://host:1/x", "unix://b.sock", "http://h:1", "h:1"]
        {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
