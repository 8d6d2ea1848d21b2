//! One sync: Gitea follows, GitHub is asked, what is new is kept and told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fabrique_core::app::App;
use fabrique_core::id::{AppName, BranchName, CheckName, RepoName, Revision};
use fabrique_core::time::Timestamp;
use fabrique_core::upstream::{KEPT, Results, Upstream, UpstreamState, passes};
use fabrique_ports::bus::{WakeCause, Wakes};
use fabrique_ports::forge::{BranchHead, Forge};
use fabrique_ports::source::SourceHistory;
use fabrique_ports::upstream::{Asked, BranchLine, Mirrors, Origin, SyncRequest, Upstreams};
use fabrique_ports::{PortError, PortResult};
use futures::{StreamExt as _, stream};
use serde::Serialize;
use tokio::time::Instant;

use super::Mirrored;
use crate::exit::Exit;

/// How many commits of a branch are looked at for one that passed.
const LOOKS: usize = 10;
/// How many of the revisions that passed before are looked for on a branch that was rewritten.
const SOUGHT: usize = 3;
/// The pause between two looks at Gitea's branch.
const PAUSE: Duration = Duration::from_secs(1);
/// After so long without the branch Gitea is told once more: it loses some of what it is told, and does not try a fetch
/// again that failed. What is queued already is queued once.
const TOLD_FOR: Duration = Duration::from_secs(10);
/// How many mirrors are brought up to date at once. Most of it is waiting for Gitea.
const AT_ONCE: usize = 4;

/// The world of a sync.
#[derive(Clone)]
pub struct SyncPorts {
    /// GitHub.
    pub origin: Arc<dyn Origin>,
    /// Gitea, told to fetch.
    pub mirrors: Arc<dyn Mirrors>,
    /// Gitea, asked for its branches.
    pub forge: Arc<dyn Forge>,
    /// The history of the mirrors, where a pin is the beginning of a revision.
    pub source: Arc<dyn SourceHistory>,
    /// What is known.
    pub upstreams: Arc<dyn Upstreams>,
    /// Telling apps.
    pub wakes: Arc<dyn Wakes>,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

/// What came of a sync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Synced {
    /// Whether nothing was written or asked for.
    pub dry_run: bool,
    /// Every mirror, by name.
    pub mirrors: Vec<SyncedRepo>,
    /// Until when GitHub answers nothing more; what it was not asked for any more is told as failed.
    pub limited_until: Option<Timestamp>,
}

/// What came of a sync of one mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SyncedRepo {
    /// The mirror.
    pub repo: RepoName,
    /// What it mirrors.
    pub github: RepoName,
    /// Its apps, by name.
    pub apps: Vec<SyncedApp>,
    /// Why nothing was learnt, if so.
    pub failed: Option<String>,
    #[serde(skip)]
    exit: Exit,
}

/// What a sync learnt for one app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SyncedApp {
    /// The app.
    pub app: AppName,
    /// The branch.
    pub branch: BranchName,
    /// Its head on GitHub.
    pub head: Option<Revision>,
    /// Its head in the mirror.
    pub mirrored: Option<Revision>,
    /// The newest revision that is known to have passed the app's checks.
    pub passed: Option<Revision>,
    /// Whether the app was woken, or would be, since anything of this is new.
    pub woken: bool,
}

impl Synced {
    /// How the process ends: well when every mirror is where GitHub is.
    #[must_use]
    pub fn exit(&self) -> Exit {
        Exit::worst(self.mirrors.iter().map(|mirror| match mirror.failed {
            Some(_) => mirror.exit,
            None => Exit::ok_if(mirror.apps.iter().all(|app| app.head == app.mirrored)),
        }))
    }
}

/// Why a mirror has no outcome.
pub(super) enum Stop {
    /// For this reason, which ends the process so.
    Because(String, Exit),
    /// GitHub answers nothing for now.
    Limited,
}

impl From<PortError> for Stop {
    fn from(error: PortError) -> Self {
        Stop::Because(error.to_string(), Exit::from(&error))
    }
}

