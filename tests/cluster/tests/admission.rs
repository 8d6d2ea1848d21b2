//! What pods and policies the API server takes in the builders' namespace, one violation a test.

use fabrique_kubernetes::config::Isolation;
use k8s_openapi::api::core::v1::{HostAlias, Toleration, TopologySpreadConstraint};
use serde_json::{Value, json};

use crate::ground::{BUILDS, ground, try_object};

/// A pod as the worker makes it, changed, must be refused for `reason`.
async fn refuse_pod(isolation: Isolation, change: impl FnOnce(&mut Value), reason: &str) {
    let Some(ground) = ground().await else { return };
    let mut pod = ground.builder(isolation);
    let before = pod.clone();
    change(&mut pod);
    assert_ne!(pod, before, "the violation changes nothing");
    let answer = ground.try_pod(&pod).await.expect_err("the API server took it");
    assert!(answer.contains(reason), "refused, but for another reason: {answer}");
}

/// Tests of pods that are refused: name, isolation, change, reason.
macro_rules! refused_pods {
    ($($name:ident($isolation:ident, $reason:literal): |$pod:ident| $change:expr;)+) => {
        $(#[tokio::test]
        async fn $name() {
            let change = |$pod: &mut Value| { $change; };
            refuse_pod(Isolation::$isolation, change, $reason).await;
        })+
    };
}

/// The container that runs the daemon.
fn daemon(pod: &mut Value) -> &mut Value {
    &mut pod["spec"]["containers"][0]
}

/// The init container.
fn gate(pod: &mut Value) -> &mut Value {
    &mut pod["spec"]["initContainers"][0]
}

fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(items) => items.push(item),
        None => *list = json!([item]),
    }
}

fn volume(pod: &mut Value, source: Value) {
    let mut volume = source;
    volume["name"] = json!("more");
    push(&mut pod["spec"]["volumes"], volume);
}

const OTHER_IMAGE: &str =
    "registry:80/other@sha256:1111111111111111111111111111111111111111111111111111111111111111";

