use fabrique_core::id::RepoName;
use fabrique_yaml::{Node, Yaml};
use proptest::prelude::*;

use super::*;
use crate::changes::Changes;
use crate::message::{CommitMessage, Trailers};
use crate::registration::{Rules, SourceForm};
use crate::tree::{Entry, FileKind};

mod migrations;
mod provided;
mod refusals;
mod root;
mod standing;

const DIGEST: &str = "sha256:2eee2eee2eee2eee2eee2eee2eee2eee2eee2eee2eee2eee2eee2eee2eee2eee";
const REVISION: &str = "1b1ddb30aa2f1b1ddb30aa2f1b1ddb30aa2f1b1d";
const PATCH: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: { name: citation }\nspec:\n  template:\n    spec:\n      \
                     containers:\n        - name: grpc\n          env:\n            - name: DAGSTER_CURRENT_IMAGE\n              \
                     value: registry:80/citation@sha256:0\n";

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

fn app(text: &str) -> AppName {
    AppName::parse(text).unwrap()
}

fn settings() -> Settings {
    let destination = |environment: &str, server: &str, namespaces: &[&str]| Destination {
        environment: EnvironmentName::parse(environment).unwrap(),
        server: server.to_owned(),
        namespaces: namespaces.iter().map(|namespace| (*namespace).to_owned()).collect(),
    };
    Settings {
        gitea: "http://gitea-http.gitea:3000/".to_owned(),
        repo: RepoName::parse("cluster/apps").unwrap(),
        branch: "main".to_owned(),
        argocd_namespace: "argocd".to_owned(),
        root: "root".to_owned(),
        project: "fabrique-apps".to_owned(),
        source: SourceForm::Copy,
        destinations: vec![
            destination("prod", "https://kubernetes.default.svc", &["apps", "dagster"]),
            destination("bench", "https://bench.example.com:6443", &["apps"]),
        ],
        runner: None,
    }
}

/// The registration of an app that is built from `atlas/atlas`; `more` are more lines of its environment `prod`.
fn registration(name: &str, more: &str) -> (String, String) {
    let text = format!(
        "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {name} }}\nspec:\n  source: {{ repo: atlas/atlas }}\n  \
         image: registry:80/{name}\n  environments:\n    - name: prod\n{more}"
    );
    (format!("apps/{name}/app.yaml"), text)
}

fn composition(name: &str, infra: &str) -> (String, String) {
    let text = format!(
        "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: {name}, environment: prod }}\n\
         image: {{ repository: registry:80/{name}, digest: \"{DIGEST}\", revision: {REVISION} }}\n{infra}"
    );
    (format!("apps/{name}/prod/composition.yaml"), text)
}

/// An app whose manifests people keep in `cluster/apps`.
fn plain(name: &str) -> Vec<(String, String)> {
    let manifest = (format!("apps/{name}/prod/deployment.yaml"), "kind: Deployment\n".to_owned());
    vec![registration(name, ""), composition(name, ""), manifest]
}

/// An app whose overlay is copied, with what it reaches outside.
fn overlaid(name: &str, more: &str) -> Vec<(String, String)> {
    let bindings = format!(
        "      infra: {{ from: head, repo: atlas/atlas, path: deploy/prod }}\n{more}      bindings:\n        \
         - {{ channel: image, file: kustomization.yaml, path: \"images[name=registry:80/{name}].digest\", form: digest }}\n        \
         - {{ channel: image, file: patch.yaml, path: \"spec.template.spec.containers[0].env[name=DAGSTER_CURRENT_IMAGE].value\", form: reference }}\n"
    );
    let infra = format!("infra: {{ repo: atlas/atlas, path: deploy/prod, revision: {REVISION} }}\n");
    let kustomization = format!("images:\n- name: registry:80/{name}\n  digest: {DIGEST}\n");
    vec![
        registration(name, &bindings),
        composition(name, &infra),
        (format!("apps/{name}/prod/kustomization.yaml"), kustomization),
        (format!("apps/{name}/prod/patch.yaml"), PATCH.to_owned()),
        (format!("apps/{name}/prod/outside/deploy/base/deployment.yaml"), "kind: Deployment\n".to_owned()),
    ]
}