/// Brings every mirror up to date, some at once, waiting for each at most `patience`, and keeps what GitHub says. With
/// `dry_run` only questions are asked, and nothing is waited for. One that fails stops no other. After a limit of GitHub's
/// nothing more is asked: neither about those that follow nor about those that are under way. Whoever was asked about
/// longest ago comes first, so that neither a limit nor a job's deadline hits the same ones each time.
pub async fn sync(ports: &SyncPorts, mirrors: &[Mirrored], patience: Duration, dry_run: bool) -> Synced {
    let mut order = Vec::with_capacity(mirrors.len());
    for mirrored in mirrors {
        order.push((last_asked(ports, mirrored).await, mirrored));
    }
    order.sort_by_key(|(asked, _)| *asked);
    let limit = OnceLock::new();
    let one = |(_, mirrored)| Syncing { ports, mirrored, limit: &limit, patience, dry_run }.told();
    let mut mirrors: Vec<SyncedRepo> = stream::iter(order).map(one).buffer_unordered(AT_ONCE).collect().await;
    mirrors.sort_by_key(|mirror| mirror.repo.to_string());
    Synced { dry_run, mirrors, limited_until: limit.get().copied() }
}

/// When GitHub was asked about one of its apps for the last time; nothing where that cannot be told.
async fn last_asked(ports: &SyncPorts, mirrored: &Mirrored) -> Option<Timestamp> {
    let mut last = None;
    for app in &mirrored.apps {
        let state = ports.upstreams.upstream(&app.name).await.ok()??;
        last = last.max(Some(state.asked));
    }
    last
}

fn limited() -> String {
    "GitHub takes no more requests for now; a token of its own has more".to_owned()
}

/// What a branch is at, on GitHub and in the mirror.
pub(super) struct Place {
    pub(super) line: Vec<Revision>,
    pub(super) mirrored: Option<Revision>,
}

impl Place {
    fn is_followed(&self) -> bool {
        self.mirrored.as_ref() == self.line.first()
    }

    /// Whether GitHub's branch only moved on since then, so that what was on it is on it still.
    pub(super) fn has_moved_on_from(&self, known: &UpstreamState) -> bool {
        known.head.as_ref().is_some_and(|head| self.line.contains(head))
    }
}

/// What was asked of revisions already: apps of one branch often ask for the same.
#[derive(Default)]
pub(super) struct Answers(BTreeMap<Revision, Results>);

pub(super) struct Syncing<'a> {
    pub(super) ports: &'a SyncPorts,
    pub(super) mirrored: &'a Mirrored,
    /// Until when GitHub answers nothing more, as soon as one of the mirrors was told so.
    limit: &'a OnceLock<Timestamp>,
    patience: Duration,
    dry_run: bool,
}

