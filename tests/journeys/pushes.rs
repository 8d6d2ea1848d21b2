//! What pushes lead to.

use fabrique_bed::{GitRepo, wait_until};
use fabrique_stage::{AppOptions, Gate, SampleApp, Stage};

use crate::LONG;
use crate::scene::{Scene, person_rewrites, running, watching_the_message};

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_leads_from_the_delivery_of_a_push_to_its_commit() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let stage = &scene.stage;
    let revision = scene.app.push("traced").await.unwrap();
    stage.committed_once(&scene.app, &revision).await.unwrap();
    let kinds = ["decision", "build", "step", "commit"];
    // Events follow what they tell of.
    let followed = async || {
        let traces = stage.traces().await.ok()?;
        let (_, trace) = traces.iter().rfind(|(subject, _)| subject == "fabrique.delivery.atlas.citation")?;
        let of_kind = |kind: &str| {
            let prefix = format!("fabrique.{kind}.");
            traces.iter().any(|(subject, of)| subject.starts_with(&prefix) && of == trace)
        };
        kinds.into_iter().all(of_kind).then_some(())
    };
    if let Err(error) = wait_until("one trace through every kind of event", LONG, followed).await {
        panic!("{error:#}\n{:#?}", stage.traces().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_push_becomes_a_digest_on_cluster_apps() {
    let stage = crate::stage().await;
    let _fabrique = stage.all().await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let revision = app.push("hello").await.unwrap();

    let composition = stage.committed_once(&app, &revision).await.unwrap();

    let kustomization = stage.apps_file("apps/citation/prod/kustomization.yaml").await.unwrap().unwrap();
    assert!(
        kustomization.contains(&format!("digest: {} # filled by cluster", composition.digest)),
        "{kustomization}"
    );
    let patch = stage.apps_file("apps/citation/prod/patch-s3-envfrom.yaml").await.unwrap().unwrap();
    assert!(patch.contains(&format!("value: {}@{}", app.image, composition.digest)), "{patch}");
    let commits = stage.automatic_commits("citation").await.unwrap();
    assert_eq!(commits.len(), 2, "one commit for the image and one for the overlay: {commits:?}");
    let manifest = stage.manifest("citation", &composition.digest).await.unwrap();
    assert_eq!(manifest.media_type, "application/vnd.oci.image.manifest.v1+json", "one platform, no index");
    let created = stage.image_config("citation", &manifest).await.unwrap()["created"].clone();
    let created: jiff::Timestamp = created.as_str().unwrap().parse().unwrap();
    let committed = app.source.git(&["log", "-1", "--format=%ct", &revision]).await.unwrap();
    assert_eq!(created, jiff::Timestamp::from_second(committed.parse().unwrap()).unwrap());

    let since = stage.wanted("citation").await.unwrap();
    let second = app.push("hello again").await.unwrap();
    let composition = stage.deployed(&app, &second).await.unwrap();
    stage.settled("citation", since).await.unwrap();
    let status = stage.status_becomes(&app, &second, "success").await.unwrap();
    let deployed = format!("deployed to prod: built {}", composition.digest);
    assert_eq!(
        status.description, deployed,
        "what is said of the image stays, although the overlay did not change"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_force_push_the_branchs_head_wins() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let left = scene.app.push("left").await.unwrap();
    scene.stage.committed_once(&scene.app, &left).await.unwrap();

    scene.app.source.rewind(1).await.unwrap();
    scene.app.source.write("message", "right").await.unwrap();
    let right = scene.app.source.commit("right").await.unwrap();
    scene.app.source.push_force().await.unwrap();

    scene.stage.committed_once(&scene.app, &right).await.unwrap();
    assert_eq!(scene.committed().await, [right, left, scene.first.clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_path_in_the_second_of_fifty_commits_is_built() {
    let scene = Scene::open(watching_the_message()).await;
    let mut head = String::new();
    for number in 1..=50 {
        let file = if number == 2 { "message" } else { "notes.md" };
        scene.app.source.write(file, format!("{number}")).await.unwrap();
        head = scene.app.source.commit(&format!("Commit {number}")).await.unwrap();
    }
    scene.app.source.push().await.unwrap();

    scene.stage.committed_once(&scene.app, &head).await.unwrap();
    assert_eq!(scene.stage.builds("citation").await.unwrap().len(), 2, "the head alone is built");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_changes_no_watched_path_is_reported_and_neither_built_nor_committed() {
    let scene = Scene::open(watching_the_message()).await;
    let before = scene.stage.bed.gitea().head("cluster", "apps", "main").await.unwrap();

    scene.app.source.write("notes.md", "nothing that matters").await.unwrap();
    let head = scene.app.source.commit("Take notes").await.unwrap();
    scene.settles_after(async { scene.app.source.push().await.unwrap() }).await;

    let status = scene.stage.status_becomes(&scene.app, &head, "success").await.unwrap();
    assert_eq!(status.description, format!("no watched path changed since {}", &scene.first[..12]));
    assert_eq!(scene.stage.bed.gitea().head("cluster", "apps", "main").await.unwrap(), before);
    assert_eq!(scene.stage.builds("citation").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn history_rewritten_beside_the_watched_paths_is_no_difference_and_a_branch_that_differs_in_one_is() {
    let scene = Scene::open(watching_the_message()).await;
    let (stage, app, source) = (&scene.stage, &scene.app, &scene.app.source);
    let deployed = app.push("deployed").await.unwrap();
    stage.committed_once(app, &deployed).await.unwrap();
    source.git(&["reset", "--quiet", "--soft", "HEAD~1"]).await.unwrap();
    source.write("notes.md", "nothing that matters").await.unwrap();
    let rewritten = source.commit("The same message, and notes").await.unwrap();
    scene.settles_after(async { source.push_force().await.unwrap() }).await;
    let since = format!("no watched path changed since {}", &deployed[..12]);
    let status = stage.status_becomes(app, &rewritten, "success").await.unwrap();
    assert_eq!(status.description, since);
    assert_eq!(stage.builds("citation").await.unwrap().len(), 2);

    // Of the branch that the app follows next, the first push brings nothing, and the second does.
    source.branch("next").await.unwrap();
    source.write("notes.md", "nothing that matters either").await.unwrap();
    let beside = source.commit("More notes").await.unwrap();
    source.push().await.unwrap();
    person_rewrites(stage, "apps/citation/app.yaml", |text| text.replace("branch: main", "branch: next"))
        .await;
    let status = stage.status_becomes(app, &beside, "success").await.unwrap();
    assert_eq!(status.description, since);
    assert_eq!(stage.builds("citation").await.unwrap().len(), 2);
    source.write("message", "next").await.unwrap();
    let next = source.commit("Differ").await.unwrap();
    source.push().await.unwrap();
    stage.committed_once(app, &next).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_deletions_and_branches_that_nobody_follows_lead_to_nothing() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, source) = (&scene.stage, &scene.app.source);
    source.tag("v1").await.unwrap();
    source.branch("feature").await.unwrap();
    source.write("message", "not to be built").await.unwrap();
    source.commit("Work on a feature").await.unwrap();
    source.push().await.unwrap();
    // Of a deletion Gitea tells a webhook for pushes only where it is a tag's; of a branch's another forge might.
    source.delete_tag("v1").await.unwrap();
    source.delete_branch("feature").await.unwrap();
    let (status, answer) = stage.deliver_push("atlas/citation", &scene.first, &"0".repeat(40)).await.unwrap();
    assert_eq!(status, 200, "{answer}");

    let expected = [
        "v1 is a tag",
        "the tag v1 was deleted",
        "no app follows feature of atlas/citation",
        "the branch main was deleted",
    ];
    let heard = wait_until("all of it to be heard and ignored", LONG, || async {
        let deliveries = stage.events("fabrique.delivery.atlas.citation").await.ok()?;
        let heard = |reason: &&str| deliveries.iter().any(|delivery| delivery["ignored"] == **reason);
        expected.iter().all(heard).then_some(deliveries)
    })
    .await
    .unwrap();
    for delivery in heard.iter().filter(|delivery| delivery["ignored"].is_null()) {
        assert_eq!(delivery["after"], *scene.first, "only the first push wakes");
    }
    assert_eq!(stage.builds("citation").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_does_not_exist_is_said_and_built_once_it_does() {
    let (stage, _fabrique) = running(Stage::builder()).await;
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    stage.hook("cluster", "apps").await.unwrap();
    let follow_release = |text: String| text.replace("branch: main", "branch: release");
    person_rewrites(&stage, "apps/citation/app.yaml", follow_release).await;
    stage.decided("citation", "nothing to build: atlas/citation has no branch release").await.unwrap();

    app.source.branch("release").await.unwrap();
    let revision = app.push("released").await.unwrap();
    stage.committed_once(&app, &revision).await.unwrap();

    // What is deployed outlives the branch.
    app.source.delete_branch("release").await.unwrap();
    let since = stage.wanted("citation").await.unwrap();
    person_rewrites(&stage, "apps/citation/app.yaml", |text| text + "# touched\n").await;
    stage.settled("citation", since).await.unwrap();
    assert_eq!(stage.composition("citation").await.unwrap().unwrap().revision, revision);
    let commits = stage.image_commits("citation").await.unwrap();
    assert_eq!(commits.len(), 1, "{commits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_repository_is_built() {
    let scene = Scene::open(AppOptions { private: true, ..AppOptions::named("citation") }).await;
    let anonymous = scene.stage.bed.gitea().clone_url("atlas", "citation");
    assert!(GitRepo::clone(&anonymous).await.is_err(), "the repository is not private");
    assert_eq!(scene.deployed_revision().await, scene.first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_step_is_told_once_and_the_next_push_succeeds() {
    let (stage, _fabrique) = running(Stage::builder()).await;
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let since = stage.wanted("citation").await.unwrap();
    let broken = app.push_steps("RUN echo preparing && exit 7\nCOPY message /message").await.unwrap();

    let status = stage.status_becomes(&app, &broken, "failure").await.unwrap();
    assert!(status.description.contains("RUN echo preparing && exit 7"), "{status:?}");
    assert!(status.description.contains("exit code 7"), "{status:?}");
    stage.settled("citation", since).await.unwrap();
    assert_eq!(stage.composition("citation").await.unwrap(), None);
    let builds = stage.builds("citation").await.unwrap();
    assert_eq!(builds.len(), 1, "a failure of the source is not tried again: {builds:?}");
    assert!(stage.log(&builds[0].id).await.unwrap().contains("preparing"), "the log has the step's output");
    let (_, why, _) = stage.try_command(&["why", "citation"]).await.unwrap();
    assert!(why.contains("| preparing"), "{why}");

    let fixed = app.push_steps("RUN echo fine\nCOPY message /message").await.unwrap();
    stage.committed_once(&app, &fixed).await.unwrap();
    assert_eq!(stage.automatic_commits("citation").await.unwrap().len(), 2, "image and overlay");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fix_is_built_although_it_changes_no_watched_path_since_the_failed_head() {
    let scene = Scene::open(watching_the_message()).await;
    let steps = "COPY . /src\nRUN grep -q fine /src/state";
    scene.app.source.write("state", "fine").await.unwrap();
    let good = scene.app.push_steps(steps).await.unwrap();
    scene.stage.committed_once(&scene.app, &good).await.unwrap();

    scene.app.source.write("state", "broken").await.unwrap();
    let broken = scene.app.push("watched").await.unwrap();
    scene.stage.status_becomes(&scene.app, &broken, "failure").await.unwrap();

    scene.app.source.write("state", "fine again").await.unwrap();
    let fixed = scene.app.source.commit("Repair the state, which nobody watches").await.unwrap();
    scene.app.source.push().await.unwrap();
    scene.stage.committed_once(&scene.app, &fixed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_dockerfile_and_a_missing_base_are_told_to_the_committer() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    app.source.git(&["rm", "--quiet", "Dockerfile"]).await.unwrap();
    let without = app.source.commit("Lose the Dockerfile").await.unwrap();
    app.source.push().await.unwrap();
    let status = stage.status_becomes(app, &without, "failure").await.unwrap();
    assert!(status.description.contains("Dockerfile"), "{status:?}");

    let missing = format!("{}/base/nothing:1", stage.bed.registry().host());
    app.source.write("Dockerfile", format!("FROM {missing}\nCOPY message /message\n")).await.unwrap();
    let baseless = app.source.commit("Use a base that does not exist").await.unwrap();
    app.source.push().await.unwrap();
    let status = stage.status_becomes(app, &baseless, "failure").await.unwrap();
    assert!(status.description.contains(&missing), "{status:?}");
    let builds = stage.builds("citation").await.unwrap();
    assert_eq!(builds.len(), 3, "neither is tried again: {builds:?}");

    let fixed = app.push_steps("COPY message /message").await.unwrap();
    stage.committed_once(app, &fixed).await.unwrap();
    assert_eq!(scene.committed().await, [fixed, scene.first.clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_build_fetched_can_be_asked() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let told = scene.stage.json(&["builds", "citation", "--egress"]).await.unwrap();
    let fetches = told["egress"]["fetches"].as_array().unwrap();
    let had = |what: &str, location: &str| {
        let is = |fetch: &&serde_json::Value| fetch["what"] == what && fetch["answer"] == "had";
        fetches.iter().filter(is).any(|fetch| fetch["location"].as_str().unwrap().contains(location))
    };
    assert!(had("source", &format!("/atlas/citation.git#{}", scene.first)), "{told}");
    assert!(had("image", &scene.stage.bed.registry().host()), "{told}");
    let table = scene.stage.command(&["builds", "citation", "--egress"]).await.unwrap();
    assert!(table.contains(&scene.first) && table.contains("had"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_no_daemon_would_fetch_is_told_before_one_is_asked() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    app.source.write("Dockerfile", "FROM scratch\nCOPY --from=busybox /bin /bin\n").await.unwrap();
    let refused = app.source.commit("Copy from an image outside").await.unwrap();
    app.source.push().await.unwrap();
    let status = stage.status_becomes(app, &refused, "failure").await.unwrap();
    assert!(status.description.contains("docker.io/library/busybox:latest"), "{status:?}");
    let builds = stage.json(&["builds", "citation"]).await.unwrap();
    let newest = &builds[0];
    assert_eq!(
        (&newest["phase"]["kind"], &newest["daemon"]),
        (&"source".into(), &serde_json::Value::Null),
        "{newest}"
    );
    let message = newest["phase"]["message"].as_str().unwrap();
    assert!(message.contains("may come from") && message.contains("(Dockerfile line 2)"), "{message}");

    let fixed = app.push_steps("COPY message /message").await.unwrap();
    stage.committed_once(app, &fixed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_pushes_within_a_build_the_newest_is_committed_and_the_older_status_closed() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let gate = Gate::new();
    let slow = scene.app.push_steps(&gate.steps()).await.unwrap();
    gate.reached().await.unwrap();
    // Both are there before either is heard of.
    scene.fabrique.peer.pause().unwrap();
    let between = scene.app.push("between").await.unwrap();
    let newest = scene.app.push_steps("COPY message /message").await.unwrap();
    scene.fabrique.peer.resume().unwrap();

    scene.stage.committed_once(&scene.app, &newest).await.unwrap();
    scene.stage.delivered("atlas", "citation", &between).await.unwrap();
    scene.stage.settled("citation", 0).await.unwrap();
    let status = scene.stage.status_becomes(&scene.app, &slow, "error").await.unwrap();
    assert!(status.description.contains(&format!("superseded by {}", &newest[..12])), "{status:?}");
    let built = scene.stage.builds("citation").await.unwrap();
    let built: Vec<&str> = built.iter().map(|build| build.revision.as_str()).collect();
    assert_eq!(built, [scene.first.as_str(), &slow, &newest], "and nothing of {between}");
    assert_eq!(scene.committed().await, [newest, scene.first.clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_three_supersedes_in_a_row_the_running_build_is_finished_first() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let mut superseded = Vec::new();
    for _ in 0..3 {
        let gate = Gate::new();
        superseded.push(app.push_steps(&gate.steps()).await.unwrap());
        gate.reached().await.unwrap();
    }
    let gate = Gate::new();
    let finished = app.push_steps(&gate.steps()).await.unwrap();
    gate.reached().await.unwrap();
    let newest = app.push_steps("COPY message /message").await.unwrap();
    stage
        .decided("citation", &format!("{} is finished before {}", &finished[..12], &newest[..12]))
        .await
        .unwrap();
    gate.open();

    stage.committed_once(app, &newest).await.unwrap();
    assert_eq!(scene.committed().await, [newest, finished, scene.first.clone()]);
    for revision in superseded {
        stage.status_becomes(app, &revision, "error").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_to_a_shared_repository_builds_the_apps_that_it_touches() {
    let one = AppOptions { repo: "atlas".to_owned(), context: "one".to_owned(), ..AppOptions::named("one") };
    let scene = Scene::open(one).await;
    let stage = &scene.stage;
    let url = stage.bed.gitea().clone_url_with_token("atlas", "atlas");
    let two = AppOptions { repo: "atlas".to_owned(), context: "two".to_owned(), ..AppOptions::named("two") };
    let two = SampleApp::over(stage, two, GitRepo::clone(&url).await.unwrap());
    two.write_source("second").await.unwrap();
    let head = two.source.commit("Add two").await.unwrap();
    two.source.push().await.unwrap();
    stage.deliveries("atlas", "atlas", 2).await.unwrap();
    two.register(stage).await.unwrap();
    stage.committed_once(&two, &head).await.unwrap();

    let only_two = two.push("touches two").await.unwrap();
    stage.committed_once(&two, &only_two).await.unwrap();
    let status = stage.status_becomes(&scene.app, &only_two, "success").await.unwrap();
    assert_eq!(status.description, format!("no watched path changed since {}", &scene.first[..12]));
    assert_eq!(stage.builds("one").await.unwrap().len(), 1);

    two.source.write("one/message", "touches one").await.unwrap();
    let both = two.push("and two").await.unwrap();
    stage.committed_once(&scene.app, &both).await.unwrap();
    stage.committed_once(&two, &both).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_without_environments_is_built_and_never_written_back() {
    let scene = Scene::open(AppOptions { deployed: false, ..AppOptions::named("tool") }).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let second = scene.settles_after(async { app.push("second").await.unwrap() }).await;

    let status = stage.status_becomes(app, &second, "success").await.unwrap();
    let digest = stage.bed.registry().digest("tool", &second[..12]).await.unwrap().unwrap();
    assert!(status.description.contains(&digest), "{status:?}");
    assert_eq!(stage.builds("tool").await.unwrap().len(), 2);
    assert_eq!(stage.automatic_commits("tool").await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_moved_back_and_forth_ends_where_it_ends_without_building_twice() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app, source) = (&scene.stage, &scene.app, &scene.app.source);
    let left = app.push("left").await.unwrap();
    stage.committed_once(app, &left).await.unwrap();
    source.rewind(1).await.unwrap();
    source.write("message", "right").await.unwrap();
    let right = source.commit("right").await.unwrap();
    source.push_force().await.unwrap();
    stage.committed_once(app, &right).await.unwrap();

    let back = format!("+{left}:refs/heads/main");
    let forth = format!("+{right}:refs/heads/main");
    for refspec in [&back, &forth, &back] {
        source.git(&["push", "--quiet", "origin", refspec]).await.unwrap();
    }
    stage.deliveries("atlas", "citation", 6).await.unwrap();
    stage.deployed(app, &left).await.unwrap();
    stage.settled("citation", 0).await.unwrap();
    assert_eq!(scene.deployed_revision().await, left);
    assert_eq!(stage.builds("citation").await.unwrap().len(), 3, "the records of both are adopted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_comes_after_the_push_builds_it() {
    let (stage, _fabrique) = running(Stage::builder()).await;
    let source = stage.create_source("atlas", "citation", false).await.unwrap();
    stage.hook("atlas", "citation").await.unwrap();
    stage.hook("cluster", "apps").await.unwrap();
    let app = SampleApp::over(&stage, AppOptions::named("citation"), source);
    app.write_source("first").await.unwrap();
    let revision = app.push("pushed before anybody knew").await.unwrap();
    let ignored = stage.deliveries("atlas", "citation", 1).await.unwrap();
    assert_eq!(ignored[0]["ignored"], "no app is registered for atlas/citation");

    app.register(&stage).await.unwrap();
    stage.committed_once(&app, &revision).await.unwrap();
}
