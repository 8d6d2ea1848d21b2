//! The benchmarks run on the cluster, with as little of everything as possible. Whether a bound was met is not
//! looked at.

use std::path::Path;
use std::process::Command;

use clap::Parser as _;
use fabrique_bench_cluster::Options;
use serde_json::Value;

#[test]
fn every_sample_is_written_as_json_unless_somebody_wants_it_elsewhere() {
    assert_eq!(Options::parse_from(["bench"]).json, Path::new("target/bench-cluster.json"));
}

#[test]
#[ignore = "minutes, a cluster, and the fabrique binary of the same build: `cargo build -p fabrique` first"]
fn one_round_of_every_figure_prints_valid_json() {
    let bench = env!("CARGO_BIN_EXE_fabrique-bench-cluster");
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cluster.json");
    let arguments = ["--rounds", "1", "--apps", "3", "--pushes", "2", "--wakes", "8", "--json"];

    let output = Command::new(bench).args(arguments).arg(&json).output().unwrap();

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 5, "{report:#}");
    for figure in figures {
        for series in figure["series"].as_array().unwrap() {
            let samples = series["samples"].as_array().unwrap();
            assert!(!samples.is_empty() && samples.iter().all(Value::is_number), "{figure:#}");
        }
        let checks = figure["checks"].as_array().unwrap();
        assert!(!checks.is_empty() && checks.iter().all(|check| check["met"].is_boolean()), "{figure:#}");
    }
}
