//! The one completion path: everything that automation or a command writes to `cluster/apps` goes through
//! here, a few apps at a time.
//!
//! While one push is under way, others wait and then share the next: one commit each, chained, at most
//! five, because Gitea lists no more in its webhook and Argo CD reads the changed files from that list.
//! Each round takes a state of the branch, then reads the heads, judges by the guard, plans on the tree of
//! that very base and pushes only if the branch is still there and the registry has the images. After a refusal
//! all of it is done again.

use std::sync::Arc;
use std::time::Duration;

use fabrique_core::app::{App, Environment};
use fabrique_core::id::{Channel, Digest, EnvironmentName, ImageRepository, RepoName, Revision};
use fabrique_core::memory::{Committed, Intent, Memory};
use fabrique_core::verdict::Verdict;
use fabrique_gitops::batch::{Batch, MAX_COMMITS};
use fabrique_gitops::plan::{self, Plan};
use fabrique_gitops::render::Settings;
use fabrique_gitops::{Refusal, Tree};
use fabrique_observer::{Ahead, Apps, AppsReader, Observer};
use fabrique_ports::deployments::{NewCommit, PreparedPush, PushOutcome};
use fabrique_ports::{Ambient, Fault, Peer, PortError, PortResult};
use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};

use crate::applications::{self, Along};
use crate::config::Ports;
use crate::follow::{self, Ground, Moved};
use crate::memory::AppMemory;
use crate::migrations;
use crate::outcome::{forget, intend, remember, unread};
use crate::settle::commit_arrived;
use crate::unregistered::Unregistered;
use crate::writeback::{Image, Judged, Proposal, Staged, propose};

/// Rounds before a write-back gives up: only other writers can make one fail, and each of them wrote.
const ROUNDS: u32 = 100;
/// Requests that may wait.
const QUEUE: usize = 1024;

/// What is to be written for one app.
#[derive(Clone)]
pub(crate) enum Task {
    /// A finished or adopted image, if any, and the overlay where it follows the head; that head, where it was asked
    /// for already.
    Complete(Option<Image>, Option<Box<Ahead>>),
    /// Remove the holds of every channel, by a person's word.
    ReleaseHolds,
    /// Rewrite the bindings from the composition, by a person's word.
    Repair,
    /// Bring in line what an edit of a composition or a registration left behind, and of the contract, where that moved:
    /// a person's word as well.
    Follow { moved: Moved },
}

/// A channel that was not written, and why.
pub(crate) type Refused = (EnvironmentName, Channel, Verdict);

/// What came of it.
#[derive(Debug)]
pub(crate) enum Written {
    /// These commits reached the branch, and these channels were refused. `image_cut`: the image has commits left that
    /// the push had no room for.
    Done { commits: Vec<Landed>, refused: Vec<Refused>, image_cut: bool },
    /// The app is not registered any more, or its registration cannot be used: nothing may be written for it.
    Unregistered(Unregistered),
    /// The registry does not have the image any more, so it may not be deployed.
    Lost,
    /// The forge refuses to be written to; a person has to act.
    Denied(String),
}

/// A commit on the branch.
#[derive(Debug, Clone)]
pub(crate) struct Landed {
    pub(crate) commit: Revision,
    /// What automation remembers of it; nothing for a commit by a person's word.
    pub(crate) automatic: Option<(EnvironmentName, Channel, Committed)>,
}

struct Job {
    task: Task,
    /// The forge refused a push that others had a part in: this one is tried by itself.
    alone: bool,
    memory: Arc<AppMemory>,
    /// The commits that were noted as intents for it. Others are somebody else's, and theirs to read back.
    noted: Vec<Revision>,
    reply: oneshot::Sender<PortResult<Written>>,
}

impl Job {
    /// Has the head asked for again at the next attempt.
    fn look_afresh(&mut self) {
        if let Task::Complete(_, ahead) = &mut self.task {
            *ahead = None;
        }
    }

