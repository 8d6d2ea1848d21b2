use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const SECRET: &str = "s3cret";

/// A delivery as a live Gitea 1.26.0 sent it.
#[derive(Deserialize, Clone)]
struct Recorded {
    headers: HashMap<String, String>,
    body: String,
}

impl Recorded {
    fn named(name: &str) -> Self {
        let file = format!("{}/tests/payloads/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let mut recorded: Recorded = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        recorded.headers = recorded.headers.into_iter().map(|(k, v)| (k.to_lowercase(), v)).collect();
        recorded
    }

    fn with(mut self, header: &str, value: &str) -> Self {
        self.headers.insert(header.to_owned(), value.to_owned());
        self
    }

    fn without(mut self, header: &str) -> Self {
        self.headers.remove(header);
        self
    }

    /// The push delivery with its body changed, whatever the signature then is.
    fn edited(mut self, from: &str, to: &str) -> Self {
        assert!(self.body.contains(from), "{from} is in the recording");
        self.body = self.body.replace(from, to);
        self
    }

    fn ask<T>(&self, question: impl FnOnce(&RawDelivery<'_>) -> T) -> T {
        let header = |name: &str| self.headers.get(name).map(String::as_str);
        question(&RawDelivery { header: &header, body: self.body.as_bytes() })
    }

    fn verify(&self, secrets: &[&str]) -> Result<(), Rejection> {
        let reader = Deliveries::new(secrets.iter().map(|s| SecretString::from(*s)).collect()).unwrap();
        self.ask(|raw| reader.verify(raw))
    }

    fn parse(&self) -> Result<Delivery, Rejection> {
        let reader = Deliveries::new(vec![SECRET.into()]).unwrap();
        self.ask(|raw| reader.parse(raw))
    }

    fn reason(&self) -> String {
        match self.parse() {
            Ok(Delivery::Ignored { reason, .. }) => reason,
            other => panic!("not ignored: {other:?}"),
        }
    }

    fn refusal(&self) -> String {
        match self.parse() {
            Err(Rejection::Malformed(reason)) => reason,
            other => panic!("not refused as malformed: {other:?}"),
        }
    }
}

fn ordinary() -> Recorded {
    Recorded::named("push-forced")
}

#[test]
fn each_recorded_delivery_is_signed_and_means_what_happened() {
    let push = |delivery: &str, branch: &str, (before, after): (&str, &str)| {
        Delivery::Push(Push {
            delivery: delivery.to_owned(),
            repo: RepoName::parse("atlas/citation").unwrap(),
            branch: BranchName::parse(branch).unwrap(),
            before: before.to_owned(),
            after: after.to_owned(),
            test: before == after,
        })
    };
    let ignored = |reason: &str| Delivery::Ignored {
        repo: Some(RepoName::parse("atlas/citation").unwrap()),
        reason: reason.to_owned(),
    };
    let none = "0000000000000000000000000000000000000000";
    let first = "1b1ddb306957aceb3672cbcba75a65f543ea614f";
    let seventh = "3516595ff66b18ec14a1f7218554c41c3e9fb4c5";
    let forced = "c4709956aa2a023ba0c39bf7f72258193ca1088b";
    let feature = "0bc28d1c826fc51cd16bbc7e8ddd67f86c22bcfd";
    let expected = [
        ("create-branch-main", ignored("the event create starts no work")),
        ("create-branch-feature", ignored("the event create starts no work")),
        ("create-tag", ignored("the event create starts no work")),
        ("delete-branch", ignored("the event delete starts no work")),
        ("delete-tag", ignored("the event delete starts no work")),
        ("push-branch-created", push("c8699d35-922e-41a1-b69f-ae979e43f887", "main", (none, first))),
        ("push-seven-commits", push("7b837e83-4c40-4845-880e-e8a7cb7525f7", "main", (first, seventh))),
        ("push-forced", push("8b7a3a78-a885-4f2f-9a95-a5484a644dd9", "main", (seventh, forced))),
        (
            "push-branch-feature-created",
            push("a027cd31-90c4-4305-9a32-baddf2e5549e", "feature/a.b", (none, feature)),
        ),
        ("push-tag-created", ignored("v1 is a tag")),
        ("push-tag-deleted", ignored("the tag v1 was deleted")),
        ("push-test-delivery", push("c5bc9752-4315-4dde-9459-b3816d88254e", "main", (forced, forced))),
    ];
    let folder = format!("{}/tests/payloads", env!("CARGO_MANIFEST_DIR"));
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), expected.len());
    for (name, expected) in expected {
        let recorded = Recorded::named(name);
        assert_eq!(recorded.verify(&[SECRET]), Ok(()), "{name}");
        assert_eq!(recorded.parse(), Ok(expected), "{name}");
    }
}

