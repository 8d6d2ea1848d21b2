//! The builder pod: a typed value from a pure function, the same for every app but for what it has of its node and its
//! trust domain. Nothing in it comes from a repository.
//!
//! What every pod has in common is here; `shape` has what the two isolations do differently, `gate` the init container.

mod gate;
mod shape;

use std::collections::BTreeMap;

use fabrique_core::id::{Digest, TrustDomain};
use fabrique_core::time::Timestamp;
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, ExecAction, LocalObjectReference, NodeAffinity, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, PreferredSchedulingTerm, Probe,
    ResourceRequirements, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

pub(crate) use self::gate::NO_USER_NAMESPACE;
use self::shape::Shape;
use crate::config::{Amount, Bytes, Isolation, Resources, Settings};
use crate::daemon_toml::buildkitd_toml;
use crate::labels;

/// The port of the daemon's control API.
pub const DAEMON_PORT: u16 = 1234;
/// The container that runs the daemon.
pub const DAEMON_CONTAINER: &str = "buildkitd";
/// The init container that waits for the network policy.
pub const GATE_CONTAINER: &str = "gate";
/// A node with one of these labels belongs to the control plane, where no builder runs.
pub const CONTROL_PLANE_LABELS: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// The ConfigMap with `buildkitd.toml`, whose keys are named by their content. It owns all builder pods.
pub const CONFIG_MAP: &str = "fabrique-builders";
/// What its keys of certificates begin with, which daemons believe besides their image's.
const AUTHORITIES: &str = "authorities";

/// Tell autoscalers that a pod with a build in it is not theirs to move.
const DISRUPTION_ANNOTATIONS: [(&str, &str); 2] =
    [("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), ("karpenter.sh/do-not-disrupt", "true")];

/// What one pod has for itself.
#[derive(Debug, Clone)]
pub struct PodPlan<'a> {
    /// The operator's settings.
    pub settings: &'a Settings,
    /// How builds are kept apart.
    pub isolation: Isolation,
    /// The pod's place in the pool, which is also its name: whoever creates it takes the place.
    pub seat: u16,
    /// Who may use it.
    pub trust: &'a TrustDomain,
    /// What it has.
    pub resources: Resources,
    /// Nodes that it is to keep away from, where another can be had: a build failed there, and not by itself.
    pub avoid: &'a [String],
    /// The Secret with its certificate; see [`crate::pki`].
    pub secret: &'a str,
    /// What all builder pods belong to.
    pub owner: OwnerReference,
    /// When the worker that makes it was started.
    pub since: Timestamp,
    /// Why it has this isolation.
    pub reason: &'a str,
}

/// What pods of one configuration share, under a name that is a hash of it. A pod of another generation gets no
/// further build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// Twelve hexadecimal digits.
    pub name: String,
    /// Its keys in [`CONFIG_MAP`]: workers of several generations write their files side by side, and a pod that is
    /// made during a rollout reads those it was made for.
    toml: String,
    authorities: Option<String>,
}

/// The name of the pod in a seat. Names are taken by creating, so two workers cannot fill one seat.
#[must_use]
pub fn pod_name(seat: u16) -> String {
    format!("builder-{seat}")
}

/// The files of [`CONFIG_MAP`], of both isolations so that either can be tried by hand.
///
/// # Errors
/// As [`buildkitd_toml`].
pub fn config_files(settings: &Settings) -> Result<BTreeMap<String, String>, toml::ser::Error> {
    let named = |name: &str, ending: &str, content: String| {
        (format!("{name}-{}.{ending}", Digest::of(content.as_bytes()).short()), content)
    };
    let toml =
        |isolation: Isolation| Ok(named(isolation.as_str(), "toml", buildkitd_toml(settings, isolation)?));
    let authorities =
        settings.daemon.authorities.iter().map(|pem| Ok(named(AUTHORITIES, "pem", pem.clone())));
    [Isolation::Userns, Isolation::Rootless].into_iter().map(toml).chain(authorities).collect()
}

