//! Who works on an app: the wake protocol, pure.
//!
//! The newest wake of an app has a sequence number: what is *wanted*. A record per app says what is
//! *done* and who holds it. An app is due when more is wanted than done. A worker notes what is wanted
//! before it reads anything, and releases to what it noted; if more is wanted by then, the app is simply
//! due again. A push during a build, a crash and a release race are therefore one case.

use serde::{Deserialize, Serialize};

use crate::id::{AppName, Digest};
use crate::time::Timestamp;

/// The sequence number of a wake; zero when there never was one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// The record of one app, changed only by compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkRecord {
    /// Who works on the app now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Grows with every claim; a holder whose token is older has lost the app.
    pub token: u64,
    /// Every wake up to this one is served.
    pub done: Generation,
    /// A wait that a newer wake ends early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// The app's place in the queue, kept while it is given back unserved: a revision of the store, as in
    /// [`WorkItem::revision`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// What the last look that ended read of the app in `cluster/apps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Seen>,
}

/// What a look read of an app in `cluster/apps`: where it is something else now, somebody changed it, and whoever was to be
/// told may not have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// A digest of the app's own files: registration, compositions, and what is deployed by them.
    pub files: Digest,
    /// A digest of the contract, where there is one and the app declares what it needs of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<Digest>,
    /// Whether something that is rendered of it could not follow: every look tries again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}

/// A wait decided at some generation. A newer wake ends it, so that a fresh push never waits for the
/// backoff of an older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// What was wanted when the wait was decided.
    pub at: Generation,
    /// Until when.
    pub until: Timestamp,
}

impl WorkRecord {
    /// The record after `holder` claims the app.
    #[must_use]
    pub fn claimed_by(&self, holder: &str) -> Self {
        Self { holder: Some(holder.to_owned()), token: self.token + 1, waiting: None, ..self.clone() }
    }

    /// The record after the work noted at `noted` is finished.
    #[must_use]
    pub fn released(&self, noted: Generation) -> Self {
        Self { holder: None, done: noted.max(self.done), waiting: None, queued: None, ..self.clone() }
    }

    /// The record after the holder gives the app back unserved: it was claimed at `revision` and keeps that
    /// place in the queue, however often it is looked at.
    #[must_use]
    pub fn released_unserved(&self, revision: u64) -> Self {
        let queued = Some(self.queued.unwrap_or(revision));
        Self { holder: None, waiting: None, queued, ..self.clone() }
    }

    /// The record after the holder decided at `noted` to wait: nothing is done, the app is due again at
    /// `until` or at the next wake.
    #[must_use]
    pub fn released_to_wait(&self, noted: Generation, until: Timestamp) -> Self {
        let waiting = Some(Waiting { at: noted, until });
        Self { holder: None, waiting, queued: None, ..self.clone() }
    }

    /// The same after a look that read this of the app, or found no such app.
    #[must_use]
    pub fn having_seen(self, seen: Option<Seen>) -> Self {
        Self { seen, ..self }
    }
}

/// What an observer knows about one app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkItem {
    /// The app.
    pub app: AppName,
    /// Its newest wake.
    pub wanted: Generation,
    /// Its record.
    pub record: WorkRecord,
    /// The record's own revision in the store; grows with every change of any record, so that among
    /// idle apps the smallest was served longest ago. Zero when there is no record yet.
    pub revision: u64,
    /// Whether the holder has let the record unchanged for the lease time on the observer's own clock.
    pub lease_expired: bool,
}

/// Whether an app can be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Now.
    Now,
    /// Not before this time.
    At(Timestamp),
    /// Not until something changes.
    No,
}

impl WorkItem {
    /// Whether the app can be claimed at `now`. A dead holder's app is due even when nothing newer is
    /// wanted, since what it was doing is unfinished.
    #[must_use]
    pub fn due(&self, now: Timestamp) -> Due {
        if self.record.holder.is_some() {
            return if self.lease_expired { Due::Now } else { Due::No };
        }
        if self.wanted <= self.record.done {
            return Due::No;
        }
        match self.record.waiting {
            Some(wait) if self.wanted <= wait.at && now < wait.until => Due::At(wait.until),
            Some(_) | None => Due::Now,
        }
    }
}

