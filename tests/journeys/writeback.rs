//! What happens on `cluster/apps`, by fabrique and by people.

use fabrique_bed::{GitRepo, wait_until};
use fabrique_stage::{AppOptions, Composition, Gate, Moment};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use crate::LONG;
use crate::scene::{Scene, person_rewrites, push_scaled_out, rewrite_in, scale_out, watching_the_message};

const COMPOSITION: &str = "apps/citation/prod/composition.yaml";
const KUSTOMIZATION: &str = "apps/citation/prod/kustomization.yaml";
const PATCH: &str = "apps/citation/prod/patch-s3-envfrom.yaml";

/// The newest automatic commit's message on `cluster/apps`.
async fn newest_message(apps: &GitRepo) -> String {
    apps.git(&["log", "-1", "--author=^fabrique <", "--format=%B"]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_commit_says_what_it_did_and_leaves_the_bindings_in_agreement() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let before = scene.stage.composition("citation").await.unwrap().unwrap();
    let second = scene.app.push("second").await.unwrap();
    let after = scene.stage.committed_once(&scene.app, &second).await.unwrap();

    let apps = scene.stage.clone_apps().await.unwrap();
    let build = scene.stage.build_becomes("citation", &second, "committed").await.unwrap();
    let message = newest_message(&apps).await;
    let trailers: Vec<&str> = message.rsplit("\n\n").next().unwrap().lines().collect();
    let expected = [
        "App: citation".to_owned(),
        "Environment: prod".to_owned(),
        "Channel: image".to_owned(),
        format!("Source-Revision: {second}"),
        format!("Image: {}", scene.app.image),
        format!("Digest: {}", after.digest),
        format!("Previous: {}", before.digest),
        format!("Build-Id: {}", build.id),
    ];
    assert_eq!(trailers[..expected.len()], expected, "{message}");
    assert!(message.starts_with(&format!("Deploy citation {} to prod\n", &second[..12])), "{message}");

    let commits = apps.git(&["log", "--author=^fabrique <", "--format=%H"]).await.unwrap();
    for commit in commits.lines() {
        let show = async |file: &str| apps.git(&["show", &format!("{commit}:{file}")]).await;
        let composition = show(COMPOSITION).await.unwrap();
        let digest = if composition.contains(&before.digest) { &before.digest } else { &after.digest };
        assert!(composition.contains(digest.as_str()), "{commit}: {composition}");
        // The first commit of the image comes before the overlay that its bindings are in.
        let (Ok(kustomization), Ok(patch)) = (show(KUSTOMIZATION).await, show(PATCH).await) else { continue };
        assert!(kustomization.contains(&format!("digest: {digest} ")), "{commit}: {kustomization}");
        assert!(patch.contains(&format!("value: {}@{digest}", scene.app.image)), "{commit}: {patch}");
    }
    let changed = apps.git(&["diff", "--stat", "HEAD~1", "--", "."]).await.unwrap();
    assert!(changed.contains("3 files changed, 3 insertions(+), 3 deletions(-)"), "{changed}");
}

/// A second push is deployed, `undo` takes it back on `cluster/apps`; then it stays away, and a third follows.
async fn stays_taken_back(undo: impl AsyncFnOnce(&GitRepo, &str, [&str; 2], [&str; 2])) {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let old = stage.composition("citation").await.unwrap().unwrap();
    let before = stage.bed.gitea().head("cluster", "apps", "main").await.unwrap().unwrap();
    let second = app.push("second").await.unwrap();
    let new = stage.committed_once(app, &second).await.unwrap();

    let apps = stage.clone_apps().await.unwrap();
    let (from, to) = ([new.digest.as_str(), &second], [old.digest.as_str(), &scene.first]);
    scene.settles_after(undo(&apps, &before, from, to)).await;
    let head = stage.bed.gitea().head("cluster", "apps", "main").await.unwrap();
    let reason = stage.decided("citation", "taken back").await.unwrap();
    assert!(reason.contains(&second[..12]), "{reason}");
    // Not even when it is asked again.
    scene
        .settles_after(async { stage.deliver_push("atlas/citation", &scene.first, &second).await.unwrap() })
        .await;
    assert_eq!(stage.bed.gitea().head("cluster", "apps", "main").await.unwrap(), head);
    assert_eq!(scene.deployed_revision().await, scene.first);

    let third = app.push("third").await.unwrap();
    stage.committed_once(app, &third).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_of_cluster_apps_is_not_undone_and_a_newer_push_moves_on() {
    Box::pin(stays_taken_back(async |apps: &GitRepo, before: &str, _, _| {
        apps.git(&["reset", "--quiet", "--hard", before]).await.unwrap();
        apps.push_force().await.unwrap();
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revert_on_cluster_apps_is_not_undone_and_a_newer_push_moves_on() {
    Box::pin(stays_taken_back(async |apps: &GitRepo, before: &str, _, _| {
        apps.git(&["revert", "--no-edit", &format!("{before}..HEAD")]).await.unwrap();
        apps.push().await.unwrap();
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_edit_of_a_composition_is_not_undone_and_a_newer_push_moves_on() {
    Box::pin(stays_taken_back(async |apps: &GitRepo, _, from: [&str; 2], to: [&str; 2]| {
        for file in [COMPOSITION, KUSTOMIZATION, PATCH] {
            rewrite_in(apps, file, |text| text.replace(from[0], to[0]).replace(from[1], to[1])).await;
        }
        apps.commit("Go back by hand").await.unwrap();
        apps.push().await.unwrap();
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_back_returns_on_release() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let before = scene.stage.bed.gitea().head("cluster", "apps", "main").await.unwrap().unwrap();
    let second = scene.app.push("second").await.unwrap();
    scene.stage.committed_once(&scene.app, &second).await.unwrap();
    let apps = scene.stage.clone_apps().await.unwrap();
    apps.git(&["revert", "--no-edit", &format!("{before}..HEAD")]).await.unwrap();
    scene.settles_after(async { apps.push().await.unwrap() }).await;
    assert_eq!(scene.deployed_revision().await, scene.first);

    scene.stage.command(&["release", "citation"]).await.unwrap();
    scene.stage.deployed(&scene.app, &second).await.unwrap();
    assert_eq!(scene.stage.builds("citation").await.unwrap().len(), 2, "nothing is built again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_rewound_by_ten_commits_waits_until_it_is_released() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    for number in 1..=10 {
        app.source.write("message", format!("{number}")).await.unwrap();
        app.source.commit(&format!("Commit {number}")).await.unwrap();
    }
    app.source.push().await.unwrap();
    let newest = app.source.head().await.unwrap();
    stage.committed_once(app, &newest).await.unwrap();

    app.source.rewind(10).await.unwrap();
    scene.settles_after(async { app.source.push_force().await.unwrap() }).await;
    let reason = stage.decided("citation", "rewound").await.unwrap();
    assert!(reason.contains(&newest[..12]), "{reason}");
    assert_eq!(scene.deployed_revision().await, newest, "nothing older is deployed");

    stage.command(&["release", "citation"]).await.unwrap();
    stage.deployed(app, &scene.first).await.unwrap();
    assert_eq!(stage.builds("citation").await.unwrap().len(), 2, "the older image is recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_channel_does_not_move_until_the_hold_is_removed_and_the_other_goes_on() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let held = "hold: { by: Ada, reason: audit, since: null, until: null }";
    let hold_image = |text: String| text.replacen("hold: null", held, 1);
    scene.settles_after(person_rewrites(stage, COMPOSITION, hold_image)).await;
    let before = stage.composition("citation").await.unwrap().unwrap();

    scale_out(&app.source).await;
    let second = scene.settles_after(async { app.push("second").await.unwrap() }).await;
    let status = stage.status_becomes(app, &second, "success").await.unwrap();
    assert_eq!(status.description, "held by Ada: audit");
    let held_back = Composition { infra: Some(second.clone()), ..before };
    assert_eq!(stage.composition("citation").await.unwrap(), Some(held_back), "the overlay alone went on");
    let deployment = stage.apps_file("apps/citation/prod/deployment.yaml").await.unwrap().unwrap();
    assert!(deployment.contains("replicas: 3"), "{deployment}");

    person_rewrites(stage, COMPOSITION, |text| text.replace(held, "hold: null")).await;
    stage.committed_once(app, &second).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_a_person_changed_stops_the_environment_until_it_is_repaired() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let deployed = stage.composition("citation").await.unwrap().unwrap();
    let forged = format!("sha256:{}", "f".repeat(64));
    scene.settles_after(person_rewrites(stage, PATCH, |text| text.replace(&deployed.digest, &forged))).await;
    let head = stage.bed.gitea().head("cluster", "apps", "main").await.unwrap();

    let second = scene.settles_after(async { app.push("second").await.unwrap() }).await;
    let status = stage.status_becomes(app, &second, "error").await.unwrap();
    assert!(status.description.starts_with(&format!("{PATCH}:11: ")), "file and line first: {status:?}");
    let reason = stage.decided("citation", &forged).await.unwrap();
    assert!(reason.contains(&deployed.digest), "found and expected: {reason}");
    assert_eq!(stage.bed.gitea().head("cluster", "apps", "main").await.unwrap(), head, "nothing is written");

    let why = stage.json(&["why", "citation"]).await.unwrap();
    assert!(why["next"].as_str().unwrap().starts_with("`fabrique repair citation`"), "{why}");
    stage.command(&["repair", "citation"]).await.unwrap();
    stage.committed_once(app, &second).await.unwrap();
    assert!(!stage.apps_file(PATCH).await.unwrap().unwrap().contains(&forged));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlay_advances_in_a_commit_of_its_own_without_a_build() {
    let scene = Scene::open(watching_the_message()).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let before = stage.composition("citation").await.unwrap().unwrap();
    let scaled = push_scaled_out(&app.source).await;

    wait_until("the overlay to advance", LONG, || async {
        let composition = stage.composition("citation").await.ok()??;
        (composition.infra.as_deref() == Some(scaled.as_str())).then_some(())
    })
    .await
    .unwrap();
    let after = stage.composition("citation").await.unwrap().unwrap();
    assert_eq!((after.digest.as_str(), after.revision), (before.digest.as_str(), scene.first.clone()));
    let deployment = stage.apps_file("apps/citation/prod/deployment.yaml").await.unwrap().unwrap();
    assert!(deployment.contains("replicas: 3"), "{deployment}");
    let kustomization = stage.apps_file(KUSTOMIZATION).await.unwrap().unwrap();
    assert!(kustomization.contains(&before.digest), "the copy is filled: {kustomization}");
    assert_eq!(stage.builds("citation").await.unwrap().len(), 1);
    let message = newest_message(&stage.clone_apps().await.unwrap()).await;
    assert!(message.contains("\nChannel: infra\n"), "{message}");
    assert!(message.contains(&format!("\nSource-Revision: {scaled}\n")), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_environment_adopts_the_recorded_digest_without_a_build() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let stage = &scene.stage;
    let prod = stage.composition("citation").await.unwrap().unwrap();
    person_rewrites(stage, "apps/citation/app.yaml", |text| text + "    - name: staging\n").await;

    let staging = wait_until("staging to be deployed", LONG, || async {
        let text = stage.apps_file("apps/citation/staging/composition.yaml").await.ok()??;
        text.contains(&prod.digest).then_some(text)
    })
    .await
    .unwrap();
    assert!(staging.contains(&scene.first), "{staging}");
    assert_eq!(stage.builds("citation").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_webhook_replayed_ten_times_makes_no_commit() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let stage = &scene.stage;
    let head = stage.bed.gitea().head("cluster", "apps", "main").await.unwrap().unwrap();
    let before = stage.clone_apps().await.unwrap().git(&["rev-parse", "HEAD~1"]).await.unwrap();

    let none = "0".repeat(40);
    for _ in 0..10 {
        for (repo, from, to, wakes) in
            [("cluster/apps", &before, &head, None), ("atlas/citation", &none, &scene.first, Some(202))]
        {
            let (status, answer) = stage.deliver_push(repo, from, to).await.unwrap();
            assert!(wakes.map_or(matches!(status, 200 | 202), |wakes| status == wakes), "{status}: {answer}");
        }
    }
    scene
        .settles_after(async { stage.deliver_push("atlas/citation", &before, &scene.first).await.unwrap() })
        .await;
    assert_eq!(stage.bed.gitea().head("cluster", "apps", "main").await.unwrap().as_deref(), Some(&*head));
    assert_eq!(stage.builds("citation").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_writers_to_cluster_apps_lose_nothing_and_the_commit_arrives_among_them() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let gate = Gate::new();
    let revision = app.push_steps(&gate.steps()).await.unwrap();
    gate.reached().await.unwrap();
    // The first push of the commit is held until it has lost, the one that wins until others have written on top.
    let losing = stage.trap(Moment::BeforeTheUpdate).unwrap();
    let winning = stage.trap(Moment::AfterTheUpdate).unwrap();
    gate.open();
    losing.sprung().await.unwrap();
    let names: Vec<String> = (0..50).map(|number| format!("notes/{number}.md")).collect();
    let (many, late) = names.split_at(40);
    let mut writers: FuturesUnordered<_> = many.iter().map(|name| stage.write_note(name)).collect();
    for _ in 0..5 {
        writers.next().await.unwrap().unwrap();
    }
    losing.open().unwrap();
    let others = async {
        while let Some(written) = writers.next().await {
            written.unwrap()
        }
    };
    let (won, ()) = tokio::join!(winning.sprung(), others);
    won.unwrap();
    let late = futures::future::join_all(late.iter().map(|name| stage.write_note(name))).await;
    late.into_iter().collect::<anyhow::Result<()>>().unwrap();
    winning.open().unwrap();
    stage.committed_once(app, &revision).await.unwrap();

    let apps = stage.clone_apps().await.unwrap();
    let notes = apps.git(&["ls-tree", "--name-only", "HEAD", "notes/"]).await.unwrap();
    assert_eq!(notes.lines().count(), names.len(), "every acknowledged note is there");
    let log = apps.git(&["log", "--reverse", "--format=%s"]).await.unwrap();
    let commits: Vec<&str> = log.lines().skip_while(|subject| !subject.starts_with("Add notes/")).collect();
    let deployed = format!("Deploy citation {} to prod", &revision[..12]);
    let place = commits.iter().position(|subject| *subject == deployed).unwrap();
    assert!((5..=40).contains(&place), "among the notes, after the first that it lost to: {commits:#?}");
    assert_eq!(commits.len(), names.len() + 1, "and each was written once: {commits:#?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: fifty pushes through the forge, and those that lose the race, take minutes"]
async fn fifty_writers_who_push_through_the_forge_lose_nothing_and_the_commit_arrives_among_them() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let gate = Gate::new();
    let revision = app.push_steps(&gate.steps()).await.unwrap();
    gate.reached().await.unwrap();
    let writers = stage.writers().await.unwrap();
    let names: Vec<String> = (0..50).map(|number| format!("notes/{number}.md")).collect();
    let written = futures::future::join_all(names.iter().map(|name| writers.write(name)));
    // Some have written before the commit, which has to make its way through the others.
    let among = async {
        wait_until("the first writers to have written", LONG, || async {
            let notes = "/repos/cluster/apps/contents/notes";
            let notes = stage.bed.gitea().api("GET", notes, None).await.ok()?;
            (notes.as_array()?.len() >= 5).then_some(())
        })
        .await
        .unwrap();
        gate.open();
    };
    let (written, ()) = tokio::join!(written, among);
    let pushes: usize = written.into_iter().sum::<anyhow::Result<usize>>().unwrap();
    assert!(pushes > names.len(), "nobody was in anybody's way");
    stage.committed_once(app, &revision).await.unwrap();

    let apps = stage.clone_apps().await.unwrap();
    let notes = apps.git(&["ls-tree", "--name-only", "HEAD", "notes/"]).await.unwrap();
    assert_eq!(notes.lines().count(), names.len(), "every acknowledged note is there");
    let added = apps.git(&["log", "--format=%s", "--", "notes"]).await.unwrap();
    assert_eq!(added.lines().count(), names.len(), "and was written once");
}