#[test]
fn a_delivery_without_giteas_own_signature_is_unsigned_whatever_other_headers_say() {
    assert!(ordinary().headers["x-hub-signature-256"].starts_with("sha256="));
    for unsigned in
        [ordinary().without(SIGNATURE), ordinary().with(SIGNATURE, ""), ordinary().with(SIGNATURE, "  ")]
    {
        assert_eq!(unsigned.verify(&[SECRET]), Err(Rejection::Unsigned));
    }
}

#[test]
fn a_signature_that_is_wrong_in_any_way_is_refused() {
    let good = ordinary().headers[SIGNATURE].clone();
    let other = Recorded::named("push-seven-commits").headers[SIGNATURE].clone();
    for bad in [
        other,
        good.to_uppercase(),
        good[..62].to_owned(),
        format!("{good}00"),
        format!("sha256={good}"),
        "zz".repeat(32),
        "é".to_owned(),
    ] {
        assert_eq!(ordinary().with(SIGNATURE, &bad).verify(&[SECRET]), Err(Rejection::BadSignature), "{bad}");
    }
    assert_eq!(
        ordinary().edited("refs/heads/main", "refs/heads/evil").verify(&[SECRET]),
        Err(Rejection::BadSignature)
    );
}

#[test]
fn either_of_two_secrets_is_accepted_during_a_rotation() {
    assert_eq!(ordinary().verify(&["new", SECRET]), Ok(()));
    assert_eq!(ordinary().verify(&[SECRET, "old"]), Ok(()));
    assert_eq!(ordinary().verify(&["new", "newer"]), Err(Rejection::BadSignature));
}

#[test]
fn secrets_that_would_sign_anything_are_no_configuration() {
    for secrets in [vec![], vec!["".into()], vec!["a".into(), "".into()], vec!["a".into(); 3]] {
        assert!(Deliveries::new(secrets).is_err());
    }
}

#[test]
fn the_event_in_the_header_must_agree_with_the_body() {
    assert_eq!(
        ordinary().with(EVENT, "create").refusal(),
        "the header says \"create\", and the body is a push"
    );
    assert_eq!(
        Recorded::named("create-tag").with(EVENT, "push").refusal(),
        "the header says push, and the body is none"
    );
    assert_eq!(ordinary().without(EVENT).refusal(), "there is no X-Gitea-Event header");
}

#[test]
fn an_unknown_event_is_ignored_by_its_escaped_name() {
    let strange = Recorded::named("delete-tag").with(EVENT, "re\u{1b}[31mlease");
    assert_eq!(strange.reason(), r"the event re\u{1b}[31mlease starts no work");
}

#[test]
fn a_deleted_branch_is_ignored() {
    let zeros = "0".repeat(40);
    let deleted = ordinary()
        .edited("\"after\":", "\"was\":")
        .edited("{", "{")
        .edited("\"ref\":", &format!("\"after\":\"{zeros}\",\"ref\":"));
    assert_eq!(deleted.reason(), "the branch main was deleted");
}

#[test]
fn references_outside_heads_and_unusable_branch_names_are_ignored_escaped() {
    let with_ref = |reference: &str| ordinary().edited("refs/heads/main", reference).reason();
    assert_eq!(with_ref("refs/pull/1/head"), "refs/pull/1/head is not a branch");
    assert_eq!(with_ref("main"), "main is not a branch");
    assert!(with_ref("refs/heads/-upload-pack=x").contains("is not a branch name"));
    let forged = with_ref(r"refs/heads/a\nfake=log");
    assert!(!forged.contains('\n') && forged.contains("is not a branch name"), "{forged}");
}

