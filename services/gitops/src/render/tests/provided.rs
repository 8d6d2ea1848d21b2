//! What the cluster provides, and the Applications that bring it.

use fabrique_declarations::Declaration;

use super::*;
use crate::render::provided::claim;

const CONTRACT: &str = "\
apiVersion: fabrique/v1
kind: Contract
version: 3
accepts: [3]
endpoints: { gitea: \"http://gitea:3000\", argocd: \"https://argocd\", registry: \"registry:80\", nats: \"nats://nats:4222\" }
databases:
  pgvector: { namespace: postgres, cluster: pg }
  marts_raw: { namespace: postgres, cluster: pg, owner: marts }
environments:
  prod:
    block: { defaultClass: rook-ceph-block, classes: { rook-ceph-block: , fast: } }
    object:
      defaultClass: rook-ceph-datalake
      defaultSize: 10Gi
      classes: { rook-ceph-datalake: , rook-ceph-archive: }
";

/// A declaration of `name` with these lines under `resources` and `dependsOn`.
fn asks(name: &str, disk: &str, buckets: &str, databases: &str) -> Needs {
    let disk = if disk.is_empty() { String::new() } else { format!("resources: {{ disk: {disk} }}\n") };
    let text = format!(
        "codeLocation: {name}\nready: true\ncontractVersion: 3\n{disk}dependsOn:\n  buckets: [{buckets}]\n  \
         database: [{databases}]\n"
    );
    let file = format!("atlas/atlas:{name}.yaml");
    let declaration = Declaration::parse(&file, text.as_bytes()).unwrap();
    Needs { asks: Some(Asks::of(&file, &declaration)), ..Needs::default() }
}

fn asking(all: &[(&str, Needs)]) -> BTreeMap<AppName, Needs> {
    all.iter().map(|(name, needs)| (app(name), needs.clone())).collect()
}

/// Apps whose manifests people keep, and the contract.
fn apps(names: &[&str]) -> Tree {
    let contract = ("contract.yaml".to_owned(), CONTRACT.to_owned());
    tree(names.iter().flat_map(|name| plain(name)).chain([contract]))
}

fn whole() -> (Tree, BTreeMap<AppName, Needs>) {
    let citation = asks(
        "citation",
        "20Gi",
        "{ name: atlas-datalake, size: 100Gi, storageClass: rook-ceph-archive }, scratch",
        "marts_raw, pgvector",
    );
    let mediawatch = asks(
        "mediawatch",
        "",
        "{ name: atlas-datalake, size: 100Gi, storageClass: rook-ceph-archive }",
        "marts_raw",
    );
    (apps(&["citation", "mediawatch"]), asking(&[("citation", citation), ("mediawatch", mediawatch)]))
}

fn names<'p>(paths: impl IntoIterator<Item = &'p RelPath>) -> Vec<&'p str> {
    paths.into_iter().map(RelPath::as_str).collect()
}

#[test]
fn every_file_of_what_is_provided_is_as_it_was_agreed() {
    let (tree, needs) = whole();
    let rendering = rendered(&tree, &needs);
    assert_eq!((told(&rendering).as_str(), rendering.withheld.len(), rendering.kept.len()), ("", 0, 0));
    let ours = rendering.files.iter().filter(|(path, _)| {
        !["applications/citation-prod.yaml", "applications/mediawatch-prod.yaml"].contains(&path.as_str())
    });
    let all: Vec<String> = ours.map(|(path, text)| format!("### {path}\n{text}")).collect();
    insta::assert_snapshot!("provided", all.join("\n"));
}

#[test]
fn nothing_is_provided_without_a_contract_and_nobody_needs_its_project() {
    let (tree, needs) = whole();
    let bare: Tree = tree
        .iter()
        .filter(|(path, _)| path.as_str() != "contract.yaml")
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    let rendering = rendered(&bare, &needs);
    let files = ["applications/citation-prod.yaml", "applications/mediawatch-prod.yaml", "root.yaml"];
    assert_eq!(names(rendering.files.keys()), files);
    assert!(!rendering.files[&path("root.yaml")].contains("provided"));
}

