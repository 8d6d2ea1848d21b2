use std::time::Duration;

use fabrique_core::app::{BindingForm, BuildResources, ImageFrom, InfraFrom, RegistryCache};
use fabrique_core::id::Channel;
use fabrique_core::quantity::{Bytes, Millicores};

use super::*;
use crate::tree::{Entry, FileKind};

const CITATION: &str = r#"# apps/citation/app.yaml
apiVersion: fabrique/v1
kind: App
metadata: { name: citation }
spec:
  source: { repo: atlas/atlas, branch: main, declaration: dataops/citation-dagster/code-location.manifest.yaml }
  image: registry:80/citation-dagster
  build: { context: dataops/citation-dagster, dockerfile: Dockerfile, target: "", args: { PYTHON: 3.10 }, secrets: [], platforms: [linux/amd64], watch: ["dataops/citation-dagster/**"], timeout: 30m }
  environments:
    - name: prod
      image: { from: build }
      infra: { from: head, repo: atlas/atlas, path: dataops/citation-dagster/deploy/overlays/prod }
      bindings:
        - { channel: image, file: kustomization.yaml, path: "images[name=registry:80/citation-dagster].digest", form: digest }
        - { channel: image, file: patch-s3-envfrom.yaml, path: "spec.template.spec.containers[0].env[name=DAGSTER_CURRENT_IMAGE].value", form: reference }
"#;

const SMALLEST: &str = "apiVersion: fabrique/v1\nkind: App\nmetadata: {name: small}\nspec:\n  source: {repo: Org/repo}\n  image: registry:80/small\n";

fn rules() -> Rules {
    Rules { registries: vec!["registry:80".to_owned()] }
}

fn tree(files: &[(&str, &str)]) -> Tree {
    files
        .iter()
        .map(|(path, text)| (RelPath::parse(path).unwrap(), Entry::regular(text.to_string())))
        .collect()
}

fn load(files: &[(&str, &str)]) -> Registrations {
    Registrations::load(&tree(files), &rules())
}