fn tree(files: impl IntoIterator<Item = (String, String)>) -> Tree {
    files.into_iter().map(|(file, text)| (path(&file), Entry::regular(text))).collect()
}

fn with(tree: &Tree, files: &[(&str, &str)]) -> Tree {
    let new = files.iter().map(|(file, text)| (path(file), Entry::regular((*text).to_owned())));
    tree.iter().map(|(path, entry)| (path.clone(), entry.clone())).chain(new).collect()
}

fn load(tree: &Tree) -> Registrations {
    let loaded = Registrations::load(tree, &Rules { registries: vec!["registry:80".to_owned()] });
    assert_eq!(loaded.findings, []);
    loaded
}

fn needs(edges: &[(&str, &[&str])]) -> BTreeMap<AppName, Needs> {
    let needs =
        |apps: &[&str]| Needs { apps: apps.iter().map(|name| app(name)).collect(), ..Needs::default() };
    edges.iter().map(|(name, apps)| (app(name), needs(apps))).collect()
}

fn rendered(tree: &Tree, needs: &BTreeMap<AppName, Needs>) -> Rendering {
    render(tree, &load(tree), needs, &settings())
}

/// The tree with everything that a rendering writes.
fn written(tree: &Tree, rendering: &Rendering) -> Tree {
    let files: Vec<(&str, &str)> =
        rendering.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    with(tree, &files)
}

fn application<'r>(rendering: &'r Rendering, name: &str) -> &'r str {
    let file = path(&format!("applications/{name}.yaml"));
    rendering.files.get(&file).map(String::as_str).unwrap_or_else(|| panic!("no {file}: {rendering:#?}"))
}

fn withheld(rendering: &Rendering) -> Vec<(&str, String)> {
    rendering.withheld.iter().map(|held| (held.file.as_str(), held.why.to_string())).collect()
}

