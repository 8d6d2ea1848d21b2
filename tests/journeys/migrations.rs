//! Migrations: judged before a build is spent, and committed by the worker together with the image that needs them.

use fabrique_bed::wait_until;
use fabrique_stage::{AppOptions, CONTRACT, MANIFEST, SampleApp, Stage};

use crate::LONG;
use crate::applications::{RENDERS, app, rendering_with, tell};
use crate::declarations::push_manifest;
use crate::scene::{person_rewrites, rewrite_in};
use crate::unheard::{newest, sweep};

const RUNNER: &str = concat!(
    "registry:80/fabrique@sha256:",
    "0000000000000000000000000000000000000000000000000000000000000000"
);
/// What a migration and its runner need of the cluster.
const OFFERS: &str = "databases: { pgvector: { namespace: postgres, cluster: pg } }
secrets: { pgvector-pg-auth: { namespace: apps, keys: [username, password] } }
";
const OVERLAY: &str = "deploy/overlays/prod/deployment.yaml";
const RENDERED: &str = "migrations/prod/citation/migrations.yaml";
const NEEDS: &str = "ready: true
dependsOn: { database: [pgvector], secrets: [pgvector-pg-auth], migrations: [001-a.sql, 002-b.sql] }";

/// Pushes the declaration with another first migration, and tells of it; the revision.
async fn push(stage: &Stage, app: &SampleApp, first: impl AsRef<[u8]>) -> String {
    app.source.write("sql/001-a.sql", first).await.unwrap();
    app.source.write("sql/002-b.sql", "SELECT 2;\n").await.unwrap();
    // The declaration is another one each time: the same would be no commit where only the file's bytes are told apart.
    let revision = push_manifest(app, &format!("{NEEDS}\n# {}", app.source.head().await.unwrap())).await;
    tell(stage, app, &revision).await;
    revision
}

/// Sees that a revision was refused by the status of its declaration with these words, and not built.
async fn is_refused(stage: &Stage, app: &SampleApp, revision: &str, words: &str, builds: usize) {
    let status = stage.declaration_status(app, revision).await.unwrap();
    assert_eq!(status.state, "failure", "{status:?}");
    assert!(status.description.contains(words), "{status:?}");
    stage.decided("citation", words).await.unwrap();
    stage.settled("citation", 0).await.unwrap();
    assert_eq!(stage.status("citation", revision, "citation").await.unwrap(), None, "it was built");
    assert_eq!(stage.builds("citation").await.unwrap().len(), builds);
}

/// A contract, and an app that declares what it needs of it.
async fn declare(stage: &Stage) {
    let apps = stage.clone_apps().await.unwrap();
    apps.write("contract.yaml", format!("{CONTRACT}{OFFERS}")).await.unwrap();
    rewrite_in(&apps, "apps/citation/app.yaml", |text| {
        let source = format!("branch: main, declaration: {MANIFEST}, migrations: sql }}");
        text.replace("branch: main }", &source)
    })
    .await;
    apps.commit("Declare").await.unwrap();
    apps.push().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overlay_of_a_head_whose_migrations_are_refused_is_not_deployed() {
    let settings = [RENDERS[0], RENDERS[1], ("FABRIQUE_RENDER__MIGRATIONS__IMAGE", RUNNER)];
    let (stage, _fabrique) = rendering_with(&settings).await;
    let options = AppOptions { hook: false, ..AppOptions::named("citation") };
    let app = SampleApp::create(&stage, options).await.unwrap();
    declare(&stage).await;
    let infra = async |revision: &str| {
        let what = format!("the overlay of {revision}");
        wait_until(&what, LONG, || async {
            (stage.composition("citation").await.ok()??.infra.as_deref() == Some(revision)).then_some(())
        })
        .await
        .unwrap();
    };
    let good = push(&stage, &app, "SELECT 1;\n").await;
    stage.committed_once(&app, &good).await.unwrap();
    infra(&good).await;

    // Overlay and migration in one push: the overlay would go ahead of the image.
    rewrite_in(&app.source, OVERLAY, |text| format!("{text}# edited\n")).await;
    let edited = push(&stage, &app, "SELECT 0;\n").await;
    is_refused(&stage, &app, &edited, "001-a.sql was edited since it was deployed", 1).await;
    infra(&good).await;

    stage.command(&["release", "citation"]).await.unwrap();
    stage.committed_once(&app, &edited).await.unwrap();
    infra(&edited).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_are_judged_before_a_build_and_come_with_the_image_that_needs_them() {
    let settings = [RENDERS[0], RENDERS[1], ("FABRIQUE_RENDER__MIGRATIONS__IMAGE", RUNNER)];
    let (stage, _fabrique) = rendering_with(&settings).await;
    let app = app(&stage, "citation").await;
    declare(&stage).await;

    let big = push(&stage, &app, "SELECT 1;\n".repeat(150_000)).await;
    is_refused(&stage, &app, &big, "is the limit", 0).await;
    let unreadable = push(&stage, &app, [0xff, 0xfe, b'\n']).await;
    is_refused(&stage, &app, &unreadable, "sql/001-a.sql is not text in UTF-8", 0).await;

    let good = push(&stage, &app, "SELECT 1;\n").await;
    stage.committed_once(&app, &good).await.unwrap();
    let (_, files) = newest(&stage).await;
    let brought = [
        "applications/citation-prod.yaml",
        "apps/citation/prod/composition.yaml",
        "apps/citation/prod/kustomization.yaml",
        RENDERED,
    ];
    assert_eq!(files, brought, "one commit");
    let text = stage.apps_file(RENDERED).await.unwrap().unwrap();
    for part in ["kind: ConfigMap", "kind: Job", "hook: PreSync", "SELECT 1;", "pg-rw.postgres.svc"] {
        assert!(text.contains(part), "no {part} in {text}");
    }

    let edited = push(&stage, &app, "SELECT 0;\n").await;
    is_refused(&stage, &app, &edited, "001-a.sql was edited since it was deployed", 1).await;
    // It never was applied, says a person.
    stage.command(&["release", "citation"]).await.unwrap();
    stage.committed_once(&app, &edited).await.unwrap();
    assert!(stage.apps_file(RENDERED).await.unwrap().unwrap().contains("SELECT 0;"));

    // The database moved, and nobody told of the contract.
    stage.settled("citation", 0).await.unwrap();
    person_rewrites(&stage, "contract.yaml", |text| text.replace("cluster: pg }", "cluster: other }")).await;
    let found = "contract.yaml changed since a worker looked";
    assert_eq!(sweep(&stage).await, [("citation".to_owned(), found.to_owned())]);
    let (said, files) = newest(&stage).await;
    assert_eq!(said, "fabrique Bring what is rendered for citation in prod into line");
    assert_eq!(files, [RENDERED]);
    assert!(stage.apps_file(RENDERED).await.unwrap().unwrap().contains("other-rw.postgres.svc"));
    assert_eq!(sweep(&stage).await, []);
}
