//! The source policy that every solve carries: which git repository, base images and hosts it may read.
//!
//! The daemon judges each source by its identifier, in order; the last rule that matches wins. Tried live on
//! 0.34.2: the git context, base images, `COPY --from=image` and `ADD <url>` are judged; `FROM scratch`, stages
//! and the built-in frontend are not sources at all.

use std::collections::BTreeMap;

use bollard_buildkit_proto::moby::buildkit::v1::sourcepolicy::{
    AttrConstraint, AttrMatch, MatchType, Policy, PolicyAction, Rule, Selector,
};

use fabrique_core::id::AppName;

use crate::error::BuildkitError;
use crate::solve::GitSource;

/// The policies' only version so far.
const VERSION: i64 = 1;

/// What base images and URLs builds may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Permitted {
    bases: Vec<String>,
    hosts: Vec<String>,
    hosts_of: BTreeMap<AppName, Vec<String>>,
}

impl Permitted {
    /// Checks that no entry could mean more than it says.
    pub(crate) fn new(
        bases: &[String],
        hosts: &[String],
        hosts_of: &BTreeMap<AppName, Vec<String>>,
    ) -> Result<Self, BuildkitError> {
        let checked = |key: &'static str, entries: &[String]| {
            let entries = entries.iter().map(|entry| entry.trim_end_matches('/').to_owned());
            let entries: Vec<String> = entries.collect();
            match entries.iter().find(|entry| !is_plain(entry)) {
                Some(entry) => Err(BuildkitError::Config {
                    key,
                    problem: format!(
                        "{entry:?} must be host[:port] or host[:port]/prefix, without wildcards"
                    ),
                }),
                None => Ok(entries),
            }
        };
        let of_app = |(app, hosts): (&AppName, &Vec<String>)| {
            checked("permitted hosts of an app", hosts).map(|hosts| (app.clone(), hosts))
        };
        Ok(Self {
            bases: checked("permitted bases", bases)?,
            hosts: checked("permitted hosts", hosts)?,
            hosts_of: hosts_of.iter().map(of_app).collect::<Result<_, _>>()?,
        })
    }

    fn hosts(&self, app: &AppName) -> impl Iterator<Item = &String> {
        self.hosts.iter().chain(self.hosts_of.get(app).into_iter().flatten())
    }

    /// The permitted bases for people.
    pub(crate) fn bases(&self) -> String {
        if self.bases.is_empty() { "none".to_owned() } else { self.bases.join(", ") }
    }
}

fn is_plain(entry: &str) -> bool {
    !entry.is_empty()
        && entry.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:/[]".contains(&b))
        && !entry.contains("//")
        && !entry.starts_with('/')
}

/// Nothing, then exactly this repository at this commit, the permitted bases and the hosts that `app` may reach.
pub(crate) fn policy(source: &GitSource, app: &AppName, permitted: &Permitted) -> Policy {
    let mut rules = vec![rule(PolicyAction::Deny, MatchType::Wildcard, "*", vec![])];
    let pinned =
        vec![constraint("git.checksum", source.revision.as_str()), constraint("git.fullurl", &source.remote)];
    rules.push(rule(PolicyAction::Allow, MatchType::Exact, &source.identifier, pinned));
    let wildcard = |pattern: String| rule(PolicyAction::Allow, MatchType::Wildcard, &pattern, vec![]);
    rules.extend(permitted.bases.iter().map(|base| wildcard(format!("docker-image://{base}/*"))));
    for host in permitted.hosts(app) {
        rules.extend(["http", "https"].map(|scheme| wildcard(format!("{scheme}://{host}/*"))));
    }
    Policy { version: VERSION, rules }
}

fn rule(action: PolicyAction, kind: MatchType, identifier: &str, constraints: Vec<AttrConstraint>) -> Rule {
    let selector = Selector { identifier: identifier.to_owned(), match_type: kind.into(), constraints };
    Rule { action: action.into(), selector: Some(selector), updates: None }
}

fn constraint(key: &str, value: &str) -> AttrConstraint {
    AttrConstraint { key: key.to_owned(), value: value.to_owned(), condition: AttrMatch::Equal.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permitted(bases: &[&str]) -> Result<Permitted, BuildkitError> {
        Permitted::new(&bases.iter().map(|&base| base.to_owned()).collect::<Vec<_>>(), &[], &BTreeMap::new())
    }

    #[test]
    fn an_entry_with_a_wildcard_or_a_scheme_is_refused() {
        for bad in ["*", "registry:80*", "", "/", "https://registry", "a b"] {
            assert!(permitted(&[bad]).is_err(), "{bad}");
        }
    }
}
