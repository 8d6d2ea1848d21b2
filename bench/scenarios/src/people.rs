//! Where people ask: fabrique's image with a configuration, doing nothing.

use serde_json::json;

use crate::installation::OWN;

/// Its name, and its container's.
pub(crate) const NAME: &str = "people";
/// Whichever pod is there: a drained node takes its own with it.
pub(crate) const POD: &str = "deployment/people";

/// One such pod, which is made anew elsewhere when it goes.
pub(crate) fn deployment(image: &str, config: &str) -> String {
    let file =
        |key: &str, name: &str| json!({ "name": key, "value": format!("/run/secrets/fabrique/{name}") });
    let volume = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
    let labels = json!({ "app.kubernetes.io/component": NAME });
    let pod = json!({
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [{
            "name": NAME, "image": image, "command": ["sleep", "2147483647"],
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
            "env": [
                { "name": "FABRIQUE_CONFIG", "value": "/etc/fabrique/fabrique.yaml" },
                file("FABRIQUE_GITEA__READ_TOKEN_FILE", "read-token"),
                file("FABRIQUE_GITEA__APPS_TOKEN_FILE", "apps-token"),
                file("FABRIQUE_NATS__USERS__OPERATOR__PASSWORD_FILE", "nats-password"),
            ],
            "volumeMounts": [
                volume("secrets", "/run/secrets/fabrique"), volume("config", "/etc/fabrique"),
                volume("state", "/var/lib/fabrique"), volume("tmp", "/tmp"),
            ],
        }],
        "volumes": [
            { "name": "secrets", "secret": { "secretName": "fabrique-people", "defaultMode": 0o440 } },
            { "name": "config", "configMap": { "name": config } },
            { "name": "state", "emptyDir": {} },
            { "name": "tmp", "emptyDir": {} },
        ],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": NAME, "namespace": OWN },
        "spec": {
            "selector": { "matchLabels": labels },
            "strategy": { "type": "Recreate" },
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    })
    .to_string()
}
