//! The cluster tested against itself: what every other test on it takes for granted.

use std::fmt::{Display, Formatter};
use std::ops::Deref;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use fabrique_bed::{Cluster, GitRepo, wait_until};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// What a policy may take to be programmed, and an image to be pulled on a busy machine.
const LATER: Duration = Duration::from_secs(120);

/// The shared cluster, or why it cannot be had here.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so where its output is captured")]
async fn cluster() -> Option<&'static Cluster> {
    if let Err(obstacle) = Cluster::possible() {
        assert!(std::env::var_os("FABRIQUE_STRICT").is_none(), "no cluster here: {obstacle}");
        println!("SKIP: {obstacle}");
        return None;
    }
    Some(Cluster::shared().await)
}

/// A namespace of one test, which goes with it: a cluster that is kept between runs must not fill up.
struct Namespace {
    cluster: &'static Cluster,
    name: String,
}

impl Deref for Namespace {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl Display for Namespace {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let mut command = self.cluster.kubectl_command().into_std();
        command.args(["delete", "namespace", &self.name, "--wait=false"]).stdout(Stdio::null());
        // It is in nobody's way.
        let _ = command.status();
    }
}

async fn namespace(cluster: &'static Cluster, name: &str) -> Result<Namespace> {
    let name = format!("{name}-{}", std::process::id());
    cluster.kubectl(&["create", "namespace", &name]).await?;
    Ok(Namespace { cluster, name })
}

/// A pod of one container; `spec` and `container` are more fields of each, as YAML's flow mappings without braces.
fn pod(namespace: &str, name: &str, image: &str, spec: &str, container: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{namespace: {namespace}, name: {name}, labels: {{name: {name}}}}}\n\
         spec: {{terminationGracePeriodSeconds: 0, {spec}\n  \
         containers: [{{name: main, image: '{image}', {container}}}]}}\n"
    )
}

const SLEEP: &str = "command: [sleep, infinity]";

async fn get(cluster: &Cluster, namespace: &str, kind: &str, name: &str) -> Result<Value> {
    let text = cluster.kubectl(&["get", kind, name, "--namespace", namespace, "--output=json"]).await?;
    Ok(serde_json::from_str(&text)?)
}

async fn run(cluster: &Cluster, namespace: &str, name: &str, spec: &str, container: &str) -> Result<Value> {
    cluster.apply(&pod(namespace, name, &cluster.images().debian, spec, container)).await?;
    wait_until(&format!("pod {name} to be ready"), LATER, || async {
        let pod = get(cluster, namespace, "pod", name).await.ok()?;
        let conditions = pod["status"]["conditions"].as_array()?;
        let ready = conditions.iter().any(|is| is["type"] == "Ready" && is["status"] == "True");
        ready.then_some(pod)
    })
    .await
}

async fn exec(cluster: &Cluster, namespace: &str, pod: &str, script: &str) -> Result<String> {
    cluster.kubectl(&["exec", "--namespace", namespace, pod, "--", "bash", "-c", script]).await
}

#[tokio::test]
async fn three_nodes_are_ready_and_one_is_the_control_planes() {
    let Some(cluster) = cluster().await else { return };
    for name in cluster.nodes() {
        let node = get(cluster, "default", "node", name).await.unwrap();
        let conditions = node["status"]["conditions"].as_array().unwrap();
        assert!(conditions.iter().any(|is| is["type"] == "Ready" && is["status"] == "True"), "{name}");
        let taints = node["spec"]["taints"].to_string();
        let labelled = node["metadata"]["labels"].get("node-role.kubernetes.io/control-plane").is_some();
        assert_eq!(
            (labelled, taints.contains("control-plane")),
            (name == "control", name == "control"),
            "{name}"
        );
        assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v1.36.3");
    }
}

