//! Apps of several images.

use fabrique_core::id::{BuildId, BuildKey, Channel, Digest, EnvironmentName, ImageRepository, Revision};
use fabrique_core::memory::{Built, Committed, Memory};
use fabrique_ports::Ambient as _;
use fabrique_ports::records::{Memories as _, Swap};
use fabrique_ports::registry::Registry as _;
use fabrique_reconciler::Depth;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{Clock, Cluster, Cost, name, registry, woken};

/// Pushes an image that differs from others in its note only, by digest.
async fn push(cluster: &Cluster, repository: &str, note: &str) -> Digest {
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    let body = format!(
        "{{\"schemaVersion\":2,\"mediaType\":\"{INDEX}\",\"manifests\":[],\"annotations\":{{\"note\":\"{note}\"}}}}"
    );
    let (digest, host) = (Digest::of(body.as_bytes()), cluster.bed.registry().host());
    let request = format!(
        "PUT /v2/{repository}/manifests/{digest} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {INDEX}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut connection = TcpStream::connect(&host).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    digest
}

fn key(digits: &str) -> BuildKey {
    BuildKey::parse(&digits.repeat(32)).unwrap()
}

/// An app whose `prod` and `staging` are held at two images, with a third that is built and shown nowhere.
async fn app_of_three(cluster: &Cluster) -> [Digest; 3] {
    let repo = cluster.register("a", "a").await;
    let head = repo.head().await.unwrap();
    let host = cluster.bed.registry().host();
    let registration = cluster.apps.read("apps/a/app.yaml").await.unwrap() + "    - { name: staging }\n";
    cluster.apps.write("apps/a/app.yaml", registration).await.unwrap();
    let [prod, staging, built] =
        [push(cluster, "a", "1").await, push(cluster, "a", "2").await, push(cluster, "a", "3").await];
    cluster.deploy("a", "a", &head, &prod).await;
    for (environment, digest) in [("prod", &prod), ("staging", &staging)] {
        let composition = format!(
            "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: a, environment: {environment} }}\n\
             image: {{ repository: {host}/a, digest: \"{digest}\", revision: {head}, \
             hold: {{ by: ada, reason: a release }} }}\n"
        );
        cluster.apps.write(&format!("apps/a/{environment}/composition.yaml"), composition).await.unwrap();
    }
    cluster.publish().await;

    let revision = Revision::parse(&head).unwrap();
    let last = Built {
        build: BuildId::new(&name("a"), &Clock.ulid()).unwrap(),
        key: key("ef"),
        revision: revision.clone(),
        digest: built.clone(),
    };
    let mut memory = Memory { built: Some(last), ..Memory::default() };
    for (environment, digest, digits) in [("prod", &prod, "ab"), ("staging", &staging, "cd")] {
        let environment = EnvironmentName::parse(environment).unwrap();
        memory.channel_mut(&environment, Channel::Image).committed = Some(Committed {
            commit: None,
            revision: revision.clone(),
            digest: Some(digest.clone()),
            key: Some(key(digits)),
        });
    }
    let swap = cluster.admin.swap_memory(&name("a"), &memory, 0).await.unwrap();
    assert!(matches!(swap, Swap::Done(_)));
    [prod, staging, built]
}

#[tokio::test]
async fn an_app_of_three_images_costs_two_requests_and_each_image_has_its_turn() {
    let cluster = Cluster::start().await;
    let [prod, staging, built] = app_of_three(&cluster).await;
    let (sweep, _) = cluster.sweep(Depth::Full).await;
    assert_eq!(sweep.restored.len(), 3, "one that misses its tag has the others looked at: {sweep:?}");

    for _ in 0..3 {
        let (sweep, cost) = cluster.sweep(Depth::Full).await;
        assert_eq!((woken(&sweep), sweep.restored.len(), sweep.findings.len()), (vec![], 0, 0), "{sweep:?}");
        assert_eq!(cost, Cost { forge: 1, registry: 1, written: 0 }, "two requests for one app");
    }

    let image = ImageRepository::parse(&format!("{}/a", cluster.bed.registry().host())).unwrap();
    for (digits, digest, other) in [("ab", &prod, &built), ("cd", &staging, &prod), ("ef", &built, &staging)]
    {
        let tag = key(digits).keep_tag();
        registry(&cluster.bed).tag(&image, other, &tag).await.unwrap();
        let mut restored = Vec::new();
        for _ in 0..3 {
            restored.extend(cluster.sweep(Depth::Full).await.0.restored);
        }
        let restored: Vec<_> = restored.iter().map(|it| (it.tag.as_str(), &it.digest)).collect();
        assert_eq!(restored, [(tag.as_str(), digest)]);
    }
}

/// The bus lost its records: what `prod` shows was built again for `staging`, under the same key.
#[tokio::test]
async fn two_images_of_one_key_have_a_tag_each_and_keep_it() {
    let cluster = Cluster::start().await;
    let [prod, staging, built] = app_of_three(&cluster).await;
    let memory = cluster.admin.memory(&name("a")).await.unwrap();
    let mut one_key = memory.value;
    for environment in one_key.environments.values_mut() {
        environment.image.committed.as_mut().unwrap().key = Some(key("ab"));
    }
    let swap = cluster.admin.swap_memory(&name("a"), &one_key, memory.revision).await.unwrap();
    assert!(matches!(swap, Swap::Done(_)));
    let image = ImageRepository::parse(&format!("{}/a", cluster.bed.registry().host())).unwrap();
    let (of_key, beside) = (key("ab").keep_tag(), key("ab").keep_tag_beside(&prod));
    // As a worker leaves it that built for `staging`.
    registry(&cluster.bed).tag(&image, &staging, &of_key).await.unwrap();

    let mut restored = Vec::new();
    for _ in 0..6 {
        restored.extend(cluster.sweep(Depth::Full).await.0.restored);
    }
    let mut restored: Vec<_> = restored.into_iter().map(|it| (it.tag, it.digest)).collect();
    restored.sort();
    assert_eq!(restored, [(beside.clone(), prod.clone()), (key("ef").keep_tag(), built)]);
    for (tag, digest) in [(of_key, staging), (beside, prod)] {
        assert_eq!(registry(&cluster.bed).resolve(&image, &tag).await.unwrap(), Some(digest));
    }
}
