//! Records, memories and the history of builds.

use fabrique_core::id::{AppName, BuildId, BuildKey, ImageRepository};
use fabrique_core::memory::Memory;
use fabrique_core::time::Timestamp;
use fabrique_ports::Fault;
use fabrique_ports::records::{
    BuildEntry, BuildHistory as _, BuildPhase, ImageRecord, Memories as _, Records as _, Swap, Versioned,
};

use crate::{bus, config, digest, new_app, new_build, own_bed, raw, revision, shared_bed};

fn key(digit: char) -> BuildKey {
    BuildKey::parse(&digit.to_string().repeat(64)).unwrap()
}

fn entry(build: &BuildId, phase: BuildPhase) -> BuildEntry {
    BuildEntry {
        build: build.clone(),
        app: build.app(),
        key: key('a'),
        revision: revision('1'),
        reason: "the head moved".to_owned(),
        phase,
        daemon: None,
        queued: Timestamp(1),
        ended: None,
        egress: None,
    }
}

#[tokio::test]
async fn an_image_record_is_read_back_by_its_own_key_only() {
    let bed = shared_bed().await;
    let worker = bus(bed, "worker").await;
    let record = ImageRecord {
        key: key('b'),
        build: new_build(&new_app()),
        revision: revision('2'),
        image: ImageRepository::parse("registry:80/citation").unwrap(),
        digest: digest(),
        at: Timestamp(5),
    };
    assert_eq!(worker.record(&key('b')).await.unwrap(), None);
    assert_eq!(worker.record_at(&key('b')).await.unwrap(), Versioned::default());
    let Swap::Done(first) = worker.swap_record(&record, 0).await.unwrap() else { panic!("lost") };
    assert_eq!(worker.record(&key('b')).await.unwrap(), Some(record.clone()));
    let newer = ImageRecord { at: Timestamp(6), ..record.clone() };
    assert_eq!(worker.swap_record(&newer, 0).await.unwrap(), Swap::Lost, "there is one already");
    let known = worker.record_at(&key('b')).await.unwrap();
    assert_eq!(known, Versioned { value: Some(record), revision: first });
    assert!(matches!(worker.swap_record(&newer, first).await.unwrap(), Swap::Done(_)));
    assert_eq!(worker.swap_record(&newer, first).await.unwrap(), Swap::Lost);
    assert_eq!(worker.record(&key('b')).await.unwrap(), Some(newer.clone()));
    // The same JSON under another key.
    let kv = raw(bed).await.get_key_value("FABRIQUE_RECORDS").await.unwrap();
    kv.put(key('c').as_str(), kv.get(key('b').as_str()).await.unwrap().unwrap()).await.unwrap();
    assert_eq!(worker.record(&key('c')).await.unwrap(), None);
    // It can be replaced all the same.
    let known = worker.record_at(&key('c')).await.unwrap();
    assert_eq!(known.value, None);
    let own = ImageRecord { key: key('c'), ..newer };
    assert!(matches!(worker.swap_record(&own, known.revision).await.unwrap(), Swap::Done(_)));
    assert_eq!(worker.record(&key('c')).await.unwrap(), Some(own));
}

#[tokio::test]
async fn a_memory_is_swapped_only_at_its_revision() {
    let worker = bus(shared_bed().await, "worker").await;
    let app = new_app();
    assert_eq!(worker.memory(&app).await.unwrap(), Versioned::default());
    let memory = |rebuild| Memory { rebuild, ..Memory::default() };
    let Swap::Done(first) = worker.swap_memory(&app, &memory(1), 0).await.unwrap() else { panic!("lost") };
    assert_eq!(worker.swap_memory(&app, &memory(2), 0).await.unwrap(), Swap::Lost);
    let Swap::Done(second) = worker.swap_memory(&app, &memory(3), first).await.unwrap() else {
        panic!("lost")
    };
    assert_eq!(worker.swap_memory(&app, &memory(4), first).await.unwrap(), Swap::Lost);
    assert_eq!(worker.memory(&app).await.unwrap(), Versioned { value: memory(3), revision: second });
}

