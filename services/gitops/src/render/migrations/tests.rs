use fabrique_yaml::{Node, Yaml};
use proptest::prelude::*;

use super::*;
use crate::render::stands::value;

const CONTRACT: &str = include_str!("../../../../../docs/contract.yaml.example");
const FILE: &str = "atlas/citation@abc:code-location.manifest.yaml";

fn declaration(depends: &str) -> Declaration {
    let text = format!("codeLocation: citation\nready: true\ncontractVersion: 3\ndependsOn:\n{depends}");
    Declaration::parse(FILE, text.as_bytes()).unwrap()
}

const WHOLE: &str = "  database: [pgvector]\n  secrets: [pgvector-pg-auth]\n  migrations: [b.sql, a.sql]\n";

fn contract() -> Contract {
    Contract::parse("contract.yaml", CONTRACT.as_bytes()).unwrap()
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

fn files(files: &[(&str, &str)]) -> Vec<(RelPath, Entry)> {
    files.iter().map(|(name, text)| (path(name), Entry::regular((*text).to_owned()))).collect()
}

fn picked(depends: &str, there: &[(&str, &str)]) -> Result<Migrations, String> {
    let declaration = declaration(depends);
    Migrations::pick(FILE, &declaration, &path("sql"), files(there)).map_err(|finding| finding.to_string())
}

fn target(depends: &str, namespace: &str) -> Result<Target, String> {
    Target::of(FILE, &declaration(depends), &contract(), namespace).map_err(|finding| finding.to_string())
}

fn runner() -> Runner {
    let image = format!("registry:80/fabrique@sha256:{}", "0".repeat(64));
    Runner { image, tls: "require".to_owned(), limit: 900 }
}

fn names() -> (AppName, EnvironmentName) {
    (AppName::parse("citation").unwrap(), EnvironmentName::parse("prod").unwrap())
}

fn rendered(tree: &Tree, wanted: &Migrations) -> Option<(RelPath, String)> {
    let (app, environment) = names();
    render(tree, &app, &environment, wanted, &target(WHOLE, "dagster").unwrap(), &runner())
}

fn migrations(files: &[(&str, &str)]) -> Migrations {
    Migrations(files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect())
}

/// Those of a rendered file.
fn read(text: &str) -> Option<Migrations> {
    Migrations::read(text.as_bytes())
}

/// The tree after what is rendered was committed.
fn tree(files: &[(&str, &str)]) -> Tree {
    let (file, text) = rendered(&Tree::default(), &migrations(files)).unwrap();
    [(file, Entry::regular(text))].into_iter().collect()
}

#[test]
fn what_was_deployed_is_a_beginning_but_for_the_last_which_may_never_have_worked() {
    let stands = |files: &[(&str, &str)]| rendered(&Tree::default(), &migrations(files)).unwrap().1;
    let edited = |before: &[(&str, &str)], now: &[(&str, &str)]| {
        let names: Vec<&str> = now.iter().map(|(name, _)| *name).collect();
        let declaration = declaration(&format!("  migrations: [{}]\n", names.join(", ")));
        let found = migrations(now).edited(FILE, &declaration, stands(before).as_bytes());
        found.map(|finding| finding.to_string())
    };
    let (a, b, c) = (("a.sql", "SELECT 1;\n"), ("b.sql", "SELECT 2;\n"), ("c.sql", "SELECT 3;\n"));
    let other = |(name, _): (&'static str, &str)| (name, "SELECT 0;");
    for (before, now) in [
        (vec![a, b], vec![a, b]),
        (vec![a, b], vec![a, b, c]),
        // An older image, and a last one that is corrected or taken back.
        (vec![a, b, c], vec![a]),
        (vec![a, b], vec![a, other(b), c]),
        (vec![a], vec![b]),
    ] {
        assert_eq!(edited(&before, &now), None, "{before:?} {now:?}");
    }
    let told = edited(&[a, b], &[other(a), b]).unwrap();
    assert!(told.starts_with(&format!("{FILE}:5:16: a.sql was edited since it was deployed")), "{told}");
    assert!(told.contains("`fabrique release`"), "{told}");
    let told = edited(&[a, b, c], &[a, c, b]).unwrap();
    assert!(told.starts_with(&format!("{FILE}:5:23: c.sql is in the place of b.sql")), "{told}");
    assert!(edited(&[a, b], &[b]).is_some(), "the first was taken out");
    // What a person wrote says nothing.
    let declaration = declaration("  migrations: [a.sql]\n");
    assert_eq!(migrations(&[a]).edited(FILE, &declaration, b"kind: ConfigMap\n"), None);
}

#[test]
fn a_config_map_and_a_job_run_before_the_sync() {
    let sql = "-- no-transaction\nCREATE INDEX CONCURRENTLY i ON t USING hnsw (v vector_cosine_ops);\n";
    let wanted =
        picked(WHOLE, &[("a.sql", "SELECT 1;\n"), ("b.sql", sql), ("c.sql", "not declared")]).unwrap();
    let (file, text) = rendered(&Tree::default(), &wanted).unwrap();
    assert_eq!(file.as_str(), "migrations/prod/citation/migrations.yaml");
    insta::assert_snapshot!(text);
}

#[test]
fn what_argo_cd_needs_of_hooks_is_there() {
    let (_, text) = rendered(&Tree::default(), &migrations(&[("a.sql", "1")])).unwrap();
    let yaml = Yaml::parse(text.as_bytes()).unwrap();
    let annotation = |document: &Node, name: &str| {
        let metadata = value(document, "metadata").unwrap();
        let found =
            value(metadata, "annotations").and_then(|all| value(all, &format!("argocd.argoproj.io/{name}")));
        found.and_then(Node::text).unwrap().to_owned()
    };
    let waves: Vec<i32> =
        yaml.documents().iter().map(|document| annotation(document, "sync-wave").parse().unwrap()).collect();
    assert!(waves.is_sorted_by(|before, after| before < after), "{waves:?}");
    for document in yaml.documents() {
        assert_eq!(annotation(document, "hook"), "PreSync");
        assert_eq!(annotation(document, "hook-delete-policy"), "BeforeHookCreation");
    }
}

#[test]
fn what_is_declared_and_not_there_is_named_where_it_is_declared() {
    let told = picked(WHOLE, &[("b.sql", "")]).unwrap_err();
    assert!(told.starts_with(&format!("{FILE}:7:23: a.sql is not in sql at this revision")), "{told}");
    let link = Entry { kind: FileKind::Symlink, bytes: "/etc/passwd".into() };
    let there = [(path("a.sql"), link), (path("b.sql"), Entry::regular(""))];
    let told = Migrations::pick(FILE, &declaration(WHOLE), &path("sql"), there).unwrap_err();
    assert!(told.what.contains("symlink"), "{told}");
    for bytes in [&b"\xff"[..], b"a\0"] {
        let there = [(path("b.sql"), Entry::regular(bytes.to_vec())), (path("a.sql"), Entry::regular(""))];
        let told = Migrations::pick(FILE, &declaration(WHOLE), &path("sql"), there).unwrap_err();
        assert!(told.what.contains("sql/b.sql is not text"), "{told}");
    }
}

#[test]
fn a_set_that_no_config_map_holds_is_refused_with_what_to_do() {
    let around = |text: &str| write::data(&migrations(&[("b.sql", text), ("a.sql", "")])).len() - text.len();
    let most = "x".repeat(LARGEST - around("x"));
    let largest = picked(WHOLE, &[("a.sql", ""), ("b.sql", &most)]).unwrap();
    assert_eq!(read(&rendered(&Tree::default(), &largest).unwrap().1), Some(largest));
    let told = picked(WHOLE, &[("a.sql", ""), ("b.sql", &format!("{most}x"))]).unwrap_err();
    assert!(
        told.contains("have 1032193 bytes together") && told.contains("load data from elsewhere"),
        "{told}"
    );
    // Short lines more than double what is written.
    let lines = "x;\n".repeat(200_000);
    let told = picked(WHOLE, &[("a.sql", ""), ("b.sql", &lines)]).unwrap_err();
    assert!(told.contains("four before each line"), "{told}");
}

#[test]
fn the_database_and_its_secret_are_those_that_the_app_depends_on() {
    let target = |depends: &str, namespace: &str| target(depends, namespace);
    let found = target(WHOLE, "dagster").unwrap();
    let wanted = ("pg-rw.postgres.svc", "pgvector", "pgvector-pg-auth");
    assert_eq!((found.host.as_str(), found.database.as_str(), found.secret.as_str()), wanted);
    // The relay's secret has both keys as well, and is not from where the database is.
    let both = "  database: [pgvector]\n  secrets: [smtp-relay, pgvector-pg-auth]\n  migrations: [a.sql]\n";
    assert_eq!(target(both, "dagster").unwrap(), found);
    // Who alone has the keys needs not be derived.
    let alone = "  database: [pgvector]\n  secrets: [smtp-relay]\n  migrations: [a.sql]\n";
    assert_eq!(target(alone, "dagster").unwrap().secret, "smtp-relay");
    for from in ["postgres", "elsewhere"] {
        // Two from beside the database, and then none.
        let contract =
            CONTRACT.replace("from: { namespace: postgres", &format!("from: {{ namespace: {from}"));
        let relay = "keys: [host, username, password]";
        let derived = format!("{relay}\n    from: {{ namespace: {from}, secret: relay }}");
        let contract =
            Contract::parse("contract.yaml", contract.replace(relay, &derived).as_bytes()).unwrap();
        let told = Target::of(FILE, &declaration(both), &contract, "dagster").unwrap_err();
        assert!(told.what.contains("dependsOn.secrets has 2"), "{told}");
    }
    assert!(
        target("  database: [pgvector]\n  migrations: [a.sql]\n", "dagster").unwrap_err().contains("has 0")
    );
    let two = "  database: [pgvector, marts]\n  secrets: [pgvector-pg-auth]\n  migrations: [a.sql]\n";
    assert!(target(two, "dagster").unwrap_err().contains("dependsOn.database names 2"));
    let elsewhere = target(WHOLE, "apps").unwrap_err();
    assert!(elsewhere.contains("pgvector-pg-auth is in dagster, and the app in apps"), "{elsewhere}");
}

#[test]
fn migrations_that_were_given_up_with_their_database_leave_a_file_that_runs_nothing() {
    let (app, environment) = names();
    assert_eq!(given_up(&Tree::default(), &app, &environment), None, "nothing stands there");
    let stands = tree(&[("a.sql", "SELECT 1;\n")]);
    let (file, text) = given_up(&stands, &app, &environment).unwrap();
    assert_eq!(file, path("migrations/prod/citation/migrations.yaml"));
    assert!(text.starts_with(MARK) && text.lines().all(|line| line.starts_with('#')), "{text}");
    assert_eq!(read(&text), None);
    let by_hand = [(file, Entry::regular("kind: Job\n".to_owned()))].into_iter().collect();
    assert_eq!(given_up(&by_hand, &app, &environment), None, "what a person wrote stays");
}

#[test]
fn what_is_wanted_is_rendered_whatever_stands_there() {
    let (one, two) = (("a.sql", "1\n"), ("b.sql", "2\n"));
    let newer = tree(&[one, two]);
    // Also less, down to nothing: a file that never worked has to go.
    for wanted in [&[][..], &[one], &[one, ("b.sql", "3\n")], &[one, two, ("c.sql", "3\n")]] {
        let (_, text) = rendered(&newer, &migrations(wanted)).unwrap();
        assert_eq!(read(&text), Some(migrations(wanted)));
    }
    assert_eq!(rendered(&Tree::default(), &Migrations::default()), None);
    // One that is ours and cannot be read is written again, and not taken for a person's.
    let (file, text) = rendered(&newer, &migrations(&[one])).unwrap();
    let cut: Tree = [(file.clone(), Entry::regular(format!("{MARK}\n}}")))].into_iter().collect();
    assert_eq!(rendered(&cut, &migrations(&[one])), Some((file, text)));
    let (file, _) = rendered(&newer, &migrations(&[one])).unwrap();
    let by_hand: Tree = [(file, Entry::regular("kind: ConfigMap\n"))].into_iter().collect();
    assert_eq!(rendered(&by_hand, &migrations(&[one])), None, "a person's file stays");
}

proptest! {
    #[test]
    fn what_is_rendered_is_read_again_and_is_a_function(
        files in prop::collection::vec(("[a-z0-9]{1,6}", r#"([a-z;:#'"]|\n| |\t|\r|é){0,30}"#), 1..6),
    ) {
        let mut files: Vec<(String, String)> = files.into_iter().map(|(name, text)| (format!("{name}.sql"), text)).collect();
        files.dedup_by(|one, other| one.0 == other.0);
        let names: std::collections::BTreeSet<&String> = files.iter().map(|(name, _)| name).collect();
        prop_assume!(names.len() == files.len());
        let wanted = Migrations(files);
        let (file, text) = rendered(&Tree::default(), &wanted).unwrap();
        prop_assert_eq!(read(&text), Some(wanted.clone()), "{}", text);
        let tree: Tree = [(file.clone(), Entry::regular(text.clone()))].into_iter().collect();
        prop_assert_eq!(rendered(&tree, &wanted), Some((file, text)));
    }
}
