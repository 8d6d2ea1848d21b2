//! What becomes of the overlay that an app's repository keeps.

use fabrique_bed::{GitRepo, kustomize_build, wait_until};
use fabrique_stage::{AppOptions, Settings, Stage};
use serde_json::json;

use crate::LONG;
use crate::scene::{
    Scene, look_is_no_attempt, protect_apps, push_scaled_out, pushes_to_apps, rewrite_in,
    watching_the_message,
};

const OVERLAY: &str = "deploy/overlays/prod";
const COPY: &str = "apps/citation/prod";

/// An app whose registration names no place at all.
fn unbound() -> AppOptions {
    AppOptions { bindings: false, ..watching_the_message() }
}

/// The subjects of fabrique's commits since `base`, newest first.
async fn subjects_since(apps: &GitRepo, base: &str) -> Vec<String> {
    let log = apps.git(&["log", "--author=^fabrique <", "--format=%s", &format!("{base}..")]).await.unwrap();
    log.lines().map(str::to_owned).collect()
}

/// Waits until the overlay was copied at `revision`, and returns the clone that has it.
async fn copied(scene: &Scene, revision: &str) -> GitRepo {
    wait_until("the overlay to be copied", LONG, || async {
        let composition = scene.stage.composition("citation").await.ok()??;
        (composition.infra.as_deref() == Some(revision)).then_some(())
    })
    .await
    .unwrap();
    scene.stage.clone_apps().await.unwrap()
}

/// The copy as Argo CD renders it.
async fn rendered(apps: &GitRepo) -> String {
    kustomize_build(&apps.path().join(COPY)).await.unwrap()
}

