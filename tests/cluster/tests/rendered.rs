//! Overlays and components as kustomize renders them, read without a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use fabrique_cluster_tests::manifests::{self, BUILDER_IMAGE, COMPONENTS, IMAGE, OVERLAYS};
use fabrique_kubernetes::config::Settings;
use fabrique_kubernetes::network::{BUILDERS_NAMESPACE, findings_in};
use serde_json::Value;

use crate::ground::kind;
use crate::program::{fabrique, nats_server};

/// Everything that is rendered: each overlay, and the base with each component.
pub(crate) async fn all() -> Vec<(String, Vec<Value>)> {
    let mut rendered = Vec::new();
    for name in OVERLAYS {
        rendered.push((name.to_owned(), manifests::overlay(name).await.unwrap()));
    }
    for name in COMPONENTS {
        rendered.push((format!("base with {name}"), manifests::base_with(&[name]).await.unwrap()));
    }
    rendered.into_iter().map(|(name, text)| (name, manifests::documents(&text).unwrap())).collect()
}

/// The pods' templates in a rendered overlay, with what they belong to.
pub(crate) fn templates(documents: &[Value]) -> impl Iterator<Item = (String, &Value)> {
    documents.iter().filter_map(|document| {
        let pointer = match kind(document) {
            "Deployment" | "StatefulSet" => "/spec/template",
            "CronJob" => "/spec/jobTemplate/spec/template",
            _ => return None,
        };
        let name = format!("{} {}", kind(document), document["metadata"]["name"].as_str().unwrap());
        Some((name, document.pointer(pointer).unwrap()))
    })
}

fn list<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

#[tokio::test]
async fn overlays_and_components_name_every_image_by_digest() {
    for (name, documents) in all().await {
        let mut containers = 0;
        for (owner, template) in templates(&documents) {
            for container in list(template, "/spec/containers").chain(list(template, "/spec/initContainers"))
            {
                containers += 1;
                let image = container["image"].as_str().unwrap();
                assert!(image.contains("@sha256:"), "{name}: {owner} runs {image}");
            }
        }
        assert!(containers >= 6, "{name} has only {containers} containers");
    }
}

/// Whoever fills the bench's overlay in replaces these two, and nothing else says what runs.
#[tokio::test]
async fn the_bench_names_its_two_images_where_they_are_filled_in() {
    let text = manifests::overlay("bench").await.unwrap();
    assert_eq!(
        text.matches(IMAGE).count(),
        7,
        "receiver, worker, reconciler, init, hooks, mirror, mirror-ensure"
    );
    assert_eq!(text.matches(BUILDER_IMAGE).count(), 2, "the settings, and the list of permitted images");
    // In the admission policy, the pattern of a digest.
    assert_eq!(text.matches("@sha256:").count() - text.matches("@sha256:[0-9a-f]").count(), 9);
}