#[test]
fn a_resource_comes_with_the_first_app_that_is_deployed_and_asks_for_it() {
    let (tree, needs) = whole();
    let undeployed: Tree = tree
        .iter()
        .filter(|(path, _)| !path.as_str().starts_with("apps/citation/prod/"))
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    let rendering = rendered(&undeployed, &needs);
    let claims: Vec<&str> =
        names(rendering.files.keys()).into_iter().filter(|f| f.contains("/prod/")).collect();
    assert_eq!(claims, ["buckets/prod/atlas-datalake.yaml", "databases/prod/marts_raw.yaml"]);
    assert!(
        rendering.files[&path("buckets/prod/atlas-datalake.yaml")].contains("fabrique/apps: mediawatch\n")
    );
}

/// The tree with everything rendered, and what is rendered on it for other needs.
fn later(now: &BTreeMap<AppName, Needs>) -> (Tree, Rendering) {
    let (tree, needs) = whole();
    let there = written(&tree, &rendered(&tree, &needs));
    let rendering = rendered(&there, now);
    (there, rendering)
}

#[test]
fn what_nobody_asks_for_any_more_stays_with_its_file_and_is_told() {
    let none =
        asking(&[("citation", asks("citation", "", "", "")), ("mediawatch", asks("mediawatch", "", "", ""))]);
    let (there, rendering) = later(&none);
    let kept = [
        "buckets/prod/atlas-datalake.yaml",
        "buckets/prod/scratch.yaml",
        "databases/prod/marts_raw.yaml",
        "volumes/prod/citation.yaml",
    ];
    assert_eq!(names(&rendering.kept), kept);
    assert_eq!((rendering.differing(&there).count(), rendering.stale.len()), (0, 0));
    assert!(rendering.files.contains_key(&path("applications/buckets-prod.yaml")), "it still brings them");

    // An app that is not registered any more asks for nothing either, and leaves its bucket to the other one.
    let gone: Tree = there
        .iter()
        .filter(|(path, _)| !path.as_str().starts_with("apps/citation/"))
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    let (_, needs) = whole();
    let rendering = rendered(&gone, &needs);
    assert_eq!(names(&rendering.kept), ["buckets/prod/scratch.yaml", "volumes/prod/citation.yaml"]);
    assert_eq!(names(&rendering.stale), ["applications/citation-prod.yaml"]);
    assert!(
        rendering.files[&path("buckets/prod/atlas-datalake.yaml")].contains("fabrique/apps: mediawatch\n")
    );
}

#[test]
fn what_an_app_asks_for_is_unknown_while_it_waits_and_what_stands_for_it_stays() {
    for unknown in [
        BTreeMap::new(),
        asking(&[("citation", Needs { waits: vec!["x".to_owned()], ..asks("citation", "", "", "") })]),
    ] {
        let (there, rendering) = later(&unknown);
        assert_eq!((rendering.kept.len(), rendering.differing(&there).count()), (0, 0), "{rendering:#?}");
    }
}

#[test]
fn a_default_that_changes_concerns_what_is_new() {
    let (tree, needs) = whole();
    let there = written(&tree, &rendered(&tree, &needs));
    let changed = CONTRACT
        .replace("defaultClass: rook-ceph-block", "defaultClass: fast")
        .replace("defaultClass: rook-ceph-datalake", "defaultClass: rook-ceph-archive");
    let there = with(&there, &[("contract.yaml", &changed)]);
    let rendering = rendered(&there, &needs);
    assert_eq!((told(&rendering).as_str(), rendering.differing(&there).count()), ("", 0));
}

