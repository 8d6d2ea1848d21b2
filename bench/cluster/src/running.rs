//! Row 3: from a push to a pod that runs what was pushed, by digest.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::{GitRepo, wait_until};
use fabrique_bench::hook::Hook;
use fabrique_bench::report::{Check, Figure, Series};
use fabrique_bench::stats::{alternate, ratios, seconds};
use fabrique_scenarios::{APPS, SampleApp};
use serde_json::Value;

use crate::Options;
use crate::api::Seen;
use crate::bare::{Door, Template};
use crate::feed::Feed;
use crate::ground::{Ground, HOST, fresh, say};

const WARM_UP: u32 = 2;
/// A push to a pod, on a machine that is busy.
const RUNS: Duration = Duration::from_secs(120);
const BOUND: f64 = 1.1;
const BUILDER: &str = "bare";
const SECRET: &str = "of-the-floor";
const APPLICATIONS: &str = "/apis/argoproj.io/v1alpha1/namespaces/argocd/applications";
const METHOD: &str = "From the end of `git push` to a pod that runs the new image by digest, seen by a watch; one COPY \
    layer changed, everything warm. Beside it the sum of its parts, each done by hand for an app of its own on the \
    same servers: Gitea's webhook, heard by a tiny listener; `buildctl build` of that commit with push by digest on \
    a builder pod like fabrique's; `git push` of the digest to a repository like cluster/apps, prepared in a warm \
    clone; Argo CD from then, told by its webhook, to the pod that runs. Both Applications have the same files.";

/// One push to a pod, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    webhook: f64,
    build: f64,
    push: f64,
    argo: f64,
}

impl Parts {
    fn sum(self) -> f64 {
        self.webhook + self.build + self.push + self.argo
    }
}

#[derive(Clone, Copy)]
enum Arm {
    Fabrique,
    Floor,
}

/// The figure.
pub(crate) async fn measure(options: &Options, ground: &Ground) -> Result<Figure> {
    let mut ours = Box::pin(Ours::create(ground)).await?;
    let mut floor = Box::pin(Floor::create(ground, &ours)).await?;
    let (mut totals, mut parts): (Vec<f64>, Vec<Parts>) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + options.rounds {
        for arm in alternate(&[Arm::Fabrique, Arm::Floor], round) {
            let message = format!("round {round}");
            match arm {
                Arm::Fabrique => totals.push(ours.run(ground, &message).await.context("through fabrique")?),
                Arm::Floor => parts.push(floor.run(ground, &message).await.context("by hand")?),
            }
            quiet(ground, &[&ours.app.name, &floor.name]).await?;
        }
        if let (Some(total), Some(parts)) = (totals.last(), parts.last()) {
            say(&format!("running, round {round}: {total:.2} s, parts {:.2} s", parts.sum()));
        }
    }
    floor.leave(ground).await?;
    let (totals, parts) = (totals.split_off(WARM_UP as usize), parts.split_off(WARM_UP as usize));
    let of = |part: fn(&Parts) -> f64| -> Vec<f64> { parts.iter().map(part).collect() };
    let sums = of(|parts| parts.sum());
    Ok(Figure {
        name: "Push to a pod that runs by digest, warm".to_owned(),
        method: METHOD.to_owned(),
        checks: vec![Check::at_most("fabrique / sum of the parts", ratios(&totals, &sums), BOUND)],
        series: vec![
            Series::new("fabrique", "s", totals),
            Series::new("sum of the parts", "s", sums),
            Series::new("part: webhook", "s", of(|parts| parts.webhook)),
            Series::new("part: buildctl", "s", of(|parts| parts.build)),
            Series::new("part: git push", "s", of(|parts| parts.push)),
            Series::new("part: Argo CD, to the pod", "s", of(|parts| parts.argo)),
        ],
    })
}

/// Fabrique's arm.
struct Ours {
    app: SampleApp,
    pods: Feed<Seen>,
    digest: String,
}

