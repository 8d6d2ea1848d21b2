//! What an environment says about its Argo CD Application: `application:` of `spec.environments`.

use std::collections::BTreeMap;

use fabrique_core::app::{Environment, InfraFrom};
use fabrique_core::id::EnvironmentName;
use fabrique_yaml::{Node, Reader};

/// What an Application reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SourceForm {
    /// The filled copy in `cluster/apps`.
    #[default]
    Copy,
    /// The overlay in the app's own repository at the deployed revision; Argo CD puts the deployed image in.
    Repository,
}

impl SourceForm {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            SourceForm::Copy => "copy",
            SourceForm::Repository => "repository",
        }
    }

    /// The form of that name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [SourceForm::Copy, SourceForm::Repository].into_iter().find(|form| form.as_str() == text)
    }
}

/// What an environment chooses otherwise than the installation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// The namespace it is deployed into.
    pub namespace: Option<String>,
    /// What its Application reads.
    pub source: Option<SourceForm>,
}

/// The choices of an app's environments, which are read already; those without one are not in it.
pub(super) fn read(
    reader: &Reader<'_>,
    node: &Node,
    environments: &[Environment],
) -> BTreeMap<EnvironmentName, Choice> {
    let chosen = node.items().iter().zip(environments).filter_map(|(item, environment)| {
        let (_, application) = item.entry("application")?;
        Some((environment.name.clone(), read_one(reader, application, environment)?))
    });
    chosen.collect()
}

fn read_one(reader: &Reader<'_>, node: &Node, environment: &Environment) -> Option<Choice> {
    let fields = reader.mapping(node, "application", &["namespace", "source"])?;
    let namespace = match fields.get("namespace") {
        Some(node) => Some(reader.line(node, "application.namespace", 63)?),
        None => None,
    };
    let source = match fields.get("source") {
        Some(node) => {
            let text = reader.text(node, "application.source")?;
            let Some(form) = SourceForm::parse(text) else {
                let what = format!("application.source is {text:?}");
                reader.report(node, what, "write one of copy, repository");
                return None;
            };
            if form == SourceForm::Repository && matches!(environment.infra, InfraFrom::Files) {
                let what = "application.source is repository, and nothing is read from one";
                reader.report(node, what, "declare infra: { from: head, repo, path }, or write copy");
            }
            Some(form)
        }
        None => None,
    };
    Some(Choice { namespace, source })
}
