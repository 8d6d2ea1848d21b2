//! What one request to the forge may come to, when the forge or something before it is not as usual.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fabrique_bed::MutualTls;
use fabrique_git::GitDeployments;
use fabrique_ports::Fault;
use fabrique_ports::deployments::{CommitFate, Deployments, NewCommit, PreparedPush, PushOutcome};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::SecretString;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use url::Url;

use crate::support::{Apps, Folder, gitea, path, texts, write, writing};

/// The same clone, pushed from to somewhere else.
fn redirected(apps: &Apps, base: &str) -> GitDeployments {
    let mut config = apps.config.clone();
    config.base_url = Url::parse(base).unwrap();
    config.timeouts.push = Duration::from_secs(20);
    GitDeployments::new(config).unwrap()
}

async fn prepared(apps: &Apps, content: &str) -> PreparedPush {
    let base = apps.deployments.snapshot().await.unwrap().commit;
    apps.deployments.prepare(&base, &[writing("Deploy", &[("apps/a", content)])]).await.unwrap()
}

fn address_of(base: &str) -> String {
    base.trim_start_matches("http://").to_owned()
}

#[tokio::test]
async fn five_commits_that_add_replace_and_remove_files_arrive_as_they_were_made() {
    let apps = Apps::new(gitea().await, "five").await;
    let base = apps.deployments.snapshot().await.unwrap().commit;
    // Nothing that could be compressed away.
    let big: Vec<u8> = (0..2_u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let big = Bytes::from(big);
    let mut adding = writing("Add", &[("apps/citation/prod/a.yaml", "a: 1\n")]);
    adding.changes.insert(path("apps/citation/prod/big.bin"), Some(big.clone()));
    let removing = NewCommit {
        changes: [(path("apps/citation/prod/a.yaml"), None)].into(),
        message: "Remove".to_owned(),
    };
    let commits = [
        adding,
        writing("Replace", &[("apps/citation/prod/a.yaml", "a: 2\n")]),
        removing,
        writing("Add again", &[("apps/citation/prod/a.yaml/b.yaml", "b: 1\n")]),
        writing("Add another", &[("apps/\u{e9}t\u{e9}/\"x\"", "x\n")]),
    ];
    let prepared = apps.deployments.prepare(&base, &commits).await.unwrap();
    assert_eq!(apps.deployments.push(&prepared).await.unwrap(), PushOutcome::Pushed);
    assert_eq!(apps.head().await, prepared.commits[4]);
    let log = apps.work.git(&["log", "--reverse", "--format=%H", &format!("{base}..HEAD")]).await.unwrap();
    assert_eq!(log.lines().map(crate::support::revision).collect::<Vec<_>>(), prepared.commits);
    apps.work.git(&["fsck", "--strict"]).await.unwrap();
    let files = apps.deployments.snapshot().await.unwrap().files;
    assert_eq!(files[&path("apps/citation/prod/big.bin")].content, big);
    assert_eq!(&files[&path("apps/citation/prod/a.yaml/b.yaml")].content[..], b"b: 1\n");
    assert_eq!(files.len(), 4, "{:?}", files.keys());
}

#[tokio::test]
async fn a_push_that_is_sent_twice_is_pushed_once() {
    let apps = Apps::new(gitea().await, "twice").await;
    let prepared = prepared(&apps, "1").await;
    let (one, two) = tokio::join!(apps.deployments.push(&prepared), apps.deployments.push(&prepared));
    // Whichever came second finds the branch locked, or where it wanted it.
    for outcome in [&one.unwrap(), &two.unwrap()] {
        assert!(matches!(outcome, PushOutcome::Pushed | PushOutcome::Moved), "{outcome:?}");
    }
    assert_eq!(apps.deployments.push(&prepared).await.unwrap(), PushOutcome::Pushed, "it is there already");
    assert_eq!(apps.head().await, prepared.commits[0]);
}

#[tokio::test]
async fn a_repository_that_is_renamed_or_gone_refuses_and_says_so() {
    let gitea = gitea().await;
    let apps = Apps::new(gitea, "gone").await;
    let prepared = prepared(&apps, "1").await;
    for (method, body, words) in [
        ("PATCH", Some(json!({ "name": "renamed" })), "redirects are not followed"),
        // Gitea has no other words for a repository that is not there.
        ("DELETE", None, "Push to create is not enabled"),
    ] {
        let name = if body.is_some() { "apps" } else { "renamed" };
        gitea.api(method, &format!("/repos/gone/{name}"), body).await.unwrap();
        match apps.deployments.push(&prepared).await.unwrap() {
            PushOutcome::Refused(text) => assert!(text.contains(words), "{text}"),
            other => panic!("{method}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_base_that_the_forge_has_forgotten_is_read_again() {
    let forge = Folder::new("sha1").await;
    forge.commit(&[("apps/a", "1")]).await;
    forge.commit(&[("apps/a", "2"), ("apps/b", &"long enough for a delta\n".repeat(99))]).await;
    let deployments = forge.deployments();
    let base = deployments.snapshot().await.unwrap().commit;
    let change = format!("{}and more\n", "long enough for a delta\n".repeat(99));
    let prepared = deployments.prepare(&base, &[writing("x", &[("apps/b", &change)])]).await.unwrap();
    forge.work.rewind(1).await.unwrap();
    forge.work.push_force().await.unwrap();
    forge.forget().await;
    let outcome = deployments.push(&prepared).await.unwrap();
    assert!(matches!(outcome, PushOutcome::Unknown(_)), "{outcome:?}");
    let snapshot = deployments.snapshot().await.unwrap();
    let fate = deployments.fate(&prepared.commits[0], &snapshot.commit).await.unwrap();
    assert_eq!(fate, CommitFate::OffBranch);
    let (_, outcome) = write(&deployments, &snapshot, &[("apps/b", &change)]).await;
    assert_eq!(outcome, PushOutcome::Pushed);
}

#[tokio::test]
async fn a_clone_that_lost_the_commits_is_no_reason_to_give_up() {
    let apps = Apps::new(gitea().await, "lost").await;
    let prepared = prepared(&apps, "1").await;
    std::fs::remove_dir_all(apps.config.state_dir.join("deployments")).unwrap();
    apps.deployments.snapshot().await.unwrap();
    let outcome = apps.deployments.push(&prepared).await.unwrap();
    assert!(matches!(outcome, PushOutcome::Unknown(_)), "{outcome:?}");
    let snapshot = apps.deployments.snapshot().await.unwrap();
    let (_, outcome) = write(&apps.deployments, &snapshot, &[("apps/a", "1")]).await;
    assert_eq!(outcome, PushOutcome::Pushed);
}

#[tokio::test]
async fn a_forge_below_a_path_of_its_host_is_pushed_to_there() {
    let gitea = gitea().await;
    let apps = Apps::new(gitea, "below").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap();
    let target = address_of(&gitea.base_url());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(strip_path(client, target.clone()));
        }
    });
    let mut config = apps.config.clone();
    config.base_url = Url::parse(&format!("http://{host}/the/forge/")).unwrap();
    config.state_dir = config.state_dir.join("below");
    let deployments = GitDeployments::new(config).unwrap();
    let snapshot = deployments.snapshot().await.unwrap();
    let (prepared, outcome) = write(&deployments, &snapshot, &[("apps/a", "1")]).await;
    assert_eq!(outcome, PushOutcome::Pushed);
    assert_eq!(apps.head().await, prepared.commits[0]);
}

/// Passes a connection on as a proxy that takes a path's beginning away does.
async fn strip_path(mut client: TcpStream, target: String) -> std::io::Result<()> {
    let mut server = TcpStream::connect(target).await?;
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => match read? {
                0 => return Ok(()),
                read => {
                    let text = String::from_utf8_lossy(&up[..read]);
                    // Each request begins with a segment of its own.
                    match text.split_once(" /the/forge/") {
                        Some((method, _)) if matches!(method, "GET" | "POST") => {
                            let rest = method.len() + " /the/forge/".len();
                            server.write_all(format!("{method} /").as_bytes()).await?;
                            server.write_all(&up[rest..read]).await?;
                        }
                        Some(_) | None => server.write_all(&up[..read]).await?,
                    }
                }
            },
            read = server.read(&mut down) => match read? {
                0 => return Ok(()),
                read => client.write_all(&down[..read]).await?,
            },
        }
    }
}

