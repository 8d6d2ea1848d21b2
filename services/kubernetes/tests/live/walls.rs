//! What a builder reaches, asked from inside its pod. What a RUN step reaches is less, not more.

use std::collections::BTreeMap;

use fabrique_bed::hostile;
use fabrique_kubernetes::network::{AllowList, Egress, HostName};

use crate::ground::{Ground, eventually, lease};

/// Which of these doors are open to a pod.
pub(crate) async fn open(ground: &Ground, pod: &str, doors: &[&str]) -> Vec<String> {
    let knock = hostile::knock(doors);
    let output = ground.kubectl(&["exec", pod, "--", "bash", "-c", knock.command()]).await;
    hostile::said(&output, "open").into_iter().map(str::to_owned).collect()
}

async fn the_walls_hold(isolation: &str) {
    let listed = Egress {
        host: HostName::parse("permitted.example").unwrap(),
        port: 443,
        purpose: "packages".into(),
        cidrs: vec!["198.19.255.10/32".parse().unwrap()],
    };
    let list = AllowList { version: 1, hosts: vec![listed], apps: BTreeMap::new() };
    let Some(ground) = Ground::with_list(isolation, &list).await else { return };
    let placement = ground.placement("worker-1").await;
    let (pod, neighbour) = tokio::join!(lease(&placement, "one"), lease(&placement, "two"));
    let pod = pod.daemon.name;
    let neighbour = neighbour.daemon.address.strip_prefix("tcp://").unwrap().to_owned();

    let needed = ["registry:80", "gitea:3000"];
    assert_eq!(open(&ground, &pod, &needed).await, needed);
    let closed: Vec<&str> = hostile::CLOSED.into_iter().chain([neighbour.as_str()]).collect();
    assert_eq!(open(&ground, &pod, &closed).await, Vec::<String>::new());

    // The same doors without the policies, or the test would prove nothing.
    ground.kubectl(&["delete", "networkpolicy", "--all"]).await;
    let reachable =
        ["198.18.0.11:6443", "198.19.0.1:443", "198.18.0.12:10250", "198.18.0.4:4222", &neighbour];
    eventually("the doors are open", async || open(&ground, &pod, &reachable).await == reachable).await;
}

#[tokio::test]
async fn a_builder_in_a_user_namespace_reaches_what_it_needs_and_nothing_else() {
    the_walls_hold("userns").await;
}

#[tokio::test]
async fn a_rootless_builder_reaches_what_it_needs_and_nothing_else() {
    the_walls_hold("rootless").await;
}
