//! What was measured, as JSON for programs and as a table for people.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::stats::Spread;

/// Everything of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where it ran.
    pub machine: Machine,
    /// Measured rounds of each figure.
    pub rounds: u32,
    /// The figures, in the order in which they were taken.
    pub figures: Vec<Figure>,
}

/// The machine, in general words.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cores: usize,
    /// The load average of the last minute when the run ended: its own load included.
    pub load: Option<f64>,
}

impl Machine {
    /// This one, now.
    #[must_use]
    pub fn here() -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").ok();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            load: load.and_then(|text| text.split(' ').next()?.parse().ok()),
        }
    }
}

/// One figure: its arms side by side, and what they were to reach.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// What is measured.
    pub name: String,
    /// From when to when, and with what.
    pub method: String,
    /// The samples.
    pub series: Vec<Series>,
    /// The bounds.
    pub checks: Vec<Check>,
}

/// The samples of one arm, or of one part of it.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// The arm.
    pub name: String,
    /// `s`, `ms`, `/s`, `MB`.
    pub unit: &'static str,
    /// One for each round, in order.
    pub samples: Vec<f64>,
    /// Their spread.
    pub spread: Spread,
}

impl Series {
    /// The series of `samples`.
    #[must_use]
    pub fn new(name: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Self {
        Self { name: name.into(), unit, spread: Spread::of(&samples), samples }
    }
}

/// A bound, and how it was met.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// What is held against the bound: `fabrique / floor`.
    pub what: String,
    /// The values, pair by pair where it is a ratio.
    pub values: Vec<f64>,
    /// Their spread.
    pub spread: Spread,
    /// The bound in words: `median ≤ 1.15`.
    pub bound: String,
    /// Whether it was kept here. A miss on a noisy machine is a question, not a verdict.
    pub met: bool,
}

impl Check {
    /// The median must not be more than `bound`.
    #[must_use]
    pub fn at_most(what: impl Into<String>, values: Vec<f64>, bound: f64) -> Self {
        let spread = Spread::of(&values);
        Self {
            what: what.into(),
            values,
            spread,
            bound: format!("median ≤ {bound}"),
            met: spread.median <= bound,
        }
    }

    /// The median must not be less than `bound`.
    #[must_use]
    pub fn at_least(what: impl Into<String>, values: Vec<f64>, bound: f64) -> Self {
        let spread = Spread::of(&values);
        Self {
            what: what.into(),
            values,
            spread,
            bound: format!("median ≥ {bound}"),
            met: spread.median >= bound,
        }
    }

    /// Nine of ten values must be below one.
    #[must_use]
    pub fn mostly_below_one(what: impl Into<String>, values: Vec<f64>) -> Self {
        let below = values.iter().filter(|value| **value < 1.0).count();
        let (bound, met) =
            (format!("below 1 in 9 of 10: {below} of {}", values.len()), below * 10 >= values.len() * 9);
        Self { what: what.into(), spread: Spread::of(&values), values, bound, met: met && below > 0 }
    }
}

impl Report {
    /// Writes it as JSON, with every sample, into a folder that is made where it is missing.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        std::fs::write(file, json + "\n").with_context(|| format!("writing {}", file.display()))
    }

    /// Markdown tables, one after the other.
    #[must_use]
    pub fn table(&self) -> String {
        let Machine { cores, load } = &self.machine;
        let load = load.map_or_else(String::new, |load| format!(", load {load:.1} at the end"));
        let mut text = format!("{cores} cores{load}; {} rounds\n", self.rounds);
        for figure in &self.figures {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n### {}\n\n{}\n\n", figure.name, figure.method);
            let mut rows = vec![["", "min", "median", "max", "bound", "met"].map(str::to_owned)];
            for Series { name, unit, spread, .. } in &figure.series {
                rows.push(row(&format!("{name} ({unit})"), spread, "", ""));
            }
            for Check { what, spread, bound, met, .. } in &figure.checks {
                rows.push(row(what, spread, bound, if *met { "yes" } else { "NO" }));
            }
            text.push_str(&markdown(&rows));
        }
        text
    }
}

fn row(name: &str, spread: &Spread, bound: &str, met: &str) -> [String; 6] {
    let [min, median, max] = [spread.min, spread.median, spread.max].map(number);
    [name.to_owned(), min, median, max, bound.to_owned(), met.to_owned()]
}

/// Three digits that matter are all that such measurements carry.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        large if large >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn markdown(rows: &[[String; 6]]) -> String {
    let widths: Vec<usize> = (0..6)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default().max(3))
        .collect();
    let line = |cells: &[String]| {
        let cells: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        text.push_str(&line(row));
        if number == 0 {
            text.push_str(&line(&rule));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_held_against_the_median() {
        assert!(Check::at_most("a", vec![1.0, 1.1, 9.0], 1.15).met);
        assert!(!Check::at_most("a", vec![1.2], 1.15).met);
        assert!(Check::at_least("a", vec![0.1, 0.9, 0.9], 0.8).met);
        assert!(!Check::at_least("a", vec![f64::NAN], 0.8).met);
    }

    #[test]
    fn nine_wins_of_ten_are_enough_and_eight_are_not() {
        let pairs = |wins: usize| (0..10).map(|pair| if pair < wins { 0.9 } else { 1.1 }).collect();
        assert!(Check::mostly_below_one("a", pairs(9)).met);
        assert!(!Check::mostly_below_one("a", pairs(8)).met);
        assert!(!Check::mostly_below_one("a", Vec::new()).met);
    }

    #[test]
    fn a_table_shows_every_arm_and_whether_its_bound_was_met() {
        let figure = Figure {
            name: "Speed".to_owned(),
            method: "By watch.".to_owned(),
            series: vec![Series::new("fabrique", "s", vec![1.5, 1.25, 2.0])],
            checks: vec![Check::at_most("fabrique / floor", vec![1.2], 1.15)],
        };
        let report = Report { machine: Machine { cores: 2, load: None }, rounds: 3, figures: vec![figure] };
        let table = report.table();
        assert!(table.contains("| fabrique (s)     | 1.25 | 1.50   | 2.00 |"), "{table}");
        assert!(table.contains("| median ≤ 1.15 | NO  |"), "{table}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["figures"][0]["series"][0]["samples"][1], 1.25);
    }
}
