//! What the history of `cluster/apps` tells: all that the bus remembers of what was built and deployed.

use std::collections::BTreeMap;

use fabrique_bed::{GitRepo, wait_until};
use fabrique_bus::{Bus, BusConfig};
use fabrique_core::id::{AppName, BuildKey, Channel, EnvironmentName, Revision};
use fabrique_core::memory::{Committed, Memory};
use fabrique_gitops::{CommitMessage, Trailers};
use fabrique_ports::records::{Memories as _, Records as _};
use fabrique_stage::{Settings, Stage};

use crate::LONG;
use crate::scene::{Scene, push_scaled_out, watching_the_message};

fn prod() -> EnvironmentName {
    EnvironmentName::parse("prod").unwrap()
}

async fn bus(stage: &Stage) -> Bus {
    let nats = stage.bed.nats();
    let config = BusConfig::new([nats.address()]).as_user(nats.user("admin"), nats.password("admin").into());
    Bus::connect(config).await.unwrap()
}

async fn memory(stage: &Stage, app: &str) -> Memory {
    bus(stage).await.memory(&AppName::parse(app).unwrap()).await.unwrap().value
}

/// Every automatic commit in the history of `cluster/apps`, oldest first.
async fn automatic(apps: &GitRepo) -> Vec<(Revision, Trailers)> {
    let log = apps.git(&["log", "-z", "--reverse", "--author=^fabrique <", "--format=%H%n%B"]).await.unwrap();
    let records = log.split('\0').filter(|record| !record.trim().is_empty());
    let read = records.map(|record| {
        let (commit, message) = record.trim_start().split_once('\n').unwrap();
        let message = CommitMessage::parse(message).unwrap_or_else(|| panic!("not fabrique's: {message}"));
        (Revision::parse(commit).unwrap(), message.trailers().clone())
    });
    read.collect()
}

/// What the newest of them put on a channel of `prod`.
fn last(commits: &[(Revision, Trailers)], channel: Channel) -> Option<Committed> {
    let (commit, trailers) = commits.iter().rfind(|(_, trailers)| trailers.channel == Some(channel))?;
    assert_eq!(trailers.environment, Some(prod()));
    Some(Committed {
        commit: Some(commit.clone()),
        revision: trailers.source_revision.clone()?,
        digest: trailers.digest.clone(),
        key: trailers.build_key.clone(),
    })
}

/// Pushes a change of the overlay alone, and waits until it is deployed.
async fn scale_out(scene: &Scene) -> String {
    let revision = push_scaled_out(&scene.app.source).await;
    wait_until("the overlay to advance", LONG, || async {
        let composition = scene.stage.composition(scene.name()).await.ok()??;
        (composition.infra.as_deref() == Some(revision.as_str())).then_some(())
    })
    .await
    .unwrap();
    revision
}

#[tokio::test(flavor = "multi_thread")]
async fn the_automatic_commits_tell_every_record_and_what_was_committed_last() {
    let scene = Scene::open(watching_the_message()).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let second = app.push("second").await.unwrap();
    stage.committed_once(app, &second).await.unwrap();
    scale_out(&scene).await;
    let before = stage.bed.gitea().head("cluster", "apps", "main").await.unwrap().unwrap();
    let third = app.push("third").await.unwrap();
    stage.committed_once(app, &third).await.unwrap();
    let apps = stage.clone_apps().await.unwrap();
    let reset = async {
        apps.git(&["reset", "--quiet", "--hard", &before]).await.unwrap();
        apps.push_force().await.unwrap();
    };
    scene.settles_after(reset).await;
    stage.decided("citation", "taken back").await.unwrap();
    scene.settles_after(async { stage.command(&["release", "citation"]).await.unwrap() }).await;
    assert_eq!(scene.deployed_revision().await, third);
    let remembered = memory(stage, "citation").await;

    apps.pull().await.unwrap();
    let commits = automatic(&apps).await;
    let told: BTreeMap<BuildKey, Trailers> = commits
        .iter()
        .filter_map(|(_, trailers)| Some((trailers.build_key.clone()?, trailers.clone())))
        .collect();
    assert_eq!(told.len(), 3, "{told:#?}");
    assert_eq!(stage.recorded().await.unwrap(), 3, "git tells of every record");
    let bus = bus(stage).await;
    for (key, trailers) in told {
        let record = bus.record(&key).await.unwrap().unwrap();
        assert_eq!(Some(record.digest), trailers.digest);
        assert_eq!(Some(record.image), trailers.image);
        assert_eq!(Some(record.revision), trailers.source_revision);
        assert_eq!(Some(record.build), trailers.build_id);
    }
    for channel in [Channel::Image, Channel::Infra] {
        let committed = remembered.channel(&prod(), channel).committed;
        assert!(committed.is_some());
        assert_eq!(committed, last(&commits, channel), "{channel}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_that_lost_everything_learns_from_git_what_a_person_took_back() {
    let settings = Settings { sweep_every: "2s".to_owned(), ..Settings::default() };
    let scene = Scene::open_on(Stage::builder().settings(settings), watching_the_message()).await;
    let (stage, app) = (&scene.stage, &scene.app);
    scale_out(&scene).await;
    let before = stage.bed.gitea().head("cluster", "apps", "main").await.unwrap().unwrap();
    let second = app.push("second").await.unwrap();
    stage.committed_once(app, &second).await.unwrap();
    let apps = stage.clone_apps().await.unwrap();
    apps.git(&["revert", "--no-edit", &format!("{before}..HEAD")]).await.unwrap();
    scene.settles_after(async { apps.push().await.unwrap() }).await;
    stage.decided("citation", "taken back").await.unwrap();
    let (head, known) = (apps.head().await.unwrap(), memory(stage, "citation").await);

    stage.lose_the_bus(&scene.fabrique).await.unwrap();
    stage.decided("citation", "taken back").await.unwrap();
    stage.settled("citation", 0).await.unwrap();
    let learnt = memory(stage, "citation").await;
    for channel in [Channel::Image, Channel::Infra] {
        let (known, learnt) = (known.channel(&prod(), channel), learnt.channel(&prod(), channel));
        assert!(learnt.committed.is_some());
        assert_eq!(learnt.committed, known.committed, "{channel}");
    }
    assert_eq!(stage.bed.gitea().head("cluster", "apps", "main").await.unwrap(), Some(head));
    assert_eq!(stage.builds("citation").await.unwrap(), [], "nothing is built again");

    let third = app.push("third").await.unwrap();
    stage.committed_once(app, &third).await.unwrap();
    assert_eq!(stage.builds("citation").await.unwrap().len(), 1);
    assert_eq!(scene.deployed_revision().await, third);
}
