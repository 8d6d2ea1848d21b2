//! Which revision the checks on GitHub vouch for.

use fabrique_core::app::App;
use fabrique_core::id::Revision;
use fabrique_core::relation::Relation;
use fabrique_core::upstream::{UpstreamState, Vouched, vouched};
use fabrique_ports::PortResult;

use crate::compare::Comparison;
use crate::gather::Observer;

/// What the checks on GitHub say of what is to be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Checks {
    /// The target passed them, or none are asked for.
    Passed,
    /// The target passed them, and is older than the head, which did not, for this reason.
    Older(String),
    /// Nothing that could be built passed them, for this reason.
    Missing(String),
}

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

    /// The revision to build where `wanted` is: itself, or without a pin the newest ancestor of it that passed the
    /// checks. GitHub is not asked.
    pub(crate) async fn checked(
        &self,
        app: &App,
        wanted: Revision,
        is_pinned: bool,
    ) -> PortResult<(Revision, Checks)> {
        if app.source.upstream.as_ref().is_none_or(|upstream| upstream.checks.is_empty()) {
            return Ok((wanted, Checks::Passed));
        }
        let state = self.upstream(app).await?;
        let (older, why) = match vouched(&app.source, state.as_ref(), &wanted) {
            Vouched::Itself => return Ok((wanted, Checks::Passed)),
            Vouched::Older(older, why) => (older, why),
        };
        if is_pinned {
            return Ok((wanted, Checks::Missing(why)));
        }
        let comparison = Comparison::new(self.source.as_ref(), &app.source.repo, &self.known);
        for passed in older {
            // The mirror may not have it yet, or not any more.
            if comparison.relation(&passed, &wanted).await? == Relation::Ahead {
                return Ok((passed, Checks::Older(why)));
            }
        }
        Ok((wanted, Checks::Missing(why)))
    }
}
