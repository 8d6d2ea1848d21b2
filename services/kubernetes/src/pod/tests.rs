use fabrique_core::app::BuildResources;
use k8s_openapi::api::core::v1::{HostAlias, Toleration};
use proptest::prelude::*;

use super::*;
use crate::config::Millicores;
use crate::testing::{owner, settings};

fn pod(settings: &Settings, isolation: Isolation) -> Pod {
    let trust = TrustDomain::parse("atlas").unwrap();
    let plan = PodPlan {
        settings,
        isolation,
        seat: 3,
        trust: &trust,
        resources: settings.resources,
        avoid: &[],
        secret: "builder-3-tls",
        owner: owner(),
        since: Timestamp(1_764_460_800_000),
        reason: "it is configured",
    };
    let generation = generation(settings, isolation, &config_files(settings).unwrap());
    builder_pod(&plan, &generation)
}

fn spec(settings: &Settings, isolation: Isolation) -> PodSpec {
    pod(settings, isolation).spec.unwrap()
}

#[test]
fn the_pod_with_a_user_namespace() {
    insta::assert_yaml_snapshot!("pod_userns", pod(&settings(), Isolation::Userns));
}

#[test]
fn the_rootless_pod() {
    insta::assert_yaml_snapshot!("pod_rootless", pod(&settings(), Isolation::Rootless));
}

#[test]
fn an_operators_wishes_are_added_to_what_is_always_so() {
    let mut settings = settings();
    settings.scheduling.node_selector.insert("disk".into(), "ssd".into());
    settings.scheduling.tolerations = vec![Toleration {
        key: Some("builders".into()),
        operator: Some("Exists".into()),
        ..Default::default()
    }];
    settings.scheduling.priority_class = Some("builds".into());
    settings.scheduling.runtime_class = Some("kata".into());
    settings.scheduling.topology_spread = vec![TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".into(),
        when_unsatisfiable: "ScheduleAnyway".into(),
        ..Default::default()
    }];
    settings.cache.storage_class = Some("fast".into());
    settings.pull.secrets = vec!["pull".into()];
    settings.host_aliases =
        vec![HostAlias { ip: "198.18.0.1".into(), hostnames: Some(vec!["registry".into()]) }];
    insta::assert_yaml_snapshot!("pod_with_wishes", pod(&settings, Isolation::Userns));
}

#[test]
fn what_one_app_has_and_where_it_would_rather_not_be_are_added_and_make_no_other_generation() {
    let (settings, trust) = (settings(), TrustDomain::parse("atlas").unwrap());
    let wishes = BuildResources {
        cpu: Some(Millicores(1500)),
        cpu_limit: Some(Millicores(4000)),
        memory: Some(Bytes::gibi(3)),
        memory_limit: Some(Bytes::gibi(6)),
        ephemeral_storage: Some(Bytes::gibi(8)),
    };
    let generation = generation(&settings, Isolation::Userns, &config_files(&settings).unwrap());
    let plan = PodPlan {
        settings: &settings,
        isolation: Isolation::Userns,
        seat: 3,
        trust: &trust,
        resources: settings.resources.with(&wishes),
        avoid: &["worker-2".to_owned(), "worker-7".to_owned()],
        secret: "builder-3-tls",
        owner: owner(),
        since: Timestamp(1_764_460_800_000),
        reason: "it is configured",
    };
    let asked = builder_pod(&plan, &generation);
    let plain = pod(&settings, Isolation::Userns);
    assert_eq!(asked.metadata.labels, plain.metadata.labels);
    let spec = asked.spec.unwrap();
    let shown = serde_json::json!({
        "annotations": asked.metadata.annotations,
        "affinity": spec.affinity,
        "resources": spec.containers[0].resources,
    });
    insta::assert_yaml_snapshot!("pod_registered", shown);
}

#[test]
fn a_change_of_the_configuration_is_another_generation() {
    let settings = settings();
    let name = |settings: &Settings, isolation| {
        generation(settings, isolation, &config_files(settings).unwrap()).name
    };
    let before = name(&settings, Isolation::Userns);
    assert_eq!(before, name(&settings, Isolation::Userns));
    assert_ne!(before, name(&settings, Isolation::Rootless));
    let mut other = settings.clone();
    other.daemon.http_registries.push("mirror:80".into());
    assert_ne!(before, name(&other, Isolation::Userns));
    let mut other = settings.clone();
    other.resources.cpu = Millicores(2000);
    assert_ne!(before, name(&other, Isolation::Userns));
    let mut other = settings;
    other.daemon.authorities = Some("one".into());
    let one = name(&other, Isolation::Userns);
    other.daemon.authorities = Some("another".into());
    assert_ne!(one, name(&other, Isolation::Userns));
}

