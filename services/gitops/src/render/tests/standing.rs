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

/// How the Application of an environment lags, as a tree is.
fn lags_in(tree: &Tree, name: &str, environment: &str) -> Option<Lags> {
    let (registrations, standing) = (load(tree), Standing::of(tree));
    let place = (&registrations.apps[&app(name)], &EnvironmentName::parse(environment).unwrap());
    lags(tree, (&registrations, &standing), place, &settings())
}

#[test]
fn an_application_lags_once_what_it_is_rendered_from_is_another_and_never_for_its_wave_alone() {
    let lags = |tree: &Tree, name: &str| lags_in(tree, name, "prod").is_some();
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

#[test]
fn an_application_that_names_another_image_or_overlay_is_told_from_one_of_another_form() {
    let before = tree(overlaid("c", "      application: { source: repository }\n"));
    let stands = written(&before, &rendered(&before, &BTreeMap::new()));
    assert_eq!(lags_in(&stands, "c", "prod"), None);
    let file = "applications/c-prod.yaml";
    let text = String::from_utf8(stands.content(&path(file)).unwrap().to_vec()).unwrap();
    let other = DIGEST.replace("2eee", "3fff");
    for (from, to, expected) in [
        (DIGEST, other.as_str(), Lags::Image),
        (REVISION, "2c2ddb30aa2f2c2ddb30aa2f2c2ddb30aa2f2c2d", Lags::Overlay),
        ("selfHeal: true", "selfHeal: false", Lags::Otherwise),
    ] {
        let edited = text.replace(from, to);
        assert_ne!(edited, text, "{from}");
        assert_eq!(lags_in(&with(&stands, &[(file, &edited)]), "c", "prod"), Some(expected));
    }
}

#[test]
fn an_environment_that_is_held_at_what_needed_less_rests() {
    let [registration, composition, manifest] = <[_; 3]>::try_from(plain("c")).unwrap();
    let both = (registration.0, format!("{}    - name: bench\n", registration.1));
    let bench = |(file, text): &(String, String)| {
        (file.replace("/prod/", "/bench/"), text.replace("environment: prod", "environment: bench"))
    };
    let files = [bench(&composition), bench(&manifest), both, composition, manifest];
    let before = tree(files.into_iter().chain(plain("b")).chain(plain("d")));
    let newer = rendered(&before, &needs(&[("c", &["b", "d"])]));
    let older = rendered(&before, &needs(&[("c", &["b"])]));
    let stands = written(&before, &newer);
    let held = "applications/c-prod.yaml";
    let stands = with(&stands, &[(held, application(&older, "c-prod"))]);
    assert_ne!(application(&newer, "c-prod"), application(&older, "c-prod"));
    for environment in ["prod", "bench"] {
        assert_eq!(lags_in(&stands, "c", environment), None, "{environment}");
    }
}
