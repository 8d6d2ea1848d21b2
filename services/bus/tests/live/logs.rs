//! Logs: order, cap, following, the end.

use fabrique_ports::records::Logs as _;
use futures::{StreamExt as _, TryStreamExt as _};

use crate::{bus, config, new_app, new_build, own_bed, shared_bed, within};

fn lines(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
async fn a_log_is_read_from_its_beginning_and_ends_where_it_is_now() {
    let worker = bus(shared_bed().await, "worker").await;
    let (build, other) = (new_build(&new_app()), new_build(&new_app()));
    worker.append_log(&build, &lines(&["one", "", "three é"])).await.unwrap();
    worker.append_log(&other, &lines(&["not mine"])).await.unwrap();
    worker.append_log(&build, &lines(&["four"])).await.unwrap();
    let read: Vec<String> = worker.read_log(&build, false).await.unwrap().try_collect().await.unwrap();
    assert_eq!(read, ["one", "", "three é", "four"]);
    let none: Vec<String> =
        worker.read_log(&new_build(&new_app()), false).await.unwrap().try_collect().await.unwrap();
    assert!(none.is_empty());
}

#[tokio::test]
async fn following_goes_on_until_the_log_is_closed_by_whoever() {
    let bed = shared_bed().await;
    let (worker, operator) = (bus(bed, "worker").await, bus(bed, "operator").await);
    let build = new_build(&new_app());
    worker.append_log(&build, &lines(&["past"])).await.unwrap();
    let mut following = operator.read_log(&build, true).await.unwrap();
    assert_eq!(within("the past", following.next()).await.unwrap().unwrap(), "past");
    worker.append_log(&build, &lines(&["live"])).await.unwrap();
    assert_eq!(within("a live line", following.next()).await.unwrap().unwrap(), "live");
    bus(bed, "worker").await.close_log(&build).await.unwrap();
    assert!(within("the end", following.next()).await.is_none());
    worker.append_log(&build, &lines(&["late"])).await.unwrap();
    let read: Vec<String> = operator.read_log(&build, true).await.unwrap().try_collect().await.unwrap();
    assert_eq!(read, ["past", "live"]);
}

#[tokio::test]
async fn a_log_past_its_cap_keeps_its_beginning_and_says_so_once() {
    let bed = own_bed().await;
    let mut config = config(&bed, "worker");
    config.limits.log_bytes_per_build = 100;
    let worker = fabrique_bus::Bus::connect(config.clone()).await.unwrap();
    let build = new_build(&new_app());
    let line = "x".repeat(40);
    worker.append_log(&build, std::slice::from_ref(&line)).await.unwrap();
    worker.append_log(&build, std::slice::from_ref(&line)).await.unwrap();
    worker.append_log(&build, std::slice::from_ref(&line)).await.unwrap();
    // Another process counts on.
    let successor = fabrique_bus::Bus::connect(config).await.unwrap();
    successor.append_log(&build, std::slice::from_ref(&line)).await.unwrap();
    successor.close_log(&build).await.unwrap();
    let read: Vec<String> = worker.read_log(&build, true).await.unwrap().try_collect().await.unwrap();
    assert_eq!(read.len(), 3, "{read:?}");
    assert_eq!(read[..2], [line.clone(), line]);
    assert!(read[2].contains("longer than 100 bytes"), "{}", read[2]);
}

#[tokio::test]
async fn a_large_batch_is_split_below_the_servers_limit_and_stays_in_order() {
    let worker = bus(shared_bed().await, "worker").await;
    let build = new_build(&new_app());
    let batch: Vec<String> = (0..30_000).map(|number| format!("{number} {}", "y".repeat(60))).collect();
    worker.append_log(&build, &batch).await.unwrap();
    worker.close_log(&build).await.unwrap();
    let read: Vec<String> = worker.read_log(&build, false).await.unwrap().try_collect().await.unwrap();
    assert_eq!(read.len(), batch.len());
    assert!(read == batch, "the lines differ");
}
