//! What a build fetched, put together from the three places where it shows: the daemon's questions before it fetches
//! anything (all sources, and each request that a RUN step sends through the daemon's proxy), the steps, and the list
//! of answered requests that the daemon prints at the end of a step. Tried live on 0.34.2.
//!
//! A step may print such a list itself. It can colour the answers to its own requests with it, and neither add one nor
//! hide one: what was asked comes from the daemon's questions alone.

use std::collections::HashMap;
use std::time::Duration;

use bollard_buildkit_proto::moby::buildkit::v1::Vertex;
use bollard_buildkit_proto::pb::SourceOp;
use fabrique_ports::egress::{Answer, Fetch, FetchKind};
use tokio::time::Instant;

use crate::redact::Redactor;
use crate::text::{bounded, clean};

/// Permitted fetches that are remembered; a package manager may send thousands of requests.
const MOST_PERMITTED: usize = 180;
/// Refused ones, which somebody may want to do something about.
const MOST_REFUSED: usize = 60;
/// Steps that are watched.
const MOST_STEPS: usize = 10_000;
/// Longer identifiers are cut, in bytes.
const LONGEST: usize = 2000;
/// The longest text of a fetch that is passed on, in bytes.
const LONGEST_SHOWN: usize = 240;
/// The daemon sends the steps' progress in batches: what is asked may arrive before the start of the step that asks.
const BATCH: Duration = Duration::from_millis(500);
/// What the daemon prints before its list of a step's requests.
pub(crate) const LIST: &str = "proxy network requests:";

/// A request that the daemon's proxy let through, as it lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proxied {
    step: String,
    method: String,
    url: String,
    status: Option<u16>,
}

impl Proxied {
    /// Reads `- GET https://host/path -> 200`.
    pub(crate) fn parse(step: &str, line: &str) -> Option<Self> {
        let (method, rest) = line.strip_prefix("- ")?.split_once(' ')?;
        let (url, status) = match rest.rsplit_once(" -> ") {
            Some((url, status)) => (url, Some(status.parse().ok()?)),
            None => (rest, None),
        };
        let plain = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
        plain.then(|| Self { step: step.to_owned(), method: method.to_owned(), url: key(url), status })
    }
}

/// One question of the daemon.
#[derive(Debug)]
struct Ask {
    at: Instant,
    source: Source,
    permitted: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Source {
    Git { url: String, revision: Option<String> },
    Image { reference: String },
    Http { url: String },
    Other { identifier: String },
}

impl Source {
    fn of(op: &SourceOp) -> Self {
        let text = |text: &str| bounded(clean(text), LONGEST, 0);
        let identifier = op.identifier.as_str();
        if let Some(reference) = identifier.strip_prefix("docker-image://") {
            return Self::Image { reference: text(reference) };
        }
        if identifier.starts_with("git://") {
            let url = op.attrs.get("git.fullurl").map_or(identifier, String::as_str);
            return Self::Git { url: text(url), revision: op.attrs.get("git.checksum").map(|id| text(id)) };
        }
        if identifier.starts_with("http://") || identifier.starts_with("https://") {
            return Self::Http { url: text(identifier) };
        }
        Self::Other { identifier: text(identifier) }
    }
}

/// What was seen of one step.
#[derive(Debug)]
struct Seen {
    name: String,
    from: Option<Instant>,
    to: Option<Instant>,
    cached: bool,
    failed: bool,
}

/// What one build fetches.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    asks: Vec<Ask>,
    refused: usize,
    left_out: u64,
    steps: HashMap<String, Seen>,
}

/// All of it, each with how long ago it was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) fetches: Vec<(Duration, Fetch)>,
    pub(crate) left_out: u64,
}

