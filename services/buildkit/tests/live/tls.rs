//! TLS with the daemon, one-way and mutual.

use fabrique_bed::{Bed, BuildkitOptions, MutualTls};
use fabrique_buildkit::{BuildkitBuilder, Tls, TlsFiles, TlsIdentity};
use fabrique_ports::builder::{Builder, Daemon};

use crate::support::{Source, config, daemon, pushed};

fn client(bed: &Bed, tls: Option<TlsFiles>) -> BuildkitBuilder {
    let mut config = config(bed);
    config.tls = tls.map(Tls::Files);
    BuildkitBuilder::new(config).unwrap()
}

/// What a probe of a daemon that may not be used says.
async fn refusal(client: &BuildkitBuilder, daemon: &Daemon) -> String {
    let error = client.probe(daemon).await.unwrap_err();
    assert!(!error.transient(), "waiting does not help: {error}");
    error.to_string()
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
    // The daemon says so and hangs up, and either may be what is seen of it.
    let said = anonymous.probe(&here).await.unwrap_err().to_string();
    assert!(said.contains("`buildkit.tls"), "{said}");
    let strangers = tempfile::tempdir().unwrap();
    let other = MutualTls::create(strangers.path()).unwrap();
    let stranger = TlsIdentity { cert: other.client_cert.clone(), key: other.client_key.clone() };
    let unknown = client(&bed, Some(TlsFiles { identity: Some(stranger), ..files.clone() }));
    let said = unknown.probe(&here).await.unwrap_err().to_string();
    assert!(said.contains("`buildkit.tls"), "{said}");
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

#[tokio::test]
async fn one_way_tls_builds_on_a_daemon_of_the_private_authority_and_on_no_other() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let certificates = MutualTls::create(folder.path()).unwrap();
    let options = BuildkitOptions { tls: Some(certificates.one_way()), ..BuildkitOptions::default() };
    let bed = Bed::builder().gitea().registry().buildkit_with(options).buildkit(1).start().await.unwrap();
    let files = TlsFiles { ca: certificates.ca.clone(), identity: None };
    let trusting = client(&bed, Some(files.clone()));
    let source = Source::new(&bed).await;
    let request = source.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;
    pushed(&trusting, bed.buildkit(0), &request).await;

    let here = daemon(bed.buildkit(0));
    let strangers = tempfile::tempdir().unwrap();
    let other = MutualTls::create(strangers.path()).unwrap();
    let said = refusal(&client(&bed, Some(TlsFiles { ca: other.ca, ..files })), &here).await;
    assert!(said.contains(&here.address) && said.contains("invalid peer certificate"), "{said}");
    assert!(said.contains("`buildkit.tls.ca_file` has to hold the authority"), "{said}");

    let elsewhere = Daemon { address: here.address.replace("127.0.0.1", "localhost"), ..here.clone() };
    let said = refusal(&trusting, &elsewhere).await;
    assert!(said.contains("not valid for name") && said.contains("`tls_name`"), "{said}");
    trusting.probe(&Daemon { tls_name: Some("127.0.0.1".into()), ..elsewhere }).await.unwrap();

    // Neither side takes the other's plain text for TLS.
    let said = trusting.probe(&daemon(bed.buildkit(1))).await.unwrap_err().to_string();
    assert!(said.contains("`buildkit.tls`"), "{said}");
    let said = client(&bed, None).probe(&here).await.unwrap_err().to_string();
    assert!(said.contains("`buildkit.tls`"), "{said}");
}
