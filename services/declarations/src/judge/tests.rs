use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::Quantity;
use crate::contract;

fn app(name: &str) -> AppName {
    AppName::parse(name).unwrap()
}

fn environment(name: &str) -> EnvironmentName {
    EnvironmentName::parse(name).unwrap()
}

fn contract() -> Contract {
    let example = include_bytes!("../../../../docs/contract.yaml.example");
    Contract::parse(contract::FILE_NAME, example).unwrap()
}

/// An app in prod with what stands after `contractVersion: 3`.
fn subject(name: &str, more: &str) -> (AppName, Subject) {
    declared(name, &format!("codeLocation: {name}\nready: true\ncontractVersion: 3\n{more}"))
}

fn declared(name: &str, text: &str) -> (AppName, Subject) {
    let file = format!("atlas/{name}:code-location.manifest.yaml");
    let declaration = Declaration::parse(&file, text.as_bytes()).unwrap();
    (app(name), with(name, Declares::All(Box::new(declaration))))
}

fn with(name: &str, declares: Declares) -> Subject {
    Subject {
        environments: vec![environment("prod")],
        registration: format!("apps/{name}/app.yaml"),
        file: format!("atlas/{name}:code-location.manifest.yaml"),
        declares,
    }
}

fn judged(subjects: impl IntoIterator<Item = (AppName, Subject)>) -> Judgement {
    judge(&contract(), contract::FILE_NAME, &subjects.into_iter().collect(), &Usage::default())
}

