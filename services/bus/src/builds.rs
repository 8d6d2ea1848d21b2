//! The history of builds.

use async_trait::async_trait;
use fabrique_core::id::{AppName, BuildId};
use fabrique_ports::PortResult;
use fabrique_ports::records::{BuildEntry, BuildHistory, Swap, Versioned};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::connection::Bus;
use crate::error::BusError;
use crate::kv::{self, Entry};
use crate::layout::{self, Store};
use crate::reader::{From, Read, Reader};

/// Entries read at the same time.
const READS: usize = 16;

#[async_trait]
impl BuildHistory for Bus {
    /// With the last phase of a build, the app's oldest entries beyond `limits.builds_per_app` go.
    async fn put_build(&self, entry: &BuildEntry) -> PortResult<()> {
        let value = kv::encode("a build", entry)?;
        self.put(Store::Builds, &layout::build(&entry.build), value).await?;
        if entry.phase.is_final()
            && let Err(error) = self.prune(&entry.app).await
        {
            tracing::warn!(%error, app = %entry.app, "the history of builds was not pruned; the next build tries again");
        }
        Ok(())
    }

    async fn build(&self, build: &BuildId) -> PortResult<Option<BuildEntry>> {
        let Some(entry) = self.entry(Store::Builds, &layout::build(build)).await? else { return Ok(None) };
        Ok(entry.decode()?)
    }

    async fn builds(&self, app: Option<&AppName>, limit: usize) -> PortResult<Vec<BuildEntry>> {
        let newest = self.build_ids(app).await?.into_iter().take(limit).map(|id| async move {
            match self.build(&id).await {
                Ok(entry) => Ok(entry),
                Err(error) if error.transient() => Err(error),
                Err(error) => {
                    tracing::error!(%error, "a build is left out");
                    Ok(None)
                }
            }
        });
        stream::iter(newest).buffered(READS).try_filter_map(async |entry| Ok(entry)).try_collect().await
    }

    /// Reads the whole history once and keeps only what is asked for.
    async fn unfinished_builds(&self) -> PortResult<Vec<Versioned<BuildEntry>>> {
        let everything = vec![Store::Builds.subject(">")];
        let mut reader = Reader::open(self, Store::Builds, everything, From::Newest).await?;
        let mut unfinished = Vec::new();
        while let Read::Message(m) = reader.next().await? {
            let entry = Entry::new(Store::Builds, &m.subject, m.sequence, m.headers.as_ref(), m.payload);
            match entry.decode::<BuildEntry>() {
                Ok(Some(value)) if !value.phase.is_final() => {
                    unfinished.push(Versioned { value, revision: entry.revision });
                }
                Ok(Some(_) | None) => {}
                Err(error) => tracing::error!(%error, "a build is left out"),
            }
        }
        Ok(unfinished)
    }

    async fn swap_build(&self, entry: &BuildEntry, revision: u64) -> PortResult<Swap> {
        let value = kv::encode("a build", entry)?;
        Ok(self.swap(Store::Builds, &layout::build(&entry.build), value, revision).await?)
    }
}

impl Bus {
    /// The builds in the history, newest first.
    async fn build_ids(&self, app: Option<&AppName>) -> Result<Vec<BuildId>, BusError> {
        let filter = app.map_or_else(|| ">".to_owned(), |app| format!("{app}.*"));
        let (what, within) = (Store::Builds.stream(), self.config().timeouts.request);
        let stream = self.stream(Store::Builds).await?;
        let failed = |error| BusError::request(what, within, error);
        let subjects = stream.info_with_subjects(Store::Builds.subject(&filter)).await.map_err(failed)?;
        let subjects: Vec<(String, usize)> = subjects.try_collect().await.map_err(failed)?;
        let id = |subject: &str| BuildId::parse(Store::Builds.key(subject)?.split_once('.')?.1).ok();
        let mut ids: Vec<BuildId> = subjects.iter().filter_map(|(subject, _)| id(subject)).collect();
        ids.sort_by(|one, other| ulid(other).cmp(ulid(one)));
        Ok(ids)
    }

    async fn prune(&self, app: &AppName) -> Result<(), BusError> {
        let (what, keep) = (Store::Builds.stream(), self.config().limits.builds_per_app);
        let stream = self.stream(Store::Builds).await?;
        for old in self.build_ids(Some(app)).await?.iter().skip(keep.max(1)) {
            let purge = stream.purge().filter(Store::Builds.subject(&layout::build(old)));
            purge.await.map_err(|error| BusError::from_source(what, error))?;
        }
        Ok(())
    }
}

/// The part of a build's id that sorts by time across apps.
fn ulid(build: &BuildId) -> &str {
    build.as_str().rsplit('-').next().unwrap_or_default()
}
