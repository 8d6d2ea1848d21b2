use fabrique_core::app::{
    Binding, BindingForm, DeployedImage, DeployedInfra, Hold, InfraFrom, OverlaySource,
};
use fabrique_core::id::{AppName, BuildId, BuildKey, Digest, ImageRepository, RepoName, Revision};
use proptest::prelude::*;

use super::*;
use crate::batch::{Added, Batch, MAX_COMMITS};
use crate::head::{Bindings, observe};
use crate::message::Previous;
use crate::overlay::OverlayFiles;
use crate::registration::{Registrations, Rules};
use crate::tree::Entry;

mod follow;

const NOW: Timestamp = Timestamp(1_785_000_000_000);

const APP: &str = r#"
apiVersion: fabrique/v1
kind: App
metadata: { name: citation }
spec:
  source: { repo: atlas/atlas }
  image: registry:80/citation
  environments:
    - name: prod
      infra: { from: head, repo: atlas/atlas, path: deploy/prod }
      bindings:
        - { channel: image, file: kustomization.yaml, path: "images[name=registry:80/citation].digest", form: digest }
        - { channel: image, file: patch.yaml, path: "spec.env[name=DAGSTER_CURRENT_IMAGE].value", form: reference }
        - { channel: infra, file: kustomization.yaml, path: "commonAnnotations.revision", form: revision }
    - name: bench
      bindings:
        - { channel: image, file: app.yaml, path: "spec.source.kustomize.images[~registry:80/citation]", form: kustomize-image }
        - { channel: image, file: app.yaml, path: "metadata.labels.revision", form: revision }
"#;

const KUSTOMIZATION: &str = "# atlas's overlay\r\nresources: [patch.yaml]\r\nimages:\r\n- name: registry:80/citation-eu\r\n  digest: sha256:other\r\n- name: registry:80/citation # ours\r\n  digest: __CITATION_IMAGE_DIGEST__   # filled by cluster: __CITATION_IMAGE_DIGEST__\r\ncommonAnnotations: { revision: \"unknown\" }\r\n";
const PATCH: &str = "spec:\n  env:\n  - {name: OTHER, value: 1}\n  - {name: DAGSTER_CURRENT_IMAGE, value: '__CITATION_IMAGE__'}";
const APPLICATION: &str = "metadata:\n  labels: {revision: none}\nspec:\n  source:\n    kustomize:\n      images:\n      - registry:80/citation2=registry:80/citation2@sha256:00\n      - registry:80/citation:latest # first\n";

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

fn name(text: &str) -> EnvironmentName {
    EnvironmentName::parse(text).unwrap()
}

fn tree_of(files: &[(&str, &str)]) -> Tree {
    files.iter().map(|(p, text)| (path(p), Entry::regular(text.to_string()))).collect()
}

fn start() -> Tree {
    tree_of(&[("apps/citation/app.yaml", APP), ("apps/citation/bench/app.yaml", APPLICATION)])
}

fn with(tree: &Tree, file: &str, text: &str) -> Tree {
    let changed = (path(file), Entry::regular(text.to_string()));
    tree.iter()
        .map(|(p, e)| (p.clone(), e.clone()))
        .filter(|(p, _)| *p != changed.0)
        .chain([changed.clone()])
        .collect()
}

fn app() -> App {
    let loaded = Registrations::load(&start(), &Rules { registries: vec!["registry:80".to_owned()] });
    assert_eq!(loaded.findings, []);
    loaded.apps[&AppName::parse("citation").unwrap()].clone()
}

fn revision(digit: char) -> Revision {
    Revision::parse(&digit.to_string().repeat(40)).unwrap()
}

fn image(digit: char) -> DeployedImage {
    DeployedImage {
        repository: ImageRepository::parse("registry:80/citation").unwrap(),
        digest: Digest::parse(&format!("sha256:{}", digit.to_string().repeat(64))).unwrap(),
        revision: revision(digit),
        version: None,
        build: Some(BuildId::parse("citation-01k0000000000000000000000a").unwrap()),
    }
}

