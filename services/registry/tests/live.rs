//! The adapter against the real registry, and against servers that misbehave.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fabrique_bed::Bed;
use fabrique_core::id::{Digest, ImageRepository};
use fabrique_ports::Fault;
use fabrique_ports::registry::{PushTrial, Registry, RegistryInspection};
use fabrique_registry::{Access, Credentials, OciRegistry, RegistryConfig, Timeouts};
use secrecy::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const TAG: &str = "1b1ddb30aa2f";

async fn bed() -> &'static Bed {
    static BED: OnceCell<Bed> = OnceCell::const_new();
    BED.get_or_init(|| async { Bed::builder().registry().start().await.unwrap() }).await
}

fn adapter(host: &str, credentials: Credentials) -> OciRegistry {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let access = Access { plain_http: true, credentials, address: None };
    let timeouts = Timeouts { connect: Duration::from_secs(1), request: Duration::from_secs(2) };
    OciRegistry::new(RegistryConfig { hosts: BTreeMap::from([(host.to_owned(), access)]), timeouts }).unwrap()
}

fn image(host: &str, name: &str) -> ImageRepository {
    ImageRepository::parse(&format!("{host}/{name}")).unwrap()
}

fn absent() -> Digest {
    Digest::of(b"nobody has this")
}

/// The base image of the bed: its repository and digest.
async fn busybox(bed: &Bed, registry: &OciRegistry) -> (ImageRepository, Digest) {
    let image = image(&bed.registry().host(), "base/busybox");
    let digest = registry.resolve(&image, "1").await.unwrap().unwrap();
    (image, digest)
}

#[tokio::test]
async fn a_present_digest_is_there_and_an_absent_one_is_not() {
    let bed = bed().await;
    let registry = adapter(&bed.registry().host(), Credentials::Anonymous);
    let (image, digest) = busybox(bed, &registry).await;
    assert_eq!(bed.registry().digest("base/busybox", "1").await.unwrap(), Some(digest.to_string()));
    assert!(registry.has(&image, &digest).await.unwrap());
    assert!(!registry.has(&image, &absent()).await.unwrap());
    let nowhere = ImageRepository::parse(&format!("{}/no/such", bed.registry().host())).unwrap();
    assert!(!registry.has(&nowhere, &digest).await.unwrap());
    assert_eq!(registry.resolve(&nowhere, "1").await.unwrap(), None);
    assert_eq!(registry.resolve(&image, "none").await.unwrap(), None);
}

#[tokio::test]
async fn one_that_is_reached_by_a_port_forward_keeps_the_name_that_images_have() {
    let bed = bed().await;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (_, digest) = busybox(bed, &adapter(&bed.registry().host(), Credentials::Anonymous)).await;
    // Nobody answers by this name, as from a workstation.
    let forwarded = |address: String| {
        let access = Access { plain_http: true, address: Some(address), ..Access::default() };
        let hosts = BTreeMap::from([("registry.invalid:80".to_owned(), access)]);
        OciRegistry::new(RegistryConfig { hosts, timeouts: Timeouts::default() }).unwrap()
    };
    let named = image("registry.invalid:80", "base/busybox");
    let registry = forwarded(bed.registry().host());
    assert!(registry.has(&named, &digest).await.unwrap());
    assert_eq!(registry.resolve(&named, "1").await.unwrap(), Some(digest.clone()));
    registry.ping("registry.invalid:80").await.unwrap();
    let refused = forwarded("127.0.0.1:9".to_owned()).has(&named, &digest).await.unwrap_err();
    assert!(refused.transient() && refused.to_string().contains("registry.invalid:80"), "{refused}");
}

#[tokio::test]
async fn a_tag_can_be_set_again_and_moved() {
    let bed = bed().await;
    let registry = adapter(&bed.registry().host(), Credentials::Anonymous);
    let (image, digest) = busybox(bed, &registry).await;
    for _ in 0..2 {
        registry.tag(&image, &digest, TAG).await.unwrap();
        assert_eq!(registry.resolve(&image, TAG).await.unwrap(), Some(digest.clone()));
    }
    let index = push_index(bed, &digest).await;
    registry.tag(&image, &index, TAG).await.unwrap();
    assert_eq!(registry.resolve(&image, TAG).await.unwrap(), Some(index));
    assert!(registry.tag(&image, &absent(), TAG).await.is_err(), "a digest that is not there has no tag");
}

