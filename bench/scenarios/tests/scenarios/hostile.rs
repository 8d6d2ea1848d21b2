//! Gate 7: a hostile Dockerfile, and an app beside it that must not notice.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use fabrique_bed::hostile::{self, Step};
use fabrique_core::id::Digest;
use fabrique_scenarios::verdicts::{self, Walls};
use fabrique_scenarios::{
    BUILDS, Deployment, Installation, Isolation, Neighbourhood, OWN, Policies, SampleApp, builder_of, until,
};
use serde_json::Value;

use crate::gates::{Gate, conclude, fresh};
use crate::seeded;

pub(crate) static GATE: Gate = Gate::new("7", |installation| Box::pin(play(installation)));
pub(crate) static OTHER: Gate =
    Gate::other("7 other isolation", |installation| Box::pin(play(installation))).long();

/// The cache mount that both apps call the same.
const CACHE: &str = "shared";
/// More than a builder's volume holds.
const TOO_MUCH: u32 = 1300;
/// How long steps may go on finding a door closed that is open: several builds.
const OPEN: Duration = Duration::from_mins(3);

/// A hostile app and a peaceful one of the same organisation.
struct Scene {
    installation: &'static Installation,
    isolation: Isolation,
    hostile: SampleApp,
    peaceful: &'static SampleApp,
}

async fn play(installation: &'static Installation) -> Result<()> {
    let isolation = installation.isolation().await;
    let (hostile, first) = SampleApp::create(installation, &fresh("hostile")).await?;
    installation.deployed(&hostile, &first).await?;
    let scene = Scene { installation, isolation, hostile, peaceful: seeded::app()? };
    let before = scene.the_other_app_builds(&hostile::leave_in_cache(CACHE)).await?;
    let neighbourhood = Neighbourhood::open(installation.cluster).await?;
    let pod = scene.looks_around(&before, &neighbourhood).await?;
    scene.knocks_without_policies(&pod, &neighbourhood).await?;
    drop(neighbourhood);
    scene.forks().await?;
    installation.runs(scene.peaceful, &before.digest).await?;
    scene.the_other_app_builds(&Step::new("true")).await?;
    if isolation == Isolation::Rootless {
        let words = ["was lost during the build", "ended by itself"];
        scene.costs_its_own_pod(hostile::kill_the_daemon(), &words).await?;
    }
    scene.costs_its_own_pod(hostile::fill_the_disk(TOO_MUCH), &["evicted by its node"]).await?;
    let better = scene.hostile.push(&fresh("better")).await?;
    installation.deployed(&scene.hostile, &better).await?;
    installation.at_rest(&scene.hostile, 0).await?;
    installation.no_orphans().await
}

impl Scene {
    /// The other app is built at once, and deployed.
    async fn the_other_app_builds(&self, step: &Step) -> Result<Deployment> {
        let Self { installation, peaceful, .. } = self;
        let revision = peaceful.push_steps(&fresh("peaceful"), &step.to_string()).await?;
        installation.deployed(peaceful, &revision).await?;
        let deployments = installation.deployments().await?;
        let deployment = verdicts::committed_once(&deployments, &peaceful.name, &revision)?;
        verdicts::built_at_once(&installation.builds(peaceful).await?, &revision)?;
        installation.running(peaceful, deployment).await?;
        Ok(deployment.clone())
    }

    /// The hostile app pushes these steps, and their build fails. The revision, and the attempt.
    async fn fails(&self, message: &str, steps: &[Step]) -> Result<(String, Value)> {
        let dockerfile = hostile::dockerfile(&self.installation.cluster.images().debian, steps);
        let revision = self.hostile.push_dockerfile(&fresh(message), &dockerfile).await?;
        let build = self.installation.failed(&self.hostile, &revision).await?;
        Ok((revision, build))
    }