fn infra(digit: char) -> DeployedInfra {
    let overlay = OverlaySource { repo: RepoName::parse("atlas/atlas").unwrap(), path: path("deploy/prod") };
    DeployedInfra { overlay, revision: revision(digit) }
}

fn overlay_of(files: &[(&str, &str)]) -> OverlayFiles {
    OverlayFiles::new(files.iter().map(|(p, text)| (path(p), Entry::regular(text.to_string())))).unwrap()
}

fn overlay() -> OverlayFiles {
    overlay_of(&[("kustomization.yaml", KUSTOMIZATION), ("patch.yaml", PATCH)])
}

fn hold(until: Option<&str>) -> Hold {
    Hold { by: "ada".into(), reason: "incident 7".into(), since: None, until: until.map(str::to_owned) }
}

fn deploy(tree: &Tree, environment: &str, digit: char) -> Plan {
    let key = BuildKey::parse(&"9".repeat(64)).unwrap();
    deploy_image(tree, &app(), &name(environment), &image(digit), Some(&key), NOW)
}

fn advance(tree: &Tree, digit: char) -> Plan {
    advance_infra(tree, &app(), &name("prod"), &overlay(), &infra(digit), NOW)
}

/// The tree after a plan that must be a commit.
fn applied(tree: &Tree, plan: Plan) -> Tree {
    tree.apply(&plan.unwrap().unwrap().changes).unwrap()
}

fn text(tree: &Tree, file: &str) -> String {
    String::from_utf8(tree.read(&path(file)).unwrap().unwrap().to_vec()).unwrap()
}

/// An environment with an image and a copied overlay.
fn running() -> Tree {
    let tree = applied(&start(), deploy(&start(), "prod", 'a'));
    applied(&tree, advance(&tree, 'b'))
}

