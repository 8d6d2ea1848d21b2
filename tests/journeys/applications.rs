//! Argo CD's Applications, committed by workers together with what they deploy.
//!
//! What a worker commits is what `fabrique render` would write: `render --check` finds nothing to change after it.

use fabrique_bed::wait_until;
use fabrique_stage::{AppOptions, Fabrique, MANIFEST, SampleApp, Stage};

use crate::LONG;
use crate::declarations::{declare, push_manifest};
use crate::scene::{person_rewrites, scale_out};

pub(crate) const RENDERS: [(&str, &str); 2] = [
    ("FABRIQUE_RENDER__ENABLED", "true"),
    ("FABRIQUE_RENDER__DESTINATIONS", r#"[{environment="prod", namespaces=["apps", "dagster"]}]"#),
];

/// A stage whose workers render, and whose `root.yaml` a person has committed. Nothing tells fabrique of
/// `cluster/apps`, so that an app is looked at when its own push is told, and no sweep comes in this hour.
async fn rendering() -> (Stage, Fabrique) {
    rendering_with(&RENDERS).await
}

pub(crate) async fn rendering_with(settings: &[(&str, &str)]) -> (Stage, Fabrique) {
    let stage = crate::stage().await;
    let apps = stage.clone_apps().await.unwrap();
    let path = apps.path().display().to_string();
    let (code, out, err) =
        stage.try_command_with(settings, &["render", "--path", path.as_str()]).await.unwrap();
    assert_eq!(code, 0, "{out}{err}");
    apps.commit("Render the root").await.unwrap();
    apps.push().await.unwrap();
    let fabrique = stage.all_with(settings).await.unwrap();
    (stage, fabrique)
}

/// An app whose manifests people keep in `cluster/apps`. Nobody is told of its pushes but by [`tell`].
pub(crate) async fn app(stage: &Stage, name: &str) -> SampleApp {
    let options = AppOptions { overlay: false, hook: false, ..AppOptions::named(name) };
    SampleApp::create(stage, options).await.unwrap()
}

/// Delivers a push until it is accepted: on a busy machine a receiver may have to read for longer than Gitea waits.
pub(crate) async fn tell(stage: &Stage, app: &SampleApp, head: &str) {
    let repo = format!("atlas/{}", app.options.repo);
    wait_until("the push to be accepted", LONG, || async {
        let (status, _) = stage.deliver_push(&repo, &"0".repeat(40), head).await.ok()?;
        (status == 202).then_some(())
    })
    .await
    .unwrap();
}

/// The Application of the app in `prod`.
async fn application(stage: &Stage, app: &SampleApp) -> String {
    let apps = stage.clone_apps().await.unwrap();
    apps.read(&format!("applications/{}-prod.yaml", app.options.name)).await.unwrap()
}

/// Sees that nothing is left to be rendered.
async fn is_as_rendered(stage: &Stage) {
    let (code, out, err) = stage.try_command_with(&RENDERS, &["render", "--check"]).await.unwrap();
    assert_eq!(code, 0, "{out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_commit_brings_what_is_deployed_and_its_application_by_what_the_head_declares() {
    let (stage, _fabrique) = rendering().await;
    let (base, citation) = (app(&stage, "mediawatch").await, app(&stage, "citation").await);
    for app in [&base, &citation] {
        let first = app.push("first").await.unwrap();
        tell(&stage, app, &first).await;
        stage.committed_once(app, &first).await.unwrap();
    }
    let apps = stage.clone_apps().await.unwrap();
    let brought = ["log", "-1", "--name-only", "--format=", "--", "applications/citation-prod.yaml"];
    let brought = [&brought[..1], &["--full-diff"], &brought[1..]].concat();
    let brought = apps.git(&brought).await.unwrap();
    assert_eq!(
        brought.lines().collect::<Vec<_>>(),
        [
            "applications/citation-prod.yaml",
            "apps/citation/prod/composition.yaml",
            "apps/citation/prod/kustomization.yaml"
        ]
    );
    assert!(application(&stage, &citation).await.contains("sync-wave: \"0\""));
    is_as_rendered(&stage).await;

    // The pinned revision has no declaration at all. The head's counts, as everywhere else.
    declare(&stage, &["mediawatch", "citation"]).await;
    let ready = push_manifest(&base, "ready: true").await;
    tell(&stage, &base, &ready).await;
    stage.committed_once(&base, &ready).await.unwrap();
    let second = citation.push("second").await.unwrap();
    let depends = "ready: true\ndependsOn: { codeLocations: [mediawatch] }";
    let pinning = push_manifest(&citation, &format!("{depends}\nrevision: {}", &second[..12])).await;
    tell(&stage, &citation, &pinning).await;
    stage.committed_once(&citation, &second).await.unwrap();
    let application = application(&stage, &citation).await;
    assert!(application.contains("sync-wave: \"1\""), "{MANIFEST} at the head counts:\n{application}");
    is_as_rendered(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_waits_for_the_application_of_the_one_that_it_needs_and_is_woken_when_that_comes() {
    let (stage, _fabrique) = rendering().await;
    let (base, citation) = (app(&stage, "mediawatch").await, app(&stage, "citation").await);
    let atom = app(&stage, "atom").await;
    declare(&stage, &["mediawatch", "citation", "atom"]).await;
    // Whoever hears of registrations wakes their apps: over before anything is ready.
    let undeclared = citation.source.head().await.unwrap();
    tell(&stage, &citation, &undeclared).await;
    for name in ["mediawatch", "citation", "atom"] {
        stage.decided(name, "code-location.manifest.yaml: is not there").await.unwrap();
        stage.settled(name, 0).await.unwrap();
    }
    let woken = stage.wanted("citation").await.unwrap();
    let missing = "mediawatch, which it depends on, is not deployed";
    let depends = "ready: true\ndependsOn: { codeLocations: [mediawatch] }";

    // Declared ready, and nobody was told of it.
    let ready = push_manifest(&base, "ready: true").await;
    let waiting = push_manifest(&citation, depends).await;
    tell(&stage, &citation, &waiting).await;
    stage.decided("citation", missing).await.unwrap();
    stage.settled("citation", woken).await.unwrap();
    tell(&stage, &base, &ready).await;
    stage.committed_once(&base, &ready).await.unwrap();
    stage.committed_once(&citation, &waiting).await.unwrap();

    // A person takes the Application away while the app stays deployed. Before this nobody hears of `cluster/apps`:
    // Gitea would tell of the registrations late, and wake apps that wait for it.
    stage.hook("cluster", "apps").await.unwrap();
    let apps = stage.clone_apps().await.unwrap();
    let since = stage.wanted("mediawatch").await.unwrap();
    apps.git(&["rm", "--quiet", "applications/mediawatch-prod.yaml"]).await.unwrap();
    apps.commit("Let it be deployed by hand").await.unwrap();
    apps.push().await.unwrap();
    stage.settled("mediawatch", since).await.unwrap();
    let waiting = push_manifest(&atom, depends).await;
    tell(&stage, &atom, &waiting).await;
    stage.decided("atom", missing).await.unwrap();
    stage.settled("atom", 0).await.unwrap();
    // A look at the one that is needed lets it look in vain.
    let (since, looked) = (stage.wanted("mediawatch").await.unwrap(), stage.wanted("atom").await.unwrap());
    tell(&stage, &base, &ready).await;
    stage.settled("mediawatch", since).await.unwrap();
    stage.settled("atom", looked).await.unwrap();
    assert!(stage.composition("atom").await.unwrap().is_none(), "it came too early");
    // Nobody tells of the app itself, and no sweep comes in this hour.
    apps.pull().await.unwrap();
    let removal = ["log", "-1", "--format=%H", "--", "applications/mediawatch-prod.yaml"];
    let removal = apps.git(&removal).await.unwrap();
    apps.git(&["revert", "--no-edit", &removal]).await.unwrap();
    apps.push().await.unwrap();
    stage.committed_once(&atom, &waiting).await.unwrap();
    is_as_rendered(&stage).await;
}

pub(crate) const COMPOSITION: &str = "apps/citation/prod/composition.yaml";

/// What renders with the repository's own overlay as the source.
fn repository_form() -> [(&'static str, &'static str); 3] {
    [RENDERS[0], RENDERS[1], ("FABRIQUE_RENDER__SOURCE", "repository")]
}

/// An app whose image and overlay were deployed twice, before anybody hears of `cluster/apps`.
pub(crate) struct DeployedTwice {
    pub(crate) stage: Stage,
    _fabrique: Fabrique,
    app: SampleApp,
    /// The revisions, the older one first, and what was built of each.
    pub(crate) revisions: [String; 2],
    pub(crate) digests: [String; 2],
}

impl DeployedTwice {
    async fn new() -> Self {
        let twice = Self::unheard().await;
        twice.stage.hook("cluster", "apps").await.unwrap();
        twice
    }

    /// Nobody hears of `cluster/apps` afterwards either.
    pub(crate) async fn unheard() -> Self {
        let (stage, fabrique) = rendering_with(&repository_form()).await;
        let options = AppOptions { hook: false, ..AppOptions::named("citation") };
        let app = SampleApp::create(&stage, options).await.unwrap();
        let first = app.push("first").await.unwrap();
        let old = deployed(&stage, &app, &first).await;
        scale_out(&app.source).await;
        let second = app.push("second").await.unwrap();
        let new = deployed(&stage, &app, &second).await;
        stage.settled("citation", 0).await.unwrap();
        Self { stage, _fabrique: fabrique, app, revisions: [first, second], digests: [old, new] }
    }

    /// A person's edit, once every look that it wakes is over.
    async fn edit(&self, edit: impl Fn(String) -> String) {
        let commit = person_rewrites(&self.stage, COMPOSITION, edit).await;
        // A wake alone may be the one of the commit before, which the forge still owed.
        self.stage.delivered("cluster", "apps", &commit).await.unwrap();
        self.stage.settled("citation", 0).await.unwrap();
    }

    pub(crate) async fn application(&self) -> String {
        self.stage.apps_file("applications/citation-prod.yaml").await.unwrap().unwrap()
    }
}

/// Tells of a push, and waits until `prod` has its image and its overlay; which digest that is.
async fn deployed(stage: &Stage, app: &SampleApp, revision: &str) -> String {
    tell(stage, app, revision).await;
    let built = stage.committed_once(app, revision).await.unwrap();
    wait_until("the overlay to be copied", LONG, || async {
        let composition = stage.composition("citation").await.ok()??;
        (composition.infra.as_deref() == Some(revision)).then_some(())
    })
    .await
    .unwrap();
    built.digest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_composition_that_a_person_edits_is_followed_by_one_commit_of_all_that_shows_it() {
    let twice = DeployedTwice::new().await;
    let (stage, [first, second], [old, new]) = (&twice.stage, &twice.revisions, &twice.digests);
    twice.edit(|text| text.replace(new, old).replace(second, first)).await;

    let apps = stage.clone_apps().await.unwrap();
    let said = apps.git(&["log", "-2", "--format=%an %s"]).await.unwrap();
    let [followed, edited] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!(followed, "fabrique Follow the composition of citation in prod");
    assert!(edited.ends_with(&format!("Edit {COMPOSITION} by hand")), "{said}");
    let brought = apps.git(&["show", "--name-only", "--format=", "HEAD"]).await.unwrap();
    assert_eq!(
        brought.lines().collect::<Vec<_>>(),
        [
            "applications/citation-prod.yaml",
            "apps/citation/prod/deployment.yaml",
            "apps/citation/prod/kustomization.yaml",
            "apps/citation/prod/patch-s3-envfrom.yaml",
        ]
    );
    let application = twice.application().await;
    assert!(application.contains(&format!("targetRevision: {first}")), "{application}");
    for file in ["applications/citation-prod.yaml", "apps/citation/prod/patch-s3-envfrom.yaml"] {
        let text = apps.read(file).await.unwrap();
        assert!(text.contains(old) && !text.contains(new), "{text}");
    }
    assert!(!apps.read("apps/citation/prod/deployment.yaml").await.unwrap().contains("replicas"));
    // `root.yaml` names the app's repository since the commit that brought its Application.
    let brought = ["log", "-1", "--diff-filter=A", "--format=%H", "--", "applications/citation-prod.yaml"];
    let brought = apps.git(&brought).await.unwrap();
    let brought = apps.git(&["show", &brought, "--format=", "--", "root.yaml"]).await.unwrap();
    assert!(
        brought.lines().any(|line| line.starts_with('+') && line.contains("/atlas/citation")),
        "{brought}"
    );
    let (code, told, err) = stage.try_command_with(&repository_form(), &["render", "--check"]).await.unwrap();
    assert_eq!(code, 0, "{told}{err}");

    // What it says stays, and is followed once.
    let head = stage.bed.gitea().head("cluster", "apps", "main").await.unwrap();
    let since = stage.wanted("citation").await.unwrap();
    tell(stage, &twice.app, second).await;
    stage.settled("citation", since).await.unwrap();
    assert_eq!(stage.bed.gitea().head("cluster", "apps", "main").await.unwrap(), head);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slip_in_a_composition_is_told_and_followed_once_it_is_mended() {
    let twice = DeployedTwice::new().await;
    let (stage, [first, second], [_, new]) = (&twice.stage, &twice.revisions, &twice.digests);

    // A digest that nobody built.
    let nobodys = format!("sha256:{}", "e".repeat(64));
    twice.edit(|text| text.replace(new, &nobodys)).await;
    stage.decided("citation", &nobodys).await.unwrap();
    assert!(!twice.application().await.contains(&nobodys));

    // A revision that the repository does not have: the app is looked at all the same.
    let nowhere = "d".repeat(40);
    let infra = |text: &str, from: &str, to: &str| {
        let (image, infra) = text.split_once("\ninfra:").unwrap();
        format!("{image}\ninfra:{}", infra.replace(from, to))
    };
    twice.edit(|text| infra(&text.replace(&nobodys, new), second, &nowhere)).await;
    stage.decided("citation", &nowhere).await.unwrap();
    assert!(!twice.application().await.contains(&nowhere));

    // Back to an older overlay, and to the one that automation brought last.
    for (from, to, replicas) in [(&nowhere, first, false), (first, second, true)] {
        twice.edit(|text| infra(&text, from, to)).await;
        let application = twice.application().await;
        assert!(application.contains(&format!("targetRevision: {to}")), "{application}");
        let deployment = stage.apps_file("apps/citation/prod/deployment.yaml").await.unwrap().unwrap();
        assert_eq!(deployment.contains("replicas: 3"), replicas, "{deployment}");
    }
}
