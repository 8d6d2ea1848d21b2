//! Mutual TLS with the daemon.

use fabrique_bed::{Bed, BuildkitOptions, MutualTls};
use fabrique_buildkit::{BuildkitBuilder, Tls, TlsFiles, TlsIdentity};
use fabrique_ports::builder::{Builder, Daemon};

use crate::support::{Source, config, daemon, pushed};

fn client(bed: &Bed, tls: Option<TlsFiles>) -> BuildkitBuilder {
    let mut config = config(bed);
    config.tls = tls.map(Tls::Files);
    BuildkitBuilder::new(config).unwrap()
}

#[tokio::test]
async fn mutual_tls_lets_in_who_shows_a_certificate_and_checks_the_daemons_name() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let certificates = MutualTls::create(folder.path()).unwrap();
    let options = BuildkitOptions { tls: Some(certificates.server()), ..BuildkitOptions::default() };
    let bed = Bed::builder().gitea().registry().buildkit_with(options).start().await.unwrap();
    let identity =
        TlsIdentity { cert: certificates.client_cert.clone(), key: certificates.client_key.clone() };
    let files = TlsFiles { ca: certificates.ca.clone(), identity: Some(identity) };
    let trusted = client(&bed, Some(files.clone()));
    let source = Source::new(&bed).await;
    let request = source.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;
    pushed(&trusted, bed.buildkit(0), &request).await;

    let here = daemon(bed.buildkit(0));
    let anonymous = client(&bed, Some(TlsFiles { identity: None, ..files.clone() }));
    assert!(anonymous.probe(&here).await.is_err());
    assert!(client(&bed, None).probe(&here).await.is_err());
    let strangers = tempfile::tempdir().unwrap();
    let other = MutualTls::create(strangers.path()).unwrap();
    let misled = client(&bed, Some(TlsFiles { ca: other.ca, ..files.clone() }));
    let error = misled.probe(&here).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");

    let elsewhere = Daemon { address: here.address.replace("127.0.0.1", "localhost"), ..here };
    assert!(trusted.probe(&elsewhere).await.is_err());
    let named = Daemon { tls_name: Some("127.0.0.1".into()), ..elsewhere };
    trusted.probe(&named).await.unwrap();

    let missing = client(&bed, Some(TlsFiles { ca: folder.path().join("none.pem"), identity: None }));
    let error = missing.probe(&named).await.unwrap_err();
    assert!(error.to_string().contains("none.pem") && !error.transient(), "{error}");
}
