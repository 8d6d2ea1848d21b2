use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use fabrique_core::app::App;
use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::{BuildId, BuildKey, ImageRepository, RelPath, Revision};
use fabrique_core::memory::Running;
use fabrique_core::policy::{Attempt, Policy};
use fabrique_core::time::Timestamp;
use fabrique_core::work::{Generation, WorkItem, WorkRecord};
use fabrique_gitops::{Entry, Registrations, Rules, Tree};
use fabrique_ports::records::Versioned;

use super::*;
use crate::failing;
use crate::lease::Lease;
use crate::testing::OneRecord;

fn app() -> App {
    let text = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: citation }\nspec:\n  \
                source: { repo: atlas/citation }\n  image: registry:80/citation\n";
    let path = RelPath::parse("apps/citation/app.yaml").unwrap();
    let tree: Tree = [(path, Entry::regular(text))].into_iter().collect();
    let rules = Rules { registries: vec!["registry:80".to_owned()] };
    Registrations::load(&tree, &rules).apps.into_values().next().unwrap()
}

/// What is built once a person asked so often for it to be built anew.
fn inputs(rebuild: u32) -> BuildInputs {
    BuildInputs::of(&app(), &Revision::parse(&"a".repeat(40)).unwrap(), rebuild)
}

fn build(number: u8) -> BuildId {
    BuildId::parse(&format!("citation-01k4z3v5w6x7y8z9a0b1c2d3e{number}")).unwrap()
}

fn built() -> Built {
    let BuildInputs { revision, .. } = inputs(0);
    Built { build: build(4), key: inputs(0).key(), revision, digest: Digest::of(b"image") }
}

/// An attempt under way.
fn under_way() -> Memory {
    let Built { build, key, revision, .. } = built();
    let running = Running { build, key, revision, token: 1, started: Timestamp(0), pushed: false };
    Memory { running: Some(running), ..Memory::default() }
}

#[test]
fn attempts_whose_image_nobody_answers_for_count_on_until_they_are_given_up() {
    let policy = Policy { max_attempts: 3, ..Policy::default() };
    let attempt = || {
        let Built { build, key, revision, .. } = built();
        let (kind, message) = (FailureKind::Infrastructure, "the registry did not answer".to_owned());
        Attempt { key, revision, build: Some(build), kind, message, log_tail: Vec::new() }
    };
    let mut memory = under_way();
    for attempts in 1..=3 {
        let earlier: Option<Failure> = memory.failure.clone();
        note_built(&mut memory, &built(), &inputs(0), None);
        assert_eq!(memory.failure, None, "it is built");
        failing::note(&mut memory, earlier.as_ref(), |before| {
            policy.failure(before, attempt(), Timestamp(0), 0.5)
        });
        let failure = memory.failure.as_ref().unwrap();
        assert_eq!((failure.attempts, failure.dead), (attempts, attempts == 3));
    }
}

#[test]
fn a_rebuild_without_cache_asked_for_during_a_build_is_not_fulfilled_by_that() {
    let mut memory = Memory { rebuild: 1, no_cache: true, ..under_way() };
    note_built(&mut memory, &built(), &inputs(0), None);
    assert!(memory.no_cache, "the build of before has ended");
    let rebuilt = Built { key: inputs(1).key(), ..built() };
    note_built(&mut memory, &rebuilt, &inputs(1), None);
    assert!(!memory.no_cache, "it is built anew");
}

/// One record, and the digests that a registry has, or none that answers.
#[derive(Default)]
struct Stores {
    record: Mutex<Versioned<Option<ImageRecord>>>,
    there: Option<Vec<Digest>>,
}

#[async_trait]
impl Records for Stores {
    async fn record(&self, key: &BuildKey) -> PortResult<Option<ImageRecord>> {
        Ok(self.record_at(key).await?.value)
    }

    async fn record_at(&self, _: &BuildKey) -> PortResult<Versioned<Option<ImageRecord>>> {
        Ok(self.record.lock().unwrap().clone())
    }

    async fn swap_record(&self, record: &ImageRecord, revision: u64) -> PortResult<Swap> {
        let mut stored = self.record.lock().unwrap();
        if stored.revision != revision {
            return Ok(Swap::Lost);
        }
        *stored = Versioned { value: Some(record.clone()), revision: revision + 1 };
        Ok(Swap::Done(revision + 1))
    }
}

#[async_trait]
impl Registry for Stores {
    async fn has(&self, _: &ImageRepository, digest: &Digest) -> PortResult<bool> {
        let unanswered = || PortError::new(Peer::Registry, Fault::Transient, "no answer");
        self.there.as_ref().map(|there| there.contains(digest)).ok_or_else(unanswered)
    }

    async fn resolve(&self, _: &ImageRepository, _: &str) -> PortResult<Option<Digest>> {
        Ok(None)
    }

    async fn tag(&self, _: &ImageRepository, _: &Digest, _: &str) -> PortResult<()> {
        Ok(())
    }

    async fn ping(&self, _: &str) -> PortResult<()> {
        Ok(())
    }
}

fn record(number: u8, digest: &Digest) -> ImageRecord {
    let (key, revision, image) = (inputs(0).key(), inputs(0).revision, app().image);
    ImageRecord { key, build: build(number), revision, image, digest: digest.clone(), at: Timestamp(0) }
}

async fn claimed(board: &Arc<OneRecord>) -> Lease {
    let item = WorkItem {
        app: app().name,
        wanted: Generation(1),
        record: WorkRecord::default(),
        revision: 0,
        lease_expired: false,
    };
    Lease::claim(Arc::clone(board) as _, &item, "worker-1", Duration::from_secs(30)).await.unwrap().unwrap()
}

#[tokio::test]
async fn an_image_that_is_recorded_and_there_is_not_replaced_by_another_of_the_same_build() {
    let (first, second) = (Digest::of(b"first"), Digest::of(b"second"));
    let fence = claimed(&Arc::default()).await.fence();
    for (there, stands) in [
        (Some(vec![first.clone(), second.clone()]), Standing::Another(first.clone())),
        (None, Standing::Another(first.clone())),
        (Some(vec![second.clone()]), Standing::Ours),
    ] {
        let stores = Stores { there, ..Stores::default() };
        let put = async |record: &ImageRecord| put(&stores, &stores, &fence, record).await.unwrap();
        assert_eq!(put(&record(4, &first)).await, Some(Standing::Ours));
        assert_eq!(put(&record(4, &first)).await, Some(Standing::Ours), "the answer may be lost");
        assert_eq!(put(&record(5, &second)).await, Some(stands), "{:?}", stores.there);
    }
}

#[tokio::test]
async fn a_worker_whose_app_was_claimed_by_another_records_nothing() {
    let board = Arc::new(OneRecord::default());
    let fence = claimed(&board).await.fence();
    let (taken, revision) = board.record().clone();
    *board.record() = (taken.claimed_by("worker-2"), revision + 1);
    let stores = Stores::default();
    assert_eq!(put(&stores, &stores, &fence, &record(4, &Digest::of(b"first"))).await.unwrap(), None);
    assert_eq!(stores.record.lock().unwrap().value, None);
}
