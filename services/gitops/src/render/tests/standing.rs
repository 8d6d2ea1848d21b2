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

#[test]
fn what_argo_cd_would_build_or_read_otherwise_is_told_whatever_is_in_it() {
    let files = [
        "kustomization.yaml",
        "kustomization.yml",
        "Kustomization",
        "Chart.yaml",
        "my-Chart.yaml",
        ".argocd-source.yaml",
        ".argocd-source-root.yaml",
        "a.jsonnet",
        "sub/kustomization.yaml",
        "README.md",
    ];
    let tree = tree(files.map(|name| (format!("applications/{name}"), String::new())));
    let told = told(&rendered(&tree, &BTreeMap::new()));
    let told: Vec<&str> = told.lines().map(|line| line.split(':').next().unwrap()).collect();
    let mut expected: Vec<String> = files[..8].iter().map(|name| format!("applications/{name}")).collect();
    expected.sort();
    assert_eq!(told, expected);
    // The root does not even look at them.
    let root = rendered(&tree, &BTreeMap::new()).files[&path("root.yaml")].clone();
    let exclude =
        "    directory: { exclude: \"{kustomization.yaml,kustomization.yml,Kustomization,Chart.yaml}\" }\n";
    assert!(root.contains(exclude), "{root}");
}

#[test]
fn an_application_in_the_guise_of_a_rendered_one_is_judged_as_any_other() {
    let guise = |labels: &str, project: &str, url: &str| {
        format!(
            "{MARK} from nowhere\nkind: Application\nmetadata: {{ name: x, labels: {{ {labels} }} }}\nspec:\n  \
             project: {project}\n  source: {{ repoURL: \"{url}\" }}\n"
        )
    };
    let inside = "http://gitea-http.gitea:3000/cluster/apps.git";
    let outside = "https://github.com/x/y.git";
    let citation = "fabrique/app: citation, fabrique/environment: prod";
    let before = tree(plain("citation"));
    let stands = written(&before, &rendered(&before, &BTreeMap::new()));
    let tree = with(
        &stands,
        &[
            ("applications/a.yaml", &guise("", "default", outside)),
            ("applications/b.yaml", &guise(citation, "fabrique-apps", inside)),
            (
                "applications/buckets-prod.yaml",
                &guise("fabrique/environment: prod", "fabrique-apps-provided", inside),
            ),
            ("applications/volumes-prod.yaml", &guise("fabrique/environment: prod", "default", inside)),
            ("applications/c.yaml", "kind: AppProject\nmetadata: { name: c }\n"),
            ("applications/d.yaml", "kind: Application\nspec: { source: {} }\n"),
            ("applications/e.yaml", "kind: Application\nspec: { project: fabrique-apps }\n"),
        ],
    );
    let mut tree: Vec<_> = tree.iter().map(|(path, entry)| (path.clone(), entry.clone())).collect();
    let link = Entry { kind: FileKind::Symlink, bytes: "../elsewhere.yaml".into() };
    tree.push((path("applications/link.yaml"), link));
    let tree: Tree = tree.into_iter().collect();
    insta::assert_snapshot!(told(&rendered(&tree, &BTreeMap::new())), @r#"
    applications/a.yaml: begins as what fabrique renders does, and nothing is rendered there; remove it, or its first line when it is yours
    applications/a.yaml:5:12: the project "default" is not fabrique-apps, which bounds what is deployed; name that one, or keep it elsewhere
    applications/a.yaml:6:13: the repoURL "https://github.com/x/y.git" is not a repository of http://gitea-http.gitea:3000/; bring what it needs into Gitea: the cluster fetches nothing from elsewhere
    applications/b.yaml: begins as what fabrique renders does, and nothing is rendered there; remove it, or its first line when it is yours
    applications/c.yaml:1:7: of kind AppProject, which the root's project does not let in; keep it elsewhere: nothing else of this folder is deployed either
    applications/d.yaml:2:1: the project "default" is not fabrique-apps, which bounds what is deployed; name that one, or keep it elsewhere
    applications/link.yaml: is no file of its own; write it out: the root Application deploys whatever it leads to
    applications/volumes-prod.yaml:5:12: the project "default" is not fabrique-apps, which bounds what is deployed; name that one, or keep it elsewhere
    "#);
    // Ours, which is not rendered now, stays and is well.
    let waits = Needs { waits: vec!["it waits".to_owned()], ..Needs::default() };
    let rendering = rendered(&stands, &BTreeMap::from([(app("citation"), waits)]));
    assert_eq!((withheld(&rendering).len(), told(&rendering).as_str()), (1, ""));
}

#[test]
fn what_the_root_does_not_read_below_its_folder_is_no_finding() {
    let files = [
        ("templates/a.yaml", "kind: ConfigMap\nmetadata: { name: a }\n"),
        ("templates/b.yaml", "kind: Application\nspec: { project: theirs }\n"),
        ("templates/c.yaml", MARK),
    ];
    let files = files.map(|(file, text)| (format!("applications/{file}"), text.to_owned()));
    let mut all: Vec<_> = tree(files).iter().map(|(path, entry)| (path.clone(), entry.clone())).collect();
    let link = Entry { kind: FileKind::Symlink, bytes: "../elsewhere.yaml".into() };
    all.push((path("applications/templates/link.yaml"), link));
    let below: Tree = all.into_iter().collect();
    assert_eq!(told(&rendered(&below, &BTreeMap::new())), "");
    // What would break the whole is told there too: a root of somebody's own may read it.
    let foreign = [
        ("applications/templates/d.yaml", "kind: ApplicationSet\n"),
        ("applications/templates/e.yaml", "spec: { source: { repoURL: \"https://github.com/x/y.git\" } }\n"),
    ];
    assert_eq!(told(&rendered(&with(&below, &foreign), &BTreeMap::new())).lines().count(), 2);
}
