use proptest::prelude::*;

use super::*;

const EXAMPLE: &str = include_str!("../../../../docs/contract.yaml.example");

fn told(text: &str) -> String {
    let findings = Contract::parse(FILE_NAME, text.as_bytes()).unwrap_err();
    findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_is_a_contract() {
    let contract = Contract::parse("contract.yaml.example", EXAMPLE.as_bytes()).unwrap();
    assert_eq!((contract.version.get(), contract.accepts.len()), (3, 2));
    let secret = &contract.secrets[&"pgvector-pg-auth".parse().unwrap()].value;
    assert_eq!(secret.keys.iter().map(SecretKey::as_str).collect::<Vec<_>>(), ["username", "password"]);
    assert_eq!(secret.from.as_ref().map(|from| from.secret.as_str()), Some("pg-role-pgvector"));
    let prod = &contract.environments[&EnvironmentName::parse("prod").unwrap()].value;
    assert_eq!(prod.cpu.map(|cpu| cpu.value.usable()), Some(Quantity::whole(80)));
    let object = prod.object.as_ref().unwrap();
    let room = object.classes[&object.default_class].value.unwrap();
    assert_eq!(room.usable(), Quantity::whole(18 << 40));
    assert_eq!(contract.placeholders, Placeholder::both(), "the example writes the defaults out");
}

#[test]
fn the_least_contract_has_the_default_placeholders() {
    let text = "\
apiVersion: fabrique/v1
kind: Contract
version: 1
accepts: [1]
endpoints: { gitea: 'http://g', argocd: 'https://a', registry: registry, nats: 'nats://n' }
environments: { prod: {} }
";
    let contract = Contract::parse(FILE_NAME, text.as_bytes()).unwrap();
    assert_eq!(contract.placeholders, Placeholder::both());
    assert!(contract.databases.is_empty() && contract.secrets.is_empty());
}

#[test]
fn a_placeholder_is_spelled_for_an_app() {
    let app = AppName::parse("citation-eu").unwrap();
    let texts: Vec<String> = Placeholder::both().iter().map(|placeholder| placeholder.of(&app)).collect();
    assert_eq!(texts, ["__CITATION_EU_IMAGE_DIGEST__", "__CITATION_EU_IMAGE__"]);
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let text = "\
apiVersion: v1
kind: Contract
version: 4
accepts: [2, 3, 3]
endpoints: { gitea: 'ftp://g', argocd: 'https://me:secret@a', registry: 'http://registry:80', natz: x }
databases:
  PG: { namespace: postgres, cluster: pg }
  marts: { namespace: post.gres }
secrets:
  a: { namespace: n, keys: [] }
  b: { namespace: n, keys: [k, k], from: { secret: s } }
environments:
  Prod: {}
  prod:
    cpu: { capacity: 4, reserve: 100% }
    memory: { capacity: 1Gi, reserve: 2Gi }
    gpu: {}
    block: { defaultClass: rook-ceph-blok, classes: { rook-ceph-block: { reserve: 1Gi } } }
    object: { defaultClass: d, classes: [d] }
placeholders:
  - { name: CITATION_IMAGE, form: digest, place: { images: digest } }
  - { name: __<APP>_A__, form: reference, place: { images: digest } }
  - { name: __<APP>_A__, form: tag, place: { env: A, images: digest } }
  - { name: __<APP>_A__, form: digest, place: { env: 1A } }
  - { name: __<APP>_A__, form: digest, place: { env: A } }
";
    insta::assert_snapshot!(told(text));
}

#[test]
fn credentials_in_an_endpoint_are_refused_and_not_repeated() {
    let told = told(&EXAMPLE.replace("nats://nats.", "nats://worker:hunter2@nats."));
    assert!(told.contains("endpoints.nats carries credentials") && !told.contains("hunter2"), "{told}");
}

proptest! {
    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Contract::parse(FILE_NAME, &bytes);
    }

    #[test]
    fn a_contract_with_a_piece_cut_out_makes_nothing_panic(from in any::<prop::sample::Index>(), length in 0..40usize) {
        let characters: Vec<char> = EXAMPLE.chars().collect();
        let from = from.index(characters.len());
        let end = (from + length).min(characters.len());
        let text: String = characters[..from].iter().chain(&characters[end..]).collect();
        let _ = Contract::parse(FILE_NAME, text.as_bytes());
    }
}
