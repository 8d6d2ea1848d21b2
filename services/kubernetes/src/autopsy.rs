//! Why a pod is not, or no longer, of use: told by the fields of its status, never by its messages. Messages are
//! quoted for people where they are the only place that says more (the scheduler's reasons).

use std::fmt;

use fabrique_core::failure::FailureKind;
use fabrique_ports::builder::Autopsy;
use k8s_openapi::api::core::v1::{ContainerState, Node, Pod, PodStatus};

use crate::pod::{DAEMON_CONTAINER, GATE_CONTAINER, NO_USER_NAMESPACE};

/// What became of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It answers.
    Ready,
    /// It may still become ready; the cause says what it waits for, where that is more than time.
    Starting(Option<Cause>),
    /// It ended, or is being ended.
    Over(Cause),
}

/// What Kubernetes did, or did not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The kernel killed the container for want of memory.
    OutOfMemory,
    /// The node needed its disk, memory or process ids back, or the pod used more disk than it may.
    NodePressure,
    /// Somebody used the Eviction API.
    Evicted,
    /// The same, on a node that takes no more pods.
    Drained,
    /// A pod of a higher priority took its place.
    Preempted,
    /// The node stopped reporting, was deleted, or was shut down.
    NodeLost,
    /// The pod's own deadline passed.
    Deadline,
    /// Somebody deleted the pod.
    Deleted,
    /// The node would not run the pod: no room after all, or a feature that it lacks. Kubernetes' word for it.
    NodeRefused(String),
    /// An image cannot be pulled. Kubernetes' word for it.
    ImagePull(String),
    /// A container cannot be made: a ConfigMap or Secret is missing, or the runtime refuses. Kubernetes' word.
    Container(String),
    /// No node takes it. The scheduler's own reasons.
    Unschedulable(String),
    /// The gate gave up: no network policy is in force, or the registry does not answer.
    Gate,
    /// The daemon ended by itself.
    Exited(i32),
    /// Nothing listens any more, and neither its status nor its node's says why.
    Silent,
    /// It is over and its status does not say why.
    Unknown,
}

impl Cause {
    /// Whose turn it is when a build ended by this.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        match self {
            Cause::OutOfMemory
            | Cause::NodePressure
            | Cause::Evicted
            | Cause::Drained
            | Cause::Preempted
            | Cause::NodeLost
            | Cause::Deadline
            | Cause::Deleted
            | Cause::NodeRefused(_) => FailureKind::Environment,
            Cause::ImagePull(_)
            | Cause::Container(_)
            | Cause::Unschedulable(_)
            | Cause::Gate
            | Cause::Exited(_)
            | Cause::Silent
            | Cause::Unknown => FailureKind::Infrastructure,
        }
    }

    /// The cause in the light of the node, for a pod that is gone already.
    #[must_use]
    pub(crate) fn on(self, node: Option<&Node>) -> Self {
        match self {
            Cause::Evicted if node.is_some_and(is_cordoned) => Cause::Drained,
            Cause::Deleted if node.is_some_and(is_lost) => Cause::NodeLost,
            other => other,
        }
    }

    /// Whether another node would have been better, as far as anybody can say: what is tried again goes there.
    #[must_use]
    pub fn is_the_nodes(&self) -> bool {
        match self {
            Cause::NodePressure
            | Cause::Evicted
            | Cause::Drained
            | Cause::Preempted
            | Cause::NodeLost
            | Cause::NodeRefused(_)
            | Cause::Silent => true,
            Cause::OutOfMemory
            | Cause::Deadline
            | Cause::Deleted
            | Cause::ImagePull(_)
            | Cause::Container(_)
            | Cause::Unschedulable(_)
            | Cause::Gate
            | Cause::Exited(_)
            | Cause::Unknown => false,
        }
    }

    /// The word for events and metrics.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Cause::OutOfMemory => "out-of-memory",
            Cause::NodePressure => "node-pressure",
            Cause::Evicted => "evicted",
            Cause::Drained => "drained",
            Cause::Preempted => "preempted",
            Cause::NodeLost => "node-lost",
            Cause::Deadline => "deadline",
            Cause::Deleted => "deleted",
            Cause::NodeRefused(_) => "node-refused",
            Cause::ImagePull(_) => "image-pull",
            Cause::Container(_) => "container",
            Cause::Unschedulable(_) => "unschedulable",
            Cause::Gate => "gate",
            Cause::Exited(_) => "exited",
            Cause::Silent => "silent",
            Cause::Unknown => "unknown",
        }
    }
}

/// Continues a sentence that begins with the pod's name.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::OutOfMemory => f.write_str("ran out of memory"),
            Cause::NodePressure => f.write_str("was evicted by its node, which ran short of a resource"),
            Cause::Evicted => f.write_str("was evicted"),
            Cause::Drained => f.write_str("was evicted because its node was drained"),
            Cause::Preempted => f.write_str("was preempted by a pod of a higher priority"),
            Cause::NodeLost => f.write_str("lost its node"),
            Cause::Deadline => f.write_str("reached its deadline"),
            Cause::Deleted => f.write_str("was deleted"),
            Cause::NodeRefused(reason) => write!(f, "was refused by its node ({reason})"),
            Cause::ImagePull(reason) => write!(f, "cannot pull its image ({reason})"),
            Cause::Container(reason) => write!(f, "cannot start a container ({reason})"),
            Cause::Unschedulable(reasons) => write!(f, "finds no node: {reasons}"),
            Cause::Gate => {
                f.write_str("never saw its network policy in force, or the registry did not answer it")
            }
            Cause::Exited(code) => write!(f, "ended by itself with exit code {code}"),
            Cause::Silent => {
                f.write_str("does not answer any more, and neither its pod nor its node says why")
            }
            Cause::Unknown => f.write_str("ended without a reason in its status"),
        }
    }
}

