use super::*;

#[test]
fn a_next_tree_has_only_those_applications_read_that_changed() {
    let before = tree(["a", "b", "c"].into_iter().flat_map(plain));
    let before = written(&before, &rendered(&before, &needs(&[("c", &["b"])])));
    let known = Standing::of(&before);
    assert_eq!((known.files_read(), known.on(&before).files_read()), (4, 0), "three, and the root");
    let broken = with(&before, &[("applications/a-prod.yaml", MARK), ("applications/d.yaml", "kind: X\n")]);
    let next = known.on(&broken);
    assert_eq!(next.files_read(), 2);
    assert_eq!(next.present(), Standing::of(&broken).present());
    assert!(
        next.is_by_hand(&path("applications/d.yaml")) && !next.is_by_hand(&path("applications/a-prod.yaml"))
    );
    let gone: Tree = before
        .iter()
        .filter(|(path, _)| path.as_str().starts_with("apps/"))
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    assert!(known.on(&gone).present().is_empty());
}

#[test]
fn an_application_lags_once_what_it_is_rendered_from_is_another_and_never_for_its_wave_alone() {
    let prod = EnvironmentName::parse("prod").unwrap();
    let lags = |tree: &Tree, name: &str| {
        let registrations = load(tree);
        let standing = Standing::of(tree);
        let app = &registrations.apps[&app(name)];
        super::lags(tree, (&registrations, &standing), (app, &prod), &settings())
    };
    let registered = |more: &str| [plain("b"), overlaid("c", more)].concat();
    let before = tree(registered(""));
    assert!(!lags(&before, "c"), "there is none");
    let stands = written(&before, &rendered(&before, &needs(&[("c", &["b"])])));
    assert!(!lags(&stands, "b") && !lags(&stands, "c"));

    let file = "applications/c-prod.yaml";
    let text = String::from_utf8(stands.content(&path(file)).unwrap().to_vec()).unwrap();
    let moved = text.replace("sync-wave: \"1\"", "sync-wave: \"7\"");
    assert_ne!(moved, text);
    assert!(!lags(&with(&stands, &[(file, &moved)]), "c"), "others move it");
    assert!(!lags(&with(&stands, &[(file, "kind: Application\n")]), "c"), "a person wrote it");
    assert!(lags(&with(&stands, &[(file, &text.replace("namespace: apps", "namespace: mine"))]), "c"));
    for (chosen, expected) in
        [("namespace: dagster", true), ("source: repository", true), ("namespace: kube-system", false)]
    {
        let registration = &registered(&format!("      application: {{ {chosen} }}\n"))[3];
        let edited = with(&stands, &[(&registration.0, &registration.1)]);
        assert_eq!(lags(&edited, "c"), expected, "{chosen}: one that is not permitted is told by `render`");
    }
}
