//! `mirror`: pull mirrors of GitHub, what their sources' checks say, and how fresh all of it is.
//!
//! GitHub never pushes and nobody asks it when deciding: [`sync`] is run by a job that may reach it. It tells Gitea to
//! fetch, waits until Gitea's branches are where GitHub's are, reads the checks, keeps both for each app, and wakes whom
//! the news concern. Gitea tells of a first clone by no webhook, and loses some of those of a later fetch: the reconciler
//! would find them, and the wake is sooner.

mod pin;
mod sync;

use std::collections::BTreeMap;
use std::time::Duration;

use fabrique_core::app::App;
use fabrique_core::id::{AppName, BranchName, CheckName, RepoName, Revision};
use fabrique_core::time::Timestamp;
use fabrique_core::upstream::{CheckState, Upstream, UpstreamState, unproven};
use fabrique_gitops::Registrations;
use fabrique_ports::PortResult;
use fabrique_ports::upstream::{AccountRight, MirrorOutcome, Mirrors, RightOutcome, Upstreams, WantedMirror};
use serde::Serialize;
use tokio::time::Instant;

use crate::exit::Exit;

pub use sync::{SyncPorts, Synced, SyncedApp, SyncedRepo, sync};

/// How old what is known of GitHub may be by default: some syncs that were missed.
pub const FRESH_FOR: Duration = Duration::from_hours(1);
/// How long a first clone may take by default: within the deadline of the job.
pub const FIRST_CLONE: Duration = Duration::from_mins(25);
/// Between two looks at a first clone of which Gitea does not tell the end.
const PAUSE: Duration = Duration::from_secs(2);
/// How long a mirror is waited for by default.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// A repository on the forge that mirrors one on GitHub, with the apps that are built from it.
#[derive(Debug, Clone)]
pub struct Mirrored {
    /// The mirror.
    pub repo: RepoName,
    /// What it mirrors.
    pub github: RepoName,
    /// The apps, by name.
    pub apps: Vec<App>,
}

/// Every mirror that a registration asks for, by name. Apps that name another origin for the same repository are
/// findings when they are read, and are not here.
#[must_use]
pub fn mirrored(registrations: &Registrations) -> Vec<Mirrored> {
    let mut all: Vec<Mirrored> = Vec::new();
    for app in registrations.apps.values() {
        let Some(Upstream { github, .. }) = &app.source.upstream else { continue };
        // Both forges compare names without case.
        let known =
            all.iter_mut().find(|known| known.repo.same_as(&app.source.repo) && known.github.same_as(github));
        match known {
            Some(known) => known.apps.push(app.clone()),
            None => all.push(Mirrored {
                repo: app.source.repo.clone(),
                github: github.clone(),
                apps: vec![app.clone()],
            }),
        }
    }
    all.sort_by_key(|mirrored| mirrored.repo.to_string());
    all
}

/// What was found, and done, about every mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnsuredMirrors {
    /// Whether nothing was written.
    pub dry_run: bool,
    /// Every mirror, by name.
    pub mirrors: Vec<EnsuredMirror>,
}

/// What was found, and done, about one mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnsuredMirror {
    /// The mirror.
    pub repo: RepoName,
    /// What it is cloned from.
    pub from: String,
    /// What came of it.
    pub result: MirrorResult,
    /// Why it was refused or failed, or nothing.
    pub detail: String,
    /// What those may do in it who read it and report on it; nothing of a mirror that is not there.
    pub rights: Vec<EnsuredRight>,
    #[serde(skip)]
    exit: Exit,
}

/// What was found, and done, about the right of one account in a mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnsuredRight {
    /// What its token is for: `read`, `status`.
    pub purpose: &'static str,
    /// The right that this takes: `read`, `write`.
    pub needs: &'static str,
    /// Whose it is, where that is known.
    pub account: Option<String>,
    /// What came of it.
    pub result: RightResult,
    /// What a person has to do, or nothing.
    pub detail: String,
}

/// What came of looking after a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RightResult {
    /// The account has it.
    Present,
    /// It was missing and is given now, or would be.
    Granted,
    /// The token is not given here, so that nothing is known of its account.
    Unseen,
    /// It is missing, and a person has to give it.
    Missing,
}

