use fabrique_gitops::{Entry, Rules};

use super::*;

const HEAD: &str = "c";

fn revision(digit: &str) -> Revision {
    Revision::parse(&digit.repeat(40)).unwrap()
}

fn name(text: &str) -> AppName {
    AppName::parse(text).unwrap()
}

fn read(text: &str) -> Arc<Read> {
    Arc::new(match Declaration::parse("atlas/citation:manifest.yaml", text.as_bytes()) {
        Ok(declaration) => Read { declares: Declares::All(Box::new(declaration)), findings: Vec::new() },
        Err(findings) => Read { declares: Declares::Unreadable, findings },
    })
}

fn own(lines: &str) -> Own {
    let read = read(&format!("codeLocation: citation\ncontractVersion: 3\n{lines}\n"));
    Own { target: revision(HEAD), read, pin: Ok(()), unproven: None }
}

fn word(own: &Own, relation: Relation) -> Declared {
    let (environment, deployed) = (EnvironmentName::parse("prod").unwrap(), revision("d"));
    own.word(&name("citation"), [(&environment, &deployed, relation)])
}

fn why(declared: Declared) -> String {
    match declared {
        Declared::Admitted => "admitted".to_owned(),
        Declared::Waits(why) => format!("waits: {why}"),
        Declared::Suspended(why) => format!("suspended: {why}"),
        Declared::Refused(why) => format!("refused: {why}"),
    }
}

#[test]
fn an_app_without_a_declaration_may_be_changed() {
    let own = Own::silent(&revision(HEAD));
    assert_eq!(word(&own, Relation::Behind), Declared::Admitted);
}

#[test]
fn an_app_waits_while_it_says_that_it_is_not_ready() {
    assert_eq!(word(&own("ready: true"), Relation::Ahead), Declared::Admitted);
    assert_eq!(why(word(&own("ready: false"), Relation::Ahead)), "waits: its declaration says ready: false");
}

#[test]
fn a_declaration_that_is_wrong_is_refused_with_its_place_and_how_much_more_there_is() {
    let one = why(word(&own("rady: true\nready: true"), Relation::Ahead));
    assert_eq!(
        one,
        "refused: atlas/citation:manifest.yaml:3:1: the declaration has no field \"rady\"; did you mean ready?"
    );
    let many = why(word(&own("rady: true\nrevision: x"), Relation::Ahead));
    assert!(many.starts_with("refused: atlas/citation:manifest.yaml:"), "{many}");
    assert!(many.ends_with("; and 2 more, told by `fabrique validate citation`"), "{many}");
}

#[test]
fn a_pin_is_refused_where_automation_would_lead_back_and_a_head_is_not() {
    let pinned = own("ready: true\nrevision: ccccccc");
    for fine in [Relation::Same, Relation::Ahead, Relation::Diverged, Relation::Unknown] {
        assert_eq!(word(&pinned, fine), Declared::Admitted, "{fine:?}");
    }
    let back = why(word(&pinned, Relation::Behind));
    assert!(back.starts_with("refused: ") && back.contains("roll back by hand"), "{back}");
    // A branch that was rewound is the guard's to tell.
    assert_eq!(word(&own("ready: true"), Relation::Behind), Declared::Admitted);
    // What is wrong for good is told before what ends by itself.
    let both = why(word(&own("ready: false\nrevision: ccccccc"), Relation::Behind));
    assert!(both.starts_with("refused: "), "{both}");
}

#[test]
fn a_pin_that_means_nothing_is_refused() {
    let prefix: RevisionPrefix = "abcdef0".parse().unwrap();
    let pin = pin::resolve(&prefix, &[revision(HEAD)]).map(drop);
    let own = Own { pin, ..own("ready: true\nrevision: abcdef0") };
    assert_eq!(
        why(word(&own, Relation::Ahead)),
        "refused: revision abcdef0 is no ancestor of the branch's head; the newest are cccccccccccc"
    );
}

fn subject(lines: Option<&str>) -> Subject {
    Subject {
        environments: vec![],
        registration: "apps/x/app.yaml".to_owned(),
        file: "atlas/x:manifest.yaml".to_owned(),
        declares: lines.map_or(Declares::Nothing, |lines| {
            read(&format!("contractVersion: 3\n{lines}\n")).declares.clone()
        }),
    }
}

