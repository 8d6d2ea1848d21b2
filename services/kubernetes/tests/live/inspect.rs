//! What a doctor sees, by whom it is sent.

use std::time::Duration;

use fabrique_kubernetes::config::Isolation;
use fabrique_kubernetes::inspect::Inspector;
use fabrique_ports::builder::{Condition, Placement};
use serde_json::{Value, json};

use crate::ground::{Ground, eventually, lease};
use crate::wishes::Wide;
use crate::workshop::Workshop;

#[tokio::test]
async fn a_doctor_sees_what_is_missing_and_starts_nothing() {
    let Some(mut ground) = Ground::with_policies("auto").await else { return };
    ground.settings.pool.warm = 1;
    let inspector = |client| Inspector::new(client, ground.settings.clone()).unwrap();
    let (worker, admin) = (inspector(ground.worker().await), inspector(ground.admin().await));
    let choice = worker.choice().await.unwrap();
    assert_eq!(choice.isolation, Isolation::Userns, "{choice:?}");
    assert!(choice.reason.contains("offer user namespaces"), "{choice:?}");
    assert_eq!(worker.missing_rights().await.unwrap(), []);
    let account = format!("system:serviceaccount:{}:worker", ground.namespace);
    assert_eq!(worker.asked_as().await.unwrap(), Some(account));
    assert!(admin.asked_as().await.unwrap().is_some_and(|name| !name.contains("worker")));
    // What the worker does not need it may not read.
    assert_eq!(worker.network().await.unwrap(), None);
    assert_eq!(admin.network().await.unwrap(), Some(vec![]));
    assert_eq!(worker.daemons().await.unwrap(), []);
    assert_eq!(ground.pods().await, Vec::<String>::new());

    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    let daemons = worker.daemons().await.unwrap();
    assert!(daemons.contains(&leased.daemon), "{daemons:?}");
    // What a build's record says of where it ran.
    let recorded = format!("{} (userns: all 2 nodes for builders offer user namespaces)", leased.daemon.name);
    assert_eq!(leased.daemon.to_string(), recorded);
    placement.release(leased, Condition::Clean).await;

    ground.kubectl(&["delete", "networkpolicy", "default-deny"]).await;
    let findings = admin.network().await.unwrap().unwrap();
    assert_eq!(findings.len(), 2, "{findings:?}");
    ground.kubectl(&["delete", "role", "worker"]).await;
    eventually("the rights are gone", async || {
        let missing = worker.missing_rights().await.unwrap();
        missing.len() == 8 && missing.iter().all(|right| right.rule.resource != "nodes")
    })
    .await;
}

/// A runtime class is taken for its handler's name. No node has a handler of this one's, and so none says that it
/// offers user namespaces with it.
#[tokio::test]
async fn auto_falls_back_to_rootless_where_a_node_lacks_user_namespaces_and_says_so_everywhere() {
    let Some(mut ground) = Ground::with_policies("auto").await else { return };
    let own = ground.namespace.clone();
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": own }, "handler": "runc",
    });
    let _wide = Wide::make(ground.cluster, &[class]).await;
    ground.settings.scheduling.runtime_class = Some(own);
    let doctor = Inspector::new(ground.worker().await, ground.settings.clone()).unwrap();
    let choice = doctor.choice().await.unwrap();
    assert_eq!(choice.isolation, Isolation::Rootless, "{choice:?}");
    assert!(choice.reason.ends_with(" does not offer user namespaces"), "{choice:?}");

    let placement = ground.placement("worker-1").await;
    assert_eq!(placement.choice(), choice);
    let leased = lease(&placement, "citation").await;
    let pod = ground.pod(&leased.daemon.name).await;
    assert_eq!(pod["spec"]["containers"][0]["command"], json!(["rootlesskit", "buildkitd"]));
    assert_eq!(pod["metadata"]["annotations"]["fabrique/isolation-reason"], choice.reason.as_str());
    // What a build's record says of where it ran.
    assert_eq!(leased.daemon.to_string(), format!("{} (rootless: {})", leased.daemon.name, choice.reason));
    let workshop = Workshop::new(&ground).await;
    let dockerfile = format!("FROM {}\nRUN echo fine\n", ground.cluster.images().busybox);
    let output = workshop.output(&workshop.builder(&[]), &leased.daemon, "citation", &dockerfile).await;
    assert!(output.contains("fine"), "{output}");
}

/// New pods are of the other isolation; what builds goes on.
#[tokio::test]
async fn auto_turns_when_a_node_without_user_namespaces_is_added_and_again_when_it_is_gone() {
    let Some(mut ground) = Ground::alone_with_policies("auto").await else { return };
    ground.settings.patience.nodes = Duration::from_secs(1);
    let placement = ground.placement("worker-1").await;
    assert_eq!(placement.choice().isolation, Isolation::Userns, "{:?}", placement.choice());
    let leased = lease(&placement, "citation").await;
    let uid = ground.uid(&leased.daemon.name).await;
    let own = ground.namespace.clone();
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": own }, "spec": { "unschedulable": true },
    });
    let added = Wide::make(ground.cluster, &[node]).await;
    let status = json!({ "status": {
        "conditions": [{ "type": "Ready", "status": "True" }],
        "runtimeHandlers": [{ "name": "", "features": { "userNamespaces": false } }],
    } });
    let patch = ["patch", "node", &own, "--subresource=status", "--patch", &status.to_string()];
    ground.kubectl(&patch).await;
    eventually("it is rootless", async || placement.choice().isolation == Isolation::Rootless).await;
    assert_eq!(placement.choice().reason, format!("{own} does not offer user namespaces"));
    assert_eq!(ground.uid(&leased.daemon.name).await, uid, "what builds goes on");

    let next = lease(&placement, "citation").await;
    assert!(next.daemon.to_string().contains("rootless"), "{}", next.daemon);
    assert_eq!(ground.pod(&next.daemon.name).await["spec"]["hostUsers"], Value::Null);
    placement.release(leased, Condition::Clean).await;
    placement.release(next, Condition::Clean).await;

    drop(added);
    eventually("it is userns again", async || placement.choice().isolation == Isolation::Userns).await;
    let last = lease(&placement, "citation").await;
    assert_eq!(ground.pod(&last.daemon.name).await["spec"]["hostUsers"], false);
}

#[tokio::test]
async fn auto_falls_back_to_rootless_where_nodes_may_not_be_read() {
    let Some(ground) = Ground::with_policies("auto").await else { return };
    let own = ground.namespace.clone();
    ground.kubectl(&["delete", "clusterrolebinding", &own]).await;
    let doctor = Inspector::new(ground.worker().await, ground.settings.clone()).unwrap();
    let reason = "nodes may not be read, so that user namespaces cannot be counted on";
    eventually("the right is gone", async || doctor.choice().await.unwrap().reason == reason).await;
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    assert_eq!(leased.daemon.to_string(), format!("{} (rootless: {reason})", leased.daemon.name));
}