impl Ours {
    async fn create(ground: &Ground) -> Result<Self> {
        let (app, first) = SampleApp::create(&ground.installation, &fresh("ours")).await?;
        let mut pods = ground.api.watch(&pods_of(&app.name)).await?;
        let deployed = ground.installation.deployed(&app, &first).await?;
        runs(&mut pods, |digest| digest == deployed.digest).await?;
        Ok(Self { app, pods, digest: deployed.digest })
    }

    async fn run(&mut self, ground: &Ground, message: &str) -> Result<f64> {
        self.pods.skip();
        let revision = self.app.push_steps(message, "").await?;
        let pushed = Instant::now();
        let (at, digest) = runs(&mut self.pods, |digest| digest != self.digest).await?;
        let composition = ground.installation.deployed(&self.app, &revision).await?;
        ensure!(composition.digest == digest, "{digest} runs, and {composition:?} is deployed");
        self.digest = digest;
        ground.installation.at_rest(&self.app, 0).await?;
        Ok(seconds(pushed, at))
    }
}

/// The same by hand.
struct Floor {
    name: String,
    source: GitRepo,
    hook: Hook,
    /// A warm clone of what Argo CD follows.
    apps: GitRepo,
    pods: Feed<Seen>,
    base: String,
    builder: Template,
    door: Door,
    digest: String,
}

impl Floor {
    async fn create(ground: &Ground, ours: &Ours) -> Result<Self> {
        let cluster = ground.installation.cluster;
        let (gitea, argocd) = (cluster.gitea(), cluster.argocd());
        let name = fresh("floor");
        gitea.create_repo("atlas", &name, false).await?;
        let hook = Hook::listen(HOST.parse()?, SECRET).await?;
        gitea.create_webhook("atlas", &name, &hook.url, SECRET).await?;
        let apps = format!("apps-{name}");
        gitea.create_repo("cluster", &apps, false).await?;
        gitea.create_webhook("cluster", &apps, &argocd.webhook_url(), argocd.webhook_secret()).await?;
        let builder = Template::of(&ground.api, &ground.builder().await?).await?;
        let (door, _) = builder.start(&ground.api, BUILDER, None).await?;
        let mut floor = Self {
            source: GitRepo::clone(&gitea.clone_url_with_token("atlas", &name)).await?,
            apps: GitRepo::clone(&gitea.clone_url_with_token("cluster", &apps)).await?,
            pods: ground.api.watch(&pods_of(&name)).await?,
            base: cluster.images().busybox.clone(),
            digest: ours.digest.clone(),
            name,
            hook,
            builder,
            door,
        };
        floor.copy_files(ground, &ours.app.name).await?;
        let revision = floor.push_source("first").await?;
        let digest = floor.build(ground, &revision).await?;
        floor.fill(&digest).await?;
        floor.apps.push().await?;
        let url = gitea.clone_url("cluster", &apps);
        let application = fabrique_scenarios::application(&floor.name, &url, "prod", APPS);
        cluster.apply(&application.to_string()).await?;
        runs(&mut floor.pods, |runs| runs == digest).await?;
        Ok(floor)
    }

    /// What fabrique filled for its own app, under this app's name.
    async fn copy_files(&self, ground: &Ground, app: &str) -> Result<()> {
        let gitea = ground.installation.cluster.gitea();
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", "apps")).await?;
        for file in FILES {
            let text = apps.read(&format!("apps/{app}/prod/{file}")).await?;
            self.apps.write(&format!("prod/{file}"), text.replace(app, &self.name)).await?;
        }
        Ok(())
    }

    async fn push_source(&self, message: &str) -> Result<String> {
        let dockerfile = format!("FROM {}\nCOPY message /message\n\n", self.base);
        self.source.write("Dockerfile", dockerfile).await?;
        self.source.write("message", message).await?;
        let revision = self.source.commit(message).await?;
        self.source.push().await?;
        Ok(revision)
    }

    async fn build(&self, ground: &Ground, revision: &str) -> Result<String> {
        let source = ground.installation.cluster.gitea().clone_url("atlas", &self.name);
        let context = format!("{source}?checksum={revision}&fetch-by-commit=true");
        ground.key.build(&self.door, &context, &format!("registry:80/{}", self.name)).await
    }

