//! What people ask, carried out by whichever worker hears it.
//!
//! A command changes an app's memory, or writes to `cluster/apps` in the person's name, and wakes the app:
//! what follows is the decision's business, as always.

use std::sync::Arc;
use std::time::Duration;

use fabrique_core::app::App;
use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::AppName;
use fabrique_core::memory::Memory;
use fabrique_core::view::Target;
use fabrique_gitops::Registrations;
use fabrique_observer::Apps;
use fabrique_ports::PortResult;
use fabrique_ports::bus::{Command, EventBody, PendingCommand, Reply, Request, WakeCause};
use futures::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::committer::{Task, Written};
use crate::memory::AppMemory;
use crate::session::Context;

/// Commands under way at once.
const AT_ONCE: usize = 8;
/// Further ones that wait for it to be their turn. Any more are told at once that they have to come again.
const WAITING: usize = 64;

/// Serves commands until `stop`. Those under way by then go on, on `tasks`.
pub(crate) async fn serve(context: Arc<Context>, tasks: TaskTracker, stop: CancellationToken) {
    let turns = Turns::new(context.config.bounds.command_patience, stop.clone());
    while !stop.is_cancelled() {
        match context.ports.commands.serve().await {
            Err(error) => tracing::warn!(%error, "commands cannot be heard; trying again"),
            Ok(commands) => {
                let answer = |command, turns| answer(Arc::clone(&context), command, turns);
                answer_all(commands, answer, &turns, &tasks).await;
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(context.config.bounds.backoff_base) => {}
        }
    }
}

/// Has each command answered on `tasks`, until there are no more or they are to stop.
///
/// None is left in the subscription: what nobody takes off there grows old unseen, and would be carried out long after
/// its caller has given it up.
async fn answer_all<C, A>(
    mut commands: impl Stream<Item = C> + Unpin,
    answer: impl Fn(C, Turns) -> A,
    turns: &Turns,
    tasks: &TaskTracker,
) where
    A: Future<Output = ()> + Send + 'static,
{
    while let Some(command) = tokio::select! {
        biased;
        () = turns.stop.cancelled() => None,
        command = commands.next() => command,
    } {
        tasks.spawn(answer(command, turns.clone()));
    }
}

/// Which commands are carried out: a few at once, the others in turn, and none that its caller may have given up.
#[derive(Clone)]
struct Turns {
    places: Arc<Semaphore>,
    seats: Arc<Semaphore>,
    patience: Duration,
    stop: CancellationToken,
}

impl Turns {
    fn new(patience: Duration, stop: CancellationToken) -> Self {
        let (places, seats) = (Semaphore::new(AT_ONCE), Semaphore::new(WAITING));
        Self { places: Arc::new(places), seats: Arc::new(seats), patience, stop }
    }

    /// A place, to be held while the command is carried out, or why there was none before `until`.
    async fn place(&self, until: Instant) -> Result<OwnedSemaphorePermit, &'static str> {
        const BUSY: &str = "the worker is busy with other commands; nothing was done, try again";
        let _seat = self.seats.try_acquire().map_err(|_| BUSY)?;
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err("the worker is stopping; nothing was done, try again"),
            place = timeout_at(until, Arc::clone(&self.places).acquire_owned()) => match place {
                Ok(Ok(place)) => Ok(place),
                Ok(Err(_)) | Err(_) => Err(BUSY),
            }
        }
    }
}

async fn answer(context: Arc<Context>, command: Box<dyn PendingCommand>, turns: Turns) {
    let request = command.request().clone();
    let until = Instant::now() + turns.patience;
    let place = turns.place(until).await;
    let reply = match &place {
        Err(why) => refused(*why),
        Ok(_) => match carry_out(&context, &request, until).await {
            Ok(reply) => reply,
            Err(error) => refused(error.to_string()),
        },
    };
    tracing::info!(app = %request.app, verb = request.command.verb(), caller = request.caller, outcome = reply.message, "command");
    context.announcer.say(
        None,
        EventBody::Command {
            app: request.app,
            verb: request.command.verb().to_owned(),
            caller: request.caller,
            outcome: reply.message.clone(),
        },
    );
    if let Err(error) = command.reply(reply).await {
        tracing::warn!(%error, "a command's answer was not delivered");
    }
}

/// Does what is asked if it can begin before `until`: `cancel` is about the build that its caller saw running.
async fn carry_out(context: &Arc<Context>, request: &Request, until: Instant) -> PortResult<Reply> {
    let Ok(apps) = timeout_at(until, context.apps.read()).await else {
        return Ok(refused("cluster/apps was not read in time; nothing was done, try again"));
    };
    let apps = apps?;
    let registrations = &apps.registrations;
    let reply = match registrations.apps.get(&request.app) {
        Some(app) => of_registered(context, request, app, &apps).await?,
        None if may_cancel(registrations, request) => {
            let memory = AppMemory::read(Arc::clone(&context.ports.memories), &request.app, None).await?;
            cancel(context, request, &memory).await?
        }
        None => refused(unregistered(registrations, &request.app)),
    };
    if reply.done {
        let cause = WakeCause {
            kind: "command".to_owned(),
            detail: format!("{} by {}", request.command.verb(), request.caller),
            trace: None,
            at: context.ambient.now(),
            named: None,
        };
        context.ports.wakes.wake(&request.app, &cause).await?;
    }
    Ok(reply)
}

