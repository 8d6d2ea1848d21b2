//! What pushes lead to.

use fabrique_stage::{AppOptions, SampleApp};

#[tokio::test(flavor = "multi_thread")]
async fn the_first_push_becomes_a_digest_on_cluster_apps() {
    let stage = crate::stage().await;
    let _fabrique = stage.all().await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let revision = app.push("hello").await.unwrap();

    let composition = stage.deployed(&app, &revision).await.unwrap();

    let served = stage.bed.registry().digest("citation", &revision[..12]).await.unwrap();
    assert_eq!(served.as_deref(), Some(composition.digest.as_str()), "the readable tag points to it");
    stage.status_becomes(&app, &revision, "success").await.unwrap();
    let kustomization = stage.apps_file("apps/citation/prod/kustomization.yaml").await.unwrap().unwrap();
    assert!(
        kustomization.contains(&format!("digest: {} # filled by cluster", composition.digest)),
        "{kustomization}"
    );
    let patch = stage.apps_file("apps/citation/prod/patch-s3-envfrom.yaml").await.unwrap().unwrap();
    assert!(patch.contains(&format!("value: {}@{}", app.image, composition.digest)), "{patch}");
    let commits = stage.automatic_commits("citation").await.unwrap();
    assert_eq!(commits.len(), 2, "one commit for the image and one for the overlay: {commits:?}");
}
