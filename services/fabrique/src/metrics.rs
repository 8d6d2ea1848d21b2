//! The process's metrics, recorded through the `metrics` facade and rendered as Prometheus text.

use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// How often what was observed is counted. Until then every observation is kept, and nobody may ever ask for them.
const UPKEEP: Duration = Duration::from_secs(5);

/// A handle on the installed recorder.
#[derive(Clone)]
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder, once per process, and keeps it small for as long as the runtime lives.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let handle = PrometheusBuilder::new().install_recorder().context("metrics")?;
        describe();
        tokio::spawn(keep_small(handle.clone()));
        Ok(Self(handle))
    }

    /// Everything, as Prometheus text.
    pub(crate) fn render(&self) -> String {
        self.0.run_upkeep();
        self.0.render()
    }
}

async fn keep_small(handle: PrometheusHandle) {
    let mut turns = tokio::time::interval(UPKEEP);
    loop {
        turns.tick().await;
        handle.run_upkeep();
    }
}

/// Describes the metrics of every role to the recorder.
fn describe() {
    fabrique_receiver::describe();
    fabrique_worker::describe();
    fabrique_reconciler::describe();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;
    use std::sync::Mutex;

    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit, with_local_recorder,
    };

    use super::*;

    /// Keeps the names of what is described.
    #[derive(Default)]
    struct Names(Mutex<BTreeSet<String>>);

    impl Names {
        fn add(&self, name: &KeyName) {
            self.0.lock().unwrap().insert(name.as_str().to_owned());
        }
    }

    impl Recorder for Names {
        fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
            self.add(&name);
        }
        fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
            self.add(&name);
        }
        fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
            self.add(&name);
        }
        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    fn described() -> BTreeSet<String> {
        let names = Names::default();
        with_local_recorder(&names, describe);
        names.0.into_inner().unwrap()
    }

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).unwrap()
    }

    /// Every word of a text that begins like a metric.
    fn words(text: &str) -> impl Iterator<Item = String> {
        text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'))
            .filter(|word| word.starts_with("fabrique_"))
            .map(str::to_owned)
    }

    /// The names of metrics in string literals below a folder of sources.
    fn literals(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                literals(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let recorded = text.contains("metrics::");
                found.extend(
                    text.split('"').filter(|literal| recorded && is_name(literal)).map(str::to_owned),
                );
            }
        }
    }

    fn is_name(literal: &str) -> bool {
        let word = literal.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        word && literal.strip_prefix("fabrique_").is_some_and(|rest| !rest.is_empty())
    }

    #[test]
    fn every_metric_that_is_recorded_is_described() {
        let mut recorded = BTreeSet::new();
        for service in ["receiver", "worker", "reconciler", "fabrique"] {
            literals(&root().join("services").join(service).join("src"), &mut recorded);
        }
        assert_eq!(recorded, described());
    }

    #[test]
    fn the_operators_guide_lists_every_metric_and_no_other() {
        let guide = fs::read_to_string(root().join("docs/operations.md")).unwrap();
        let rows = guide.lines().filter(|line| line.starts_with("| `fabrique_"));
        let listed: BTreeSet<String> = rows.filter_map(|row| row.split('|').nth(1)).flat_map(words).collect();
        assert_eq!(listed, described());
    }

    #[test]
    fn alerts_are_about_metrics_that_there_are() {
        let folder = root().join("k8s/components/servicemonitor");
        let rules = fs::read_to_string(folder.join("rules.yaml")).unwrap();
        let (named, described): (BTreeSet<String>, _) = (words(&rules).collect(), described());
        let unknown: Vec<&String> = named.difference(&described).collect();
        assert!(!named.is_empty() && unknown.is_empty(), "{unknown:?}");
    }
}
