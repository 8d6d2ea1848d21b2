use proptest::prelude::*;

use super::*;

/// The example of seed 001, as it is written there.
pub(crate) const SEED: &str = "\
codeLocation: citation # nom de la code-location / app
ready: true # atlas atteste : code mergé, taggé, testé
revision: a3f9c1d # SHA git court
contractVersion: 3 # version du contrat cluster ciblée
resources:
  cpu: 500m
  memory: 1Gi
  disk: 20Gi
dependsOn:
  codeLocations: [mediawatch]
  database: [pgvector]
  secrets: [pgvector-pg-auth]
  buckets:
    - name: atlas-datalake
      size: 100Gi
      storageClass: rook-ceph-datalake
  migrations: [001-researchers-hnsw.sql]
";

fn read(text: &str) -> Result<Declaration, Vec<Finding>> {
    Declaration::parse(FILE_NAME, text.as_bytes())
}

/// What is wrong, one a line.
fn told(text: &str) -> String {
    let findings = read(text).unwrap_err();
    findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_of_the_seed_is_read_whole() {
    let Declaration { code_location, ready, revision, contract_version, resources, depends_on } =
        read(SEED).unwrap();
    assert_eq!((code_location.value.as_str(), ready.value), ("citation", true));
    assert_eq!(revision.map(|r| r.value.to_string()).as_deref(), Some("a3f9c1d"));
    assert_eq!((contract_version.value.get(), contract_version.line), (3, 4));
    assert_eq!(resources.cpu.map(|cpu| cpu.value.to_string()).as_deref(), Some("500m"));
    assert_eq!(resources.memory.map(|memory| memory.value), Some(Quantity::whole(1 << 30)));
    assert_eq!(resources.disk.map(|disk| disk.value), Some(Quantity::whole(20 << 30)));
    assert_eq!(depends_on.code_locations[0].value.as_str(), "mediawatch");
    assert_eq!(depends_on.database[0].value.as_str(), "pgvector");
    assert_eq!(depends_on.secrets[0].value.as_str(), "pgvector-pg-auth");
    assert_eq!(depends_on.migrations[0].value.as_str(), "001-researchers-hnsw.sql");
    let Bucket { name, size, storage_class } = &depends_on.buckets[0];
    assert_eq!((name.value.as_str(), name.line, name.column), ("atlas-datalake", 14, 13));
    assert_eq!(size.map(|size| size.value), Some(Quantity::whole(100 << 30)));
    assert_eq!(storage_class.as_ref().map(|class| class.value.as_str()), Some("rook-ceph-datalake"));
}

#[test]
fn the_least_declaration_has_three_keys_and_needs_nothing() {
    let least = read("codeLocation: a\nready: false\ncontractVersion: 1\n").unwrap();
    assert_eq!((least.ready.value, least.revision), (false, None));
    assert_eq!((least.resources, least.depends_on), (Resources::default(), DependsOn::default()));
}

#[test]
fn a_bucket_may_be_its_name_only() {
    let text = "codeLocation: a\nready: true\ncontractVersion: 1\ndependsOn: { buckets: [atlas-datalake, { name: other }] }\n";
    let buckets = read(text).unwrap().depends_on.buckets;
    assert!(buckets.iter().all(|bucket| bucket.size.is_none() && bucket.storage_class.is_none()));
    assert_eq!(
        buckets.iter().map(|bucket| bucket.name.value.as_str()).collect::<Vec<_>>(),
        ["atlas-datalake", "other"]
    );
}

#[test]
fn revisions_of_digits_only_are_text() {
    for written in ["1234567", "\"1234567\"", "12345e7"] {
        let text = format!("codeLocation: a\nready: true\nrevision: {written}\ncontractVersion: 1\n");
        assert_eq!(read(&text).unwrap().revision.unwrap().value.as_str(), written.trim_matches('"'));
    }
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let text = "\
codelocation: citation
ready: yes
revision: HEAD~1
contractVersion: 0
resources: { cpu: 100u, memory: 400m, disk: 20GB, gpu: 1 }
dependsOn:
  codeLocations: [Mediawatch, b, b]
  databases: [pgvector]
  secrets: pgvector-pg-auth
  buckets:
    - atlas_datalake
    - { name: marts, size: 0, storageclass: x }
    - { size: 1Gi }
    - marts
    - marts
  migrations: [../001.sql, 002.sql, 002.sql]
owner: me
";
    insta::assert_snapshot!(told(text));
}

#[test]
fn what_is_no_declaration_is_told_with_its_place() {
    let all = [
        told(""),
        told("- a\n"),
        told("codeLocation: [a]\nready:\ncontractVersion: three\n"),
        told("codeLocation: a\ncodeLocation: b\n"),
        told("codeLocation: &x a\nready: true\ncontractVersion: 1\n"),
        told("a: [\n"),
        told("---\na: 1\n---\na: 2\n"),
        told("resources: []\ndependsOn: text\n"),
    ];
    insta::assert_snapshot!(all.join("\n---\n"));
}

#[test]
fn lists_are_bounded() {
    let many: Vec<String> = (0..=MAX_ITEMS).map(|i| format!("s{i}")).collect();
    let text = format!(
        "codeLocation: a\nready: true\ncontractVersion: 1\ndependsOn: {{ secrets: [{}] }}\n",
        many.join(", ")
    );
    assert!(told(&text).contains("65 items, the limit is 64"), "{}", told(&text));
}

/// A text that is nearly the seed's.
fn mutated() -> impl Strategy<Value = String> {
    let pieces = [
        "", "- ", "{", "}", "[", "]", ": ", "&a ", "*a", "!!str ", "|\n", "\n", "\"", "'", "#", "null",
        "\u{feff}", "é",
    ];
    let edits = prop::collection::vec(
        (any::<prop::sample::Index>(), prop::sample::select(pieces.to_vec()), 0..6usize),
        1..6,
    );
    edits.prop_map(|edits| {
        let mut text: Vec<char> = SEED.chars().collect();
        for (at, piece, removed) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + removed).min(text.len());
            text.splice(at..end, piece.chars());
        }
        text.into_iter().collect()
    })
}

proptest! {
    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Declaration::parse(FILE_NAME, &bytes);
    }

    #[test]
    fn nothing_near_a_declaration_makes_reading_panic_and_refusals_have_findings(text in mutated()) {
        if let Err(findings) = Declaration::parse(FILE_NAME, text.as_bytes()) {
            prop_assert!(!findings.is_empty());
            prop_assert!(findings.iter().all(|finding| !finding.what.is_empty() && !finding.remedy.is_empty()));
        }
    }
}
