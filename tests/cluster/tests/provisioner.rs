//! Who binds claims of buckets in the bed, as Rook's operator does with Ceph: it makes the bucket with somebody who owns
//! it, puts address and keys beside the claim, and says `Bound`.

use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use fabrique_bed::S3;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::ground::Ground;

/// Its work ends when this is dropped. Buckets stay.
pub(crate) struct Provisioner(JoinHandle<()>);

impl Drop for Provisioner {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Provisioner {
    /// Binds the claims of one class, those that are there and those that come.
    pub(crate) async fn start(ground: Ground, class: &str, s3: Arc<S3>) -> Self {
        let (client, class) = (ground.client().await, class.to_owned());
        Self(tokio::spawn(serve(client, class, s3)))
    }
}

fn claims() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("objectbucket.io", "v1alpha1", "ObjectBucketClaim"))
}

#[expect(clippy::print_stdout, reason = "it shows where the test fails that waits in vain")]
async fn serve(client: Client, class: String, s3: Arc<S3>) {
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &claims());
    let seen = watcher(all, watcher::Config::default()).default_backoff().applied_objects();
    let mut seen = pin!(seen);
    while let Some(claim) = seen.next().await {
        let bound = match &claim {
            Ok(claim) if is_wanted(claim, &class) => bind(&client, claim, &s3).await,
            Ok(_) => Ok(()),
            Err(error) => Err(anyhow::anyhow!("{error}")),
        };
        if let Err(error) = bound {
            println!("the provisioner of {class}: {error:#}");
        }
    }
}

fn is_wanted(claim: &DynamicObject, class: &str) -> bool {
    claim.data["spec"]["storageClassName"] == class
        && claim.data["status"]["phase"] != "Bound"
        && claim.metadata.deletion_timestamp.is_none()
}

async fn bind(client: &Client, claim: &DynamicObject, s3: &S3) -> Result<()> {
    let (name, namespace) = (claim.name_any(), claim.namespace().context("a claim without a namespace")?);
    let uid = claim.uid().context("a claim without an identity")?;
    let bucket = claim.data["spec"]["bucketName"].as_str().context("a claim that names no bucket")?;
    let (access, secret) = (format!("{namespace}.{name}"), uid.replace('-', ""));
    // Another event of the claim may come before it is seen to be bound.
    if !s3.buckets().await?.iter().any(|there| there == bucket) {
        s3.create_user(&access, &secret).await?;
        s3.create_bucket(bucket, &access).await?;
    }
    let metadata = json!({
        "name": name, "namespace": namespace,
        "ownerReferences": [claim.controller_owner_ref(&claims()).context("a claim that can own nothing")?],
    });
    let address = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
        "data": {
            "BUCKET_HOST": s3.address().ip().to_string(), "BUCKET_PORT": s3.address().port().to_string(),
            "BUCKET_NAME": bucket, "BUCKET_REGION": S3::REGION, "BUCKET_SUBREGION": "",
        },
    });
    let keys = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata,
        "stringData": { "AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret },
    });
    let parameters = PatchParams::apply("bed-provisioner").force();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    maps.patch(&name, &parameters, &Patch::Apply(address)).await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    secrets.patch(&name, &parameters, &Patch::Apply(keys)).await?;
    // As Rook's does: what is said of the claim beside its state is in the part that is Argo CD's.
    let bound: Value = json!({
        "spec": { "objectBucketName": format!("obc-{namespace}-{name}") }, "status": { "phase": "Bound" },
    });
    let own: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &claims());
    own.patch(&name, &PatchParams::default(), &Patch::Merge(bound)).await?;
    Ok(())
}
