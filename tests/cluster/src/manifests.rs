//! Overlays and components, rendered.

use std::path::{Path, PathBuf};

use anyhow::Result;
use fabrique_bed::kustomize_build;
use serde_json::Value;

/// Every overlay.
pub const OVERLAYS: [&str; 2] = ["bench", "ha"];
/// Every component.
pub const COMPONENTS: [&str; 11] = [
    "argocd",
    "cilium",
    "egress-proxy",
    "mirror",
    "mirror/cilium",
    "mirror/plain",
    "nats",
    "plain",
    "secrets",
    "servicemonitor",
    "warm-pool",
];
/// What overlays say instead of fabrique's image.
pub const IMAGE: &str = concat!(
    "registry:80/fabrique@sha256:",
    "0000000000000000000000000000000000000000000000000000000000000000"
);
/// What overlays say instead of the builder's image.
pub const BUILDER_IMAGE: &str = concat!(
    "registry:80/fabrique/builder@sha256:",
    "0000000000000000000000000000000000000000000000000000000000000000"
);

/// The folder `k8s`.
#[must_use]
pub fn root() -> PathBuf {
    repository().join("k8s")
}

/// The repository's root.
#[must_use]
pub fn repository() -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_folder.ancestors().nth(2).unwrap_or(crate_folder).to_owned()
}

/// An overlay as one YAML stream.
///
/// # Errors
/// When kustomize refuses it, with what it said.
pub async fn overlay(name: &str) -> Result<String> {
    kustomize_build(&root().join("overlays").join(name)).await
}

/// The base with components on top, as one YAML stream. What a component leaves to the overlay, the images, is put in.
///
/// # Errors
/// When kustomize refuses it, with what it said.
pub async fn base_with(components: &[&str]) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let there = relative(folder.path(), &root())?;
    let components: Vec<String> =
        components.iter().map(|name| format!("{there}/components/{name}")).collect();
    let images = ["fabrique", "nats", "squid"].map(|name| {
        serde_json::json!({ "name": name, "newName": format!("registry:80/{name}"), "digest": format!("sha256:{}", "0".repeat(64)) })
    });
    let kustomization = serde_json::json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [format!("{there}/base")],
        "components": components,
        "images": images,
    });
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string())?;
    kustomize_build(folder.path()).await
}

/// Argo CD's own configuration, of which `bare` are the settings, with the component for the health of Applications on
/// top, as one YAML stream.
///
/// # Errors
/// When kustomize refuses it, with what it said.
pub async fn argocd_cm(bare: &serde_json::Value) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let there = relative(folder.path(), &root())?;
    let kustomization = serde_json::json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["argocd-cm.yaml"],
        "components": [format!("{there}/components/argocd/health")],
    });
    let own = serde_json::json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "argocd-cm", "namespace": "argocd", "labels": { "app.kubernetes.io/part-of": "argocd" },
        },
        "data": bare,
    });
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string())?;
    std::fs::write(folder.path().join("argocd-cm.yaml"), own.to_string())?;
    kustomize_build(folder.path()).await
}

/// The documents of a YAML stream.
///
/// # Errors
/// When it is no YAML.
pub fn documents(yaml: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// `to` as seen from `from`: kustomize takes no absolute path.
fn relative(from: &Path, to: &Path) -> Result<String> {
    let (from, to) = (from.canonicalize()?, to.canonicalize()?);
    let up = "../".repeat(from.components().count() - 1);
    let down = to.strip_prefix("/")?;
    Ok(format!("{up}{}", down.display()))
}
