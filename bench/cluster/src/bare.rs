//! A builder pod as fabrique makes it, made by hand, and a daemon's door as anybody with a key opens it.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::install::{Cache, Product};
use fabrique_scenarios::{BUILDS, Installation};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::api::{self, Api};

/// How long a pod may take to be ready, its image pulled for the first time.
const READY: Duration = Duration::from_secs(120);
const CONNECT: Duration = Duration::from_secs(10);
const BUILD: Duration = Duration::from_secs(60);
/// Names of secrets that builders mount start like this, or they are refused.
const SECRET: &str = "builder-bare";

/// What opens every builder: a client's certificate of their authority.
pub(crate) struct Key {
    folder: TempDir,
    authority: String,
    certificate: String,
    key: SecretString,
}

/// Where a daemon answers, and by which name it shows a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Door {
    pub(crate) address: String,
    pub(crate) name: String,
}

impl Door {
    /// Of one of fabrique's own builders.
    pub(crate) fn of(pod: &Value) -> Result<Self> {
        let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
        Ok(Self { address: address(pod)?, name: name.to_owned() })
    }
}

fn address(pod: &Value) -> Result<String> {
    pod["status"]["podIP"].as_str().map(str::to_owned).context("a pod without an address")
}

impl Key {
    /// Signed by the authority of `installation`; on disk for `buildctl` until it is dropped.
    pub(crate) async fn take(installation: &Installation) -> Result<Self> {
        let (identity, authority) = installation.builder_client().await?;
        // Nobody else may look into it.
        let folder = tempfile::tempdir()?;
        for (name, text) in [
            ("ca.pem", authority.as_str()),
            ("cert.pem", &identity.certificate),
            ("key.pem", identity.key.expose_secret()),
        ] {
            std::fs::write(folder.path().join(name), text)?;
        }
        Ok(Self { folder, authority, certificate: identity.certificate, key: identity.key })
    }

    /// How long a connection takes that can carry a call: TCP, TLS with both certificates, HTTP/2.
    pub(crate) async fn connect(&self, door: &Door) -> Result<Duration> {
        let start = Instant::now();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.authority))
            .identity(Identity::from_pem(&self.certificate, self.key.expose_secret()))
            .domain_name(&door.name);
        let endpoint = Endpoint::from_shared(format!("https://{}:1234", door.address))?;
        let channel = endpoint.connect_timeout(CONNECT).tls_config(tls)?.connect().await?;
        let took = start.elapsed();
        drop(channel);
        Ok(took)
    }

    /// Builds a commit with `buildctl` and pushes the image by digest alone. Returns the digest.
    pub(crate) async fn build(&self, door: &Door, context: &str, image: &str) -> Result<String> {
        let metadata = self.folder.path().join("metadata.json");
        let mut command = Command::new(Cache::open()?.folder(Product::Buildkit).join("buildctl"));
        command.arg(format!("--addr=tcp://{}:1234", door.address));
        command.arg(format!("--tlsservername={}", door.name));
        command.arg("--tlsdir").arg(self.folder.path());
        command.args(["build", "--frontend=dockerfile.v0", "--opt", &format!("context={context}")]);
        command.arg(format!("--output=type=image,name={image},push=true,push-by-digest=true"));
        command.arg("--metadata-file").arg(&metadata).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(BUILD, command.output()).await.context("buildctl hangs")??;
        ensure!(output.status.success(), "buildctl: {}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&tokio::fs::read(metadata).await?)?;
        Ok(metadata["containerimage.digest"].as_str().context("a build without a digest")?.to_owned())
    }
}

/// A builder of fabrique's, to be made again.
pub(crate) struct Template {
    pod: Value,
    /// By which name it shows a certificate.
    name: String,
}

