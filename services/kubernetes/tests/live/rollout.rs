//! Workers of two configurations side by side.

use std::collections::BTreeSet;
use std::time::Duration;

use fabrique_kubernetes::pod::CONFIG_MAP;
use fabrique_ports::builder::{Condition, Placed, Placement};
use serde_json::Value;

use crate::ground::{Ground, eventually, isolation, lease, need};

const FILE: &str = "/etc/fabrique/buildkit/buildkitd.toml";

#[tokio::test]
async fn workers_of_two_generations_leave_each_others_daemons_while_these_are_used() {
    let Some(mut ground) = Ground::with_policies("userns").await else { return };
    let older = ground.placement("worker-1").await;
    let first = lease(&older, "citation").await;
    let first_uid = ground.uid(&first.daemon.name).await;

    ground.settings.daemon.max_parallelism = Some(3);
    let newer = ground.placement("worker-2").await;
    let second = lease(&newer, "citation").await;
    let second_uid = ground.uid(&second.daemon.name).await;
    newer.release(second.clone(), Condition::Clean).await;
    let file = async |pod: &str| ground.kubectl(&["exec", pod, "--", "cat", FILE]).await;
    assert!(!file(&first.daemon.name).await.contains("max-parallelism"));
    assert!(file(&second.daemon.name).await.contains("max-parallelism = 3"));

    // A build that takes longer than a worker may be silent.
    eventually("the claim was renewed five times", async || {
        let pod = ground.pod(&first.daemon.name).await;
        let claim = pod["metadata"]["annotations"]["fabrique/claim"].as_str().unwrap_or_default().to_owned();
        claim.rsplit('/').next().and_then(|beat| beat.parse().ok()).is_some_and(|beat: u64| beat >= 5)
    })
    .await;
    assert_eq!(ground.uid(&first.daemon.name).await, first_uid);
    older.release(first.clone(), Condition::Clean).await;

    // Once nobody uses it the older one goes. The newer one has been idle for longer, and the older worker looks on.
    eventually("the older one is gone", async || ground.uid(&first.daemon.name).await != first_uid).await;
    assert_eq!(ground.uid(&second.daemon.name).await, second_uid);

    // A worker of the older configuration still gets what it asks for, with its own file.
    let third = lease(&older, "citation").await;
    assert!(!file(&third.daemon.name).await.contains("max-parallelism"));
    assert_eq!(ground.uid(&second.daemon.name).await, second_uid);
    older.release(third, Condition::Clean).await;
}

/// The last four generations' files stay, and whoever wrote older ones is forgotten once and for all.
#[tokio::test]
async fn files_of_generations_before_the_last_four_are_given_up_once() {
    let Some(ground) = Ground::new(isolation()).await else { return };
    let fields = async || -> Value {
        let get = ["get", "configmap", CONFIG_MAP, "--show-managed-fields", "--output", "json"];
        serde_json::from_str(&ground.kubectl(&get).await).unwrap()
    };
    let parts = |map: &Value| {
        let entries = map["metadata"]["managedFields"].as_array().unwrap();
        let managers: BTreeSet<String> =
            entries.iter().map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect();
        let newest = entries.iter().filter_map(|entry| entry["time"].as_str()).max().unwrap().to_owned();
        let files: BTreeSet<String> = map["data"].as_object().unwrap().keys().cloned().collect();
        (managers, files, newest)
    };
    let mut settings = ground.settings.clone();
    let mut written: Vec<BTreeSet<String>> = Vec::new();
    for generation in 1..=6 {
        settings.daemon.max_parallelism = Some(generation);
        drop(ground.placement_with(settings.clone(), "worker-1").await);
        let (managers, files, newest) = parts(&fields().await);
        let before: BTreeSet<String> = written.iter().flatten().cloned().collect();
        written.push(files.difference(&before).cloned().collect());
        assert_eq!(managers.len(), usize::from(generation.min(4)), "{managers:?}");
        let kept: BTreeSet<String> = written.iter().rev().take(4).flatten().cloned().collect();
        assert_eq!(files, kept, "generation {generation}");
        // The API server tells the order of what was applied by seconds.
        eventually("another second", async || {
            ground
                .kubectl(&[
                    "create",
                    "--dry-run=server",
                    "--output=jsonpath={.metadata.creationTimestamp}",
                    "configmap",
                    "clock",
                ])
                .await
                > newest
        })
        .await;
    }
    // Nothing is left to forget, so that each pod costs one request.
    let patches =
        || ground.asked().iter().filter(|(verb, what)| verb == "patch" && what == "configmaps").count();
    let (map, asked) = (fields().await, patches());
    drop(ground.placement_with(settings, "worker-1").await);
    assert_eq!(fields().await["metadata"]["resourceVersion"], map["metadata"]["resourceVersion"]);
    assert_eq!(patches(), asked + 1);
}

/// A rollout that gives pods longer to start, of which the older workers know nothing.
#[tokio::test]
async fn an_older_worker_lets_newer_pods_start_and_keeps_none_of_its_own_ready() {
    let Some(mut ground) = Ground::with_policies("userns").await else { return };
    let start = Duration::from_secs(20);
    let pool = &mut ground.settings.pool;
    (pool.total, pool.per_domain, pool.warm, pool.start) = (3, 3, 1, start);
    ground.settings.gate.limit = start;
    let older = ground.placement("worker-1").await;
    let building = lease(&older, "citation").await;
    eventually("one is kept ready besides", async || older.daemons().len() == 2).await;
    let pod = ground.pod(&building.daemon.name).await;
    let generation = pod["metadata"]["labels"]["fabrique/generation"].as_str().unwrap();
    let (own, others) =
        (format!("fabrique/generation={generation}"), format!("fabrique/generation!={generation}"));
    let uids = async |selector: &str| {
        let args = ["get", "pods", "--selector", selector, "--output", "jsonpath={.items[*].metadata.uid}"];
        ground.kubectl(&args).await
    };

    // No node has this label yet: pods of the newer worker start when the test wants it.
    let mut settings = ground.settings.clone();
    settings.pool.start = Duration::from_mins(5);
    settings.scheduling.node_selector.insert(ground.namespace.clone(), "yes".to_owned());
    let newer = ground.placement_with(settings, "worker-2").await;
    let need = need("other", 120);
    let onlooker = async {
        eventually("the newer worker made a pod", async || !uids(&others).await.is_empty()).await;
        let starting = uids(&others).await;
        // What the older worker gives its own pods, and what it gives workers that may have died.
        tokio::time::sleep(start + ground.settings.pool.claim * 2).await;
        assert_eq!(uids(&others).await, starting, "it was not left to start");
        assert_eq!(uids(&own).await, ground.uid(&building.daemon.name).await, "one was kept ready again");
        let (node, label) = (ground.node(&building.daemon.name).await, format!("{}=yes", ground.namespace));
        ground.kubectl(&["label", "node", &node, &label]).await;
        starting
    };
    let (placed, starting) = tokio::join!(newer.acquire(&need), onlooker);
    let Placed::Lease(leased) = placed.unwrap() else { panic!("the newer worker got no daemon") };
    assert_eq!(ground.uid(&leased.daemon.name).await, starting);
    newer.release(leased, Condition::Clean).await;
    older.release(building, Condition::Clean).await;
}