/// Whether this is about a build that goes on although the registration is wrong: it is its person's to end.
fn may_cancel(registrations: &Registrations, request: &Request) -> bool {
    request.command == Command::Cancel && registrations.wrong.contains_key(&request.app)
}

/// Why nothing is done for an app that is not among the registered ones.
fn unregistered(registrations: &Registrations, app: &AppName) -> String {
    if let Some(wrong) = registrations.wrong.get(app) {
        return format!("{app} waits until its registration is right: {wrong}");
    }
    let known: Vec<&str> = registrations.apps.keys().map(AppName::as_str).take(20).collect();
    let known = if known.is_empty() { "no app is registered".to_owned() } else { known.join(", ") };
    format!("{app} is not a registered app; there are: {known}")
}

async fn of_registered(
    context: &Arc<Context>,
    request: &Request,
    app: &App,
    apps: &Apps,
) -> PortResult<Reply> {
    let memory = AppMemory::read(Arc::clone(&context.ports.memories), &request.app, None).await?;
    Ok(match &request.command {
        Command::Retry => {
            let before = memory.get().await;
            let forget = |memory: &mut Memory| {
                memory.failure = None;
                memory.forget_refusals();
            };
            let after = memory.update(forget).await?;
            done(if after == before {
                "there was no failure to forget; it is looked at again"
            } else {
                "the last failure is forgotten"
            })
        }
        Command::Rebuild { no_cache } => {
            let (now, no_cache) = (memory.get().await, *no_cache);
            let rebuild = now.rebuild + 1;
            memory
                .update(move |memory| {
                    memory.rebuild = rebuild.max(memory.rebuild);
                    memory.no_cache = no_cache;
                    memory.failure = None;
                })
                .await?;
            // A build that has to wait, for a declaration say, comes when it may.
            done(if no_cache {
                "the next build is made anew, without cache"
            } else {
                "the next build is made anew"
            })
        }
        Command::Cancel => cancel(context, request, &memory).await?,
        Command::Release => release(context, app, apps, &memory).await?,
        Command::Repair => {
            written(write_all(context, Task::Repair, &memory).await?, "every binding agrees already")
        }
    })
}

async fn cancel(context: &Context, request: &Request, memory: &AppMemory) -> PortResult<Reply> {
    let now = context.ambient.now();
    let message = format!("cancelled by {}", request.caller);
    let after = memory
        .update(|memory| {
            let Some(running) = memory.running.as_ref().filter(|running| !running.pushed) else { return };
            memory.failure = Some(Failure {
                key: running.key.clone(),
                revision: running.revision.clone(),
                build: Some(running.build.clone()),
                kind: FailureKind::Cancelled,
                message: message.clone(),
                log_tail: Vec::new(),
                attempts: 1,
                at: now,
                not_before: now,
                dead: false,
            });
        })
        .await?;
    Ok(match after.running {
        None => refused("no build is running"),
        Some(running) if running.pushed => {
            refused(format!("{} is pushed already and is being written back", running.build))
        }
        // Its daemon may push in this very moment, which nothing takes back.
        Some(running) => done(format!("{} is being cancelled, unless it is pushed by now", running.build)),
    })
}

async fn release(context: &Context, app: &App, apps: &Apps, memory: &Arc<AppMemory>) -> PortResult<Reply> {
    let (known, now) = (memory.get().await, context.ambient.now());
    let target = match context.observer.observe(app, apps, &known, now).await?.target {
        Target::At { revision, .. } => revision,
        Target::Nothing(why) => return Ok(refused(why)),
    };
    let holds = written(write_all(context, Task::ReleaseHolds, memory).await?, "no channel was held");
    if !holds.done {
        return Ok(holds);
    }
    let note = |memory: &mut Memory| {
        memory.released = Some(target.clone());
        // A migration that was refused at its commit, say.
        memory.forget_refusals();
    };
    memory.update(note).await?;
    Ok(done(format!("{} may be deployed whatever it follows; {}", target.short(), holds.message)))
}

/// Writes until nothing is left: a push holds five commits, and an app may have more environments.
async fn write_all(context: &Context, task: Task, memory: &Arc<AppMemory>) -> PortResult<Written> {
    let mut all = Vec::new();
    loop {
        match context.committer.write(task.clone(), Arc::clone(memory)).await? {
            Written::Done { commits, refused, image_cut } if commits.is_empty() || !refused.is_empty() => {
                all.extend(commits);
                return Ok(Written::Done { commits: all, refused, image_cut });
            }
            Written::Done { commits, .. } => all.extend(commits),
            other @ (Written::Denied(_) | Written::Unregistered(_) | Written::Lost) => return Ok(other),
        }
    }
}

