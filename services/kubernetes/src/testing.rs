//! Settings and names that tests start from.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::config::Settings;

pub(crate) fn settings() -> Settings {
    let digest = "0".repeat(63) + "1";
    serde_json::from_value(serde_json::json!({
        "namespace": "builders",
        "images": { "builder": format!("registry:80/buildkit@sha256:{digest}") },
        "gate": { "forbidden": "198.19.0.1:443", "needed": "registry:80" },
    }))
    .unwrap()
}

pub(crate) fn owner() -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: crate::pod::CONFIG_MAP.into(),
        uid: "5b4a".into(),
        ..Default::default()
    }
}