#[test]
fn the_first_deployment_and_the_first_copy_are_two_commits() {
    let first = deploy(&start(), "prod", 'a').unwrap().unwrap();
    assert_eq!(first.changes.len(), 1, "the bindings do not exist yet");
    insta::assert_snapshot!(first.message, @r#"
Deploy citation aaaaaaaaaaaa to prod

registry:80/citation@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa

App: citation
Environment: prod
Channel: image
Source-Revision: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
Image: registry:80/citation
Digest: sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
Build-Id: citation-01k0000000000000000000000a
Build-Key: 9999999999999999999999999999999999999999999999999999999999999999
"#);
    let tree = start().apply(&first.changes).unwrap();
    assert_eq!(observe(&tree, &app())[0].bindings, Bindings::AwaitOverlay);
    let second = advance(&tree, 'b').unwrap().unwrap();
    insta::assert_snapshot!(second.message, @r#"
Advance the infra of citation in prod to bbbbbbbbbbbb

atlas/atlas deploy/prod

App: citation
Environment: prod
Channel: infra
Source-Revision: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
"#);
    let tree = tree.apply(&second.changes).unwrap();
    insta::assert_snapshot!(text(&tree, "apps/citation/prod/kustomization.yaml").replace('\r', "␍"), @r#"
# atlas's overlay␍
resources: [patch.yaml]␍
images:␍
- name: registry:80/citation-eu␍
  digest: sha256:other␍
- name: registry:80/citation # ours␍
  digest: sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa   # filled by cluster: __CITATION_IMAGE_DIGEST__␍
commonAnnotations: { revision: "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb" }␍
"#);
    insta::assert_snapshot!(text(&tree, "apps/citation/prod/patch.yaml"), @r#"
spec:
  env:
  - {name: OTHER, value: 1}
  - {name: DAGSTER_CURRENT_IMAGE, value: 'registry:80/citation@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}
"#);
    insta::assert_snapshot!(text(&tree, "apps/citation/prod/composition.yaml"), @r#"
apiVersion: fabrique/v1
kind: Composition
metadata: { app: citation, environment: prod }
image: { repository: registry:80/citation, digest: "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", revision: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, version: null, build: citation-01k0000000000000000000000a, hold: null }
infra: { repo: atlas/atlas, path: deploy/prod, revision: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, hold: null }
"#);
    assert_eq!(observe(&tree, &app())[0].bindings, Bindings::Agree);
    assert_eq!(observe(&tree, &app())[0].trouble(), None);
}

#[test]
fn invariant_1_and_7_planning_again_gives_nothing() {
    let tree = running();
    assert_eq!(deploy(&tree, "prod", 'a'), Ok(None));
    assert_eq!(advance(&tree, 'b'), Ok(None));
    assert_eq!(repair(&tree, &app(), &name("prod")), Ok(None));
    let rebuilt = DeployedImage { build: None, version: Some("1.0".into()), ..image('a') };
    assert_eq!(
        deploy_image(&tree, &app(), &name("prod"), &rebuilt, None, NOW),
        Ok(None),
        "same revision, same digest"
    );
    assert_eq!(release_hold(&tree, &app(), &name("prod"), Channel::Image), Ok(None));
    let held = applied(&tree, set_hold(&tree, &app(), &name("prod"), Channel::Image, &hold(None)));
    assert_eq!(set_hold(&held, &app(), &name("prod"), Channel::Image, &hold(None)), Ok(None));
    assert_eq!(deploy(&held, "prod", 'a'), Ok(None), "nothing to do is no refusal");
}

#[test]
fn invariant_2_one_commit_sets_every_binding() {
    let tree = running();
    let planned = deploy(&tree, "prod", 'c').unwrap().unwrap();
    let files: Vec<&str> = planned.changes.iter().map(|(p, _)| p.as_str()).collect();
    assert_eq!(
        files,
        [
            "apps/citation/prod/composition.yaml",
            "apps/citation/prod/kustomization.yaml",
            "apps/citation/prod/patch.yaml"
        ]
    );
    assert_eq!(planned.message.trailers().previous, Some(Previous::Digest(image('a').digest)));
    let tree = tree.apply(&planned.changes).unwrap();
    assert_eq!(observe(&tree, &app())[0].bindings, Bindings::Agree);
    assert!(
        text(&tree, "apps/citation/prod/patch.yaml")
            .contains(&format!("'registry:80/citation@{}'", image('c').digest))
    );
}

#[test]
fn invariant_2_nothing_is_planned_when_one_binding_cannot_be_set() {
    let broken = with(&running(), "apps/citation/prod/patch.yaml", "spec: {env: []}\n");
    insta::assert_snapshot!(deploy(&broken, "prod", 'c').unwrap_err(), @"apps/citation/prod/patch.yaml: nothing at spec.env[name=DAGSTER_CURRENT_IMAGE].value: spec.env (line 1) is a list without [name=DAGSTER_CURRENT_IMAGE]; correct the file, or the binding in app.yaml");
    let missing = tree_of(&[("apps/citation/app.yaml", APP)]);
    insta::assert_snapshot!(deploy(&missing, "bench", 'c').unwrap_err(), @"apps/citation/bench/app.yaml: nothing at spec.source.kustomize.images[~registry:80/citation], metadata.labels.revision: the file does not exist; correct the file, or the binding in app.yaml");
}

#[test]
fn invariant_5_a_held_channel_does_not_move_and_the_other_does() {
    let tree = running();
    let held = applied(&tree, set_hold(&tree, &app(), &name("prod"), Channel::Image, &hold(None)));
    insta::assert_snapshot!(deploy(&held, "prod", 'c').unwrap_err(), @"citation/prod: the image channel is held by ada (incident 7); run `fabrique release citation` to let it move");
    assert!(advance(&held, 'd').unwrap().is_some());
    let released = applied(&held, release_hold(&held, &app(), &name("prod"), Channel::Image));
    assert_eq!(released, tree, "a hold leaves no trace");

    let held = applied(&tree, set_hold(&tree, &app(), &name("prod"), Channel::Infra, &hold(None)));
    assert!(matches!(advance(&held, 'd'), Err(Refusal::Held { channel: Channel::Infra, .. })));
    assert!(deploy(&held, "prod", 'c').unwrap().is_some());
}

#[test]
fn a_hold_ends_when_it_says_so() {
    let tree = running();
    for (until, moves) in [("2026-01-01T00:00:00Z", true), ("2027-01-01T00:00:00+02:00", false)] {
        let held = applied(&tree, set_hold(&tree, &app(), &name("prod"), Channel::Image, &hold(Some(until))));
        assert_eq!(deploy(&held, "prod", 'c').is_ok(), moves, "{until}");
    }
    let refused =
        set_hold(&tree, &app(), &name("prod"), Channel::Image, &hold(Some("tomorrow"))).unwrap_err();
    insta::assert_snapshot!(refused, @"the end of the hold is no time: failed to parse four digit integer as year: invalid digit, expected 0-9 but got t; write 2026-08-01T12:00:00Z");
}

#[test]
fn a_roll_back_and_its_hold_are_one_commit() {
    let tree = applied(&running(), deploy(&running(), "prod", 'c'));
    let back = roll_back(&tree, &app(), &name("prod"), &image('a'), &hold(None)).unwrap().unwrap();
    insta::assert_snapshot!(back.message, @r#"
Roll back citation to aaaaaaaaaaaa in prod

registry:80/citation@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa

Held by ada: incident 7

App: citation
Environment: prod
Channel: image
Source-Revision: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
Image: registry:80/citation
Digest: sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
Previous: sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc
Build-Id: citation-01k0000000000000000000000a
"#);
    let tree = tree.apply(&back.changes).unwrap();
    assert!(matches!(deploy(&tree, "prod", 'c'), Err(Refusal::Held { .. })));
    assert_eq!(roll_back(&tree, &app(), &name("prod"), &image('a'), &hold(None)), Ok(None));
}

#[test]
fn a_binding_that_a_person_changed_is_reported_and_rewritten_only_by_repair() {
    let patch = "apps/citation/prod/patch.yaml";
    let drifted = with(&running(), patch, &text(&running(), patch).replace("@sha256:aa", "@sha256:ba"));
    insta::assert_snapshot!(deploy(&drifted, "prod", 'c').unwrap_err(), @"citation/prod: apps/citation/prod/patch.yaml:4: spec.env[name=DAGSTER_CURRENT_IMAGE].value shows registry:80/citation@sha256:baaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, the composition says registry:80/citation@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; run `fabrique repair citation` to rewrite them from the composition, or revert the edit");
    assert!(matches!(advance(&drifted, 'd'), Err(Refusal::Drift { .. })));
    assert!(matches!(&observe(&drifted, &app())[0].bindings, Bindings::Drift(drifts) if drifts.len() == 1));
    let repaired = repair(&drifted, &app(), &name("prod")).unwrap().unwrap();
    insta::assert_snapshot!(repaired.message, @r#"
Repair the bindings of citation in prod

apps/citation/prod/patch.yaml:4: spec.env[name=DAGSTER_CURRENT_IMAGE].value shows registry:80/citation@sha256:baaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, the composition says registry:80/citation@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa

App: citation
Environment: prod
"#);
    assert_eq!(drifted.apply(&repaired.changes).unwrap(), running());
}

#[test]
fn before_the_first_deployment_any_value_is_replaced() {
    let tree = applied(&start(), deploy(&start(), "bench", 'a'));
    insta::assert_snapshot!(text(&tree, "apps/citation/bench/app.yaml"), @r#"
metadata:
  labels: {revision: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}
spec:
  source:
    kustomize:
      images:
      - registry:80/citation2=registry:80/citation2@sha256:00
      - registry:80/citation=registry:80/citation@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa # first
"#);
    let again = applied(&tree, deploy(&tree, "bench", 'c'));
    assert!(text(&again, "apps/citation/bench/app.yaml").contains(&"c".repeat(64)));
}

#[test]
fn invariant_11_a_tag_beside_the_digest_is_no_drift_and_another_registry_is() {
    let tree = applied(&start(), deploy(&start(), "bench", 'a'));
    let file = "apps/citation/bench/app.yaml";
    let tagged =
        with(&tree, file, &text(&tree, file).replace("=registry:80/citation@", "=registry:80/citation:1.2@"));
    assert_eq!(observe(&tagged, &app())[1].bindings, Bindings::Agree);
    assert!(deploy(&tagged, "bench", 'c').unwrap().is_some());
    let other = with(&tree, file, &text(&tree, file).replace("registry:80/citation=", "registry/citation="));
    assert!(matches!(deploy(&other, "bench", 'c'), Err(Refusal::Drift { .. })));
}

#[test]
fn an_advance_refills_from_the_deployed_digest_and_removes_what_is_gone() {
    let newer = overlay_of(&[
        ("kustomization.yaml", &KUSTOMIZATION.replace("patch.yaml", "patch.yaml, more.yaml")),
        ("patch.yaml", PATCH),
        ("more.yaml", "a: 1\n"),
    ]);
    let tree = with(&running(), "apps/citation/prod/stale.yaml", "old: 1\n");
    let planned = advance_infra(&tree, &app(), &name("prod"), &newer, &infra('d'), NOW).unwrap().unwrap();
    let after = tree.apply(&planned.changes).unwrap();
    assert_eq!(after.read(&path("apps/citation/prod/stale.yaml")), Ok(None));
    assert!(text(&after, "apps/citation/prod/kustomization.yaml").contains(image('a').digest.as_str()));
    assert!(text(&after, "apps/citation/prod/composition.yaml").contains(revision('d').as_str()));
    assert_eq!(observe(&after, &app())[0].bindings, Bindings::Agree);
}

#[test]
fn an_advance_waits_for_an_image_and_fills_every_placeholder() {
    insta::assert_snapshot!(advance(&start(), 'b').unwrap_err(), @"citation/prod: no image is deployed, so the overlay's placeholders cannot be filled; the first build deploys one");
    let unbound = overlay_of(&[
        ("kustomization.yaml", KUSTOMIZATION),
        ("patch.yaml", PATCH),
        ("job.yaml", "# __CITATION_IMAGE__ here\nspec:\n  image: __CITATION_IMAGE__\n"),
    ]);
    let refused = advance_infra(&running(), &app(), &name("prod"), &unbound, &infra('d'), NOW).unwrap_err();
    insta::assert_snapshot!(refused, @"deploy/prod/job.yaml:3:10: the placeholder __CITATION_IMAGE__ is at the wrong place; it is filled only as the whole of the value of the variable DAGSTER_CURRENT_IMAGE: write it there");
    let files = advance_infra(&start(), &app(), &name("bench"), &overlay(), &infra('d'), NOW).unwrap_err();
    insta::assert_snapshot!(files, @"citation/bench: its manifests are kept in cluster/apps, no overlay is copied; declare infra: { from: head, repo, path } in app.yaml");
    let ghost = advance_infra(&start(), &app(), &name("ghost"), &overlay(), &infra('d'), NOW).unwrap_err();
    insta::assert_snapshot!(ghost, @"citation has no environment ghost; declare it under spec.environments of apps/citation/app.yaml");
}

#[test]
fn an_advance_is_refused_when_the_copy_would_not_be_whole() {
    let remote = KUSTOMIZATION.replace("[patch.yaml]", "[patch.yaml, 'https://host/base?ref=v1']");
    let remote = overlay_of(&[("kustomization.yaml", &remote), ("patch.yaml", PATCH)]);
    let refused = advance_infra(&running(), &app(), &name("prod"), &remote, &infra('d'), NOW).unwrap_err();
    insta::assert_snapshot!(refused, @r#"deploy/prod/kustomization.yaml:2:25: "https://host/base?ref=v1" is not in this repository; copy it into the repository: the cluster fetches nothing"#);
}

#[test]
fn an_overlay_and_the_bindings_for_it_may_change_together() {
    let mut app = app();
    app.environments[0].bindings.truncate(1);
    app.environments[0].bindings[0].file = path("new.yaml");
    app.environments[0].bindings[0].path = "image.digest".to_owned();
    let newer = overlay_of(&[("new.yaml", "image: { digest: x }\n")]);
    let planned = advance_infra(&running(), &app, &name("prod"), &newer, &infra('d'), NOW).unwrap().unwrap();
    let after = running().apply(&planned.changes).unwrap();
    assert_eq!(
        text(&after, "apps/citation/prod/new.yaml"),
        format!("image: {{ digest: {} }}\n", image('a').digest)
    );
}

#[test]
fn a_pinned_revision_is_moved_by_writing_it_into_the_composition() {
    let mut app = app();
    app.environments[0].infra = InfraFrom::Pinned(infra('b').overlay);
    let file = "apps/citation/prod/composition.yaml";
    let pinned = with(
        &running(),
        file,
        &text(&running(), file).replace(revision('b').as_str(), revision('d').as_str()),
    );
    assert!(matches!(observe(&pinned, &app)[0].bindings, Bindings::Drift(_)));
    let plan = |tree: &Tree| advance_infra(tree, &app, &name("prod"), &overlay(), &infra('d'), NOW);
    let after = applied(&pinned, plan(&pinned));
    assert_eq!(observe(&after, &app)[0].bindings, Bindings::Agree);
    assert_eq!(plan(&after), Ok(None));
    let patch = "apps/citation/prod/patch.yaml";
    let tampered = with(&pinned, patch, &PATCH.replace("__CITATION_IMAGE__", "other"));
    assert!(matches!(plan(&tampered), Err(Refusal::Drift { drifts, .. }) if drifts.len() == 1));
}

#[test]
fn the_version_of_a_chart_that_a_person_writes_is_brought_to_its_binding() {
    let mut app = app();
    app.environments[1].bindings.push(Binding {
        channel: Channel::Infra,
        file: path("release.yaml"),
        path: "spec.chart.spec.version".to_owned(),
        form: BindingForm::Version,
    });
    let release = "spec: { chart: { spec: { chart: citation, version: '1.0.0' } } }\n";
    let tree = with(&start(), "apps/citation/bench/release.yaml", release);
    let plan = |tree: &Tree| deploy_image(tree, &app, &name("bench"), &image('a'), None, NOW);
    let tree = applied(&tree, plan(&tree));
    assert_eq!(text(&tree, "apps/citation/bench/release.yaml"), release, "nobody chose a chart yet");

    let file = "apps/citation/bench/composition.yaml";
    let chosen = text(&tree, file).replace(
        "infra: { repo: null, path: null, revision: null, hold: null }",
        "infra: { repo: charts, chart: citation, version: 2.0.0, hold: null }",
    );
    let chosen = with(&tree, file, &chosen);
    assert!(matches!(&observe(&chosen, &app)[1].bindings, Bindings::Drift(drifts) if drifts.len() == 1));
    let after = applied(&chosen, repair(&chosen, &app, &name("bench")));
    assert_eq!(text(&after, "apps/citation/bench/release.yaml"), release.replace("1.0.0", "2.0.0"));
    assert_eq!(observe(&after, &app)[1].bindings, Bindings::Agree);
}

#[test]
fn invariant_8_a_deployment_changes_only_the_lines_of_its_values() {
    let before = running();
    let after = applied(&before, deploy(&before, "prod", 'c'));
    for (file, changed) in [("composition.yaml", 1), ("kustomization.yaml", 1), ("patch.yaml", 1)] {
        let file = format!("apps/citation/prod/{file}");
        let (old, new) = (text(&before, &file), text(&after, &file));
        let lines = |text: &str| text.split_inclusive('\n').map(str::to_owned).collect::<Vec<_>>();
        let (old, new) = (lines(&old), lines(&new));
        assert_eq!(old.len(), new.len(), "{file}");
        assert_eq!(old.iter().zip(&new).filter(|(a, b)| a != b).count(), changed, "{file}");
    }
}

#[test]
fn invariant_15_a_symlinked_environment_is_refused() {
    let link =
        (path("apps/citation/bench"), Entry { kind: crate::FileKind::Symlink, bytes: "../other".into() });
    let tree: Tree = [(path("apps/citation/app.yaml"), Entry::regular(APP)), link].into_iter().collect();
    assert!(matches!(deploy(&tree, "bench", 'a'), Err(Refusal::PathRefused { .. })));
    assert!(observe(&tree, &app())[1].trouble().is_some());
}

#[test]
fn a_batch_chains_its_commits_and_is_full_at_five() {
    let mut batch = Batch::on(start());
    assert_eq!(batch.add(|tree| deploy(tree, "prod", 'a')), Ok(Added::Commit));
    assert_eq!(
        batch.add(|tree| deploy(tree, "prod", 'a')),
        Ok(Added::Nothing),
        "planned on the tree before it"
    );
    assert!(
        batch.add(|tree| advance_infra(tree, &app(), &name("bench"), &overlay(), &infra('b'), NOW)).is_err()
    );
    assert_eq!(batch.add(|tree| advance(tree, 'b')), Ok(Added::Commit));
    for digit in ['1', '2', '3'] {
        assert_eq!(batch.add(|tree| deploy(tree, "bench", digit)), Ok(Added::Commit));
    }
    assert_eq!(batch.add(|tree| deploy(tree, "bench", '4')), Ok(Added::Full));
    let mut tree = start();
    let end = batch.tree().clone();
    let commits = batch.into_commits();
    assert_eq!(commits.len(), MAX_COMMITS);
    for commit in commits {
        tree = tree.apply(&commit.changes).unwrap();
    }
    assert_eq!(tree, end);
}

#[derive(Debug, Clone)]
enum Step {
    Deploy(char),
    Advance(char),
    Hold(Channel),
    Release(Channel),
    Tamper,
    Repair,
}

fn any_step() -> impl Strategy<Value = Step> {
    let digit = prop::sample::select(vec!['1', '2', '3', 'a', 'b', 'c']);
    let channel = prop::sample::select(vec![Channel::Image, Channel::Infra]);
    prop_oneof![
        3 => digit.clone().prop_map(Step::Deploy),
        3 => digit.prop_map(Step::Advance),
        1 => channel.clone().prop_map(Step::Hold),
        2 => channel.prop_map(Step::Release),
        1 => Just(Step::Tamper),
        2 => Just(Step::Repair),
    ]
}

proptest! {
    #[test]
    fn invariant_2_at_every_commit_of_any_history_all_bindings_agree(steps in prop::collection::vec(any_step(), 0..14)) {
        let (app, prod) = (app(), name("prod"));
        let mut tree = start();
        for step in steps {
            let plan = |tree: &Tree| match &step {
                Step::Deploy(digit) => deploy(tree, "prod", *digit),
                Step::Advance(digit) => advance(tree, *digit),
                Step::Hold(channel) => set_hold(tree, &app, &prod, *channel, &hold(None)),
                Step::Release(channel) => release_hold(tree, &app, &prod, *channel),
                Step::Repair => repair(tree, &app, &prod),
                Step::Tamper => Ok(None),
            };
            let patch = path("apps/citation/prod/patch.yaml");
            if matches!(step, Step::Tamper) && tree.read(&patch).unwrap().is_some() {
                tree = with(&tree, patch.as_str(), &PATCH.replace("__CITATION_IMAGE__", "tampered"));
                continue;
            }
            let Ok(Some(planned)) = plan(&tree) else { continue };
            tree = tree.apply(&planned.changes).unwrap();
            prop_assert_eq!(plan(&tree), Ok(None), "idempotent");
            let moved = matches!(step, Step::Deploy(_) | Step::Advance(_) | Step::Repair);
            if moved {
                let bindings = observe(&tree, &app).remove(0).bindings;
                prop_assert!(matches!(bindings, Bindings::Agree | Bindings::AwaitOverlay), "{:?}", bindings);
            }
        }
    }
}
