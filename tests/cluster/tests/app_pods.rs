//! What pods the API server takes in namespaces of apps that have no Pod Security level of their own, as an overlay finds them.

use std::fs;

use fabrique_bed::wait_until;
use fabrique_cluster_tests::manifests;
use serde_json::{Value, json};

use crate::ground::{Ground, SOON, ground, try_object};

const NAME: &str = "fabrique-app-pods";

/// A change of a pod's specification.
type Violation = fn(&mut Value);

/// The admission policy, in force in a namespace of the test's own: at the bench's `apps` Pod Security answers first.
struct Guarded {
    ground: Ground,
    own: String,
}

impl Guarded {
    async fn new(ground: Ground) -> Self {
        let own = format!("{NAME}-{}", std::process::id());
        let text = fs::read_to_string(manifests::root().join("base/admission/app-pods.yaml")).unwrap();
        let text = text.replace(NAME, &own).replace("metadata.name: apps", &format!("metadata.name: {own}"));
        let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{ name: {own} }}\n---\n{text}");
        ground.cluster.apply(&namespace).await.unwrap();
        Self { ground, own }
    }

    async fn try_pod(&self, change: impl Fn(&mut Value)) -> Result<(), String> {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "tried", "namespace": self.own },
            "spec": {
                "automountServiceAccountToken": false,
                "initContainers": [{ "name": "first", "image": "a" }],
                "containers": [{
                    "name": "app", "image": "a", "ports": [{ "containerPort": 80 }],
                    "securityContext": { "privileged": false, "capabilities": { "add": ["NET_BIND_SERVICE"] } },
                }],
                "volumes": [{ "name": "own", "emptyDir": {} }],
            },
        });
        change(&mut pod["spec"]);
        try_object(self.ground.client().await, &pod).await
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy", "namespace"] {
            let mut kubectl = self.ground.cluster.kubectl_command().into_std();
            let _ = kubectl.args(["delete", "--wait=false", kind, &self.own]).output();
        }
    }
}

#[tokio::test]
async fn a_pod_of_an_app_stays_behind_the_policies_and_off_its_node() {
    let Some(ground) = ground().await else { return };
    let guarded = Guarded::new(ground).await;
    let violations: [(&str, Violation); 11] = [
        ("shares no namespace", |spec| spec["hostNetwork"] = json!(true)),
        ("shares no namespace", |spec| spec["hostPID"] = json!(true)),
        ("shares no namespace", |spec| spec["hostIPC"] = json!(true)),
        ("no port of the node", |spec| spec["containers"][0]["ports"][0]["hostPort"] = json!(80)),
        ("no port of the node", |spec| {
            spec["initContainers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": 80 }]);
        }),
        ("no files of the node", |spec| {
            spec["volumes"] = json!([{ "name": "node", "hostPath": { "path": "/etc" } }]);
        }),
        ("not privileged", |spec| spec["containers"][0]["securityContext"] = json!({ "privileged": true })),
        ("not privileged", |spec| {
            spec["initContainers"][0]["securityContext"] = json!({ "privileged": true });
        }),
        ("adds no capability", |spec| {
            spec["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["SYS_ADMIN"]);
        }),
        ("adds no capability", |spec| {
            spec["initContainers"][0]["securityContext"] =
                json!({ "capabilities": { "add": ["NET_ADMIN"] } });
        }),
        ("adds no capability", |spec| {
            spec["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["ALL"]);
        }),
    ];
    // Before that the namespace may lack its account, which is another refusal.
    let refused =
        || async { guarded.try_pod(violations[0].1).await.err().filter(|told| told.contains("shares no")) };
    wait_until("the admission policy to be in force", SOON, refused).await.unwrap();
    assert_eq!(guarded.try_pod(|_| {}).await, Ok(()));
    for (reason, change) in violations {
        let answer = guarded.try_pod(change).await;
        assert!(answer.as_ref().is_err_and(|told| told.contains(reason)), "{reason}: {answer:?}");
    }
}