/// What a filled copy renders to: the server's image and the one that it gives its runs, from one digest.
fn shows(scene: &Scene, rendered: &str, digest: &str) {
    let reference = format!("{}@{digest}", scene.app.image);
    assert!(rendered.contains(&format!("image: {reference}")), "{rendered}");
    assert!(rendered.contains(&format!("value: {reference}")), "{rendered}");
    assert!(!rendered.contains("__CITATION"), "{rendered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn placeholders_are_filled_where_the_app_keeps_them_and_followed_when_they_move() {
    let scene = Scene::open(unbound()).await;
    let (stage, source) = (&scene.stage, &scene.app.source);
    let first = stage.composition("citation").await.unwrap().unwrap();
    let apps = copied(&scene, &scene.first).await;
    let short = &scene.first[..12];
    let expected = [
        format!("Advance the infra of citation in prod to {short}"),
        format!("Deploy citation {short} to prod"),
    ];
    let root = apps.git(&["rev-list", "--max-parents=0", "HEAD"]).await.unwrap();
    assert_eq!(subjects_since(&apps, root.trim()).await, expected);
    let unfilled = kustomize_build(&source.path().join(OVERLAY)).await.unwrap();
    assert!(unfilled.contains("value: __CITATION_IMAGE__"), "{unfilled}");
    shows(&scene, &rendered(&apps).await, &first.digest);

    // The next image goes where the placeholders were, and nowhere else.
    let second = scene.app.push("second").await.unwrap();
    let deployed = stage.committed_once(&scene.app, &second).await.unwrap();
    apps.pull().await.unwrap();
    let changed = apps.git(&["diff", "--stat", "HEAD~1", "--", "."]).await.unwrap();
    assert!(changed.contains("3 files changed, 3 insertions(+), 3 deletions(-)"), "{changed}");
    shows(&scene, &rendered(&apps).await, &deployed.digest);

    // The team moves one of them into a component beside the overlay: no build, no operator, one commit.
    let before = apps.head().await.unwrap();
    let runs = "deploy/components/runs";
    let component =
        "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches: [{ path: runs.yaml }]\n";
    source.write(&format!("{runs}/kustomization.yaml"), component).await.unwrap();
    let patch = format!("{OVERLAY}/patch-s3-envfrom.yaml");
    source.git(&["mv", &patch, &format!("{runs}/runs.yaml")]).await.unwrap();
    rewrite_in(source, &format!("{OVERLAY}/kustomization.yaml"), |text| {
        text.replace("patches:\n  - path: patch-s3-envfrom.yaml", "components: [../../components/runs]")
    })
    .await;
    let third = source.commit("Let runs have a component of their own").await.unwrap();
    source.push().await.unwrap();
    let apps = copied(&scene, &third).await;
    let expected = [format!("Advance the infra of citation in prod to {}", &third[..12])];
    assert_eq!(subjects_since(&apps, &before).await, expected);
    assert_eq!(stage.builds("citation").await.unwrap().len(), 2);
    let places = apps.read(&format!("{COPY}/placeholders.yaml")).await.unwrap();
    assert!(places.contains("file: outside/deploy/components/runs/runs.yaml"), "{places}");
    shows(&scene, &rendered(&apps).await, &deployed.digest);
    kustomize_build(&source.path().join(OVERLAY)).await.unwrap();

    let fourth = scene.app.push("fourth").await.unwrap();
    let deployed = stage.committed_once(&scene.app, &fourth).await.unwrap();
    shows(&scene, &rendered(&stage.clone_apps().await.unwrap()).await, &deployed.digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlay_that_would_be_half_filled_is_not_copied_and_its_author_is_told_where() {
    let scene = Scene::open(unbound()).await;
    let (stage, source) = (&scene.stage, &scene.app.source);
    let head = stage.bed.gitea().head("cluster", "apps", "main").await.unwrap();
    let deployment = format!("{OVERLAY}/deployment.yaml");
    let doubled = "          env: [{ name: DAGSTER_CURRENT_IMAGE, value: __CITATION_IMAGE__ }]\n";
    scene
        .settles_after(async {
            rewrite_in(source, &deployment, |text| text + doubled).await;
            source.commit("Name the image twice").await.unwrap();
            source.push().await.unwrap();
        })
        .await;
    let reason = stage.decided("citation", "__CITATION_IMAGE__ is doubled").await.unwrap();
    assert!(reason.contains(&format!("{OVERLAY}/patch-s3-envfrom.yaml:11:")), "{reason}");
    assert_eq!(stage.bed.gitea().head("cluster", "apps", "main").await.unwrap(), head, "nothing is written");

    // Not taken back, which would be no difference to what is deployed.
    let policy = "          imagePullPolicy: IfNotPresent\n";
    rewrite_in(source, &deployment, |text| text.replace(doubled, policy)).await;
    let well = source.commit("Name it once again").await.unwrap();
    source.push().await.unwrap();
    copied(&scene, &well).await;
    assert_eq!(stage.builds("citation").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlay_that_the_forge_refuses_is_told_given_up_and_copied_once_it_may_be() {
    let settings = Settings { max_attempts: 2, dead_letter_rest: "1h".to_owned(), ..Settings::default() };
    let scene = Scene::open_on(Stage::builder().settings(settings), watching_the_message()).await;
    let stage = &scene.stage;
    protect_apps(stage, true).await;
    let before = pushes_to_apps(stage);
    let scaled = push_scaled_out(&scene.app.source).await;

    let status = stage.status_becomes(&scene.app, &scaled, "error").await.unwrap();
    let said = "given up after 2 attempts: the overlay of prod is not written: ";
    let words = status.description.strip_prefix(said).unwrap_or_else(|| panic!("{status:?}"));
    assert!(words.contains("protected branch"), "{status:?}");
    let letters = stage.json(&["dlq"]).await.unwrap();
    let letter = &letters[0];
    assert_eq!((&letter["app"], &letter["stuck"]), (&json!("citation"), &json!("dead")), "{letters}");
    assert_eq!(letter["failure"]["attempts"], 2, "{letters}");
    let why = stage.json(&["why", "citation"]).await.unwrap();
    for told in [&why["reason"], &why["environments"][0]["refused"]["message"], &letter["failure"]["message"]]
    {
        assert!(told.as_str().unwrap().contains("protected branch"), "{told} in {why}");
    }
    assert!(why["next"].as_str().unwrap().starts_with("it is tried again in "), "{why}");
    let (_, shown, _) = stage.try_command(&["why", "citation"]).await.unwrap();
    assert!(shown.contains("2 attempts, given up"), "{shown}");
    look_is_no_attempt(stage, &scaled, before, 2).await;

    protect_apps(stage, false).await;
    stage.command(&["dlq", "replay", "citation"]).await.unwrap();
    copied(&scene, &scaled).await;
    stage.status_becomes(&scene.app, &scaled, "success").await.unwrap();
    assert_eq!(stage.json(&["dlq"]).await.unwrap(), json!([]));
    assert_eq!(stage.builds("citation").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlay_that_the_forge_refused_heals_by_itself() {
    let scene = Scene::open(watching_the_message()).await;
    protect_apps(&scene.stage, true).await;
    let scaled = push_scaled_out(&scene.app.source).await;
    scene.stage.status_becomes(&scene.app, &scaled, "error").await.unwrap();
    protect_apps(&scene.stage, false).await;
    copied(&scene, &scaled).await;
    scene.stage.status_becomes(&scene.app, &scaled, "success").await.unwrap();
}