    /// Notes what is about to be pushed. What somebody else noted is theirs, or the next claim's, to read back first: without
    /// it nobody would know what automation committed last.
    async fn intend(&mut self, intents: &[(EnvironmentName, Channel, Intent)]) -> PortResult<()> {
        let noted = &self.noted;
        let after = self.memory.update(|memory| intend(memory, noted, intents)).await?;
        if let Some(unread) = unread(&after, intents) {
            let message =
                format!("a commit for {unread} was pushed by somebody else and is to be read back first");
            return Err(PortError::new(Peer::Git, Fault::Transient, message));
        }
        self.noted.extend(intents.iter().filter_map(|(_, _, intent)| intent.commit.commit.clone()));
        Ok(())
    }

    /// Nothing that was noted for it is on the branch, for certain.
    async fn forget(&self) -> PortResult<Memory> {
        self.memory.update(|memory| forget(memory, &self.noted)).await
    }
}

/// The way in.
#[derive(Clone)]
pub(crate) struct Committer(mpsc::Sender<Job>);

impl Committer {
    /// The committer and its loop, which ends when the last committer is dropped.
    pub(crate) fn new(
        ports: Ports,
        observer: Observer,
        apps: Arc<AppsReader>,
        apps_repo: RepoName,
        render: Option<Settings>,
        ambient: Arc<dyn Ambient>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (send, receive) = mpsc::channel(QUEUE);
        (
            Self(send),
            Rounds { ports, observer, apps, apps_repo, render, ambient, overtaken: None }.run(receive),
        )
    }

    /// Writes, and waits for the outcome.
    pub(crate) async fn write(&self, task: Task, memory: Arc<AppMemory>) -> PortResult<Written> {
        let (reply, outcome) = oneshot::channel();
        let stopped = || PortError::new(Peer::Git, Fault::Transient, "the worker is stopping");
        self.0
            .send(Job { task, alone: false, memory, noted: Vec::new(), reply })
            .await
            .map_err(|_| stopped())?;
        outcome.await.map_err(|_| stopped())?
    }
}

struct Rounds {
    ports: Ports,
    observer: Observer,
    apps: Arc<AppsReader>,
    apps_repo: RepoName,
    /// What Argo CD's Applications are rendered with, where workers do it.
    render: Option<Settings>,
    ambient: Arc<dyn Ambient>,
    /// The base of the last push: whatever came of it, the branch is not expected there any more.
    overtaken: Option<Revision>,
}

/// A job with what would be written for it on the tree of this round.
struct Planning {
    job: Job,
    proposal: Proposal,
}