#[test]
fn what_holds_data_keeps_its_class_its_namespace_and_at_least_its_size() {
    let of = |disk: &str, bucket: &str| {
        let mut needs = whole().1;
        needs.insert(app("citation"), asks("citation", disk, bucket, ""));
        needs.insert(app("mediawatch"), asks("mediawatch", "", "", ""));
        later(&needs)
    };
    let archive =
        |size: &str| format!("{{ name: atlas-datalake, size: {size}, storageClass: rook-ceph-archive }}");
    let (_, grown) = of("30Gi", &archive("200Gi"));
    assert_eq!(told(&grown), "");
    assert!(grown.files[&path("volumes/prod/citation.yaml")].contains("storage: 30Gi"));
    assert!(grown.files[&path("buckets/prod/atlas-datalake.yaml")].contains("maxSize: 200Gi"));

    let (there, shrunk) = of("10Gi", "{ name: atlas-datalake, storageClass: rook-ceph-datalake }");
    insta::assert_snapshot!(told(&shrunk), @r"
    atlas/atlas:citation.yaml:4:20: a volume of 10Gi in the namespace apps is declared in prod, it has 20Gi; a volume never shrinks: declare at least that
    atlas/atlas:citation.yaml:6:21: bucket atlas-datalake with 10Gi of rook-ceph-datalake is declared in prod, it is there with 100Gi of rook-ceph-archive in the namespace apps; a bucket keeps its class: copy what is in it to another one
    ");
    let left = shrunk.differing(&there).filter(|(path, ..)| path.as_str().contains("/prod/"));
    assert_eq!(left.count(), 0, "what is there stays");

    let (file, text) = registration("citation", "      application: { namespace: dagster }\n");
    let (tree, needs) = whole();
    let there = written(&tree, &rendered(&tree, &needs));
    let moved = rendered(&with(&there, &[(&file, &text)]), &needs);
    assert_eq!(
        told(&moved).matches("keeps its namespace").count(),
        2,
        "the volume, and a bucket: {}",
        told(&moved)
    );
    assert!(told(&moved).contains("shares it from the namespace"), "{}", told(&moved));
}

#[test]
fn apps_that_share_a_bucket_agree_or_nobody_gets_another() {
    let sized = |name: &str, size: &str| asks(name, "", &format!("{{ name: lake, size: {size} }}"), "");
    let needs = asking(&[("a", sized("a", "1Gi")), ("b", sized("b", "2Gi"))]);
    let rendering = rendered(&apps(&["a", "b"]), &needs);
    assert_eq!(told(&rendering).matches("agree on one size and one class").count(), 2);
    assert!(!rendering.files.contains_key(&path("buckets/prod/lake.yaml")));
    // The same amount may be written in two ways.
    let needs = asking(&[("a", sized("a", "1Gi")), ("b", sized("b", "1024Mi"))]);
    let rendering = rendered(&apps(&["a", "b"]), &needs);
    assert_eq!(told(&rendering), "");
    assert!(rendering.files.contains_key(&path("buckets/prod/lake.yaml")));
}

#[test]
fn a_bucket_that_nothing_in_kubernetes_can_be_called_is_refused() {
    let needs = asking(&[("a", asks("a", "", "a..b", ""))]);
    assert!(told(&rendered(&apps(&["a"]), &needs)).contains("no resource of Kubernetes can be called so"));
}

#[test]
fn what_people_wrote_in_the_place_of_a_resource_is_left_alone() {
    let (tree, needs) = whole();
    let manual = "kind: ObjectBucketClaim\n";
    let by_hand = ["buckets/prod/scratch.yaml", "applications/databases-prod.yaml"];
    let tree = with(&tree, &by_hand.map(|file| (file, manual)));
    let rendering = rendered(&tree, &needs);
    let mut held: Vec<&str> = withheld(&rendering).into_iter().map(|(file, _)| file).collect();
    held.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(held, by_hand);
    assert!(by_hand.iter().all(|file| !rendering.files.contains_key(&path(file))));
}

#[test]
fn no_app_takes_the_place_of_what_brings_the_resources() {
    let rendering = rendered(&apps(&["buckets"]), &BTreeMap::new());
    insta::assert_snapshot!(told(&rendering), @"apps/buckets/app.yaml: buckets in prod would be applications/buckets-prod.yaml, which brings the buckets of prod; rename the environment, or the app");
}

#[test]
fn a_database_is_brought_once_for_each_cluster() {
    let (tree, both) = twice("test: {}");
    let needs = asking(&[("a", asks("a", "", "", "marts_raw"))]);
    let rendering = render(&tree, &load(&tree), &needs, &both);
    let databases: Vec<&str> =
        names(rendering.files.keys()).into_iter().filter(|file| file.contains("databases")).collect();
    assert_eq!(databases, ["applications/databases-prod.yaml", "databases/prod/marts_raw.yaml"]);
}

#[test]
fn one_app_has_no_volume_of_two_environments_in_one_namespace_of_one_api_server() {
    let (tree, mut both) = twice("test: { block: { defaultClass: c, classes: { c: } } }");
    let needs = asking(&[("a", asks("a", "20Gi", "", ""))]);
    let refused = |tree: &Tree, settings: &Settings| {
        let rendering = render(tree, &load(tree), &needs, settings);
        let volumes: Vec<String> = rendering
            .files
            .keys()
            .map(ToString::to_string)
            .filter(|file| file.starts_with("volumes/"))
            .collect();
        (rendering.findings.iter().map(ToString::to_string).collect::<Vec<_>>(), volumes)
    };
    let (findings, volumes) = refused(&tree, &both);
    assert_eq!((findings.len(), volumes.len()), (2, 0), "{findings:?}");
    assert!(
        findings[0].starts_with("atlas/atlas:a.yaml:4:")
            && findings[0]
                .contains("is declared in prod, and in test, in that namespace of the same API server"),
        "{findings:?}"
    );
    // It stays with whom it is of.
    let stands = {
        let mut alone = both.clone();
        alone.destinations.pop();
        let rendering = render(&tree, &load(&tree), &needs, &alone);
        rendering.files[&path("volumes/prod/a.yaml")].clone()
    };
    let (findings, volumes) = refused(&with(&tree, &[("volumes/prod/a.yaml", &stands)]), &both);
    assert_eq!((findings.len(), volumes), (1, vec!["volumes/prod/a.yaml".to_owned()]), "{findings:?}");
    assert!(findings[0].contains("is declared in test, and in prod"), "{findings:?}");
    // In another namespace it is another one.
    if let Some(test) = both.destinations.last_mut() {
        test.namespaces = vec!["test".to_owned()];
    }
    let (findings, volumes) = refused(&tree, &both);
    assert_eq!((findings.len(), volumes.len()), (0, 2), "{findings:?}");
}

#[test]
fn claims_are_read_once_for_each_app_however_many_have_a_volume() {
    let (one, both) = twice("test: { block: { defaultClass: c, classes: { c: } } }");
    let mut both = both;
    if let Some(test) = both.destinations.last_mut() {
        test.namespaces = vec!["test".to_owned()];
    }
    let all: Vec<String> = (0..20).map(|number| format!("a{number}")).collect();
    let of = |name: &str| {
        let folder = path("apps");
        let moved = one.below(&folder).map(|(file, entry)| {
            let text = String::from_utf8(entry.bytes.to_vec()).unwrap();
            (
                file.as_str().replace("apps/a/", &format!("apps/{name}/")),
                text.replace("name: a ", &format!("name: {name} "))
                    .replace("app: a,", &format!("app: {name},"))
                    .replace("80/a", &format!("80/{name}")),
            )
        });
        moved.collect::<Vec<_>>()
    };
    let contract = String::from_utf8(one.content(&path("contract.yaml")).unwrap().to_vec()).unwrap();
    let files = all.iter().flat_map(|name| of(name));
    let bare = tree(files.chain([("contract.yaml".to_owned(), contract)]));
    let needs: BTreeMap<AppName, Needs> =
        all.iter().map(|name| (app(name), asks(name, "20Gi", "", ""))).collect();
    let first = render(&bare, &load(&bare), &needs, &both);
    let stands = written(&bare, &first);
    let volumes = first.files.keys().filter(|file| file.as_str().starts_with("volumes/")).count();
    assert_eq!((volumes, told(&first).as_str()), (40, ""));

    let read = |tree: &Tree| {
        claim::READ.with(|read| read.set(0));
        assert_eq!(told(&render(tree, &load(tree), &needs, &both)), "");
        claim::READ.with(std::cell::Cell::get)
    };
    assert_eq!(read(&stands), 40, "each that stands");
    let in_prod: Tree = stands
        .iter()
        .filter(|(path, _)| !path.as_str().starts_with("volumes/test/"))
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    assert_eq!(read(&in_prod), 40, "each that stands, and once more for the one of another environment");
}

#[test]
fn one_name_is_no_bucket_of_two_environments_on_one_api_server() {
    let (tree, mut both) = twice("test: { object: { defaultClass: c, defaultSize: 1Gi, classes: { c: } } }");
    let needs = asking(&[("a", asks("a", "", "scratch", ""))]);
    let refused = |tree: &Tree, settings: &Settings| {
        let rendering = render(tree, &load(tree), &needs, settings);
        let buckets: Vec<String> =
            rendering.files.keys().map(ToString::to_string).filter(|file| file.contains("scratch")).collect();
        (rendering.findings.iter().map(ToString::to_string).collect::<Vec<_>>(), buckets)
    };
    let (findings, buckets) = refused(&tree, &both);
    assert_eq!((findings.len(), buckets.len()), (2, 0), "{findings:?}");
    assert!(findings[0].contains("is declared in prod, and in test, on the same API server"), "{findings:?}");
    // It stays with whom it is of.
    let stands = {
        let mut alone = both.clone();
        alone.destinations.pop();
        let rendering = render(&tree, &load(&tree), &needs, &alone);
        rendering.files[&path("buckets/prod/scratch.yaml")].clone()
    };
    let (findings, buckets) = refused(&with(&tree, &[("buckets/prod/scratch.yaml", &stands)]), &both);
    assert_eq!((findings.len(), buckets), (1, vec!["buckets/prod/scratch.yaml".to_owned()]), "{findings:?}");
    assert!(findings[0].contains("is declared in test, and in prod"), "{findings:?}");
    // Elsewhere it is another one.
    if let Some(test) = both.destinations.last_mut() {
        test.server = "https://test.example.com:6443".to_owned();
    }
    let (findings, buckets) = refused(&tree, &both);
    assert_eq!((findings, buckets.len()), (Vec::new(), 2));
}

/// An app in two environments of one API server, and what the contract offers in the second.
fn twice(offer: &str) -> (Tree, Settings) {
    let (file, text) = registration("a", "    - name: test\n");
    let (composition, shown) = composition("a", "");
    let test = composition.replace("/prod/", "/test/");
    let files = [
        (file.as_str(), text.as_str()),
        (test.as_str(), &shown.replace("environment: prod", "environment: test")),
        ("apps/a/test/deployment.yaml", "kind: Deployment\n"),
    ];
    let contract = format!("{CONTRACT}  {offer}\n");
    let tree = with(&with(&apps(&["a"]), &files), &[("contract.yaml", &contract)]);
    let mut both = settings();
    let test =
        Destination { environment: EnvironmentName::parse("test").unwrap(), ..both.destinations[0].clone() };
    both.destinations.push(test);
    (tree, both)
}

#[test]
fn a_commit_brings_what_its_app_asks_for_and_leaves_the_others() {
    let (bare, planned) = deployment("citation");
    let bare = with(&bare, &[("contract.yaml", CONTRACT)]);
    let needs = whole().1.remove(&app("citation"));
    let prod = EnvironmentName::parse("prod").unwrap();
    let place = (&app("citation"), &prod);
    let go = |planned: Planned, tree: &Tree, needs: Option<Needs>| -> Result<Planned, Refusal> {
        along(planned, tree, (&load(tree), &Standing::of(tree)), place, needs, &settings())
    };
    let together = go(planned.clone(), &bare, needs.clone()).unwrap();
    let brought: Vec<&str> =
        changed(&together).into_iter().filter(|file| !file.starts_with("apps/")).collect();
    let expected = [
        "applications/buckets-prod.yaml",
        "applications/citation-prod.yaml",
        "applications/databases-prod.yaml",
        "applications/volumes-prod.yaml",
        "buckets/prod/atlas-datalake.yaml",
        "buckets/prod/scratch.yaml",
        "databases/prod/marts_raw.yaml",
        "volumes/prod/citation.yaml",
    ];
    assert_eq!(brought, expected);
    // The same files as of the whole rendering; the root is a person's.
    let after = bare.apply(&together.changes).unwrap();
    let known: BTreeMap<AppName, Needs> =
        needs.clone().map(|needs| (app("citation"), needs)).into_iter().collect();
    assert_eq!(rendered(&after, &known).differing(&after).count(), 1);
    // Without a word about what it asks for, nothing of it changes.
    let repaired = go(planned.clone(), &after, None).unwrap();
    assert!(changed(&repaired).iter().all(|file| file.starts_with("apps/")), "{:?}", changed(&repaired));

    // What another app shares is changed by no commit of one app; what cannot be is refused with its place.
    let (other, _) = deployment("mediawatch");
    let both: Tree =
        after.iter().chain(other.iter()).map(|(path, entry)| (path.clone(), entry.clone())).collect();
    let second =
        asks("mediawatch", "", "{ name: atlas-datalake, size: 1Gi, storageClass: rook-ceph-archive }", "");
    let (_, planned) = deployment("mediawatch");
    let place = (&app("mediawatch"), &prod);
    let refused =
        along(planned, &both, (&load(&both), &Standing::of(&both)), place, Some(second), &settings())
            .unwrap_err();
    insta::assert_snapshot!(refused, @"atlas/atlas:mediawatch.yaml:5:21: bucket atlas-datalake with 1Gi of rook-ceph-archive is declared in prod, it is there with 100Gi of rook-ceph-archive in the namespace apps for citation; agree with them, then let `fabrique render` change it: it reads what all declare");
}

const BUCKETS: [&str; 3] = ["lake", "marts", "scratch"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_provided_is_a_function_of_what_is_asked_and_stays_in_its_folders(
        wanted in proptest::collection::vec(
            (proptest::option::of(1u64..4), proptest::collection::btree_set(0..BUCKETS.len(), 0..3), any::<bool>(), any::<bool>()),
            4,
        ),
        order in Just((0..4usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let all = ["a", "b", "c", "d"];
        let needs: BTreeMap<AppName, Needs> = order.iter().filter_map(|index| {
            let (disk, buckets, database, known) = &wanted[*index];
            let disk = disk.map(|size| format!("{size}Gi")).unwrap_or_default();
            let buckets: Vec<&str> = buckets.iter().map(|bucket| BUCKETS[*bucket]).collect();
            let database = if *database { "marts_raw" } else { "" };
            known.then(|| (app(all[*index]), asks(all[*index], &disk, &buckets.join(","), database)))
        }).collect();
        let (sorted, shuffled) = (apps(&all), apps(&order.iter().map(|index| all[*index]).collect::<Vec<_>>()));
        let rendering = rendered(&sorted, &needs);
        prop_assert_eq!(&rendering, &rendered(&shuffled, &needs));
        for file in rendering.files.keys().filter(|file| !file.as_str().starts_with("applications/")) {
            let parts: Vec<&str> = file.as_str().split('/').collect();
            let ours = matches!(parts[..], ["buckets" | "databases" | "volumes", "prod", _] | ["root.yaml"]);
            prop_assert!(ours, "{}", file);
        }
        let after = written(&sorted, &rendering);
        let again = rendered(&after, &needs);
        prop_assert_eq!(again.differing(&after).count(), 0);
        prop_assert_eq!(again.kept.len(), 0);
        // Whatever is asked for later, no claim goes away, and none changes that nothing is known of.
        let nothing = rendered(&after, &BTreeMap::new());
        prop_assert_eq!((nothing.differing(&after).count(), nothing.kept.len()), (0, 0));
    }
}