fn written(written: Written, nothing: &str) -> Reply {
    match written {
        Written::Denied(why) => refused(why),
        Written::Unregistered(why) => refused(why.to_string()),
        Written::Lost => refused("the registry lost the image"),
        Written::Done { refused: channels, commits, .. } => match channels.first() {
            Some((environment, _, verdict)) => refused(format!("{environment}: {verdict}")),
            None if commits.is_empty() => done(nothing),
            None => {
                let commits: Vec<&str> = commits.iter().map(|landed| landed.commit.short()).collect();
                done(format!("written: {}", commits.join(", ")))
            }
        },
    }
}

fn done(message: impl Into<String>) -> Reply {
    Reply { done: true, message: message.into() }
}

fn refused(message: impl Into<String>) -> Reply {
    Reply { done: false, message: message.into() }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::stream;

    use super::*;

    const TAKES: Duration = Duration::from_secs(1);
    /// Long enough for two further turns.
    const PATIENCE: Duration = Duration::from_millis(2500);

    /// What became of commands that take their time.
    #[derive(Default)]
    struct Seen {
        now: AtomicUsize,
        /// How many were carried out at once, at most.
        most: AtomicUsize,
        /// When each of them began and which it was, in this order.
        begun: Mutex<Vec<(Duration, usize)>>,
        /// When each of the others was told why not.
        declined: Mutex<Vec<(Duration, &'static str)>>,
    }

    impl Seen {
        async fn answer(self: Arc<Self>, command: usize, turns: Turns, start: Instant) {
            match turns.place(Instant::now() + turns.patience).await {
                Err(why) => self.declined.lock().unwrap().push((start.elapsed(), why)),
                Ok(_place) => {
                    self.begun.lock().unwrap().push((start.elapsed(), command));
                    let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
                    self.most.fetch_max(now, Ordering::SeqCst);
                    tokio::time::sleep(TAKES).await;
                    self.now.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_commands_are_carried_out_at_once_and_none_after_its_caller_gave_it_up() {
        let (seen, tasks, start) = (Arc::new(Seen::default()), TaskTracker::new(), Instant::now());
        let turns = Turns::new(PATIENCE, CancellationToken::new());
        let answer = |command, turns| Arc::clone(&seen).answer(command, turns, start);
        answer_all(stream::iter(0..100), answer, &turns, &tasks).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "none is left to grow old where nobody sees it");
        tasks.close();
        tasks.wait().await;
        assert_eq!(seen.most.load(Ordering::SeqCst), AT_ONCE);
        let begun = seen.begun.lock().unwrap().clone();
        let in_turn =
            (0..3 * AT_ONCE).map(|command| (TAKES * u32::try_from(command / AT_ONCE).unwrap(), command));
        let rounded = begun.iter().map(|(at, command)| (Duration::from_secs(at.as_secs()), *command));
        assert_eq!(rounded.collect::<Vec<_>>(), in_turn.collect::<Vec<_>>());
        let declined = seen.declined.lock().unwrap().clone();
        assert_eq!(begun.len() + declined.len(), 100, "each was answered");
        assert!(declined.iter().all(|(_, why)| why.contains("busy")), "{declined:?}");
        let at_once = declined.iter().filter(|(at, _)| at.is_zero()).count();
        assert_eq!(at_once, 100 - AT_ONCE - WAITING, "there was no seat for them");
        let latest = declined.iter().map(|(at, _)| *at).max().unwrap();
        assert!(latest < PATIENCE + Duration::from_millis(10), "{latest:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_hears_no_further_command_sends_away_who_waits_and_lets_the_others_end() {
        let (seen, tasks, start) = (Arc::new(Seen::default()), TaskTracker::new(), Instant::now());
        let stop = CancellationToken::new();
        let turns = Turns::new(PATIENCE, stop.clone());
        let answer = |command, turns| Arc::clone(&seen).answer(command, turns, start);
        let stopping = async {
            tokio::time::sleep(TAKES / 2).await;
            stop.cancel();
        };
        let commands = stream::iter(0..AT_ONCE + 3).chain(stream::pending());
        tokio::join!(answer_all(commands, answer, &turns, &tasks), stopping);
        assert_eq!(seen.now.load(Ordering::SeqCst), AT_ONCE, "they are under way");
        tasks.close();
        tasks.wait().await;
        assert_eq!((seen.begun.lock().unwrap().len(), seen.now.load(Ordering::SeqCst)), (AT_ONCE, 0));
        let declined = seen.declined.lock().unwrap().clone();
        assert_eq!(declined.len(), 3);
        assert!(declined.iter().all(|(_, why)| why.contains("stopping")), "{declined:?}");
    }
}
