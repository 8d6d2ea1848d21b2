//! Asking a worker to do something about an app.

use fabrique_core::id::AppName;
use fabrique_ports::bus::{Command, Request};
use serde::Serialize;

use crate::error::OperatorError;
use crate::exit::Exit;
use crate::lookup;
use crate::operator::Operator;

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The app.
    pub app: AppName,
    /// The verb.
    pub verb: String,
    /// Whether it was carried out.
    pub done: bool,
    /// What came of it, or why not.
    pub message: String,
}

impl Outcome {
    /// How the process ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        Exit::ok_if(self.done)
    }
}

impl Operator {
    /// Sends a command about `app` in the name of `caller` and waits for a worker's answer.
    ///
    /// # Errors
    /// [`OperatorError::UnknownApp`]; [`OperatorError::WrongRegistration`], but for a cancellation; when `cluster/apps` or the bus cannot be reached, or no worker answers
    /// in time.
    pub async fn command(&self, app: &str, command: Command, caller: &str) -> Result<Outcome, OperatorError> {
        let apps = self.apps.read().await?;
        let app = lookup::of_command(&apps.registrations, app, &command)?;
        let verb = command.verb().to_owned();
        let request = Request { app, command, caller: caller.to_owned() };
        let reply = self.ports.commands.send(&request).await?;
        Ok(Outcome { app: request.app, verb, done: reply.done, message: reply.message })
    }
}
