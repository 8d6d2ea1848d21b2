//! What a build fetches over HTTP: judged here, request by request, so that what is refused has a name.
//!
//! The daemon's proxy answers a refused request of a RUN step with a bare 403 and lists only those it let through.
//! A solve can name a *policy session* though: the daemon then asks us for each source before it fetches anything.
//! The solve's own policy judges git and images; of HTTP it lets everything through to this one. A daemon that
//! cannot ask fetches nothing.
//!
//! Two builds at once on one daemon share the steps that they have in common, and such a step is judged by one of
//! their sessions: apps whose lists differ belong on daemons with one slot, as all daemons in pods are.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bollard_buildkit_proto::moby::buildkit::v1::Vertex;
use bollard_buildkit_proto::moby::buildkit::v1::frontend::ResolveSourceMetaResponse;
use bollard_buildkit_proto::moby::buildkit::v1::sourcepolicy::PolicyAction;
use tokio::time::Instant;
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::fetches::{Fetches, Proxied, Told, location};
use crate::redact::Redactor;
use crate::text::{bounded, clean};

/// How the daemon calls us.
pub(crate) const METHOD: &str = "/moby.buildkit.v1.sourcepolicy.policysession.PolicyVerifier/CheckPolicy";
/// Refused places that are remembered; a build that tries more is not to be helped host by host.
const MOST_REFUSED: usize = 20;
/// Of them, how many a failure names.
const MOST_TOLD: usize = 3;
/// The longest URL that is shown, in bytes.
const LONGEST_URL: usize = 200;
/// Bytes of it that are kept, so that what is masked in them is whole.
const LONGEST_KEPT: usize = 4096;

/// A host and its port: `pypi.org:443`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    host: String,
    port: u16,
}

impl Place {
    /// Reads `host[:port]`; without a port it is HTTPS.
    pub(crate) fn parse(authority: &str, port: u16) -> Option<Self> {
        let bracketed = authority.ends_with(']');
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, digits)) if !bracketed => {
                let digits = Some(digits).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
                (host, digits.parse().ok()?)
            }
            _ => (authority, port),
        };
        let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let plain = match address {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)),
        };
        (plain && !host.is_empty()).then(|| Self { host: host.to_ascii_lowercase(), port })
    }

    /// Where a request goes. Nothing for a URL that two parsers might read differently: credentials, escapes and
    /// backslashes before the path.
    fn of_url(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let port = match scheme {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?;
        Self::parse(authority, port)
    }
}

/// What one build may fetch, what it was refused, and what it fetched.
#[derive(Debug, Clone)]
pub(crate) struct Egress {
    permitted: Arc<[Place]>,
    refused: Arc<Mutex<BTreeMap<Option<Place>, String>>>,
    fetches: Arc<Mutex<Fetches>>,
}

impl Egress {
    pub(crate) fn new(permitted: impl IntoIterator<Item = Place>) -> Self {
        Self { permitted: permitted.into_iter().collect(), refused: Arc::default(), fetches: Arc::default() }
    }

    /// Judges a source; what is not HTTP has been judged by the solve's own policy.
    fn allows(&self, identifier: &str) -> bool {
        if !identifier.starts_with("http://") && !identifier.starts_with("https://") {
            return true;
        }
        let place = Place::of_url(identifier);
        if place.as_ref().is_some_and(|place| self.permitted.contains(place)) {
            return true;
        }
        let mut refused = self.refused();
        if refused.len() < MOST_REFUSED {
            let url = || bounded(clean(&location(identifier)), LONGEST_KEPT, 0);
            refused.entry(place).or_insert_with(url);
        }
        false
    }

    /// A step moved.
    pub(crate) fn saw(&self, vertex: &Vertex) {
        self.fetches().saw(vertex, Instant::now());
    }

    /// What was fetched, and the answers as far as they were seen.
    pub(crate) fn fetched(&self, proxied: Vec<Proxied>, redactor: &Redactor) -> Told {
        self.fetches().tell(proxied, Instant::now(), redactor)
    }

    /// One line for each refused place, for the build's output.
    pub(crate) fn told(&self, redactor: &Redactor) -> Vec<String> {
        let line = |url: &String| format!("refused, not on the allow list: {}", shown(url, redactor));
        self.refused().values().map(line).collect()
    }

    /// What was refused and what would permit it, for the end of a failure's message.
    pub(crate) fn remedy(&self, redactor: &Redactor) -> Option<String> {
        let refused = self.refused();
        if refused.is_empty() {
            return None;
        }
        let urls: Vec<String> = refused.values().take(MOST_TOLD).map(|url| shown(url, redactor)).collect();
        let lines = refused.keys().flatten().take(MOST_TOLD).map(|place| {
            let Place { host, port } = place;
            format!("- {{host: \"{host}\", port: {port}, purpose: \"…\"}}")
        });
        let more = match refused.len().saturating_sub(MOST_TOLD) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let lines = lines.collect::<Vec<_>>().join(" ");
        let remedy = if lines.is_empty() { String::new() } else { format!("; to permit it, add {lines}") };
        Some(format!("refused, not on the allow list: {}{more}{remedy}", urls.join(", ")))
    }

