//! Builder pods: their isolation, the rights and policies around them, their authority, and which of them run.

use std::sync::Arc;
use std::time::Duration;

use fabrique_kubernetes::KubernetesError;
use fabrique_kubernetes::config::{Isolation, IsolationSetting};
use fabrique_kubernetes::inspect::{Inspector, MissingRight};
use fabrique_kubernetes::isolation::Choice;
use fabrique_kubernetes::pki::BuilderCa;
use fabrique_kubernetes::rbac::Scope;
use fabrique_operator::doctor::{Check, Level};
use fabrique_ports::builder::{Builder, Daemon};

use super::check;
use crate::ambient;
use crate::builders;
use crate::people::trouble::sentence;
use crate::people::words;
use crate::wiring::Adapters;

/// An authority that ends sooner than this is worth a warning: every builder and worker ends with it.
const SOON: Duration = Duration::from_hours(30 * 24);

/// What a certificate of the doctor's own says.
const NAME: &str = "doctor";

/// Looks at everything around the pods, and answers with the daemons to ask.
pub(super) async fn examine(
    adapters: &Adapters,
    inspector: &Inspector,
    checks: &mut Vec<Check>,
) -> Option<(Vec<Daemon>, Arc<dyn Builder>)> {
    let (choice, who, missing, network, daemons) = tokio::join!(
        inspector.choice(),
        inspector.asked_as(),
        inspector.missing_rights(),
        inspector.network(),
        inspector.daemons()
    );
    let asked =
        |name: &str, check: Result<Check, KubernetesError>| check.unwrap_or_else(|error| away(name, &error));
    let setting = inspector.setting();
    checks.push(asked("builders isolation", choice.map(|choice| isolation(setting, &choice))));
    let missing = who.and_then(|who| Ok((who, missing?)));
    checks.push(asked("builders rights", missing.map(|(who, missing)| rights(who.as_deref(), &missing))));
    checks.push(asked("builders network", network.map(|findings| walls(findings.as_deref()))));
    let ca = authority(adapters, checks)?;
    let builder = match builders::pod_driver(adapters, &Arc::new(ca), NAME) {
        Ok(builder) => builder,
        Err(error) => {
            let remedy = "correct the section buildkit";
            checks.push(check("buildkitd", Level::Fail, sentence(&error), remedy));
            return None;
        }
    };
    match daemons {
        Ok(daemons) if daemons.is_empty() => {
            let what = "no builder runs now; one is made when a build asks for it";
            checks.push(check("buildkitd", Level::Ok, what, ""));
            None
        }
        Ok(daemons) => Some((daemons, builder)),
        Err(error) => {
            checks.push(away("buildkitd", &error));
            None
        }
    }
}

fn away(name: &str, error: &KubernetesError) -> Check {
    let remedy = if error.status() == Some(403) {
        "run this with the worker's service account, or an administrator's kubeconfig"
    } else {
        "is the API server reachable from here, and is KUBECONFIG right?"
    };
    check(name, Level::Fail, error.to_string(), remedy)
}

/// Falling back is worth a look: `rootless` stops less.
fn isolation(setting: IsolationSetting, choice: &Choice) -> Check {
    let what = format!("{}: {}", choice.isolation.as_str(), choice.reason);
    let name = "builders isolation";
    if setting == IsolationSetting::Auto && choice.isolation == Isolation::Rootless {
        let remedy = "offer user namespaces on every node for builders, or settle for isolation: rootless";
        return check(name, Level::Warn, what, remedy);
    }
    check(name, Level::Ok, what, "")
}

