//! Attempts and their output.

use fabrique_core::id::{AppName, BuildId};
use fabrique_core::time::Timestamp;
use fabrique_ports::PortResult;
use fabrique_ports::bus::Event;
use fabrique_ports::records::BuildEntry;
use futures::stream::BoxStream;

use crate::error::OperatorError;
use crate::operator::Operator;

/// The most builds that are listed at once.
const MOST: usize = 1000;

impl Operator {
    /// The newest builds, newest first, of one app or of all; at most 1000. An app that is not registered any
    /// more still has its builds.
    ///
    /// # Errors
    /// When the name cannot be an app's, or the history cannot be read.
    pub async fn builds(&self, app: Option<&str>, limit: usize) -> Result<Vec<BuildEntry>, OperatorError> {
        let app = app.map(app_name).transpose()?;
        Ok(self.ports.history.builds(app.as_ref(), limit.clamp(1, MOST)).await?)
    }

    /// One build.
    ///
    /// # Errors
    /// [`OperatorError::UnknownBuild`], or when the history cannot be read.
    pub async fn build(&self, build: &str) -> Result<BuildEntry, OperatorError> {
        let unknown = || OperatorError::UnknownBuild(build.escape_debug().to_string());
        let id = BuildId::parse(build).map_err(|_| unknown())?;
        self.ports.history.build(&id).await?.ok_or_else(unknown)
    }

    /// The output of a build from its beginning; with `follow`, on until the build ends.
    ///
    /// # Errors
    /// As for [`Operator::build`].
    pub async fn logs(
        &self,
        build: &str,
        follow: bool,
    ) -> Result<BoxStream<'static, PortResult<String>>, OperatorError> {
        let entry = self.build(build).await?;
        // A build that ended before its log was closed would be followed for ever.
        let follow = follow && !entry.phase.is_final();
        Ok(self.ports.logs.read_log(&entry.build, follow).await?)
    }

    /// The events of one app or of all: those since a time, then as they come. [`crate::tail::line`] makes
    /// them readable.
    ///
    /// # Errors
    /// When the name cannot be an app's, or the bus cannot be read.
    pub async fn tail(
        &self,
        app: Option<&str>,
        since: Option<Timestamp>,
    ) -> Result<BoxStream<'static, PortResult<Event>>, OperatorError> {
        let app = app.map(app_name).transpose()?;
        Ok(self.ports.events.tail(app.as_ref(), since).await?)
    }
}

fn app_name(name: &str) -> Result<AppName, OperatorError> {
    AppName::parse(name).map_err(|invalid| OperatorError::UnknownApp {
        name: name.escape_debug().to_string(),
        hint: invalid.to_string(),
    })
}