impl Syncing<'_> {
    async fn told(self) -> SyncedRepo {
        let (apps, failed, exit) = match self.run().await {
            Ok(apps) => (apps, None, Exit::Ok),
            Err(Stop::Because(why, exit)) => (Vec::new(), Some(why), exit),
            Err(Stop::Limited) => (Vec::new(), Some(limited()), Exit::Unreachable),
        };
        let (repo, github) = (self.mirrored.repo.clone(), self.mirrored.github.clone());
        SyncedRepo { repo, github, apps, failed, exit }
    }

    async fn run(&self) -> Result<Vec<SyncedApp>, Stop> {
        let before = self.befores().await?;
        if !self.dry_run {
            self.request().await?;
        }
        let places = self.followed(before).await?;
        let (mut apps, mut answers) = (Vec::new(), Answers::default());
        for app in &self.mirrored.apps {
            let Some(place) = places.get(&app.source.branch) else { continue };
            apps.push(self.tell(app, place, &mut answers).await?);
        }
        Ok(apps)
    }

    /// Tells Gitea to fetch.
    async fn request(&self) -> Result<(), Stop> {
        match self.ports.mirrors.request_sync(&self.mirrored.repo).await? {
            SyncRequest::Queued => Ok(()),
            SyncRequest::NoMirror => {
                let what = "is no pull mirror, or the hooks token may not see it; `fabrique mirror ensure`";
                Err(Stop::Because(format!("{} {what}", self.mirrored.repo), Exit::Findings))
            }
        }
    }

    /// What GitHub answers, unless it said already that it answers nothing more.
    pub(super) async fn asked<T>(
        &self,
        question: impl Future<Output = PortResult<Asked<T>>>,
    ) -> Result<T, Stop> {
        if self.limit.get().is_some() {
            return Err(Stop::Limited);
        }
        match question.await? {
            Asked::Answer(answer) => Ok(answer),
            Asked::Limited { until } => {
                // Whoever is told second was told the same.
                let _ = self.limit.set(until);
                Err(Stop::Limited)
            }
        }
    }

    /// The branches of all apps before anything is fetched. Whatever the mirror moves to after that may be newer than what
    /// GitHub said.
    async fn befores(&self) -> Result<BTreeMap<BranchName, Place>, Stop> {
        let branches: BTreeSet<&BranchName> =
            self.mirrored.apps.iter().map(|app| &app.source.branch).collect();
        let mut places = BTreeMap::new();
        for branch in branches {
            let mirrored = self.here(branch).await?;
            places.insert(branch.clone(), Place { mirrored, line: self.line(branch).await? });
        }
        Ok(places)
    }

    async fn line(&self, branch: &BranchName) -> Result<Vec<Revision>, Stop> {
        let github = &self.mirrored.github;
        match self.asked(self.ports.origin.line(github, branch, LOOKS)).await? {
            BranchLine::At(line) => Ok(line),
            BranchLine::NoBranch => Ok(Vec::new()),
            BranchLine::NoRepository => {
                let what = "or the token of github.token_file may not see it";
                Err(Stop::Because(
                    format!("there is no repository {github} on GitHub, {what}"),
                    Exit::Findings,
                ))
            }
        }
    }

    /// Waits until the mirror has what GitHub has. GitHub may have moved on meanwhile: it is asked once more whenever the
    /// mirror came to something else.
    async fn followed(
        &self,
        places: BTreeMap<BranchName, Place>,
    ) -> Result<BTreeMap<BranchName, Place>, Stop> {
        let patience = if self.dry_run { Duration::ZERO } else { self.patience };
        let mut told = Instant::now();
        let deadline = told + patience;
        let mut followed = BTreeMap::new();
        for (branch, mut place) in places {
            loop {
                let before = std::mem::replace(&mut place.mirrored, self.here(&branch).await?);
                if !place.is_followed() && place.mirrored != before {
                    place.line = self.line(&branch).await?;
                }
                if place.is_followed() || Instant::now() >= deadline {
                    break;
                }
                if told.elapsed() >= TOLD_FOR {
                    self.request().await?;
                    told = Instant::now();
                }
                tokio::time::sleep(PAUSE).await;
            }
            if !place.is_followed() {
                place.line = self.line(&branch).await?;
            }
            followed.insert(branch, place);
        }
        Ok(followed)
    }

    /// Where the mirror's branch is.
    async fn here(&self, branch: &BranchName) -> PortResult<Option<Revision>> {
        Ok(match self.ports.forge.branch_head(&self.mirrored.repo, branch).await? {
            BranchHead::At(head) => Some(head),
            BranchHead::NoBranch | BranchHead::NoRepository => None,
        })
    }

    /// Keeps what is known now of an app's source, and wakes the app where it is news.
    async fn tell(&self, app: &App, place: &Place, answers: &mut Answers) -> Result<SyncedApp, Stop> {
        let known = self.ports.upstreams.upstream(&app.name).await?;
        let state = self.state(app, place, known.as_ref(), answers).await?;
        let woken = known.as_ref().is_none_or(|known| !known.same_news(&state));
        if !self.dry_run {
            self.ports.upstreams.put_upstream(&app.name, &state).await?;
            if woken {
                self.ports.wakes.wake(&app.name, &cause(&state)).await?;
            }
        }
        Ok(SyncedApp {
            app: app.name.clone(),
            branch: app.source.branch.clone(),
            passed: state.passed.first().cloned(),
            head: state.head,
            mirrored: state.mirrored,
            woken,
        })
    }

    async fn state(
        &self,
        app: &App,
        place: &Place,
        known: Option<&UpstreamState>,
        answers: &mut Answers,
    ) -> Result<UpstreamState, Stop> {
        let now = (self.ports.clock)();
        let upstream = app
            .source
            .upstream
            .clone()
            .unwrap_or_else(|| Upstream { github: self.mirrored.github.clone(), checks: BTreeSet::new() });
        let branch = &app.source.branch;
        let known = known.filter(|known| known.is_of(&upstream, branch));
        let mut passed = self.still_there(branch, place, known).await?;
        let head = place.line.first().cloned();
        let (mut results, mut pinned) = (Results::new(), None);
        if !upstream.checks.is_empty() {
            results = self.look(&upstream.checks, &place.line, &mut passed, answers).await?;
            pinned = self.pin(app, place, &passed, known, answers).await?;
        }
        let is_behind = place.mirrored != head;
        let since = known.and_then(|known| known.behind_since);
        Ok(UpstreamState {
            github: upstream.github,
            branch: branch.clone(),
            checks: upstream.checks,
            asked: now,
            head,
            results,
            passed,
            pinned,
            mirrored: place.mirrored.clone(),
            behind_since: is_behind.then(|| since.unwrap_or(now)),
        })
    }

    /// Those of the revisions that passed before which GitHub still has on the branch. They were on it one after
    /// another, so what is below one that is there is there too.
    async fn still_there(
        &self,
        branch: &BranchName,
        place: &Place,
        known: Option<&UpstreamState>,
    ) -> Result<Vec<Revision>, Stop> {
        let Some(known) = known.filter(|known| !known.passed.is_empty()) else { return Ok(Vec::new()) };
        if place.has_moved_on_from(known) {
            return Ok(known.passed.clone());
        }
        let line = &place.line;
        if line.is_empty() {
            return Ok(Vec::new());
        }
        let github = &self.mirrored.github;
        for (index, passed) in known.passed.iter().enumerate().take(SOUGHT) {
            let is_there = line.contains(passed)
                || self.asked(self.ports.origin.contains(github, branch, passed)).await?;
            if is_there {
                return Ok(known.passed[index..].to_vec());
            }
        }
        Ok(Vec::new())
    }

    /// Looks from the head downwards for a revision that passed, and notes it; the head's results are what comes back.
    async fn look(
        &self,
        checks: &BTreeSet<CheckName>,
        line: &[Revision],
        passed: &mut Vec<Revision>,
        answers: &mut Answers,
    ) -> Result<Results, Stop> {
        let mut of_head = Results::new();
        for (index, revision) in line.iter().enumerate() {
            let was_known = passed.contains(revision);
            if was_known && index > 0 {
                break;
            }
            let results = self.results(revision, answers).await?;
            let is_good = passes(checks, &results);
            if index == 0 {
                of_head = results.into_iter().filter(|(check, _)| checks.contains(check)).collect();
            }
            // A check that is run again takes back what was not built yet.
            passed.retain(|known| is_good || known != revision);
            if is_good {
                if !was_known {
                    passed.insert(0, revision.clone());
                    passed.truncate(KEPT);
                }
                break;
            }
        }
        Ok(of_head)
    }

    pub(super) async fn results(&self, revision: &Revision, answers: &mut Answers) -> Result<Results, Stop> {
        if let Some(results) = answers.0.get(revision) {
            return Ok(results.clone());
        }
        let results = self.asked(self.ports.origin.results(&self.mirrored.github, revision)).await?;
        answers.0.insert(revision.clone(), results.clone());
        Ok(results)
    }
}

fn cause(state: &UpstreamState) -> WakeCause {
    let head = state.head.as_ref().map_or("nothing", |head| head.short());
    let passed =
        state.passed.first().map_or_else(String::new, |passed| format!(", {} passed", passed.short()));
    let detail = format!("GitHub has {head} on {} of {}{passed}", state.branch, state.github);
    WakeCause { kind: "upstream".to_owned(), detail, trace: None, at: state.asked, named: None }
}