#[tokio::test]
async fn a_pod_runs_by_digest_on_a_worker_and_the_caller_reaches_it() {
    let Some(cluster) = cluster().await else { return };
    let namespace = namespace(cluster, "digest").await.unwrap();
    let serve = "command: [bash, -c, 'while :; do sleep 1; done']";
    let pod = run(cluster, &namespace, "one", "", serve).await.unwrap();
    assert!(pod["spec"]["nodeName"].as_str().unwrap().starts_with("worker"), "{pod}");
    let status = &pod["status"]["containerStatuses"][0];
    let (_, digest) = cluster.images().debian.split_once('@').unwrap();
    assert!(status["imageID"].as_str().unwrap().ends_with(digest), "{status}");
    // Nothing listens there, which only the pod itself can tell: a stranger would have been silent.
    let address = format!("{}:9", pod["status"]["podIP"].as_str().unwrap());
    let dialled = tokio::time::timeout(SOON, tokio::net::TcpStream::connect(address)).await;
    let refused = dialled.expect("no answer from the pod").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn the_control_plane_takes_only_what_tolerates_its_taint() {
    let Some(cluster) = cluster().await else { return };
    let namespace = namespace(cluster, "taint").await.unwrap();
    let there = "nodeSelector: {node-role.kubernetes.io/control-plane: ''},";
    let stranger = pod(&namespace, "stranger", &cluster.images().debian, there, SLEEP);
    cluster.apply(&stranger).await.unwrap();
    let reason = wait_until("the scheduler's reason", SOON, || async {
        let pod = get(cluster, &namespace, "pod", "stranger").await.ok()?;
        let conditions = pod["status"]["conditions"].as_array()?.clone();
        let condition = conditions.into_iter().find(|is| is["type"] == "PodScheduled")?;
        (condition["reason"] == "Unschedulable").then(|| condition["message"].to_string())
    });
    assert!(reason.await.unwrap().contains("untolerated taint"));
    let tolerant =
        format!("{there} tolerations: [{{key: node-role.kubernetes.io/control-plane, operator: Exists}}],");
    let pod = run(cluster, &namespace, "tolerant", &tolerant, SLEEP).await.unwrap();
    assert_eq!(pod["spec"]["nodeName"], "control");
}

/// Whether a pod gets a connection to `host/port`.
async fn reaches(cluster: &Cluster, namespace: &str, pod: &str, target: &str) -> bool {
    let script = format!("timeout 2 bash -c 'exec 3<>/dev/tcp/{target}'");
    exec(cluster, namespace, pod, &script).await.is_ok()
}

#[tokio::test]
async fn a_network_policy_closes_what_it_does_not_name_and_opens_it_when_it_goes() {
    let Some(cluster) = cluster().await else { return };
    let namespace = namespace(cluster, "policy").await.unwrap();
    run(cluster, &namespace, "probe", "", SLEEP).await.unwrap();
    let other =
        run(cluster, &namespace, "other", "", "command: [bash, -c, 'ip -brief address; sleep infinity']");
    other.await.unwrap();
    let targets =
        ["198.18.0.3/3000", "198.18.0.4/4222", "198.18.0.11/6443", "198.18.0.11/2379", "198.18.0.12/10250"];
    for target in targets {
        assert!(reaches(cluster, &namespace, "probe", target).await, "{target} is open before the policy");
    }
    let policy = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{namespace: {namespace}, name: registry-only}}\n\
         spec: {{podSelector: {{}}, policyTypes: [Egress], \
         egress: [{{to: [{{ipBlock: {{cidr: 198.18.0.2/32}}}}], ports: [{{port: 80}}]}}]}}\n"
    );
    cluster.apply(&policy).await.unwrap();
    for target in targets {
        wait_until(&format!("{target} to be closed"), LATER, || async {
            (!reaches(cluster, &namespace, "probe", target).await).then_some(())
        })
        .await
        .unwrap();
    }
    assert!(reaches(cluster, &namespace, "probe", "198.18.0.2/80").await, "the registry is named");
    cluster.kubectl(&["delete", "networkpolicy", "registry-only", "--namespace", &namespace]).await.unwrap();
    for target in targets {
        wait_until(&format!("{target} to be open again"), LATER, || async {
            reaches(cluster, &namespace, "probe", target).await.then_some(())
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn a_pod_in_a_user_namespace_is_root_of_nothing_outside() {
    let Some(cluster) = cluster().await else { return };
    let namespace = namespace(cluster, "userns").await.unwrap();
    let pod = run(cluster, &namespace, "mapped", "hostUsers: false,", SLEEP).await.unwrap();
    assert!(pod["spec"]["nodeName"].as_str().unwrap().starts_with("worker"));
    let map = exec(cluster, &namespace, "mapped", "id --user; cat /proc/self/uid_map").await.unwrap();
    let numbers: Vec<u64> = map.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [user, inside, outside, count] = numbers[..] else { panic!("one range: {map}") };
    assert_eq!((user, inside), (0, 0));
    assert!(outside >= 65_536 && count >= 65_536, "{map}");
}

/// How a pod that may run once ended: its status, once it has.
async fn ended(cluster: &Cluster, namespace: &str, name: &str, container: &str) -> Result<Value> {
    let spec = "restartPolicy: Never, volumes: [{name: small, emptyDir: {sizeLimit: 8Mi}}],";
    cluster.apply(&pod(namespace, name, &cluster.images().debian, spec, container)).await?;
    wait_until(&format!("pod {name} to fail"), LATER, || async {
        let status = get(cluster, namespace, "pod", name).await.ok()?["status"].clone();
        (status["phase"] == "Failed").then_some(status)
    })
    .await
}

#[tokio::test]
async fn a_container_that_outgrows_its_memory_is_killed_for_that() {
    let Some(cluster) = cluster().await else { return };
    let namespace = namespace(cluster, "memory").await.unwrap();
    let eats = "command: [bash, -c, 'x=$(head -c 200000000 /dev/zero | tr \\\\0 x); sleep infinity'], \
                resources: {limits: {memory: 64Mi}}";
    let status = ended(cluster, &namespace, "eater", eats).await.unwrap();
    let terminated = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&terminated["reason"], &terminated["exitCode"]),
        (&"OOMKilled".into(), &137.into()),
        "{status}"
    );
}

#[tokio::test]
async fn a_pod_that_outgrows_its_volume_is_evicted() {
    let Some(cluster) = cluster().await else { return };
    let namespace = namespace(cluster, "disk").await.unwrap();
    let fills = "command: [bash, -c, 'head -c 32000000 /dev/zero > /small/file; sleep infinity'], \
                 volumeMounts: [{name: small, mountPath: /small}], \
                 resources: {requests: {ephemeral-storage: 1Mi}, limits: {ephemeral-storage: 64Mi}}";
    let status = ended(cluster, &namespace, "filler", fills).await.unwrap();
    assert_eq!(status["reason"], "Evicted", "{status}");
}

#[tokio::test]
async fn a_pod_cannot_have_processes_without_end() {
    let Some(cluster) = cluster().await else { return };
    let namespace = namespace(cluster, "processes").await.unwrap();
    let forks = "command: [bash, -c, 'for i in {1..1100}; do sleep 300 & done; exit 3']";
    let status = ended(cluster, &namespace, "forker", forks).await.unwrap();
    let terminated = &status["containerStatuses"][0]["state"]["terminated"];
    assert_ne!(terminated["exitCode"], 3, "the loop got to its end: {terminated}");
}

#[tokio::test]
async fn pods_resolve_the_servers_beside_the_cluster_and_its_services() {
    let Some(cluster) = cluster().await else { return };
    let namespace = namespace(cluster, "names").await.unwrap();
    run(cluster, &namespace, "probe", "", SLEEP).await.unwrap();
    let asked =
        exec(cluster, &namespace, "probe", "getent hosts registry gitea nats permitted.example").await;
    let addresses: Vec<String> =
        asked.unwrap().lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect();
    assert_eq!(addresses, ["198.18.0.2", "198.18.0.3", "198.18.0.4", "198.19.255.10"]);
    let version = "curl --silent --insecure --max-time 5 https://kubernetes.default.svc/version";
    assert!(exec(cluster, &namespace, "probe", version).await.unwrap().contains("gitVersion"));
    let outside = "curl --silent --max-time 2 http://1.1.1.1/";
    assert!(exec(cluster, &namespace, "probe", outside).await.is_err(), "there is no way out");
}

#[tokio::test]
async fn a_pod_reaches_the_world_that_a_test_makes() {
    let Some(cluster) = cluster().await else { return };
    let namespace = namespace(cluster, "world").await.unwrap();
    run(cluster, &namespace, "probe", "", SLEEP).await.unwrap();
    let ask = "curl --silent --fail --max-time 5 http://permitted.example:8000/";
    assert!(exec(cluster, &namespace, "probe", ask).await.is_err(), "nothing serves there yet");
    let world = tempfile::tempdir().unwrap();
    std::fs::write(world.path().join("index.html"), "hello from the world").unwrap();
    let mut command = cluster.outside_command().unwrap();
    command.args(["python3", "-m", "http.server", "--bind", "198.19.255.10", "8000"]);
    let mut server =
        command.current_dir(world.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the world to answer", SOON, || async {
        exec(cluster, &namespace, "probe", ask).await.ok().filter(|text| text == "hello from the world")
    })
    .await
    .unwrap();
    server.kill().await.unwrap();
}