/// The due app that was served longest ago; among apps never served, the one woken first.
#[must_use]
pub fn next_due<'a>(items: impl IntoIterator<Item = &'a WorkItem>, now: Timestamp) -> Option<&'a WorkItem> {
    items
        .into_iter()
        .filter(|item| item.due(now) == Due::Now)
        .min_by_key(|item| (item.record.queued.unwrap_or(item.revision), item.wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, wanted: u64, done: u64, revision: u64) -> WorkItem {
        WorkItem {
            app: AppName::parse(name).unwrap(),
            wanted: Generation(wanted),
            record: WorkRecord { done: Generation(done), ..WorkRecord::default() },
            revision,
            lease_expired: false,
        }
    }

    #[test]
    fn a_wake_during_the_work_makes_the_app_due_again_after_the_release() {
        let mut item = item("a", 5, 3, 7);
        let noted = item.wanted;
        item.record = item.record.claimed_by("w1");
        item.wanted = Generation(6);
        assert_eq!(item.due(Timestamp(0)), Due::No);
        item.record = item.record.released(noted);
        assert_eq!(item.due(Timestamp(0)), Due::Now);
    }

    #[test]
    fn what_was_seen_stays_until_another_look_ends() {
        let seen = Some(Seen { files: Digest::of(b"files"), contract: None, open: true });
        let record = WorkRecord::default().having_seen(seen.clone()).claimed_by("w");
        assert_eq!(record.released_unserved(3).seen, seen, "nobody looked");
        assert_eq!(record.released(Generation(1)).having_seen(None).seen, None);
        let stored = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<WorkRecord>(&stored).unwrap(), record);
        let former = serde_json::from_str::<WorkRecord>(r#"{"token":1,"done":2}"#).unwrap();
        assert_eq!(former.seen, None, "of a worker that noted nothing");
        let files = Digest::of(b"files");
        let former = serde_json::from_str::<Seen>(&format!(r#"{{"files":"{files}"}}"#)).unwrap();
        assert_eq!(former, Seen { files, contract: None, open: false });
    }

    #[test]
    fn a_release_never_takes_back_what_is_done() {
        let record = WorkRecord { done: Generation(9), ..WorkRecord::default() };
        assert_eq!(record.released(Generation(4)).done, Generation(9));
    }

    #[test]
    fn a_wait_ends_at_its_time_or_at_a_newer_wake() {
        let mut item = item("a", 5, 3, 7);
        item.record = item.record.claimed_by("w").released_to_wait(Generation(5), Timestamp(100));
        assert_eq!(item.due(Timestamp(99)), Due::At(Timestamp(100)));
        assert_eq!(item.due(Timestamp(100)), Due::Now);
        item.wanted = Generation(6);
        assert_eq!(item.due(Timestamp(0)), Due::Now);
    }

    #[test]
    fn an_expired_lease_is_due_even_when_nothing_newer_is_wanted() {
        let mut item = item("a", 3, 3, 7);
        item.record = item.record.claimed_by("w");
        assert_eq!(item.due(Timestamp(0)), Due::No);
        item.lease_expired = true;
        assert_eq!(item.due(Timestamp(0)), Due::Now);
    }

    #[test]
    fn an_app_that_is_looked_at_and_not_served_keeps_its_place() {
        let mut busy = item("busy", 9, 1, 5);
        busy.record = busy.record.claimed_by("w").released_unserved(5);
        busy.revision = 70;
        busy.record = busy.record.claimed_by("w").released_unserved(70);
        busy.revision = 71;
        let items = [busy, item("quiet", 2, 1, 10)];
        assert_eq!(next_due(&items, Timestamp(0)).map(|d| d.app.as_str()), Some("busy"));
        assert_eq!(items[0].record.released(Generation(9)).queued, None);
    }

    #[test]
    fn the_app_served_longest_ago_goes_first_so_that_a_busy_one_starves_nobody() {
        let items = [item("busy", 900, 800, 50), item("quiet", 2, 1, 10), item("new", 3, 0, 0)];
        let order = |items: &[WorkItem]| next_due(items, Timestamp(0)).map(|d| d.app.to_string());
        assert_eq!(order(&items).as_deref(), Some("new"));
        assert_eq!(order(&items[..2]).as_deref(), Some("quiet"));
    }
}
