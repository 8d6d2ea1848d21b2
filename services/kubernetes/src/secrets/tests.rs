use proptest::prelude::*;

use super::*;
use crate::testing::{Log, answering};

fn place(namespace: &str, name: &str) -> SecretPlace {
    SecretPlace { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn derivation() -> Derivation {
    Derivation {
        target: place("dagster", "pgvector-pg-auth"),
        source: place("postgres", "pg-role-pgvector"),
        keys: ["username", "password"].map(str::to_owned).into(),
    }
}

fn secret(data: &[(&str, &str)], by: &str) -> Secret {
    let fields: serde_json::Map<String, Value> =
        data.iter().map(|(key, _)| (format!("f:{key}"), json!({}))).collect();
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
    let mut secret = Secret { data: Some(data.collect()), ..Default::default() };
    secret.metadata.managed_fields = serde_json::from_value(json!([
        { "manager": by, "operation": "Apply", "fieldsV1": { "f:data": fields } },
    ]))
    .unwrap();
    secret
}

fn outcome(source: &Secret, stands: Option<&Secret>) -> Result<Change, String> {
    let derivation = derivation();
    let wanted = wanted(&derivation, Some(source)).map_err(|unfit| unfit.to_string())?;
    judge(&derivation, &wanted, stands).map_err(|unfit| unfit.to_string())
}

#[test]
fn exactly_the_keys_are_copied_and_what_is_right_is_left() {
    let source = secret(&[("username", "u"), ("password", "p"), ("uri", "x")], "cnpg");
    let wanted = wanted(&derivation(), Some(&source)).unwrap();
    assert_eq!(wanted.keys().collect::<Vec<_>>(), ["password", "username"]);
    let right = secret(&[("username", "u"), ("password", "p")], "anybody");
    assert_eq!(outcome(&source, None), Ok(Change::Made));
    assert_eq!(outcome(&source, Some(&right)), Ok(Change::None));
    let rotated = secret(&[("username", "u"), ("password", "old")], FIELD_MANAGER);
    assert_eq!(outcome(&source, Some(&rotated)), Ok(Change::Changed));
}

#[test]
fn a_key_that_is_missing_or_empty_fails_with_its_name() {
    let no_key = outcome(&secret(&[("username", "u")], "cnpg"), None).unwrap_err();
    assert!(no_key.starts_with("postgres/pg-role-pgvector has no key password"), "{no_key}");
    let empty = outcome(&secret(&[("username", ""), ("password", "p")], "cnpg"), None).unwrap_err();
    assert!(empty.starts_with("postgres/pg-role-pgvector has nothing under username"), "{empty}");
    assert_eq!(wanted(&derivation(), None), Err(Unfit::NoSource(derivation().source)));
}

#[test]
fn a_key_too_many_is_removed_when_it_was_derived_and_told_when_it_was_not() {
    let source = secret(&[("username", "u"), ("password", "p")], "cnpg");
    let more = [("username", "u"), ("password", "p"), ("uri", "x")];
    assert_eq!(outcome(&source, Some(&secret(&more, FIELD_MANAGER))), Ok(Change::Changed));
    let foreign = outcome(&source, Some(&secret(&more, "kubectl"))).unwrap_err();
    assert!(foreign.starts_with("dagster/pgvector-pg-auth has the key uri too"), "{foreign}");
    let mut fixed = secret(&[("username", "old"), ("password", "p")], FIELD_MANAGER);
    fixed.immutable = Some(true);
    assert!(outcome(&source, Some(&fixed)).unwrap_err().contains("immutable"));
}

#[test]
fn rights_name_each_secret_and_nothing_is_listed() {
    let other = Derivation { target: place("apps", "other"), ..derivation() };
    let documents = rbac(&[derivation(), other], Account { namespace: "fabrique", name: "secrets" });
    let text: Vec<String> =
        documents.iter().filter(|document| document["kind"] == "Role").map(Value::to_string).collect();
    insta::assert_snapshot!(text.join("\n"), @r#"
    {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"fabrique-secrets","namespace":"apps"},"rules":[{"apiGroups":[""],"resourceNames":["other"],"resources":["secrets"],"verbs":["create","get","patch"]}]}
    {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"fabrique-secrets","namespace":"dagster"},"rules":[{"apiGroups":[""],"resourceNames":["pgvector-pg-auth"],"resources":["secrets"],"verbs":["create","get","patch"]}]}
    {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"fabrique-secrets","namespace":"postgres"},"rules":[{"apiGroups":[""],"resourceNames":["pg-role-pgvector"],"resources":["secrets"],"verbs":["get"]}]}
    "#);
}

proptest! {
    /// Whatever stands there, what is written has exactly the keys, and what it had it has again the next time.
    #[test]
    fn a_second_look_finds_nothing_to_do(values in prop::collection::btree_map("[a-z]{1,8}", "[a-z]{0,4}", 0..5)) {
        let mut values = values;
        values.extend([("username".to_owned(), "u".to_owned()), ("password".to_owned(), "p".to_owned())]);
        let pairs: Vec<(&str, &str)> = values.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let data = wanted(&derivation(), Some(&secret(&pairs, "cnpg"))).unwrap();
        prop_assert_eq!(data.len(), 2);
        let written = derived(&derivation(), data.clone());
        prop_assert_eq!(judge(&derivation(), &data, Some(&written)), Ok(Change::None));
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_not_told_to_anybody() {
    let log = Log::default();
    let _logged = tracing::subscriber::set_default(log.clone());
    // The metadata is no mapping.
    let body = r#"{"data": {"password": "aHVudGVyMg=="}, "metadata": "aHVudGVyMg=="}"#;
    let writer = SecretWriter::new(answering(body).await, Duration::from_secs(10));
    let error = writer.derive(&derivation(), false).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Unexpected);
    let told = format!("{error} {error:?} {}", log.text());
    assert!(told.contains("the secret postgres/pg-role-pgvector"), "{told}");
    assert!(!told.contains("aHVudGVyMg"), "{told}");
    tracing::warn!(seen = "by the log");
    assert!(log.text().contains("by the log"), "what is logged is seen here");
}