impl From<Cause> for Autopsy {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::OutOfMemory => Autopsy::OutOfMemory,
            other => Autopsy::Died { kind: other.kind(), why: other.to_string() },
        }
    }
}

/// What became of `pod`; `node` is the one it was bound to, where it may be read.
#[must_use]
pub fn state(pod: &Pod, node: Option<&Node>) -> State {
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    let deleted = pod.metadata.deletion_timestamp.is_some();
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let over = deleted
        || phase == "Failed"
        || phase == "Succeeded"
        || terminated(status, DAEMON_CONTAINER).is_some()
        || is_true(status, "DisruptionTarget");
    if over {
        return State::Over(cause(status, node, deleted));
    }
    if node.is_some_and(is_lost) {
        return State::Over(Cause::NodeLost);
    }
    if is_true(status, "Ready") { State::Ready } else { State::Starting(obstacle(status)) }
}

/// Why it is over, the most telling field first.
fn cause(status: &PodStatus, node: Option<&Node>, deleted: bool) -> Cause {
    let killed = |container| {
        terminated(status, container).is_some_and(|ended| {
            ended.terminated.as_ref().is_some_and(|t| t.reason.as_deref() == Some("OOMKilled"))
        })
    };
    if killed(DAEMON_CONTAINER) || killed(GATE_CONTAINER) {
        return Cause::OutOfMemory;
    }
    if let Some(cause) = disruption(status, node).or_else(|| by_reason(status)) {
        return cause;
    }
    if node.is_some_and(is_lost) {
        return Cause::NodeLost;
    }
    if deleted {
        return Cause::Deleted;
    }
    let code = |container| {
        let state = terminated(status, container)?;
        state.terminated.as_ref().map(|ended| ended.exit_code)
    };
    match (code(GATE_CONTAINER), code(DAEMON_CONTAINER)) {
        (Some(NO_USER_NAMESPACE), _) => Cause::NodeRefused("NoUserNamespace".to_owned()),
        (Some(gate), _) if gate != 0 => Cause::Gate,
        (_, Some(daemon)) => Cause::Exited(daemon),
        (_, None) => Cause::Unknown,
    }
}

/// Whoever ends a pod on purpose says so in the condition `DisruptionTarget`.
fn disruption(status: &PodStatus, node: Option<&Node>) -> Option<Cause> {
    let condition =
        status.conditions.iter().flatten().find(|condition| condition.type_ == "DisruptionTarget")?;
    if condition.status != "True" {
        return None;
    }
    Some(match condition.reason.as_deref()? {
        "EvictionByEvictionAPI" => Cause::Evicted.on(node),
        "PreemptionByScheduler" => Cause::Preempted,
        "DeletionByTaintManager" | "DeletionByPodGC" => Cause::NodeLost,
        // Pressure and a graceful shutdown look alike here; the pod's own reason tells them apart.
        "TerminationByKubelet" => by_reason(status).unwrap_or(Cause::NodePressure),
        _ => return None,
    })
}

/// The one-word reason of the pod itself.
fn by_reason(status: &PodStatus) -> Option<Cause> {
    Some(match status.reason.as_deref()? {
        "Evicted" => Cause::NodePressure,
        "DeadlineExceeded" => Cause::Deadline,
        "Preempting" | "Preempted" => Cause::Preempted,
        "NodeLost" | "NodeShutdown" | "Terminated" | "Shutdown" => Cause::NodeLost,
        reason @ ("UnexpectedAdmissionError"
        | "NodeAffinity"
        | "TopologyAffinityError"
        | "PodFeatureUnsupported") => Cause::NodeRefused(reason.to_owned()),
        reason if reason.starts_with("OutOf") => Cause::NodeRefused(reason.to_owned()),
        _ => return None,
    })
}

/// What keeps it from starting, beyond time.
fn obstacle(status: &PodStatus) -> Option<Cause> {
    /// The scheduler's reasons fit in a line; a cluster of a thousand nodes has no more of them.
    const SHOWN: usize = 500;
    let scheduled = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    if let Some(condition) = scheduled
        && condition.status == "False"
        && condition.reason.as_deref() == Some("Unschedulable")
    {
        let message = condition.message.as_deref().unwrap_or("the scheduler gives no reason");
        let shown = message.chars().filter(|character| !character.is_control()).take(SHOWN);
        return Some(Cause::Unschedulable(shown.collect()));
    }
    let statuses = [&status.init_container_statuses, &status.container_statuses];
    let containers = statuses.into_iter().flatten().flatten();
    containers
        .filter_map(|container| container.state.as_ref()?.waiting.as_ref()?.reason.as_deref())
        .find_map(waiting)
}

fn waiting(reason: &str) -> Option<Cause> {
    match reason {
        "ImagePullBackOff"
        | "ErrImagePull"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => Some(Cause::ImagePull(reason.to_owned())),
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            Some(Cause::Container(reason.to_owned()))
        }
        _ => None,
    }
}

fn terminated<'a>(status: &'a PodStatus, container: &str) -> Option<&'a ContainerState> {
    let statuses = [&status.init_container_statuses, &status.container_statuses];
    let found = statuses.into_iter().flatten().flatten().find(|status| status.name == container)?;
    found.state.as_ref().filter(|state| state.terminated.is_some())
}

fn is_true(status: &PodStatus, condition: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|one| one.type_ == condition && one.status == "True")
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

/// A node that stopped reporting is `Unknown`; one whose kubelet gave up is `False`.
pub(crate) fn is_lost(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status != "True")
}

#[cfg(test)]
mod tests;
