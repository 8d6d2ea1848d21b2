//! What people ask, carried out by whichever worker hears it.
//!
//! A command changes an app's memory, or writes to `cluster/apps` in the person's name, and wakes the app:
//! what follows is the decision's business, as always.

use std::sync::Arc;

use fabrique_core::app::App;
use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::AppName;
use fabrique_ports::PortResult;
use fabrique_ports::bus::{Command, EventBody, PendingCommand, Reply, Request, WakeCause};
use fabrique_ports::forge::BranchHead;
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::attend::Shop;
use crate::committer::{Task, Written};
use crate::memory::AppMemory;

/// Serves commands until `stop`.
pub(crate) async fn serve(shop: Arc<Shop>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match shop.ports.commands.serve().await {
            Err(error) => tracing::warn!(%error, "commands cannot be heard; trying again"),
            Ok(mut commands) => loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    command = commands.next() => match command {
                        Some(command) => drop(tokio::spawn(answer(Arc::clone(&shop), command))),
                        None => break,
                    },
                }
            },
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(shop.config.backoff_base) => {}
        }
    }
}

async fn answer(shop: Arc<Shop>, command: Box<dyn PendingCommand>) {
    let request = command.request().clone();
    let reply = match carry_out(&shop, &request).await {
        Ok(reply) => reply,
        Err(error) => refused(error.to_string()),
    };
    tracing::info!(app = %request.app, verb = request.command.verb(), caller = request.caller, outcome = reply.message, "command");
    shop.announcer.say(
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

async fn carry_out(shop: &Arc<Shop>, request: &Request) -> PortResult<Reply> {
    let apps = shop.apps.read().await?;
    let Some(app) = apps.registrations.apps.get(&request.app) else {
        let known: Vec<&str> = apps.registrations.apps.keys().map(AppName::as_str).take(20).collect();
        let known = if known.is_empty() { "no app is registered".to_owned() } else { known.join(", ") };
        return Ok(refused(format!("{} is not a registered app; there are: {known}", request.app)));
    };
    let memory = AppMemory::read(Arc::clone(&shop.ports.memories), &request.app, None).await?;
    let reply = match &request.command {
        Command::Retry => {
            memory
                .update(|memory| {
                    memory.failure = None;
                    for environment in memory.environments.values_mut() {
                        environment.image.refused = None;
                        environment.infra.refused = None;
                    }
                })
                .await?;
            done("the last failure is forgotten")
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
            done(if no_cache { "it is built anew, without cache" } else { "it is built anew" })
        }
        Command::Cancel => cancel(shop, request, &memory).await?,
        Command::Release => release(shop, app, &memory).await?,
        Command::Repair => {
            written(write_all(shop, Task::Repair, &memory).await?, "every binding agrees already")
        }
    };
    if reply.done {
        let cause = WakeCause {
            kind: "command".to_owned(),
            detail: format!("{} by {}", request.command.verb(), request.caller),
            trace: None,
            at: shop.ambient.now(),
            named: None,
        };
        shop.ports.wakes.wake(&request.app, &cause).await?;
    }
    Ok(reply)
}

async fn cancel(shop: &Shop, request: &Request, memory: &AppMemory) -> PortResult<Reply> {
    let now = shop.ambient.now();
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
        Some(running) => done(format!("{} is being cancelled", running.build)),
    })
}

async fn release(shop: &Shop, app: &App, memory: &Arc<AppMemory>) -> PortResult<Reply> {
    let head = match shop.ports.forge.branch_head(&app.source.repo, &app.source.branch).await? {
        BranchHead::At(head) => head,
        BranchHead::NoBranch | BranchHead::NoRepository => {
            return Ok(refused(format!("{} has no branch {}", app.source.repo, app.source.branch)));
        }
    };
    let holds = written(write_all(shop, Task::ReleaseHolds, memory).await?, "no channel was held");
    if !holds.done {
        return Ok(holds);
    }
    let target = head.clone();
    memory.update(move |memory| memory.released = Some(target.clone())).await?;
    Ok(done(format!("{} may be deployed whatever it follows; {}", head.short(), holds.message)))
}

/// Writes until nothing is left: a push holds five commits, and an app may have more environments.
async fn write_all(shop: &Shop, task: Task, memory: &Arc<AppMemory>) -> PortResult<Written> {
    let mut all = Vec::new();
    loop {
        match shop.committer.write(task.clone(), Arc::clone(memory)).await? {
            Written::Done { commits, refused } if commits.is_empty() || !refused.is_empty() => {
                all.extend(commits);
                return Ok(Written::Done { commits: all, refused });
            }
            Written::Done { commits, .. } => all.extend(commits),
            other @ (Written::Denied(_) | Written::Unregistered | Written::Lost) => return Ok(other),
        }
    }
}

fn written(written: Written, nothing: &str) -> Reply {
    match written {
        Written::Denied(why) => refused(why),
        Written::Unregistered => refused("the app is not registered any more"),
        Written::Lost => refused("the registry lost the image"),
        Written::Done { refused: channels, commits } => match channels.first() {
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