impl Fetches {
    /// The daemon asked whether it may fetch `op`, and was answered.
    pub(crate) fn asked(&mut self, op: &SourceOp, permitted: bool, now: Instant) {
        let source = Source::of(op);
        if self.is_known(&source, permitted) {
            return;
        }
        let kept = if permitted {
            self.asks.len() - self.refused < MOST_PERMITTED
        } else {
            self.refused < MOST_REFUSED
        };
        if !kept {
            self.left_out += 1;
            return;
        }
        self.refused += usize::from(!permitted);
        self.asks.push(Ask { at: now, source, permitted });
    }

    /// The daemon asks about an image and a repository before it looks at them and again before it fetches them, the
    /// second time by digest.
    fn is_known(&mut self, source: &Source, permitted: bool) -> bool {
        self.asks.iter_mut().filter(|ask| ask.permitted == permitted).any(|ask| {
            match (&mut ask.source, source) {
                (Source::Image { reference: old }, Source::Image { reference: new }) => {
                    let same = new == old
                        || new.strip_prefix(old.as_str()).is_some_and(|rest| rest.starts_with("@sha256:"));
                    if same {
                        old.clone_from(new);
                    }
                    same
                }
                (Source::Http { .. }, Source::Http { .. }) => false,
                (old, new) => old == new,
            }
        })
    }

    /// A step moved.
    pub(crate) fn saw(&mut self, vertex: &Vertex, now: Instant) {
        if self.steps.len() >= MOST_STEPS && !self.steps.contains_key(&vertex.digest) {
            return;
        }
        let seen = self.steps.entry(vertex.digest.clone()).or_insert_with(|| Seen {
            name: String::new(),
            from: None,
            to: None,
            cached: false,
            failed: false,
        });
        if !vertex.name.is_empty() {
            seen.name = bounded(clean(&vertex.name), LONGEST, 0);
        }
        if vertex.started.is_some() {
            seen.from.get_or_insert(now);
            seen.to = vertex.completed.is_some().then_some(now);
        }
        seen.cached = vertex.cached;
        // One that another's failure stopped did not fail.
        seen.failed |= !vertex.error.is_empty() && !vertex.error.ends_with("context canceled");
    }

    /// What there is to tell, at the end.
    pub(crate) fn tell(&self, mut proxied: Vec<Proxied>, now: Instant, redactor: &Redactor) -> Told {
        let mut told = Told { fetches: Vec::new(), left_out: self.left_out };
        for ask in &self.asks {
            let mut fetch = self.fetch(ask, &mut proxied);
            fetch.location = shown(fetch.location, redactor);
            fetch.step = fetch.step.map(|step| shown(step, redactor));
            // Asked about twice, as above.
            let again = fetch.what == FetchKind::Add && told.fetches.iter().any(|(_, other)| *other == fetch);
            if !again {
                told.fetches.push((now.saturating_duration_since(ask.at), fetch));
            }
        }
        told
    }

    fn fetch(&self, ask: &Ask, proxied: &mut Vec<Proxied>) -> Fetch {
        match &ask.source {
            Source::Git { url, revision } => {
                let step = self.step(|name| name.contains(url.as_str()));
                let named = step.filter(|step| !step.name.starts_with("[internal]"));
                let mut location = location(url);
                if let Some(revision) = revision {
                    location = format!("{location}#{revision}");
                }
                Fetch {
                    what: FetchKind::Source,
                    step: named.map(|step| step.name.clone()),
                    method: None,
                    location,
                    place: place(url),
                    answer: answer(ask, step),
                }
            }
            Source::Image { reference } => {
                let ends = format!("FROM {reference}");
                let from = self.step(|name| name.ends_with(&ends));
                let looked =
                    self.step(|name| name.starts_with("[internal]") && name.ends_with(reference.as_str()));
                Fetch {
                    what: FetchKind::Image,
                    step: from.map(|step| step.name.clone()),
                    method: None,
                    location: reference.clone(),
                    place: reference.split_once('/').map(|(registry, _)| registry.to_owned()),
                    answer: answer(ask, from.or(looked)),
                }
            }
            Source::Http { url } => self.http(ask, url, proxied),
            Source::Other { identifier } => Fetch {
                what: FetchKind::Source,
                step: None,
                method: None,
                location: identifier.clone(),
                place: None,
                answer: answer(ask, None),
            },
        }
    }

