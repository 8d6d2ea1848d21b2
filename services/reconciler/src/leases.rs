//! Telling a dead holder from a working one by watching its record.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fabrique_core::id::AppName;

/// Who holds an app, as far as an observer can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Nobody.
    Nobody,
    /// Somebody, who moved the record within the lease or is seen for the first time.
    Working,
    /// Somebody who has not moved the record for this long.
    Silent(Duration),
}

/// The records of held apps and since when each is as it is, by this process's own clock: clocks of other
/// machines say nothing.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    seen: HashMap<AppName, (u64, Instant)>,
}

impl Leases {
    /// Takes the held records of one reading; apps that are not among them are forgotten.
    pub(crate) fn note<'a>(&mut self, held: impl IntoIterator<Item = (&'a AppName, u64)>, now: Instant) {
        let before = std::mem::take(&mut self.seen);
        self.seen = held
            .into_iter()
            .map(|(app, revision)| {
                let since = before.get(app).filter(|(seen, _)| *seen == revision).map_or(now, |(_, at)| *at);
                (app.clone(), (revision, since))
            })
            .collect();
    }

    /// Takes a later reading for what was held at the last one: whoever moved its record since, or gave it back, is
    /// forgotten, and nobody is new.
    pub(crate) fn keep_still<'a>(&mut self, held: impl IntoIterator<Item = (&'a AppName, u64)>) {
        let held: HashMap<&AppName, u64> = held.into_iter().collect();
        self.seen.retain(|app, (revision, _)| held.get(app) == Some(revision));
    }

    /// For how long the record that stands still for longest has done so.
    pub(crate) fn longest(&self, now: Instant) -> Option<Duration> {
        self.seen.values().map(|(_, since)| now.saturating_duration_since(*since)).max()
    }

    /// The apps whose holders are silent, and for how long. They are forgotten.
    pub(crate) fn take_silent(&mut self, lease: Duration, now: Instant) -> Vec<(AppName, Duration)> {
        let still = |(_, since): &(u64, Instant)| now.saturating_duration_since(*since);
        self.seen.extract_if(|_, seen| still(seen) >= lease).map(|(app, seen)| (app, still(&seen))).collect()
    }

    /// Who holds `app` by the last reading.
    pub(crate) fn holder(&self, app: &AppName, lease: Duration, now: Instant) -> Holder {
        match self.seen.get(app).map(|(_, since)| now.saturating_duration_since(*since)) {
            None => Holder::Nobody,
            Some(still) if still >= lease => Holder::Silent(still),
            Some(_) => Holder::Working,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn app() -> AppName {
        AppName::parse("citation").unwrap()
    }

    #[test]
    fn a_record_that_moves_between_two_sweeps_has_a_working_holder() {
        let (mut leases, app, start) = (Leases::default(), app(), Instant::now());
        leases.note([(&app, 7)], start);
        let later = start + LEASE * 10;
        leases.note([(&app, 8)], later);
        assert_eq!(leases.holder(&app, LEASE, later), Holder::Working);
    }

    #[test]
    fn a_record_that_stands_still_for_the_lease_has_a_silent_holder() {
        let (mut leases, app, start) = (Leases::default(), app(), Instant::now());
        leases.note([(&app, 7)], start);
        assert_eq!(leases.holder(&app, LEASE, start), Holder::Working);
        let later = start + LEASE;
        leases.note([(&app, 7)], later);
        assert_eq!(leases.holder(&app, LEASE, later), Holder::Silent(LEASE));
    }

    #[test]
    fn an_app_that_was_given_back_and_claimed_again_starts_over() {
        let (mut leases, app, start) = (Leases::default(), app(), Instant::now());
        leases.note([(&app, 7)], start);
        leases.note([], start);
        assert_eq!(leases.holder(&app, LEASE, start + LEASE * 2), Holder::Nobody);
        leases.note([(&app, 7)], start + LEASE);
        assert_eq!(leases.holder(&app, LEASE, start + LEASE), Holder::Working);
    }

    #[test]
    fn only_those_that_stand_still_from_one_reading_to_the_next_become_silent() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        let [moved, back, still, new] =
            ["moved", "back", "still", "new"].map(|app| AppName::parse(app).unwrap());
        leases.note([(&moved, 1), (&back, 2), (&still, 3)], start);
        let later = start + LEASE / 2;
        assert_eq!(leases.longest(later), Some(LEASE / 2));
        leases.keep_still([(&moved, 4), (&still, 3), (&new, 5)]);
        assert_eq!(leases.take_silent(LEASE, later), []);
        let end = start + LEASE;
        assert_eq!(leases.take_silent(LEASE, end), [(still, LEASE)]);
        assert_eq!(leases.longest(end), None);
    }
}
