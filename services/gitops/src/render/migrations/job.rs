//! The Job.

use fabrique_core::id::{AppName, EnvironmentName};
use fabrique_yaml::flow_text;

use super::write::{metadata, name};
use super::{Runner, Target};
use crate::render::stands::APP;

/// What the pod has beyond the run's own limit, to be scheduled and to have its image pulled, in seconds.
const START: u32 = 120;
/// Who runs it: the user of fabrique's image.
const USER: u32 = 65532;

/// Only a database that did not answer is tried again: what is wrong with a file stays wrong.
pub(super) fn job(app: &AppName, environment: &EnvironmentName, target: &Target, runner: &Runner) -> String {
    let head = metadata(app, environment, (&format!("{app}-migrate"), &target.namespace), -1);
    let deadline = runner.limit.saturating_add(START);
    let (container, volumes) = (container(app, target, runner), volumes(app, target));
    format!(
        "apiVersion: batch/v1
kind: Job
{head}spec:
  backoffLimit: 2
  activeDeadlineSeconds: {deadline}
  podFailurePolicy:
    rules:
      - {{ action: FailJob, onExitCodes: {{ containerName: migrate, operator: In, values: [1, 2, 4, 5] }} }}
  template:
    metadata:
      labels: {{ app.kubernetes.io/managed-by: fabrique, {APP}: {} }}
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: {USER}
        runAsGroup: {USER}
        fsGroup: {USER}
        seccompProfile: {{ type: RuntimeDefault }}
{container}{volumes}",
        flow_text(app.as_str())
    )
}

/// What may do nothing but talk to the database.
fn container(app: &AppName, target: &Target, runner: &Runner) -> String {
    let (image, limit, app) = (flow_text(&runner.image), runner.limit, flow_text(app.as_str()));
    let (host, database) = (flow_text(&target.host), flow_text(&target.database));
    let tls = flow_text(&runner.tls);
    format!(
        "      containers:
        - name: migrate
          image: {image}
          args: [migrate, --app, {app}, --from, /migrations, --credentials, /credentials, --limit, {limit}s]
          env:
            - {{ name: PGHOST, value: {host} }}
            - {{ name: PGDATABASE, value: {database} }}
            - {{ name: PGSSLMODE, value: {tls} }}
          resources:
            requests: {{ cpu: 50m, memory: 64Mi }}
            limits: {{ memory: 256Mi }}
          # What went wrong is in the pod's status, for whoever finds the Job failed.
          terminationMessagePolicy: FallbackToLogsOnError
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{ drop: [ALL] }}
          volumeMounts:
            - {{ name: migrations, mountPath: /migrations, readOnly: true }}
            - {{ name: credentials, mountPath: /credentials, readOnly: true }}
"
    )
}

fn volumes(app: &AppName, target: &Target) -> String {
    let (files, secret) = (flow_text(&name(app)), flow_text(&target.secret));
    // 0440, in a number that every reader of YAML takes for the same.
    let mode = 0o440;
    format!(
        "      volumes:
        - {{ name: migrations, configMap: {{ name: {files} }} }}
        - name: credentials
          secret:
            secretName: {secret}
            defaultMode: {mode}
            items: [{{ key: username, path: username }}, {{ key: password, path: password }}]
"
    )
}
