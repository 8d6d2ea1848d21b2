//! Where an app's source is validated before it is built here, and what is known of it there.
//!
//! The forge's repository may be a pull mirror of one on GitHub, whose checks say which revisions are good. Nobody asks
//! GitHub when deciding: a job that may reach it reads, keeps an [`UpstreamState`] for each app, and wakes what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::app::Source;
use crate::id::{BranchName, CheckName, RepoName, Revision};
use crate::time::Timestamp;

/// How many revisions that passed are kept.
pub const KEPT: usize = 32;

/// The repository on GitHub that an app's source is mirrored from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// The repository there; its branch has the same name as here.
    pub github: RepoName,
    /// The checks that a revision must have passed there before it is built; none where it is only mirrored.
    pub checks: BTreeSet<CheckName>,
}

/// What a check says of one revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum CheckState {
    /// It succeeded, or had nothing to say against it (neutral, skipped), as GitHub counts required checks.
    Passed,
    /// It is queued or under way.
    Pending,
    /// It ended otherwise.
    Failed {
        /// In GitHub's word: `failure`, `cancelled`, `timed_out`, …
        conclusion: String,
    },
}

impl CheckState {
    /// Of two results under one name, the one that counts: all of them have to pass.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (failed @ CheckState::Failed { .. }, _) | (_, failed @ CheckState::Failed { .. }) => failed,
            (CheckState::Pending, _) | (_, CheckState::Pending) => CheckState::Pending,
            (CheckState::Passed, CheckState::Passed) => CheckState::Passed,
        }
    }
}

impl fmt::Display for CheckState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckState::Passed => write!(f, "passed"),
            CheckState::Pending => write!(f, "is pending"),
            CheckState::Failed { conclusion } => write!(f, "did not pass ({conclusion})"),
        }
    }
}

/// The results of one revision, by the names of the checks. What never ran is not in it.
pub type Results = BTreeMap<CheckName, CheckState>;

/// What is known of an app's source on GitHub, as it was read last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamState {
    /// The repository that was asked about.
    pub github: RepoName,
    /// Its branch.
    pub branch: BranchName,
    /// The checks that were asked about.
    pub checks: BTreeSet<CheckName>,
    /// When it was asked.
    pub asked: Timestamp,
    /// The head of the branch there; nothing where there is no such branch.
    pub head: Option<Revision>,
    /// The results of that head, of the checks that were asked about.
    pub results: Results,
    /// The revisions that are on the branch there and passed all of these checks, the newest first. Not all of them: those
    /// that were seen.
    pub passed: Vec<Revision>,
    /// The ancestor that the app's declaration pins, where it is none of these and is on the branch there.
    #[serde(default)]
    pub pinned: Option<Pinned>,
    /// The head of the branch of the mirror, after the last attempt to bring it up to date.
    pub mirrored: Option<Revision>,
    /// Since when the mirror's head is another one than GitHub's, although it was told to follow.
    pub behind_since: Option<Timestamp>,
}

/// A revision that is pinned, and what its checks say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// The revision.
    pub revision: Revision,
    /// Its results, of the checks that were asked about.
    pub results: Results,
}

impl UpstreamState {
    /// Whether `revision` is known to have passed.
    fn vouches_for(&self, revision: &Revision) -> bool {
        let pinned = self.pinned.as_ref().filter(|pinned| pinned.revision == *revision);
        self.passed.contains(revision) || pinned.is_some_and(|pinned| passes(&self.checks, &pinned.results))
    }

    /// The results of a revision, where they are known.
    fn results_of(&self, revision: &Revision) -> Option<&Results> {
        match &self.pinned {
            _ if self.head.as_ref() == Some(revision) => Some(&self.results),
            Some(pinned) if pinned.revision == *revision => Some(&pinned.results),
            Some(_) | None => None,
        }
    }

    /// Whether this is about the source as it is registered now.
    #[must_use]
    pub fn is_of(&self, upstream: &Upstream, branch: &BranchName) -> bool {
        self.github.same_as(&upstream.github) && self.branch == *branch && self.checks == upstream.checks
    }

    /// Whether both say the same of the source, whenever they were asked.
    #[must_use]
    pub fn same_news(&self, other: &Self) -> bool {
        Self { asked: other.asked, behind_since: other.behind_since, ..self.clone() } == *other
    }

    /// What is the matter with the mirror, if anything: nobody asked for longer than `fresh_for`, or it does not follow.
    #[must_use]
    pub fn trouble(&self, now: Timestamp, fresh_for: Duration) -> Option<String> {
        let age = self.asked.until(now);
        if age > fresh_for {
            return Some(format!(
                "GitHub was asked {} ago for the last time; is the job that runs `fabrique mirror sync` well?",
                minutes(age)
            ));
        }
        let since = self.behind_since?;
        let (here, there) = (short(self.mirrored.as_ref()), short(self.head.as_ref()));
        let waited = minutes(since.until(now));
        Some(format!(
            "Gitea's mirror is at {here} and GitHub at {there}, for {waited} now: its queue of mirrors may be stuck, or \
             its last fetch failed; look into Gitea's log, and restart Gitea if it says nothing"
        ))
    }
}