    fn http(&self, ask: &Ask, url: &str, proxied: &mut Vec<Proxied>) -> Fetch {
        let fetch = |what, step: Option<&str>, method, answer| Fetch {
            what,
            step: step.map(str::to_owned),
            method,
            location: location(url),
            place: place(url),
            answer,
        };
        if let Some(add) = self.step(|name| name.contains("ADD ") && name.contains(url)) {
            return fetch(FetchKind::Add, Some(&add.name), None, answer(ask, Some(add)));
        }
        let wanted = key(url);
        if ask.permitted
            && let Some(at) = proxied.iter().position(|request| request.url == wanted)
        {
            let request = proxied.remove(at);
            let answer = request.status.map_or(Answer::Unseen, Answer::Status);
            return fetch(FetchKind::Request, Some(&request.step), Some(request.method), answer);
        }
        let mut running = self.steps.values().filter(|step| step.ran_at(ask.at));
        match (running.next(), running.next()) {
            // Refused before there was any step: the Dockerfile itself asks.
            (None, _) => fetch(FetchKind::Add, None, None, answer(ask, None)),
            (Some(only), None) => fetch(FetchKind::Request, Some(&only.name), None, answer(ask, None)),
            (Some(_), Some(_)) => fetch(FetchKind::Request, None, None, answer(ask, None)),
        }
    }

    fn step(&self, is: impl Fn(&str) -> bool) -> Option<&Seen> {
        self.steps.values().find(|step| is(&step.name))
    }
}

impl Seen {
    /// Whether it is a RUN step that may have been running then.
    fn ran_at(&self, at: Instant) -> bool {
        let Some(from) = self.from.filter(|_| self.name.contains("RUN ") && !self.cached) else {
            return false;
        };
        from <= at + BATCH && self.to.is_none_or(|to| at <= to)
    }
}

/// Secrets go before the cut, which could leave half of one.
fn shown(text: String, redactor: &Redactor) -> String {
    bounded(redactor.mask(text), LONGEST_SHOWN, 0)
}

/// What shows of an answer by whether it was permitted and how the step that needed it went.
fn answer(ask: &Ask, step: Option<&Seen>) -> Answer {
    match step {
        _ if !ask.permitted => Answer::Refused,
        Some(step) if step.failed => Answer::Failed,
        Some(step) if step.cached || step.to.is_some() => Answer::Had,
        Some(_) | None => Answer::Unseen,
    }
}

/// Scheme, authority without credentials and a scheme's own port, and what follows.
fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let authority = authority.rsplit_once('@').map_or(authority, |(_, plain)| plain);
    let default = match scheme {
        "https" => ":443",
        "http" => ":80",
        _ => "",
    };
    let authority = authority.strip_suffix(default).unwrap_or(authority);
    Some((scheme, authority, rest))
}

/// The URL in the one spelling that the daemon's questions and its lists share.
fn key(url: &str) -> String {
    let Some((scheme, authority, rest)) = parts(url) else { return url.to_owned() };
    let rest = rest.split('#').next().unwrap_or_default();
    format!("{scheme}://{authority}{rest}")
}

/// The URL for people and records: a query may hold secrets.
pub(crate) fn location(url: &str) -> String {
    let Some((scheme, authority, rest)) = parts(url) else { return url.to_owned() };
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{authority}{path}")
}

fn place(url: &str) -> Option<String> {
    let (scheme, authority, _) = parts(url)?;
    if authority.is_empty() {
        return None;
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    match scheme {
        _ if has_port => Some(authority.to_owned()),
        "https" => Some(format!("{authority}:443")),
        "http" => Some(format!("{authority}:80")),
        _ => Some(authority.to_owned()),
    }
}

#[cfg(test)]
mod tests;
