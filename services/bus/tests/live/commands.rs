//! Operators' commands.

use std::time::{Duration, Instant};

use fabrique_ports::bus::{Command, Commands as _, Reply, Request};
use futures::StreamExt as _;

use crate::{bus, config, new_app, own_bed, raw_client, within};

fn request() -> Request {
    let command = Command::Rebuild { no_cache: true };
    Request { app: new_app(), command, caller: "ada@workstation".to_owned() }
}

#[tokio::test]
async fn each_command_is_answered_by_one_worker() {
    let bed = own_bed().await;
    for name in ["one", "two"] {
        let worker = bus(&bed, "worker").await;
        let mut commands = worker.serve().await.unwrap();
        tokio::spawn(async move {
            while let Some(pending) = commands.next().await {
                let message = format!("{name} heard {}", pending.request().caller);
                pending.reply(Reply { done: true, message }).await.unwrap();
            }
        });
    }
    let operator = bus(&bed, "operator").await;
    // A second answer to the same request would be refused by allow_responses and lost; count by hearing.
    for _ in 0..20 {
        let reply = within("an answer", operator.send(&request())).await.unwrap();
        assert!(reply.done && reply.message.ends_with("heard ada@workstation"), "{reply:?}");
    }
}

#[tokio::test]
async fn without_a_worker_the_operator_is_told_at_once() {
    let bed = own_bed().await;
    let started = Instant::now();
    let error = bus(&bed, "operator").await.send(&request()).await.unwrap_err();
    assert!(error.transient() && error.to_string().contains("no worker answered"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_worker_that_hears_and_never_answers_is_a_timeout_that_says_so() {
    let bed = own_bed().await;
    let worker = bus(&bed, "worker").await;
    let _deaf = worker.serve().await.unwrap();
    let mut config = config(&bed, "operator");
    config.timeouts.command = Duration::from_millis(300);
    let operator = fabrique_bus::Bus::connect(config).await.unwrap();
    let error = operator.send(&request()).await.unwrap_err();
    assert!(error.transient() && error.to_string().contains("it may still be carried out"), "{error}");
}

#[tokio::test]
async fn a_malformed_command_is_answered_and_the_next_one_heard() {
    let bed = own_bed().await;
    let worker = bus(&bed, "worker").await;
    let mut commands = worker.serve().await.unwrap();
    let hearing = tokio::spawn(async move { commands.next().await.unwrap() });
    let client = raw_client(&bed, "operator").await;
    let answer = client.request("fabrique.command.retry.citation", "\u{0}".into()).await.unwrap();
    let reply: Reply = serde_json::from_slice(&answer.payload).unwrap();
    assert!(!reply.done && reply.message.contains("cannot be read"), "{reply:?}");

    let sent = request();
    let operator = bus(&bed, "operator").await;
    let answering = async {
        let pending = hearing.await.unwrap();
        assert_eq!(pending.request(), &sent);
        pending.reply(Reply { done: false, message: "held".to_owned() }).await.unwrap();
    };
    let (reply, ()) = tokio::join!(within("an answer", operator.send(&sent)), answering);
    assert_eq!(reply.unwrap(), Reply { done: false, message: "held".to_owned() });
}