impl EnsuredRight {
    fn of(right: AccountRight, repo: &RepoName) -> Self {
        let AccountRight { purpose, needs, account, outcome } = right;
        let (result, detail) = match outcome {
            RightOutcome::Present => (RightResult::Present, String::new()),
            RightOutcome::Granted => (RightResult::Granted, String::new()),
            RightOutcome::Unseen => (
                RightResult::Unseen,
                format!(
                    "gitea.{purpose}_token is not given here: see that its account has `{needs}` in {repo}"
                ),
            ),
            RightOutcome::Missing(what) => (RightResult::Missing, what),
        };
        Self { purpose, needs, account, result, detail }
    }

    fn exit(&self, dry_run: bool) -> Exit {
        match self.result {
            RightResult::Present | RightResult::Unseen => Exit::Ok,
            RightResult::Granted => Exit::ok_if(!dry_run),
            RightResult::Missing => Exit::Denied,
        }
    }
}

/// What came of looking after a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MirrorResult {
    /// It was as it should be.
    Present,
    /// It was missing and is there now, or would be.
    Created,
    /// It fetched by itself and does not any more, or would not.
    Quieted,
    /// Its first clone has not ended.
    Cloning,
    /// It cannot be brought about.
    Refused,
    /// The forge did not answer, or denied it.
    Failed,
}

impl EnsuredMirrors {
    /// How the process ends: a dry run that would write is a finding.
    #[must_use]
    pub fn exit(&self) -> Exit {
        let of = |mirror: &EnsuredMirror| match mirror.result {
            MirrorResult::Present => Exit::Ok,
            MirrorResult::Created | MirrorResult::Quieted => Exit::ok_if(!self.dry_run),
            MirrorResult::Cloning => Exit::Unreachable,
            MirrorResult::Refused => Exit::Findings,
            MirrorResult::Failed => mirror.exit,
        };
        Exit::worst(self.mirrors.iter().flat_map(|mirror| {
            let rights = mirror.rights.iter().map(|right| right.exit(self.dry_run));
            rights.chain([of(mirror)])
        }))
    }
}

/// How first clones are gone about.
pub struct Clones<'a> {
    /// Where GitHub is cloned from, like `https://github.com/`.
    pub base: &'a str,
    /// How long one may take.
    pub limit: Duration,
    /// Hears what is waited for.
    pub tell: &'a (dyn Fn(String) + Send + Sync),
}

/// Makes every mirror be there, fetch only when it is told, and be open to those who read it and report on it. It stays while
/// first clones go on. One that fails stops no other.
pub async fn ensure(
    mirrors: &dyn Mirrors,
    wanted: &[Mirrored],
    clones: &Clones<'_>,
    dry_run: bool,
) -> EnsuredMirrors {
    let mut ensured = Vec::with_capacity(wanted.len());
    for mirrored in wanted {
        ensured.push(ensure_one(mirrors, mirrored, clones, dry_run).await);
    }
    EnsuredMirrors { dry_run, mirrors: ensured }
}

