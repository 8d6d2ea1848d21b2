//! One pure function per automatic commit.
//!
//! Each looks at a tree and answers with a commit to make, with nothing (there is no difference, so there
//! is no commit), or with a [`Refusal`]. Planning again after a plan was applied gives nothing. Whether a
//! commit is wanted was decided before; what is checked here is what only the tree can tell, and it is
//! checked on the very tree that the commit is made on.

mod follow;
mod hold;
mod image;
mod infra;
mod repair;

use std::collections::BTreeMap;

use fabrique_core::app::{App, Composition, Environment};
use fabrique_core::id::{Channel, EnvironmentName, RelPath};
use fabrique_core::time::Timestamp;

use crate::changes::{Changes, Scope};
use crate::message::{CommitMessage, Trailers};
use crate::refusal::Refusal;
use crate::tree::Tree;
use crate::{binding, composition, layout};

pub use follow::{Lag, follow, follow_with_nothing, lag};
pub use hold::{ends, in_force, release_hold, set_hold};
pub use image::{deploy_image, roll_back};
pub use infra::{advance_infra, fits};
pub use repair::repair;

/// One commit to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// What changes; never empty.
    pub changes: Changes,
    /// The message.
    pub message: CommitMessage,
}

/// A commit, nothing to do, or why not.
pub type Plan = Result<Option<Planned>, Refusal>;

/// One environment of one app on one tree.
struct Site<'a> {
    tree: &'a Tree,
    app: &'a App,
    environment: &'a Environment,
    directory: RelPath,
    before: Composition,
}

impl<'a> Site<'a> {
    fn open(tree: &'a Tree, app: &'a App, name: &EnvironmentName) -> Result<Self, Refusal> {
        let Some(environment) = app.environments.iter().find(|e| e.name == *name) else {
            return Err(Refusal::NoEnvironment { app: app.name.clone(), environment: name.clone() });
        };
        let before =
            composition::load(tree, app, name)?.unwrap_or_else(|| composition::empty(&app.name, name));
        Ok(Self { tree, app, environment, directory: layout::directory_of(&app.name, name), before })
    }

    fn awaits_overlay(&self) -> bool {
        binding::awaits_overlay(self.tree, self.app, self.environment, &self.before)
    }

    fn changes(&self) -> Changes {
        Changes::within(Scope::Environment(self.app.name.clone(), self.environment.name.clone()))
    }

    /// The files that `changes` put beside the composition, by their path from there.
    fn copy<'c>(&self, changes: &'c Changes) -> BTreeMap<RelPath, &'c [u8]> {
        let below = format!("{}/", self.directory);
        let written = changes.iter().filter_map(|(path, content)| Some((path, content?)));
        written
            .filter_map(|(path, content)| {
                let inside = RelPath::parse(path.as_str().strip_prefix(&below)?).ok()?;
                Some((inside, &content[..]))
            })
            .collect()
    }

    fn trailers(&self) -> Trailers {
        Trailers { environment: Some(self.environment.name.clone()), ..Trailers::of(&self.app.name) }
    }

    fn refuse_held(&self, channel: Channel, now: Timestamp) -> Result<(), Refusal> {
        let hold = match channel {
            Channel::Image => &self.before.image.hold,
            Channel::Infra => &self.before.infra.hold,
        };
        match hold {
            Some(hold) if in_force(hold, now) => Err(Refusal::Held {
                app: self.app.name.clone(),
                environment: self.environment.name.clone(),
                channel,
                by: hold.by.clone(),
                reason: hold.reason.clone(),
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// The bindings that do not show `composition` in `tree`.
    fn drift(&self, tree: &Tree, composition: &Composition) -> Result<Vec<binding::Drift>, Refusal> {
        let bindings = binding::all(tree, self.app, self.environment)?;
        binding::between(tree, &self.directory, &bindings, composition)
    }

    fn refuse_drift(&self, drifts: Vec<binding::Drift>) -> Result<(), Refusal> {
        if drifts.is_empty() {
            return Ok(());
        }
        let (app, environment) = (self.app.name.clone(), self.environment.name.clone());
        Err(Refusal::Drift { app, environment, drifts })
    }

    fn not_yet(&self, what: &str, remedy: &str) -> Refusal {
        Refusal::NotYet {
            app: self.app.name.clone(),
            environment: self.environment.name.clone(),
            what: what.to_owned(),
            remedy: remedy.to_owned(),
        }
    }

    /// Adds the composition `after` to `changes`.
    fn write_composition(&self, changes: &mut Changes, after: &Composition) -> Result<(), Refusal> {
        let path = layout::composition_of(&self.app.name, &self.environment.name);
        let content = match self.tree.read(&path)? {
            Some(bytes) => composition::edit(&path, bytes, after)?,
            None => composition::render(after).into_bytes(),
        };
        changes.write(path, content)
    }

    /// Adds the files in which `bindings` of `channel` (of both when absent) show `after`.
    fn write_bindings(
        &self,
        changes: &mut Changes,
        after: &Composition,
        channel: Option<Channel>,
    ) -> Result<(), Refusal> {
        let bindings = binding::all(self.tree, self.app, self.environment)?;
        let wanted = bindings.iter().filter(|b| channel.is_none_or(|c| b.channel == c));
        for (path, content) in binding::fill(wanted, &self.directory, after, self.tree)? {
            changes.write(path, content)?;
        }
        Ok(())
    }

    /// The commit, if anything changes. Its tree is checked once more: at every commit all bindings of the
    /// environment agree with its composition.
    fn finish(&self, mut changes: Changes, after: &Composition, message: CommitMessage) -> Plan {
        changes.drop_unchanged(self.tree);
        if changes.is_empty() {
            return Ok(None);
        }
        let tree = self.tree.apply(&changes)?;
        if !binding::awaits_overlay(&tree, self.app, self.environment, after) {
            self.refuse_drift(self.drift(&tree, after)?)?;
        }
        Ok(Some(Planned { changes, message }))
    }
}

#[cfg(test)]
mod tests;
