//! Holding an app: claimed by compare-and-swap, renewed by compare-and-swap, lost when somebody else's
//! swap came first.

use std::sync::Arc;
use std::time::Duration;

use fabrique_core::id::AppName;
use fabrique_core::time::Timestamp;
use fabrique_core::work::{Generation, Seen, WorkItem, WorkRecord};
use fabrique_ports::PortResult;
use fabrique_ports::bus::Board;
use fabrique_ports::records::Swap;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// A held app. Dropping it stops the renewal, and the lease dies by itself.
pub(crate) struct Lease {
    app: AppName,
    board: Arc<dyn Board>,
    record: WorkRecord,
    /// The app's place in the queue, until it is served: the record's revision when it was claimed.
    place: Option<u64>,
    revision: Arc<Mutex<u64>>,
    lost: CancellationToken,
    renewal: CancellationToken,
}

impl Lease {
    /// Claims the app of `item` for `holder`; nothing when somebody else was quicker.
    pub(crate) async fn claim(
        board: Arc<dyn Board>,
        item: &WorkItem,
        holder: &str,
        lease: Duration,
    ) -> PortResult<Option<Self>> {
        let record = item.record.claimed_by(holder);
        let revision = match board.swap_work(&item.app, &record, item.revision).await {
            Ok(Swap::Done(revision)) => revision,
            Ok(Swap::Lost) => return Ok(None),
            // No answer is an unknown outcome: the claim may stand, and then nobody else would renew it.
            Err(error) => match standing(board.as_ref(), &item.app, &record).await {
                Ok(Some(revision)) => revision,
                Ok(None) | Err(_) => return Err(error),
            },
        };
        let held = Self {
            app: item.app.clone(),
            board,
            record,
            place: Some(item.revision),
            revision: Arc::new(Mutex::new(revision)),
            lost: CancellationToken::new(),
            renewal: CancellationToken::new(),
        };
        tokio::spawn(renew(
            held.app.clone(),
            Arc::clone(&held.board),
            held.record.clone(),
            Arc::clone(&held.revision),
            held.lost.clone(),
            held.renewal.clone(),
            lease,
        ));
        Ok(Some(held))
    }

    /// The token of this claim.
    pub(crate) fn token(&self) -> u64 {
        self.record.token
    }

    /// Cancelled when the lease is lost.
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// What tells a write under this claim from one that comes too late.
    pub(crate) fn fence(&self) -> Fence {
        Fence { app: self.app.clone(), board: Arc::clone(&self.board), token: self.record.token }
    }

    /// What the look before this claim read of the app.
    pub(crate) fn seen(&self) -> Option<&Seen> {
        self.record.seen.as_ref()
    }

    /// Gives the app back, with everything up to `noted` done by a look that read `seen`.
    pub(crate) async fn release(self, noted: Generation, seen: Option<Seen>) -> PortResult<()> {
        let record = self.record.released(noted).having_seen(seen);
        self.give_back(record).await
    }

    /// Gives the app back with nothing done; it is due again at `until` or at the next wake.
    pub(crate) async fn release_to_wait(
        self,
        noted: Generation,
        until: Timestamp,
        seen: Option<Seen>,
    ) -> PortResult<()> {
        let record = self.record.released_to_wait(noted, until).having_seen(seen);
        self.give_back(record).await
    }

    /// The app had its turn: given back undone, it is behind those that waited meanwhile.
    pub(crate) fn served(&mut self) {
        self.place = None;
    }

    /// Gives the app back still due, and not behind others unless it was served. What was followed of `seen` is so all the same:
    /// the next look would follow it again.
    pub(crate) async fn release_undone(self, seen: Option<Seen>) -> PortResult<()> {
        let record = match self.place {
            Some(place) => self.record.released_unserved(place),
            None => self.record.released(self.record.done),
        };
        self.give_back(record.having_seen(seen)).await
    }

    async fn give_back(self, record: WorkRecord) -> PortResult<()> {
        self.renewal.cancel();
        let revision = self.revision.lock().await;
        if let Swap::Done(_) = self.board.swap_work(&self.app, &record, *revision).await? {
            return Ok(());
        }
        // A renewal that got no answer may have arrived; otherwise somebody else holds it, and nothing is left to give back.
        match standing(self.board.as_ref(), &self.app, &self.record).await? {
            Some(newer) => self.board.swap_work(&self.app, &record, newer).await.map(drop),
            None => Ok(()),
        }
    }
}

/// Tells whether a claim is still the newest: asked when a write met somebody else's, so that a worker
/// that was stopped and continues does not write over the one that took over.
pub(crate) struct Fence {
    app: AppName,
    board: Arc<dyn Board>,
    token: u64,
}

impl Fence {
    /// Whether nobody has claimed the app since.
    pub(crate) async fn holds(&self) -> PortResult<bool> {
        let (_, record, _) = self.board.work_of(&self.app).await?;
        Ok(record.token == self.token && record.holder.is_some())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal.cancel();
    }
}

