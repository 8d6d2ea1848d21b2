//! The races of the wake protocol.

use fabrique_core::time::Timestamp;
use fabrique_core::work::{Due, Generation, WorkItem, WorkRecord};
use fabrique_ports::bus::{Board as _, Wakes as _};
use fabrique_ports::records::Swap;

use crate::{bus, new_app, push, shared_bed};

#[tokio::test]
async fn equal_wakes_in_a_row_are_new_generations_each() {
    let (receiver, worker) =
        (bus(shared_bed().await, "receiver").await, bus(shared_bed().await, "worker").await);
    let app = new_app();
    let first = receiver.wake(&app, &push()).await.unwrap();
    let second = receiver.wake(&app, &push()).await.unwrap();
    let third = receiver.wake(&app, &push()).await.unwrap();
    assert!(first < second && second < third);
    assert_eq!(worker.work_of(&app).await.unwrap(), (third, WorkRecord::default(), 0));
}

#[tokio::test]
async fn of_many_claims_of_an_app_one_wins() {
    let worker = bus(shared_bed().await, "worker").await;
    let app = new_app();
    worker.wake(&app, &push()).await.unwrap();
    let claims = (0..10).map(async |number| {
        let record = WorkRecord::default().claimed_by(&format!("worker-{number}"));
        worker.swap_work(&app, &record, 0).await.unwrap()
    });
    let outcomes = futures::future::join_all(claims).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome != Swap::Lost).count(), 1);
    let (_, record, revision) = worker.work_of(&app).await.unwrap();
    assert!(outcomes.contains(&Swap::Done(revision)));
    assert_eq!(record.token, 1);
}

#[tokio::test]
async fn a_push_during_the_work_makes_the_app_due_after_the_release() {
    let worker = bus(shared_bed().await, "worker").await;
    let app = new_app();
    let noted = worker.wake(&app, &push()).await.unwrap();
    let claimed = WorkRecord::default().claimed_by("w");
    let Swap::Done(held) = worker.swap_work(&app, &claimed, 0).await.unwrap() else { panic!("not claimed") };
    let newer = worker.wake(&app, &push()).await.unwrap();
    let Swap::Done(_) = worker.swap_work(&app, &claimed.released(noted), held).await.unwrap() else {
        panic!("not released: a wake must not disturb the record")
    };
    let (wanted, record, revision) = worker.work_of(&app).await.unwrap();
    assert_eq!((wanted, record.done), (newer, noted));
    let item = WorkItem { app, wanted, record, revision, lease_expired: false };
    assert_eq!(item.due(Timestamp(0)), Due::Now);
}

#[tokio::test]
async fn a_holder_that_was_taken_over_can_neither_renew_nor_release() {
    let (slow, quick) = (bus(shared_bed().await, "worker").await, bus(shared_bed().await, "worker").await);
    let app = new_app();
    let noted = slow.wake(&app, &push()).await.unwrap();
    let first = WorkRecord::default().claimed_by("slow");
    let Swap::Done(held) = slow.swap_work(&app, &first, 0).await.unwrap() else { panic!("not claimed") };
    let taken = first.claimed_by("quick");
    let Swap::Done(now) = quick.swap_work(&app, &taken, held).await.unwrap() else {
        panic!("not taken over")
    };
    assert_eq!(slow.swap_work(&app, &first, held).await.unwrap(), Swap::Lost);
    assert_eq!(slow.swap_work(&app, &first.released(noted), held).await.unwrap(), Swap::Lost);
    assert_eq!(quick.work_of(&app).await.unwrap(), (noted, taken, now));
}

#[tokio::test]
async fn a_record_that_was_deleted_can_be_created_again() {
    let bed = shared_bed().await;
    let worker = bus(bed, "worker").await;
    let app = new_app();
    worker.swap_work(&app, &WorkRecord::default().claimed_by("w"), 0).await.unwrap();
    let kv = crate::raw(bed).await.get_key_value("FABRIQUE_WORK").await.unwrap();
    for purged in [false, true] {
        if purged {
            kv.purge(app.as_str()).await.unwrap()
        } else {
            kv.delete(app.as_str()).await.unwrap()
        }
        let (_, record, _) = worker.work_of(&app).await.unwrap();
        assert_eq!(record, WorkRecord::default());
        let again = WorkRecord::default().claimed_by("again");
        assert!(matches!(worker.swap_work(&app, &again, 0).await.unwrap(), Swap::Done(_)));
        assert_eq!(worker.swap_work(&app, &again, 0).await.unwrap(), Swap::Lost, "it is held now");
    }
}

#[tokio::test]
async fn all_desks_are_told_with_wakes_and_records_of_either_kind() {
    let worker = bus(shared_bed().await, "worker").await;
    let (woken, worked, both) = (new_app(), new_app(), new_app());
    let only_wanted = worker.wake(&woken, &push()).await.unwrap();
    let wanted = worker.wake(&both, &push()).await.unwrap();
    let claim = WorkRecord::default().claimed_by("w");
    worker.swap_work(&worked, &claim, 0).await.unwrap();
    worker.swap_work(&both, &claim, 0).await.unwrap();
    let items = worker.all_work().await.unwrap();
    let item = |app| items.iter().find(|item| item.0 == app).map(|item| (item.1, item.2.clone())).unwrap();
    assert_eq!(item(woken), (only_wanted, WorkRecord::default()));
    assert_eq!(item(worked), (Generation(0), claim.clone()));
    assert_eq!(item(both), (wanted, claim));
}
