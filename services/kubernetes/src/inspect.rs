//! What `doctor` asks of the cluster: everything is read, nothing is started or changed.

use futures::future::try_join_all;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};

use fabrique_ports::builder::Daemon;

use crate::cluster::call;
use crate::config::{IsolationSetting, Settings};
use crate::error::KubernetesError;
use crate::finding::Finding;
use crate::isolation::{Choice, choose};
use crate::labels;
use crate::network::findings_in;
use crate::placement::endpoint;
use crate::pool::read;
use crate::rbac::{RULES, Rule, Scope};

/// Looks at what the placement would use, with the rights of whoever asks.
pub struct Inspector {
    client: Client,
    settings: Settings,
}

/// A right that is used and not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingRight {
    /// What it is part of.
    pub rule: Rule,
    /// The verb.
    pub verb: &'static str,
}

impl Inspector {
    /// An inspector for the builders of `settings`.
    ///
    /// # Errors
    /// When the settings contradict themselves.
    pub fn new(client: Client, settings: Settings) -> Result<Self, KubernetesError> {
        let findings = settings.validate();
        if findings.is_empty() {
            Ok(Self { client, settings })
        } else {
            Err(KubernetesError::Settings { findings })
        }
    }

    /// The isolation that is configured.
    #[must_use]
    pub fn setting(&self) -> IsolationSetting {
        self.settings.isolation
    }

    /// The isolation that new daemons would get, and why.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn choice(&self) -> Result<Choice, KubernetesError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let params = ListParams::default();
        let nodes = readable(self.call("list nodes", nodes.list(&params)).await)?;
        Ok(choose(&self.settings, nodes.map(|list| list.items).as_deref()))
    }

    /// Who the API server takes us for: the rights that [`Inspector::missing_rights`] speaks of are theirs, and nobody
    /// else's. Nothing when it does not say.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn asked_as(&self) -> Result<Option<String>, KubernetesError> {
        let reviews: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let (params, review) = (PostParams::default(), SelfSubjectReview::default());
        let answer = readable(self.call("ask who we are", reviews.create(&params, &review)).await)?;
        Ok(answer.and_then(|review| review.status?.user_info?.username))
    }

    /// Every right of [`RULES`] that whoever asks has not.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn missing_rights(&self) -> Result<Vec<MissingRight>, KubernetesError> {
        let rights = RULES.iter().flat_map(|rule| rule.verbs.iter().map(move |verb| (*rule, *verb)));
        let asked = rights.map(|(rule, verb)| async move {
            let given = self.may(rule, verb).await?;
            Ok::<_, KubernetesError>((!given).then_some(MissingRight { rule, verb }))
        });
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }

    async fn may(&self, rule: Rule, verb: &str) -> Result<bool, KubernetesError> {
        let namespace = (rule.scope == Scope::Namespace).then(|| self.settings.namespace.clone());
        let attributes = ResourceAttributes {
            group: Some(rule.group.to_owned()),
            resource: Some(rule.resource.to_owned()),
            verb: Some(verb.to_owned()),
            namespace,
            ..Default::default()
        };
        let spec =
            SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..Default::default() };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let params = PostParams::default();
        let answer = self.call("ask for a right", reviews.create(&params, &review)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// What is wrong with the network policies of the builders' namespace; nothing when they may not be read.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn network(&self) -> Result<Option<Vec<Finding>>, KubernetesError> {
        let policies: Api<NetworkPolicy> = Api::namespaced(self.client.clone(), &self.settings.namespace);
        let params = ListParams::default();
        let policies = readable(self.call("list network policies", policies.list(&params)).await)?;
        Ok(policies.map(|list| judge(&list.items, &self.settings.namespace)))
    }

    /// The daemons that are ready.
    ///
    /// # Errors
    /// When the API server does not answer, or pods may not be read.
    pub async fn daemons(&self) -> Result<Vec<Daemon>, KubernetesError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.settings.namespace);
        let params = ListParams::default().labels(&labels::builders());
        let pods = self.call("list builders", pods.list(&params)).await?;
        Ok(pods
            .items
            .iter()
            .filter_map(read)
            .filter_map(|daemon| endpoint(&self.settings, &daemon))
            .collect())
    }

    async fn call<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, KubernetesError> {
        call(self.settings.patience.request, what, request).await
    }
}

/// A refusal is an answer: it may not be read.
fn readable<T>(answer: Result<T, KubernetesError>) -> Result<Option<T>, KubernetesError> {
    match answer {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.status() == Some(403) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether everything is closed that nobody opened, and nothing opens the world.
fn judge(policies: &[NetworkPolicy], namespace: &str) -> Vec<Finding> {
    let closed = |direction: &str| {
        policies.iter().filter_map(|policy| policy.spec.as_ref()).any(|spec| {
            let selector = spec.pod_selector.as_ref();
            let everything = selector.is_none_or(|selector| {
                selector.match_labels.as_ref().is_none_or(std::collections::BTreeMap::is_empty)
                    && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
            });
            everything && spec.policy_types.iter().flatten().any(|judged| judged == direction)
        })
    };
    let open = ["Ingress", "Egress"].into_iter().filter(|direction| !closed(direction));
    let open = open.map(|direction| {
        let problem = "is open to pods that no policy selects: the default deny is missing";
        Finding::new(direction, problem)
    });
    let manifests = policies.iter().filter_map(|policy| {
        let mut manifest = serde_json::to_value(policy).ok()?;
        // Items of a list do not carry their kind.
        manifest["kind"] = "NetworkPolicy".into();
        Some(manifest)
    });
    open.chain(manifests.flat_map(|manifest| findings_in(&manifest, namespace))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn places(specs: &[Value]) -> Vec<String> {
        let policy = |spec: &Value| {
            serde_json::from_value(
                json!({ "metadata": { "name": "p", "namespace": "builders" }, "spec": spec }),
            )
            .unwrap()
        };
        let policies: Vec<NetworkPolicy> = specs.iter().map(policy).collect();
        judge(&policies, "builders").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_namespace_without_its_default_deny_is_told_by_direction() {
        let deny = |types: &[&str]| json!({ "podSelector": {}, "policyTypes": types });
        assert_eq!(places(&[deny(&["Ingress", "Egress"])]), Vec::<String>::new());
        assert_eq!(places(&[deny(&["Ingress"]), deny(&["Egress"])]), Vec::<String>::new());
        assert!(places(&[deny(&["Ingress"])])[0].starts_with("Egress"));
        let some =
            json!({ "podSelector": { "matchLabels": { "a": "b" } }, "policyTypes": ["Ingress", "Egress"] });
        assert_eq!(places(&[some]).len(), 2);
    }

    #[test]
    fn a_policy_that_opens_the_world_is_told() {
        let deny = json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] });
        let world = json!({
            "podSelector": {}, "policyTypes": ["Egress"],
            "egress": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0" } }], "ports": [{ "port": 443 }] }],
        });
        let told = places(&[deny, world]);
        assert!(told.len() == 1 && told[0].contains("0.0.0.0/0"), "{told:?}");
    }
}
