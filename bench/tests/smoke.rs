//! The benchmarks run, with as little of everything as possible. Whether a bound was met is not looked at.

use std::path::Path;
use std::process::Command;

use clap::Parser as _;
use fabrique_bench::Options;
use fabrique_bench::report::{Machine, Report};
use serde_json::Value;

#[test]
fn every_sample_is_written_as_json_unless_somebody_wants_it_elsewhere() {
    assert_eq!(Options::parse_from(["bench"]).json, Path::new("target/bench.json"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("made");
    drop(std::fs::remove_dir_all(&folder));
    let file = folder.join("bench.json");
    let report = Report { machine: Machine { cores: 2, load: None }, rounds: 3, figures: Vec::new() };
    report.write(&file).unwrap();
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(written["rounds"], 3);
}

#[test]
#[ignore = "half a minute, and it needs the fabrique binary of the same build: `cargo build -p fabrique` first"]
fn one_round_of_every_figure_prints_valid_json() {
    let bench = env!("CARGO_BIN_EXE_fabrique-bench");
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("smoke.json");
    let arguments = ["--rounds", "1", "--apps", "12", "--declared", "12", "--deliveries", "24", "--json"];

    let output = Command::new(bench).args(arguments).arg(&json).output().unwrap();

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 7, "{report:#}");
    for figure in figures {
        for series in figure["series"].as_array().unwrap() {
            let samples = series["samples"].as_array().unwrap();
            assert!(!samples.is_empty() && samples.iter().all(Value::is_number), "{figure:#}");
        }
        let checks = figure["checks"].as_array().unwrap();
        assert!(!checks.is_empty() && checks.iter().all(|check| check["met"].is_boolean()), "{figure:#}");
    }
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("| fabrique / floor"), "{table}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains(&format!("every sample is in {}", json.display())), "{told}");
}
