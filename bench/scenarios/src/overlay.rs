//! The bench's overlay with what is known only once the bed runs. Pure.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use fabrique_cluster_tests::manifests::{self, BUILDER_IMAGE, IMAGE};
use fabrique_core::id::Digest;
use fabrique_kubernetes::config::Isolation;
use serde_json::{Value, json};

/// The configuration that all pods mount, but for the hash in its name.
const CONFIG: &str = "fabrique-config";

/// What the overlay leaves open.
#[derive(Debug, Clone)]
pub(crate) struct Filling {
    /// Fabrique's image by digest.
    pub(crate) image: String,
    /// The builders' image by digest.
    pub(crate) builder: String,
    /// How builds are kept apart.
    pub(crate) isolation: Isolation,
    /// What is to be otherwise.
    pub(crate) changes: Changes,
}

/// What an installation has otherwise than the scenarios' usual one.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// The binary that goes into the image; the one beside this program, or `FABRIQUE_BINARY`, when absent.
    pub binary: Option<PathBuf>,
    /// Merged into `fabrique.yaml`; null changes nothing.
    pub fabrique: Value,
    /// Merged into `builders.yaml`; null changes nothing.
    pub builders: Value,
    /// What the worker logs: its `--log`.
    pub worker_log: Option<String>,
}

/// The objects of the rendered overlay `text`.
///
/// # Errors
/// When the overlay is not what it used to be.
pub(crate) fn fill(text: &str, filling: &Filling) -> Result<Vec<Value>> {
    let text = text.replace(IMAGE, &filling.image).replace(BUILDER_IMAGE, &filling.builder);
    let mut documents = manifests::documents(&text)?;
    let config = documents.iter_mut().find(|document| is_config(document));
    let config = config.context("an overlay without a configuration")?;
    let data = &mut config["data"];
    let Changes { fabrique, builders, worker_log, .. } = &filling.changes;
    merge_file(&mut data["fabrique.yaml"], &[&impatience(), fabrique])?;
    merge_file(&mut data["builders.yaml"], &[&pool(filling.isolation), builders])?;
    let hash = Digest::of(data.to_string().as_bytes());
    for document in &mut documents {
        match kind(document) {
            // Its name stays the same when a file changes here, so that pods have to be told.
            "Deployment" => {
                document["spec"]["template"]["metadata"]["annotations"]["scenarios/config"] =
                    json!(hash.as_str());
                if let Some(log) = worker_log.as_ref().filter(|_| name(document) == "worker") {
                    let env = &mut document["spec"]["template"]["spec"]["containers"][0]["env"];
                    let env = env.as_array_mut().context("a worker without an environment")?;
                    env.push(json!({ "name": "FABRIQUE_LOG", "value": log }));
                }
            }
            // A sweep comes when a scenario asks for one, or what heals could not be told.
            "CronJob" => document["spec"]["suspend"] = json!(true),
            _ => {}
        }
    }
    Ok(documents)
}

/// The name of the configuration that pods mount, hash included, and where it has webhook #2 deliver to.
///
/// # Errors
/// When there is none, or it does not say.
pub(crate) fn config(documents: &[Value]) -> Result<(String, String)> {
    let config = documents.iter().find(|document| is_config(document));
    let config = config.context("an overlay without a configuration")?;
    let text = config["data"]["fabrique.yaml"].as_str().context("a configuration without its file")?;
    let content: Value = serde_saphyr::from_str(text)?;
    let url = content["receiver"]["public_url"].as_str().context("a receiver without a public URL")?;
    Ok((name(config).to_owned(), url.to_owned()))
}

fn is_config(document: &Value) -> bool {
    kind(document) == "ConfigMap" && name(document).starts_with(CONFIG)
}

/// Times that are minutes where people wait, and seconds here. A backoff still lasts long enough for its reason to be
/// told.
fn impatience() -> Value {
    json!({
        "worker": { "lease": "5s", "backoff_base": "2s", "backoff_max": "5s", "max_attempts": 8 },
    })
}

/// Two daemons and no more, made when they are wanted: a pod that appears is there for a build.
fn pool(isolation: Isolation) -> Value {
    json!({
        "isolation": isolation.as_str(),
        "pool": { "total": 2, "per_domain": 2, "warm": 0, "warm_wait": "1s", "start": "90s", "claim": "15s" },
        "patience": { "request": "5s", "autopsy": "20s" },
        "resources": { "memory": "512Mi" },
        "cache": { "size": "1Gi" },
    })
}