/// Answers every connection's first request with these bytes; the address.
async fn answering(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 1 << 16];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(&answer).await;
            let _ = stream.shutdown().await;
            // Whoever closes with something unread takes back what was written.
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
    });
    format!("http://{address}")
}

#[tokio::test]
async fn whatever_answers_in_the_forges_place_is_never_taken_for_it() {
    let apps = Apps::new(gitea().await, "place").await;
    let before = apps.head().await;
    let prepared = prepared(&apps, "1").await;
    let thief = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = thief.local_addr().unwrap();
    let git = "Content-Type: application/x-git-receive-pack-result\r\n";
    let long = format!("Content-Length: {}\r\n{git}\r\n{}", 2 << 20, "x".repeat(2 << 20));
    let refused = |outcome: &_| matches!(outcome, Ok(PushOutcome::Refused(_)));
    let unknown = |outcome: &_| matches!(outcome, Ok(PushOutcome::Unknown(_)));
    type Is<'a> = &'a dyn Fn(&Result<PushOutcome, fabrique_ports::PortError>) -> bool;
    let cases: [(&str, String, Is); 8] = [
        ("200 OK", "Content-Type: text/html\r\nContent-Length: 3\r\n\r\n<p>".to_owned(), &unknown),
        ("200 OK", format!("{git}Content-Length: 0\r\n\r\n"), &unknown),
        ("200 OK", format!("{git}Content-Length: 999\r\n\r\n000eunpack ok"), &unknown),
        ("200 OK", long, &unknown),
        ("502 Bad Gateway", "Content-Length: 0\r\n\r\n".to_owned(), &unknown),
        ("413 Content Too Large", "Content-Length: 0\r\n\r\n".to_owned(), &refused),
        ("307 Temporary", format!("Location: http://{elsewhere}/a\r\nContent-Length: 0\r\n\r\n"), &refused),
        ("429 Too Many Requests", "Content-Length: 0\r\n\r\n".to_owned(), &|outcome| {
            outcome.as_ref().is_err_and(|error| error.fault() == Fault::Transient)
        }),
    ];
    for (status, rest, expected) in cases {
        let base = answering(format!("HTTP/1.1 {status}\r\nConnection: close\r\n{rest}").into_bytes()).await;
        let outcome = redirected(&apps, &base).push(&prepared).await;
        assert!(expected(&outcome), "{status}: {outcome:?}");
    }
    let visited = tokio::time::timeout(Duration::from_millis(50), thief.accept()).await;
    assert!(visited.is_err(), "the redirect was followed");
    assert_eq!(apps.head().await, before);
}

