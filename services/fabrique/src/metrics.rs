//! The process's metrics, recorded through the `metrics` facade and rendered as Prometheus text.

use anyhow::Context;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// A handle on the installed recorder.
#[derive(Clone)]
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder, once per process.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let handle = PrometheusBuilder::new().install_recorder().context("metrics")?;
        fabrique_receiver::describe();
        Ok(Self(handle))
    }

    /// Everything, as Prometheus text.
    pub(crate) fn render(&self) -> String {
        self.0.run_upkeep();
        self.0.render()
    }
}
