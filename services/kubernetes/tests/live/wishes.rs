//! What operators may wish for, on nodes that have it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use fabrique_bed::Cluster;
use fabrique_kubernetes::config::HostPort;
use fabrique_ports::builder::{Condition, Placement};
use k8s_openapi::api::core::v1::{HostAlias, TopologySpreadConstraint};
use serde_json::json;

use crate::ground::{Ground, REGISTRY, isolation, lease};
use crate::workshop::Workshop;

/// Objects that belong to no namespace, until this is dropped.
pub(crate) struct Wide<'a> {
    cluster: &'a Cluster,
    objects: Vec<String>,
}

impl<'a> Wide<'a> {
    pub(crate) async fn make(cluster: &'a Cluster, objects: &[serde_json::Value]) -> Self {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        cluster.apply(&list.to_string()).await.unwrap();
        let name = |object: &serde_json::Value| {
            let text = |value: &serde_json::Value| value.as_str().unwrap().to_lowercase();
            format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
        };
        Self { cluster, objects: objects.iter().map(name).collect() }
    }
}

impl Drop for Wide<'_> {
    fn drop(&mut self) {
        let mut kubectl = self.cluster.kubectl_command().into_std();
        let _ = kubectl.args(["delete", "--wait=false"]).args(&self.objects).output();
    }
}

async fn builds(ground: &Ground, workshop: &Workshop, daemon: &fabrique_ports::builder::Daemon) {
    let dockerfile = format!("FROM {}\nRUN echo fine\n", ground.cluster.images().busybox);
    let output = workshop.output(&workshop.builder(&[]), daemon, "citation", &dockerfile).await;
    assert!(output.contains("fine"), "{output}");
}

#[tokio::test]
async fn a_runtime_class_a_priority_and_a_spread_over_nodes_are_kept_to() {
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
    let own = ground.namespace.clone();
    let _wide = Wide::make(ground.cluster, &[
        json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": own }, "handler": "runc" }),
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": own }, "value": -7,
        }),
    ])
    .await;
    let scheduling = &mut ground.settings.scheduling;
    scheduling.runtime_class = Some(own.clone());
    scheduling.priority_class = Some(own.clone());
    scheduling.topology_spread = vec![TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".into(),
        when_unsatisfiable: "DoNotSchedule".into(),
        ..Default::default()
    }];
    let placement = ground.placement("worker-1").await;
    let workshop = Workshop::new(&ground).await;
    let (one, two) = (lease(&placement, "citation").await, lease(&placement, "other").await);
    let pod = ground.pod(&one.daemon.name).await;
    assert_eq!(
        (pod["spec"]["runtimeClassName"].as_str(), &pod["spec"]["priority"]),
        (Some(own.as_str()), &json!(-7))
    );
    assert_ne!(ground.node(&one.daemon.name).await, ground.node(&two.daemon.name).await);
    builds(&ground, &workshop, &one.daemon).await;
    placement.release(one, Condition::Clean).await;
    placement.release(two, Condition::Clean).await;
}

/// The volume is a claim of the pod's own: another pod never finds the cache of this one's trust domain.
#[tokio::test]
async fn a_cache_volume_is_made_for_each_pod_and_ends_with_it() {
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
    let own = ground.namespace.clone();
    let folder = tempfile::tempdir().unwrap();
    // What a provisioner gives to the pod's group.
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let _wide = Wide::make(ground.cluster, &[
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": own },
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
        }),
        // What a provisioner would make.
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": own },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": own,
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": { "path": folder.path(), "type": "DirectoryOrCreate" },
            },
        }),
    ])
    .await;
    ground.settings.cache.storage_class = Some(own.clone());
    let placement = ground.placement("worker-1").await;
    let workshop = Workshop::new(&ground).await;
    let leased = lease(&placement, "citation").await;
    let claims = ["get", "persistentvolumeclaims", "--output", "jsonpath={.items[*].spec.storageClassName}"];
    assert_eq!(ground.kubectl(&claims).await, own);
    builds(&ground, &workshop, &leased.daemon).await;
    let pod = ground.pod(&leased.daemon.name).await;
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
    let cache = mounts.iter().find(|mount| mount["name"] == "cache").unwrap();
    let path = cache["mountPath"].as_str().unwrap();
    let mounted = ground.kubectl(&["exec", &leased.daemon.name, "--", "ls", path]).await;
    assert!(mounted.contains("buildkitd.lock"), "{mounted}");
    placement.release(leased, Condition::Doubt).await;
    crate::ground::eventually("the claim is gone", async || ground.kubectl(&claims).await.is_empty()).await;
}

/// The gate itself asks for the registry by a name that no DNS knows, and passes when the registry answers.
#[tokio::test]
async fn a_builder_finds_by_a_host_alias_what_dns_does_not_know() {
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
    let name = "mirror.by-alias.example";
    ground.settings.host_aliases =
        vec![HostAlias { ip: REGISTRY.to_owned(), hostnames: Some(vec![name.to_owned()]) }];
    ground.settings.gate.needed = HostPort { host: name.to_owned(), port: 80 };
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    let knock = |host: &str| {
        let script = format!("timeout 5 bash -c 'exec 3<>/dev/tcp/{host}/80' && echo open || echo closed");
        let (pod, ground) = (leased.daemon.name.clone(), &ground);
        async move { ground.kubectl(&["exec", &pod, "--", "bash", "-c", &script]).await }
    };
    assert_eq!(knock(name).await.trim(), "open");
    assert_eq!(knock("other.by-alias.example").await.trim(), "closed");
    placement.release(leased, Condition::Doubt).await;
}
