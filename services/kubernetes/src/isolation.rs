//! Which isolation the cluster's nodes allow.

use k8s_openapi::api::core::v1::Node;

use crate::config::{Isolation, IsolationSetting, Settings};
use crate::pod::CONTROL_PLANE_LABELS;

/// The isolation of all new pods, and why, for `doctor` and the records of builds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What it is.
    pub isolation: Isolation,
    /// Why, in one sentence.
    pub reason: String,
}

/// Chooses. `nodes` is nothing when they may not be read.
///
/// `auto` wants every node that a builder may land on to offer user namespaces: a pod that asks for one elsewhere
/// is not refused by every version of Kubernetes, but run without.
#[must_use]
pub fn choose(settings: &Settings, nodes: Option<&[Node]>) -> Choice {
    let choice = |isolation, reason: String| Choice { isolation, reason };
    match settings.isolation {
        IsolationSetting::Userns => choice(Isolation::Userns, "it is configured".to_owned()),
        IsolationSetting::Rootless => choice(Isolation::Rootless, "it is configured".to_owned()),
        IsolationSetting::Auto => {
            let Some(nodes) = nodes else {
                let reason = "nodes may not be read, so that user namespaces cannot be counted on";
                return choice(Isolation::Rootless, reason.to_owned());
            };
            let eligible: Vec<&Node> = nodes.iter().filter(|node| takes_builders(settings, node)).collect();
            let lacking = eligible.iter().find(|node| !offers_user_namespaces(settings, node));
            match (eligible.len(), lacking) {
                (0, _) => choice(Isolation::Rootless, "no node takes builders yet".to_owned()),
                (_, Some(node)) => {
                    let name = node.metadata.name.as_deref().unwrap_or("a node");
                    choice(Isolation::Rootless, format!("{name} does not offer user namespaces"))
                }
                (count, None) => {
                    let reason = format!("all {count} nodes for builders offer user namespaces");
                    choice(Isolation::Userns, reason)
                }
            }
        }
    }
}

/// Chooses again while pods of `current` are being made: nothing when it stays.
///
/// Only what nodes say changes it. Ones that are new and not ready may not have said yet what they offer, and nodes that
/// cannot be read, or that are all away, are no news.
#[must_use]
pub fn reconsider(settings: &Settings, nodes: Option<&[Node]>, current: Isolation) -> Option<Choice> {
    let nodes = nodes.filter(|_| settings.isolation == IsolationSetting::Auto)?;
    let choice = choose(settings, Some(nodes));
    let eligible = || nodes.iter().filter(|node| takes_builders(settings, node));
    let known = match choice.isolation {
        Isolation::Userns => true,
        Isolation::Rootless => {
            eligible().any(|node| is_ready(node) && !offers_user_namespaces(settings, node))
        }
    };
    (known && choice.isolation != current).then_some(choice)
}

fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn takes_builders(settings: &Settings, node: &Node) -> bool {
    let empty = std::collections::BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let wanted = &settings.scheduling.node_selector;
    !CONTROL_PLANE_LABELS.iter().any(|&label| labels.contains_key(label))
        && wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The node says so for each of its runtime handlers; the default one has an empty name, and a runtime class is
/// taken to be called as its handler.
fn offers_user_namespaces(settings: &Settings, node: &Node) -> bool {
    let handler = settings.scheduling.runtime_class.as_deref().unwrap_or_default();
    let handlers = node.status.iter().flat_map(|status| status.runtime_handlers.iter().flatten());
    let mut named = handlers.filter(|one| one.name.as_deref().unwrap_or_default() == handler);
    named.any(|one| one.features.as_ref().and_then(|features| features.user_namespaces).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::settings;

    fn node(name: &str, labels: &serde_json::Value, user_namespaces: bool) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name, "labels": labels },
            "status": { "runtimeHandlers": [
                { "name": "", "features": { "userNamespaces": user_namespaces } },
                { "name": "kata", "features": { "userNamespaces": false } },
            ] },
        }))
        .unwrap()
    }

    fn with_ready(mut node: Node, ready: &str) -> Node {
        let conditions = serde_json::from_value(json!([{ "type": "Ready", "status": ready }])).unwrap();
        node.status.as_mut().unwrap().conditions = conditions;
        node
    }

    #[test]
    fn a_choice_is_changed_by_what_nodes_that_are_ready_say_and_by_nothing_else() {
        let able = with_ready(node("able", &json!({}), true), "True");
        let unable = |ready| with_ready(node("unable", &json!({}), false), ready);
        let again = |nodes: Option<&[Node]>, current| {
            reconsider(&settings(), nodes, current).map(|choice| choice.isolation)
        };
        let added = [able.clone(), unable("True")];
        assert_eq!(again(Some(&added), Isolation::Userns), Some(Isolation::Rootless));
        assert_eq!(again(Some(&added), Isolation::Rootless), None);
        assert_eq!(again(Some(std::slice::from_ref(&able)), Isolation::Rootless), Some(Isolation::Userns));
        for no_news in
            [Some(&[able.clone(), unable("False")][..]), Some(&[unable("Unknown")]), Some(&[]), None]
        {
            assert_eq!(again(no_news, Isolation::Userns), None, "{no_news:?}");
        }
        // One that is not ready and lacks them is no reason to begin with them either.
        assert_eq!(again(Some(&[able, unable("False")]), Isolation::Rootless), None);
        let mut settings = settings();
        settings.isolation = IsolationSetting::Userns;
        assert_eq!(reconsider(&settings, Some(&added), Isolation::Userns), None);
    }

    fn chosen(nodes: Option<&[Node]>) -> Isolation {
        choose(&settings(), nodes).isolation
    }

    #[test]
    fn every_node_for_builders_must_offer_user_namespaces() {
        let master = node("master", &json!({ "node-role.kubernetes.io/control-plane": "" }), false);
        let able = node("able", &json!({}), true);
        let unable = node("unable", &json!({}), false);
        assert_eq!(chosen(Some(&[master.clone(), able.clone()])), Isolation::Userns);
        let choice = choose(&settings(), Some(&[able, unable]));
        assert_eq!(choice.isolation, Isolation::Rootless);
        assert!(choice.reason.contains("unable"), "{}", choice.reason);
        assert_eq!(chosen(Some(&[master])), Isolation::Rootless);
        assert_eq!(chosen(None), Isolation::Rootless);
    }

    #[test]
    fn the_operators_word_and_runtime_class_count() {
        let mut settings = settings();
        let able = [node("able", &json!({}), true)];
        settings.scheduling.runtime_class = Some("kata".into());
        assert_eq!(choose(&settings, Some(&able)).isolation, Isolation::Rootless);
        settings.isolation = IsolationSetting::Userns;
        assert_eq!(choose(&settings, None).isolation, Isolation::Userns);
    }
}
