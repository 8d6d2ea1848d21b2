//! Apps that automation gave up on, or that only a person can move on.

use fabrique_core::id::{AppName, EnvironmentName};
use serde::Serialize;

use crate::error::OperatorError;
use crate::operator::Operator;
use crate::status::{AppStatus, EnvironmentStatus, FailureStatus};

/// An app that is stuck.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    /// The app.
    pub app: AppName,
    /// How.
    #[serde(flatten)]
    pub stuck: Stuck,
    /// What to do next.
    pub remedy: String,
}

/// How an app is stuck.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "stuck", rename_all = "kebab-case")]
pub enum Stuck {
    /// Its attempts are used up; each sweep tries again, at most hourly.
    Dead {
        /// The last attempt.
        failure: FailureStatus,
    },
    /// Nothing may be written to one of its environments.
    Trouble {
        /// Which.
        environment: EnvironmentName,
        /// Why.
        why: String,
    },
}

impl Operator {
    /// Every app that is stuck, by name. `retry` replays a dead letter.
    ///
    /// # Errors
    /// As for [`Operator::status`].
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetter>, OperatorError> {
        Ok(self.status().await?.apps.iter().flat_map(stuck).collect())
    }

    /// How one app is stuck; nothing when it is not.
    ///
    /// # Errors
    /// As for [`Operator::why`].
    pub async fn dead_letter(&self, app: &str) -> Result<Vec<DeadLetter>, OperatorError> {
        Ok(stuck(&self.why(app).await?.status))
    }
}

fn stuck(status: &AppStatus) -> Vec<DeadLetter> {
    let app = &status.app;
    let dead = status.failures().filter(|failure| failure.dead).map(|failure| DeadLetter {
        app: app.clone(),
        stuck: Stuck::Dead { failure: failure.clone() },
        remedy: format!("remove the cause, then `fabrique dlq replay {app}`"),
    });
    let trouble = |environment: &EnvironmentStatus| {
        let why = environment.trouble.clone()?;
        let remedy = status.way_out(&why);
        let stuck = Stuck::Trouble { environment: environment.environment.clone(), why };
        Some(DeadLetter { app: app.clone(), stuck, remedy })
    };
    dead.chain(status.environments.iter().filter_map(trouble)).collect()
}