fn judged(subjects: &BTreeMap<AppName, Subject>) -> Judgement {
    let contract = "apiVersion: fabrique/v1\nkind: Contract\nversion: 3\naccepts: [3]\nendpoints: { gitea: 'http://gitea', \
                    argocd: 'https://argocd', registry: 'registry:80', nats: 'nats://nats' }\nenvironments: { prod: {} }\n";
    let contract = Contract::parse(contract::FILE_NAME, contract.as_bytes()).unwrap();
    judge(&contract, contract::FILE_NAME, subjects, &Usage::default())
}

fn of_others(citation: &str, mediawatch: Option<&str>) -> (String, Vec<String>) {
    let mut subjects = BTreeMap::from([(name("citation"), subject(Some(citation)))]);
    subjects.extend(mediawatch.map(|lines| (name("mediawatch"), subject(Some(lines)))));
    let (declared, awaits) = word_of(&name("citation"), &judged(&subjects));
    (why(declared), awaits.iter().map(ToString::to_string).collect())
}

#[test]
fn an_app_waits_for_those_that_it_needs_and_knows_whose_word_ends_that() {
    let citation = "codeLocation: citation\nready: true\ndependsOn: { codeLocations: [mediawatch] }";
    let mediawatch = |ready| format!("codeLocation: mediawatch\nready: {ready}");
    let nobody: [String; 0] = [];
    assert_eq!(of_others(citation, Some(&mediawatch(true))), ("admitted".to_owned(), nobody.to_vec()));
    let (waits, awaits) = of_others(citation, Some(&mediawatch(false)));
    assert_eq!(waits, "waits: mediawatch, which it depends on, says ready: false");
    assert_eq!(awaits, ["mediawatch"]);
    // A person has to act. Nothing is kept about names that anybody may make up.
    let (absent, awaits) = of_others(citation, None);
    assert!(absent.starts_with("refused: ") && absent.contains("no such app is registered"), "{absent}");
    assert_eq!(awaits, nobody);
}

#[test]
fn an_app_waits_for_one_whose_registration_is_wrong_and_nothing_is_taken_back() {
    let text = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: mediawatch }\nspec:\n  colour: blue\n  \
                source: { repo: atlas/mediawatch }\n  image: registry:80/mediawatch\n";
    let file = (RelPath::parse("apps/mediawatch/app.yaml").unwrap(), Entry::regular(text));
    let rules = Rules { registries: vec!["registry:80".to_owned()] };
    let registrations = Registrations::load(&[file].into_iter().collect(), &rules);
    assert_eq!(registrations.findings.len(), 1);
    let citation = |also: &str| {
        let lines = format!("codeLocation: citation\n{also}\ndependsOn: {{ codeLocations: [mediawatch] }}");
        let mut subjects = unread_all(&registrations);
        subjects.insert(name("citation"), subject(Some(&lines)));
        let (declared, awaits) = word_of(&name("citation"), &judged(&subjects));
        (why(declared), awaits)
    };
    let (declared, awaits) = citation("ready: true");
    assert_eq!(
        declared,
        "suspended: mediawatch, which it depends on, waits until its registration apps/mediawatch/app.yaml is right"
    );
    assert_eq!(awaits, BTreeSet::from([name("mediawatch")]), "it is to tell when it is right");
    let (own, _) = citation("ready: false");
    assert!(own.starts_with("waits: its declaration says ready: false"), "a person's word is no slip: {own}");
}

#[test]
fn what_the_contract_does_not_have_is_refused_and_concerns_nobody_else() {
    let (refused, awaits) =
        of_others("codeLocation: citation\nready: true\ndependsOn: { database: [pgvector] }", None);
    assert!(refused.starts_with("refused: ") && refused.contains("database pgvector"), "{refused}");
    assert_eq!(awaits, Vec::<String>::new());
    let elsewhere = "codeLocation: mediawatch\nready: true\ndependsOn: { database: [pgvector] }";
    let (fine, _) = of_others("codeLocation: citation\nready: true", Some(elsewhere));
    assert_eq!(fine, "admitted");
}

#[test]
fn a_head_whose_checks_have_not_passed_waits_wherever_it_stands_to_what_is_deployed() {
    let unproven = Own { unproven: Some("ci is pending".to_owned()), ..own("ready: true") };
    for relation in [Relation::Ahead, Relation::Diverged, Relation::Behind, Relation::Unknown] {
        assert_eq!(why(word(&unproven, relation)), "waits: ci is pending");
    }
}

#[test]
fn an_app_that_says_that_it_is_not_ready_waits_for_that_whatever_its_checks_say() {
    let not_ready = Own { unproven: Some("ci is pending".to_owned()), ..own("ready: false") };
    assert_eq!(why(word(&not_ready, Relation::Ahead)), "waits: its declaration says ready: false");
}

mod asked;
