//! Near candidates for a name that was not found.

/// How many candidates a message shows.
pub(crate) const SHOWN: usize = 5;

/// At most [`SHOWN`] of `there`, most similar to `wanted` first, with a mark when some were left out.
pub(crate) fn nearest(wanted: &str, there: &[String]) -> Vec<String> {
    let mut ranked: Vec<(usize, &String)> = there.iter().map(|c| (distance(wanted, c), c)).collect();
    ranked.sort();
    ranked.dedup();
    let mut shown: Vec<String> = ranked
        .iter()
        .take(SHOWN)
        .map(|(_, c)| crate::escaped(&c.chars().take(120).collect::<String>()))
        .collect();
    if ranked.len() > SHOWN {
        shown.push("…".to_owned());
    }
    shown
}

/// The one of `known` that `wanted` was probably meant to be.
#[must_use]
pub fn did_you_mean<'k>(wanted: &str, known: &[&'k str]) -> Option<&'k str> {
    known
        .iter()
        .map(|k| (distance(&wanted.to_ascii_lowercase(), &k.to_ascii_lowercase()), *k))
        .filter(|(distance, k)| *distance <= 2.max(k.len() / 3))
        .min()
        .map(|(_, k)| k)
}

/// Distances of long texts cost time in the square of their length and say nothing.
fn distance(a: &str, b: &str) -> usize {
    const LONGEST: usize = 256;
    if a.len() > LONGEST || b.len() > LONGEST { LONGEST } else { strsim::damerau_levenshtein(a, b) }
}
