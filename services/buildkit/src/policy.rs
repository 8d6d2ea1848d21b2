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

use crate::egress::{Egress, Place};
use crate::error::BuildkitError;
use crate::solve::GitSource;

/// What a host without a port means.
const HTTPS: u16 = 443;
/// The policies' only version so far.
const VERSION: i64 = 1;

/// What base images and URLs builds may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Permitted {
    bases: Vec<String>,
    hosts: Vec<Place>,
    hosts_of: BTreeMap<AppName, Vec<Place>>,
}

impl Permitted {
    /// Checks that no entry could mean more than it says.
    pub(crate) fn new(
        bases: &[String],
        hosts: &[String],
        hosts_of: &BTreeMap<AppName, Vec<String>>,
    ) -> Result<Self, BuildkitError> {
        let wrong = |key: &'static str, entry: &str, form: &str| BuildkitError::Config {
            key,
            problem: format!("{entry:?} must be {form}, without wildcards"),
        };
        let base = |entry: &String| match entry.trim_end_matches('/') {
            plain if is_plain(plain) => Ok(plain.to_owned()),
            _ => Err(wrong("permitted bases", entry, "host[:port] or host[:port]/prefix")),
        };
        let host = |entry: &String| {
            let place = Place::parse(entry, HTTPS);
            place.ok_or_else(|| wrong("permitted hosts", entry, "host[:port]"))
        };
        let of_app = |(app, hosts): (&AppName, &Vec<String>)| {
            let hosts: Result<Vec<Place>, _> = hosts.iter().map(host).collect();
            hosts.map(|hosts| (app.clone(), hosts))
        };
        Ok(Self {
            bases: bases.iter().map(base).collect::<Result<_, _>>()?,
            hosts: hosts.iter().map(host).collect::<Result<_, _>>()?,
            hosts_of: hosts_of.iter().map(of_app).collect::<Result<_, _>>()?,
        })
    }

    /// What a build of `app` may fetch over HTTP.
    pub(crate) fn egress(&self, app: &AppName) -> Egress {
        Egress::new(self.hosts.iter().chain(self.hosts_of.get(app).into_iter().flatten()).cloned())
    }

    /// Whether the solve's policy allows this image, given in full.
    pub(crate) fn allows_image(&self, reference: &str) -> bool {
        let inside =
            |base: &String| reference.strip_prefix(base.as_str()).is_some_and(|rest| rest.starts_with('/'));
        self.bases.iter().any(inside)
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

/// Nothing, then exactly this repository at this commit and the permitted bases. Which hosts are reached is judged
/// by the session's [`Egress`], which the daemon asks about everything that passes here.
pub(crate) fn policy(source: &GitSource, permitted: &Permitted) -> Policy {
    let mut rules = vec![rule(PolicyAction::Deny, MatchType::Wildcard, "*", vec![])];
    let pinned =
        vec![constraint("git.checksum", source.revision.as_str()), constraint("git.fullurl", &source.remote)];
    rules.push(rule(PolicyAction::Allow, MatchType::Exact, &source.identifier, pinned));
    let wildcard = |pattern: String| rule(PolicyAction::Allow, MatchType::Wildcard, &pattern, vec![]);
    rules.extend(permitted.bases.iter().map(|base| wildcard(format!("docker-image://{base}/*"))));
    rules.extend(["http://*", "https://*"].map(|all| wildcard(all.to_owned())));
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
        let hosts = |host: &str| Permitted::new(&[], &[host.to_owned()], &BTreeMap::new());
        for bad in ["*", "registry:80*", "", "/", "https://registry", "a b"] {
            assert!(permitted(&[bad]).is_err(), "{bad}");
            assert!(hosts(bad).is_err(), "{bad}");
        }
        assert!(hosts("pypi.org/simple").is_err(), "a host is open as a whole");
    }
}
