//! Applications as Argo CD has them.

use fabrique_bed::Cluster;
use serde_json::Value;

/// An Application; nothing while it is not there.
pub(crate) async fn look(cluster: &Cluster, name: &str) -> Option<Value> {
    let get = ["get", "application", name, "--namespace=argocd", "--output=json"];
    serde_json::from_str(&cluster.kubectl(&get).await.ok()?).ok()
}

/// Has Argo CD look at Applications, as a webhook would; at those that are not there it does not. To be asked for until
/// something comes of it: Argo CD before 3.6 drops a request that arrives while it works on the one before (argo-cd issue
/// 28392).
pub(crate) async fn refresh(cluster: &Cluster, names: &[&str]) {
    let refresh = "argocd.argoproj.io/refresh=normal";
    for name in names {
        let annotate = ["annotate", "application", name, "--namespace=argocd", "--overwrite", refresh];
        let _ = cluster.kubectl(&annotate).await;
    }
}

/// What Argo CD says of Applications.
pub(crate) async fn told(cluster: &Cluster, names: &[&str]) -> String {
    let mut told = String::new();
    for name in names {
        let seen = look(cluster, name).await.unwrap_or_default();
        told.push_str(&format!("\n{name}: {:#}", seen["status"]));
    }
    told
}
