//! The little statistics that the figures need.

use std::time::Instant;

use serde::Serialize;

/// The least, the middle and the largest of some samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The middle one; of an even number, the mean of the two.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of `samples`; all NaN when there are none.
    #[must_use]
    pub fn of(samples: &[f64]) -> Self {
        let sorted = sorted(samples);
        let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else {
            return Self { min: f64::NAN, median: f64::NAN, max: f64::NAN };
        };
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Self { min: *min, median, max: *max }
    }
}

/// The sample below which `percent` of a hundred lie, by nearest rank; NaN when there are none.
#[must_use]
pub fn percentile(samples: &[f64], percent: usize) -> f64 {
    let sorted = sorted(samples);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

/// Pair by pair, how many times `other` one is.
#[must_use]
pub fn ratios(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| one / other).collect()
}

/// The order of a round's arms: forwards and backwards in turn, so that no arm always follows the same other.
#[must_use]
pub fn alternate<T: Copy>(arms: &[T], round: u32) -> Vec<T> {
    let mut order = arms.to_vec();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// The seconds between two moments. Signed: a webhook may overtake the end of the push that it tells of.
#[must_use]
pub fn seconds(from: Instant, to: Instant) -> f64 {
    match to.checked_duration_since(from) {
        Some(after) => after.as_secs_f64(),
        None => -from.duration_since(to).as_secs_f64(),
    }
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]), Spread { min: 1.0, median: 2.5, max: 4.0 });
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]).median, 2.0);
        assert!(Spread::of(&[]).median.is_nan());
    }

    #[test]
    fn a_percentile_is_a_sample() {
        let samples: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&samples, 99), 198.0);
        assert_eq!(percentile(&samples, 100), 200.0);
        assert_eq!(percentile(&[7.0], 1), 7.0);
        assert!(percentile(&[], 99).is_nan());
    }

    #[test]
    fn rounds_go_forwards_and_backwards() {
        assert_eq!(alternate(&['a', 'b', 'c'], 0), ['a', 'b', 'c']);
        assert_eq!(alternate(&['a', 'b', 'c'], 1), ['c', 'b', 'a']);
    }

    #[test]
    fn pairs_are_compared_within_their_round() {
        assert_eq!(ratios(&[2.0, 9.0], &[1.0, 3.0]), [2.0, 3.0]);
    }

    #[test]
    fn what_comes_first_is_negative() {
        let now = Instant::now();
        let later = now + Duration::from_millis(500);
        assert_eq!(seconds(now, later), 0.5);
        assert_eq!(seconds(later, now), -0.5);
    }
}