/// What is wrong, one a line, with the apps it keeps back.
fn told(judgement: &Judgement) -> String {
    let line = |finding: &Finding| {
        let apps: Vec<&str> = finding.apps.iter().map(AppName::as_str).collect();
        format!("{finding} [{}]", apps.join(" "))
    };
    judgement.findings.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn needing(name: &str, needed: &str) -> (AppName, Subject) {
    subject(name, &format!("dependsOn: {{ codeLocations: [{needed}] }}\n"))
}

#[test]
fn apps_that_can_have_what_they_declare_have_an_order_and_no_findings() {
    let seed = crate::manifest::tests::SEED;
    let judgement = judged([declared("citation", seed), subject("mediawatch", "")]);
    assert_eq!(told(&judgement), "");
    assert_eq!(judgement.waves, BTreeMap::from([(app("mediawatch"), 0), (app("citation"), 1)]));
    assert!(judgement.waits.is_empty());
}

#[test]
fn everything_that_is_not_there_is_told_with_what_is() {
    let text = "\
codeLocation: citations
ready: true
contractVersion: 4
resources: { disk: 1Gi }
dependsOn:
  codeLocations: [mediawach, plain, broken, elsewhere]
  database: [pgvectr, nothing-like-it]
  secrets: [pgvector-pg-auht]
  buckets: [{ name: marts, storageClass: rook-ceph-datalak }]
";
    let (name, mut citation) = declared("citation", text);
    citation.environments.push(environment("prd"));
    let (elsewhere, mut other) = subject("elsewhere", "");
    other.environments.clear();
    let old = "codeLocation: old\nready: true\ncontractVersion: 1\n";
    let judgement = judged([
        (name, citation),
        (elsewhere, other),
        (app("plain"), with("plain", Declares::Nothing)),
        (app("broken"), with("broken", Declares::Unreadable)),
        subject("mediawatch", ""),
        declared("old", old),
    ]);
    insta::assert_snapshot!(told(&judgement));
}

#[test]
fn an_environment_without_storage_has_none_to_give() {
    let bare = "\
apiVersion: fabrique/v1
kind: Contract
version: 3
accepts: [3]
endpoints: { gitea: 'http://g', argocd: 'https://a', registry: registry, nats: 'nats://n' }
environments: { prod: {} }
";
    let contract = Contract::parse(contract::FILE_NAME, bare.as_bytes()).unwrap();
    let subjects = [subject("a", "resources: { disk: 1Gi }\ndependsOn: { buckets: [marts] }\n")].into();
    let judgement = judge(&contract, contract::FILE_NAME, &subjects, &Usage::default());
    insta::assert_snapshot!(told(&judgement));
}

#[test]
fn a_cycle_is_named_for_everybody_in_it_and_keeps_back_those_behind_it() {
    let judgement = judged([
        needing("a", "b"),
        needing("b", "c"),
        needing("c", "a"),
        needing("d", "a"),
        needing("e", "e"),
        needing("f", ""),
    ]);
    insta::assert_snapshot!(told(&judgement));
    assert_eq!(judgement.waves, BTreeMap::from([(app("f"), 0)]));
}

#[test]
fn readiness_is_a_wait_and_no_finding() {
    let not_ready = |name: &str, needed: &str| {
        declared(
            name,
            &format!(
                "codeLocation: {name}\nready: false\ncontractVersion: 3\ndependsOn: {{ codeLocations: [{needed}] }}\n"
            ),
        )
    };
    let judgement = judged([not_ready("a", ""), needing("b", "a"), needing("c", "b"), not_ready("d", "a")]);
    assert_eq!(told(&judgement), "");
    assert_eq!(
        judgement.waits,
        BTreeMap::from([
            (app("a"), vec![Wait::NotReady]),
            (app("b"), vec![Wait::DependencyNotReady(app("a"))]),
            (app("d"), vec![Wait::NotReady, Wait::DependencyNotReady(app("a"))]),
        ])
    );
    let absent = judged([
        needing("b", "gone"),
        needing("c", "plain"),
        (app("plain"), with("plain", Declares::Nothing)),
    ]);
    assert_eq!(absent.waits[&app("b")], [Wait::DependencyAbsent(app("gone"))]);
    assert_eq!(absent.waits[&app("c")], [Wait::DependencyUndeclared(app("plain"))]);
}

#[test]
fn a_slip_in_the_registration_of_another_app_is_a_wait_and_no_finding() {
    let slip = judged([needing("b", "a"), (app("a"), with("a", Declares::Misregistered))]);
    assert_eq!(told(&slip), "");
    assert_eq!(slip.waits, BTreeMap::from([(app("b"), vec![Wait::DependencyMisregistered(app("a"))])]));
}

#[test]
fn what_all_declare_together_has_to_fit_and_the_largest_are_named_first() {
    let bucket = |size: &str| format!("dependsOn: {{ buckets: [{{ name: own, size: {size} }}] }}\n");
    let renamed =
        |name: &str, size: &str| subject(name, &bucket(size).replace("own", &format!("{name}-own")));
    let fits = judged([renamed("a", "10Ti"), renamed("b", "8Ti")]);
    assert_eq!(told(&fits), "", "exactly the capacity less the reserve");
    let pods = "resources: { cpu: 41, memory: 200Gi, disk: 2Ti }\n";
    let over = judged([renamed("a", "10Ti"), renamed("b", "8193Gi"), subject("c", pods), subject("d", pods)]);
    insta::assert_snapshot!(told(&over));
    assert_eq!(over.of(&app("a")).count(), 1);
    assert_eq!(over.of(&app("c")).count(), 3);
}

#[test]
fn a_bucket_that_apps_share_counts_once_and_has_one_size_and_class() {
    let sharing =
        |name: &str, bucket: &str| subject(name, &format!("dependsOn: {{ buckets: [{bucket}] }}\n"));
    let big = "{ name: shared, size: 18Ti }";
    assert_eq!(told(&judged([sharing("a", big), sharing("b", big)])), "");
    let default = judged([
        sharing("a", "shared"),
        sharing("b", "{ name: shared, size: 10Gi, storageClass: rook-ceph-datalake }"),
    ]);
    assert_eq!(told(&default), "", "a bare name has the defaults");
    let differing = judged([
        sharing("a", "shared"),
        sharing("b", "{ name: shared, size: 20Gi }"),
        sharing("c", "{ name: shared, storageClass: rook-ceph-archive }"),
    ]);
    insta::assert_snapshot!(told(&differing));
}

#[test]
fn an_apps_own_present_use_is_not_counted_twice() {
    let store = Store::Object("rook-ceph-datalake".parse().unwrap());
    let claimant = |name: &str| Claimant::Bucket(name.parse().unwrap());
    let judged = |size: &str, total: u64, own: &[(&str, u64)]| {
        let subjects =
            [subject("a", &format!("dependsOn: {{ buckets: [{{ name: marts, size: {size} }}] }}\n"))].into();
        let own = own.iter().map(|(name, tib)| (claimant(name), Quantity::whole(tib << 40))).collect();
        let used = Used { total: Quantity::whole(total << 40), own, there: None };
        let usage = Usage { stores: [((environment("prod"), store.clone()), used)].into() };
        judge(&contract(), contract::FILE_NAME, &subjects, &usage).findings.len()
    };
    assert_eq!(judged("12Ti", 12, &[]), 1, "12Ti of others and 12Ti more are too much for 18Ti");
    assert_eq!(judged("12Ti", 12, &[("marts", 12)]), 0, "the 12Ti are the app's own");
    assert_eq!(judged("12Ti", 17, &[("marts", 10)]), 1, "7Ti of others and 12Ti");
    assert_eq!(
        judged("1Ti", 18, &[("marts", 12)]),
        0,
        "asking for less frees nothing, and asks for nothing more"
    );
    assert_eq!(judged("1Ti", 18, &[("gone", 12)]), 1, "what nobody declares any more is still there");
}

#[test]
fn what_there_really_is_counts_where_it_is_less_than_the_contract_says() {
    let judged = |store: Store, there: u64| {
        let subjects = [subject("a", "resources: { cpu: 10, disk: 1Ti }\n")].into();
        let there = Some(Quantity::whole(there));
        let used = Used { total: Quantity::whole(4), there, ..Used::default() };
        let usage = Usage { stores: [((environment("prod"), store), used)].into() };
        let findings = judge(&contract(), contract::FILE_NAME, &subjects, &usage).findings;
        findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
    };
    // 96 less 16 by the contract.
    assert_eq!(judged(Store::Cpu, 1000), "");
    assert_eq!(judged(Store::Cpu, 30), "", "10 and the 4 of others in 30 less 16");
    insta::assert_snapshot!(judged(Store::Cpu, 29), @"contract.yaml:32:10: 14 cores in prod (a 10, with what others use already) is declared, the cluster has 29 less a reserve of 16: 1 are too much; declare less, or add nodes");
}

/// Some apps that depend on some others, in any shape.
fn graphs() -> impl Strategy<Value = Vec<BTreeSet<usize>>> {
    (1..12usize).prop_flat_map(|apps| prop::collection::vec(prop::collection::btree_set(0..apps, 0..4), apps))
}

/// `app1, app2`
fn names(of: &BTreeSet<usize>) -> String {
    of.iter().map(|index| format!("app{index}")).collect::<Vec<_>>().join(", ")
}

/// Whether an app reaches a circle, by walking as many steps as there are apps.
fn is_doomed(graph: &[BTreeSet<usize>], start: usize) -> bool {
    let walk = |front: BTreeSet<usize>, _| front.iter().flat_map(|at| graph[*at].iter().copied()).collect();
    let end: BTreeSet<usize> = (0..graph.len()).fold([start].into(), walk);
    !end.is_empty()
}

proptest! {
    #[test]
    fn waves_increase_along_every_dependency_and_only_circles_and_what_is_behind_them_have_none(
        graph in graphs(),
    ) {
        let subjects = graph.iter().enumerate().map(|(index, needed)| needing(&format!("app{index}"), &names(needed)));
        let judgement = judged(subjects);
        let wave = |index: usize| judgement.waves.get(&app(&format!("app{index}")));
        let doomed: Vec<bool> = (0..graph.len()).map(|index| is_doomed(&graph, index)).collect();
        for (index, needed) in graph.iter().enumerate() {
            prop_assert_eq!(wave(index).is_none(), doomed[index]);
            for needed in needed {
                if let (Some(mine), Some(theirs)) = (wave(index), wave(*needed)) {
                    prop_assert!(mine > theirs);
                }
            }
        }
        prop_assert_eq!(judgement.findings.is_empty(), !doomed.contains(&true));
    }

    #[test]
    fn judging_is_a_function_and_its_findings_name_their_apps(
        graph in graphs(),
        sizes in prop::collection::vec(1..30u64, 12),
    ) {
        let declared = |(index, needed): (usize, &BTreeSet<usize>)| {
            let bucket = format!("{{ name: bucket{}, size: {}Ti }}", index % 3, sizes[index]);
            let more = format!("dependsOn: {{ codeLocations: [{}], buckets: [{bucket}] }}\n", names(needed));
            subject(&format!("app{index}"), &more)
        };
        let subjects: Vec<_> = graph.iter().enumerate().map(declared).collect();
        let once = judged(subjects.clone());
        prop_assert_eq!(&once, &judged(subjects));
        let says_all = |finding: &Finding| !finding.apps.is_empty() && finding.declared.is_some();
        prop_assert!(once.findings.iter().all(says_all));
    }
}

#[test]
fn a_thousand_apps_that_need_each_other_and_share_a_bucket_are_in_order() {
    let declared = |index: usize| {
        let needed: BTreeSet<usize> = (1..=3).filter_map(|back| index.checked_sub(back * 7)).collect();
        let more = format!(
            "resources: {{ cpu: 50m, memory: 100Mi, disk: 1Gi }}\n\
             dependsOn:\n  codeLocations: [{}]\n  database: [pgvector]\n  secrets: [pgvector-pg-auth]\n  \
             buckets: [shared, {{ name: own{index}, size: 1Gi }}]\n  migrations: [1.sql, 2.sql]\n",
            names(&needed)
        );
        subject(&format!("app{index}"), &more)
    };
    let judgement = judged((0..1000).map(declared));
    assert_eq!((told(&judgement).as_str(), judgement.waves.len()), ("", 1000));
}
