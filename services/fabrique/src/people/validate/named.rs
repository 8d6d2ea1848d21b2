//! The files that the configuration names, read and checked as the worker that uses them does.

use std::fs;
use std::path::Path;

use fabrique_kubernetes::config::Settings;
use fabrique_kubernetes::network::AllowList;
use fabrique_operator::validate::Finding;
use serde::de::DeserializeOwned;

use super::{not_read, whole_file};
use crate::config::Config;

/// Everything that is wrong with them.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(file) = &config.kubernetes.builders_file {
        findings.extend(check(file, "kubernetes.builders_file", Settings::validate));
    }
    if let Some(file) = &config.buildkit.allow_list_file {
        findings.extend(check(file, "buildkit.allow_list_file", AllowList::validate));
    }
    findings
}

fn check<T: DeserializeOwned>(
    file: &Path,
    key: &str,
    judge: impl Fn(&T) -> Vec<fabrique_kubernetes::Finding>,
) -> Vec<Finding> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            let remedy = format!("put the file there, or correct {key}");
            return vec![whole_file(file, format!("cannot be read: {error}"), remedy)];
        }
    };
    let remedy = format!("correct the file of {key}; docs/kubernetes.md has its keys");
    match serde_saphyr::from_str::<T>(&text) {
        Ok(value) => {
            let told = judge(&value).into_iter();
            told.map(|finding| whole_file(file, finding.to_string(), remedy.clone())).collect()
        }
        Err(error) => vec![not_read(file, &error, remedy)],
    }
}
