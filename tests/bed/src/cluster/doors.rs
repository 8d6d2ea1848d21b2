//! Somebody behind the addresses of a cluster's network at which nobody listens by himself. A door that stays closed
//! with nobody behind it proves nothing.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::process::Child;

use super::Cluster;
use crate::wait::wait_until;

/// The address at which clouds tell of a machine, credentials among it, whoever asks on it.
const METADATA: &str = "169.254.169.254";
/// An image is pulled for it, on a machine that may be busy.
const LATEST: Duration = Duration::from_secs(100);

/// Listeners on ports of the world, on the metadata address of both workers, and on port 22 of each. There is one of
/// these at a time, for the addresses that they hold until they are dropped.
#[derive(Debug)]
pub struct Doors {
    _outside: Child,
    end: std::process::Command,
}

impl Doors {
    /// Opens them, with pods in `namespace`, which takes pods of any kind; `outside` are addresses of the world as
    /// [`Cluster::outside_command`] has them, with a port each.
    ///
    /// # Errors
    /// When one of them is not there in time.
    pub async fn open(cluster: &Cluster, namespace: &str, outside: &[&str]) -> Result<Self> {
        let workers = || cluster.nodes().into_iter().filter(|node| node.starts_with("worker"));
        let names: Vec<String> = workers().map(|node| format!("pod/doors-{node}")).collect();
        let mut end = cluster.kubectl_command().into_std();
        // With the time that they are given to take the address off again.
        end.args(["delete", "--ignore-not-found", "--timeout=30s", "--namespace", namespace]);
        end.args(&names).stdin(Stdio::null());
        let doors = Self { _outside: listen(cluster, outside)?, end };
        for node in workers() {
            cluster.apply(&pod(&cluster.images().busybox, namespace, node).to_string()).await?;
        }
        let wait = format!("--timeout={}s", LATEST.as_secs());
        let mut args = vec!["wait", "--namespace", namespace, "--for=condition=Ready", &wait];
        args.extend(names.iter().map(String::as_str));
        cluster.kubectl(&args).await?;
        for address in outside {
            wait_until(&format!("somebody at {address}"), LATEST, || knock(cluster, address)).await?;
        }
        Ok(doors)
    }
}

impl Drop for Doors {
    /// Waits for the end of the pods, or their addresses would be missed by whoever is next.
    fn drop(&mut self) {
        let _ = self.end.output();
    }
}

fn listen(cluster: &Cluster, outside: &[&str]) -> Result<Child> {
    let program = "
import select, socket, sys
doors = [socket.create_server((host, int(port))) for host, port in (door.split(':') for door in sys.argv[1:])]
while True:
    for door in select.select(doors, [], [])[0]:
        door.accept()[0].close()
";
    let mut command = cluster.outside_command()?;
    command.args(["python3", "-c", program]).args(outside).stdin(Stdio::null());
    Ok(command.spawn()?)
}

async fn knock(cluster: &Cluster, address: &str) -> Option<()> {
    let mut command = cluster.outside_command().ok()?;
    let script = format!("exec 3<>/dev/tcp/{}", address.replacen(':', "/", 1));
    command.args(["bash", "-c", &script]).stderr(Stdio::null());
    command.status().await.ok()?.success().then_some(())
}

/// Listens on the node itself.
fn pod(image: &str, namespace: &str, node: &str) -> serde_json::Value {
    let script = format!(
        "ip addr add {METADATA}/32 dev lo; trap 'ip addr del {METADATA}/32 dev lo; exit' TERM; \
         httpd -f -p {METADATA}:80 & httpd -f -p $NODE:22 & wait"
    );
    let address = json!({ "fieldRef": { "fieldPath": "status.hostIP" } });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("doors-{node}"), "namespace": namespace },
        "spec": {
            "hostNetwork": true,
            "nodeName": node,
            "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "main", "image": image, "command": ["sh", "-c", script],
                "env": [{ "name": "NODE", "valueFrom": address }],
                "securityContext": { "capabilities": { "add": ["NET_ADMIN"] } },
                "readinessProbe": { "tcpSocket": { "host": METADATA, "port": 80 }, "periodSeconds": 1 },
            }],
        },
    })
}
