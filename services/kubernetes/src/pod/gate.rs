//! The init container that holds a builder back until its network policy is in force.
//!
//! A pod may run for seconds before its policy is programmed, and a build in those seconds would be free to talk
//! to anybody. So the gate knocks where nobody may: while that door opens, or the registry's does not, it waits;
//! without a policy the pod never becomes ready.

use k8s_openapi::api::core::v1::{Capabilities, Container, EnvVar, ResourceRequirements, SecurityContext};

use super::shape::Shape;
use super::{GATE_CONTAINER, amounts, seconds};
use crate::config::{Amount, Bytes, Millicores, Settings};

/// How the gate ends where the pod's root is the node's.
pub(crate) const NO_USER_NAMESPACE: i32 = 3;

/// Not every runtime refuses a pod whose user namespace it cannot make: then user 0 is nobody else outside.
const USER_NAMESPACE: &str = r#"read -r _ outside _ </proc/self/uid_map
if [[ $outside == 0 ]]; then
  echo "root of this pod is root of its node: there is no user namespace"
  exit 3
fi
"#;

/// First the registry, or a pod without any network would pass; both in one round, or a policy that comes and
/// goes would. Addresses come by the environment: no text of the configuration becomes part of the program. Kubernetes
/// tells every pod where the API server is.
const SCRIPT: &str = r#": "${FORBIDDEN_HOST:=$KUBERNETES_SERVICE_HOST}" "${FORBIDDEN_PORT:=$KUBERNETES_SERVICE_PORT}"
knock() { timeout 2 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2" 2>/dev/null; }
while ((SECONDS < LIMIT)); do
  if knock "$NEEDED_HOST" "$NEEDED_PORT" && ! knock "$FORBIDDEN_HOST" "$FORBIDDEN_PORT"; then
    exit 0
  fi
  sleep 0.2
done
knock "$NEEDED_HOST" "$NEEDED_PORT" || echo "$NEEDED_HOST:$NEEDED_PORT does not answer"
knock "$FORBIDDEN_HOST" "$FORBIDDEN_PORT" && echo "$FORBIDDEN_HOST:$FORBIDDEN_PORT is open: no policy is in force"
exit 1
"#;

fn script(shape: &Shape) -> String {
    let own_root = if shape.host_users == Some(false) { USER_NAMESPACE } else { "" };
    format!("{own_root}{SCRIPT}")
}

pub(super) fn container(settings: &Settings, shape: &Shape) -> Container {
    let gate = &settings.gate;
    let variable =
        |name: &str, value: String| EnvVar { name: name.to_owned(), value: Some(value), value_from: None };
    let mut variables = vec![
        variable("NEEDED_HOST", gate.needed.host.clone()),
        variable("NEEDED_PORT", gate.needed.port.to_string()),
        variable("LIMIT", seconds(gate.limit).to_string()),
    ];
    if let Some(forbidden) = &gate.forbidden {
        variables.push(variable("FORBIDDEN_HOST", forbidden.host.clone()));
        variables.push(variable("FORBIDDEN_PORT", forbidden.port.to_string()));
    }
    let memory = ("memory", Bytes::mebi(64).quantity());
    Container {
        name: GATE_CONTAINER.to_owned(),
        image: Some(settings.images.gate().to_string()),
        image_pull_policy: Some(settings.pull.policy.as_str().to_owned()),
        command: Some(vec!["bash".to_owned(), "-uc".to_owned(), script(shape)]),
        env: Some(variables),
        resources: Some(ResourceRequirements {
            requests: Some(amounts([("cpu", Millicores(50).quantity()), memory.clone()])),
            // No limit on the processor: the build waits for this.
            limits: Some(amounts([memory])),
            claims: None,
        }),
        security_context: Some(SecurityContext {
            run_as_user: Some(shape.user),
            run_as_group: Some(shape.user),
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            read_only_root_filesystem: Some(true),
            ..Default::default()
        }),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Default::default()
    }
}
