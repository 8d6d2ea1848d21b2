//! Knocking at doors from inside of pods, and what answers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use fabrique_bed::{Cluster, wait_until};
use serde_json::{Value, json};

use crate::ground::SOON;

/// Images are pulled, and daemons started, on a machine that may be busy.
const LATER: Duration = Duration::from_secs(180);

/// A door, and whether it is to be open while the policies are in force.
pub(crate) type Doors = Vec<(String, u16, bool)>;

pub(crate) fn expected(doors: &Doors) -> BTreeMap<String, bool> {
    doors.iter().map(|(host, port, open)| (format!("{host}:{port}"), *open)).collect()
}

/// Knocks at all doors at once, from inside a pod. Nothing when nobody could.
pub(crate) async fn knocked(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
    doors: &Doors,
) -> Option<BTreeMap<String, bool>> {
    let script = r#"for door; do
  { if timeout 3 bash -c 'exec 3<>"/dev/tcp/${0%:*}/${0##*:}"' "$door" 2>/dev/null; then echo "$door open"; else echo "$door closed"; fi; } &
done
wait"#;
    let doors: Vec<String> = doors.iter().map(|(host, port, _)| format!("{host}:{port}")).collect();
    let mut args = vec!["exec", "--namespace", namespace, pod, "--", "bash", "-c", script, "knock"];
    args.extend(doors.iter().map(String::as_str));
    let told = cluster.kubectl(&args).await.ok()?;
    let answer = |line: &str| line.split_once(' ').map(|(door, word)| (door.to_owned(), word == "open"));
    Some(told.lines().filter_map(answer).collect())
}

/// Knocks until the answers are `wanted`, and returns the last ones.
pub(crate) async fn until(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
    doors: &Doors,
    wanted: &BTreeMap<String, bool>,
) -> BTreeMap<String, bool> {
    let mut last = BTreeMap::new();
    let knocking = async {
        loop {
            if let Some(answers) = knocked(cluster, namespace, pod, doors).await {
                last = answers;
            }
            if last == *wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let _ = tokio::time::timeout(SOON, knocking).await;
    last
}

/// Starts a pod that is as confined as ours and does nothing.
pub(crate) async fn start_pod(cluster: &Cluster, namespace: &str, name: &str, labels: &Value) {
    let spec = json!({
        "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{
            "name": "main", "image": cluster.images().debian, "command": ["sleep", "infinity"],
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        }],
    });
    start_pod_of(cluster, namespace, name, labels, spec).await;
}

/// Starts a pod and waits until it is ready. It knows no token, and ends at once.
pub(crate) async fn start_pod_of(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    labels: &Value,
    mut spec: Value,
) {
    spec["terminationGracePeriodSeconds"] = json!(0);
    spec["automountServiceAccountToken"] = json!(false);
    let metadata = json!({ "name": name, "namespace": namespace, "labels": labels });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    cluster.apply(&pod.to_string()).await.unwrap();
    ready(cluster, namespace, name).await;
}

pub(crate) async fn get(cluster: &Cluster, namespace: &str, kind: &str, name: &str) -> Option<Value> {
    let args = ["get", kind, name, "--namespace", namespace, "--output=json"];
    serde_json::from_str(&cluster.kubectl(&args).await.ok()?).ok()
}

pub(crate) async fn ready(cluster: &Cluster, namespace: &str, name: &str) -> Value {
    let what = format!("pod {name} to be ready");
    let ready = wait_until(&what, LATER, || async {
        let pod = get(cluster, namespace, "pod", name).await?;
        let conditions = pod["status"]["conditions"].as_array()?;
        let ready = conditions.iter().any(|is| is["type"] == "Ready" && is["status"] == "True");
        ready.then_some(pod)
    });
    match ready.await {
        Ok(pod) => pod,
        Err(error) => {
            let pod = get(cluster, namespace, "pod", name).await.unwrap_or_default();
            panic!("{error}: {:#}", pod["status"]);
        }
    }
}

pub(crate) fn address(pod: &Value) -> IpAddr {
    pod["status"]["podIP"].as_str().unwrap().parse().unwrap()
}