/// The generation of pods of one isolation, with the files of [`config_files`].
#[must_use]
pub fn generation(settings: &Settings, isolation: Isolation, files: &BTreeMap<String, String>) -> Generation {
    let key = |name: &str| files.keys().find(|key| key.starts_with(&format!("{name}-"))).cloned();
    let toml = key(isolation.as_str()).unwrap_or_default();
    let mut generation = Generation { name: String::new(), toml, authorities: key(AUTHORITIES) };
    let spec = pod_spec(settings, isolation, &settings.resources, "", &generation);
    // What a pod says that it has is a part of it: one that an older release made does not, and is of no use to this.
    let text =
        serde_json::json!({ "spec": spec, "says": labels::resources(&settings.resources) }).to_string();
    Digest::of(text.as_bytes()).short().clone_into(&mut generation.name);
    generation
}

/// The pod.
#[must_use]
pub fn builder_pod(plan: &PodPlan<'_>, generation: &Generation) -> Pod {
    let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let mut annotations = text(&DISRUPTION_ANNOTATIONS);
    annotations.insert(labels::TRUST_DOMAIN.to_owned(), plan.trust.to_string());
    annotations.extend(labels::resources(&plan.resources));
    annotations.insert(labels::SINCE.to_owned(), plan.since.0.to_string());
    annotations.insert(labels::START_LIMIT.to_owned(), plan.settings.pool.start.as_millis().to_string());
    annotations.insert(labels::ISOLATION_REASON.to_owned(), plan.reason.to_owned());
    let labels = text(&[
        (labels::COMPONENT, labels::BUILDER),
        (labels::MANAGED_BY, labels::FABRIQUE),
        (labels::SEAT, &plan.seat.to_string()),
        (labels::TRUST, &labels::trust_label(plan.trust)),
        (labels::ISOLATION, plan.isolation.as_str()),
        (labels::GENERATION, &generation.name),
    ]);
    let mut spec = pod_spec(plan.settings, plan.isolation, &plan.resources, plan.secret, generation);
    if let Some(affinity) = spec.affinity.as_mut().and_then(|affinity| affinity.node_affinity.as_mut()) {
        affinity.preferred_during_scheduling_ignored_during_execution = elsewhere(plan.avoid);
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(pod_name(plan.seat)),
            namespace: Some(plan.settings.namespace.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![plan.owner.clone()]),
            ..Default::default()
        },
        spec: Some(spec),
        status: None,
    }
}

fn pod_spec(
    settings: &Settings,
    isolation: Isolation,
    resources: &Resources,
    secret: &str,
    generation: &Generation,
) -> PodSpec {
    let scheduling = &settings.scheduling;
    let shape = Shape::of(isolation);
    let pull_secrets = settings.pull.secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        active_deadline_seconds: Some(seconds(settings.pool.deadline())),
        termination_grace_period_seconds: Some(seconds(settings.patience.ending)),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        host_users: shape.host_users,
        security_context: Some(shape.pod_security()),
        affinity: Some(workers_only()),
        node_selector: none_if_empty(scheduling.node_selector.clone(), BTreeMap::is_empty),
        tolerations: none_if_empty(scheduling.tolerations.clone(), Vec::is_empty),
        topology_spread_constraints: none_if_empty(spread(&scheduling.topology_spread), Vec::is_empty),
        priority_class_name: scheduling.priority_class.clone(),
        runtime_class_name: scheduling.runtime_class.clone(),
        host_aliases: none_if_empty(settings.host_aliases.clone(), Vec::is_empty),
        image_pull_secrets: none_if_empty(pull_secrets.collect(), Vec::is_empty),
        init_containers: Some(vec![gate::container(settings, &shape)]),
        containers: vec![daemon(settings, &shape, resources)],
        volumes: Some(shape.volumes(settings, secret, generation)),
        ..Default::default()
    }
}

