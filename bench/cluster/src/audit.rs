//! What the worker asked of the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

const WORKER: &str = "system:serviceaccount:fabrique:worker";

/// The audit log from a moment on.
pub(crate) struct Audit {
    file: PathBuf,
    from: u64,
}

impl Audit {
    /// From now on.
    pub(crate) fn begin(file: &Path) -> Result<Self> {
        let from = std::fs::metadata(file).context("no audit log")?.len();
        Ok(Self { file: file.to_owned(), from })
    }

    /// The worker's requests since, by what they asked for.
    pub(crate) fn requests(&self) -> Result<BTreeMap<String, usize>> {
        let mut file = std::fs::File::open(&self.file).context("no audit log")?;
        file.seek(SeekFrom::Start(self.from))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok(count(&text))
    }
}

/// A request is told more than once while it goes on.
fn count(log: &str) -> BTreeMap<String, usize> {
    let mut seen = BTreeSet::new();
    let mut requests = BTreeMap::new();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    for event in events.filter(|event| event["user"]["username"] == WORKER) {
        if seen.insert(event["auditID"].as_str().unwrap_or_default().to_owned()) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let what = format!("{} {}", text(&event["verb"]), text(&event["objectRef"]["resource"]));
            *requests.entry(what).or_default() += 1;
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_once_and_only_the_workers_do() {
        let event = |id: &str, user: &str, verb: &str| {
            format!(
                r#"{{"auditID":"{id}","stage":"x","verb":"{verb}","user":{{"username":"{user}"}},"objectRef":{{"resource":"pods"}}}}"#
            )
        };
        let log = [
            event("1", WORKER, "watch"),
            event("1", WORKER, "watch"),
            event("2", WORKER, "patch"),
            event("3", "admin", "patch"),
        ];
        let expected = BTreeMap::from([("watch pods".to_owned(), 1), ("patch pods".to_owned(), 1)]);
        assert_eq!(count(&log.join("\n")), expected);
    }
}
