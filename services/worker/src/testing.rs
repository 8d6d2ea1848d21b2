//! What unit tests stand on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use fabrique_core::id::{AppName, EnvironmentName, RepoName};
use fabrique_core::view::ImageView;
use fabrique_core::work::{Generation, WorkRecord};
use fabrique_gitops::registration::SourceForm;
use fabrique_gitops::render::migrations::Runner;
use fabrique_gitops::render::{Destination, IN_CLUSTER, Settings};
use fabrique_ports::bus::{Board, BoardChange};
use fabrique_ports::records::Swap;
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use futures::stream::BoxStream;

/// An installation that renders `prod` into one namespace of its own cluster.
pub(crate) fn settings(source: SourceForm, namespace: &str, runner: Option<Runner>) -> Settings {
    Settings {
        gitea: "http://gitea:3000/".to_owned(),
        repo: RepoName::parse("cluster/apps").unwrap(),
        branch: "main".to_owned(),
        argocd_namespace: "argocd".to_owned(),
        root: "root".to_owned(),
        project: "fabrique-apps".to_owned(),
        source,
        destinations: vec![Destination {
            environment: EnvironmentName::parse("prod").unwrap(),
            server: IN_CLUSTER.to_owned(),
            namespaces: vec![namespace.to_owned()],
        }],
        runner,
    }
}

/// The image channel of an environment that follows builds and has none yet.
pub(crate) fn image_view() -> ImageView {
    ImageView {
        follows_builds: true,
        trouble: None,
        waits: None,
        hold: None,
        step: None,
        digest: None,
        same_inputs: true,
        taken_back: None,
    }
}

/// What runs migrations.
pub(crate) fn runner() -> Runner {
    let image = format!("registry:80/fabrique@sha256:{}", "0".repeat(64));
    Runner { image, tls: "require".to_owned(), limit: 900 }
}

/// A store of one record, whose reads fail while it is `unread`.
#[derive(Default)]
pub(crate) struct OneRecord {
    record: Mutex<(WorkRecord, u64)>,
    pub(crate) unread: AtomicBool,
}

impl OneRecord {
    pub(crate) fn record(&self) -> MutexGuard<'_, (WorkRecord, u64)> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn swap(&self, record: &WorkRecord, revision: u64) -> Swap {
        let mut stored = self.record();
        if stored.1 != revision {
            return Swap::Lost;
        }
        *stored = (record.clone(), revision + 1);
        Swap::Done(revision + 1)
    }
}

#[async_trait]
impl Board for OneRecord {
    async fn watch_board(&self) -> PortResult<BoxStream<'static, BoardChange>> {
        Err(PortError::new(Peer::Bus, Fault::Unexpected, "nobody watches it"))
    }

    async fn swap_work(&self, _: &AppName, record: &WorkRecord, revision: u64) -> PortResult<Swap> {
        Ok(self.swap(record, revision))
    }

    async fn work_of(&self, _: &AppName) -> PortResult<(Generation, WorkRecord, u64)> {
        if self.unread.load(Ordering::SeqCst) {
            return Err(PortError::new(Peer::Bus, Fault::Transient, "no answer"));
        }
        let (record, revision) = self.record().clone();
        Ok((Generation(1), record, revision))
    }

    async fn all_work(&self) -> PortResult<Vec<(AppName, Generation, WorkRecord, u64)>> {
        Ok(vec![])
    }
}