/// Rights are those of `who` asks: an administrator's say nothing of the worker's.
fn rights(who: Option<&str>, missing: &[MissingRight]) -> Check {
    let name = "builders rights";
    let account = who.is_some_and(|who| who.starts_with("system:serviceaccount:"));
    let who = who.unwrap_or("whoever asks");
    let whose = if account { "" } else { "; whether the worker may, its own account can tell" };
    let remedy = "compare the Role and ClusterRole of the service account with the manifests";
    let needed: Vec<&MissingRight> =
        missing.iter().filter(|right| right.rule.scope == Scope::Namespace).collect();
    let named = |rights: &[&MissingRight]| {
        let right = |right: &&MissingRight| format!("{} {}", right.verb, right.rule.resource);
        rights.iter().map(right).collect::<Vec<_>>().join(", ")
    };
    let all: Vec<&MissingRight> = missing.iter().collect();
    match (needed.is_empty(), all.is_empty()) {
        (_, true) => {
            check(name, Level::Ok, format!("{who} may do everything that the placement does{whose}"), "")
        }
        (true, false) => {
            let what = format!("{who} may not: {}; nodes cannot be looked at{whose}", named(&all));
            check(name, Level::Warn, what, remedy)
        }
        (false, false) => {
            check(name, Level::Fail, format!("{who} may not: {}{whose}", named(&needed)), remedy)
        }
    }
}

/// `findings` is nothing when policies may not be read.
fn walls(findings: Option<&[fabrique_kubernetes::Finding]>) -> Check {
    let name = "builders network";
    match findings {
        None => {
            let remedy = "run this with an administrator's kubeconfig";
            check(name, Level::Warn, "the network policies may not be read", remedy)
        }
        Some([]) => check(name, Level::Ok, "closed by default, and no policy opens the world", ""),
        Some(findings) => {
            let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
            let remedy = "apply the policies of the manifests to the builders' namespace";
            check(name, Level::Fail, all.join("; "), remedy)
        }
    }
}

fn authority(adapters: &Adapters, checks: &mut Vec<Check>) -> Option<BuilderCa> {
    let name = "builders authority";
    let renew = "make a new authority, and restart the workers with it";
    match builders::authority(adapters) {
        Ok(ca) => {
            let what = format!("its certificate ends {}", words::when(ca.valid_until()));
            let soon = ambient::now().until(ca.valid_until()) < SOON;
            let (level, remedy) = if soon { (Level::Warn, renew) } else { (Level::Ok, "") };
            checks.push(check(name, level, what, remedy));
            Some(ca)
        }
        Err(error) => {
            let remedy = "correct the section kubernetes, or make a new authority";
            checks.push(check(name, Level::Fail, sentence(&error), remedy));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use fabrique_kubernetes::rbac::RULES;

    use super::*;

    #[test]
    fn a_fallback_to_rootless_warns_and_a_decision_for_it_does_not() {
        let choice = Choice { isolation: Isolation::Rootless, reason: "a node is old".to_owned() };
        assert_eq!(isolation(IsolationSetting::Auto, &choice).level, Level::Warn);
        assert_eq!(isolation(IsolationSetting::Rootless, &choice).level, Level::Ok);
    }

    #[test]
    fn a_right_in_the_namespace_is_needed_and_one_on_nodes_is_not() {
        let missing = |scope| {
            let rules = RULES.iter().filter(move |rule| rule.scope == scope);
            rules.map(|rule| MissingRight { rule: *rule, verb: rule.verbs[0] }).collect::<Vec<_>>()
        };
        let worker = Some("system:serviceaccount:fabrique:worker");
        assert_eq!(rights(worker, &[]).level, Level::Ok);
        assert_eq!(rights(worker, &missing(Scope::Cluster)).level, Level::Warn);
        let check = rights(worker, &missing(Scope::Namespace));
        assert_eq!(check.level, Level::Fail);
        assert!(check.what.contains("worker may not: create pods"), "{check:?}");
    }

    /// An administrator may do anything.
    #[test]
    fn what_an_administrator_may_is_not_told_of_the_worker() {
        let told = |who| rights(who, &[]).what;
        assert!(told(Some("kubernetes-admin")).starts_with("kubernetes-admin may do everything"));
        for who in [Some("kubernetes-admin"), None] {
            assert!(told(who).ends_with("whether the worker may, its own account can tell"), "{who:?}");
        }
        assert!(told(Some("system:serviceaccount:fabrique:worker")).ends_with("that the placement does"));
    }

    #[test]
    fn policies_that_cannot_be_read_are_no_proof() {
        assert_eq!(walls(None).level, Level::Warn);
        assert_eq!(walls(Some(&[])).level, Level::Ok);
    }
}
