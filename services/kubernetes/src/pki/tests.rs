use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};

use super::*;

const DAY: Duration = Duration::from_hours(24);

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp(u64::try_from(since.as_millis()).unwrap())
}

fn authority() -> BuilderCa {
    let made = BuilderCa::generate(now(), DAY).unwrap();
    BuilderCa::from_pem(&made.certificate, &made.key, now()).unwrap()
}

fn chain(identity: &Identity) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(identity.key.expose_secret().as_bytes()).unwrap();
    (vec![certificate], key)
}

/// A handshake in memory, as between a worker and a daemon. `Err` is what either side says against it.
fn handshake(
    believed: &BuilderCa,
    server: &Identity,
    client: &Identity,
    name: &str,
) -> Result<(), rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(believed.certificate().as_bytes()).unwrap()).unwrap();
    let roots = Arc::new(roots);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build().unwrap();
    let (certificates, key) = chain(server);
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)?;
    let (certificates, key) = chain(client);
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates, key)?;
    let mut server = Connection::from(ServerConnection::new(Arc::new(server))?);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = Connection::from(ClientConnection::new(Arc::new(client), name)?);
    for _ in 0..10 {
        carry(&mut client, &mut server)?;
        carry(&mut server, &mut client)?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(())
}

fn carry(from: &mut Connection, to: &mut Connection) -> Result<(), rustls::Error> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut bytes = bytes.as_slice();
    while !bytes.is_empty() {
        to.read_tls(&mut bytes).unwrap();
        to.process_new_packets()?;
    }
    Ok(())
}

#[test]
fn a_worker_and_a_daemon_of_one_authority_believe_each_other() {
    let ca = authority();
    let server = ca.server("builder-3", now(), DAY).unwrap();
    let client = ca.client("worker-1", now()).unwrap();
    assert_eq!(handshake(&ca, &server, &client, "builder-3"), Ok(()));
}

#[test]
fn a_daemon_is_believed_under_its_own_name_only() {
    let ca = authority();
    let server = ca.server("builder-3", now(), DAY).unwrap();
    let client = ca.client("worker-1", now()).unwrap();
    assert!(handshake(&ca, &server, &client, "builder-4").is_err());
}

#[test]
fn a_certificate_read_out_of_a_daemon_opens_no_other() {
    let ca = authority();
    let stolen = ca.server("builder-3", now(), DAY).unwrap();
    let other = ca.server("builder-4", now(), DAY).unwrap();
    assert!(handshake(&ca, &other, &stolen, "builder-4").is_err());
}

#[test]
fn nobody_serves_with_a_workers_certificate() {
    let ca = authority();
    let client = ca.client("worker-1", now()).unwrap();
    assert!(handshake(&ca, &client, &client, "worker-1").is_err());
}

#[test]
fn another_installations_authority_is_not_believed() {
    let (ours, theirs) = (authority(), authority());
    let server = ours.server("builder-3", now(), DAY).unwrap();
    let client = theirs.client("worker-1", now()).unwrap();
    assert!(handshake(&ours, &server, &client, "builder-3").is_err());
}

#[test]
fn an_authority_that_cannot_sign_is_refused_with_the_reason() {
    let made = BuilderCa::generate(now(), DAY).unwrap();
    let read = |certificate: &str, key: &SecretString, at| BuilderCa::from_pem(certificate, key, at).err();
    assert!(read(&made.certificate, &made.key, now()).is_none());
    assert!(matches!(read("hello", &made.key, now()), Some(PkiError::NotACertificate)));
    assert!(matches!(read(&made.certificate, &"hello".into(), now()), Some(PkiError::NotAKey)));
    let late = now().after(DAY * 3);
    assert!(matches!(read(&made.certificate, &made.key, late), Some(PkiError::NotValidNow)));
    let other = BuilderCa::generate(now(), DAY).unwrap();
    assert!(matches!(read(&made.certificate, &other.key, now()), Some(PkiError::Mismatch)));
    let leaf = authority().server("builder-3", now(), DAY).unwrap();
    assert!(matches!(read(&leaf.certificate, &leaf.key, now()), Some(PkiError::NotAnAuthority)));
}

#[test]
fn a_client_certificate_is_kept_for_half_its_life_and_made_anew_when_the_clock_turned_back() {
    let certificates = ClientCertificates::new(Arc::new(authority()), "worker-1".into());
    let at = |offset: Duration| certificates.current(now().after(offset)).unwrap().certificate;
    let first = at(Duration::ZERO);
    assert_eq!(at(Duration::from_mins(50)), first);
    let second = at(Duration::from_mins(70));
    assert_ne!(second, first);
    assert_ne!(at(Duration::ZERO), second);
}

#[test]
fn no_key_is_ever_printed() {
    let ca = Arc::new(authority());
    let identity = ca.client("worker-1", now()).unwrap();
    let certificates = ClientCertificates::new(ca.clone(), "worker-1".into());
    certificates.current(now()).unwrap();
    let printed = format!("{ca:?} {identity:?} {certificates:?}");
    assert!(!printed.contains("PRIVATE") && !printed.contains("KeyPair"), "{printed}");
}