#[tokio::test]
async fn a_poisoned_memory_names_its_key_and_remedy_and_blocks_no_other() {
    let bed = own_bed().await;
    let worker = bus(&bed, "worker").await;
    let (sick, well) = (new_app(), new_app());
    let kv = raw(&bed).await.get_key_value("FABRIQUE_MEMORY").await.unwrap();
    kv.put(sick.as_str(), "\u{0}binary".into()).await.unwrap();
    kv.put("No.App.Name", "{}".into()).await.unwrap();
    kv.put(well.as_str(), r#"{"rebuild":7,"from_a_newer_version":{"x":[1]}}"#.into()).await.unwrap();
    let all = worker.memories().await.unwrap();
    assert_eq!(all, [(well, Memory { rebuild: 7, ..Memory::default() })]);
    let error = worker.memory(&sick).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Unexpected);
    let text = error.to_string();
    assert!(text.contains(&format!("FABRIQUE_MEMORY/{sick}")), "{text}");
    assert!(text.contains(&format!("nats kv del FABRIQUE_MEMORY {sick}")), "{text}");
}

#[tokio::test]
async fn builds_are_listed_newest_first_for_one_app_and_for_all() {
    let bed = own_bed().await;
    let worker = bus(&bed, "worker").await;
    // The second app's name sorts before the first's, and is a prefix of it.
    let (one, other) = (AppName::parse("beta-2").unwrap(), AppName::parse("beta").unwrap());
    let id = |app: &AppName, number: u32| BuildId::new(app, &format!("01k{number:023}")).unwrap();
    for (app, number) in [(&one, 1), (&other, 2), (&one, 3)] {
        worker.put_build(&entry(&id(app, number), BuildPhase::Queued)).await.unwrap();
    }
    worker.put_build(&entry(&id(&one, 1), BuildPhase::Building)).await.unwrap();
    let list = async |app, limit| {
        let builds = worker.builds(app, limit).await.unwrap();
        builds.into_iter().map(|entry| entry.build).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 10).await, [id(&one, 3), id(&other, 2), id(&one, 1)]);
    assert_eq!(list(None, 2).await, [id(&one, 3), id(&other, 2)]);
    assert_eq!(list(Some(&other), 10).await, [id(&other, 2)]);
    assert_eq!(worker.build(&id(&one, 1)).await.unwrap().unwrap().phase, BuildPhase::Building);
    assert_eq!(worker.build(&id(&other, 9)).await.unwrap(), None);
}

#[tokio::test]
async fn the_oldest_builds_of_an_app_go_and_those_of_others_stay() {
    let bed = own_bed().await;
    let mut config = config(&bed, "worker");
    config.limits.builds_per_app = 2;
    let worker = fabrique_bus::Bus::connect(config).await.unwrap();
    let (busy, quiet) = (new_app(), new_app());
    let id = |app: &AppName, number: u32| BuildId::new(app, &format!("01k{number:023}")).unwrap();
    worker.put_build(&entry(&id(&quiet, 0), BuildPhase::Superseded { by: None })).await.unwrap();
    for number in 1..=4 {
        worker.put_build(&entry(&id(&busy, number), BuildPhase::Superseded { by: None })).await.unwrap();
    }
    let left: Vec<_> = worker.builds(None, 10).await.unwrap().into_iter().map(|entry| entry.build).collect();
    assert_eq!(left, [id(&busy, 4), id(&busy, 3), id(&quiet, 0)]);
}

#[tokio::test]
async fn unfinished_builds_are_found_among_all_and_replaced_only_as_they_were_read() {
    let bed = own_bed().await;
    let worker = bus(&bed, "worker").await;
    let (ended, left, moves) = (new_build(&new_app()), new_build(&new_app()), new_build(&new_app()));
    worker.put_build(&entry(&ended, BuildPhase::Superseded { by: None })).await.unwrap();
    worker.put_build(&entry(&left, BuildPhase::Queued)).await.unwrap();
    worker.put_build(&entry(&left, BuildPhase::Building)).await.unwrap();
    worker.put_build(&entry(&moves, BuildPhase::Preparing)).await.unwrap();
    let found = worker.unfinished_builds().await.unwrap();
    let builds: Vec<_> = found.iter().map(|found| (&found.value.build, &found.value.phase)).collect();
    assert_eq!(builds, [(&left, &BuildPhase::Building), (&moves, &BuildPhase::Preparing)]);

    worker.put_build(&entry(&moves, BuildPhase::Building)).await.unwrap();
    let [left_at, moves_at] = [found[0].revision, found[1].revision];
    let over = |build| entry(build, BuildPhase::Superseded { by: None });
    assert!(matches!(worker.swap_build(&over(&left), left_at).await.unwrap(), Swap::Done(_)));
    assert_eq!(worker.swap_build(&over(&moves), moves_at).await.unwrap(), Swap::Lost);
    let unfinished = worker.unfinished_builds().await.unwrap();
    assert_eq!(unfinished.iter().map(|found| &found.value.build).collect::<Vec<_>>(), [&moves]);
}