/// Why `wanted`, the head of the source or an ancestor of it, may not be built yet by `state`; nothing where it passed, or
/// no checks are asked for.
#[must_use]
pub fn unproven(source: &Source, state: Option<&UpstreamState>, wanted: &Revision) -> Option<String> {
    let upstream = source.upstream.as_ref().filter(|upstream| !upstream.checks.is_empty())?;
    let state = state.filter(|state| state.is_of(upstream, &source.branch));
    if state.is_some_and(|state| state.vouches_for(wanted)) {
        return None;
    }
    Some(reason(source, upstream, state, wanted))
}

fn reason(
    source: &Source,
    upstream: &Upstream,
    state: Option<&UpstreamState>,
    revision: &Revision,
) -> String {
    let (github, branch) = (&upstream.github, &source.branch);
    let names = || join(upstream.checks.iter().map(ToString::to_string));
    let Some(state) = state else {
        return format!(
            "GitHub ({github}) was never asked about {} as it is registered now; `fabrique mirror sync` asks",
            names()
        );
    };
    let Some(there) = &state.head else {
        return format!("GitHub has no branch {branch} in {github}");
    };
    let Some(results) = state.results_of(revision) else {
        return format!(
            "{}: not known to have passed on GitHub for {}; {branch} of {github} is at {} there",
            names(),
            revision.short(),
            there.short()
        );
    };
    let missing = upstream.checks.iter().filter_map(|check| match results.get(check) {
        Some(CheckState::Passed) => None,
        Some(state @ (CheckState::Pending | CheckState::Failed { .. })) => Some(format!("{check} {state}")),
        None => Some(format!("{check} did not run")),
    });
    format!("on GitHub ({github}), for {}: {}", revision.short(), join(missing))
}

