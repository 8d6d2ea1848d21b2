//! The files that the configuration names, read and checked as the worker that uses them does.

use std::fs;
use std::path::Path;

use fabrique_gitops::registration::Ceiling;
use fabrique_kubernetes::config::Settings;
use fabrique_kubernetes::network::AllowList;
use fabrique_operator::validate::Finding;
use serde::de::DeserializeOwned;

use super::{not_read, whole_file};
use crate::config::Config;

/// Everything that is wrong with them.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(file) = &config.kubernetes.builders_file {
        findings.extend(check(file, "kubernetes.builders_file", Settings::validate));
    }
    if let Some(file) = &config.buildkit.allow_list_file {
        findings.extend(check(file, "buildkit.allow_list_file", AllowList::validate));
    }
    findings
}

/// The most that builds may have, by the file of builder pods. Nothing where none is named, or that cannot be read: which
/// is told by [`findings`].
pub(super) fn ceiling(config: &Config) -> Option<Ceiling> {
    let text = fs::read_to_string(config.kubernetes.builders_file.as_ref()?).ok()?;
    serde_saphyr::from_str::<Settings>(&text).ok().map(|settings| most(&settings))
}

/// Adapters know nothing of registrations, and these nothing of adapters.
fn most(settings: &Settings) -> Ceiling {
    let fabrique_kubernetes::config::Ceiling { cpu, memory, ephemeral_storage } = settings.max;
    Ceiling { cpu, memory, ephemeral_storage, timeout: Some(settings.pool.longest_build) }
}

fn check<T: DeserializeOwned>(
    file: &Path,
    key: &str,
    judge: impl Fn(&T) -> Vec<fabrique_kubernetes::Finding>,
) -> Vec<Finding> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            let remedy = format!("put the file there, or correct {key}");
            return vec![whole_file(file, format!("cannot be read: {error}"), remedy)];
        }
    };
    let remedy = format!("correct the file of {key}; docs/kubernetes.md has its keys");
    match serde_saphyr::from_str::<T>(&text) {
        Ok(value) => {
            let told = judge(&value).into_iter();
            told.map(|finding| whole_file(file, finding.to_string(), remedy.clone())).collect()
        }
        Err(error) => vec![not_read(file, &error, remedy)],
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::app::BuildResources;
    use fabrique_core::id::RelPath;
    use fabrique_gitops::{Entry, Tree, registration};
    use serde_json::json;

    use super::*;

    /// What is told before a push is what no builder would be made for after it, and nothing else.
    #[test]
    fn whatever_would_not_be_built_is_told() {
        let image = format!("registry:80/builder@sha256:{}", "0".repeat(64));
        let settings: Settings = serde_json::from_value(json!({
            "namespace": "fabrique-builds",
            "images": { "builder": image },
            "gate": { "needed": "registry:80" },
            "max": { "cpu": "8", "memory": "32Gi" },
        }))
        .unwrap();
        let wishes = |name: &str, amount: &str| {
            let (cpu, bytes) = (|| amount.parse().ok(), || amount.parse().ok());
            match name {
                "cpu" => BuildResources { cpu: cpu(), ..BuildResources::default() },
                "cpu_limit" => BuildResources { cpu_limit: cpu(), ..BuildResources::default() },
                "memory" => BuildResources { memory: bytes(), ..BuildResources::default() },
                "memory_limit" => BuildResources { memory_limit: bytes(), ..BuildResources::default() },
                _ => BuildResources { ephemeral_storage: bytes(), ..BuildResources::default() },
            }
        };
        for (name, amounts, told) in [
            ("cpu", ["7999m", "8", "8001m"], 1),
            ("cpu_limit", ["7999m", "8", "8001m"], 1),
            ("memory", ["1Gi", "32Gi", "33Gi"], 1),
            ("memory_limit", ["1Gi", "32Gi", "33Gi"], 1),
            ("ephemeral_storage", ["1Gi", "32Gi", "9999Gi"], 0),
        ] {
            let mut findings = 0;
            for amount in amounts {
                let text = format!("spec: {{ build: {{ resources: {{ {name}: {amount} }} }} }}\n");
                let path = RelPath::parse("apps/citation/app.yaml").unwrap();
                let tree: Tree = [(path, Entry::regular(text))].into_iter().collect();
                let found = registration::above(&tree, &most(&settings));
                let refused = settings.max.refusal(&wishes(name, amount)).is_some();
                assert_eq!(found.len(), usize::from(refused), "{name} {amount}: {found:?}");
                findings += found.len();
            }
            assert_eq!(findings, told, "{name}");
        }
        // The pool's own bound, of which there is always one.
        for timeout in ["30m", "2h", "2h 1s", "24h"] {
            let text = format!("spec: {{ build: {{ timeout: {timeout} }} }}\n");
            let path = RelPath::parse("apps/citation/app.yaml").unwrap();
            let tree: Tree = [(path, Entry::regular(text))].into_iter().collect();
            let found = registration::above(&tree, &most(&settings));
            let refused = settings.pool.refusal(humantime::parse_duration(timeout).unwrap()).is_some();
            assert_eq!(found.len(), usize::from(refused), "{timeout}: {found:?}");
            assert_eq!(refused, ["2h 1s", "24h"].contains(&timeout));
        }
    }
}