/// Changes a file of YAML, which is JSON from then on: YAML, too.
fn merge_file(file: &mut Value, changes: &[&Value]) -> Result<()> {
    let text = file.as_str().context("a configuration without one of its files")?;
    let mut content: Value = serde_saphyr::from_str(text)?;
    for change in changes.iter().filter(|change| !change.is_null()) {
        merge(&mut content, change);
    }
    *file = json!(content.to_string());
    Ok(())
}

fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change.clone(),
    }
}

/// A document's kind.
pub(crate) fn kind(document: &Value) -> &str {
    document["kind"].as_str().unwrap_or_default()
}

fn name(document: &Value) -> &str {
    document["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use fabrique_kubernetes::config::Settings;

    use super::*;

    const BUILDER: &str = concat!(
        "registry:80/bed/builder@sha256:",
        "2222222222222222222222222222222222222222222222222222222222222222"
    );

    fn filling() -> Filling {
        Filling {
            image: "registry:80/fabrique@sha256:1".into(),
            builder: BUILDER.into(),
            isolation: Isolation::Rootless,
            changes: Changes::default(),
        }
    }

    const OVERLAY: &str = "
apiVersion: v1
kind: ConfigMap
metadata: { name: fabrique-config-abc }
data:
  fabrique.yaml: |
    worker: { grace: 1s }
    receiver: { listen: 'a:1', public_url: b }
  builders.yaml: 'isolation: userns'
---
kind: Deployment
metadata: { name: worker }
spec: { template: { metadata: { labels: {} } } }
---
kind: CronJob
metadata: { name: reconciler }
spec: {}
";

    #[test]
    fn keys_that_are_not_changed_stay() {
        let documents = fill(OVERLAY, &filling()).unwrap();
        let config: Value =
            serde_json::from_str(documents[0]["data"]["fabrique.yaml"].as_str().unwrap()).unwrap();
        assert_eq!(config["worker"]["grace"], "1s");
        assert_eq!(config["worker"]["lease"], "5s");
        assert_eq!(config["receiver"], json!({ "listen": "a:1", "public_url": "b" }));
        assert_eq!(super::config(&documents).unwrap(), ("fabrique-config-abc".to_owned(), "b".to_owned()));
    }

    #[test]
    fn what_is_changed_comes_last() {
        let changes = Changes {
            fabrique: json!({ "worker": { "lease": "30s" } }),
            worker_log: Some("debug".into()),
            ..Changes::default()
        };
        let overlay = OVERLAY.replace("labels: {} }", "labels: {} }, spec: { containers: [{ env: [] }] }");
        let documents = fill(&overlay, &Filling { changes, ..filling() }).unwrap();
        let config: Value =
            serde_json::from_str(documents[0]["data"]["fabrique.yaml"].as_str().unwrap()).unwrap();
        assert_eq!(config["worker"]["lease"], "30s");
        assert_eq!(config["worker"]["backoff_max"], "5s");
        let env = &documents[1]["spec"]["template"]["spec"]["containers"][0]["env"];
        assert_eq!(*env, json!([{ "name": "FABRIQUE_LOG", "value": "debug" }]));
    }

    #[test]
    fn another_configuration_is_another_pod() {
        let annotation = |isolation| {
            let documents = fill(OVERLAY, &Filling { isolation, ..filling() }).unwrap();
            documents[1]["spec"]["template"]["metadata"]["annotations"]["scenarios/config"].clone()
        };
        assert!(annotation(Isolation::Userns).is_string());
        assert_ne!(annotation(Isolation::Userns), annotation(Isolation::Rootless));
        assert_eq!(annotation(Isolation::Userns), annotation(Isolation::Userns));
    }

    #[test]
    fn the_benchs_own_settings_are_still_sound() {
        let path = manifests::root().join("overlays/bench/config/builders.yaml");
        let text = std::fs::read_to_string(path).unwrap().replace(BUILDER_IMAGE, BUILDER);
        let mut file = json!(text);
        merge_file(&mut file, &[&pool(Isolation::Userns)]).unwrap();
        let settings: Settings = serde_saphyr::from_str(file.as_str().unwrap()).unwrap();
        assert_eq!(settings.validate(), []);
    }

    #[test]
    fn no_sweep_comes_by_itself() {
        assert_eq!(fill(OVERLAY, &filling()).unwrap()[2]["spec"]["suspend"], true);
    }
}
