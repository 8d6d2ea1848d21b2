//! Times, revisions and images in as few characters as people need.

use std::time::Duration;

use fabrique_core::id::{Digest, Revision};
use fabrique_core::time::Timestamp;

use crate::ambient;

/// `3 m ago`, `in 20 s`, `now`.
pub(crate) fn when(at: Timestamp) -> String {
    from(ambient::now(), at)
}

fn from(now: Timestamp, at: Timestamp) -> String {
    match (at.until(now), now.until(at)) {
        (past, _) if past >= Duration::from_secs(1) => format!("{} ago", roughly(past)),
        (_, future) if future >= Duration::from_secs(1) => format!("in {}", roughly(future)),
        _ => "now".to_owned(),
    }
}

/// In the one unit that says enough: `40 s`, `3 m`, `2 h`, `5 d`.
pub(crate) fn roughly(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7_199 => format!("{} m", seconds / 60),
        seconds @ 7_200..=172_799 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// How long something took: `1.6 s`, `3 m`.
pub(crate) fn took(duration: Duration) -> String {
    if duration < Duration::from_mins(2) {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        roughly(duration)
    }
}

/// The first twelve digits, or a dash.
pub(crate) fn short(revision: Option<&Revision>) -> String {
    revision.map_or_else(|| "-".to_owned(), |revision| revision.short().to_owned())
}

/// The image as in a registry's address.
pub(crate) fn digest(digest: Option<&Digest>) -> String {
    digest.map(ToString::to_string).unwrap_or_default()
}

/// `1 app`, `2 apps`.
pub(crate) fn count(number: usize, what: &str) -> String {
    let plural = match (number, what.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u']))) {
        (1, _) => what.to_owned(),
        (_, Some(stem)) => format!("{stem}ies"),
        (_, None) => format!("{what}s"),
    };
    format!("{number} {plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_use_the_one_unit_that_says_enough() {
        let shown = [0, 119, 120, 7_199, 7_200, 200_000].map(|s| roughly(Duration::from_secs(s)));
        assert_eq!(shown, ["0 s", "119 s", "2 m", "119 m", "2 h", "2 d"]);
        assert_eq!(took(Duration::from_millis(1_649)), "1.6 s");
    }

    #[test]
    fn moments_are_told_from_now() {
        let now = Timestamp(1_000_000);
        assert_eq!(from(now, now), "now");
        assert_eq!(from(now, Timestamp(1_300_000)), "in 5 m");
        assert_eq!(from(now, Timestamp(820_000)), "3 m ago");
    }

    #[test]
    fn counts_have_their_plural() {
        assert_eq!(count(1, "app"), "1 app");
        assert_eq!(count(0, "finding"), "0 findings");
        assert_eq!(count(2, "repository"), "2 repositories");
        assert_eq!(count(2, "overlay"), "2 overlays");
    }
}
