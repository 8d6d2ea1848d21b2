//! Events as lines for people.

use std::fmt;

use fabrique_core::id::AppName;
use fabrique_core::time::Timestamp;
use fabrique_ports::bus::{Event, EventBody};
use fabrique_ports::records::BuildPhase;
use serde::Serialize;

/// One event, readable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// When.
    pub at: Timestamp,
    /// What kind: `delivery`, `decision`, `build`, `step`, `commit`, `operator`, `warning`.
    pub kind: &'static str,
    /// What it is about: an app, or a repository.
    pub about: String,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:<8} {:<16} {}", clock(self.at), self.kind, self.about, self.text)
    }
}

/// The line of an event.
#[must_use]
pub fn line(event: &Event) -> Line {
    let (kind, about, text) = describe(&event.body);
    Line { at: event.at, kind, about: escaped(&about), text: escaped(&text) }
}

/// The time of day in UTC, with milliseconds.
fn clock(at: Timestamp) -> String {
    let (seconds, millis) = (at.0 / 1000 % 86_400, at.0 % 1000);
    format!("{:02}:{:02}:{:02}.{millis:03}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// What others wrote must not steer the terminal.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

fn describe(body: &EventBody) -> (&'static str, String, String) {
    match body {
        EventBody::Delivery { repo, reference, after, woken, ignored, .. } => {
            let what = format!("{reference} at {}", short(after));
            let text = match ignored {
                Some(why) => format!("{what} ignored: {why}"),
                None => format!("{what} wakes {}", names(woken)),
            };
            ("delivery", repo.to_string(), text)
        }
        EventBody::Decision { app, target, action, reason, .. } => {
            let target = target.as_ref().map_or_else(String::new, |target| format!(" {}", target.short()));
            ("decision", app.to_string(), format!("{action}{target}: {reason}"))
        }
        EventBody::Build { app, build, revision, phase } => {
            ("build", app.to_string(), format!("{} {} ({build})", revision.short(), phase_text(phase)))
        }
        EventBody::Step { app, name, cached, millis, error, .. } => {
            let how = match (error, cached) {
                (Some(error), _) => format!("failed after {}: {error}", seconds(*millis)),
                (None, true) => "cached".to_owned(),
                (None, false) => seconds(*millis),
            };
            ("step", app.to_string(), format!("{name} {how}"))
        }
        EventBody::Commit { app, environment, channel, commit, revision, digest } => {
            let image = digest.as_ref().map_or_else(String::new, |digest| format!(" as {digest}"));
            let text = format!(
                "{channel} of {environment} shows {}{image} (commit {})",
                revision.short(),
                commit.short()
            );
            ("commit", app.to_string(), text)
        }
        EventBody::Command { app, verb, caller, outcome } => {
            ("operator", app.to_string(), format!("{verb} by {caller}: {outcome}"))
        }
        EventBody::Warning { app, message } => {
            ("warning", app.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string), message.clone())
        }
    }
}

/// Where a build stands, in words.
#[must_use]
pub fn phase_text(phase: &BuildPhase) -> String {
    match phase {
        BuildPhase::Queued => "queued".to_owned(),
        BuildPhase::Preparing => "preparing".to_owned(),
        BuildPhase::Building => "building".to_owned(),
        BuildPhase::Pushed { digest } => format!("pushed {digest}"),
        BuildPhase::Committed { digest, commits } if commits.is_empty() => format!("built {digest}"),
        BuildPhase::Committed { digest, commits } => {
            let commits: Vec<&str> = commits.iter().map(|commit| commit.short()).collect();
            format!("committed {digest} in {}", commits.join(", "))
        }
        BuildPhase::NotCommitted { digest, reason } => format!("built {digest}, not committed: {reason}"),
        BuildPhase::Failed { kind, message } => format!("failed ({kind}): {message}"),
        BuildPhase::Superseded { by: Some(by) } => format!("superseded by {}", by.short()),
        BuildPhase::Superseded { by: None } => "stopped: not wanted any more".to_owned(),
    }
}

/// `1.6 s`
pub(crate) fn seconds(millis: u64) -> String {
    format!("{}.{} s", (millis + 50) / 1000, (millis + 50) % 1000 / 100)
}

fn names(apps: &[AppName]) -> String {
    if apps.is_empty() {
        return "nobody".to_owned();
    }
    apps.iter().map(AppName::as_str).collect::<Vec<_>>().join(", ")
}

/// The first twelve characters of what a payload calls a revision.
fn short(after: &str) -> String {
    after.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use fabrique_core::failure::FailureKind;
    use fabrique_core::id::{BuildId, Digest, EnvironmentName, RepoName, Revision};

    use super::*;

    fn app() -> AppName {
        AppName::parse("citation").unwrap()
    }

    fn revision() -> Revision {
        Revision::parse(&"1b1d".repeat(10)).unwrap()
    }

    fn build() -> BuildId {
        BuildId::parse("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap()
    }

    fn shown(body: EventBody) -> String {
        line(&Event { id: String::new(), at: Timestamp(1_764_437_751_042), trace: None, body }).to_string()
    }

    #[test]
    fn deliveries_say_whom_they_wake_or_why_they_are_ignored() {
        let delivery = |woken, ignored: Option<&str>| EventBody::Delivery {
            repo: RepoName::parse("atlas/citation").unwrap(),
            reference: "refs/heads/main".to_owned(),
            after: revision().to_string(),
            delivery: "0000".to_owned(),
            woken,
            ignored: ignored.map(str::to_owned),
        };
        insta::assert_snapshot!(shown(delivery(vec![app()], None)), @"17:35:51.042Z delivery atlas/citation   refs/heads/main at 1b1d1b1d1b1d wakes citation");
        insta::assert_snapshot!(shown(delivery(vec![], Some("a tag"))), @"17:35:51.042Z delivery atlas/citation   refs/heads/main at 1b1d1b1d1b1d ignored: a tag");
    }

    #[test]
    fn builds_and_steps_say_how_they_went() {
        let phase =
            |phase| shown(EventBody::Build { app: app(), build: build(), revision: revision(), phase });
        insta::assert_snapshot!(phase(BuildPhase::Building), @"17:35:51.042Z build    citation         1b1d1b1d1b1d building (citation-01k4z3v5w6x7y8z9a0b1c2d3e4)");
        let failed = BuildPhase::Failed { kind: FailureKind::Source, message: "exit code 2".to_owned() };
        insta::assert_snapshot!(phase(failed), @"17:35:51.042Z build    citation         1b1d1b1d1b1d failed (source): exit code 2 (citation-01k4z3v5w6x7y8z9a0b1c2d3e4)");
        let step = |cached, error: Option<&str>| {
            shown(EventBody::Step {
                app: app(),
                build: build(),
                name: "[2/3] RUN make".to_owned(),
                cached,
                millis: 1_649,
                error: error.map(str::to_owned),
            })
        };
        insta::assert_snapshot!(step(false, None), @"17:35:51.042Z step     citation         [2/3] RUN make 1.6 s");
        insta::assert_snapshot!(step(true, None), @"17:35:51.042Z step     citation         [2/3] RUN make cached");
        insta::assert_snapshot!(step(false, Some("exit code 2")), @"17:35:51.042Z step     citation         [2/3] RUN make failed after 1.6 s: exit code 2");
    }

    #[test]
    fn commits_say_what_is_deployed_where() {
        let body = EventBody::Commit {
            app: app(),
            environment: EnvironmentName::parse("prod").unwrap(),
            channel: "image".to_owned(),
            commit: Revision::parse(&"c0".repeat(20)).unwrap(),
            revision: revision(),
            digest: Some(Digest::parse(&format!("sha256:{}", "2e".repeat(32))).unwrap()),
        };
        insta::assert_snapshot!(shown(body), @"17:35:51.042Z commit   citation         image of prod shows 1b1d1b1d1b1d as sha256:2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e (commit c0c0c0c0c0c0)");
    }

    #[test]
    fn nothing_that_others_wrote_steers_the_terminal() {
        let body = EventBody::Warning { app: None, message: "red: \u{1b}[31m\nsecond line".to_owned() };
        insta::assert_snapshot!(shown(body), @r"17:35:51.042Z warning  -                red: \u{1b}[31m\nsecond line");
    }

    #[test]
    fn seconds_are_rounded_to_tenths() {
        assert_eq!([0, 49, 50, 1_649, 1_950].map(seconds), ["0.0 s", "0.0 s", "0.1 s", "1.6 s", "2.0 s"]);
    }
}