refused_pods! {
    an_image_that_is_not_listed(Rootless, "listed in the ConfigMap"): |pod| daemon(pod)["image"] = json!(OTHER_IMAGE);
    a_gate_with_an_image_that_is_not_listed(Rootless, "listed in the ConfigMap"): |pod| gate(pod)["image"] = json!(OTHER_IMAGE);
    an_image_by_tag(Rootless, "by digest"): |pod| {
        let name = daemon(pod)["image"].as_str().unwrap().split('@').next().unwrap().to_owned();
        daemon(pod)["image"] = json!(format!("{name}:1"));
    };
    root_without_a_user_namespace(Rootless, "runs as user 1000"): |pod| daemon(pod)["securityContext"]["runAsUser"] = json!(0);
    roots_group_without_a_user_namespace(Rootless, "runs as user 1000"): |pod| daemon(pod)["securityContext"]["runAsGroup"] = json!(0);
    a_user_left_to_the_image(Rootless, "runs as user 1000"): |pod| {
        daemon(pod)["securityContext"].as_object_mut().unwrap().remove("runAsUser")
    };
    more_groups(Rootless, "runs as user 1000"): |pod| pod["spec"]["securityContext"]["supplementalGroups"] = json!([0]);
    files_of_roots_group(Rootless, "runs as user 1000"): |pod| pod["spec"]["securityContext"]["fsGroup"] = json!(0);
    a_gate_as_root_without_a_user_namespace(Rootless, "runs as user 1000"): |pod| gate(pod)["securityContext"]["runAsUser"] = json!(0);
    the_pod_of_a_user_namespace_in_the_nodes(Userns, "runs as user 1000"): |pod| {
        pod["spec"]["hostUsers"] = json!(true);
        daemon(pod)["securityContext"]["procMount"] = json!("Default")
    };
    the_nodes_network(Rootless, "no namespace of the node"): |pod| pod["spec"]["hostNetwork"] = json!(true);
    the_nodes_processes(Rootless, "no namespace of the node"): |pod| pod["spec"]["hostPID"] = json!(true);
    the_nodes_memory(Rootless, "no namespace of the node"): |pod| pod["spec"]["hostIPC"] = json!(true);
    a_port_of_the_node(Rootless, "no port of the node"): |pod| daemon(pod)["ports"][0]["hostPort"] = json!(1234);
    a_privileged_daemon(Rootless, "not privileged"): |pod| daemon(pod)["securityContext"]["privileged"] = json!(true);
    a_privileged_daemon_in_a_user_namespace(Userns, "not privileged"): |pod| daemon(pod)["securityContext"]["privileged"] = json!(true);
    a_capability_for_rootless(Rootless, "adds no capability"): |pod| {
        daemon(pod)["securityContext"]["capabilities"] = json!({ "add": ["SYS_ADMIN"] })
    };
    one_more_capability_in_a_user_namespace(Userns, "adds no capability"): |pod| {
        push(&mut daemon(pod)["securityContext"]["capabilities"]["add"], json!("SYS_MODULE"))
    };
    all_capabilities_in_a_user_namespace(Userns, "adds no capability"): |pod| {
        daemon(pod)["securityContext"]["capabilities"] = json!({ "add": ["ALL"] })
    };
    a_gate_that_keeps_capabilities(Userns, "adds no capability"): |pod| {
        gate(pod)["securityContext"].as_object_mut().unwrap().remove("capabilities")
    };
    a_gate_that_may_escalate(Rootless, "gate is confined"): |pod| gate(pod)["securityContext"]["allowPrivilegeEscalation"] = json!(true);
    a_gate_that_writes_its_root(Rootless, "gate is confined"): |pod| gate(pod)["securityContext"]["readOnlyRootFilesystem"] = json!(false);
    a_gate_that_sees_all_of_proc(Userns, "unmasked /proc"): |pod| gate(pod)["securityContext"]["procMount"] = json!("Unmasked");
    a_gate_that_lets_everybody_pass(Rootless, "what it is there for"): |pod| gate(pod)["command"] = json!(["true"]);
    a_gate_whose_program_is_another(Userns, "what it is there for"): |pod| gate(pod)["command"][2] = json!("exit 0");
    a_gate_with_arguments(Rootless, "what it is there for"): |pod| gate(pod)["args"] = json!(["more"]);
    a_gate_that_reads_another_program_first(Rootless, "what it is there for"): |pod| {
        push(&mut gate(pod)["env"], json!({ "name": "BASH_ENV", "value": "/tmp/first" }))
    };
    a_gate_with_files_of_somebody(Rootless, "what it is there for"): |pod| {
        gate(pod)["volumeMounts"] = json!([{ "name": "config", "mountPath": "/usr/bin" }])
    };
    another_program_than_the_daemon(Rootless, "runs buildkitd"): |pod| daemon(pod)["command"] = json!(["sleep"]);
    a_daemon_with_one_more_argument(Userns, "runs buildkitd"): |pod| {
        push(&mut daemon(pod)["args"], json!("--allow-insecure-entitlement=security.insecure"))
    };
    a_daemon_without_its_certificate(Rootless, "runs buildkitd"): |pod| daemon(pod)["args"].as_array_mut().unwrap().truncate(4);
    a_program_at_the_daemons_start(Rootless, "runs buildkitd"): |pod| {
        daemon(pod)["lifecycle"] = json!({ "postStart": { "exec": { "command": ["true"] } } })
    };
    a_program_as_a_probe(Rootless, "runs buildkitd"): |pod| daemon(pod)["startupProbe"]["exec"]["command"] = json!(["true"]);
    a_label_of_selinux(Rootless, "SELinux label"): |pod| pod["spec"]["securityContext"]["seLinuxOptions"] = json!({ "type": "spc_t" });
    a_daemon_with_a_label_of_selinux(Userns, "SELinux label"): |pod| {
        daemon(pod)["securityContext"]["seLinuxOptions"] = json!({ "type": "spc_t" })
    };
    a_gate_with_a_label_of_selinux(Rootless, "SELinux label"): |pod| {
        gate(pod)["securityContext"]["seLinuxOptions"] = json!({ "level": "s0" })
    };
    a_device(Rootless, "claims no device"): |pod| {
        pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": "somebodys" }])
    };
    a_kernel_parameter(Rootless, "no kernel parameter"): |pod| {
        pod["spec"]["securityContext"]["sysctls"] = json!([{ "name": "net.ipv4.ip_unprivileged_port_start", "value": "0" }])
    };
    a_token_of_the_service_account(Rootless, "no token"): |pod| pod["spec"]["automountServiceAccountToken"] = json!(true);
    a_token_left_to_the_default(Rootless, "no token"): |pod| pod["spec"].as_object_mut().unwrap().remove("automountServiceAccountToken");
    a_token_as_a_volume(Rootless, "volumes are"): |pod| volume(pod, json!({ "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } }));
    a_folder_of_the_node(Rootless, "volumes are"): |pod| volume(pod, json!({ "hostPath": { "path": "/" } }));
    a_socket_of_the_node(Userns, "volumes are"): |pod| volume(pod, json!({ "hostPath": { "path": "/run/containerd/containerd.sock", "type": "Socket" } }));
    a_volume_of_somebody(Rootless, "volumes are"): |pod| volume(pod, json!({ "persistentVolumeClaim": { "claimName": "data" } }));
    a_file_server(Rootless, "volumes are"): |pod| volume(pod, json!({ "nfs": { "server": "files", "path": "/" } }));
    another_secret(Rootless, "volumes are"): |pod| volume(pod, json!({ "secret": { "secretName": "pull" } }));
    another_configuration(Rootless, "volumes are"): |pod| volume(pod, json!({ "configMap": { "name": "kube-root-ca.crt" } }));
    a_volume_without_a_limit(Rootless, "volumes are"): |pod| volume(pod, json!({ "emptyDir": {} }));
    a_volume_in_memory(Rootless, "volumes are"): |pod| volume(pod, json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "1Gi" } }));
    a_secret_in_the_environment(Rootless, "environment comes from"): |pod| {
        push(&mut daemon(pod)["env"], json!({ "name": "STOLEN", "valueFrom": { "secretKeyRef": { "name": "pull", "key": "password" } } }))
    };
    all_of_a_secret_in_the_environment(Rootless, "environment comes from"): |pod| {
        daemon(pod)["envFrom"] = json!([{ "secretRef": { "name": "pull" } }])
    };
    a_node_past_the_scheduler(Rootless, "scheduled onto a worker node"): |pod| pod["spec"]["nodeName"] = json!("control");
    no_affinity_against_the_control_plane(Rootless, "scheduled onto a worker node"): |pod| pod["spec"].as_object_mut().unwrap().remove("affinity");
    an_alternative_to_the_affinity(Rootless, "scheduled onto a worker node"): |pod| {
        let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let anywhere = json!({ "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "Exists" }] });
        push(pod.pointer_mut(terms).unwrap(), anywhere)
    };
    a_toleration_of_the_control_plane(Rootless, "tolerates no taint"): |pod| {
        push(&mut pod["spec"]["tolerations"], json!({ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }))
    };
    a_toleration_of_every_taint(Rootless, "tolerates no taint"): |pod| push(&mut pod["spec"]["tolerations"], json!({ "operator": "Exists" }));
    a_pod_that_is_restarted(Rootless, "is bounded"): |pod| pod["spec"]["restartPolicy"] = json!("Always");
    a_pod_without_a_deadline(Rootless, "is bounded"): |pod| pod["spec"].as_object_mut().unwrap().remove("activeDeadlineSeconds");
    a_daemon_without_a_memory_limit(Rootless, "is bounded"): |pod| daemon(pod)["resources"].as_object_mut().unwrap().remove("limits");
    a_pod_without_a_gate(Rootless, "one init container, gate"): |pod| pod["spec"].as_object_mut().unwrap().remove("initContainers");
    a_second_container(Rootless, "one container, buildkitd"): |pod| {
        let mut second = daemon(pod).clone();
        second["name"] = json!("second");
        second.as_object_mut().unwrap().remove("ports");
        push(&mut pod["spec"]["containers"], second)
    };
    a_sidecar_in_the_gates_place(Rootless, "one init container, gate"): |pod| gate(pod)["restartPolicy"] = json!("Always");
}

#[tokio::test]
async fn the_pods_that_the_worker_makes_are_admitted() {
    let Some(ground) = ground().await else { return };
    for isolation in [Isolation::Userns, Isolation::Rootless] {
        let pod = ground.builder(isolation);
        assert_eq!(ground.try_pod(&pod).await, Ok(()), "{isolation:?}");
    }
}

#[tokio::test]
async fn the_pods_that_operators_can_wish_for_are_admitted() {
    let Some(ground) = ground().await else { return };
    let classes = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: admission-test}\nvalue: -100\n\
                   ---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: admission-test}\nhandler: runc\n";
    ground.cluster.apply(classes).await.unwrap();
    let mut settings = ground.settings();
    settings.scheduling.node_selector.insert("disk".into(), "ssd".into());
    settings.scheduling.tolerations = vec![Toleration {
        key: Some("builders".into()),
        operator: Some("Exists".into()),
        ..Default::default()
    }];
    settings.scheduling.priority_class = Some("admission-test".into());
    settings.scheduling.runtime_class = Some("admission-test".into());
    settings.scheduling.topology_spread = vec![TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".into(),
        when_unsatisfiable: "ScheduleAnyway".into(),
        ..Default::default()
    }];
    settings.cache.storage_class = Some("fast".into());
    settings.pull.secrets = vec!["pull".into()];
    settings.host_aliases =
        vec![HostAlias { ip: "198.18.0.2".into(), hostnames: Some(vec!["registry".into()]) }];
    for isolation in [Isolation::Userns, Isolation::Rootless] {
        let pod = ground.builder_with(&settings, isolation, 0, "made-up");
        assert_eq!(ground.try_pod(&pod).await, Ok(()), "{isolation:?}");
    }
}

