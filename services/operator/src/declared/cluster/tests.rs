use fabrique_core::id::{RelPath, RepoName};
use fabrique_declarations::judge;
use fabrique_gitops::registration::SourceForm;
use fabrique_gitops::render::{Destination, IN_CLUSTER};
use fabrique_gitops::{Entry, Rules};
use fabrique_ports::inventory as there;
use fabrique_ports::inventory::Named;

use super::*;

const CONTRACT: &str = "\
apiVersion: fabrique/v1
kind: Contract
version: 3
accepts: [3]
endpoints: { gitea: \"http://gitea:3000\", argocd: \"https://argocd\", registry: \"registry:80\", nats: \"nats://nats:4222\" }
databases:
  pgvector: { namespace: postgres, cluster: pg }
  marts: { namespace: postgres, cluster: pg, owner: marts }
secrets:
  pgvector-pg-auth:
    namespace: dagster
    keys: [username, password]
    from: { namespace: postgres, secret: pg-role-pgvector }
environments:
  prod:
    cpu: { capacity: 96, reserve: 2 }
    block: { defaultClass: rook-ceph-block, classes: { rook-ceph-block: } }
    object: { defaultClass: rook-ceph-datalake, defaultSize: 10Gi, classes: { rook-ceph-datalake: } }
";
const DECLARATION: &str = "\
codeLocation: citation
ready: true
contractVersion: 3
resources: { cpu: 4, disk: 20Gi }
dependsOn:
  database: [pgvector, marts]
  secrets: [pgvector-pg-auth]
  buckets: [atlas-datalake]
";

fn named(namespace: &str, name: &str) -> Named {
    Named { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// A cluster that has everything.
fn everything() -> Seen {
    let class = |name: &str, provisioner: &str| there::Class {
        name: name.to_owned(),
        provisioner: provisioner.to_owned(),
        ceph: some("rook-ceph"),
    };
    let secret = there::Secret {
        at: named("dagster", "pgvector-pg-auth"),
        keys: ["username", "password"].map(str::to_owned).into(),
    };
    let node = |name: &str, is_usable| there::Node {
        name: name.to_owned(),
        is_usable,
        cpu: some("8"),
        memory: some("16Gi"),
    };
    Seen {
        requests: 9,
        nodes: Listed::All(vec![node("one", true), node("control", false)]),
        pods: Listed::All(vec![]),
        classes: Listed::All(vec![
            class("rook-ceph-block", "rook-ceph.rbd.csi.ceph.com"),
            class("rook-ceph-datalake", "rook-ceph.ceph.rook.io/bucket"),
        ]),
        volumes: Listed::All(vec![there::Volume {
            at: named("dagster", "citation-disk"),
            class: some("rook-ceph-block"),
            size: some("20Gi"),
            phase: "Pending".to_owned(),
        }]),
        buckets: Listed::All(vec![there::Bucket {
            at: named("dagster", "atlas-datalake"),
            class: some("rook-ceph-datalake"),
            size: some("10Gi"),
            phase: "Bound".to_owned(),
        }]),
        clusters: Listed::All(vec![there::Cluster {
            at: named("postgres", "pg"),
            first_database: some("pgvector"),
        }]),
        databases: Listed::All(vec![there::Database {
            at: named("postgres", "pg-marts"),
            database: "marts".to_owned(),
            cluster: "pg".to_owned(),
            applied: Some(true),
            message: None,
        }]),
        secrets: [("dagster".to_owned(), Listed::All(vec![secret]))].into(),
        ceph: Listed::All(vec![there::Ceph {
            at: named("rook-ceph", "ceph"),
            bytes_left: Some(1 << 40),
            health: some("HEALTH_OK"),
        }]),
    }
}

/// What stands in `cluster/apps`: the registration, and what was rendered for the app where that is so.
fn tree(is_rendered: bool) -> Tree {
    let registration = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: citation }\nspec:\n  \
                        source: { repo: atlas/citation }\n  image: registry:80/citation\n  environments:\n    \
                        - { name: prod, application: { namespace: dagster } }\n";
    let rendered =
        ["buckets/prod/atlas-datalake.yaml", "databases/prod/marts.yaml", "volumes/prod/citation.yaml"];
    let rendered = rendered.into_iter().filter(|_| is_rendered).map(|file| (file, ""));
    let files = [("apps/citation/app.yaml", registration)].into_iter().chain(rendered);
    files.map(|(file, text)| (RelPath::parse(file).unwrap(), Entry::regular(text.to_owned()))).collect()
}

fn settings() -> Settings {
    Settings {
        gitea: "http://gitea:3000/".to_owned(),
        repo: RepoName::parse("cluster/apps").unwrap(),
        branch: "main".to_owned(),
        argocd_namespace: "argocd".to_owned(),
        root: "root".to_owned(),
        project: "fabrique-apps".to_owned(),
        source: SourceForm::Copy,
        destinations: vec![Destination {
            environment: EnvironmentName::parse("prod").unwrap(),
            server: IN_CLUSTER.to_owned(),
            namespaces: vec!["apps".to_owned(), "dagster".to_owned()],
        }],
        runner: None,
    }
}

/// What is told of a cluster, one a line; with the capacities where they are asked for.
fn told(seen: &Seen, is_rendered: bool, settings: Option<&Settings>) -> String {
    let contract = Contract::parse(contract::FILE_NAME, CONTRACT.as_bytes()).unwrap();
    let tree = tree(is_rendered);
    let registrations = Registrations::load(&tree, &Rules { registries: vec!["registry:80".to_owned()] });
    assert_eq!(registrations.findings, []);
    let file = "atlas/citation:code-location.manifest.yaml";
    let declaration = Declaration::parse(file, DECLARATION.as_bytes()).unwrap();
    let prod = EnvironmentName::parse("prod").unwrap();
    let subject = Subject {
        environments: vec![prod.clone()],
        registration: "apps/citation/app.yaml".to_owned(),
        file: file.to_owned(),
        declares: Declares::All(Box::new(declaration)),
    };
    let subjects = BTreeMap::from([(AppName::parse("citation").unwrap(), subject)]);
    let site = Site {
        contract: &contract,
        environment: &prod,
        offer: &contract.environments[&prod],
        subjects: &subjects,
        registrations: &registrations,
        tree: &tree,
        settings,
    };
    let mut findings = site.findings(seen);
    let judgement = judge(&contract, contract::FILE_NAME, &subjects, &usage(&site, seen));
    findings.extend(judgement.findings);
    findings.sort();
    assert!(findings.iter().all(|finding| !finding.apps.is_empty()), "{findings:#?}");
    findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_cluster_that_has_everything_has_no_findings() {
    assert_eq!(told(&everything(), true, Some(&settings())), "");
    assert_eq!(told(&everything(), false, None), "");
}

#[test]
fn everything_that_is_missing_is_told_at_once_with_its_place() {
    let mut bare = everything();
    bare.classes = Listed::All(vec![]);
    bare.volumes = Listed::All(vec![]);
    bare.buckets = Listed::All(vec![]);
    bare.databases = Listed::All(vec![]);
    bare.clusters =
        Listed::All(vec![there::Cluster { at: named("postgres", "pg"), first_database: some("app") }]);
    bare.secrets.insert("dagster".to_owned(), Listed::All(vec![]));
    insta::assert_snapshot!("missing", told(&bare, true, Some(&settings())));
    bare.clusters = Listed::All(vec![]);
    assert_eq!(told(&bare, true, None).matches("there is no PostgreSQL cluster postgres/pg").count(), 2);
}

#[test]
fn what_comes_with_the_first_deployment_is_not_missed_before_it() {
    let mut bare = everything();
    (bare.volumes, bare.buckets, bare.databases) =
        (Listed::All(vec![]), Listed::All(vec![]), Listed::All(vec![]));
    assert_eq!(told(&bare, false, Some(&settings())), "");
    // Without rendering, people make them, and before the app.
    let without = told(&bare, false, None);
    assert!(
        without.contains("no ObjectBucketClaim") && without.contains("no Database of CloudNativePG"),
        "{without}"
    );
}

#[test]
fn what_is_there_and_not_well_is_told() {
    let mut ill = everything();
    if let Listed::All(buckets) = &mut ill.buckets {
        buckets[0].phase = "Pending".to_owned();
    }
    if let Listed::All(volumes) = &mut ill.volumes {
        volumes[0].phase = "Lost".to_owned();
    }
    if let Listed::All(databases) = &mut ill.databases {
        (databases[0].applied, databases[0].message) = (Some(false), some("role marts is missing"));
    }
    if let Some(Listed::All(secrets)) = ill.secrets.get_mut("dagster") {
        secrets[0].keys.remove("password");
    }
    insta::assert_snapshot!("ill", told(&ill, true, Some(&settings())));
    let mut elsewhere = everything();
    if let Listed::All(buckets) = &mut elsewhere.buckets {
        buckets[0].at.namespace = "apps".to_owned();
    }
    assert!(
        told(&elsewhere, true, Some(&settings()))
            .contains("its claim is in apps, and so are its credentials")
    );
}

#[test]
fn what_cannot_be_seen_is_never_taken_for_well() {
    let mut blind = everything();
    (blind.nodes, blind.volumes) = (Listed::Denied, Listed::Denied);
    (blind.buckets, blind.databases) = (Listed::Unknown, Listed::Unknown);
    blind.secrets.insert("dagster".to_owned(), Listed::Denied);
    blind.ceph = Listed::Denied;
    insta::assert_snapshot!("blind", told(&blind, true, Some(&settings())));

    let mut elsewhere = everything();
    elsewhere.ceph = Listed::Unknown;
    assert_eq!(
        told(&elsewhere, true, Some(&settings())),
        "",
        "a Ceph that Rook does not run reports nothing"
    );
    elsewhere.ceph = Listed::Denied;
    if let Listed::All(classes) = &mut elsewhere.classes {
        classes.iter_mut().for_each(|class| class.ceph = None);
    }
    assert_eq!(told(&elsewhere, true, Some(&settings())), "", "nobody needs it");
}

#[test]
fn what_nodes_and_ceph_have_left_counts_and_an_apps_own_use_only_once() {
    let pod = |namespace: &str, image: &str, cpu: &str, node: &str| there::Pod {
        namespace: namespace.to_owned(),
        node: some(node),
        containers: vec![there::Container { image: image.to_owned(), cpu: some(cpu), ..Default::default() }],
    };
    // One node of 8 cores is usable, less a reserve of 2; the app asks for 4.
    let mut busy = everything();
    busy.pods = Listed::All(vec![
        pod("dagster", "registry:80/citation@sha256:1", "4", "one"),
        pod("other", "registry:80/citation-ui@sha256:1", "2", "one"),
        pod("other", "x", "100", "control"),
    ]);
    assert_eq!(told(&busy, true, Some(&settings())), "");
    if let Listed::All(pods) = &mut busy.pods {
        pods.push(pod("other", "x", "100m", "one"));
    }
    let crowded = told(&busy, true, Some(&settings()));
    assert!(crowded.contains("the cluster has 8 less a reserve of 2: 100m are too much"), "{crowded}");

    let mut full = everything();
    full.volumes = Listed::All(vec![]);
    if let Listed::All(ceph) = &mut full.ceph {
        ceph[0].bytes_left = Some(19 << 30);
    }
    let told_of = told(&full, false, Some(&settings()));
    assert!(told_of.contains("20Gi more of Ceph's storage in prod is declared"), "{told_of}");
    assert!(told_of.contains("rook-ceph/ceph reports 19Gi left (HEALTH_OK)"), "{told_of}");
}

#[test]
fn a_pod_asks_for_its_largest_step() {
    let container =
        |is_before, cpu: &str| there::Container { is_before, cpu: some(cpu), ..Default::default() };
    let mut busy = everything();
    busy.pods = Listed::All(vec![there::Pod {
        namespace: "other".to_owned(),
        node: None,
        containers: vec![container(false, "1"), container(false, "1"), container(true, "3")],
    }]);
    assert!(told(&busy, true, Some(&settings())).contains("8 less a reserve of 2: 1 are too much"));
}
