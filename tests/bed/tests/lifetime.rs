//! The life of a cluster that one process serves and others share, to its end and to the end of its owner.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Result;
use fabrique_bed::{Cluster, wait_until};
use tokio::process::{Child, Command};

const START: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(20);

/// Starts a process that serves a cluster, and attaches to it.
async fn served() -> Result<(Child, Cluster)> {
    let owner = Command::new(env!("CARGO_BIN_EXE_bed"))
        .args(["cluster", "serve"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let cluster = wait_until("the cluster to be served", START, || async { Cluster::attach().transpose() });
    Ok((owner, cluster.await??))
}

/// What a cluster leaves on the machine while it lives.
fn traces() -> Vec<String> {
    let mut found = Vec::new();
    if Path::new("/sys/class/net/fabrique-bed").exists() {
        found.push("the link fabrique-bed".to_owned());
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    found.extend(mounts.lines().filter(|line| line.contains("/fabrique-bed-")).map(str::to_owned));
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let ours = ["containerd-shim-runc-v2 ", "/kubernetes ", "/etcd --data-dir"];
        if ours.iter().any(|part| command.contains(part)) {
            found.push(command);
        }
    }
    found
}

async fn nothing_is_left(what: &str) {
    wait_until(what, END, || async { traces().is_empty().then_some(()) })
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#?}", traces()));
}

fn groups() -> usize {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    hierarchies.filter(|entry| entry.path().join("fabrique-bed").exists()).count()
}

async fn a_container_outlives_its_runtime_and_the_api_server_its_absence(cluster: &Cluster) -> Result<()> {
    let image = &cluster.images().busybox;
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: survivor}}\n\
         spec: {{nodeName: worker-1, containers: [{{name: main, image: '{image}', command: [sleep, '99999']}}]}}\n"
    );
    cluster.apply(&pod).await?;
    let ready = ["wait", "pod/survivor", "--for=condition=Ready", "--timeout=60s"];
    cluster.kubectl(&ready).await?;
    let containerd = cluster.peer("containerd-worker-1");
    containerd.kill9().await?;
    assert!(!containerd.is_running());
    containerd.start_again().await?;
    let api = cluster.peer("kube-apiserver");
    api.stop().await?;
    assert!(cluster.kubectl(&["get", "nodes"]).await.is_err());
    api.start_again().await?;
    cluster.kubectl(&ready).await?;
    let restarts = "jsonpath={.status.containerStatuses[0].restartCount}";
    let restarts = cluster.kubectl(&["get", "pod", "survivor", "--output", restarts]).await?;
    assert_eq!(restarts, "0");
    assert!(cluster.kubectl(&["exec", "survivor", "--", "true"]).await.is_ok());
    Ok(())
}

async fn a_silent_node_is_noticed_and_comes_back(cluster: &Cluster) -> Result<()> {
    let kubelet = cluster.peer("kubelet-worker-2");
    kubelet.pause()?;
    cluster.kubectl(&["wait", "node/worker-2", "--for=condition=Ready=Unknown", "--timeout=60s"]).await?;
    kubelet.resume()?;
    cluster.kubectl(&["wait", "node/worker-2", "--for=condition=Ready", "--timeout=60s"]).await?;
    Ok(())
}

#[tokio::test]
async fn a_served_cluster_is_shared_and_leaves_nothing_however_it_ends() {
    if let Err(obstacle) = Cluster::possible() {
        assert!(std::env::var_os("FABRIQUE_STRICT").is_none(), "no cluster here: {obstacle}");
        println!("SKIP: {obstacle}");
        return;
    }
    if Cluster::attach().unwrap().is_some() {
        println!("SKIP: a cluster is served here already, and this test would end it");
        return;
    }
    let (mut owner, cluster) = served().await.unwrap();
    assert!(!traces().is_empty(), "or the test could not fail");
    a_container_outlives_its_runtime_and_the_api_server_its_absence(&cluster).await.unwrap();
    a_silent_node_is_noticed_and_comes_back(&cluster).await.unwrap();
    owner.kill().await.unwrap();
    nothing_is_left("a killed owner's cluster to be gone").await;
    assert!(Cluster::attach().unwrap().is_none());

    let (mut owner, cluster) = served().await.unwrap();
    let folder = cluster.audit_log();
    assert!(groups() > 0);
    assert!(Cluster::end_served().await.unwrap());
    assert!(owner.wait().await.unwrap().success());
    nothing_is_left("a cluster that was ended to be gone").await;
    assert_eq!(groups(), 0);
    assert!(!folder.exists());
    assert!(!Cluster::end_served().await.unwrap());
}