fn policy(spec: &Value) -> Value {
    policy_in(BUILDS, spec)
}

fn policy_in(namespace: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": "more", "namespace": namespace },
        "spec": spec,
    })
}

async fn refuse_policy(spec: &Value, reason: &str) {
    let Some(ground) = ground().await else { return };
    let client = ground.client().await;
    let answer = try_object(client, &policy(spec)).await.expect_err("the API server took it");
    assert!(answer.contains(reason), "refused, but for another reason: {answer}");
}

/// An egress rule to ranges, on a port that is allowed.
fn to_ranges(ranges: &[&str]) -> Value {
    let peers: Vec<Value> = ranges.iter().map(|cidr| json!({ "ipBlock": { "cidr": cidr } })).collect();
    json!({ "podSelector": {}, "egress": [{ "to": peers, "ports": [{ "port": 443 }] }] })
}

/// An egress rule to one host, on these ports.
fn on_ports(ports: &Value) -> Value {
    json!({ "podSelector": {}, "egress": [{ "to": [{ "ipBlock": { "cidr": "192.0.2.1/32" } }], "ports": ports }] })
}

/// Tests of network policies that are refused: name, specification, reason.
macro_rules! refused_policies {
    ($($name:ident($reason:literal): $spec:expr;)+) => {
        $(#[tokio::test]
        async fn $name() {
            refuse_policy(&$spec, $reason).await;
        })+
    };
}