#[tokio::test]
async fn a_service_account_can_do_what_its_role_says_and_no_more() {
    let Some(cluster) = cluster().await else { return };
    let namespace = namespace(cluster, "account").await.unwrap();
    let in_namespace = ["--namespace", &namespace];
    for words in [
        ["create", "serviceaccount", "reader"].as_slice(),
        &["create", "role", "reader", "--verb=list", "--resource=pods"],
        &[
            "create",
            "rolebinding",
            "reader",
            "--role=reader",
            &format!("--serviceaccount={namespace}:reader"),
        ],
    ] {
        cluster.kubectl(&[words, &in_namespace].concat()).await.unwrap();
    }
    let config = cluster.service_account_kubeconfig(&namespace, "reader").await.unwrap();
    let flag = format!("--kubeconfig={}", config.display());
    cluster.kubectl(&[&flag, "get", "pods"]).await.unwrap();
    let refused = cluster.kubectl(&[&flag, "get", "secrets"]).await.unwrap_err();
    assert!(refused.to_string().contains("forbidden"), "{refused}");
    let name = format!("system:serviceaccount:{namespace}:reader");
    wait_until("both requests in the audit log", SOON, || async {
        let log = std::fs::read_to_string(cluster.audit_log()).ok()?;
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let asked: Vec<String> = events
            .filter(|event| event["user"]["username"] == name.as_str())
            .map(|event| format!("{} {}", event["verb"], event["objectRef"]["resource"]))
            .collect();
        let both = ["\"list\" \"pods\"", "\"list\" \"secrets\""];
        both.iter().all(|wanted| asked.iter().any(|event| event == wanted)).then_some(())
    })
    .await
    .unwrap();
}