#[test]
fn a_hostile_repository_name_is_malformed() {
    for name in ["../../etc", "a/b/c", "-x/y", "a/b\\u0000", "", "atlas"] {
        let refusal =
            ordinary().edited("\"full_name\": \"atlas/citation\"", &format!("\"full_name\": \"{name}\""));
        assert!(refusal.refusal().contains("is not a repository"), "{name}");
    }
    assert_eq!(ordinary().edited("\"repository\"", "\"repo\"").refusal(), "the body names no repository");
}

#[test]
fn object_ids_must_be_of_the_repositorys_kind() {
    let before = "3516595ff66b18ec14a1f7218554c41c3e9fb4c5";
    let after = "c4709956aa2a023ba0c39bf7f72258193ca1088b";
    for bad in ["", "--upload-pack=x", "C4709956AA2A023BA0C39BF7F72258193CA1088B", &"c".repeat(64)] {
        assert!(ordinary().edited(after, bad).refusal().contains("is not an object id"), "{bad:?}");
    }
    let sha256 = ordinary()
        .edited("\"object_format_name\": \"sha1\"", "\"object_format_name\": \"sha256\"")
        .edited(before, &"b".repeat(64))
        .edited(after, &"a".repeat(64));
    let Ok(Delivery::Push(push)) = sha256.parse() else { panic!("{:?}", sha256.parse()) };
    assert_eq!(push.after, "a".repeat(64));
    let deleted = sha256.edited(&"a".repeat(64), &"0".repeat(64));
    assert_eq!(deleted.reason(), "the branch main was deleted");
}

#[test]
fn forgejos_additions_change_nothing() {
    let forgejo = ordinary().with("x-forgejo-event", "push").with("x-forgejo-signature", "00");
    assert_eq!(forgejo.verify(&[SECRET]), Ok(()));
    assert_eq!(forgejo.parse(), ordinary().parse());
}

#[test]
fn garbage_is_malformed_and_its_quotation_cannot_break_a_log_line() {
    for body in ["", "null", "[]", "{", "\"x\"", "{\"ref\": 1}", &"[".repeat(100_000)] {
        let refusal = Recorded { body: body.to_owned(), ..ordinary() }.refusal();
        assert!(!refusal.is_empty() && !refusal.contains('\n'), "{refusal}");
    }
    let quoted = Recorded { body: format!("{{\"ref\": {{\"{}\\n\": 1}}}}", "x".repeat(5000)), ..ordinary() };
    assert!(quoted.refusal().chars().count() <= 300);
}

proptest! {
    #[test]
    fn reading_never_panics_on_bytes(body in prop::collection::vec(any::<u8>(), 0..2048), event in ".{0,40}", signature in ".{0,80}") {
        let reader = Deliveries::new(vec![SECRET.into()]).unwrap();
        let header = |name: &str| match name {
            EVENT => Some(event.as_str()),
            SIGNATURE => Some(signature.as_str()),
            _ => None,
        };
        let raw = RawDelivery { header: &header, body: &body };
        prop_assert!(reader.verify(&raw).is_err());
        let _ = reader.parse(&raw);
    }

    #[test]
    fn reading_never_panics_on_payloads_with_any_text_and_never_yields_control_characters(
        reference in ".{0,60}", after in "[0-9a-f]{0,64}", name in ".{0,60}", prefix in "(refs/heads/|refs/tags/)?",
    ) {
        let body = serde_json::json!({
            "ref": format!("{prefix}{reference}"), "before": "0".repeat(40), "after": after,
            "repository": { "full_name": name },
        }).to_string();
        let text = match (Recorded { body, ..ordinary() }).parse() {
            Ok(Delivery::Push(push)) => push.branch.as_str().to_owned(),
            Ok(Delivery::Ignored { reason, .. }) | Err(Rejection::Malformed(reason)) => reason,
            Err(other) => panic!("{other:?}"),
        };
        prop_assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}