#[test]
fn a_private_authority_is_mounted_and_the_images_own_are_believed_as_before() {
    let mut settings = settings();
    settings.daemon.authorities = Some("-----BEGIN CERTIFICATE-----".into());
    let files = config_files(&settings).unwrap();
    for isolation in [Isolation::Userns, Isolation::Rootless] {
        let spec = spec(&settings, isolation);
        let environment = spec.containers[0].env.as_ref().unwrap();
        let folders = environment.iter().find(|variable| variable.name == "SSL_CERT_DIR").unwrap();
        let folders: Vec<&str> = folders.value.as_deref().unwrap().split(':').collect();
        assert_eq!(folders[0], "/etc/ssl/certs");
        let mounts = spec.containers[0].volume_mounts.as_ref().unwrap();
        let mount = mounts.iter().find(|mount| mount.mount_path == folders[1]).unwrap();
        let volume = spec.volumes.unwrap().into_iter().find(|volume| volume.name == mount.name).unwrap();
        let items = volume.config_map.unwrap().items.unwrap();
        let mounted: Vec<&str> = items.iter().map(|item| files[&item.key].as_str()).collect();
        assert!(mounted.contains(&"-----BEGIN CERTIFICATE-----"), "{items:?}");
    }
}

proptest! {
    /// What admission pins and the threat model counts on, whatever the operator wishes.
    #[test]
    fn no_setting_opens_the_pod(
        rootless in any::<bool>(),
        class in prop::option::of("[a-z]{1,8}"),
        seconds in 1u64..1_000_000,
        memory in 1u64..1 << 40,
    ) {
        let isolation = if rootless { Isolation::Rootless } else { Isolation::Userns };
        let mut settings = settings();
        settings.cache.storage_class = class;
        settings.pool.life = std::time::Duration::from_secs(seconds);
        settings.resources.memory = Bytes(memory);
        let spec = spec(&settings, isolation);
        prop_assert_eq!(spec.automount_service_account_token, Some(false));
        prop_assert_eq!(spec.enable_service_links, Some(false));
        prop_assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        prop_assert_eq!((spec.host_network, spec.host_pid, spec.host_ipc), (None, None, None));
        prop_assert_eq!(&spec.service_account_name, &None);
        prop_assert!(spec.volumes.unwrap().iter().all(|volume| volume.host_path.is_none()));
        prop_assert!(spec.active_deadline_seconds.unwrap() > i64::try_from(seconds).unwrap());
        for container in spec.containers.iter().chain(spec.init_containers.as_deref().unwrap()) {
            prop_assert_ne!(container.security_context.as_ref().unwrap().privileged, Some(true));
            prop_assert!(container.image.as_ref().unwrap().contains("@sha256:"));
            prop_assert!(container.liveness_probe.is_none());
        }
        let node = spec.affinity.unwrap().node_affinity.unwrap();
        let terms = node.required_during_scheduling_ignored_during_execution.unwrap().node_selector_terms;
        // Terms are alternatives: each must keep the control plane out.
        for term in terms {
            let keys: Vec<String> = term.match_expressions.unwrap().into_iter()
                .filter(|expression| expression.operator == "DoesNotExist")
                .map(|expression| expression.key)
                .collect();
            prop_assert!(CONTROL_PLANE_LABELS.iter().all(|label| keys.iter().any(|key| key == label)));
        }
    }
}

/// What the admission policy takes of a builder is what is made here: a change of one is a change of both, and the
/// pods of workers that are not rolled out yet are refused meanwhile.
#[test]
fn the_admission_policy_takes_the_commands_that_pods_are_made_with() {
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../k8s/base/admission/builder-pods.yaml");
    let text = std::fs::read_to_string(policy).unwrap();
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
    let variables = documents[0]["spec"]["variables"].as_array().unwrap();
    let said = |name: &str| {
        let variable = variables.iter().find(|variable| variable["name"] == name);
        variable.unwrap()["expression"].as_str().unwrap().to_owned()
    };
    let gate = |isolation| {
        let command = pod(&settings(), isolation).spec.unwrap().init_containers.unwrap()[0].command.clone();
        let command = command.unwrap();
        assert_eq!(command[..2], ["bash", "-uc"]);
        command[2].clone()
    };
    let (userns, rootless) = (gate(Isolation::Userns), gate(Isolation::Rootless));
    let first = userns.strip_suffix(&rootless).unwrap();
    assert_eq!(said("gate"), format!("(variables.userns ? r'''{first}''' : '') + r'''{rootless}'''"));
    for isolation in [Isolation::Userns, Isolation::Rootless] {
        let spec = pod(&settings(), isolation).spec.unwrap();
        let daemon = &spec.containers[0];
        let list: Vec<String> = daemon.command.iter().flatten().map(|part| format!("'{part}'")).collect();
        assert!(said("daemon").contains(&format!("[{}]", list.join(", "))), "{list:?}");
        for argument in daemon.args.iter().flatten() {
            let value = argument.rsplit_once('=').map_or(argument.as_str(), |(_, value)| value);
            let parts = ["arguments", "files", "socket"].map(said);
            let there =
                parts.iter().any(|part| part.contains(argument) || part.contains(&format!("'{value}'")));
            assert!(there, "{argument}");
        }
    }
}
