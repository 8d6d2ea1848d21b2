//! What fabrique's accounts may do: every verb is listed, and one more fails.

use std::collections::BTreeSet;

use fabrique_kubernetes::rbac::{RULES, Scope};
use k8s_openapi::api::authorization::v1::{ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec};
use kube::api::{Api, PostParams};
use serde_json::Value;

use crate::ground::{BUILDS, client, ground, kind};
use crate::rendered;

/// One verb on one resource: scope, API group, resource, verb.
type Right = (Scope, String, String, String);

/// What the placement's code says that it does.
fn declared() -> BTreeSet<Right> {
    let rights = RULES.iter().flat_map(|rule| {
        rule.verbs
            .iter()
            .map(|verb| (rule.scope, rule.group.to_owned(), rule.resource.to_owned(), (*verb).to_owned()))
    });
    rights.collect()
}

fn strings(list: &Value) -> Vec<String> {
    serde_json::from_value(list.clone()).unwrap_or_default()
}

fn rights(role: &Value) -> Vec<Right> {
    let scope = if kind(role) == "ClusterRole" { Scope::Cluster } else { Scope::Namespace };
    let mut rights = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        assert!(rule["nonResourceURLs"].is_null(), "{rule}");
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                let verbs = strings(&rule["verbs"]).into_iter();
                rights.extend(verbs.map(|verb| (scope, group.clone(), resource.clone(), verb)));
            }
        }
    }
    rights
}

#[tokio::test]
async fn the_manifests_grant_what_the_code_declares_and_no_verb_more() {
    for (name, documents) in rendered::all().await {
        let roles = documents.iter().filter(|document| ["Role", "ClusterRole"].contains(&kind(document)));
        let granted: BTreeSet<Right> = roles.flat_map(rights).collect();
        assert_eq!(granted, declared(), "{name}");
        for binding in documents.iter().filter(|document| kind(document).ends_with("RoleBinding")) {
            let subjects = binding["subjects"].as_array().unwrap();
            assert_eq!(subjects.len(), 1, "{name}: {binding}");
            assert_eq!(subjects[0]["kind"], "ServiceAccount", "{name}: {binding}");
            assert_eq!(subjects[0]["namespace"], "fabrique", "{name}: {binding}");
            assert_eq!(subjects[0]["name"], "worker", "{name}: {binding}");
            let ours = documents.iter().any(|document| {
                document["metadata"]["name"] == binding["roleRef"]["name"]
                    && document["kind"] == binding["roleRef"]["kind"]
            });
            assert!(ours, "{name}: {binding} names a role that is not here");
        }
    }
}

/// Whatever is declared one day: these are the ones by which a builder's certificate, or a shell in it, is had.
#[test]
fn nothing_that_is_declared_reads_secrets_or_enters_pods() {
    for (scope, group, resource, verb) in declared() {
        let right = format!("{verb} {resource}.{group}");
        assert!(!right.contains('*'), "{right}");
        assert!(
            !resource.contains('/'),
            "{right}: exec, attach, portforward, proxy and ephemeral containers"
        );
        assert!(resource != "secrets" || verb == "create", "{right}");
        assert!(
            scope == Scope::Namespace || (resource == "nodes" && ["get", "list"].contains(&verb.as_str())),
            "{right}"
        );
        assert!(group.is_empty(), "{right}: roles, bindings and policies are nobody's to change");
    }
}

/// What the API server itself says that an account may do in a namespace, beyond what every account may.
async fn asked(account: &str, namespace: &str) -> BTreeSet<(String, String, String)> {
    let ground = ground().await.unwrap();
    let kubeconfig = ground.cluster.service_account_kubeconfig("fabrique", account).await.unwrap();
    let api: Api<SelfSubjectRulesReview> = Api::all(client(&kubeconfig).await);
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec { namespace: Some(namespace.to_owned()) },
        ..Default::default()
    };
    let status = api.create(&PostParams::default(), &review).await.unwrap().status.unwrap();
    assert!(!status.incomplete, "{status:?}");
    let everybodys = ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"];
    let mut rights = BTreeSet::new();
    for ResourceRule { api_groups, resources, verbs, .. } in status.resource_rules {
        for group in api_groups.unwrap_or_default() {
            for resource in resources.iter().flatten().filter(|name| !everybodys.contains(&name.as_str())) {
                rights.extend(verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
    }
    rights
}

fn of(scopes: &[Scope]) -> BTreeSet<(String, String, String)> {
    let rights = declared().into_iter().filter(|(scope, ..)| scopes.contains(scope));
    rights.map(|(_, group, resource, verb)| (group, resource, verb)).collect()
}

#[tokio::test]
async fn the_worker_may_do_what_is_declared_in_the_builders_namespace_and_nothing_elsewhere() {
    if ground().await.is_none() {
        return;
    }
    assert_eq!(asked("worker", BUILDS).await, of(&[Scope::Namespace, Scope::Cluster]));
    for elsewhere in ["fabrique", "kube-system", "default"] {
        assert_eq!(asked("worker", elsewhere).await, of(&[Scope::Cluster]), "{elsewhere}");
    }
}

#[tokio::test]
async fn no_other_account_may_do_anything() {
    if ground().await.is_none() {
        return;
    }
    for account in ["receiver", "reconciler", "on-demand", "default"] {
        for namespace in [BUILDS, "fabrique"] {
            assert_eq!(asked(account, namespace).await, BTreeSet::new(), "{account} in {namespace}");
        }
    }
}
