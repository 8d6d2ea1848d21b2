//! `root.yaml`, which moves with the commits of workers while nobody edited it.

use super::*;

const CONTRACT: &str = "\
apiVersion: fabrique/v1
kind: Contract
version: 3
accepts: [3]
endpoints: { gitea: \"http://gitea:3000\", argocd: \"https://argocd\", registry: \"registry:80\", nats: \"nats://nats:4222\" }
environments: { prod: { block: { defaultClass: fast, classes: { fast: } } } }
";

/// What is committed of `root.yaml` together with an image, and the message.
fn along_with(tree: &Tree) -> (Option<String>, String) {
    let (_, planned) = deployment("citation");
    let prod = EnvironmentName::parse("prod").unwrap();
    let registrations = Registrations::load(tree, &Rules { registries: vec!["registry:80".to_owned()] });
    let place = (&app("citation"), &prod);
    let planned =
        along(planned, tree, (&registrations, &Standing::of(tree)), place, None, &settings()).unwrap();
    let root = planned.changes.iter().find(|(path, _)| path.as_str() == "root.yaml");
    let root = root.map(|(_, content)| String::from_utf8(content.unwrap().to_vec()).unwrap());
    (root, planned.message.body().to_owned())
}

fn root_of(tree: &Tree) -> String {
    rendered(tree, &BTreeMap::new()).files[&path("root.yaml")].clone()
}

#[test]
fn it_comes_along_once_what_it_is_rendered_from_has_moved() {
    let (bare, _) = deployment("citation");
    let stands = with(&bare, &[("root.yaml", &root_of(&bare))]);
    assert_eq!(along_with(&stands), (None, String::new()), "nothing has moved");

    let (registration, text) = registration(
        "reader",
        "      application: { source: repository }\n      infra: { from: head, repo: atlas/atlas, path: deploy/prod }\n",
    );
    for (file, text, names) in [
        ("contract.yaml", CONTRACT, "fabrique-apps-provided"),
        (&registration, &text, "http://gitea-http.gitea:3000/atlas/atlas.git"),
    ] {
        let moved = with(&stands, &[(file, text)]);
        let (root, message) = along_with(&moved);
        let root = root.unwrap();
        assert!(
            root == root_of(&moved) && root.contains(names) && !root_of(&stands).contains(names),
            "{root}"
        );
        assert_eq!(message, APPLY);
        assert_ne!(digest_in(&root), digest_in(&root_of(&stands)), "what is applied can be told from it");
        assert_eq!(along_with(&with(&moved, &[("root.yaml", &root)])).0, None, "once");
    }
}

#[test]
fn what_a_person_edited_or_keeps_elsewhere_stays() {
    let (bare, _) = deployment("citation");
    let root = root_of(&bare);
    let moved = with(&bare, &[("contract.yaml", CONTRACT)]);
    let edited = root
        .replace("  sourceRepos:\n", "  sourceRepos:\n    - http://gitea-http.gitea:3000/ops/extra.git\n");
    let narrower = root.replace("    - { server: https://bench.example.com:6443, namespace: apps }\n", "");
    let unsigned: String =
        root.split_inclusive('\n').filter(|line| !line.contains("fabrique/rendered")).collect();
    for text in [&edited, &narrower, &unsigned, "kind: Application\n"] {
        assert_ne!(*text, root);
        assert_eq!(along_with(&with(&moved, &[("root.yaml", text)])), (None, String::new()), "{text}");
    }
    assert_eq!(along_with(&moved).0, None, "there is none");
    // And it is told where a person looks.
    let stands = with(&moved, &[("root.yaml", &edited)]);
    let rendering = rendered(&stands, &BTreeMap::new());
    assert!(rendering.differing(&stands).any(|(file, ..)| file.as_str() == "root.yaml"));
}

#[test]
fn it_stays_while_what_it_is_rendered_from_cannot_be_read() {
    let (bare, _) = deployment("citation");
    let whole = with(&bare, &[("contract.yaml", CONTRACT)]);
    let stands = with(&whole, &[("root.yaml", &root_of(&whole))]);
    for (file, text) in [("contract.yaml", "nonsense: true\n"), ("apps/reader/app.yaml", "nonsense: true\n")]
    {
        assert_eq!(along_with(&with(&stands, &[(file, text)])).0, None, "{file}: no project is taken away");
    }
}

#[test]
fn a_commit_says_that_the_root_stays_where_something_is_to_be_added_and_another_file_cannot_be_read() {
    let (bare, _) = deployment("citation");
    let stands = with(&bare, &[("root.yaml", &root_of(&bare))]);
    let broken = ("apps/reader/app.yaml", "nonsense: true\n");
    assert_eq!(along_with(&with(&stands, &[broken])), (None, String::new()), "nothing is to be added");
    let (root, message) = along_with(&with(&stands, &[broken, ("contract.yaml", CONTRACT)]));
    assert_eq!(root, None);
    insta::assert_snapshot!(message, @"root.yaml stays as it is, although lines are to be added: apps/reader/app.yaml cannot be used, and what that names would be lost; correct it, then `fabrique render --path .` writes root.yaml, or the next commit like this one");

    let whole = with(&bare, &[("contract.yaml", CONTRACT)]);
    let stands = with(&whole, &[("root.yaml", &root_of(&whole)), ("contract.yaml", "nonsense: true\n")]);
    assert_eq!(along_with(&stands), (None, String::new()), "something would be taken away");
    let (registration, text) = registration(
        "reader",
        "      application: { source: repository }\n      infra: { from: head, repo: atlas/atlas, path: deploy/prod }\n",
    );
    let (root, message) = along_with(&with(&stands, &[(&registration, &text)]));
    assert!(root.is_none() && message.contains("contract.yaml cannot be used"), "{message}");
}

/// What a `root.yaml` lacks for `name`, against the one that is rendered of `tree`.
fn lacking(stands: &str, tree: &Tree, name: &str, asks: bool) -> Vec<String> {
    let registrations = load(tree);
    let place = (&registrations.apps[&app(name)], &EnvironmentName::parse("prod").unwrap());
    lacks((stands, &root_of(tree)), &registrations, place, asks, &settings())
}

#[test]
fn what_a_root_lacks_is_told_of_the_apps_that_need_it_and_of_no_other() {
    let (bare, _) = deployment("citation");
    let before = root_of(&bare);
    let (registration, text) = registration(
        "reader",
        "      application: { source: repository, namespace: dagster }\n      infra: { from: head, repo: atlas/atlas, path: deploy/prod }\n",
    );
    let tree = with(&bare, &[("contract.yaml", CONTRACT), (&registration, &text)]);
    let repository =
        "the repository http://gitea-http.gitea:3000/atlas/atlas.git in the project fabrique-apps";
    let none: [&str; 0] = [];
    assert_eq!(lacking(&before, &tree, "citation", false), none);
    assert_eq!(lacking(&before, &tree, "citation", true), ["the project fabrique-apps-provided"]);
    assert_eq!(lacking(&before, &tree, "reader", false), [repository]);
    assert_eq!(lacking(&root_of(&tree), &tree, "reader", true), none);

    let narrower =
        before.replace("    - { server: https://kubernetes.default.svc, namespace: dagster }\n", "");
    let place = "the namespace dagster of https://kubernetes.default.svc in the project fabrique-apps";
    assert_eq!(lacking(&narrower, &tree, "reader", false), [repository, place]);
    let wider =
        narrower.replace("  sourceRepos:\n", "  sourceRepos:\n    - \"http://gitea-http.gitea:3000/*\"\n");
    assert_eq!(lacking(&wider, &tree, "reader", false), [place]);
    let bare_url = before
        .replace("  sourceRepos:\n", "  sourceRepos:\n    - http://gitea-http.gitea:3000/atlas/atlas\n");
    assert_eq!(lacking(&bare_url, &tree, "reader", false), none);
    for broken in ["", "kind: AppProject\n"] {
        assert_eq!(lacking(broken, &tree, "citation", false), ["the project fabrique-apps"]);
    }
    assert_eq!(lacking("a: [", &tree, "citation", false), ["a form in which it can be read"]);
}
