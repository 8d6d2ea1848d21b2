//! What a real API server makes of whole overlays, and of our own pods.

use std::process::{Output, Stdio};

use fabrique_cluster_tests::manifests::{self, COMPONENTS, OVERLAYS};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::ground::{Ground, ground, kind, try_object};
use crate::rendered::{self, templates};

/// Kinds that an overlay expects to be there, with any content: their own checks are not what is tested here.
const FOREIGN: [(&str, &str, &str, &str); 4] = [
    ("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
    ("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
    ("cilium.io", "v2", "CiliumNetworkPolicy", "ciliumnetworkpolicies"),
    ("cilium.io", "v2", "CiliumClusterwideNetworkPolicy", "ciliumclusterwidenetworkpolicies"),
];
/// Namespaces that an overlay expects to be there, or makes: a dry run makes none.
const NAMESPACES: [&str; 4] = ["apps", "argocd", "fabrique-egress", "gitea"];

/// Makes what overlays expect to be there.
pub(crate) async fn expected(ground: Ground) {
    let schema =
        json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let definitions = FOREIGN.map(|(group, version, kind, plural)| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": if kind.contains("Clusterwide") { "Cluster" } else { "Namespaced" },
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
                "versions": [{ "name": version, "served": true, "storage": true, "schema": schema }],
            },
        })
    });
    let namespaces = NAMESPACES
        .map(|name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
    let items: Vec<Value> = definitions.into_iter().chain(namespaces).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    ground.cluster.apply(&list.to_string()).await.unwrap();
    let names = FOREIGN.map(|(group, _, _, plural)| format!("crd/{plural}.{group}"));
    let mut wait = vec!["wait", "--for=condition=Established", "--timeout=60s"];
    wait.extend(names.iter().map(String::as_str));
    ground.cluster.kubectl(&wait).await.unwrap();
}

async fn kubectl(ground: Ground, args: &[&str], input: &str) -> Output {
    let mut command = ground.cluster.kubectl_command();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
    child.wait_with_output().await.unwrap()
}

/// A dry run of `kubectl apply` ends well and without a warning: of a deprecated field, of a pod that the namespace's
/// level would not take.
async fn applies(ground: Ground, what: &str, args: &[&str], input: &str) {
    let apply =
        ["apply", "--server-side", "--force-conflicts", "--field-manager=dry-run", "--dry-run=server"];
    let output = kubectl(ground, &[&apply, args].concat(), input).await;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {told}");
    assert_eq!(told.trim(), "", "{what}");
}

#[tokio::test]
async fn every_overlay_is_taken_by_the_api_server_without_a_warning() {
    let Some(ground) = ground().await else { return };
    expected(ground).await;
    for name in OVERLAYS {
        let folder = manifests::root().join("overlays").join(name);
        applies(ground, name, &["--kustomize", folder.to_str().unwrap()], "").await;
    }
}

#[tokio::test]
async fn every_component_is_taken_by_the_api_server_without_a_warning() {
    let Some(ground) = ground().await else { return };
    expected(ground).await;
    for name in COMPONENTS {
        let text = manifests::base_with(&[name]).await.unwrap();
        applies(ground, name, &["--filename=-"], &text).await;
    }
}

/// A pod as its owner would make it.
fn pod(template: &Value, namespace: &str) -> Value {
    let mut pod = template.clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("dry-run");
    pod["metadata"]["namespace"] = json!(namespace);
    // Who is not there cannot be used: accounts of components are theirs.
    pod["spec"]["serviceAccountName"] = json!("default");
    let names = |list: &Value| -> Vec<Value> {
        list.as_array().unwrap().iter().map(|item| item["name"].clone()).collect()
    };
    let (mounts, volumes) =
        (names(&pod["spec"]["containers"][0]["volumeMounts"]), names(&pod["spec"]["volumes"]));
    let claimed = mounts.into_iter().filter(|name| !volumes.contains(name));
    let claimed: Vec<Value> = claimed.map(|name| json!({ "name": name, "emptyDir": {} })).collect();
    pod["spec"]["volumes"].as_array_mut().unwrap().extend(claimed);
    pod
}

#[tokio::test]
async fn our_own_pods_are_admitted_at_the_level_restricted_and_one_that_is_wider_is_not() {
    let Some(ground) = ground().await else { return };
    expected(ground).await;
    let client = ground.client().await;
    let mut admitted = 0;
    for (name, documents) in rendered::all().await {
        for namespace in documents.iter().filter(|document| kind(document) == "Namespace") {
            let level = &namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
            let own = !["fabrique-builds", "apps"].contains(&namespace["metadata"]["name"].as_str().unwrap());
            assert!(!own || level == "restricted", "{name}: {namespace}");
        }
        for (owner, template) in templates(&documents) {
            // Where the level is enforced on this cluster, whatever namespace a component has for its own.
            let pod = pod(template, "fabrique");
            assert_eq!(try_object(client.clone(), &pod).await, Ok(()), "{name}: {owner}");
            let mut wider = pod;
            wider["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
            let refused = try_object(client.clone(), &wider).await.unwrap_err();
            assert!(refused.contains("violates PodSecurity \"restricted"), "{name}: {owner}: {refused}");
            admitted += 1;
        }
    }
    assert!(admitted >= 6 * (OVERLAYS.len() + COMPONENTS.len()), "only {admitted} pods were tried");
}