#[tokio::test]
async fn an_index_keeps_its_bytes_and_media_type_under_a_tag() {
    let bed = bed().await;
    let registry = adapter(&bed.registry().host(), Credentials::Anonymous);
    let (image, digest) = busybox(bed, &registry).await;
    let index = push_index(bed, &digest).await;
    assert!(registry.has(&image, &index).await.unwrap());
    registry.tag(&image, &index, "index").await.unwrap();
    let url = format!("{}/v2/base/busybox/manifests/index", bed.registry().base_url());
    let answer = reqwest::Client::new().get(url).header("Accept", INDEX).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], INDEX);
    assert_eq!(Digest::of(&answer.bytes().await.unwrap()), index);
}

/// Pushes an index with spaces that no JSON writer would write, so that a changed byte would show.
async fn push_index(bed: &Bed, manifest: &Digest) -> Digest {
    let url = format!("{}/v2/base/busybox/manifests/{manifest}", bed.registry().base_url());
    let answer = reqwest::Client::new().get(url).header("Accept", MANIFEST).send().await.unwrap();
    let size = answer.bytes().await.unwrap().len();
    let body = format!(
        "{{ \"schemaVersion\":2,\n\t\"mediaType\":\"{INDEX}\", \"manifests\":[{{\"mediaType\":\"{MANIFEST}\",\"digest\":\"{manifest}\",\"size\":{size}}}] }}\n"
    );
    let digest = Digest::of(body.as_bytes());
    let url = format!("{}/v2/base/busybox/manifests/{digest}", bed.registry().base_url());
    let answer =
        reqwest::Client::new().put(url).header("Content-Type", INDEX).body(body).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    digest
}

#[tokio::test]
async fn a_hostile_tag_is_refused_before_anything_is_sent() {
    let host = format!("127.0.0.1:{}", fabrique_bed::free_port().unwrap());
    let registry = adapter(&host, Credentials::Anonymous);
    for tag in
        ["", "../../../v2/other/manifests/1", "a?x=y", "a#b", "a%2fb", "sha256:x", "-x", "a\r\nHost: x"]
    {
        let error = registry.tag(&image(&host, "a"), &absent(), tag).await.unwrap_err();
        assert_eq!(error.fault(), Fault::Unexpected, "{error}");
        assert!(registry.resolve(&image(&host, "a"), tag).await.unwrap_err().fault() == Fault::Unexpected);
    }
}

#[tokio::test]
async fn a_registry_that_is_down_or_hangs_is_a_passing_fault_soon() {
    let bed = Bed::builder().registry().start().await.unwrap();
    let registry = adapter(&bed.registry().host(), Credentials::Anonymous);
    let (image, digest) = busybox(&bed, &registry).await;
    for kill in [false, true] {
        if kill {
            bed.registry().peer().kill9().await.unwrap()
        } else {
            bed.registry().peer().pause().unwrap()
        }
        let start = Instant::now();
        assert!(registry.has(&image, &digest).await.unwrap_err().transient());
        assert!(registry.tag(&image, &digest, TAG).await.unwrap_err().transient());
        assert!(registry.ping(&bed.registry().host()).await.unwrap_err().transient());
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        if !kill {
            bed.registry().peer().resume().unwrap();
        }
    }
    bed.registry().peer().start_again().await.unwrap();
    assert!(registry.has(&image, &digest).await.unwrap());
}

#[tokio::test]
async fn a_ping_tells_a_registry_from_something_else() {
    let bed = bed().await;
    let registry = adapter(&bed.registry().host(), Credentials::Anonymous);
    registry.ping(&bed.registry().host()).await.unwrap();
    for host in ["", "user@host", "host/path", "host?x", "a b"] {
        assert!(registry.ping(host).await.is_err(), "{host}");
    }
    let web = server(|_| answer("404 Not Found", "", b"")).await;
    assert!(adapter(&web, Credentials::Anonymous).ping(&web).await.is_err());
}

