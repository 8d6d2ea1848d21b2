//! A worker's account, for tests that act with its rights and no other.

use serde_json::{Value, json};

/// The namespace with the service account `worker` in it, which may do `here` in the namespace and `everywhere` in the whole
/// cluster: rules of RBAC as JSON.
#[must_use]
pub fn worker_account(namespace: &str, here: &[Value], everywhere: &[Value]) -> Value {
    let metadata = json!({ "name": "worker", "namespace": namespace });
    let wide = json!({ "name": namespace });
    let subjects = json!([{ "kind": "ServiceAccount", "name": "worker", "namespace": namespace }]);
    let group = "rbac.authorization.k8s.io";
    let api = format!("{group}/v1");
    let to = |kind: &str, name: &str| json!({ "apiGroup": group, "kind": kind, "name": name });
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } },
        { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata },
        { "apiVersion": api, "kind": "Role", "metadata": metadata, "rules": here },
        { "apiVersion": api, "kind": "RoleBinding", "metadata": metadata, "subjects": subjects,
          "roleRef": to("Role", "worker") },
        { "apiVersion": api, "kind": "ClusterRole", "metadata": wide, "rules": everywhere },
        { "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": wide, "subjects": subjects,
          "roleRef": to("ClusterRole", namespace) },
    ] })
}
