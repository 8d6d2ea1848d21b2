//! What a commit changes, inside what it may change.

use std::collections::BTreeMap;

use bytes::Bytes;
use fabrique_core::id::{AppName, EnvironmentName, RelPath};
use fabrique_yaml::escaped;

use crate::refusal::Refusal;
use crate::render::Kind;
use crate::tree::Tree;

/// The only places a change may touch: least privilege, whatever the caller computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// `apps/<app>/<environment>/…`
    Environment(AppName, EnvironmentName),
    /// `apps/<app>/…`
    App(AppName),
    /// `applications/<name>.yaml`: the generated Argo CD Applications.
    Applications,
    /// `root.yaml`: the root Application and the projects, which a person applies.
    Root,
    /// `migrations/<environment>/<app>/migrations.yaml`: what is run before a sync.
    Migrations,
    /// `<kind>/<environment>/<name>.yaml`: what the cluster provides to apps.
    Provided,
}

impl Scope {
    fn allows(&self, path: &RelPath) -> bool {
        let text = path.as_str();
        let below = |directory: String| text.strip_prefix(&directory).is_some_and(|rest| !rest.is_empty());
        match self {
            Scope::Environment(app, environment) => below(format!("apps/{app}/{environment}/")),
            Scope::App(app) => below(format!("apps/{app}/")),
            Scope::Applications => text
                .strip_prefix("applications/")
                .and_then(|name| name.strip_suffix(".yaml"))
                .is_some_and(|name| !name.is_empty() && !name.contains('/')),
            Scope::Root => text == "root.yaml",
            Scope::Migrations => {
                let parts: Vec<&str> = text.split('/').collect();
                matches!(parts[..], ["migrations", _, _, "migrations.yaml"])
            }
            Scope::Provided => {
                let parts: Vec<&str> = text.split('/').collect();
                let kinds = Kind::ALL.map(Kind::folder);
                matches!(parts[..], [kind, _, name] if kinds.contains(&kind) && name.ends_with(".yaml"))
            }
        }
    }
}

/// Files to write and files to remove, all inside a [`Scope`].
///
/// Contents only: a new file is a regular one, a replaced file keeps its mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    scopes: Vec<Scope>,
    files: BTreeMap<RelPath, Option<Bytes>>,
}

impl Changes {
    /// No change yet, inside `scope`.
    #[must_use]
    pub fn within(scope: Scope) -> Self {
        Self { scopes: vec![scope], files: BTreeMap::new() }
    }

    /// Permits another scope beside those there are.
    pub(crate) fn also_within(&mut self, scope: Scope) {
        self.scopes.push(scope);
    }

    /// Writes a file.
    ///
    /// # Errors
    /// [`Refusal::PathRefused`] when the path is outside the scope or has a segment that begins with `.git`.
    pub fn write(&mut self, path: RelPath, content: impl Into<Bytes>) -> Result<(), Refusal> {
        self.check(&path)?;
        self.files.insert(path, Some(content.into()));
        Ok(())
    }

    /// Removes a file.
    ///
    /// # Errors
    /// As [`Changes::write`].
    pub fn remove(&mut self, path: RelPath) -> Result<(), Refusal> {
        self.check(&path)?;
        self.files.insert(path, None);
        Ok(())
    }

    /// The changes in order of path: content, or nothing for a removal.
    pub fn iter(&self) -> impl Iterator<Item = (&RelPath, Option<&Bytes>)> {
        self.files.iter().map(|(path, content)| (path, content.as_ref()))
    }

    /// How many files change.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Forgets every change that leaves `tree` as it is, so that "empty" means "no commit".
    pub(crate) fn drop_unchanged(&mut self, tree: &Tree) {
        self.files.retain(|path, change| tree.content(path) != change.as_ref());
    }

    fn check(&self, path: &RelPath) -> Result<(), Refusal> {
        if !self.scopes.iter().any(|scope| scope.allows(path)) {
            return Err(refused(path, "outside of what this change may write"));
        }
        // Git itself refuses these; refusing here gives the reason and the name before a push.
        if path.as_str().split('/').any(|segment| segment.to_ascii_lowercase().starts_with(".git")) {
            return Err(refused(path, "names that begin with .git are not written"));
        }
        Ok(())
    }
}

fn refused(path: &RelPath, why: &str) -> Refusal {
    Refusal::PathRefused { path: escaped(path.as_str()), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes(scope: &Scope, path: &str) -> bool {
        let Ok(path) = RelPath::parse(path) else { return false };
        Changes::within(scope.clone()).write(path, "x").is_ok()
    }

    #[test]
    fn invariant_15_only_paths_on_the_allow_list_are_written() {
        let (app, prod) = (AppName::parse("a").unwrap(), EnvironmentName::parse("prod").unwrap());
        let environment = Scope::Environment(app.clone(), prod);
        assert!(writes(&environment, "apps/a/prod/composition.yaml"));
        assert!(writes(&environment, "apps/a/prod/sub/x.yaml"));
        for outside in [
            "apps/a/app.yaml",
            "apps/a/prod",
            "apps/a/prod-eu/x.yaml",
            "apps/b/prod/x.yaml",
            "apps/a/prod/../../b/app.yaml",
            "apps/a/prod/.git/config",
            "apps/a/prod/.GitModules",
            "applications/a-prod.yaml",
            "root.yaml",
            "contract.yaml",
        ] {
            assert!(!writes(&environment, outside), "{outside}");
        }
        assert!(writes(&Scope::App(app.clone()), "apps/a/app.yaml"));
        assert!(!writes(&Scope::App(app), "apps/ab/app.yaml"));
        assert!(writes(&Scope::Applications, "applications/a-prod.yaml"));
        assert!(!writes(&Scope::Applications, "applications/x/a.yaml"));
        assert!(!writes(&Scope::Applications, "apps/a/app.yaml"));
        assert!(writes(&Scope::Migrations, "migrations/prod/a/migrations.yaml"));
        for outside in ["migrations/prod/a.yaml", "migrations/prod/a/x.yaml", "others/prod/a/migrations.yaml"]
        {
            assert!(!writes(&Scope::Migrations, outside), "{outside}");
        }
        assert!(writes(&Scope::Provided, "buckets/prod/atlas-datalake.yaml"));
        for outside in ["buckets/a.yaml", "buckets/prod/x/a.yaml", "others/prod/a.yaml", "volumes/prod/a"] {
            assert!(!writes(&Scope::Provided, outside), "{outside}");
        }
    }
}
