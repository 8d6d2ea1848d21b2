//! The bench's overlay installed: its pods run as they are written, under their own policies and level.

use std::time::Duration;

use fabrique_cluster_tests::manifests::IMAGE;
use fabrique_core::time::Timestamp;
use fabrique_kubernetes::pki::BuilderCa;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::ground::{Ground, builders_alone, ground, kind};
use crate::image::image;

const SECRETS: [&str; 6] = [
    "fabrique-receiver",
    "fabrique-worker",
    "fabrique-reconciler",
    "fabrique-hooks",
    "fabrique-init",
    "fabrique-builder-ca",
];
const WORKLOADS: [&str; 4] = ["Deployment", "CronJob", "PodDisruptionBudget", "Service"];

#[tokio::test]
async fn the_roles_get_ready_and_the_jobs_end_well() {
    let Some(ground) = ground().await else { return };
    let _alone = builders_alone().await;
    let cluster = ground.cluster;
    // Beside whatever else is on this forge.
    let org = format!("manifests-{}", std::process::id());
    cluster.gitea().create_org(&org).await.unwrap();
    cluster.gitea().create_repo(&org, "apps", true).await.unwrap();
    install_secrets(ground).await;
    install(ground, &org).await;
    job(ground, "init", "init-test").await;
    for deployment in ["receiver", "worker"] {
        rolled_out(ground, deployment).await;
    }
    for role in ["reconciler", "hooks"] {
        job(ground, role, &format!("{role}-test")).await;
    }
    let hooks = cluster.gitea().api("GET", &format!("/repos/{org}/apps/hooks"), None).await.unwrap();
    assert_eq!(hooks.as_array().unwrap().len(), 1, "{hooks}");
    // Gitea resolves no name of the cluster.
    assert_eq!(hooks[0]["config"]["url"], "http://198.19.0.80:8080/webhook", "{hooks}");
    // As Gitea reaches it: by the Service, without a signature.
    let answer = post_webhook().await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    remove(ground).await;
}

/// Applies the overlay's workloads.
async fn install(ground: Ground, org: &str) {
    let image = image(ground).await;
    let documents = ground.bench().await;
    let config = documents.iter().filter(|document| kind(document) == "ConfigMap");
    let workloads = documents.iter().filter(|document| WORKLOADS.contains(&kind(document)));
    let items: Vec<&Value> = config.chain(workloads).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
    let list =
        list.replace(IMAGE, image).replace("apps_repo: cluster/apps", &format!("apps_repo: {org}/apps"));
    ground.cluster.apply(&list).await.unwrap();
}

/// What `secrets.example.yaml` lists, with the bed's own values.
async fn install_secrets(ground: Ground) {
    let cluster = ground.cluster;
    let token = cluster.gitea().admin_token();
    let bus = |role: &str| cluster.nats().password(role).to_owned();
    let now = Timestamp(u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap());
    let authority = BuilderCa::generate(now, Duration::from_hours(24)).unwrap();
    let data = [
        json!({ "webhook-secret": "of-this-test", "apps-token": token, "nats-password": bus("receiver") }),
        json!({ "read-token": token, "status-token": token, "apps-token": token, "nats-password": bus("worker") }),
        json!({ "read-token": token, "apps-token": token, "nats-password": bus("reconciler") }),
        json!({ "hooks-token": token, "apps-token": token, "webhook-secret": "of-this-test" }),
        json!({ "nats-password": bus("admin") }),
        json!({ "ca.crt": authority.certificate, "ca.key": authority.key.expose_secret() }),
    ];
    let secrets = SECRETS.into_iter().zip(data);
    let items = secrets.map(|(name, data)| {
        let metadata = json!({ "name": name, "namespace": "fabrique" });
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data })
    });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>() });
    cluster.apply(&list.to_string()).await.unwrap();
}

/// Starts a job of this name from its template and waits for its good end.
pub(crate) async fn job(ground: Ground, template: &str, name: &str) {
    let from = format!("cronjob/{template}");
    let create = ["create", "job", "--namespace=fabrique", name, "--from", &from];
    ground.cluster.kubectl(&create).await.unwrap();
    let wait = [
        "wait",
        "--namespace=fabrique",
        "--for=condition=Complete",
        "--timeout=110s",
        &format!("job/{name}"),
    ];
    if let Err(error) = ground.cluster.kubectl(&wait).await {
        panic!("{error:#}\n{}", story(ground, &format!("batch.kubernetes.io/job-name={name}")).await);
    }
}

async fn rolled_out(ground: Ground, deployment: &str) {
    let name = format!("deployment/{deployment}");
    let wait = ["rollout", "status", "--namespace=fabrique", "--timeout=110s", &name];
    if let Err(error) = ground.cluster.kubectl(&wait).await {
        panic!("{error:#}\n{}", story(ground, &format!("app.kubernetes.io/component={deployment}")).await);
    }
}

/// What pods that did not do as they should have to say.
pub(crate) async fn story(ground: Ground, selector: &str) -> String {
    let ask = async |words: [&str; 2]| {
        let args = [words.as_slice(), &["--namespace=fabrique", "--selector", selector]].concat();
        ground.cluster.kubectl(&args).await.unwrap_or_default()
    };
    format!("{}\n{}", ask(["describe", "pods"]).await, ask(["logs", "--tail=50"]).await)
}

async fn post_webhook() -> String {
    let mut stream = TcpStream::connect("198.19.0.80:8080").await.unwrap();
    let request = "POST /webhook HTTP/1.1\r\nHost: fabrique\r\nContent-Type: application/json\r\n\
                   X-Gitea-Event: push\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Removes what ran, and the secrets: whoever installs next brings others.
async fn remove(ground: Ground) {
    let delete = ["delete", "--namespace=fabrique", "--ignore-not-found", "--wait=false"];
    let workloads = ["deployment/receiver", "deployment/worker"];
    let templates = ["init", "hooks", "mirror", "mirror-ensure", "reconciler"];
    let named = templates.iter().flat_map(|name| [format!("cronjob/{name}"), format!("job/{name}-test")]);
    let secrets = SECRETS.iter().map(|name| format!("secret/{name}"));
    let rest: Vec<String> = named.chain(secrets).collect();
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    ground.cluster.kubectl(&[delete.as_slice(), &workloads, &rest].concat()).await.unwrap();
}
