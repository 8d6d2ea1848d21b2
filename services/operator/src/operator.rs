//! What the use cases are given.

use std::sync::Arc;
use std::time::Duration;

use fabrique_core::app::App;
use fabrique_core::time::Timestamp;
use fabrique_observer::{Apps, AppsReader, Observer};
use fabrique_ports::bus::{Board, Commands, Events};
use fabrique_ports::records::{BuildHistory, Logs, Memories, Records};
use fabrique_ports::registry::Registry;

use crate::error::OperatorError;
use crate::{lookup, mirror};

/// The world, as far as a person at the command line looks at it.
#[derive(Clone)]
pub struct Ports {
    /// Who works on what.
    pub board: Arc<dyn Board>,
    /// What each app remembers.
    pub memories: Arc<dyn Memories>,
    /// Build key to digest.
    pub records: Arc<dyn Records>,
    /// The image registry.
    pub registry: Arc<dyn Registry>,
    /// Attempts.
    pub history: Arc<dyn BuildHistory>,
    /// Build output.
    pub logs: Arc<dyn Logs>,
    /// What happened.
    pub events: Arc<dyn Events>,
    /// Asking workers.
    pub commands: Arc<dyn Commands>,
}

/// The use cases that look at apps and ask for something to be done about them.
pub struct Operator {
    pub(crate) ports: Ports,
    pub(crate) observer: Observer,
    pub(crate) apps: Arc<AppsReader>,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// What is known of GitHub is news for as long.
    pub(crate) fresh_for: Duration,
}

impl Operator {
    /// Use cases over these ports; `clock` is the wall clock.
    pub fn new(
        ports: Ports,
        observer: Observer,
        apps: Arc<AppsReader>,
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        Self { ports, observer, apps, clock: Arc::new(clock), fresh_for: mirror::FRESH_FOR }
    }

    /// The same, where what is known of GitHub is news for `fresh_for`.
    #[must_use]
    pub fn fresh_for(self, fresh_for: Duration) -> Self {
        Self { fresh_for, ..self }
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The registered app called `name`.
    ///
    /// # Errors
    /// [`OperatorError::UnknownApp`] with near names; when `cluster/apps` cannot be read.
    pub async fn app(&self, name: &str) -> Result<App, OperatorError> {
        Ok(self.find(name).await?.1)
    }

    /// The registered app called `name`, with the state of `cluster/apps` it was found in.
    pub(crate) async fn find(&self, name: &str) -> Result<(Arc<Apps>, App), OperatorError> {
        let apps = self.apps.read().await?;
        let app = lookup::app(&apps.registrations, name)?.clone();
        Ok((apps, app))
    }
}