fn told(rendering: &Rendering) -> String {
    rendering.findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_copy_of_an_overlay_is_what_an_application_reads() {
    let tree =
        tree([plain("base"), overlaid("citation", "      application: { namespace: dagster }\n")].concat());
    let rendering = rendered(&tree, &needs(&[("citation", &["base"])]));
    assert_eq!((told(&rendering).as_str(), rendering.withheld.len()), ("", 0));
    insta::assert_snapshot!("copy", application(&rendering, "citation-prod"));
}

#[test]
fn an_application_reads_the_apps_repository_where_that_is_chosen() {
    let tree = tree(overlaid("citation", "      application: { source: repository }\n"));
    let rendering = rendered(&tree, &BTreeMap::new());
    assert_eq!((told(&rendering).as_str(), rendering.withheld.len()), ("", 0));
    insta::assert_snapshot!("repository", application(&rendering, "citation-prod"));
}

#[test]
fn plain_manifests_are_read_without_the_composition() {
    let rendering = rendered(&tree(plain("base")), &BTreeMap::new());
    insta::assert_snapshot!("plain", application(&rendering, "base-prod"));
}

#[test]
fn the_root_and_both_projects_are_rendered_from_the_settings() {
    let tree = tree(overlaid("citation", "      application: { source: repository }\n"));
    let rendering = rendered(&tree, &BTreeMap::new());
    insta::assert_snapshot!("root", rendering.files[&path("root.yaml")]);
}

#[test]
fn the_form_of_the_configuration_is_that_of_all_who_do_not_choose() {
    let tree = tree(
        [overlaid("a", ""), overlaid("b", "      application: { source: copy }\n"), plain("c")].concat(),
    );
    let settings = Settings { source: SourceForm::Repository, ..settings() };
    let rendering = render(&tree, &load(&tree), &BTreeMap::new(), &settings);
    let reads =
        |name: &str| application(&rendering, name).lines().find(|line| line.contains("repoURL")).unwrap();
    assert!(reads("a-prod").ends_with("atlas/atlas.git"));
    assert!(reads("b-prod").ends_with("cluster/apps.git"));
    assert!(reads("c-prod").ends_with("cluster/apps.git"), "there is nothing but what people keep");
}

#[test]
fn rendering_what_is_rendered_changes_nothing() {
    let tree = tree([plain("base"), overlaid("citation", "")].concat());
    let needs = needs(&[("citation", &["base"])]);
    let first = rendered(&tree, &needs);
    assert_eq!(first.differing(&tree).count(), 3);
    let tree = written(&tree, &first);
    assert_eq!(rendered(&tree, &needs).differing(&tree).count(), 0);
    // Without a word about the needs, the rendered file tells them.
    let again = rendered(&tree, &BTreeMap::new());
    assert_eq!(again.files, first.files);
}

#[test]
fn nothing_is_rendered_before_something_is_deployed() {
    let mut files = overlaid("citation", "");
    files.truncate(2);
    let rendering = rendered(&tree(files), &BTreeMap::new());
    let nothing = Withheld { file: path("applications/citation-prod.yaml"), why: Reason::Nothing };
    assert_eq!(rendering.withheld, [nothing]);
    let rendering = rendered(&tree([registration("citation", "")]), &BTreeMap::new());
    assert_eq!(rendering.withheld.len(), 1);
    assert_eq!(rendering.files.keys().map(RelPath::as_str).collect::<Vec<_>>(), ["root.yaml"]);
}

#[test]
fn an_app_whose_dependency_is_absent_is_not_created_and_it_is_said_which() {
    let before = tree(plain("citation"));
    let needs = needs(&[("citation", &["base"])]);
    let rendering = rendered(&before, &needs);
    let why = "base, which it depends on, is not deployed: there is no applications/base-prod.yaml";
    assert_eq!(withheld(&rendering), [("applications/citation-prod.yaml", why.to_owned())]);

    let by_hand = with(
        &before,
        &[("applications/base-prod.yaml", "kind: Application\nmetadata: { name: base-prod }\n")],
    );
    assert_eq!(rendered(&by_hand, &needs).withheld, []);
    let both = tree([plain("base"), plain("citation")].concat());
    assert_eq!(rendered(&both, &needs).withheld, []);
}

#[test]
fn an_app_that_waits_is_not_created_and_one_that_is_there_stays_as_it_is() {
    let tree = tree([plain("base"), plain("citation")].concat());
    let all = rendered(&tree, &needs(&[("citation", &["base"])]));
    let waits = Needs { waits: vec!["its declaration says ready: false".to_owned()], ..Needs::default() };
    let waiting = BTreeMap::from([(app("base"), waits)]);

    let mut not_yet = waiting.clone();
    not_yet.extend(needs(&[("citation", &["base"])]));
    let rendering = rendered(&tree, &not_yet);
    let files: Vec<&str> = withheld(&rendering).into_iter().map(|(file, _)| file).collect();
    assert_eq!(
        files,
        ["applications/base-prod.yaml", "applications/citation-prod.yaml"],
        "and what comes after it"
    );

    let there = written(&tree, &all);
    let rendering = rendered(&there, &waiting);
    let why = "its declaration says ready: false".to_owned();
    assert_eq!(withheld(&rendering), [("applications/base-prod.yaml", why)]);
    assert!(rendering.stale.is_empty() && rendering.differing(&there).count() == 0);
}

#[test]
fn a_circle_is_refused_by_name_and_so_is_what_comes_after_it() {
    let tree = tree(["a", "b", "c", "d", "e"].into_iter().flat_map(plain));
    let needs = needs(&[("a", &["c"]), ("b", &["a"]), ("c", &["b"]), ("d", &["a"])]);
    let rendering = rendered(&tree, &needs);
    assert!(
        told(&rendering).contains("apps/a/app.yaml: dependencies lead in a circle: a → c → b → a"),
        "{}",
        told(&rendering)
    );
    assert_eq!(rendering.findings.len(), 1);
    assert_eq!(rendering.withheld.len(), 4);
    application(&rendering, "e-prod");
}

#[test]
fn what_carries_the_root_is_never_below_it() {
    for name in RESERVED {
        let rendering = rendered(&tree(plain(name)), &BTreeMap::new());
        assert!(
            told(&rendering).contains(&format!("{name} carries the root Application")),
            "{}",
            told(&rendering)
        );
        assert_eq!(rendering.files.len(), 1, "only the root");
    }
    let refuses = |namespace: &str| Settings::refuses("cd", namespace);
    for namespace in ["cd", "argocd", "gitea", "fabrique-builds", "kube-system", "-x", "X", ""] {
        assert!(refuses(namespace).is_some(), "{namespace}");
    }
    assert_eq!(refuses("apps"), None);
}

#[test]
fn an_environment_is_deployed_only_where_the_configuration_says() {
    let elsewhere = registration("a", "      application: { namespace: kube-system }\n");
    let rendering = rendered(&tree([elsewhere]), &BTreeMap::new());
    assert!(
        told(&rendering).contains("kube-system is not one of prod (apps, dagster)"),
        "{}",
        told(&rendering)
    );
    let (file, text) = registration("a", "");
    let rendering = rendered(&tree([(file, text.replace("name: prod", "name: test"))]), &BTreeMap::new());
    let elsewhere = Withheld { file: path("applications/a-test.yaml"), why: Reason::Elsewhere };
    assert_eq!((rendering.withheld, rendering.files.len()), (vec![elsewhere], 1));
}

#[test]
fn what_people_wrote_is_neither_overwritten_nor_removed() {
    let manual = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: { name: citation-prod }\n";
    let tree = with(
        &tree(plain("citation")),
        &[
            ("applications/citation-prod.yaml", manual),
            ("applications/other.yaml", manual),
            ("root.yaml", manual),
        ],
    );
    let rendering = rendered(&tree, &BTreeMap::new());
    assert_eq!((rendering.files.len(), rendering.stale.len(), told(&rendering).as_str()), (0, 0, ""));
    let files: Vec<&str> = withheld(&rendering).into_iter().map(|(file, _)| file).collect();
    assert_eq!(files, ["applications/citation-prod.yaml", "root.yaml"]);
}

#[test]
fn what_people_wrote_there_is_judged_where_it_could_break_the_whole() {
    let foreign = |name: &str, kind: &str, url: &str| {
        format!("kind: {kind}\nmetadata: {{ name: {name} }}\nspec:\n  source:\n    repoURL: {url}\n")
    };
    let tree = tree([
        ("applications/a.yaml".to_owned(), foreign("a", "Application", "https://github.com/x/y.git")),
        (
            "applications/b.yaml".to_owned(),
            foreign("gitea", "Application", "http://gitea-http.gitea:3000/x/y"),
        ),
        (
            "applications/c.yaml".to_owned(),
            foreign("c", "ApplicationSet", "http://gitea-http.gitea:3000/x/y.git"),
        ),
        ("applications/d.yaml".to_owned(), "{".to_owned()),
        (
            "applications/e.yaml".to_owned(),
            foreign("e", "Application", "http://gitea-http.gitea:3000.example.com/x/y"),
        ),
        ("applications/README.md".to_owned(), "{".to_owned()),
    ]);
    insta::assert_snapshot!(told(&rendered(&tree, &BTreeMap::new())));
}

#[test]
fn a_rendered_file_that_nothing_registers_any_more_is_told_and_one_that_cannot_be_read_is_registered() {
    let all = tree([plain("a"), plain("b")].concat());
    let all = written(&all, &rendered(&all, &BTreeMap::new()));
    let kept = |gone: &str| -> Tree {
        all.iter().filter(|(path, _)| path.as_str() != gone).map(|(p, e)| (p.clone(), e.clone())).collect()
    };
    let rendering = rendered(&kept("apps/b/app.yaml"), &BTreeMap::new());
    assert_eq!(rendering.stale, [path("applications/b-prod.yaml")]);
    let broken = with(&all, &[("apps/b/app.yaml", "nonsense: true\n")]);
    let registrations = Registrations::load(&broken, &Rules { registries: vec!["registry:80".to_owned()] });
    assert!(render(&broken, &registrations, &BTreeMap::new(), &settings()).stale.is_empty());
    let (file, text) = registration("b", "");
    let moved = with(&all, &[(&file, &text.replace("name: prod", "name: bench"))]);
    assert_eq!(rendered(&moved, &BTreeMap::new()).stale, [path("applications/b-prod.yaml")]);
}

#[test]
fn a_binding_that_kustomize_cannot_say_is_refused_with_its_place() {
    for (patch, told_of) in [
        (PATCH.replace("name: grpc", "image: grpc"), "an item of a list has no name"),
        (PATCH.replace("metadata: { name: citation }", "metadata: {}"), "no apiVersion, kind or name"),
        ("kind: X\n".to_owned(), "nothing at spec.template"),
    ] {
        let tree = tree(overlaid("citation", "      application: { source: repository }\n"));
        let tree = with(&tree, &[("apps/citation/prod/patch.yaml", &patch)]);
        let rendering = rendered(&tree, &BTreeMap::new());
        assert!(told(&rendering).contains(told_of), "{}", told(&rendering));
        assert_eq!(rendering.files.len(), 1, "only the root");
    }
}

#[test]
fn a_digest_below_the_kustomization_of_the_overlay_cannot_be_put_in() {
    let text = format!(
        "metadata: {{ name: x }}\nkind: Kustomization\napiVersion: v1\nimages:\n- name: registry:80/citation\n  digest: {DIGEST}\n"
    );
    for file in ["sub/kustomization.yaml", "outside/deploy/base/Kustomization", "outside/kustomization.yml"] {
        let whole = overlaid("citation", "      application: { source: repository }\n").into_iter();
        let bound = whole
            .map(|(path, text)| (path, text.replace("file: kustomization.yaml", &format!("file: {file}"))));
        let tree = with(&tree(bound), &[(&format!("apps/citation/prod/{file}"), &text)]);
        let rendering = rendered(&tree, &BTreeMap::new());
        let place = format!("apps/citation/prod/{file}:1:1: images[name=registry:80/citation].digest");
        assert!(told(&rendering).starts_with(&place), "{}", told(&rendering));
        assert!(told(&rendering).contains("application.source: copy"), "{}", told(&rendering));
        assert_eq!(rendering.files.len(), 1, "only the root");
    }
}

#[test]
fn a_namespace_and_a_source_are_read_of_a_registration_and_mistakes_are_told() {
    let load = |more: &str| {
        let tree = tree([registration("a", more)]);
        let told = Registrations::load(&tree, &Rules { registries: vec!["registry:80".to_owned()] }).findings;
        told.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(load("      application: { source: copy, namespace: dagster }\n"), "");
    assert!(load("      application: { source: git }\n").contains("write one of copy, repository"));
    assert!(load("      application: { source: repository }\n").contains("nothing is read from one"));
    assert!(load("      application: { nmespace: x }\n").contains("namespace"));
}

/// A commit that deploys `name`, on a tree without its files.
fn deployment(name: &str) -> (Tree, Planned) {
    let mut files = plain(name);
    let (registration, others) = (files.remove(0), files);
    let mut changes = Changes::within(Scope::Environment(app(name), EnvironmentName::parse("prod").unwrap()));
    for (file, text) in others {
        changes.write(path(&file), text).unwrap();
    }
    let message = CommitMessage::new("Deploy", "", Trailers::of(&app(name)));
    (tree([registration]), Planned { changes, message })
}

fn changed(planned: &Planned) -> Vec<&str> {
    planned.changes.iter().map(|(path, _)| path.as_str()).collect()
}

#[test]
fn a_commit_brings_the_application_of_what_it_deploys() {
    let (bare, planned) = deployment("citation");
    let prod = EnvironmentName::parse("prod").unwrap();
    let together = along(
        planned.clone(),
        &bare,
        (&load(&bare), &Standing::of(&bare)),
        (&app("citation"), &prod),
        None,
        &settings(),
    )
    .unwrap();
    let own = ["apps/citation/prod/composition.yaml", "apps/citation/prod/deployment.yaml"];
    assert_eq!(changed(&together), [&["applications/citation-prod.yaml"], &own[..]].concat());
    // The same file as of the whole rendering, and no second time.
    let after = bare.apply(&together.changes).unwrap();
    assert_eq!(rendered(&after, &BTreeMap::new()).differing(&after).count(), 1, "the root is a person's");
    let again = along(
        planned.clone(),
        &after,
        (&load(&after), &Standing::of(&after)),
        (&app("citation"), &prod),
        None,
        &settings(),
    )
    .unwrap();
    assert_eq!(changed(&again), own);
}

#[test]
fn a_commit_that_would_create_an_app_before_what_it_needs_is_refused_and_says_which() {
    let (bare, planned) = deployment("citation");
    let prod = EnvironmentName::parse("prod").unwrap();
    let absent = needs(&[("citation", &["base"])]).remove(&app("citation"));
    let refused = along(
        planned.clone(),
        &bare,
        (&load(&bare), &Standing::of(&bare)),
        (&app("citation"), &prod),
        absent.clone(),
        &settings(),
    );
    insta::assert_snapshot!(refused.unwrap_err(), @"citation/prod: base, which it depends on, is not deployed: there is no applications/base-prod.yaml; deploy that one first, the next look goes on");
    // What is there goes on: only creation is in order.
    let there = tree(plain("citation"));
    let there = written(&there, &rendered(&there, &BTreeMap::new()));
    along(
        planned,
        &there,
        (&load(&there), &Standing::of(&there)),
        (&app("citation"), &prod),
        absent,
        &settings(),
    )
    .unwrap();
}

#[test]
fn a_commit_moves_the_waves_of_what_comes_after_and_touches_nothing_else() {
    let before = tree(["a", "b", "c"].into_iter().flat_map(plain));
    let before = written(&before, &rendered(&before, &needs(&[("c", &["b"])])));
    let (_, planned) = deployment("b");
    let prod = EnvironmentName::parse("prod").unwrap();
    let now = needs(&[("b", &["a"])]).remove(&app("b"));
    // What somebody changed of another app is not this commit's business.
    let broken = format!("{}# changed\n", application(&rendered(&before, &BTreeMap::new()), "a-prod"));
    let before = with(&before, &[("applications/a-prod.yaml", &broken)]);
    let moved = along(
        planned,
        &before,
        (&load(&before), &Standing::of(&before)),
        (&app("b"), &prod),
        now,
        &settings(),
    )
    .unwrap();
    let after = before.apply(&moved.changes).unwrap();
    let wave = |name: &str| {
        wave(
            std::str::from_utf8(after.content(&path(&format!("applications/{name}-prod.yaml"))).unwrap())
                .unwrap(),
        )
    };
    assert_eq!((wave("a"), wave("b"), wave("c")), (0, 1, 2));
    assert!(!changed(&moved).contains(&"applications/a-prod.yaml"));
}

#[test]
fn nothing_is_written_through_a_symlink() {
    let (bare, planned) = deployment("citation");
    let link = Entry { kind: FileKind::Symlink, bytes: "/etc".into() };
    let bare: Tree =
        bare.iter().map(|(p, e)| (p.clone(), e.clone())).chain([(path("applications"), link)]).collect();
    let prod = EnvironmentName::parse("prod").unwrap();
    assert!(
        along(
            planned,
            &bare,
            (&load(&bare), &Standing::of(&bare)),
            (&app("citation"), &prod),
            None,
            &settings()
        )
        .is_err()
    );
}

fn at<'n>(node: &'n Node, keys: &[&str]) -> &'n Node {
    keys.iter().fold(node, |node, key| node.entry(key).unwrap_or_else(|| panic!("no {key}")).1)
}