#[tokio::test]
async fn no_policy_that_is_installed_opens_the_world() {
    for (name, documents) in all().await {
        let policies = documents.iter().filter(|document| kind(document).ends_with("NetworkPolicy"));
        let found: Vec<String> = policies
            .flat_map(|policy| findings_in(policy, BUILDERS_NAMESPACE))
            .map(|finding| finding.to_string())
            .collect();
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

#[tokio::test]
async fn every_pod_of_ours_is_bounded_probed_and_ends_gently() {
    for (name, documents) in all().await {
        for (owner, template) in templates(&documents) {
            let spec = &template["spec"];
            let place = format!("{name}: {owner}");
            assert_eq!(spec["enableServiceLinks"], false, "{place}");
            assert!(
                spec["terminationGracePeriodSeconds"].as_u64().is_some_and(|seconds| seconds >= 10),
                "{place}"
            );
            let asks_the_api = ["Deployment worker", "CronJob secrets"].contains(&owner.as_str());
            assert_eq!(spec["automountServiceAccountToken"], asks_the_api, "{place}");
            for container in list(spec, "/containers") {
                let security = &container["securityContext"];
                assert_eq!(security["readOnlyRootFilesystem"], true, "{place}");
                assert!(container["resources"]["limits"]["memory"].is_string(), "{place}");
                assert!(container["resources"]["requests"]["cpu"].is_string(), "{place}");
                assert!(container["resources"]["limits"]["cpu"].is_null(), "{place}: throttled");
                let serves = !owner.starts_with("CronJob");
                assert_eq!(container["livenessProbe"].is_object(), serves, "{place}");
                assert_eq!(container["readinessProbe"].is_object(), serves, "{place}");
            }
            for volume in list(spec, "/volumes").filter(|volume| volume["emptyDir"].is_object()) {
                assert!(volume["emptyDir"]["sizeLimit"].is_string(), "{place}: {volume} has no limit");
            }
        }
    }
}

#[tokio::test]
async fn sweeps_never_overlap_and_end_and_one_receiver_is_always_there() {
    for (name, documents) in all().await {
        let find = |what: &str, called: &str| {
            let named = |document: &&Value| kind(document) == what && document["metadata"]["name"] == called;
            documents.iter().find(named).unwrap_or_else(|| panic!("{name}: no {what} {called}"))
        };
        let sweep = &find("CronJob", "reconciler")["spec"];
        assert_eq!(sweep["concurrencyPolicy"], "Forbid", "{name}");
        let seconds = |pointer: &str| sweep.pointer(pointer).and_then(Value::as_u64);
        let ends = seconds("/jobTemplate/spec/activeDeadlineSeconds");
        assert!(
            ends.is_some_and(|ends| ends < 300),
            "{name}: a sweep may take longer than the five minutes to the next"
        );
        assert!(seconds("/startingDeadlineSeconds").is_some(), "{name}");
        for history in ["/successfulJobsHistoryLimit", "/failedJobsHistoryLimit"] {
            assert!(seconds(history).is_some_and(|kept| (1..=3).contains(&kept)), "{name}: {history}");
        }

        let receiver = &find("Deployment", "receiver")["spec"];
        assert!(receiver["replicas"].as_u64().is_some_and(|replicas| replicas >= 2), "{name}");
        let labels = receiver.pointer("/template/metadata/labels").unwrap();
        let selects = |selector: &Value| {
            let wanted = selector["matchLabels"].as_object().unwrap();
            !wanted.is_empty() && wanted.iter().all(|(label, value)| labels[label] == *value)
        };
        let spread = list(receiver, "/template/spec/topologySpreadConstraints");
        let spread: Vec<&Value> = spread.filter(|spread| selects(&spread["labelSelector"])).collect();
        assert!(!spread.is_empty(), "{name}: both receivers may be on one node");
        let budget = &find("PodDisruptionBudget", "receiver")["spec"];
        assert!(selects(&budget["selector"]), "{name}: {budget}");
        assert!(budget["maxUnavailable"] == 1 || budget["minAvailable"] == 1, "{name}: {budget}");
    }
}

/// The files of the generated ConfigMap of an overlay.
fn config(documents: &[Value]) -> BTreeMap<String, String> {
    let config = documents.iter().find(|document| {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        kind(document) == "ConfigMap" && name.starts_with("fabrique-config-")
    });
    serde_json::from_value(config.unwrap()["data"].clone()).unwrap()
}

#[tokio::test]
async fn the_settings_of_builders_are_valid() {
    for (name, documents) in all().await {
        let settings: Settings = serde_saphyr::from_str(&config(&documents)["builders.yaml"]).unwrap();
        assert_eq!(settings.validate(), [], "{name}");
        assert_eq!(settings.namespace, crate::ground::BUILDS);
        let class = settings.scheduling.priority_class.as_deref();
        let made = documents.iter().any(|document| {
            kind(document) == "PriorityClass" && document["metadata"]["name"].as_str() == class
        });
        assert!(class.is_none() || made, "{name}: nothing makes the priority class {class:?}");
    }
}

/// The cluster autoscaler makes no node for pods below -10, and removes nodes under them.
#[tokio::test]
async fn builders_are_below_apps_and_never_expendable_to_an_autoscaler() {
    let mut classes = 0;
    for (name, documents) in all().await {
        for class in documents.iter().filter(|document| kind(document) == "PriorityClass") {
            let value = class["value"].as_i64().unwrap();
            assert!((-10..0).contains(&value), "{name}: {class}");
            classes += 1;
        }
    }
    assert!(classes >= 2, "the component and an overlay that has it");
}

/// What a pod's configuration is made of: the environment of its container, with the files that it names.
fn secrets(template: &Value) -> Vec<(String, String, String)> {
    let secret = |mount: &Value| {
        let volume = list(template, "/spec/volumes").find(|volume| volume["name"] == mount["name"])?;
        Some((mount["mountPath"].as_str()?.to_owned(), volume["secret"]["secretName"].as_str()?.to_owned()))
    };
    let mounts: Vec<_> = list(template, "/spec/containers/0/volumeMounts").filter_map(secret).collect();
    let variable = |variable: &Value| {
        let (name, value) = (variable["name"].as_str()?, variable["value"].as_str()?);
        let (_, secret) = mounts.iter().find(|(path, _)| value.starts_with(&format!("{path}/")))?;
        Some((name.to_owned(), secret.clone(), value.rsplit('/').next()?.to_owned()))
    };
    list(template, "/spec/containers/0/env").filter_map(variable).collect()
}

#[tokio::test]
async fn every_secret_that_a_pod_names_has_an_example_and_no_more_than_that_is_committed() {
    let text = std::fs::read_to_string(manifests::root().join("secrets.example.yaml")).unwrap();
    let examples: BTreeMap<String, BTreeMap<String, String>> = manifests::documents(&text)
        .unwrap()
        .into_iter()
        .map(|secret| {
            let name = secret["metadata"]["name"].as_str().unwrap().to_owned();
            (name, serde_json::from_value(secret["stringData"].clone()).unwrap())
        })
        .collect();
    for value in examples.values().flat_map(BTreeMap::values) {
        assert!(value.contains("example"), "{value:?} does not say that it is an example");
    }
    let mut mounted = BTreeSet::new();
    for (name, documents) in all().await {
        assert!(!documents.iter().any(|document| kind(document) == "Secret"), "{name} carries a Secret");
        for (owner, template) in templates(&documents) {
            let volumes = list(template, "/spec/volumes");
            mounted.extend(
                volumes.filter_map(|volume| volume["secret"]["secretName"].as_str().map(str::to_owned)),
            );
            for (variable, secret, key) in secrets(template) {
                let example = examples.get(&secret).and_then(|keys| keys.get(&key));
                assert!(example.is_some(), "{name}: {owner} reads {variable} from {secret}/{key}");
            }
        }
    }
    assert_eq!(mounted, examples.keys().cloned().collect());
}

/// The binary itself says whether it understands a role's file and environment: with code 2 where it does not, and
/// before it looks for any server.
#[tokio::test]
async fn every_role_understands_its_configuration() {
    let fabrique = fabrique().await;
    for overlay in OVERLAYS {
        let documents = manifests::documents(&manifests::overlay(overlay).await.unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in config(&documents) {
            // Nobody listens there, so that every look for Gitea ends at once.
            let text = text.replace("http://gitea", "http://127.0.0.1:9/gitea");
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let here = |value: &str| value.replace("/etc/fabrique", folder.path().to_str().unwrap());
        let mut roles = 0;
        for (owner, template) in templates(&documents).filter(|(_, template)| image(template) == IMAGE) {
            let mut command = Command::new(&fabrique);
            command.arg("validate").arg("--config").arg(folder.path().join("fabrique.yaml")).env_clear();
            command.env("PATH", std::env::var_os("PATH").unwrap()).env("FABRIQUE_STATE__DIR", folder.path());
            for variable in list(template, "/spec/containers/0/env") {
                command.env(variable["name"].as_str().unwrap(), here(variable["value"].as_str().unwrap()));
            }
            for (variable, secret, key) in secrets(template) {
                let path = folder.path().join(format!("{secret}.{key}"));
                std::fs::write(&path, "example").unwrap();
                command.env(variable, path);
            }
            let output = command.output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{overlay}: {owner}: {told}");
            roles += 1;
        }
        assert_eq!(roles, 7);
    }
}

fn image(template: &Value) -> &str {
    template["spec"]["containers"][0]["image"].as_str().unwrap()
}

/// A command line that does not exist would only show in a cluster.
#[tokio::test]
async fn every_command_that_a_pod_runs_exists() {
    let fabrique = fabrique().await;
    let documents = manifests::documents(&manifests::overlay("ha").await.unwrap()).unwrap();
    let ours = templates(&documents).filter(|(_, template)| image(template) == IMAGE);
    for (owner, template) in ours {
        let args: Vec<&str> =
            list(template, "/spec/containers/0/args").map(|arg| arg.as_str().unwrap()).collect();
        let output = Command::new(&fabrique).args(&args).arg("--help").output().unwrap();
        assert!(output.status.success(), "{owner}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test]
async fn the_bus_understands_its_configuration() {
    let documents = manifests::documents(&manifests::base_with(&["nats"]).await.unwrap()).unwrap();
    let config = documents.iter().find(|document| {
        document["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("nats-config-"))
    });
    let files: BTreeMap<String, String> = serde_json::from_value(config.unwrap()["data"].clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // As the pod mounts them, so that includes are found as there.
    let (etc, run) = (folder.path().join("etc/nats"), folder.path().join("run/secrets/nats"));
    std::fs::create_dir_all(&etc).unwrap();
    std::fs::create_dir_all(&run).unwrap();
    for (name, text) in &files {
        std::fs::write(etc.join(name), text).unwrap();
    }
    let examples = std::fs::read_to_string(manifests::root().join("secrets.example.yaml")).unwrap();
    let examples = manifests::documents(&examples).unwrap();
    let passwords = examples.iter().find(|secret| secret["metadata"]["name"] == "fabrique-nats").unwrap();
    let passwords = passwords["stringData"]["passwords.conf"].as_str().unwrap();
    std::fs::write(run.join("passwords.conf"), passwords).unwrap();
    let check = || {
        let mut command = Command::new(nats_server());
        command.arg("-t").arg("--config").arg(etc.join("nats.conf")).env("POD_NAME", "nats-0");
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (good, told) = check();
    assert!(good, "{told}");
    // A password that is missing must not pass for an empty one.
    std::fs::write(run.join("passwords.conf"), passwords.replace("PASSWORD_WORKER", "PASSWORD_NOBODY"))
        .unwrap();
    let (good, told) = check();
    assert!(!good, "it went on without a password: {told}");
}