/// An Application of a repository's root into a namespace, synced by itself.
fn application(name: &str, repository: &str, namespace: &str) -> String {
    format!(
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {{name: {name}, namespace: argocd}}\n\
         spec:\n  project: default\n  source: {{repoURL: '{repository}', path: '.', targetRevision: main}}\n  \
         destination: {{server: 'https://kubernetes.default.svc', namespace: {namespace}}}\n  \
         syncPolicy: {{automated: {{prune: true, selfHeal: true}}}}\n"
    )
}

async fn is_synced_to(cluster: &Cluster, application: &str, revision: &str) -> Result<()> {
    wait_until(&format!("{application} to be synced to {revision} and healthy"), LATER, || async {
        let status = get(cluster, "argocd", "application", application).await.ok()?["status"].clone();
        let synced = status["sync"]["status"] == "Synced" && status["sync"]["revision"] == revision;
        (synced && status["health"]["status"] == "Healthy").then_some(())
    })
    .await
}

#[tokio::test]
async fn argo_cd_deploys_a_push_that_a_webhook_tells_it_of() {
    let Some(cluster) = cluster().await else { return };
    let name = namespace(cluster, "argo").await.unwrap();
    let (gitea, argocd) = (cluster.gitea(), cluster.argocd());
    gitea.create_org(&name).await.unwrap();
    gitea.create_repo(&name, "apps", false).await.unwrap();
    let repo = GitRepo::clone(&gitea.clone_url_with_token(&name, "apps")).await.unwrap();
    repo.write("kustomization.yaml", "resources: [pod.yaml]\n").await.unwrap();
    let image = &cluster.images().debian;
    repo.write("pod.yaml", &pod(&name, "deployed", image, "", SLEEP)).await.unwrap();
    let first = repo.commit("Deploy").await.unwrap();
    repo.push().await.unwrap();
    cluster.apply(&application(&name, &gitea.clone_url(&name, "apps"), &name)).await.unwrap();
    is_synced_to(cluster, &name, &first).await.unwrap();

    gitea.create_webhook(&name, "apps", &argocd.webhook_url(), argocd.webhook_secret()).await.unwrap();
    repo.write("kustomization.yaml", "resources: [pod.yaml]\nnameSuffix: \"-2\"\n").await.unwrap();
    let second = repo.commit("Rename it").await.unwrap();
    repo.push().await.unwrap();
    // Left alone it would look again after ten minutes.
    is_synced_to(cluster, &name, &second).await.unwrap();
    let deployed = get(cluster, &name, "pod", "deployed-2").await.context("the renamed pod").unwrap();
    assert_eq!(deployed["spec"]["containers"][0]["image"], image.as_str());
    let away = ["delete", "application", &*name, "--namespace=argocd", "--wait=false"];
    cluster.kubectl(&away).await.unwrap();
}

#[tokio::test]
async fn argo_cd_refuses_a_webhook_that_is_signed_with_another_secret() {
    let Some(cluster) = cluster().await else { return };
    // Refused when the process has a provider already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client
        .post(cluster.argocd().webhook_url())
        .header("X-Gogs-Event", "push")
        .header("X-Gogs-Signature", "00")
        .header("Content-Type", "application/json")
        .body("{}")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    assert!(answer.text().await.unwrap().contains("HMAC verification failed"));
}