async fn renew(
    app: AppName,
    board: Arc<dyn Board>,
    record: WorkRecord,
    revision: Arc<Mutex<u64>>,
    lost: CancellationToken,
    stop: CancellationToken,
    lease: Duration,
) {
    let mut renewed = tokio::time::Instant::now();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(lease / 3) => {}
        }
        let mut revision = revision.lock().await;
        if stop.is_cancelled() {
            return;
        }
        match renewed_at(board.as_ref(), &app, &record, *revision).await {
            Ok(Some(newer)) => {
                *revision = newer;
                renewed = tokio::time::Instant::now();
            }
            Ok(None) => {
                tracing::warn!(%app, "the lease was taken over by another worker");
                lost.cancel();
                return;
            }
            Err(error) => {
                tracing::warn!(%app, %error, "the lease could not be renewed");
                // Others may judge it dead from about now on: what goes on here is wasted.
                if renewed.elapsed() >= lease {
                    tracing::warn!(%app, "the lease counts as lost");
                    lost.cancel();
                    return;
                }
            }
        }
    }
}

/// Renews once; the record's new revision while it is still ours.
async fn renewed_at(
    board: &dyn Board,
    app: &AppName,
    ours: &WorkRecord,
    revision: u64,
) -> PortResult<Option<u64>> {
    match board.swap_work(app, ours, revision).await? {
        Swap::Done(newer) => Ok(Some(newer)),
        // An earlier renewal that got no answer may have arrived after all.
        Swap::Lost => standing(board, app, ours).await,
    }
}

/// The record's revision while it is still ours.
async fn standing(board: &dyn Board, app: &AppName, ours: &WorkRecord) -> PortResult<Option<u64>> {
    let (_, record, revision) = board.work_of(app).await?;
    Ok((record.token == ours.token && record.holder == ours.holder).then_some(revision))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use fabrique_core::id::Digest;

    use super::*;
    use crate::testing::OneRecord;

    const LEASE: Duration = Duration::from_secs(30);

    async fn claimed(board: &Arc<OneRecord>) -> Lease {
        let item = WorkItem {
            app: AppName::parse("citation").unwrap(),
            wanted: Generation(1),
            record: WorkRecord::default(),
            revision: 0,
            lease_expired: false,
        };
        Lease::claim(Arc::clone(board) as Arc<dyn Board>, &item, "worker-1", LEASE).await.unwrap().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_renewed_is_kept_even_where_a_renewal_got_no_answer() {
        let board = Arc::new(OneRecord::default());
        let lease = claimed(&board).await;
        tokio::time::sleep(LEASE / 2).await;
        // As by a renewal that arrived, and whose answer did not.
        board.record().1 += 1;
        tokio::time::sleep(LEASE * 4).await;
        assert!(!lease.lost().is_cancelled());
        lease.release(Generation(1), None).await.unwrap();
        assert_eq!(board.record().0.holder, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_app_is_given_back_although_the_last_renewal_got_no_answer() {
        let board = Arc::new(OneRecord::default());
        let lease = claimed(&board).await;
        board.record().1 += 1;
        lease.release(Generation(1), None).await.unwrap();
        let record = board.record().0.clone();
        assert_eq!((record.holder, record.done), (None, Generation(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_is_noted_also_where_the_work_is_not_done() {
        let board = Arc::new(OneRecord::default());
        let seen = Seen { files: Digest::of(b"files"), contract: None, open: false };
        claimed(&board).await.release_undone(Some(seen.clone())).await.unwrap();
        let record = board.record().0.clone();
        assert_eq!((record.seen, record.done), (Some(seen), Generation(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_app_that_somebody_took_is_not_given_back() {
        let board = Arc::new(OneRecord::default());
        let lease = claimed(&board).await;
        let (record, revision) = board.record().clone();
        *board.record() = (record.claimed_by("worker-2"), revision + 1);
        lease.release(Generation(1), None).await.unwrap();
        assert_eq!(board.record().0.holder.as_deref(), Some("worker-2"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_cannot_be_told_from_a_lost_one_counts_as_lost_once_it_is_over() {
        let board = Arc::new(OneRecord::default());
        let lease = claimed(&board).await;
        board.record().1 += 1;
        board.unread.store(true, Ordering::SeqCst);
        tokio::time::sleep(LEASE / 2).await;
        assert!(!lease.lost().is_cancelled(), "others wait for it as well");
        tokio::time::timeout(LEASE, lease.lost().cancelled()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_somebody_took_is_lost_at_the_next_renewal() {
        let board = Arc::new(OneRecord::default());
        let lease = claimed(&board).await;
        let (record, revision) = board.record().clone();
        *board.record() = (record.claimed_by("worker-2"), revision + 1);
        tokio::time::timeout(LEASE, lease.lost().cancelled()).await.unwrap();
    }
}