/// Whether a revision with these results may be built.
#[must_use]
pub fn passes(checks: &BTreeSet<CheckName>, results: &Results) -> bool {
    checks.iter().all(|check| results.get(check) == Some(&CheckState::Passed))
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

fn short(revision: Option<&Revision>) -> &str {
    revision.map_or("nothing", |revision| revision.short())
}

fn minutes(duration: Duration) -> String {
    match duration.as_secs() / 60 {
        0 => format!("{} s", duration.as_secs()),
        minutes @ 1..120 => format!("{minutes} min"),
        minutes => format!("{} h", minutes / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(digit: char) -> Revision {
        Revision::parse(&digit.to_string().repeat(40)).unwrap()
    }

    fn check(name: &str) -> CheckName {
        CheckName::parse(name).unwrap()
    }

    fn source(checks: &[&str]) -> Source {
        let github = RepoName::parse("acme/citation").unwrap();
        Source {
            repo: RepoName::parse("atlas/citation").unwrap(),
            branch: BranchName::parse("main").unwrap(),
            declaration: None,
            migrations: None,
            upstream: Some(Upstream { github, checks: checks.iter().map(|name| check(name)).collect() }),
        }
    }

    fn state(head: char, results: &[(&str, CheckState)], passed: &[char]) -> UpstreamState {
        UpstreamState {
            github: RepoName::parse("acme/citation").unwrap(),
            branch: BranchName::parse("main").unwrap(),
            checks: BTreeSet::from([check("ci"), check("lint")]),
            asked: Timestamp(100_000_000),
            head: Some(revision(head)),
            results: results.iter().map(|(name, state)| (check(name), state.clone())).collect(),
            passed: passed.iter().map(|digit| revision(*digit)).collect(),
            pinned: None,
            mirrored: Some(revision(head)),
            behind_since: None,
        }
    }

    fn why(source: &Source, state: Option<&UpstreamState>, head: char) -> String {
        unproven(source, state, &revision(head)).unwrap_or_else(|| "vouched for".to_owned())
    }

    #[test]
    fn without_checks_nothing_is_waited_for_whatever_github_says() {
        assert_eq!(unproven(&source(&[]), None, &revision('a')), None);
        let mut unmirrored = source(&["ci"]);
        unmirrored.upstream = None;
        assert_eq!(unproven(&unmirrored, None, &revision('a')), None);
    }

    #[test]
    fn a_head_waits_and_the_reason_names_every_check_that_did_not_pass() {
        let wanted = source(&["ci", "lint"]);
        assert_eq!(
            why(&wanted, None, 'a'),
            "GitHub (acme/citation) was never asked about ci, lint as it is registered now; `fabrique mirror sync` asks"
        );
        let failed = CheckState::Failed { conclusion: "timed_out".to_owned() };
        let known = state('a', &[("ci", failed), ("lint", CheckState::Passed)], &[]);
        assert_eq!(
            why(&wanted, Some(&known), 'a'),
            "on GitHub (acme/citation), for aaaaaaaaaaaa: ci did not pass (timed_out)"
        );
        let known = state('a', &[("ci", CheckState::Pending)], &[]);
        assert_eq!(
            why(&wanted, Some(&known), 'a'),
            "on GitHub (acme/citation), for aaaaaaaaaaaa: ci is pending, lint did not run"
        );
        assert_eq!(
            why(&wanted, Some(&known), 'b'),
            "ci, lint: not known to have passed on GitHub for bbbbbbbbbbbb; main of acme/citation is at aaaaaaaaaaaa there"
        );
        let gone = UpstreamState { head: None, ..known };
        assert_eq!(why(&wanted, Some(&gone), 'a'), "GitHub has no branch main in acme/citation");
    }

    #[test]
    fn what_was_asked_of_other_checks_or_elsewhere_vouches_for_nothing() {
        let known = state('a', &[], &['a']);
        assert_eq!(unproven(&source(&["ci", "lint"]), Some(&known), &revision('a')), None);
        assert!(why(&source(&["ci"]), Some(&known), 'a').contains("never asked"));
        let elsewhere = UpstreamState { github: RepoName::parse("acme/other").unwrap(), ..known };
        assert!(why(&source(&["ci", "lint"]), Some(&elsewhere), 'a').contains("never asked"));
    }

    #[test]
    fn what_passed_before_it_vouches_for_no_head() {
        let known = state('b', &[("ci", CheckState::Pending)], &['a', '9']);
        let wanted = source(&["ci", "lint"]);
        assert!(why(&wanted, Some(&known), 'b').ends_with("ci is pending, lint did not run"));
        // A pin may name one of them.
        assert_eq!(unproven(&wanted, Some(&known), &revision('9')), None);
    }

    #[test]
    fn a_pin_is_vouched_for_by_its_own_results_wherever_the_head_is() {
        let wanted = source(&["ci", "lint"]);
        let results = |lint: CheckState| {
            Some(Pinned {
                revision: revision('9'),
                results: [(check("ci"), CheckState::Passed), (check("lint"), lint)].into(),
            })
        };
        let pinned = results(CheckState::Pending);
        let known = UpstreamState { pinned, ..state('b', &[], &['b']) };
        assert_eq!(
            why(&wanted, Some(&known), '9'),
            "on GitHub (acme/citation), for 999999999999: lint is pending"
        );
        let pinned = results(CheckState::Passed);
        let known = UpstreamState { pinned, ..state('b', &[("ci", CheckState::Pending)], &[]) };
        assert_eq!(unproven(&wanted, Some(&known), &revision('9')), None);
        assert!(why(&wanted, Some(&known), 'b').ends_with("ci is pending, lint did not run"));
        assert!(why(&wanted, Some(&known), '8').contains("not known to have passed"));
    }

    #[test]
    fn what_was_kept_before_there_were_pins_is_read() {
        let known = state('b', &[], &['a']);
        let mut kept = serde_json::to_value(&known).unwrap();
        kept.as_object_mut().unwrap().remove("pinned");
        assert_eq!(serde_json::from_value::<UpstreamState>(kept).unwrap(), known);
    }

    #[test]
    fn all_results_of_one_name_have_to_pass() {
        let failed = || CheckState::Failed { conclusion: "failure".to_owned() };
        assert_eq!(CheckState::Passed.and(CheckState::Passed), CheckState::Passed);
        assert_eq!(CheckState::Passed.and(CheckState::Pending), CheckState::Pending);
        assert_eq!(CheckState::Pending.and(failed()), failed());
        assert_eq!(failed().and(CheckState::Passed), failed());
    }

    #[test]
    fn a_mirror_is_in_trouble_when_nobody_asks_any_more_or_when_it_does_not_follow() {
        let fresh_for = Duration::from_hours(1);
        let mut known = state('a', &[], &[]);
        assert_eq!(known.trouble(known.asked.after(Duration::from_mins(59)), fresh_for), None);
        let late = known.trouble(known.asked.after(Duration::from_hours(3)), fresh_for).unwrap();
        assert!(late.starts_with("GitHub was asked 3 h ago"), "{late}");
        known.mirrored = Some(revision('9'));
        known.behind_since = Some(known.asked.before(Duration::from_mins(40)));
        let stuck = known.trouble(known.asked, fresh_for).unwrap();
        assert!(
            stuck.starts_with("Gitea's mirror is at 999999999999 and GitHub at aaaaaaaaaaaa, for 40 min now"),
            "{stuck}"
        );
    }

    #[test]
    fn only_news_count_and_neither_when_it_was_asked_nor_since_when_it_stands_so() {
        let known = state('a', &[("ci", CheckState::Pending)], &[]);
        let later = UpstreamState { asked: Timestamp(900_000_000), ..known.clone() };
        assert!(known.same_news(&later));
        let passed = UpstreamState { passed: vec![revision('a')], ..later.clone() };
        assert!(!known.same_news(&passed));
        assert!(!known.same_news(&UpstreamState { mirrored: None, ..later }));
    }
}
