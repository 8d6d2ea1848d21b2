//! Many writers at once, and how long one takes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fabrique_core::id::Revision;
use fabrique_git::GitDeployments;
use fabrique_ports::deployments::{CommitFate, Deployments, PushOutcome};
use futures::future::join_all;

use crate::support::{Apps, gitea, path, texts, write, writing};

const WRITERS: usize = 50;
const WORKERS: usize = 5;
/// Longer, and the machine would do nothing but lose races.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(300);

/// Adds a line to a shared file and writes a file of its own, again until it is acknowledged.
async fn write_until_acknowledged(deployments: &GitDeployments, number: usize) -> Revision {
    let start = Instant::now();
    let mut pause = Duration::from_millis(100 + 40 * u64::try_from(number).unwrap());
    while start.elapsed() < PATIENCE {
        let Ok(snapshot) = deployments.snapshot().await else { continue };
        let shared = texts(&snapshot).remove("apps/shared").unwrap_or_default();
        let shared = format!("{shared}{number}\n");
        let own = format!("apps/own/{number}");
        let commit = writing(&format!("Writer {number}"), &[("apps/shared", &shared), (&own, "mine")]);
        let prepared = deployments.prepare(&snapshot.commit, &[commit]).await.unwrap();
        match deployments.push(&prepared).await {
            Ok(PushOutcome::Pushed) => return prepared.commits[0].clone(),
            Ok(PushOutcome::Refused(text)) => panic!("{text}"),
            Ok(PushOutcome::Unknown(_)) => {
                let head = deployments.snapshot().await.unwrap().commit;
                if deployments.fate(&prepared.commits[0], &head).await.unwrap() == CommitFate::OnBranch {
                    return prepared.commits[0].clone();
                }
            }
            Ok(PushOutcome::Moved) => {}
            Err(error) => assert!(error.transient(), "{error}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
    panic!("writer {number} was never acknowledged")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acknowledged_write_of_fifty_writers_survives() {
    let apps = Apps::new(gitea().await, "writers").await;
    let before = apps.head().await;
    let states: Vec<_> = (0..WORKERS).map(|_| tempfile::tempdir().unwrap()).collect();
    let workers: Vec<GitDeployments> = states.iter().map(|state| apps.another(state.path())).collect();
    let writers = (0..WRITERS).map(|number| write_until_acknowledged(&workers[number % WORKERS], number));
    let commits: BTreeSet<Revision> = join_all(writers).await.into_iter().collect();
    assert_eq!(commits.len(), WRITERS);

    let snapshot = apps.deployments.snapshot().await.unwrap();
    let files = texts(&snapshot);
    let lines: BTreeSet<usize> = files["apps/shared"].lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(lines, (0..WRITERS).collect());
    assert_eq!(files["apps/shared"].lines().count(), WRITERS, "nobody was written twice");
    assert!((0..WRITERS).all(|number| files[&format!("apps/own/{number}")] == "mine"));
    apps.work.pull().await.unwrap();
    let log = apps.work.git(&["rev-list", &format!("{before}..HEAD")]).await.unwrap();
    let history: BTreeSet<Revision> = log.lines().map(crate::support::revision).collect();
    assert_eq!(history, commits, "the branch holds the acknowledged commits and no other");
}

#[tokio::test]
#[ignore = "measures: run it alone, with --nocapture"]
async fn how_long_a_write_back_takes() {
    const ROUNDS: u32 = 10;
    let apps = Apps::new(gitea().await, "speed").await;
    let work =
        fabrique_bed::GitRepo::clone(&gitea().await.clone_url_with_token("speed", "apps")).await.unwrap();
    for number in 0..200 {
        work.write(&format!("apps/app-{number}/prod/composition.yaml"), format!("a: {number}\n"))
            .await
            .unwrap();
    }
    work.commit("Many apps").await.unwrap();
    work.push().await.unwrap();
    let mut snapshot = apps.deployments.snapshot().await.unwrap();
    let mut sums = [Duration::ZERO; 5];
    for round in 0..ROUNDS {
        let lap = Instant::now();
        apps.deployments.snapshot().await.unwrap();
        sums[0] += lap.elapsed();
        let lap = Instant::now();
        let change = writing("Deploy", &[("apps/app-7/prod/composition.yaml", &format!("b: {round}\n"))]);
        let prepared = apps.deployments.prepare(&snapshot.commit, &[change]).await.unwrap();
        sums[1] += lap.elapsed();
        let lap = Instant::now();
        assert_eq!(apps.deployments.push(&prepared).await.unwrap(), PushOutcome::Pushed);
        sums[2] += lap.elapsed();
        let lap = Instant::now();
        snapshot = apps.deployments.snapshot().await.unwrap();
        sums[3] += lap.elapsed();
        assert_eq!(
            snapshot.files[&path("apps/app-7/prod/composition.yaml")].content,
            format!("b: {round}\n")
        );

        work.pull().await.unwrap();
        work.write("apps/bare", round.to_string()).await.unwrap();
        work.commit("Bare").await.unwrap();
        let lap = Instant::now();
        work.push().await.unwrap();
        sums[4] += lap.elapsed();
        snapshot = apps.deployments.snapshot().await.unwrap();
    }
    let [warm, prepare, push, changed, bare] = sums.map(|sum| sum / ROUNDS);
    println!("snapshot, head unchanged {warm:?}; prepare {prepare:?}; push {push:?}");
    println!("snapshot, head moved {changed:?}; bare git push {bare:?}");
    let (_, outcome) = write(&apps.deployments, &snapshot, &[("apps/x", "1")]).await;
    assert_eq!(outcome, PushOutcome::Pushed);
}