fn report(files: &[(&str, &str)]) -> String {
    load(files).findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_documented_registration_is_read_whole() {
    let loaded = load(&[("apps/citation/app.yaml", CITATION)]);
    assert_eq!(loaded.findings, []);
    let app = &loaded.apps[&AppName::parse("citation").unwrap()];
    assert_eq!(app.source.repo.to_string(), "atlas/atlas");
    assert_eq!(app.build.args["PYTHON"], "3.10", "an argument is taken as written");
    assert_eq!(app.build.target, None);
    assert_eq!(app.build.trust.as_str(), "atlas");
    let prod = &app.environments[0];
    assert_eq!(prod.image, ImageFrom::Build);
    assert!(
        matches!(&prod.infra, InfraFrom::Head(overlay) if overlay.path.as_str().ends_with("overlays/prod"))
    );
    assert_eq!(prod.bindings[0].form, BindingForm::Digest);
    assert_eq!(prod.bindings[1].channel, Channel::Image);
}

#[test]
fn what_is_left_out_has_its_documented_default() {
    let loaded = load(&[("apps/small/app.yaml", SMALLEST)]);
    assert_eq!(loaded.findings, []);
    let app = &loaded.apps[&AppName::parse("small").unwrap()];
    assert_eq!(app.source.branch.as_str(), "main");
    assert_eq!(app.source.declaration, None);
    assert!(app.build.context.is_root());
    assert_eq!(app.build.dockerfile.as_str(), "Dockerfile");
    assert_eq!(app.build.platforms.iter().map(|p| p.as_str()).collect::<Vec<_>>(), ["linux/amd64"]);
    assert_eq!(app.build.timeout, Duration::from_secs(1800));
    assert!(app.build.watch.is_empty() && app.environments.is_empty());
    assert_eq!(app.build.trust.as_str(), "Org");
    assert_eq!((app.build.resources, app.build.registry_cache), (BuildResources::default(), None));
}

#[test]
fn what_a_build_gets_of_its_machine_and_of_the_registrys_cache_is_declared() {
    let with = |build: &str| format!("{SMALLEST}  build: {{ {build} }}\n");
    let right = "resources: { cpu: 1500m, cpu_limit: 4, memory: 3Gi, memory_limit: 6Gi, ephemeral_storage: 8Gi }, \
                 registry_cache: off";
    let loaded = load(&[("apps/small/app.yaml", &with(right))]);
    assert_eq!(loaded.findings, []);
    let build = &loaded.apps[&AppName::parse("small").unwrap()].build;
    let wanted = BuildResources {
        cpu: Some(Millicores(1500)),
        cpu_limit: Some(Millicores(4000)),
        memory: Some(Bytes::gibi(3)),
        memory_limit: Some(Bytes::gibi(6)),
        ephemeral_storage: Some(Bytes::gibi(8)),
    };
    assert_eq!((build.resources, build.registry_cache), (wanted, Some(RegistryCache::Off)));

    let wrong = "resources: { cpu: 0, cpu_limit: much, memory: 4Gi, memory_limit: 2Gi, ephemeral_storage: 1Mi, disk: 1 }, \
                 registry_cache: yes";
    insta::assert_snapshot!(report(&[("apps/small/app.yaml", &with(wrong))]), @r#"
apps/small/app.yaml:7:30: build.resources.cpu is 0, too little to build with; write 10m or more
apps/small/app.yaml:7:44: cpu_limit: "much" is not processor time such as 500m or 2; correct the value
apps/small/app.yaml:7:77: memory_limit is 2Gi, below the memory of 4Gi; write 4Gi or more
apps/small/app.yaml:7:101: build.resources.ephemeral_storage is 1Mi, too little to build with; write 64Mi or more
apps/small/app.yaml:7:106: build.resources has no field "disk"; remove it, the fields are cpu, cpu_limit, memory, memory_limit, ephemeral_storage
apps/small/app.yaml:7:133: registry_cache: "yes" is none of off, export, import, both; correct the value
"#);
}

#[test]
fn every_amount_above_what_builders_permit_is_told_with_its_line() {
    let with = |resources: &str| format!("{SMALLEST}  build:\n    resources:\n{resources}");
    let much = with("      cpu: 9\n      cpu_limit: 2\n      memory: 2Gi\n      memory_limit: 64Gi\n");
    let wrong = with("      cpu: much\n      ephemeral_storage: 51Gi\n");
    let right = with("      cpu: 8\n      memory: 32Gi\n");
    let tree = tree(&[
        ("apps/much/app.yaml", &much),
        ("apps/wrong/app.yaml", &wrong),
        ("apps/right/app.yaml", &right),
        ("apps/silent/app.yaml", SMALLEST),
        ("apps/broken/app.yaml", "spec: ["),
    ]);
    let most = Ceiling {
        cpu: Some(Millicores(8000)),
        memory: Some(Bytes::gibi(32)),
        ephemeral_storage: Some(Bytes::gibi(50)),
        timeout: None,
    };
    let told: Vec<String> = above(&tree, &most).iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(told.join("\n"), @"
apps/much/app.yaml:9:12: build.resources.cpu of 9 is declared, max.cpu of the builders' file permits 8 at the most; ask for 8 or less, or raise max.cpu there
apps/much/app.yaml:12:21: build.resources.memory_limit of 64Gi is declared, max.memory of the builders' file permits 32Gi at the most; ask for 32Gi or less, or raise max.memory there
apps/wrong/app.yaml:10:26: build.resources.ephemeral_storage of 51Gi is declared, max.ephemeral_storage of the builders' file permits 50Gi at the most; ask for 50Gi or less, or raise max.ephemeral_storage there
");
    assert_eq!(above(&tree, &Ceiling::default()), []);
}

#[test]
fn a_timeout_above_what_every_builder_lasts_for_is_told_with_its_line() {
    let with = |timeout: &str| format!("{SMALLEST}  build:\n    timeout: {timeout}\n");
    let tree = tree(&[
        ("apps/long/app.yaml", &with("5h")),
        ("apps/right/app.yaml", &with("120m")),
        ("apps/silent/app.yaml", SMALLEST),
        ("apps/wrong/app.yaml", &with("long")),
    ]);
    let most = Ceiling { timeout: Some(Duration::from_secs(2 * 60 * 60)), ..Ceiling::default() };
    let told: Vec<String> = above(&tree, &most).iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    let [place, what] = [
        "apps/long/app.yaml:8:14: build.timeout of 5h",
        "pool.longest_build of the builders' file permits 2h",
    ];
    assert!(told[0].starts_with(place) && told[0].contains(what), "{told:?}");
    assert_eq!(above(&tree, &Ceiling::default()), []);
}

#[test]
fn everything_wrong_in_a_file_is_said_at_once_with_place_and_remedy() {
    let bad = r#"apiVersion: fabrique/v2
kind: App
metadata: { name: other, labels: {} }
spec:
  source: { repo: atlas, brnch: main }
  image: docker.io/library/x
  build:
    context: ../up
    dockerfle: D
    target: "a b"
    args: { 1X: "y" }
    platforms: [linux]
    watch: ["a/[", "../x", "ok/**"]
    timeout: 3 fortnights
  environments:
    - name: build
      infra: { from: files, path: x }
    - { name: a, image: { from: ghost }, bindings: [{ channel: image, file: ../../b/app.yaml, path: "a[", form: digset }] }
    - { name: b, bindings: [{ channel: infra, file: composition.yaml, path: a, form: digest }] }
"#;
    insta::assert_snapshot!(report(&[("apps/bad/app.yaml", bad)]), @r#"
apps/bad/app.yaml:1:13: apiVersion is "fabrique/v2"; write apiVersion: fabrique/v1
apps/bad/app.yaml:3:19: metadata.name is other, the directory is apps/bad; give both the same name
apps/bad/app.yaml:3:26: metadata has no field "labels"; remove it, the fields are name
apps/bad/app.yaml:5:19: repo: "atlas" is not a repository (organisation/name); correct the value
apps/bad/app.yaml:5:26: spec.source has no field "brnch"; did you mean branch?
apps/bad/app.yaml:6:10: docker.io/library/x is outside of the allowed registries (registry:80); use an allowed registry, or let an operator allow this one
apps/bad/app.yaml:8:14: context: "../up" is not a path inside the repository (relative, no '..', no leading '/', no backslash or control character); correct the value
apps/bad/app.yaml:9:5: spec.build has no field "dockerfle"; did you mean dockerfile?
apps/bad/app.yaml:10:13: "a b" is not the name of a stage; use letters, digits, '.', '_', '-'
apps/bad/app.yaml:11:13: "1X" is not the name of a build argument; use letters, digits and '_'
apps/bad/app.yaml:12:17: platforms: "linux" is not a platform (os/architecture[/variant], lowercase); correct the value
apps/bad/app.yaml:13:13: "a/[" does not compile: unclosed character class; missing ']'; correct the glob
apps/bad/app.yaml:13:20: "../x" is not a glob from the repository's root; drop '/', './' and '../'
apps/bad/app.yaml:14:14: the timeout "3 fortnights" is no duration: unknown time unit "fortnights", supported units: ns, us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations); write it as 30m or 1h 15m
apps/bad/app.yaml:16:13: build is a word of `from:`; give the environment another name
apps/bad/app.yaml:17:35: infra.path has no meaning with from: files; remove it, or write from: head
apps/bad/app.yaml:18:7: the image of a comes from ghost, which is not an environment; use one of a, b, build
apps/bad/app.yaml:18:77: the binding's file "../../b/app.yaml" is not inside the environment's directory; write a path relative to apps/<app>/<environment>/, without '..'
apps/bad/app.yaml:18:101: path: an index, a quoted key, key=value or ~image is expected at character 3 of the path; correct the value
apps/bad/app.yaml:18:113: form is "digset"; write one of digest, reference, kustomize-image, revision, version
apps/bad/app.yaml:19:29: the infra channel has no image; write form: revision or version, or channel: image
apps/bad/app.yaml:19:53: a binding cannot be in composition.yaml; name a manifest of the environment
"#);
}

#[test]
fn environments_refer_to_one_another_without_gaps_or_circles() {
    let with = |environments: &str| format!("{SMALLEST}  environments:\n{environments}");
    let text = with(
        "    - { name: a, image: { from: b } }\n    - { name: b, image: { from: c } }\n    - { name: c, image: { from: b } }\n    - { name: d, infra: { from: d } }\n    - { name: e, image: { from: ghost } }\n    - { name: f }\n    - { name: f }\n",
    );
    insta::assert_snapshot!(report(&[("apps/small/app.yaml", &text)]), @r#"
apps/small/app.yaml:9:7: the image of b comes from itself through c; let one environment of the circle come from build, head, pinned or files
apps/small/app.yaml:10:7: the image of c comes from itself through b; let one environment of the circle come from build, head, pinned or files
apps/small/app.yaml:11:7: the infra of d comes from itself through d; let one environment of the circle come from build, head, pinned or files
apps/small/app.yaml:12:7: the image of e comes from ghost, which is not an environment; use one of a, b, c, d, e, f
apps/small/app.yaml:14:7: the environment f is declared twice; rename or remove one
"#);
    let chain = with(
        "    - { name: staging }\n    - { name: prod, image: { from: staging }, infra: { from: staging } }\n",
    );
    assert_eq!(report(&[("apps/small/app.yaml", &chain)]), "");
}

#[test]
fn a_malformed_registration_hides_no_other() {
    let twice = SMALLEST.replace("kind: App\n", "kind: App\nkind: App\n");
    let anchored = SMALLEST.replace("registry:80/small", "&x registry:80/small");
    let two = format!("{SMALLEST}---\n{SMALLEST}");
    let loaded = load(&[
        ("apps/citation/app.yaml", CITATION),
        ("apps/anchored/app.yaml", &anchored),
        ("apps/broken/app.yaml", "a: ["),
        ("apps/empty/app.yaml", ""),
        ("apps/list/app.yaml", "- a"),
        ("apps/twice/app.yaml", &twice),
        ("apps/two/app.yaml", &two),
        ("apps/citation/prod/app.yaml", "not: a registration"),
    ]);
    assert_eq!(loaded.apps.keys().map(AppName::as_str).collect::<Vec<_>>(), ["citation"]);
    insta::assert_snapshot!(loaded.findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n"), @r#"
apps/anchored/app.yaml:6:10: anchors and aliases are not accepted here; write the value out
apps/broken/app.yaml:2:1: not YAML: while parsing a node, did not find expected node content; correct the syntax
apps/empty/app.yaml: 0 YAML documents, exactly one is expected; keep one document
apps/list/app.yaml:1:1: the registration is a list, a mapping is expected; write key: value pairs
apps/twice/app.yaml:3:1: the key "kind" is written twice; keep one of them
apps/two/app.yaml: 2 YAML documents, exactly one is expected; keep one document
"#);
}

#[test]
fn a_name_is_its_directory_whatever_the_case() {
    insta::assert_snapshot!(report(&[("apps/Small/app.yaml", SMALLEST), ("apps/small2/app.yaml", SMALLEST)]), @r#"
apps/Small/app.yaml:3:18: metadata.name is small, the directory is apps/Small; give both the same name
apps/small2/app.yaml:3:18: metadata.name is small, the directory is apps/small2; give both the same name
"#);
    let both = load(&[("apps/Small/app.yaml", SMALLEST), ("apps/small/app.yaml", SMALLEST)]);
    assert_eq!((both.apps.len(), both.findings.len()), (1, 1), "the one in its own directory stands");
}

#[test]
fn apps_that_share_an_image_both_wait() {
    let other = SMALLEST.replace("name: small", "name: other");
    let loaded = load(&[
        ("apps/small/app.yaml", SMALLEST),
        ("apps/other/app.yaml", &other),
        ("apps/citation/app.yaml", CITATION),
    ]);
    assert_eq!(loaded.apps.len(), 1);
    insta::assert_snapshot!(loaded.findings[0], @"apps/other/app.yaml: the image registry:80/small is also the image of small; give each app its own image");
}

#[test]
fn apps_that_mirror_different_repositories_into_one_both_wait_and_each_names_the_other() {
    let text = |name: &str, source: &str| {
        let text = SMALLEST.replace("small", name);
        text.replace("{repo: Org/repo}", source)
    };
    let one = text("one", "{repo: Org/repo, github: acme/repo}");
    let same = text("same", "{repo: org/Repo, github: Acme/Repo}");
    let any = text("any", "{repo: Org/repo}");
    let elsewhere = text("elsewhere", "{repo: Org/other, github: acme/other}");
    let files = [
        ("apps/one/app.yaml", one.as_str()),
        ("apps/same/app.yaml", &same),
        ("apps/any/app.yaml", &any),
        ("apps/elsewhere/app.yaml", &elsewhere),
    ];
    assert_eq!(report(&files), "");
    let other = text("other", "{repo: Org/repo, github: acme/fork}");
    let files = [files.as_slice(), &[("apps/other/app.yaml", &other)]].concat();
    let loaded = load(&files);
    let left: Vec<&str> = loaded.apps.keys().map(AppName::as_str).collect();
    assert_eq!(left, ["any", "elsewhere"]);
    insta::assert_snapshot!(report(&files), @r"
    apps/one/app.yaml: Org/repo mirrors acme/repo here, and acme/fork in apps/other/app.yaml; name one source.github for a repository, or mirror the other into one of its own
    apps/other/app.yaml: Org/repo mirrors acme/fork here, and acme/repo in apps/one/app.yaml, Acme/Repo in apps/same/app.yaml; name one source.github for a repository, or mirror the other into one of its own
    apps/same/app.yaml: org/Repo mirrors Acme/Repo here, and acme/fork in apps/other/app.yaml; name one source.github for a repository, or mirror the other into one of its own
    ");
}

#[test]
fn a_registry_allows_what_is_inside_it_and_not_what_begins_like_it() {
    let allow = |registry: &str, image: &str| {
        Rules { registries: vec![registry.to_owned()] }.allow(&ImageRepository::parse(image).unwrap())
    };
    assert!(allow("registry:80", "registry:80/a/b"));
    assert!(allow("registry:80/team", "registry:80/team/a"));
    assert!(allow("registry:80/team/", "registry:80/team/a"));
    assert!(!allow("registry:80/team", "registry:80/team2/a"));
    assert!(!allow("registry:8", "registry:80/a"));
    assert!(!Rules::default().allow(&ImageRepository::parse("registry:80/a").unwrap()));
}

#[test]
fn a_symlinked_registration_is_reported_and_not_followed() {
    let path = RelPath::parse("apps/small/app.yaml").unwrap();
    let link = Entry { kind: FileKind::Symlink, bytes: "../other/app.yaml".into() };
    let loaded = Registrations::load(&[(path, link)].into_iter().collect(), &rules());
    assert!(loaded.apps.is_empty());
    assert_eq!(loaded.findings.len(), 1);
}

#[test]
fn look_ups_find_the_apps_of_a_branch_and_of_changed_paths() {
    let loaded = load(&[("apps/citation/app.yaml", CITATION), ("apps/small/app.yaml", SMALLEST)]);
    let main = BranchName::parse("main").unwrap();
    let repo = RepoName::parse("Atlas/ATLAS").unwrap();
    let names: Vec<_> = loaded.by_repo(&repo, &main).map(|app| app.name.as_str()).collect();
    assert_eq!(names, ["citation"]);
    assert_eq!(loaded.by_repo(&repo, &BranchName::parse("next").unwrap()).count(), 0);
    let touched = |paths: &[&str]| {
        let paths: Vec<RelPath> = paths.iter().map(|p| RelPath::parse(p).unwrap()).collect();
        loaded.touching(&paths).into_iter().map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(touched(&["apps/small/prod/x.yaml", "README.md", "apps/ghost/app.yaml"]), ["small"]);
    assert_eq!(touched(&["contract.yaml"]), ["citation", "small"]);
    assert_eq!(
        touched(&["applications/citation-prod.yaml"]),
        ["citation"],
        "who waits for it is told by its app"
    );
    assert!(touched(&["applications/citation-nowhere.yaml", "applications/ours.yaml"]).is_empty());
}

proptest::proptest! {
    #[test]
    fn reading_any_text_in_place_of_a_value_never_panics(line in 0usize..14, text in "[ -~é\\n]{0,40}") {
        let mut lines: Vec<&str> = CITATION.lines().collect();
        lines[line] = &text;
        let loaded = load(&[("apps/citation/app.yaml", &lines.join("\n")), ("apps/small/app.yaml", SMALLEST)]);
        proptest::prop_assert!(loaded.apps.contains_key(&AppName::parse("small").unwrap()));
    }
}

#[test]
fn an_overlay_outside_of_the_source_repository_is_refused() {
    let text = CITATION
        .replace("infra: { from: head, repo: atlas/atlas,", "infra: { from: head, repo: atlas/other,");
    let report = report(&[("apps/citation/app.yaml", &text)]);
    assert!(
        report.contains("the infra of prod comes from atlas/other, and the source is atlas/atlas"),
        "{report}"
    );
}

#[test]
fn a_source_names_where_it_is_mirrored_from_and_what_has_to_pass_there() {
    let text = |source: &str| SMALLEST.replace("{repo: Org/repo}", source);
    let good = text("{repo: Org/repo, github: acme/small, checks: [ci, \"build (linux, 3.10)\"]}");
    let loaded = load(&[("apps/small/app.yaml", &good)]);
    assert_eq!(loaded.findings, []);
    let upstream = loaded.apps[&AppName::parse("small").unwrap()].source.upstream.clone().unwrap();
    assert_eq!(upstream.github.to_string(), "acme/small");
    let checks: Vec<&str> = upstream.checks.iter().map(fabrique_core::id::CheckName::as_str).collect();
    assert_eq!(checks, ["build (linux, 3.10)", "ci"]);
    let mirrored = load(&[("apps/small/app.yaml", &text("{repo: Org/repo, github: acme/small}"))]);
    assert!(mirrored.apps.values().next().unwrap().source.upstream.as_ref().unwrap().checks.is_empty());

    let alone = report(&[("apps/small/app.yaml", &text("{repo: Org/repo, checks: [ci]}"))]);
    assert!(alone.contains("checks are named, and not the repository"), "{alone}");
    let twice = report(&[("apps/small/app.yaml", &text("{repo: Org/repo, github: a/b, checks: [ci, ci]}"))]);
    assert!(twice.contains("twice"), "{twice}");
    let wrong = report(&[("apps/small/app.yaml", &text("{repo: Org/repo, github: acme}"))]);
    assert!(wrong.contains("acme"), "{wrong}");
    let misspelt = report(&[("apps/small/app.yaml", &text("{repo: Org/repo, github: a/b, cheks: [ci]}"))]);
    assert!(misspelt.contains("did you mean checks?"), "{misspelt}");
}

#[test]
fn a_registration_that_cannot_be_used_is_known_with_its_first_finding_and_its_source_where_that_can_be_read()
{
    let wrong = |text: &str| {
        let loaded = load(&[("apps/small/app.yaml", text)]);
        assert!(loaded.apps.is_empty());
        let wrong = loaded.wrong.into_iter().next().unwrap().1;
        let source = wrong.source.as_ref().map(|(repo, branch)| format!("{repo} {branch}"));
        (wrong.to_string(), source)
    };
    let (told, source) = wrong(&SMALLEST.replace("image:", "imago:").replace("kind: App", "kind: Ap"));
    assert!(told.starts_with("apps/small/app.yaml:2:7: "), "{told}");
    assert!(told.ends_with(" (and 2 more)"), "{told}");
    assert_eq!(source.as_deref(), Some("Org/repo main"));
    let (_, source) = wrong(&SMALLEST.replace("repo}", "repo, branch: next, declaration: /x}"));
    assert_eq!(source.as_deref(), Some("Org/repo next"));
    let (told, source) = wrong("spec: [");
    assert!(told.starts_with("apps/small/app.yaml:"), "{told}");
    assert_eq!(source, None);
}

#[test]
fn two_apps_of_one_image_wait_each_with_its_finding_and_an_edit_of_one_concerns_it() {
    let other = SMALLEST.replace("name: small", "name: other");
    let loaded = load(&[("apps/small/app.yaml", SMALLEST), ("apps/other/app.yaml", &other)]);
    assert!(loaded.apps.is_empty());
    let names: Vec<&str> = loaded.wrong.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["other", "small"]);
    let changed = RelPath::parse("apps/other/app.yaml").unwrap();
    let touched: Vec<String> = loaded.touching([&changed]).iter().map(ToString::to_string).collect();
    assert_eq!(touched, ["other"]);
}
