use fabrique_core::app::{DeployedImage, DeployedInfra, OverlaySource};
use fabrique_core::id::{Digest, ImageRepository, RepoName, Revision};
use fabrique_core::time::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::head::{Bindings, observe};
use crate::overlay::OverlayFiles;
use crate::plan::{self, Plan, advance_infra, deploy_image};
use crate::registration::{Registrations, Rules};
use crate::tree::Entry;

const NOW: Timestamp = Timestamp(1_785_000_000_000);
const PROD: &str = "apps/citation-eu/prod";

const APP: &str = "
apiVersion: fabrique/v1
kind: App
metadata: { name: citation-eu }
spec:
  source: { repo: atlas/atlas }
  image: registry:80/citation
  environments:
    - name: prod
      infra: { from: head, repo: atlas/atlas, path: deploy/prod }
";
const KUSTOMIZATION: &str = "images:\r\n- name: registry:80/citation # __CITATION_EU_IMAGE__ is in the patch\r\n  digest: __CITATION_EU_IMAGE_DIGEST__\r\n";
const PATCH: &str = "\
kind: Service
metadata: { name: citation }
---
kind: Deployment
metadata: { name: citation }
spec:
  template:
    spec:
      containers:
      - name: grpc
        env:
        - { name: OTHER, value: \"1\" }
        - { name: DAGSTER_CURRENT_IMAGE, value: '__CITATION_EU_IMAGE__' }
";
const BASE: &str = "kind: Deployment\nmetadata: { name: citation }\n";

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

fn prod() -> EnvironmentName {
    EnvironmentName::parse("prod").unwrap()
}

fn app_of(text: &str) -> App {
    let tree: Tree =
        [(path("apps/citation-eu/app.yaml"), Entry::regular(text.to_owned()))].into_iter().collect();
    let loaded = Registrations::load(&tree, &Rules { registries: vec!["registry:80".to_owned()] });
    assert_eq!(loaded.findings, []);
    loaded.apps.into_values().next().unwrap()
}

fn app() -> App {
    app_of(APP)
}

/// The app with these bindings of its own.
fn app_with(bindings: &[&str]) -> App {
    app_of(&format!("{APP}      bindings:\n        - {}\n", bindings.join("\n        - ")))
}

fn revision(digit: char) -> Revision {
    Revision::parse(&digit.to_string().repeat(40)).unwrap()
}

fn digest(digit: char) -> Digest {
    Digest::parse(&format!("sha256:{}", digit.to_string().repeat(64))).unwrap()
}

fn overlay(files: &[(&str, &str)]) -> OverlayFiles {
    OverlayFiles::new(files.iter().map(|(p, text)| (path(p), Entry::regular(text.to_string())))).unwrap()
}

fn whole() -> OverlayFiles {
    overlay(&[
        ("kustomization.yaml", KUSTOMIZATION),
        ("patch.yaml", PATCH),
        ("outside/deploy/base/d.yaml", BASE),
    ])
}

fn deploy(tree: &Tree, app: &App, digit: char) -> Plan {
    let image = DeployedImage {
        repository: ImageRepository::parse("registry:80/citation").unwrap(),
        digest: digest(digit),
        revision: revision(digit),
        version: None,
        build: None,
    };
    deploy_image(tree, app, &prod(), &image, None, NOW)
}

fn advance(tree: &Tree, app: &App, files: &OverlayFiles, digit: char) -> Plan {
    let overlay = OverlaySource { repo: RepoName::parse("atlas/atlas").unwrap(), path: path("deploy/prod") };
    advance_infra(tree, app, &prod(), files, &DeployedInfra { overlay, revision: revision(digit) }, NOW)
}

fn applied(tree: &Tree, plan: Plan) -> Tree {
    tree.apply(&plan.unwrap().unwrap().changes).unwrap()
}

fn deployed(app: &App) -> Tree {
    applied(&Tree::default(), deploy(&Tree::default(), app, 'a'))
}

fn running() -> Tree {
    applied(&deployed(&app()), advance(&deployed(&app()), &app(), &whole(), 'b'))
}

fn text(tree: &Tree, file: &str) -> String {
    String::from_utf8(tree.read(&path(&format!("{PROD}/{file}"))).unwrap().unwrap().to_vec()).unwrap()
}

fn with(tree: &Tree, file: &str, text: &str) -> Tree {
    let changed = (path(&format!("{PROD}/{file}")), Entry::regular(text.to_owned()));
    let others = tree.iter().map(|(p, e)| (p.clone(), e.clone())).filter(|(p, _)| *p != changed.0);
    others.chain([changed.clone()]).collect()
}

/// What an advance to this overlay is refused with; nothing else comes of it.
fn refused(app: &App, files: &[(&str, &str)]) -> String {
    advance(&deployed(app), app, &overlay(files), 'b').unwrap_err().to_string()
}

#[test]
fn both_placeholders_are_filled_in_one_commit_and_their_places_are_kept() {
    let planned = advance(&deployed(&app()), &app(), &whole(), 'b').unwrap().unwrap();
    let tree = deployed(&app()).apply(&planned.changes).unwrap();
    let expected = |text: &str| {
        let filled =
            text.replace("digest: __CITATION_EU_IMAGE_DIGEST__", &format!("digest: {}", digest('a')));
        filled.replace("'__CITATION_EU_IMAGE__'", &format!("'registry:80/citation@{}'", digest('a')))
    };
    assert_eq!(text(&tree, "kustomization.yaml"), expected(KUSTOMIZATION));
    assert_eq!(text(&tree, "patch.yaml"), expected(PATCH));
    assert_eq!(text(&tree, "outside/deploy/base/d.yaml"), BASE);
    insta::assert_snapshot!(text(&tree, FILE_NAME), @r#"
    # Where the overlay's placeholders stood. Written with each copy of the overlay; composition.yaml fills them.
    apiVersion: fabrique/v1
    kind: Placeholders
    metadata: { app: citation-eu, environment: prod }
    bindings:
      - { channel: image, file: kustomization.yaml, path: "images[name=registry:80/citation].digest", form: digest }
      - { channel: image, file: patch.yaml, path: "(kind=Deployment,metadata.name=citation)spec.template.spec.containers[name=grpc].env[name=DAGSTER_CURRENT_IMAGE].value", form: reference }
    "#);
    assert_eq!(observe(&tree, &app())[0].bindings, Bindings::Agree);
}

#[test]
fn a_later_image_is_filled_where_the_placeholders_were() {
    let planned = deploy(&running(), &app(), 'c').unwrap().unwrap();
    let files: Vec<&str> = planned.changes.iter().map(|(p, _)| p.as_str()).collect();
    assert_eq!(
        files,
        ["composition.yaml", "kustomization.yaml", "patch.yaml"].map(|f| format!("{PROD}/{f}"))
    );
    let after = running().apply(&planned.changes).unwrap();
    for file in ["kustomization.yaml", "patch.yaml"] {
        let before = text(&running(), file);
        assert_eq!(text(&after, file), before.replace(digest('a').as_str(), digest('c').as_str()));
    }
    assert_eq!(deploy(&after, &app(), 'c'), Ok(None));
    assert_eq!(advance(&after, &app(), &whole(), 'b'), Ok(None), "a refill from the same digest");
}

#[test]
fn an_advance_follows_placeholders_that_moved() {
    let moved = PATCH.replace("name: grpc", "name: server");
    let files = [("Kustomization", KUSTOMIZATION), ("sub/patch.yaml", moved.as_str())];
    let after = applied(&running(), advance(&running(), &app(), &overlay(&files), 'd'));
    assert!(text(&after, "Kustomization").contains(digest('a').as_str()));
    assert!(text(&after, FILE_NAME).contains("sub/patch.yaml"));
    let after = applied(&after, deploy(&after, &app(), 'c'));
    assert!(text(&after, "sub/patch.yaml").contains(&format!("citation@{}", digest('c'))));
}

#[test]
fn a_person_who_changes_a_filled_place_is_told_and_repair_sets_it_right() {
    let forged =
        with(&running(), "patch.yaml", &text(&running(), "patch.yaml").replace("@sha256:aa", "@sha256:ba"));
    insta::assert_snapshot!(deploy(&forged, &app(), 'c').unwrap_err());
    assert!(advance(&forged, &app(), &whole(), 'd').is_err());
    let repaired = plan::repair(&forged, &app(), &prod()).unwrap().unwrap();
    assert_eq!(forged.apply(&repaired.changes).unwrap(), running());
    let added = text(&running(), "patch.yaml").replace("env:", "env:\n        - { name: FIRST, value: x }");
    let after = applied(
        &with(&running(), "patch.yaml", &added),
        deploy(&with(&running(), "patch.yaml", &added), &app(), 'c'),
    );
    assert!(text(&after, "patch.yaml").contains(&format!("'registry:80/citation@{}'", digest('c'))));
}

#[test]
fn every_way_to_lose_a_placeholder_refuses_the_advance_where_its_author_finds_it() {
    let patch = |from: &str, to: &str| {
        assert!(PATCH.contains(from));
        refused(&app(), &[("kustomization.yaml", KUSTOMIZATION), ("patch.yaml", &PATCH.replace(from, to))])
    };
    let token = "'__CITATION_EU_IMAGE__'";
    let all = [
        refused(&app(), &[("kustomization.yaml", "resources: []\n")]),
        refused(&app(), &[("kustomization.yaml", KUSTOMIZATION)]),
        patch(token, "registry:80/citation"),
        patch(token, "x-__CITATION_EU_IMAGE__"),
        patch(token, "__CITATION_EU_IMAGE_DIGEST__"),
        patch("DAGSTER_CURRENT_IMAGE", "OTHER_IMAGE"),
        patch("name: OTHER, value: \"1\"", "name: DAGSTER_CURRENT_IMAGE, value: __CITATION_EU_IMAGE__"),
        patch(token, "&image __CITATION_EU_IMAGE__"),
        patch("metadata: { name: citation }\nspec", "metadata: {\nspec"),
        refused(
            &app(),
            &[
                ("kustomization.yaml", &KUSTOMIZATION.replace("/citation ", "/citation-eu ")),
                ("patch.yaml", PATCH),
            ],
        ),
        refused(
            &app(),
            &[
                ("kustomization.yaml", KUSTOMIZATION),
                ("patch.yaml", PATCH),
                ("outside/deploy/base/run.sh", "#!/bin/sh\necho __CITATION_EU_IMAGE__\n"),
            ],
        ),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn bindings_of_the_registration_come_first_and_may_stand_in() {
    let reference = "{ channel: image, file: job.yaml, path: image, form: reference }";
    let digest_binding =
        "{ channel: image, file: kustomization.yaml, path: \"images[0].digest\", form: digest }";
    let label = "{ channel: image, file: job.yaml, path: revision, form: revision }";
    let job = ("job.yaml", "image: __CITATION_EU_IMAGE__\nrevision: none\n");
    let kustomization = ("kustomization.yaml", KUSTOMIZATION);
    let kept = |app: &App, files: &[(&str, &str)]| {
        let after = applied(&deployed(app), advance(&deployed(app), app, &overlay(files), 'b'));
        assert_eq!(observe(&after, app)[0].bindings, Bindings::Agree);
        let (app, prod) = (&app.name, prod());
        load(&after, app, &prod).unwrap().len()
    };
    assert_eq!(
        kept(&app_with(&[digest_binding, reference]), &[kustomization, job]),
        0,
        "as without placeholders"
    );
    assert_eq!(kept(&app_with(&[reference]), &[kustomization, job]), 1, "one stands in for one");
    let literal = ("kustomization.yaml", "images: [{ name: a, digest: x }]\n");
    assert_eq!(kept(&app_with(&[digest_binding]), &[literal]), 0, "no placeholder is asked for");
    let alone = refused(&app_with(&[label]), &[kustomization, ("job.yaml", "revision: none\n")]);
    assert!(alone.contains("__CITATION_EU_IMAGE__ is missing"), "{alone}");
    let whole = [kustomization, ("patch.yaml", PATCH), ("job.yaml", "revision: none\n")];
    assert_eq!(kept(&app_with(&[label]), &whole), 2);
}

#[test]
fn the_contract_names_the_placeholders() {
    let contract = "
apiVersion: fabrique/v1
kind: Contract
version: 1
accepts: [1]
endpoints: { gitea: 'http://gitea', argocd: 'http://argocd', registry: 'registry:80', nats: 'nats://nats' }
environments: {}
placeholders: [{ name: __<APP>_IMAGE__, form: reference, place: { env: IMAGE } }]
";
    let under = |contract: &str| {
        let own = (path("contract.yaml"), Entry::regular(contract.to_owned()));
        let tree = deployed(&app());
        let tree: Tree = tree.iter().map(|(p, e)| (p.clone(), e.clone())).chain([own]).collect();
        let patch = PATCH.replace("DAGSTER_CURRENT_IMAGE", "IMAGE");
        let files =
            overlay(&[("kustomization.yaml", "patches: [{ path: patch.yaml }]\n"), ("patch.yaml", &patch)]);
        advance(&tree, &app(), &files, 'b').map(|planned| applied(&tree, Ok(planned)))
    };
    let after = under(contract).unwrap();
    assert!(text(&after, "patch.yaml").contains(digest('a').as_str()));
    insta::assert_snapshot!(under("kind: Contract\n").unwrap_err());
}

#[test]
fn places_that_were_lost_or_spoilt_stop_the_image_and_not_the_next_copy() {
    let lost: Tree = running()
        .iter()
        .map(|(p, e)| (p.clone(), e.clone()))
        .filter(|(p, _)| !p.as_str().ends_with(FILE_NAME))
        .collect();
    insta::assert_snapshot!(deploy(&lost, &app(), 'c').unwrap_err());
    assert!(matches!(observe(&lost, &app())[0].bindings, Bindings::Broken(_)));
    assert_eq!(applied(&lost, advance(&lost, &app(), &whole(), 'b')), running());
    let spoilt =
        with(&running(), FILE_NAME, &text(&running(), FILE_NAME).replace("form: digest", "form: digst"));
    insta::assert_snapshot!(deploy(&spoilt, &app(), 'c').unwrap_err());
}

fn any_scalar() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "__CITATION_EU_IMAGE__",
        "__CITATION_EU_IMAGE_DIGEST__",
        "__CITATION_IMAGE__",
        "A__CITATION_EU_IMAGE__",
        "__CITATION_EU_IMAGE__S",
        "__CITATION_EU_IMAGE____CITATION_EU_IMAGE__",
    ]);
    prop_oneof![
        4 => token.clone().prop_map(str::to_owned),
        1 => ("[a-z]{1,2}[ -/:@]?", token).prop_map(|(before, token)| format!("'{}{token}'", before.replace('\'', ""))),
        1 => "[a-z]{1,4}",
    ]
}

/// What is left of an overlay when its placeholders, and only they, are filled.
fn by_hand(text: &str) -> String {
    let reference = format!("registry:80/citation@{}", digest('a'));
    text.replace("<digest>", digest('a').as_str()).replace("<reference>", &reference)
}

proptest! {
    #[test]
    fn filling_is_all_or_nothing_and_of_whole_words_only(
        digest_value in any_scalar(),
        image in any_scalar(),
        other in any_scalar(),
        note in any_scalar(),
    ) {
        let kustomization = format!("images: [{{ name: registry:80/citation, digest: {digest_value} }}] # {note}\n");
        let patch = format!("env:\n- {{ name: DAGSTER_CURRENT_IMAGE, value: {image} }}\n- {{ name: O, value: {other} }}\n");
        let files = overlay(&[("kustomization.yaml", &kustomization), ("patch.yaml", &patch)]);
        let well = digest_value == "__CITATION_EU_IMAGE_DIGEST__"
            && image == "__CITATION_EU_IMAGE__"
            && !other.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| {
                ["__CITATION_EU_IMAGE__", "__CITATION_EU_IMAGE_DIGEST__"].contains(&word)
            });
        let before = deployed(&app());
        match advance(&before, &app(), &files, 'b') {
            Ok(planned) => {
                prop_assert!(well, "{}{}", kustomization, patch);
                let after = applied(&before, Ok(planned));
                let wanted = format!("images: [{{ name: registry:80/citation, digest: <digest> }}] # {note}\n");
                prop_assert_eq!(text(&after, "kustomization.yaml"), by_hand(&wanted));
                let wanted = format!("env:\n- {{ name: DAGSTER_CURRENT_IMAGE, value: <reference> }}\n- {{ name: O, value: {other} }}\n");
                prop_assert_eq!(text(&after, "patch.yaml"), by_hand(&wanted));
                prop_assert_eq!(advance(&after, &app(), &files, 'b'), Ok(None));
            }
            Err(_) => prop_assert!(!well, "{}{}", kustomization, patch),
        }
    }

    #[test]
    fn refills_in_any_order_are_those_of_the_newest_of_each(digits in prop::collection::vec((any::<bool>(), "[a-e]"), 0..8)) {
        let (mut tree, mut image) = (running(), 'a');
        for (is_image, digit) in digits {
            let digit = digit.chars().next().unwrap();
            let plan = |tree: &Tree| match is_image {
                true => deploy(tree, &app(), digit),
                false => advance(tree, &app(), &whole(), digit),
            };
            image = if is_image { digit } else { image };
            if let Some(planned) = plan(&tree).unwrap() {
                tree = tree.apply(&planned.changes).unwrap();
            }
            prop_assert_eq!(plan(&tree), Ok(None), "idempotent");
            let filled = KUSTOMIZATION.replace("digest: __CITATION_EU_IMAGE_DIGEST__", &format!("digest: {}", digest(image)));
            prop_assert_eq!(text(&tree, "kustomization.yaml"), filled);
            prop_assert!(text(&tree, "patch.yaml").contains(digest(image).as_str()));
        }
    }

    #[test]
    fn no_bytes_make_an_advance_panic_or_half_fill(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        line in "[ -~\\n]{0,60}",
        name in prop::sample::select(vec!["a.yaml", "b.env", "kustomization.yml", "sub/Kustomization", FILE_NAME]),
    ) {
        let mut hostile = line.into_bytes();
        hostile.extend_from_slice(b" __CITATION_EU_IMAGE__ ");
        hostile.extend_from_slice(&bytes);
        let files = [("kustomization.yaml", KUSTOMIZATION.as_bytes()), ("patch.yaml", PATCH.as_bytes()), (name, &hostile)];
        let files = files.map(|(p, bytes)| (path(p), Entry::regular(bytes.to_vec())));
        let Ok(files) = OverlayFiles::new(files) else { return Ok(()) };
        let before = deployed(&app());
        if let Ok(Some(planned)) = advance(&before, &app(), &files, 'b') {
            let after = before.apply(&planned.changes).unwrap();
            prop_assert_eq!(&observe(&after, &app())[0].bindings, &Bindings::Agree);
            prop_assert!(text(&after, "patch.yaml").contains(digest('a').as_str()));
        }
        // The same bytes where the places are kept.
        let spoilt: Tree = running()
            .iter()
            .map(|(p, e)| (p.clone(), e.clone()))
            .chain([(path(&format!("{PROD}/{FILE_NAME}")), Entry::regular(hostile))])
            .collect();
        prop_assert!(load(&spoilt, &app().name, &prod()).is_err());
    }
}