fn wave(text: &str) -> u32 {
    let yaml = Yaml::parse(text.as_bytes()).unwrap();
    let wave = at(&yaml.documents()[0], &["metadata", "annotations", "argocd.argoproj.io/sync-wave"]);
    wave.text().unwrap().parse().unwrap()
}

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rendering_is_a_function_and_waves_increase_along_every_graph(
        edges in proptest::collection::btree_set((0..NAMES.len(), 0..NAMES.len()), 0..14),
        overlays in proptest::collection::vec(any::<bool>(), NAMES.len()),
        own in any::<bool>(),
        order in Just((0..NAMES.len()).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let files = |name: usize| match overlays[name] {
            true => overlaid(NAMES[name], ""),
            false => plain(NAMES[name]),
        };
        let sorted = tree((0..NAMES.len()).flat_map(files));
        let shuffled = tree(order.iter().flat_map(|name| files(*name).into_iter().rev()));
        let needs: BTreeMap<AppName, Needs> = order.iter().map(|name| {
            let of = |(from, to): &(usize, usize)| (from == name).then(|| app(NAMES[*to]));
            (app(NAMES[*name]), Needs { apps: edges.iter().filter_map(of).collect(), ..Needs::default() })
        }).collect();
        let source = if own { SourceForm::Repository } else { SourceForm::Copy };
        let settings = Settings { source, ..settings() };
        let rendering = render(&sorted, &load(&sorted), &needs, &settings);
        prop_assert_eq!(&rendering, &render(&shuffled, &load(&shuffled), &needs, &settings));
        // Every app is rendered or withheld, and one without an order is in a circle that is told or behind it.
        prop_assert_eq!(rendering.files.len() + rendering.withheld.len(), NAMES.len() + 1);
        prop_assert_eq!(rendering.withheld.is_empty(), rendering.findings.is_empty());
        for (file, text) in &rendering.files {
            let yaml = Yaml::parse(text.as_bytes()).unwrap();
            for document in yaml.documents() {
                if let Some((_, source)) = at(document, &["spec"]).entry("source") {
                    prop_assert!(settings.is_inside(at(source, &["repoURL"]).text().unwrap()));
                }
            }
            if file.as_str() == "root.yaml" {
                // What may be read and where it may go is listed; only what is denied is denied as a whole.
                let denied = text.matches('*').count();
                prop_assert_eq!((yaml.documents().len(), denied), (3, text.matches("kind: \"*\"").count()));
                continue;
            }
            prop_assert_eq!((yaml.documents().len(), text.contains('*')), (1, false));
            let name = file.as_str().strip_prefix("applications/").unwrap().strip_suffix("-prod.yaml").unwrap();
            for need in &needs[&app(name)].apps {
                let needed = &rendering.files[&path(&format!("applications/{need}-prod.yaml"))];
                prop_assert!(wave(needed) < wave(text), "{} needs {}", name, need);
            }
        }
        let after = written(&sorted, &rendering);
        prop_assert_eq!(render(&after, &load(&after), &needs, &settings).differing(&after).count(), 0);
    }
}