impl Rounds {
    async fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut jobs = Vec::new();
        while queue.recv_many(&mut jobs, MAX_COMMITS).await > 0 {
            let mut waiting: Vec<Job> = std::mem::take(&mut jobs);
            let mut round = 0;
            while !waiting.is_empty() {
                round += 1;
                waiting = self.round(waiting, round).await;
                waiting.iter_mut().for_each(Job::look_afresh);
                if round > 1 && !waiting.is_empty() {
                    let pause =
                        Duration::from_millis(20).mul_f64(f64::from(round.min(10)) * self.ambient.jitter());
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// One attempt. Returns the jobs that have to be tried again.
    async fn round(&mut self, jobs: Vec<Job>, round: u32) -> Vec<Job> {
        let (apps, guessed) = match self.base(round).await {
            Ok(base) => base,
            Err(error) => return answer_all(jobs, &error),
        };
        let (planned, mut later) = self.plan(jobs, &apps).await;
        let (mut writing, idle): (Vec<_>, Vec<_>) =
            planned.into_iter().partition(|p| !p.proposal.staged.is_empty());
        if guessed {
            // Without a push nothing confirms what they were judged on.
            later.extend(idle.into_iter().map(|planning| planning.job));
        } else {
            join_all(idle.into_iter().map(|planning| self.finish(planning, &[]))).await;
        }
        if writing.is_empty() {
            return later;
        }
        // As late as it can be without making the push wait: the forge may have kept this round waiting for long.
        let images = self.there(images(&writing, &apps));
        let (prepared, there) = tokio::join!(self.prepare(&apps.commit, &mut writing), images);
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(failed) => {
                later.extend(unprepared(writing, failed));
                return later;
            }
        };
        if !there.iter().all(|there| matches!(there, Ok(true))) {
            later.extend(without_images(writing, there).await);
            return later;
        }
        later.extend(self.push(&prepared, writing, round).await);
        self.overtaken = Some(apps.commit.clone());
        later
    }

    /// The state to write on, and whether it is a guess: a first attempt takes what was read last, usually a
    /// moment ago. Where that is outdated the lease of the push refuses it, and the next attempt asks the forge.
    /// What this committer has pushed onto is outdated for certain.
    async fn base(&self, round: u32) -> PortResult<(Arc<Apps>, bool)> {
        let known = self.apps.last_read().filter(|apps| Some(&apps.commit) != self.overtaken.as_ref());
        match known.filter(|_| round == 1) {
            Some(apps) => Ok((apps, true)),
            None => Ok((self.apps.read().await?, false)),
        }
    }

    /// Plans as many jobs as fit in one push, chained; the others wait for the next.
    async fn plan(&self, jobs: Vec<Job>, apps: &Arc<Apps>) -> (Vec<Planning>, Vec<Job>) {
        // Judging reads heads and history, so all jobs do it at once; planning then chains their trees.
        let judged = join_all(jobs.into_iter().map(|job| async {
            let proposal = self.propose(&job, apps, &apps.tree).await;
            (job, proposal)
        }))
        .await;
        let mut tree = apps.tree.clone();
        let (mut planned, mut later, mut commits) = (Vec::new(), Vec::new(), 0);
        for (job, proposal) in judged {
            match proposal {
                Err(error) => drop(job.reply.send(Err(error))),
                Ok(proposal) if commits > 0 && !fits(&job, &proposal, &planned, commits) => later.push(job),
                Ok(mut proposal) => match self.chain(&tree, &mut proposal, apps) {
                    // Refused beside commits that may never reach the branch: to be judged without them.
                    Ok(Chained { refused, .. }) if commits > 0 && refused > 0 => later.push(job),
                    Ok(Chained { tree: next, .. }) => {
                        tree = next;
                        proposal.note_refusals(&apps.commit);
                        commits += proposal.staged.len();
                        planned.push(Planning { job, proposal });
                    }
                    Err(refusal) => drop(job.reply.send(Err(unexpected(&refusal)))),
                },
            }
        }
        (planned, later)
    }

    async fn propose(&self, job: &Job, apps: &Apps, tree: &Tree) -> PortResult<Proposal> {
        let Some(app) = apps.registrations.apps.get(job.memory.app()) else {
            let wrong = apps.registrations.wrong.get(job.memory.app());
            let unregistered = Some(Unregistered::by(wrong));
            return Ok(Proposal { unregistered, ..Proposal::default() });
        };
        let ground = Ground::of(&self.ports, apps, app, self.render.as_ref());
        match &job.task {
            Task::Complete(image, ahead) => {
                let memory = job.memory.get().await;
                let now = self.ambient.now();
                let view = match image {
                    Some(image) => {
                        self.observer
                            .candidate(
                                app,
                                apps,
                                &memory,
                                (&image.revision, &image.key),
                                ahead.as_deref(),
                                now,
                            )
                            .await?
                    }
                    None => self.observer.infra_candidate(app, apps, &memory, now).await?,
                };
                let source = self.ports.source.as_ref();
                let mut proposal = propose(source, tree, app, image.as_ref(), &view, (&memory, now)).await?;
                follow::comes_first(&mut proposal, ground, &memory).await?;
                if let Some(settings) = &self.render {
                    let of = (app, memory.released.as_ref());
                    migrations::bring(&mut proposal, source, (apps, tree), of, settings).await?;
                }
                if let (Some(head), Some(target)) = (&view.head, &view.target) {
                    let image = image.as_ref().map(|image| image.revision.clone());
                    proposal.judged = Some(Judged { image, overlay: target.clone() });
                    if self.render.is_some() && !proposal.staged.is_empty() {
                        proposal.along = Some(self.along(app, head).await?);
                    }
                }
                Ok(proposal)
            }
            Task::Follow { moved } => {
                let ground = Ground { moved: *moved, ..ground };
                follow::propose(ground, &job.memory.get().await).await
            }
            Task::ReleaseHolds => Ok(release_holds(tree, app)),
            Task::Repair => Ok(repair(tree, app)),
        }
    }

    /// What the app's Application is rendered with, by what it declares at `head`: a pin moves what is built, and not
    /// what is declared.
    async fn along(&self, app: &App, head: &Revision) -> PortResult<Along> {
        Ok(Along::of(&app.name, self.observer.needs(app, head).await?))
    }

    /// Puts a proposal's commits onto `tree`, each with the Application of its environment as that tree has it to be:
    /// the commits before it in the push may move its wave, and it may move theirs.
    fn chain(&self, tree: &Tree, proposal: &mut Proposal, apps: &Apps) -> Result<Chained, Refusal> {
        proposal.cut();
        let before = proposal.refused.len();
        if let Some(settings) = &self.render {
            let known = (&apps.registrations, apps.applications());
            applications::bring_along(proposal, tree, known, settings);
        }
        let mut staged = proposal.staged.iter();
        let tree = staged.try_fold(tree.clone(), |tree, staged| tree.apply(&staged.planned.changes))?;
        Ok(Chained { tree, refused: proposal.refused.len() - before })
    }

    /// Makes the commits locally and notes them as intents, so that whoever comes after a crash can tell
    /// whether they arrived.
    async fn prepare(&self, base: &Revision, writing: &mut [Planning]) -> Result<PreparedPush, Unprepared> {
        let commits: Vec<NewCommit> =
            writing.iter().flat_map(|p| &p.proposal.staged).map(new_commit).collect();
        let prepared = self.ports.deployments.prepare(base, &commits).await;
        let prepared = prepared.map_err(|error| Unprepared { of: None, error })?;
        let all: Vec<Vec<Landed>> = landed(writing, &prepared).collect();
        for (index, (planning, landed)) in writing.iter_mut().zip(&all).enumerate() {
            let intents: Vec<_> = landed.iter().filter_map(|landed| intent(base, landed)).collect();
            planning.job.intend(&intents).await.map_err(|error| Unprepared { of: Some(index), error })?;
        }
        Ok(prepared)
    }

    /// Whether the registry has each of these images.
    async fn there(&self, images: Vec<Option<(ImageRepository, Digest)>>) -> Vec<PortResult<bool>> {
        let has = |image: Option<(ImageRepository, Digest)>| async move {
            match image {
                Some((repository, digest)) => self.ports.registry.has(&repository, &digest).await,
                None => Ok(true),
            }
        };
        join_all(images.into_iter().map(has)).await
    }

    async fn push(&self, prepared: &PreparedPush, writing: Vec<Planning>, round: u32) -> Vec<Job> {
        let outcome = match self.ports.deployments.push(prepared).await {
            Ok(PushOutcome::Unknown(why)) => match self.read_back(prepared, why).await {
                Ok(outcome) => outcome,
                // The intents stay: whoever comes next asks what became of them.
                Err(error) => return answer_all(writing.into_iter().map(|p| p.job).collect(), &error),
            },
            Ok(outcome) => outcome,
            Err(error) => return not_moved(writing, &error).await,
        };
        match outcome {
            PushOutcome::Pushed => {
                let landed: Vec<Vec<Landed>> = landed(&writing, prepared).collect();
                let finished =
                    writing.into_iter().zip(&landed).map(|(planning, landed)| self.finish(planning, landed));
                join_all(finished).await;
                Vec::new()
            }
            PushOutcome::Moved if round < ROUNDS => writing.into_iter().map(|p| p.job).collect(),
            PushOutcome::Moved | PushOutcome::Unknown(_) => {
                let message =
                    format!("the apps repository moved {round} times while a commit was being pushed");
                not_moved(writing, &PortError::new(Peer::Git, Fault::Transient, message)).await
            }
            // The forge may mean only one of them: a hook's word about one app must not stop the others.
            PushOutcome::Refused(_) if writing.len() > 1 => {
                writing.into_iter().map(|planning| Job { alone: true, ..planning.job }).collect()
            }
            PushOutcome::Refused(why) => {
                for Planning { job, .. } in writing {
                    let answer = job.forget().await.map(|_| Written::Denied(why.clone()));
                    drop(job.reply.send(answer));
                }
                Vec::new()
            }
        }
    }

    /// An unknown outcome is read back, never guessed.
    async fn read_back(&self, prepared: &PreparedPush, why: String) -> PortResult<PushOutcome> {
        tracing::warn!(%why, "a push had no clear outcome; reading back");
        let Some(last) = prepared.commits.last() else { return Ok(PushOutcome::Moved) };
        let head = self.apps.read().await?.commit.clone();
        let (deployments, forge) = (self.ports.deployments.as_ref(), self.ports.forge.as_ref());
        let arrived = commit_arrived(deployments, forge, &self.apps_repo, last, &head).await?;
        Ok(if arrived { PushOutcome::Pushed } else { PushOutcome::Moved })
    }

    /// Records what is on the branch now and answers.
    async fn finish(&self, planning: Planning, landed: &[Landed]) {
        let Planning { job, proposal } = planning;
        let updated = job.memory.update(|memory| remember(memory, &job.noted, &proposal, landed)).await;
        let answer = updated.map(|_| match proposal.unregistered {
            Some(why) => Written::Unregistered(why),
            None => {
                let (refused, image_cut) = (proposal.refused, proposal.image_cut);
                Written::Done { commits: landed.to_vec(), refused, image_cut }
            }
        });
        drop(job.reply.send(answer));
    }
}

/// Chains plans that a person asked for, each on the tree that the one before leaves.
fn by_person<P: Fn(&Tree) -> Plan>(
    tree: &Tree,
    plans: impl IntoIterator<Item = (EnvironmentName, Channel, P)>,
) -> Proposal {
    let mut proposal = Proposal::default();
    let mut batch = Batch::on(tree.clone());
    for (environment, channel, plan) in plans {
        if let Err(refusal) = batch.add(plan) {
            proposal.refused.push((environment, channel, Verdict::Trouble(refusal.to_string())));
        }
    }
    proposal.staged = batch.into_commits().into_iter().map(Staged::by_person).collect();
    proposal
}

fn release_holds(tree: &Tree, app: &App) -> Proposal {
    let channels = |environment: &Environment| {
        let name = environment.name.clone();
        [Channel::Image, Channel::Infra].map(|channel| (name.clone(), channel))
    };
    let plans = app.environments.iter().flat_map(channels).map(|(environment, channel)| {
        let of = environment.clone();
        let plan = move |tree: &Tree| plan::release_hold(tree, app, &of, channel);
        (environment, channel, plan)
    });
    by_person(tree, plans)
}

fn repair(tree: &Tree, app: &App) -> Proposal {
    let plans = app.environments.iter().map(|environment| {
        let plan = |tree: &Tree| plan::repair(tree, app, &environment.name);
        (environment.name.clone(), Channel::Image, plan)
    });
    Proposal { along: Some(Along::of(&app.name, None)), ..by_person(tree, plans) }
}

/// Whether a job may join what is planned for this push already.
fn fits(job: &Job, proposal: &Proposal, planned: &[Planning], commits: usize) -> bool {
    // Two plans for one app start from the same files, so the second would undo the first.
    let other = |planning: &Planning| !planning.job.alone && planning.job.memory.app() != job.memory.app();
    let together = !job.alone && planned.iter().all(other);
    together && commits + proposal.staged.len() <= MAX_COMMITS
}

/// A proposal on the tree of its push.
struct Chained {
    /// The tree after its commits.
    tree: Tree,
    /// How many of them were refused there.
    refused: usize,
}

/// Commits that could not be made, or one of whose intents could not be noted.
struct Unprepared {
    /// The job it is about; all of them when absent.
    of: Option<usize>,
    error: PortError,
}

/// Answers whom a failed preparation is about; the others are tried again.
fn unprepared(writing: Vec<Planning>, failed: Unprepared) -> Vec<Job> {
    let mut jobs: Vec<Job> = writing.into_iter().map(|planning| planning.job).collect();
    match failed.of {
        None => answer_all(jobs, &failed.error),
        Some(index) => {
            drop(jobs.remove(index).reply.send(Err(failed.error)));
            jobs
        }
    }
}

/// Answers those whose image is not there or could not be asked for. The others are tried again: their commits
/// are chained to those that may not be pushed.
async fn without_images(writing: Vec<Planning>, there: Vec<PortResult<bool>>) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (Planning { job, .. }, there) in writing.into_iter().zip(there) {
        let answer = match there {
            Ok(true) => {
                jobs.push(job);
                continue;
            }
            Ok(false) => Ok(Written::Lost),
            Err(error) => Err(error),
        };
        // Nothing was pushed, so that there is nothing to read back.
        let forgotten = job.forget().await;
        drop(job.reply.send(forgotten.and(answer)));
    }
    jobs
}

fn new_commit(staged: &Staged) -> NewCommit {
    let changes = staged.planned.changes.iter();
    NewCommit {
        changes: changes.map(|(path, entry)| (path.clone(), entry.cloned())).collect(),
        message: staged.planned.message.to_string(),
    }
}

/// The image that each of them would deploy.
fn images(writing: &[Planning], apps: &Apps) -> Vec<Option<(ImageRepository, Digest)>> {
    let image = |planning: &Planning| {
        let app = apps.registrations.apps.get(planning.job.memory.app())?;
        Some((app.image.clone(), planning.proposal.image()?.clone()))
    };
    writing.iter().map(image).collect()
}

/// What is noted of a commit before it is pushed; nothing of one by a person's word.
fn intent(base: &Revision, landed: &Landed) -> Option<(EnvironmentName, Channel, Intent)> {
    let (environment, channel, commit) = landed.automatic.clone()?;
    Some((environment, channel, Intent { base: base.clone(), commit }))
}

/// Each job's commits by id, in the order in which they were chained.
fn landed<'p>(writing: &'p [Planning], prepared: &'p PreparedPush) -> impl Iterator<Item = Vec<Landed>> + 'p {
    let mut ids = prepared.commits.iter();
    writing.iter().map(move |planning| {
        let landed = planning.proposal.staged.iter().zip(ids.by_ref()).map(|(staged, commit)| Landed {
            commit: commit.clone(),
            automatic: staged.automatic.clone().map(|(environment, channel, committed)| {
                (environment, channel, Committed { commit: Some(commit.clone()), ..committed })
            }),
        });
        landed.collect()
    })
}

/// Answers every job with the error of a push that is certain not to be on the branch: nothing has to be asked later,
/// when the forge would say that it knows the commits.
async fn not_moved(writing: Vec<Planning>, error: &PortError) -> Vec<Job> {
    for Planning { job, .. } in writing {
        let told = match job.forget().await {
            Ok(_) => error.again(),
            Err(memory) => memory,
        };
        drop(job.reply.send(Err(told)));
    }
    Vec::new()
}

/// Answers every job with the same error; none is left.
fn answer_all(jobs: Vec<Job>, error: &PortError) -> Vec<Job> {
    for job in jobs {
        drop(job.reply.send(Err(error.again())));
    }
    Vec::new()
}

fn unexpected(refusal: &Refusal) -> PortError {
    PortError::new(Peer::Git, Fault::Unexpected, format!("a planned commit does not apply: {refusal}"))
}