fn daemon(settings: &Settings, shape: &Shape, resources: &Resources) -> Container {
    let storage = node_disk(settings, resources).map(|storage| ("ephemeral-storage", storage.quantity()));
    let both: Vec<_> = [("memory", resources.memory.quantity())].into_iter().chain(storage).collect();
    let requests = both.iter().cloned().chain([("cpu", resources.cpu.quantity())]);
    let limits = both.iter().cloned().chain(resources.cpu_limit.map(|cpu| ("cpu", cpu.quantity())));
    Container {
        name: DAEMON_CONTAINER.to_owned(),
        image: Some(settings.images.builder.to_string()),
        image_pull_policy: Some(settings.pull.policy.as_str().to_owned()),
        command: Some(shape.command()),
        args: Some(shape.arguments()),
        env: Some(shape.environment(settings)),
        ports: Some(vec![ContainerPort {
            name: Some("control".to_owned()),
            container_port: DAEMON_PORT.into(),
            protocol: Some("TCP".to_owned()),
            ..Default::default()
        }]),
        resources: Some(ResourceRequirements {
            requests: Some(amounts(requests)),
            limits: Some(amounts(limits)),
            claims: None,
        }),
        startup_probe: Some(started(settings, shape)),
        security_context: Some(shape.daemon_security()),
        volume_mounts: Some(shape.mounts()),
        ..Default::default()
    }
}

/// What the pod may write to the node's disk. The cache counts where it has no volume of its own.
fn node_disk(settings: &Settings, resources: &Resources) -> Option<Bytes> {
    let own = resources.ephemeral_storage?;
    let cache = if settings.cache.storage_class.is_some() { 0 } else { settings.cache.size.0 };
    Some(Bytes(own.0.saturating_add(cache)))
}

/// Ready once the daemon answers on its socket. A startup probe and no other: a container without a readiness
/// probe is ready as soon as it has started, so the next question costs no process every second for the rest of
/// the pod's life; and a liveness probe could kill a build that merely keeps the machine busy. The worker asks
/// the daemon itself before every build.
fn started(settings: &Settings, shape: &Shape) -> Probe {
    const PERIOD: i32 = 1;
    let attempts = i32::try_from(settings.pool.start.as_secs()).unwrap_or(i32::MAX) / PERIOD;
    Probe {
        exec: Some(ExecAction {
            command: Some(
                ["buildctl", "--addr", &shape.socket(), "debug", "workers"].map(str::to_owned).to_vec(),
            ),
        }),
        period_seconds: Some(PERIOD),
        timeout_seconds: Some(10),
        failure_threshold: Some(attempts.max(1)),
        ..Default::default()
    }
}

/// Required, not preferred: better no build than one next to the API server.
fn workers_only() -> Affinity {
    let absent = |key: &str| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "DoesNotExist".to_owned(),
        values: None,
    };
    let term = NodeSelectorTerm {
        match_expressions: Some(CONTROL_PLANE_LABELS.map(absent).to_vec()),
        match_fields: None,
    };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            preferred_during_scheduling_ignored_during_execution: None,
        }),
        ..Default::default()
    }
}

/// Preferred, not required: where there is no other node, the same one is better than none. By the node's name and not
/// by its label `kubernetes.io/hostname`, since the two may differ.
fn elsewhere(nodes: &[String]) -> Option<Vec<PreferredSchedulingTerm>> {
    /// The most there is.
    const WEIGHT: i32 = 100;
    let name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "NotIn".to_owned(),
        values: None,
    };
    // One a node: `NotIn` takes a single name of this field.
    let term = |node: &String| PreferredSchedulingTerm {
        weight: WEIGHT,
        preference: NodeSelectorTerm {
            match_fields: Some(vec![NodeSelectorRequirement {
                values: Some(vec![node.clone()]),
                ..name.clone()
            }]),
            match_expressions: None,
        },
    };
    none_if_empty(nodes.iter().map(term).collect(), Vec::is_empty)
}

/// The operator's constraints; one without a selector would count no pod at all.
fn spread(constraints: &[TopologySpreadConstraint]) -> Vec<TopologySpreadConstraint> {
    let builders = LabelSelector {
        match_labels: Some(BTreeMap::from([(labels::COMPONENT.to_owned(), labels::BUILDER.to_owned())])),
        match_expressions: None,
    };
    let complete = |constraint: &TopologySpreadConstraint| TopologySpreadConstraint {
        label_selector: constraint.label_selector.clone().or_else(|| Some(builders.clone())),
        ..constraint.clone()
    };
    constraints.iter().map(complete).collect()
}

fn amounts<'a>(entries: impl IntoIterator<Item = (&'a str, Quantity)>) -> BTreeMap<String, Quantity> {
    entries.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
}

fn none_if_empty<T>(value: T, is_empty: impl Fn(&T) -> bool) -> Option<T> {
    if is_empty(&value) { None } else { Some(value) }
}

fn seconds(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
