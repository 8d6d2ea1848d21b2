//! Dialling a daemon as the builder does: by address, under the pod's name, with a client certificate.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use fabrique_kubernetes::pki::Identity;
use fabrique_ports::builder::Daemon;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};
use secrecy::ExposeSecret;

/// The start of HTTP/2, which gRPC speaks: the server answers with its settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Says whether the daemon speaks to whoever shows `identity`.
pub(crate) async fn answers(daemon: &Daemon, authority: &str, identity: Option<Identity>) -> bool {
    let (daemon, authority) = (daemon.clone(), authority.to_owned());
    let spoken = tokio::task::spawn_blocking(move || speak(&daemon, &authority, identity.as_ref()));
    spoken.await.unwrap().is_ok_and(|read| read > 0)
}

fn speak(daemon: &Daemon, authority: &str, identity: Option<&Identity>) -> std::io::Result<usize> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(identity.key.expose_secret().as_bytes()).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(daemon.tls_name.clone().unwrap()).unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let address = daemon.address.strip_prefix("tcp://").unwrap().parse().unwrap();
    let limit = Duration::from_secs(5);
    let mut tcp = TcpStream::connect_timeout(&address, limit)?;
    tcp.set_read_timeout(Some(limit))?;
    let mut stream = Stream::new(&mut tls, &mut tcp);
    stream.write_all(PREFACE)?;
    stream.read(&mut [0; 9])
}