    /// Writes a digest over the one before, everywhere, and commits.
    async fn fill(&mut self, digest: &str) -> Result<()> {
        for file in FILES {
            let path = format!("prod/{file}");
            let text = self.apps.read(&path).await?;
            self.apps.write(&path, text.replace(&self.digest, digest)).await?;
        }
        digest.clone_into(&mut self.digest);
        self.apps.commit("Deploy").await.map(drop)
    }

    async fn run(&mut self, ground: &Ground, message: &str) -> Result<Parts> {
        let revision = self.push_source(message).await?;
        let pushed = Instant::now();
        let delivered = self.hook.delivered(&revision).await?.at;
        let building = Instant::now();
        let digest = self.build(ground, &revision).await?;
        let built = Instant::now();
        self.fill(&digest).await?;
        let committed = Instant::now();
        self.apps.push().await?;
        let shown = Instant::now();
        let (at, _) = runs(&mut self.pods, |runs| runs == digest).await?;
        Ok(Parts {
            webhook: seconds(pushed, delivered),
            build: seconds(building, built),
            push: seconds(committed, shown),
            argo: seconds(shown, at),
        })
    }

    async fn leave(&self, ground: &Ground) -> Result<()> {
        self.builder.end(&ground.api, BUILDER).await?;
        ground.api.delete(&format!("{APPLICATIONS}/{}", self.name)).await
    }
}

const FILES: [&str; 3] = ["kustomization.yaml", "patch-s3-envfrom.yaml", "deployment.yaml"];

fn pods_of(app: &str) -> String {
    format!("/api/v1/namespaces/{APPS}/pods?labelSelector=app%3D{app}")
}

/// Waits for a pod that runs a digest that is looked for. Returns when it was seen, and the digest.
async fn runs(pods: &mut Feed<Seen>, wanted: impl Fn(&str) -> bool) -> Result<(Instant, String)> {
    let running = |seen: &Seen| {
        let digest = digest_of(&seen.object).filter(|digest| wanted(digest))?;
        Some((seen.at, digest.to_owned()))
    };
    pods.find("a pod that runs it", RUNS, running).await
}

/// The digest that a pod names and its node runs.
fn digest_of(pod: &Value) -> Option<&str> {
    let (_, named) = pod["spec"]["containers"][0]["image"].as_str()?.rsplit_once('@')?;
    let status = &pod["status"]["containerStatuses"][0];
    let leaves = pod["metadata"].get("deletionTimestamp").is_some();
    let runs = status["state"].get("running").is_some() && !leaves;
    let runs_it = status["imageID"].as_str().is_some_and(|id| id.ends_with(named));
    (runs && runs_it).then_some(named)
}

/// Waits until both Applications are well and each has one pod, so that no arm pays for another.
async fn quiet(ground: &Ground, apps: &[&str]) -> Result<()> {
    for app in apps {
        wait_until(&format!("{app} to be well"), RUNS, || async {
            let application = ground.api.get(&format!("{APPLICATIONS}/{app}")).await.ok()?;
            let status = &application["status"];
            let well = status["sync"]["status"] == "Synced" && status["health"]["status"] == "Healthy";
            let pods = ground.api.get(&pods_of(app)).await.ok()?;
            (well && pods["items"].as_array()?.len() == 1).then_some(())
        })
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_runs_what_it_names_once_its_node_says_so() {
        let pod = |state: &str, runs: &str| {
            json!({
                "metadata": {},
                "spec": { "containers": [{ "image": "registry:80/a@sha256:12" }] },
                "status": { "containerStatuses": [{ "state": { state: {} }, "imageID": runs }] },
            })
        };
        assert_eq!(digest_of(&pod("running", "registry:80/a@sha256:12")), Some("sha256:12"));
        assert_eq!(digest_of(&pod("waiting", "registry:80/a@sha256:12")), None);
        assert_eq!(digest_of(&pod("running", "registry:80/a@sha256:21")), None);
    }
}
