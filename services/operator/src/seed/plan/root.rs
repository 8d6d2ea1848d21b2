//! What a plan makes of `root.yaml`.

use fabrique_core::id::RelPath;

use super::AppSeen;

/// What Argo CD has of `root.yaml`, which a person applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootSeen {
    /// It is not asked.
    Unasked,
    /// It has no root Application.
    Absent,
    /// It has another than the one in `cluster/apps`.
    Behind,
    /// It has another than the one that has to be in `cluster/apps`, which is not there either.
    NotRendered,
    /// It has the one in `cluster/apps`, which would be rendered otherwise now, and whether a person edited that.
    Outdated {
        /// Whether it says another digest than its own.
        edited: bool,
    },
    /// It has that, or one that says nothing of itself.
    There,
}

/// Why Argo CD would not deploy what `file` says, as far as that is up to `root.yaml`.
pub(super) fn unapplied(root: RootSeen, app: &AppSeen, file: &RelPath) -> Option<String> {
    let apply = "apply root.yaml of cluster/apps, as docs/app-of-apps.md says";
    let render =
        "`fabrique render --path .` in a checkout of cluster/apps writes it: commit and push that, then";
    match root {
        RootSeen::Unasked | RootSeen::There => None,
        RootSeen::Absent => {
            Some(format!("Argo CD has no root Application, so that nobody reads {file}; {apply}"))
        }
        RootSeen::Behind => Some(format!(
            "root.yaml changed since it was applied, and Argo CD deploys {file} within the projects that it has; {apply}"
        )),
        RootSeen::NotRendered => Some(format!(
            "root.yaml is not as rendered, and Argo CD deploys {file} within the projects that it has; {render} {apply}"
        )),
        RootSeen::Outdated { .. } if app.lacks.is_empty() => None,
        RootSeen::Outdated { edited } => {
            let lacks = app.lacks.join(", ");
            let remedy = if edited {
                "a person edited it: add that, and remove its first line, or `fabrique render --path .` overwrites it; \
                 commit and push that, then"
            } else {
                render
            };
            Some(format!("root.yaml lacks for {file}: {lacks}; {remedy} {apply}"))
        }
    }
}

/// What is told of a `root.yaml` that stands in nobody's way.
pub(super) fn outdated(root: RootSeen) -> Option<&'static str> {
    match root {
        RootSeen::Outdated { edited: true } => {
            Some("root.yaml is edited and lets it in; without its first line it is yours for good")
        }
        RootSeen::Outdated { edited: false } => {
            Some("root.yaml is to be rendered and applied again, though not for it")
        }
        RootSeen::Unasked | RootSeen::Absent | RootSeen::Behind | RootSeen::NotRendered | RootSeen::There => {
            None
        }
    }
}
