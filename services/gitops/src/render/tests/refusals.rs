//! What is not written, since the Application would be another's or would not follow.

use super::*;

/// The same app in `b-prod` instead of `prod`.
fn elsewhere(files: Vec<(String, String)>) -> Vec<(String, String)> {
    let moved =
        |(file, text): (String, String)| (file.replace("/prod/", "/b-prod/"), text.replace("prod", "b-prod"));
    files.into_iter().map(moved).collect()
}

fn both_destinations() -> Settings {
    let prod = settings().destinations[0].clone();
    let other = Destination { environment: EnvironmentName::parse("b-prod").unwrap(), ..prod.clone() };
    Settings { destinations: vec![prod, other], ..settings() }
}

fn shared(tree: &Tree) -> Rendering {
    render(tree, &load(tree), &BTreeMap::new(), &both_destinations())
}

fn along_of(name: &str, place: &str, planned: Planned, tree: &Tree) -> Result<Planned, Refusal> {
    let place = EnvironmentName::parse(place).unwrap();
    along(planned, tree, (&load(tree), &Standing::of(tree)), (&app(name), &place), None, &both_destinations())
}

/// `apps/a/b-prod` and `apps/a-b/prod` would both be `applications/a-b-prod.yaml`.
#[test]
fn two_apps_never_share_an_application() {
    let one = elsewhere(plain("a"));
    let both = tree([one.clone(), plain("a-b")].concat());
    let rendering = shared(&both);
    assert_eq!(told(&rendering).matches("would both be the Application a-b-prod").count(), 2);
    assert_eq!(rendering.files.keys().map(RelPath::as_str).collect::<Vec<_>>(), ["root.yaml"]);

    // Nor may a commit create it for either.
    let (_, planned) = deployment("a-b");
    let refused = along_of("a-b", "prod", planned, &both).unwrap_err();
    insta::assert_snapshot!(refused, @"apps/a-b/app.yaml: a-b in prod and a in b-prod would both be the Application a-b-prod; rename one of the environments");
}

#[test]
fn an_application_stays_with_the_app_whose_it_is() {
    let first = tree(elsewhere(plain("a")));
    let first = written(&first, &shared(&first));
    let second = plain("a-b");
    let second: Vec<(&str, &str)> =
        second.iter().map(|(file, text)| (file.as_str(), text.as_str())).collect();
    let both = with(&first, &second);
    let rendering = shared(&both);
    assert_eq!(rendering.differing(&both).count(), 0, "{rendering:#?}");
    insta::assert_snapshot!(told(&rendering), @"apps/a-b/app.yaml: a-b in prod would be applications/a-b-prod.yaml, which is that of a in b-prod; rename the environment");

    // The newcomer is refused although the file is there, and the app whose it is goes on.
    let (_, planned) = deployment("a-b");
    let refused = along_of("a-b", "prod", planned.clone(), &both).unwrap_err();
    assert!(refused.to_string().contains("which is that of a in b-prod"), "{refused}");
    let changes = Changes::within(Scope::Environment(app("a"), EnvironmentName::parse("b-prod").unwrap()));
    let own = Planned { changes, message: planned.message.clone() };
    assert_eq!(changed(&along_of("a", "b-prod", own, &both).unwrap()), [""; 0]);

    // What it deployed is not removed in passing when it is not registered any more: that is asked for.
    let left: Tree = both
        .iter()
        .filter(|(path, _)| !path.as_str().starts_with("apps/a/"))
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    let rendering = shared(&left);
    assert_eq!(rendering.stale, [path("applications/a-b-prod.yaml")]);
    assert!(told(&rendering).contains("not registered any more"), "{}", told(&rendering));
    assert_eq!(rendering.differing(&left).count(), 0, "{rendering:#?}");
    assert!(along_of("a-b", "prod", planned, &left).is_err());
}

/// A commit that deploys another image of `citation`, which needs `base`, where both have their Applications already.
/// `broken` is what is wrong by then.
fn moved_on(source: &str, broken: &[(&str, &str)], settings: &Settings) -> Result<Planned, Refusal> {
    let more = format!("      application: {{ source: {source} }}\n");
    let there = tree([plain("base"), overlaid("citation", &more)].concat());
    let there = written(&there, &rendered(&there, &needs(&[("citation", &["base"])])));
    let there = with(&there, broken);
    let mut changes =
        Changes::within(Scope::Environment(app("citation"), EnvironmentName::parse("prod").unwrap()));
    let (file, text) = composition(
        "citation",
        &format!("infra: {{ repo: atlas/atlas, path: deploy/prod, revision: {REVISION} }}\n"),
    );
    changes.write(path(&file), text.replace("2eee", "3eee")).unwrap();
    let message = CommitMessage::new("Deploy", "", Trailers::of(&app("citation")));
    let planned = Planned { changes, message };
    let place = EnvironmentName::parse("prod").unwrap();
    along(planned, &there, (&load(&there), &Standing::of(&there)), (&app("citation"), &place), None, settings)
}

#[test]
fn an_application_that_names_a_revision_moves_with_each_commit_or_there_is_none() {
    let whole = settings();
    let own = ["applications/citation-prod.yaml", "apps/citation/prod/composition.yaml"];
    assert_eq!(changed(&moved_on("repository", &[], &whole).unwrap()), own);
    assert_eq!(changed(&moved_on("copy", &[], &whole).unwrap()), own[1..]);

    let nowhere = Settings { destinations: Vec::new(), ..whole.clone() };
    let nameless = PATCH.replace("name: grpc", "image: grpc");
    let nameless = [("apps/citation/prod/patch.yaml", nameless.as_str())];
    let base = tree([plain("base"), plain("citation")].concat());
    let base = rendered(&base, &needs(&[("base", &["citation"])]));
    let circle = [("applications/base-prod.yaml", application(&base, "base-prod"))];
    for (broken, settings, told) in [
        (&nameless[..], &whole, "an item of a list has no name"),
        (&[], &nowhere, "render.destinations of the configuration does not name its environment"),
        (&circle, &whole, "its dependencies lead in a circle"),
    ] {
        let refused = moved_on("repository", broken, settings).unwrap_err().to_string();
        assert!(refused.contains(told), "{refused}");
        // The copy is what its Application reads: the commit is seen.
        assert_eq!(changed(&moved_on("copy", broken, settings).unwrap()), own[1..], "{told}");
    }
}