impl Template {
    /// The template of `pod`. Its certificate is kept under a name of its own.
    pub(crate) async fn of(api: &Api, pod: &Value) -> Result<Self> {
        let name = pod["metadata"]["name"].as_str().context("a pod without a name")?.to_owned();
        let secret = secret_of(pod).context("a builder without a certificate")?;
        let secrets = format!("/api/v1/namespaces/{BUILDS}/secrets");
        let secret = api.get(&format!("{secrets}/{secret}")).await?;
        let copy = json!({
            "apiVersion": "v1", "kind": "Secret", "type": secret["type"], "data": secret["data"],
            "metadata": { "name": SECRET, "namespace": BUILDS },
        });
        api.delete(&format!("{secrets}/{SECRET}")).await?;
        api.create(&secrets, &copy).await?;
        Ok(Self { pod: bare(pod), name })
    }

    /// Makes a pod where there is none of that name, and waits until it is ready. Returns where its daemon answers,
    /// and how long it took.
    pub(crate) async fn start(&self, api: &Api, name: &str, node: Option<&str>) -> Result<(Door, Duration)> {
        self.end(api, name).await?;
        let mut pod = self.pod.clone();
        pod["metadata"]["name"] = json!(name);
        if let Some(node) = node {
            pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
        }
        let mut seen = api.watch(&format!("{}?fieldSelector=metadata.name%3D{name}", pods())).await?;
        let start = Instant::now();
        api.create(&pods(), &pod).await?;
        let ready = seen.find("a bare builder that is ready", READY, |seen| {
            api::is_ready(&seen.object).then(|| (seen.at, seen.object.clone()))
        });
        let (at, pod) = ready.await?;
        Ok((Door { address: address(&pod)?, name: self.name.clone() }, at.duration_since(start)))
    }

    /// Ends a pod, and waits until it is gone.
    pub(crate) async fn end(&self, api: &Api, name: &str) -> Result<()> {
        api.delete(&format!("{}/{name}", pods())).await?;
        api.gone(&format!("{}?fieldSelector=metadata.name%3D{name}", pods())).await
    }
}

fn pods() -> String {
    format!("/api/v1/namespaces/{BUILDS}/pods")
}

fn secret_of(pod: &Value) -> Option<&str> {
    let volumes = pod["spec"]["volumes"].as_array()?;
    volumes.iter().find_map(|volume| volume["secret"]["secretName"].as_str())
}

/// The pod without what the API server and the scheduler added, what makes it fabrique's, and its certificate. Its
/// policies still apply: they go by the label that it keeps.
fn bare(pod: &Value) -> Value {
    const COMPONENT: &str = "app.kubernetes.io/component";
    let mut spec = pod["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        for added in ["nodeName", "serviceAccount", "serviceAccountName", "priority", "tolerations"] {
            spec.remove(added);
        }
    }
    let volumes = spec["volumes"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
    for volume in volumes {
        if volume["secret"]["secretName"].is_string() {
            volume["secret"]["secretName"] = json!(SECRET);
        }
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": {
            "namespace": BUILDS, "labels": { COMPONENT: pod["metadata"]["labels"][COMPONENT] },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_pod_is_the_same_to_its_node_and_not_fabriques() {
        let labels = json!({
            "app.kubernetes.io/component": "fabrique-builder", "app.kubernetes.io/managed-by": "fabrique",
        });
        let pod = json!({
            "metadata": { "name": "builder-0", "uid": "1", "labels": labels, "ownerReferences": [{}] },
            "spec": {
                "nodeName": "worker-1", "hostUsers": false, "containers": [{ "name": "buildkitd" }],
                "volumes": [{ "name": "cache" }, { "name": "c", "secret": { "secretName": "builder-0-x" } }],
            },
            "status": { "podIP": "198.18.130.18" },
        });
        let bare = bare(&pod);
        assert_eq!(bare["metadata"]["labels"], json!({ "app.kubernetes.io/component": "fabrique-builder" }));
        assert_eq!(bare["metadata"].get("ownerReferences"), None);
        assert_eq!(bare["spec"].get("nodeName"), None);
        assert_eq!(bare["spec"]["hostUsers"], false);
        assert_eq!(secret_of(&bare), Some(SECRET));
        assert_eq!(bare.get("status"), None);
        let door = Door { address: "198.18.130.18".into(), name: "builder-0".into() };
        assert_eq!(Door::of(&pod).unwrap(), door);
    }
}
