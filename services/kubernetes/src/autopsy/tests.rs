use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::*;

#[expect(clippy::needless_pass_by_value, reason = "reads better with json! at the call")]
fn pod(status: Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": "builder-3" }, "status": status })).unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "reads better with json! at the call")]
fn deleted(status: Value) -> Pod {
    let metadata = json!({ "name": "builder-3", "deletionTimestamp": "2026-11-29T20:00:00Z" });
    serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap()
}

fn node(ready: &str, unschedulable: bool) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": "worker-1" },
        "spec": { "unschedulable": unschedulable },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    }))
    .unwrap()
}

fn ended(container: &str, code: i32, reason: &str) -> Value {
    json!({
        "name": container, "ready": false, "restartCount": 0, "image": "", "imageID": "",
        "state": { "terminated": { "exitCode": code, "reason": reason } },
    })
}

fn waits(reason: &str) -> Value {
    json!({
        "name": "buildkitd", "ready": false, "restartCount": 0, "image": "", "imageID": "",
        "state": { "waiting": { "reason": reason, "message": "OOMKilled Evicted" } },
    })
}

fn disrupted(reason: &str) -> Value {
    json!({ "phase": "Running", "conditions": [
        { "type": "DisruptionTarget", "status": "True", "reason": reason },
        { "type": "Ready", "status": "True" },
    ] })
}

#[test]
fn a_ready_pod_on_a_ready_node_is_ready() {
    let ready = pod(json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] }));
    assert_eq!(state(&ready, None), State::Ready);
    assert_eq!(state(&ready, Some(&node("True", false))), State::Ready);
    // A cordon alone ends nothing.
    assert_eq!(state(&ready, Some(&node("True", true))), State::Ready);
    assert_eq!(state(&ready, Some(&node("Unknown", false))), State::Over(Cause::NodeLost));
}

#[test]
fn a_pod_without_a_status_is_starting() {
    assert_eq!(state(&Pod::default(), None), State::Starting(None));
}

#[test]
fn a_kill_for_memory_is_told_by_its_reason_and_not_by_137() {
    let killed =
        |reason| pod(json!({ "phase": "Failed", "containerStatuses": [ended("buildkitd", 137, reason)] }));
    assert_eq!(state(&killed("OOMKilled"), None), State::Over(Cause::OutOfMemory));
    assert_eq!(state(&killed("Error"), None), State::Over(Cause::Exited(137)));
    let gate = pod(json!({ "phase": "Failed", "initContainerStatuses": [ended("gate", 137, "OOMKilled")] }));
    assert_eq!(state(&gate, None), State::Over(Cause::OutOfMemory));
}

#[test]
fn who_ended_a_pod_on_purpose_is_told_by_the_condition() {
    let drained = Some(node("True", true));
    for (reason, node, cause) in [
        ("EvictionByEvictionAPI", None, Cause::Evicted),
        ("EvictionByEvictionAPI", drained.as_ref(), Cause::Drained),
        ("PreemptionByScheduler", None, Cause::Preempted),
        ("DeletionByTaintManager", None, Cause::NodeLost),
        ("DeletionByPodGC", None, Cause::NodeLost),
        ("TerminationByKubelet", None, Cause::NodePressure),
    ] {
        assert_eq!(state(&pod(disrupted(reason)), node), State::Over(cause), "{reason}");
    }
}

#[test]
fn the_pods_own_reason_tells_the_rest() {
    let failed = |reason: &str| pod(json!({ "phase": "Failed", "reason": reason }));
    for (reason, cause) in [
        ("Evicted", Cause::NodePressure),
        ("DeadlineExceeded", Cause::Deadline),
        ("NodeShutdown", Cause::NodeLost),
        ("Preempting", Cause::Preempted),
        ("OutOfcpu", Cause::NodeRefused("OutOfcpu".into())),
        ("UnexpectedAdmissionError", Cause::NodeRefused("UnexpectedAdmissionError".into())),
        ("SomethingNew", Cause::Unknown),
    ] {
        assert_eq!(state(&failed(reason), None), State::Over(cause), "{reason}");
    }
}

#[test]
fn a_deleted_pod_on_a_dead_node_lost_its_node() {
    let running = json!({ "phase": "Running" });
    assert_eq!(state(&deleted(running.clone()), None), State::Over(Cause::Deleted));
    assert_eq!(state(&deleted(running), Some(&node("Unknown", false))), State::Over(Cause::NodeLost));
}

#[test]
fn a_gate_that_gave_up_is_not_the_daemons_end() {
    let gate = pod(json!({ "phase": "Failed", "initContainerStatuses": [ended("gate", 1, "Error")] }));
    assert_eq!(state(&gate, None), State::Over(Cause::Gate));
    let root = pod(json!({ "phase": "Failed", "initContainerStatuses": [ended("gate", 3, "Error")] }));
    assert_eq!(state(&root, None), State::Over(Cause::NodeRefused("NoUserNamespace".into())));
    let daemon = pod(json!({
        "phase": "Running",
        "initContainerStatuses": [ended("gate", 0, "Completed")],
        "containerStatuses": [ended("buildkitd", 2, "Error")],
    }));
    assert_eq!(state(&daemon, None), State::Over(Cause::Exited(2)));
}

#[test]
fn what_keeps_a_pod_from_starting_is_told() {
    let message = "0/3 nodes are available: 1 node(s) had untolerated taint";
    let unschedulable = pod(json!({ "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message },
    ] }));
    assert_eq!(state(&unschedulable, None), State::Starting(Some(Cause::Unschedulable(message.into()))));
    let waiting = |reason| pod(json!({ "phase": "Pending", "containerStatuses": [waits(reason)] }));
    assert_eq!(
        state(&waiting("ImagePullBackOff"), None),
        State::Starting(Some(Cause::ImagePull("ImagePullBackOff".into())))
    );
    assert_eq!(
        state(&waiting("CreateContainerConfigError"), None),
        State::Starting(Some(Cause::Container("CreateContainerConfigError".into())))
    );
    assert_eq!(state(&waiting("ContainerCreating"), None), State::Starting(None));
}

/// The words that `why`, commit statuses and events have of it, and whose turn it is then.
#[test]
fn each_cause_is_told_in_words_of_its_own() {
    let told = |cause: Cause| match Autopsy::from(cause) {
        Autopsy::Died { kind, why } => format!("{}: builder-0 {why}", kind.as_str()),
        other => format!("{other:?}"),
    };
    let word = || "ErrImagePull".to_owned();
    for (cause, expected) in [
        (Cause::NodeLost, "environment: builder-0 lost its node"),
        (Cause::Preempted, "environment: builder-0 was preempted by a pod of a higher priority"),
        (Cause::Drained, "environment: builder-0 was evicted because its node was drained"),
        (Cause::Deadline, "environment: builder-0 reached its deadline"),
        (Cause::ImagePull(word()), "infrastructure: builder-0 cannot pull its image (ErrImagePull)"),
        (Cause::Unschedulable("0/3".to_owned()), "infrastructure: builder-0 finds no node: 0/3"),
        (Cause::OutOfMemory, "OutOfMemory"),
    ] {
        assert_eq!(told(cause), expected);
    }
}
