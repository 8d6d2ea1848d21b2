//! The bench's overlay with what is known only once the bed runs. Pure.

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
    /// Where Gitea, which is no pod and knows no Service by its name, delivers webhook #2.
    pub(crate) receiver: String,
    /// How builds are kept apart.
    pub(crate) isolation: Isolation,
}

/// The objects of the rendered overlay `text`.
///
/// # Errors
/// When the overlay is not what it used to be.
pub(crate) fn fill(text: &str, filling: &Filling) -> Result<Vec<Value>> {
    let text = text.replace(IMAGE, &filling.image).replace(BUILDER_IMAGE, &filling.builder);
    let mut documents = manifests::documents(&text)?;
    let is_config =
        |document: &&mut Value| kind(document) == "ConfigMap" && name(document).starts_with(CONFIG);
    let config = documents.iter_mut().find(is_config).context("an overlay without a configuration")?;
    let data = &mut config["data"];
    merge_file(&mut data["fabrique.yaml"], &impatience(&filling.receiver))?;
    merge_file(&mut data["builders.yaml"], &pool(filling.isolation))?;
    let hash = Digest::of(data.to_string().as_bytes());
    for document in &mut documents {
        match kind(document) {
            // Its name stays the same when a file changes here, so that pods have to be told.
            "Deployment" => {
                document["spec"]["template"]["metadata"]["annotations"]["scenarios/config"] =
                    json!(hash.as_str());
            }
            // A sweep comes when a scenario asks for one, or what heals could not be told.
            "CronJob" => document["spec"]["suspend"] = json!(true),
            _ => {}
        }
    }
    Ok(documents)
}

/// Times that are minutes where people wait, and seconds here.
fn impatience(receiver: &str) -> Value {
    json!({
        "receiver": { "public_url": receiver },
        "worker": { "lease": "5s", "backoff_base": "500ms", "backoff_max": "5s", "max_attempts": 8 },
    })
}

/// Two daemons and no more, made when they are wanted: a pod that appears is there for a build.
fn pool(isolation: Isolation) -> Value {
    json!({
        "isolation": isolation.as_str(),
        "pool": { "total": 2, "per_domain": 2, "warm": 0, "warm_wait": "1s", "start": "90s", "claim": "15s" },
        "patience": { "request": "5s" },
        "resources": { "memory": "512Mi" },
        "cache": { "size": "1Gi" },
    })
}

/// Changes a file of YAML, which is JSON from then on: YAML, too.
fn merge_file(file: &mut Value, change: &Value) -> Result<()> {
    let text = file.as_str().context("a configuration without one of its files")?;
    let mut content: Value = serde_saphyr::from_str(text)?;
    merge(&mut content, change);
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
            receiver: "http://198.19.1.2:8080/webhook".into(),
            isolation: Isolation::Rootless,
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
        let receiver = json!({ "listen": "a:1", "public_url": "http://198.19.1.2:8080/webhook" });
        assert_eq!(config["receiver"], receiver);
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
        merge_file(&mut file, &pool(Isolation::Userns)).unwrap();
        let settings: Settings = serde_saphyr::from_str(file.as_str().unwrap()).unwrap();
        assert_eq!(settings.validate(), []);
    }

    #[test]
    fn no_sweep_comes_by_itself() {
        assert_eq!(fill(OVERLAY, &filling()).unwrap()[2]["spec"]["suspend"], true);
    }
}