#[tokio::test]
async fn what_a_registry_says_is_checked_against_the_digest() {
    let body: &[u8] = b"{\"schemaVersion\":2}";
    let digest = Digest::of(body);
    let kind = format!("Content-Type: {MANIFEST}\r\n");
    let bare = server(move |_| answer("200 OK", &kind, body)).await;
    let registry = adapter(&bare, Credentials::Anonymous);
    assert!(registry.has(&image(&bare, "a"), &digest).await.unwrap(), "no header: the content decides");
    assert_eq!(registry.resolve(&image(&bare, "a"), "1").await.unwrap(), Some(digest.clone()));
    assert!(registry.has(&image(&bare, "a"), &absent()).await.is_err());
    assert!(registry.tag(&image(&bare, "a"), &absent(), "1").await.is_err());

    let kind = format!("Content-Type: {MANIFEST}\r\nDocker-Content-Digest: {}\r\n", absent());
    let liar = server(move |_| answer("200 OK", &kind, body)).await;
    assert!(adapter(&liar, Credentials::Anonymous).has(&image(&liar, "a"), &digest).await.is_err());

    let portal = server(move |_| answer("200 OK", "Content-Type: text/html\r\n", body)).await;
    let error =
        adapter(&portal, Credentials::Anonymous).has(&image(&portal, "a"), &digest).await.unwrap_err();
    assert!(error.fault() == Fault::Unexpected && error.to_string().contains("text/html"), "{error}");

    let kind = format!("Content-Type: {MANIFEST}\r\n");
    let endless = server(move |_| answer("200 OK", &kind, &vec![b'x'; 5 << 20])).await;
    assert!(adapter(&endless, Credentials::Anonymous).has(&image(&endless, "a"), &digest).await.is_err());
}

#[tokio::test]
async fn statuses_say_whose_turn_it_is() {
    for (status, fault) in [
        ("401 Unauthorized", Fault::Denied),
        ("403 Forbidden", Fault::Denied),
        ("429 Too Many Requests", Fault::Transient),
        ("500 Internal Server Error", Fault::Transient),
        ("503 Service Unavailable", Fault::Transient),
        ("307 Temporary Redirect", Fault::Unexpected),
    ] {
        let host = server(move |_| answer(status, "Location: http://127.0.0.1:1/\r\n", b"")).await;
        let registry = adapter(&host, Credentials::Anonymous);
        let error = registry.has(&image(&host, "a"), &absent()).await.unwrap_err();
        assert_eq!(error.fault(), fault, "{status}: {error}");
    }
}

#[tokio::test]
async fn a_token_is_fetched_where_the_registry_says_and_no_secret_is_shown() {
    let secret = "pa55-of-the-robot";
    let realm = server(|request| {
        let allowed = request.contains("scope=repository%3Aa%3Apull") && request.contains("service=reg");
        // Basic of robot and the password.
        let allowed = allowed && request.contains("authorization: Basic cm9ib3Q6cGE1NS1vZi10aGUtcm9ib3Q=");
        if allowed {
            answer("200 OK", "Content-Type: application/json\r\n", b"{\"token\":\"t0ken\"}")
        } else {
            answer("403 Forbidden", "", b"")
        }
    })
    .await;
    let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{realm}/token\",service=\"reg\"\r\n");
    let host = server(move |request| {
        if request.contains("authorization: Bearer t0ken") {
            answer("404 Not Found", "", b"")
        } else {
            answer("401 Unauthorized", &challenge, b"")
        }
    })
    .await;
    let basic = |password: &str| Credentials::Basic {
        user: "robot".to_owned(),
        password: SecretString::from(password.to_owned()),
    };
    let registry = adapter(&host, basic(secret));
    assert!(!registry.has(&image(&host, "a"), &absent()).await.unwrap());
    assert!(!format!("{registry:?}").contains(secret));

    let error = adapter(&host, basic("wrong-word")).has(&image(&host, "a"), &absent()).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Denied);
    assert!(!format!("{error:?}").contains("wrong-word"), "{error:?}");
}

/// The uploads that a repository of the bed's registry has under way.
fn uploads(bed: &Bed, name: &str) -> usize {
    let store = bed.folder().join("registry/store/docker/registry/v2/repositories");
    let uploads = std::fs::read_dir(store.join(name).join("_uploads")).unwrap();
    uploads.filter(|upload| upload.as_ref().unwrap().path().join("startedat").exists()).count()
}