/// Makes the mirror be there, and stays while a first clone goes on that somebody on the way to Gitea does not wait for, or that
/// somebody else began.
async fn made(
    mirrors: &dyn Mirrors,
    mirror: &WantedMirror,
    clones: &Clones<'_>,
    dry_run: bool,
) -> PortResult<MirrorOutcome> {
    let until = Instant::now() + clones.limit;
    let mut cloning = false;
    (clones.tell)(format!("{}, with its first clone where it has none", mirror.repo));
    loop {
        let in_time = !dry_run && Instant::now() + PAUSE < until;
        match mirrors.ensure_mirror(mirror, dry_run).await {
            Ok(MirrorOutcome::Cloning) if in_time => cloning = true,
            Err(error) if cloning && in_time && error.transient() => {}
            // Of that clone.
            Ok(MirrorOutcome::Present) if cloning => return Ok(MirrorOutcome::Created),
            ended => return ended,
        }
        (clones.tell)(format!("{}: its first clone goes on", mirror.repo));
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ensure_one(
    mirrors: &dyn Mirrors,
    mirrored: &Mirrored,
    clones: &Clones<'_>,
    dry_run: bool,
) -> EnsuredMirror {
    let from = format!("{}/{}.git", clones.base.trim_end_matches('/'), mirrored.github);
    let mirror = WantedMirror { repo: mirrored.repo.clone(), from: from.clone(), limit: clones.limit };
    let mut exit = Exit::Ok;
    let (mut result, mut detail) = match made(mirrors, &mirror, clones, dry_run).await {
        Ok(MirrorOutcome::Present) => (MirrorResult::Present, String::new()),
        Ok(MirrorOutcome::Created) => (MirrorResult::Created, String::new()),
        Ok(MirrorOutcome::Quieted) => (MirrorResult::Quieted, String::new()),
        Ok(MirrorOutcome::Cloning) => (MirrorResult::Cloning, unended(clones.limit)),
        Ok(MirrorOutcome::Refused(why)) => (MirrorResult::Refused, why),
        Err(error) => {
            exit = Exit::from(&error);
            let more = if error.transient() { "; run this again" } else { "" };
            (MirrorResult::Failed, format!("{error}{more}"))
        }
    };
    let is_there = match result {
        MirrorResult::Present | MirrorResult::Quieted => true,
        MirrorResult::Created => !dry_run,
        MirrorResult::Cloning | MirrorResult::Refused | MirrorResult::Failed => false,
    };
    let mut rights = Vec::new();
    if is_there {
        match mirrors.ensure_rights(&mirrored.repo, dry_run).await {
            Ok(found) => {
                rights = found.into_iter().map(|right| EnsuredRight::of(right, &mirrored.repo)).collect();
            }
            Err(error) => {
                exit = Exit::from(&error);
                (result, detail) = (MirrorResult::Failed, format!("rights: {error}"));
            }
        }
    }
    EnsuredMirror { repo: mirrored.repo.clone(), from, result, detail, rights, exit }
}

fn unended(limit: Duration) -> String {
    let seconds = limit.as_secs();
    format!(
        "its first clone is not over: run this again; one that is not over after {seconds} s, or was cut off, is removed then \
         and begun anew; for larger repositories raise github.first_clone, and [git.timeout] MIGRATE of Gitea"
    )
}

/// What is known of every app whose source is validated on GitHub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MirrorStatus {
    /// Every such app, by name.
    pub apps: Vec<UpstreamFacts>,
}

/// What is known of one app's source on GitHub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamFacts {
    /// The app.
    pub app: AppName,
    /// The mirror that it is built from.
    pub repo: RepoName,
    /// What is mirrored.
    pub github: RepoName,
    /// The branch, here and there.
    pub branch: BranchName,
    /// When GitHub was asked the last time, if ever.
    pub asked: Option<Timestamp>,
    /// The head on GitHub.
    pub head: Option<Revision>,
    /// The head of the mirror, as the last sync left it.
    pub mirrored: Option<Revision>,
    /// What each of the app's checks says of the head on GitHub; nothing of one that did not run.
    pub checks: BTreeMap<CheckName, Option<CheckState>>,
    /// The newest revision that is known to have passed them.
    pub passed: Option<Revision>,
    /// Why the head on GitHub may not be built, where checks are asked for.
    pub waits: Option<String>,
    /// What is the matter with mirror or job: nobody asked for too long, the mirror does not follow.
    pub trouble: Option<String>,
}

impl UpstreamFacts {
    /// What is known of an app by `state`; nothing of one that is not from GitHub. What is older than `fresh_for` is
    /// trouble.
    pub(crate) fn of(
        app: &App,
        state: Option<&UpstreamState>,
        now: Timestamp,
        fresh_for: Duration,
    ) -> Option<Self> {
        let upstream = app.source.upstream.as_ref()?;
        let state = state.filter(|state| state.is_of(upstream, &app.source.branch));
        let head = state.and_then(|state| state.head.as_ref());
        let waits = head.and_then(|head| unproven(&app.source, state, head));
        let result = |check: &CheckName| state.and_then(|state| state.results.get(check).cloned());
        let never = "GitHub was never asked about it as it is registered now: `fabrique mirror sync` asks";
        let trouble = match state {
            Some(state) => state.trouble(now, fresh_for),
            None => Some(never.to_owned()),
        };
        Some(Self {
            app: app.name.clone(),
            repo: app.source.repo.clone(),
            github: upstream.github.clone(),
            branch: app.source.branch.clone(),
            asked: state.map(|state| state.asked),
            head: head.cloned(),
            mirrored: state.and_then(|state| state.mirrored.clone()),
            checks: upstream.checks.iter().map(|check| (check.clone(), result(check))).collect(),
            passed: state.and_then(|state| state.passed.first().cloned()),
            waits,
            trouble,
        })
    }
}

