//! What a doctor sees, by whom it is sent.

use fabrique_kubernetes::config::Isolation;
use fabrique_kubernetes::inspect::Inspector;
use fabrique_ports::builder::{Condition, Placement};

use crate::ground::{Ground, eventually, lease};

#[tokio::test]
async fn a_doctor_sees_what_is_missing_and_starts_nothing() {
    let Some(mut ground) = Ground::with_policies("auto").await else { return };
    ground.settings.pool.warm = 1;
    let inspector = |client| Inspector::new(client, ground.settings.clone()).unwrap();
    let (worker, admin) = (inspector(ground.worker().await), inspector(ground.admin().await));
    let choice = worker.choice().await.unwrap();
    assert_eq!(choice.isolation, Isolation::Userns, "{choice:?}");
    assert!(choice.reason.contains("offer user namespaces"), "{choice:?}");
    assert_eq!(worker.missing_rights().await.unwrap(), []);
    // What the worker does not need it may not read.
    assert_eq!(worker.network().await.unwrap(), None);
    assert_eq!(admin.network().await.unwrap(), Some(vec![]));
    assert_eq!(worker.daemons().await.unwrap(), []);
    assert_eq!(ground.pods().await, Vec::<String>::new());

    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    let daemons = worker.daemons().await.unwrap();
    assert!(daemons.contains(&leased.daemon), "{daemons:?}");
    assert_eq!(leased.daemon.to_string(), format!("{} (userns)", leased.daemon.name));
    placement.release(leased, Condition::Clean).await;

    ground.kubectl(&["delete", "networkpolicy", "default-deny"]).await;
    let findings = admin.network().await.unwrap().unwrap();
    assert_eq!(findings.len(), 2, "{findings:?}");
    ground.kubectl(&["delete", "role", "worker"]).await;
    eventually("the rights are gone", async || {
        let missing = worker.missing_rights().await.unwrap();
        missing.len() == 8 && missing.iter().all(|right| right.rule.resource != "nodes")
    })
    .await;
}