#[tokio::test]
async fn a_push_is_tried_and_leaves_nothing_behind() {
    let bed = bed().await;
    let registry = adapter(&bed.registry().host(), Credentials::Anonymous);
    let image = image(&bed.registry().host(), "team/tried");
    let url = format!("{}/v2/team/tried/blobs/uploads/", bed.registry().base_url());
    reqwest::Client::new().post(url).send().await.unwrap().error_for_status().unwrap();
    assert_eq!(uploads(bed, "team/tried"), 1, "an upload shows where it is looked for");
    assert_eq!(registry.try_push(&image).await.unwrap(), PushTrial::Cancelled);
    assert_eq!(uploads(bed, "team/tried"), 1, "the other one alone");
    assert_eq!(bed.registry().tags("team/tried").await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_registry_that_can_be_read_only_refuses_the_push_and_nothing_else() {
    let bed = Bed::builder().registry().start().await.unwrap();
    let registry = adapter(&bed.registry().host(), Credentials::Anonymous);
    let (image, digest) = busybox(&bed, &registry).await;
    bed.registry().make_read_only().await.unwrap();
    assert!(registry.has(&image, &digest).await.unwrap());
    let error = registry.try_push(&image).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Denied);
    let text = error.to_string();
    assert!(text.contains("base/busybox takes no push") && text.contains("read-only"), "{text}");
}

#[tokio::test]
async fn a_push_is_asked_for_with_the_right_to_push_and_cancelled_with_it() {
    let realm = server(|request| {
        let rights = if request.contains("scope=repository%3Aa%3Apull%2Cpush") { "push" } else { "pull" };
        let body = format!("{{\"token\":\"{rights}\"}}");
        answer("200 OK", "Content-Type: application/json\r\n", body.as_bytes())
    })
    .await;
    let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{realm}/token\"\r\n");
    let host = server(move |request| match request.split_whitespace().next() {
        _ if !request.contains("authorization: Bearer push") => answer("401 Unauthorized", &challenge, b""),
        Some("POST") => answer("202 Accepted", "Location: /v2/a/blobs/uploads/1?_state=x\r\n", b""),
        Some("DELETE") if request.contains("/v2/a/blobs/uploads/1?_state=x") => {
            answer("204 No Content", "", b"")
        }
        _ => answer("400 Bad Request", "", b""),
    })
    .await;
    let registry = adapter(&host, Credentials::Anonymous);
    assert_eq!(registry.try_push(&image(&host, "a")).await.unwrap(), PushTrial::Cancelled);
}

#[tokio::test]
async fn a_push_that_is_refused_says_so_and_credentials_go_nowhere_else() {
    for (status, remedy) in [
        ("401 Unauthorized", "credentials"),
        ("403 Forbidden", "credentials"),
        ("404 Not Found", "make the repository"),
    ] {
        let host = server(move |_| answer(status, "", b"")).await;
        let error = adapter(&host, Credentials::Anonymous).try_push(&image(&host, "a")).await.unwrap_err();
        assert_eq!(error.fault(), Fault::Denied, "{error}");
        assert!(error.to_string().contains(remedy), "{error}");
    }
    let stranger = server(|_| panic!("somebody else was asked")).await;
    let location = format!("Location: http://{stranger}/upload\r\n");
    let host = server(move |_| answer("202 Accepted", &location, b"")).await;
    let trial = adapter(&host, Credentials::Anonymous).try_push(&image(&host, "a")).await.unwrap();
    let PushTrial::Left(why) = trial else { panic!("{trial:?}") };
    assert!(why.contains(&stranger), "{why}");
    let keeps = server(|request| match request.starts_with("POST") {
        true => answer("202 Accepted", "Location: /u\r\n", b""),
        false => answer("405 Method Not Allowed", "", b""),
    })
    .await;
    let trial = adapter(&keeps, Credentials::Anonymous).try_push(&image(&keeps, "a")).await.unwrap();
    assert!(matches!(trial, PushTrial::Left(why) if why.contains("405")));
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A server that answers as no real registry would, for as long as the test runs; its host.
async fn server(reply: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                match stream.read(&mut buffer).await {
                    Ok(read @ 1..) => request.extend_from_slice(&buffer[..read]),
                    Ok(0) | Err(_) => break,
                }
            }
            let text = String::from_utf8_lossy(&request).into_owned();
            let mut bytes = reply(&text);
            if text.starts_with("HEAD ") {
                let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(0) + 4;
                bytes.truncate(end);
            }
            // The client may have seen enough.
            let _ = stream.write_all(&bytes).await;
        }
    });
    host
}