    fn refused(&self) -> MutexGuard<'_, BTreeMap<Option<Place>, String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetches(&self) -> MutexGuard<'_, Fetches> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A step's request may carry a secret that it mounts: masked before it is cut, or a part of it would be left.
fn shown(url: &str, redactor: &Redactor) -> String {
    bounded(redactor.mask(url.to_owned()), LONGEST_URL, 0)
}

/// The daemon's question. Fields that do not decide anything are left out.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckPolicyRequest {
    #[prost(message, optional, tag = "2")]
    source: Option<ResolveSourceMetaResponse>,
}

/// Our answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckPolicyResponse {
    #[prost(message, optional, tag = "1")]
    decision: Option<Decision>,
}

/// Allowed or not.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Decision {
    #[prost(enumeration = "PolicyAction", tag = "1")]
    action: i32,
}

impl UnaryService<CheckPolicyRequest> for Egress {
    type Response = CheckPolicyResponse;
    type Future = Ready<Result<Response<CheckPolicyResponse>, Status>>;

    fn call(&mut self, request: Request<CheckPolicyRequest>) -> Self::Future {
        let source = request.into_inner().source.and_then(|answer| answer.source);
        let allowed = source.is_some_and(|source| {
            let allowed = self.allows(&source.identifier);
            self.fetches().asked(&source, allowed, Instant::now());
            allowed
        });
        let action = if allowed { PolicyAction::Allow } else { PolicyAction::Deny };
        ready(Ok(Response::new(CheckPolicyResponse { decision: Some(Decision { action: action.into() }) })))
    }
}

impl NamedService for Egress {
    const NAME: &'static str = "moby.buildkit.v1.sourcepolicy.policysession.PolicyVerifier";
}

impl<B> Service<http::Request<B>> for Egress
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let judge = self.clone();
        Box::pin(async move {
            if request.uri().path() != METHOD {
                return Ok(Status::unimplemented("only CheckPolicy").into_http());
            }
            Ok(Grpc::new(ProstCodec::default()).unary(judge, request).await)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn egress(permitted: &[&str]) -> Egress {
        Egress::new(permitted.iter().map(|entry| Place::parse(entry, 443).unwrap()))
    }

    #[test]
    fn a_host_is_permitted_on_its_port_however_the_port_is_written() {
        let egress = egress(&["pypi.org", "deb.debian.org:80", "[fd00::1]:8080"]);
        for open in [
            "https://pypi.org/simple",
            "https://pypi.org:443/simple",
            "https://PyPI.org",
            "http://deb.debian.org/debian?x",
            "http://deb.debian.org:80/",
            "http://[fd00::1]:8080/",
            "git://gitea:3000/a/b.git",
            "docker-image://registry:80/base",
        ] {
            assert!(egress.allows(open), "{open}");
        }
        assert_eq!(egress.remedy(&Redactor::default()), None);
    }

    #[test]
    fn another_port_another_host_and_every_trick_are_refused() {
        let egress = egress(&["pypi.org", "deb.debian.org:80"]);
        for closed in [
            "http://pypi.org/",
            "https://pypi.org:8443/",
            "https://deb.debian.org/",
            "https://files.pypi.org/",
            "https://pypi.org.evil.example/",
            "https://pypi.org@evil.example/",
            "https://evil.example\\@pypi.org/",
            "https://evil.example?@pypi.org/",
            "https://evil.example#pypi.org/",
            "https://pypi.org%2f.evil.example/",
            "https://pypi.org:443:80/",
            "https://pypi.org:+443/",
            "https:///pypi.org/",
            "http://registry:80/v2/",
        ] {
            assert!(!egress.allows(closed), "{closed}");
        }
    }

    #[test]
    fn a_refusal_is_told_once_with_the_line_that_would_permit_it() {
        let egress = egress(&[]);
        egress.allows("https://pypi.org:443/simple/a\u{1b}");
        egress.allows("https://pypi.org/simple/b");
        let remedy = egress.remedy(&Redactor::default()).unwrap();
        assert_eq!(
            remedy,
            "refused, not on the allow list: https://pypi.org/simple/a; to permit it, add \
             - {host: \"pypi.org\", port: 443, purpose: \"…\"}"
        );
        assert_eq!(egress.told(&Redactor::default()).len(), 1);
    }

    #[test]
    fn a_refusal_shows_neither_query_nor_credentials_nor_a_secret_in_the_path() {
        let (egress, redactor) = (egress(&[]), Redactor::default());
        redactor.remember(b"hunter2-hunter2");
        egress.allows("https://ada:lovelace@a.example/x?key=unknown-secret#unknown-secret");
        egress.allows(&format!("https://b.example/{}/hunter2-hunter2/y", "z".repeat(LONGEST_URL - 25)));
        let said = format!("{:?} {:?}", egress.told(&redactor), egress.remedy(&redactor));
        assert!(said.contains("https://a.example/x") && said.contains("b.example"), "{said}");
        for secret in ["lovelace", "unknown-secret", "hunter2"] {
            assert!(!said.contains(secret), "{said}");
        }
    }

    #[test]
    fn the_memory_of_refusals_is_bounded() {
        let egress = egress(&[]);
        (0..1000).for_each(|port| assert!(!egress.allows(&format!("http://evil.example:{port}/"))));
        assert_eq!(egress.told(&Redactor::default()).len(), MOST_REFUSED);
        assert!(egress.remedy(&Redactor::default()).unwrap().contains("and 17 more"));
    }
}