impl MirrorStatus {
    /// How the process ends: that a check has not passed is GitHub's news, and no finding.
    #[must_use]
    pub fn exit(&self) -> Exit {
        Exit::ok_if(self.apps.iter().all(|app| app.trouble.is_none()))
    }
}

/// What is known of every app whose source is validated on GitHub. GitHub is not asked.
///
/// # Errors
/// When the bus does not answer.
pub async fn status(
    upstreams: &dyn Upstreams,
    registrations: &Registrations,
    now: Timestamp,
    fresh_for: Duration,
) -> PortResult<MirrorStatus> {
    let mut apps = Vec::new();
    for app in registrations.apps.values().filter(|app| app.source.upstream.is_some()) {
        let state = upstreams.upstream(&app.name).await?;
        apps.extend(UpstreamFacts::of(app, state.as_ref(), now, fresh_for));
    }
    Ok(MirrorStatus { apps })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use fabrique_ports::upstream::SyncRequest;
    use fabrique_ports::{Fault, Peer, PortError};

    use super::*;

    /// Answers so, one after the other, and the last one for good.
    struct Answers(Mutex<Vec<PortResult<MirrorOutcome>>>);

    #[async_trait]
    impl Mirrors for Answers {
        async fn ensure_mirror(&self, _: &WantedMirror, _: bool) -> PortResult<MirrorOutcome> {
            let mut answers = self.0.lock().unwrap();
            if answers.len() > 1 { answers.remove(0) } else { Ok(answers[0].as_ref().unwrap().clone()) }
        }

        async fn ensure_rights(&self, _: &RepoName, _: bool) -> PortResult<Vec<AccountRight>> {
            Ok(Vec::new())
        }

        async fn request_sync(&self, _: &RepoName) -> PortResult<SyncRequest> {
            Ok(SyncRequest::Queued)
        }
    }

    /// What came of one mirror, how long that took, and what was told meanwhile.
    async fn ensured(
        answers: Vec<PortResult<MirrorOutcome>>,
        dry_run: bool,
    ) -> (EnsuredMirrors, Duration, Vec<String>) {
        let (told, begun) = (Mutex::new(Vec::new()), Instant::now());
        let tell = |what: String| told.lock().unwrap().push(what);
        let clones = Clones { base: "https://github.com/", limit: FIRST_CLONE, tell: &tell };
        let repo = |name: &str| RepoName::parse(name).unwrap();
        let wanted =
            Mirrored { repo: repo("atlas/citation"), github: repo("acme/citation"), apps: Vec::new() };
        let ensured = ensure(&Answers(Mutex::new(answers)), &[wanted], &clones, dry_run).await;
        (ensured, begun.elapsed(), told.into_inner().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_clone_that_goes_on_is_stayed_for_and_is_a_mirror_that_was_created() {
        let away = Err(PortError::new(Peer::Forge, Fault::Transient, "no answer"));
        let (cloning, present) = (|| Ok(MirrorOutcome::Cloning), Ok(MirrorOutcome::Present));
        let (ensured, _, told) = ensured(vec![cloning(), away, cloning(), present], false).await;
        assert_eq!(ensured.mirrors[0].result, MirrorResult::Created, "{ensured:?}");
        assert_eq!(ensured.exit(), Exit::Ok);
        assert!(told.iter().any(|line| line == "atlas/citation: its first clone goes on"), "{told:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_clone_is_stayed_for_no_longer_than_it_may_take() {
        let (late, took, _) = ensured(vec![Ok(MirrorOutcome::Cloning)], false).await;
        assert_eq!((late.mirrors[0].result, late.exit()), (MirrorResult::Cloning, Exit::Unreachable));
        assert!(late.mirrors[0].detail.contains("github.first_clone"), "{late:?}");
        assert!(took <= FIRST_CLONE && took > FIRST_CLONE - PAUSE * 2, "{took:?}");
        let (dry, took, _) = ensured(vec![Ok(MirrorOutcome::Cloning)], true).await;
        assert_eq!((dry.mirrors[0].result, took), (MirrorResult::Cloning, Duration::ZERO));
    }
}