/// A proxy that speaks TLS, with these files' certificate; its base URL.
async fn tls_proxy(target: String, files: &MutualTls) -> String {
    let certificates = CertificateDer::pem_file_iter(&files.server_cert).unwrap();
    let certificates = certificates.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(&files.server_key).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key);
    let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (acceptor, target) = (acceptor.clone(), target.clone());
            tokio::spawn(async move {
                let mut client = acceptor.accept(client).await?;
                let mut server = TcpStream::connect(target).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    format!("https://{address}")
}

#[tokio::test]
async fn a_forge_is_pushed_to_over_tls_if_its_certificate_is_trusted() {
    let gitea = gitea().await;
    let mut apps = Apps::new(gitea, "tls").await;
    let folder = tempfile::tempdir().unwrap();
    let files = MutualTls::create(folder.path()).unwrap();
    apps.config.base_url = Url::parse(&tls_proxy(address_of(&gitea.base_url()), &files).await).unwrap();
    let with = |ca: &Path| {
        let mut config = apps.config.clone();
        config.ca_file = Some(ca.to_owned());
        GitDeployments::new(config)
    };
    let trusting = with(&files.ca).unwrap();
    let snapshot = trusting.snapshot().await.unwrap();
    let change = |content| [writing("Deploy", &[("apps/a", content)])];
    let prepared = trusting.prepare(&snapshot.commit, &change("1")).await.unwrap();

    let strangers = tempfile::tempdir().unwrap();
    let other = MutualTls::create(strangers.path()).unwrap();
    let error = with(&other.ca).unwrap().push(&prepared).await.unwrap_err();
    assert!(error.transient() && error.to_string().contains("certificate"), "{error}");
    let read = trusting.snapshot().await.unwrap();
    assert_eq!(read.commit, snapshot.commit);

    assert_eq!(trusting.push(&prepared).await.unwrap(), PushOutcome::Pushed);
    assert_eq!(texts(&trusting.snapshot().await.unwrap())["apps/a"], "1");

    let none = with(&folder.path().join("none.pem")).unwrap_err();
    assert!(none.to_string().contains("none.pem"), "{none}");
    std::fs::write(folder.path().join("none.pem"), "no certificate").unwrap();
    let none = with(&folder.path().join("none.pem")).unwrap_err();
    assert!(none.to_string().contains("ca_file"), "{none}");
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_not_shown() {
    let mut apps = Apps::new(gitea().await, "wrong").await;
    let prepared = prepared(&apps, "1").await;
    apps.config.apps.token = Some(SecretString::from("tok3n-that-is-wrong"));
    let deployments = GitDeployments::new(apps.config.clone()).unwrap();
    let outcome = deployments.push(&prepared).await.unwrap();
    let PushOutcome::Refused(text) = &outcome else { panic!("{outcome:?}") };
    assert!(text.starts_with("401 Unauthorized: "), "{text}");
    let encoded = STANDARD.encode("fabrique:tok3n-that-is-wrong");
    let shown = format!("{text} {deployments:?}");
    assert!(!shown.contains("tok3n-that-is-wrong") && !shown.contains(&encoded), "{shown}");
}
