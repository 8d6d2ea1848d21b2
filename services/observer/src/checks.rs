//! Whether the checks on GitHub vouch for a revision.

use fabrique_core::app::App;
use fabrique_core::id::Revision;
use fabrique_core::upstream::{UpstreamState, unproven};
use fabrique_ports::PortResult;

use crate::gather::Observer;

impl Observer {
    /// What is known of the app's source on GitHub; nothing where it is not from there, or was never asked about.
    ///
    /// # Errors
    /// When the bus does not answer.
    pub async fn upstream(&self, app: &App) -> PortResult<Option<UpstreamState>> {
        match (&app.source.upstream, &self.upstreams) {
            (Some(_), Some(upstreams)) => upstreams.upstream(&app.name).await,
            (None, _) | (_, None) => Ok(None),
        }
    }

    /// Why `target` may not be built yet; nothing where it passed, or no checks are asked for. GitHub is not asked.
    pub(crate) async fn unproven(&self, app: &App, target: &Revision) -> PortResult<Option<String>> {
        if app.source.upstream.as_ref().is_none_or(|upstream| upstream.checks.is_empty()) {
            return Ok(None);
        }
        let state = self.upstream(app).await?;
        Ok(unproven(&app.source, state.as_ref(), target))
    }
}