    /// Everything that a log can tell of: a failure of the source's own. Returns the pod that it looked around in.
    async fn looks_around(&self, of_the_other: &Deployment, around: &Neighbourhood) -> Result<String> {
        let (installation, other) = (self.installation, &self.peaceful.name);
        let tag = of_the_other.revision.get(..12).context("a short revision")?;
        let kill = match self.isolation {
            // It sees nothing but itself.
            Isolation::Userns => hostile::kill_everything(),
            _ => Step::new("true"),
        };
        let look = hostile::look_at_processes()
            .and(&hostile::search_processes())
            .and(&hostile::search())
            .and(&hostile::read_token("gitea:3000"))
            .and(&hostile::look_into_cache(CACHE))
            .and(&hostile::forge_tag("http://registry", other, tag))
            .and(&around.knock())
            .and(&kill);
        let (_, build) = self.fails("hostile", &[look, Step::new("exit 3")]).await?;
        let log = installation.log(&build).await?;
        verdicts::walls_hold(&log, &self.walls().await?).with_context(|| log.clone())?;
        verdicts::blamed_on_the_source(&build)?;
        Ok(builder_of(&build).context("an attempt without a pod")?.to_owned())
    }

    /// The doors that were closed to the step are closed to its pod too, and open to it once the builders' policies are
    /// away: that is what closed them. A rootless step finds them open then; one in a user namespace is held by what
    /// its solve permits, too, and still finds none.
    async fn knocks_without_policies(&self, pod: &str, around: &Neighbourhood) -> Result<()> {
        let installation = self.installation;
        installation.lets_builder(pod, around, &[]).await?;
        let away = Policies::take_away(installation).await?;
        installation.lets_builder(pod, around, &around.doors).await?;
        let to_steps: &[String] = match self.isolation {
            Isolation::Rootless => &around.doors,
            _ => &[],
        };
        // On a busy machine one of so many may be late.
        until("what a step reaches without the policies", OPEN, async || {
            // A daemon runs no step twice that says the same.
            let knock = Step::new(format!("echo {}", fresh("knock"))).and(&around.knock());
            let (_, build) = self.fails("knocks", &[knock, Step::new("exit 3")]).await?;
            verdicts::blamed_on_the_source(&build)?;
            let knocked_in = builder_of(&build);
            ensure!(knocked_in == Some(pod), "it was built in {knocked_in:?}, and not in {pod}");
            Ok(verdicts::opened(&installation.log(&build).await?, to_steps)?)
        })
        .await?;
        drop(away);
        installation.lets_builder(pod, around, &[]).await
    }

    /// Processes without end, more than a step may have and fewer than its pod: the step is what ends, and its daemon
    /// builds on.
    async fn forks(&self) -> Result<()> {
        let Self { installation, hostile, .. } = self;
        let dockerfile = hostile::dockerfile(&installation.cluster.images().debian, &[hostile::fork_bomb()]);
        let revision = hostile.push_dockerfile(&fresh("forks"), &dockerfile).await?;
        let pod = installation.building(hostile, &revision).await?;
        let before = installation.get(BUILDS, "pod", &pod).await?;
        let build = installation.failed(hostile, &revision).await?;
        verdicts::blamed_on_the_source(&build)?;
        verdicts::lives_on(&before, &installation.get(BUILDS, "pod", &pod).await?)?;
        Ok(())
    }

    /// What the threat model grants.
    async fn walls(&self) -> Result<Walls> {
        let secret = self.installation.get(OWN, "secret", "fabrique-worker").await?;
        let token = secret["data"]["read-token"].as_str().context("a worker without a read token")?;
        let token = Digest::of(&base64::engine::general_purpose::STANDARD.decode(token)?);
        let token = token.as_str().trim_start_matches("sha256:").to_owned();
        let rootless = self.isolation == Isolation::Rootless;
        // The bed's registry asks nobody. What is forged there is deployed nowhere.
        Ok(Walls { sees_daemon: rootless, forged: if rootless { "201" } else { "403" }, token })
    }

    /// Something that the builder does not survive: told so, and another app is built meanwhile and after.
    async fn costs_its_own_pod(&self, step: Step, words: &[&str]) -> Result<()> {
        let (revision, build) = self.fails("worse", &[step]).await?;
        verdicts::reason_told(&[build], &revision, words)?;
        self.the_other_app_builds(&Step::new("true")).await?;
        let composition = self.installation.composition(&self.hostile.name).await?;
        ensure!(composition.is_some_and(|composition| composition.revision != revision), "it was deployed");
        Ok(())
    }
}

#[tokio::test]
async fn gate_7_a_hostile_dockerfile_hurts_nobody_else() {
    conclude(GATE.passed().await);
}

#[tokio::test]
#[ignore = "long: the whole of gate 7 once more"]
async fn gate_7_a_hostile_dockerfile_hurts_nobody_else_in_the_other_isolation_either() {
    conclude(OTHER.passed().await);
}
