//! What a gate sees, and what becomes of a pod whose gate saw too little.

use std::time::Duration;

use fabrique_kubernetes::network::AllowList;
use fabrique_ports::builder::{Placed, Placement};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::ground::{Ground, eventually, isolation, lease, need};

/// An API server that is away is as silent as one behind a wall.
#[tokio::test]
async fn a_builder_that_passed_its_gate_while_the_api_server_was_away_gets_no_build() {
    let Some(mut ground) = Ground::alone(isolation()).await else { return };
    // Nothing but its gate may be its end.
    ground.settings.pool.start = Duration::from_mins(10);
    ground.settings.gate.limit = Duration::from_mins(5);
    let placement = ground.placement("worker-1").await;
    let need = need("citation", 300);
    let acquired = placement.acquire(&need);
    tokio::pin!(acquired);
    let passed = async {
        let running = "jsonpath={.items[*].status.initContainerStatuses[0].state.running.startedAt}";
        eventually("its gate holds it back, as no policy is in force", async || {
            !ground.kubectl(&["get", "pods", "--output", running]).await.is_empty()
        })
        .await;
        let pod = ground.pod("builder-0").await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (uid, address) = (text(&pod["metadata"]["uid"]), text(&pod["status"]["podIP"]));
        let api_server = ground.cluster.peer("kube-apiserver");
        api_server.kill9().await.unwrap();
        let daemon = format!("{address}:1234");
        eventually("its daemon runs", async || TcpStream::connect(&daemon).await.is_ok()).await;
        api_server.start_again().await.unwrap();
        let pods = ["get", "pods", "--namespace", &ground.namespace, "--output=json"];
        eventually("it is removed", async || {
            ground.cluster.kubectl(&pods).await.is_ok_and(|pods| !pods.contains(&uid))
        })
        .await;
        uid
    };
    let uid = tokio::select! {
        biased;
        placed = &mut acquired => panic!("a build behind no wall: {placed:?}"),
        uid = passed => uid,
    };
    // Another one is held back until there is a wall.
    ground.enforce(&AllowList::default()).await;
    let Placed::Lease(leased) = acquired.await.unwrap() else { panic!("no lease") };
    assert_ne!(ground.uid(&leased.daemon.name).await, uid);
}

/// A runtime that takes `hostUsers: false` for nothing runs the pod as it runs this one.
#[tokio::test]
async fn a_gate_ends_where_root_of_its_pod_is_root_of_the_node() {
    let Some(ground) = Ground::with_policies("userns").await else { return };
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    let builder = ground.pod(&leased.daemon.name).await;
    let mut gate = builder["spec"]["initContainers"][0].clone();
    gate["volumeMounts"] = json!([]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "root", "namespace": ground.namespace },
        "spec": {
            "containers": [gate], "restartPolicy": "Never", "automountServiceAccountToken": false,
            "affinity": builder["spec"]["affinity"],
        },
    });
    ground.cluster.apply(&pod.to_string()).await.unwrap();
    let ended =
        async || ground.pod("root").await["status"]["containerStatuses"][0]["state"]["terminated"].clone();
    eventually("the gate ends", async || ended().await.is_object()).await;
    let ended = ended().await;
    assert_eq!(ended["exitCode"], 3, "{ended}");
    assert!(ended["message"].as_str().unwrap().contains("no user namespace"), "{ended}");
}