refused_policies! {
    a_rule_without_a_destination("means everybody"): json!({ "podSelector": {}, "egress": [{ "ports": [{ "port": 443 }] }] });
    an_empty_rule("means everybody"): json!({ "podSelector": {}, "egress": [{}] });
    an_empty_list_of_destinations("means everybody"): json!({ "podSelector": {}, "egress": [{ "to": [], "ports": [{ "port": 443 }] }] });
    a_way_in_for_everybody("means everybody"): json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": 1234 }] }] });
    every_address("wider than a /8"): to_ranges(&["0.0.0.0/0"]);
    every_address_but_some("wider than a /8"): json!({ "podSelector": {}, "egress": [{
        "to": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"] } }], "ports": [{ "port": 443 }] }] });
    every_ipv6_address("wider than a /8"): to_ranges(&["::/0"]);
    half_of_all_addresses("wider than a /8"): to_ranges(&["128.0.0.0/1"]);
    all_public_ipv6_addresses("wider than a /8"): to_ranges(&["2000::/3"]);
    a_world_in_pieces("together"): to_ranges(&["11.0.0.0/8", "12.0.0.0/9"]);
    an_ipv6_world_in_pieces("together"): to_ranges(&["2001::/16", "2002::/17"]);
    cloud_metadata("never opened"): to_ranges(&["169.254.169.254/32"]);
    a_range_with_cloud_metadata("never opened"): to_ranges(&["169.0.0.0/8"]);
    loopback("never opened"): to_ranges(&["127.0.0.1/32"]);
    ipv6_link_local("never opened"): to_ranges(&["fe80::/64"]);
    every_port("means every port"): json!({ "podSelector": {}, "egress": [{ "to": [{ "ipBlock": { "cidr": "192.0.2.1/32" } }] }] });
    the_port_of_nats("never reach NATS"): on_ports(&json!([{ "port": 443 }, { "port": 4222 }]));
    a_range_with_the_port_of_nats("never reach NATS"): on_ports(&json!([{ "port": 4000, "endPort": 5000 }]));
    a_range_of_ports("named by itself"): on_ports(&json!([{ "port": 8000, "endPort": 8001 }]));
    a_port_by_name("a port is a number"): on_ports(&json!([{ "port": "nats" }]));
    a_protocol_without_a_port("a port is a number"): on_ports(&json!([{ "protocol": "TCP" }]));
    every_pod_of_the_cluster("the whole cluster"): json!({ "podSelector": {}, "egress": [{
        "to": [{ "namespaceSelector": {} }], "ports": [{ "port": 443 }] }] });
    other_builders("the whole cluster"): json!({ "podSelector": {}, "egress": [{
        "to": [{ "podSelector": {} }], "ports": [{ "port": 1234 }] }] });
    pods_without_a_label("labels that they have"): json!({ "podSelector": {}, "egress": [{
        "to": [{ "namespaceSelector": { "matchLabels": { "a": "b" } }, "podSelector": { "matchExpressions": [{ "key": "a", "operator": "DoesNotExist" }] } }],
        "ports": [{ "port": 443 }] }] });
    pods_with_another_label("labels that they have"): json!({ "podSelector": {}, "egress": [{
        "to": [{ "namespaceSelector": { "matchLabels": { "a": "b" } }, "podSelector": { "matchExpressions": [{ "key": "a", "operator": "NotIn", "values": ["b"] }] } }],
        "ports": [{ "port": 443 }] }] });
    a_way_in_by_another_port("port 1234 only"): json!({ "podSelector": {}, "ingress": [{
        "from": [{ "ipBlock": { "cidr": "192.0.2.1/32" } }], "ports": [{ "port": 22 }] }] });
}

#[tokio::test]
async fn policies_that_name_hosts_and_ports_are_admitted() {
    let Some(ground) = ground().await else { return };
    let client = ground.client().await;
    for spec in [
        to_ranges(&["192.0.2.0/24", "2001:db8::/32"]),
        to_ranges(&["10.0.0.0/8"]),
        on_ports(&json!([{ "port": 443 }, { "port": 80, "protocol": "TCP" }])),
        json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }),
    ] {
        assert_eq!(try_object(client.clone(), &policy(&spec)).await, Ok(()), "{spec}");
    }
}

/// The air gap of our own pods, of Argo CD and of the apps would be undone by one policy beside it.
#[tokio::test]
async fn no_namespace_of_an_installation_takes_a_policy_that_opens_the_world() {
    let Some(ground) = ground().await else { return };
    let client = ground.client().await;
    let to = |peers: Value| json!({ "podSelector": {}, "egress": [{ "to": peers }] });
    let violations = [
        (json!({ "podSelector": {}, "egress": [{}] }), "means everybody"),
        (json!({ "podSelector": {}, "egress": [{ "ports": [{ "port": 443 }] }] }), "means everybody"),
        (
            json!({ "podSelector": {}, "egress": [{ "to": [], "ports": [{ "port": 443 }] }] }),
            "means everybody",
        ),
        (to_ranges(&["0.0.0.0/0"]), "wider than a /8"),
        (to(json!([{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"] } }])), "wider than a /8"),
        (to_ranges(&["::/0"]), "wider than a /8"),
        (to_ranges(&["128.0.0.0/1"]), "wider than a /8"),
        (to_ranges(&["11.0.0.0/8", "12.0.0.0/9"]), "together"),
        (to_ranges(&["2001::/16", "2002::/17"]), "together"),
    ];
    // What ours say, and what apps may: the whole cluster, ranges of their own, and who may come in.
    let taken = [
        to(json!([{ "namespaceSelector": {} }, { "ipBlock": { "cidr": "192.0.2.0/28" } }])),
        to_ranges(&["10.0.0.0/8"]),
        json!({ "podSelector": {}, "ingress": [{}], "policyTypes": ["Ingress"] }),
        json!({ "podSelector": {}, "policyTypes": ["Egress"] }),
    ];
    for namespace in ["apps", "argocd", "fabrique"] {
        for (spec, reason) in &violations {
            let answer = try_object(client.clone(), &policy_in(namespace, spec)).await;
            assert!(
                answer.as_ref().is_err_and(|told| told.contains(reason)),
                "{namespace}: {spec}: {answer:?}"
            );
        }
        for spec in &taken {
            let answer = try_object(client.clone(), &policy_in(namespace, spec)).await;
            assert_eq!(answer, Ok(()), "{namespace}: {spec}");
        }
    }
}
