//! Many registered apps that are all deployed at their head: whatever looks at them has nothing to do.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use fabrique_stage::Stage;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::{Client, StatusCode};
use serde_json::Value;

/// Repositories that the apps share, each app on a branch of its own, so that one push wakes one app.
const REPOS: u32 = 5;
/// Images copied at once.
const COPIES: usize = 8;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The apps and the servers that they are on.
pub(crate) struct Fleet {
    pub(crate) stage: Stage,
    pub(crate) apps: Vec<FleetApp>,
}

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct FleetApp {
    /// Its name, and its branch's.
    pub(crate) name: String,
    /// Its repository in `atlas`.
    pub(crate) repo: String,
    /// The head of its branch, which is deployed.
    pub(crate) head: String,
}

impl Fleet {
    /// Starts the servers, registers `count` apps and deploys them by hand.
    pub(crate) async fn gather(binary: &Path, count: u32) -> Result<Self> {
        let stage = Stage::builder().start(binary).await?;
        let mut apps = Vec::new();
        let repos = REPOS.min(count);
        for number in 0..repos {
            let repo = format!("fleet-{number}");
            let source = stage.create_source("atlas", &repo, false).await?;
            let head = source.head().await?;
            let names = (number..count).step_by(repos as usize).map(|app| format!("app-{app:04}"));
            let of_repo: Vec<FleetApp> =
                names.map(|name| FleetApp { name, repo: repo.clone(), head: head.clone() }).collect();
            let branches = of_repo.iter().map(|app| format!("HEAD:refs/heads/{}", app.name));
            let branches: Vec<String> = branches.collect();
            let mut push = vec!["push", "--quiet", "origin"];
            push.extend(branches.iter().map(String::as_str));
            source.git(&push).await?;
            apps.extend(of_repo);
        }
        let digest = copy_images(&stage, &apps).await.context("copying images")?;
        let clone = stage.clone_apps().await?;
        for app in &apps {
            let image = format!("{}/{}", stage.bed.registry().host(), app.name);
            for (file, text) in app.files(&image, &digest)? {
                clone.write(&format!("apps/{}/{file}", app.name), text).await?;
            }
        }
        clone.commit("Register and deploy the fleet").await?;
        clone.push().await?;
        Ok(Self { stage, apps })
    }
}

impl FleetApp {
    fn files(&self, image: &str, digest: &str) -> Result<[(&'static str, String); 3]> {
        let Self { name, repo, head } = self;
        let mut app = String::new();
        writeln!(app, "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {name} }}\nspec:")?;
        writeln!(app, "  source: {{ repo: atlas/{repo}, branch: {name} }}\n  image: {image}")?;
        writeln!(app, "  build: {{ context: . }}\n  environments:\n    - name: prod")?;
        writeln!(app, "      image: {{ from: build }}\n      bindings:")?;
        let path = format!("images[name={image}].digest");
        writeln!(
            app,
            "        - {{ channel: image, file: kustomization.yaml, path: \"{path}\", form: digest }}"
        )?;

        let mut composition = String::new();
        writeln!(composition, "apiVersion: fabrique/v1\nkind: Composition")?;
        writeln!(composition, "metadata: {{ app: {name}, environment: prod }}")?;
        writeln!(
            composition,
            "image: {{ repository: {image}, digest: \"{digest}\", revision: {head}, version: null, build: null, hold: null }}"
        )?;
        writeln!(composition, "infra: {{ repo: null, path: null, revision: null, hold: null }}")?;

        let kustomization = format!("resources: []\nimages:\n  - name: {image}\n    digest: {digest}\n");
        Ok([
            ("app.yaml", app),
            ("prod/composition.yaml", composition),
            ("prod/kustomization.yaml", kustomization),
        ])
    }
}

/// Gives every app an image of its own in the registry, by mounting the base image. Returns its digest.
async fn copy_images(stage: &Stage, apps: &[FleetApp]) -> Result<String> {
    let registry = stage.bed.registry();
    let client = Client::builder().no_proxy().build()?;
    let base = registry.base_url();
    let url = format!("{base}/v2/base/busybox/manifests/1");
    let answer = client.get(url).header("Accept", MANIFEST).send().await?.error_for_status()?;
    let manifest = answer.text().await?;
    let parsed: Value = serde_json::from_str(&manifest)?;
    let layers = parsed["layers"].as_array().cloned().unwrap_or_default();
    let blobs: Vec<String> = std::iter::once(&parsed["config"])
        .chain(&layers)
        .filter_map(|blob| blob["digest"].as_str().map(str::to_owned))
        .collect();
    let copy = async |app: &FleetApp| -> Result<()> {
        for blob in &blobs {
            let url = format!("{base}/v2/{}/blobs/uploads/?mount={blob}&from=base/busybox", app.name);
            let status = client.post(url).send().await?.status();
            ensure!(status == StatusCode::CREATED, "mounting a blob: {status}");
        }
        let url = format!("{base}/v2/{}/manifests/deployed", app.name);
        let put = client.put(url).header("Content-Type", MANIFEST).body(manifest.clone());
        put.send().await?.error_for_status()?;
        Ok(())
    };
    stream::iter(apps.iter().map(copy)).buffer_unordered(COPIES).try_collect::<Vec<()>>().await?;
    registry.digest("base/busybox", "1").await?.context("the base image has no digest")
}
