//! What Argo CD has of `root.yaml`, which nobody but a person applies.

use fabrique_core::app::App;
use fabrique_core::id::EnvironmentName;
use fabrique_declarations::{Declares, Subject};
use fabrique_gitops::render::{self, Settings, digest_in, is_as_rendered};
use fabrique_gitops::{Tree, layout};
use fabrique_observer::Apps;
use fabrique_ports::applications::ApplicationState;

use super::plan::RootSeen;
use crate::render::{Difference, Rendered};

/// What is applied against what is there and should be. One that says nothing of itself is somebody's own.
pub(super) fn seen(applied: Option<&ApplicationState>, tree: &Tree, rendered: Option<&Rendered>) -> RootSeen {
    let Some(applied) = applied else { return RootSeen::Absent };
    let stands = standing(tree);
    let differs = rendered.and_then(due);
    let wanted = differs.map(|difference| difference.content.as_str()).or(stands.as_deref());
    let (Some(applied), Some(wanted)) = (applied.rendered.as_deref(), wanted.and_then(digest_in)) else {
        return RootSeen::There;
    };
    let edited = stands.as_deref().is_some_and(|stands| !is_as_rendered(stands));
    if applied == wanted {
        RootSeen::There
    } else if differs.is_none() {
        RootSeen::Behind
    } else if stands.as_deref().and_then(digest_in) == Some(applied) {
        // One that was edited says the digest that it was rendered with, and so does the one that was applied of it.
        RootSeen::Outdated { edited }
    } else if edited {
        RootSeen::Behind
    } else {
        RootSeen::NotRendered
    }
}

/// What the one that is there lacks for an app.
pub(super) fn lacks(
    apps: &Apps,
    rendered: &Rendered,
    (app, environment): (&App, &EnvironmentName),
    subject: Option<&Subject>,
    settings: &Settings,
) -> Vec<String> {
    let (Some(stands), Some(due)) = (standing(&apps.tree), due(rendered)) else { return Vec::new() };
    let asks = subject.is_some_and(|subject| match &subject.declares {
        Declares::All(all) => {
            let of = &all.depends_on;
            all.resources.disk.is_some() || !of.buckets.is_empty() || !of.database.is_empty()
        }
        Declares::Nothing | Declares::Unreadable | Declares::Misregistered => false,
    });
    render::lacks((&stands, &due.content), &apps.registrations, (app, environment), asks, settings)
}

fn standing(tree: &Tree) -> Option<String> {
    let bytes = tree.read(&layout::root()).ok().flatten()?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

fn due(rendered: &Rendered) -> Option<&Difference> {
    rendered.differences.iter().find(|one| one.file == layout::root())
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::{Digest, RelPath};
    use fabrique_gitops::Entry;

    use super::*;
    use crate::render::Difference;

    fn root(digest: &str) -> String {
        format!("metadata:\n  annotations:\n    fabrique/rendered: \"{digest}\"\n")
    }

    #[test]
    fn what_is_applied_is_told_from_what_is_there_and_from_what_should_be() {
        let file = RelPath::parse("root.yaml").unwrap();
        let tree = |text: String| Tree::from_iter([(file.clone(), Entry::regular(text))]);
        let applied = |digest: Option<&str>| {
            Some(ApplicationState { rendered: digest.map(str::to_owned), ..ApplicationState::default() })
        };
        let differs = |content: String| {
            let lines = Vec::new();
            Rendered {
                commit: None,
                files: 1,
                differences: vec![Difference { file: file.clone(), new: false, lines, content }],
                withheld: Vec::new(),
                stale: Vec::new(),
                kept: Vec::new(),
                findings: Vec::new(),
            }
        };
        let a = tree(root("a"));
        assert_eq!(seen(None, &a, None), RootSeen::Absent);
        assert_eq!(seen(applied(Some("a")).as_ref(), &a, None), RootSeen::There);
        assert_eq!(seen(applied(Some("b")).as_ref(), &a, None), RootSeen::Behind);
        let due = differs(root("c"));
        let edited = RootSeen::Outdated { edited: true };
        assert_eq!(seen(applied(Some("a")).as_ref(), &a, Some(&due)), edited, "applied with the edit");
        assert_eq!(
            seen(applied(Some("b")).as_ref(), &a, Some(&due)),
            RootSeen::Behind,
            "no render overwrites the edit"
        );
        assert_eq!(
            seen(applied(Some("c")).as_ref(), &a, Some(&due)),
            RootSeen::There,
            "applied before it was pushed"
        );
        assert_eq!(seen(applied(None).as_ref(), &a, Some(&due)), RootSeen::There, "somebody's own");
        let digest = Digest::of(root("").as_bytes()).to_string();
        let rendered = tree(root(&digest));
        let outdated = RootSeen::Outdated { edited: false };
        assert_eq!(seen(applied(Some(&digest)).as_ref(), &rendered, Some(&due)), outdated);
        assert_eq!(seen(applied(Some("a")).as_ref(), &rendered, Some(&due)), RootSeen::NotRendered);
        let theirs = tree("kind: Application\n".to_owned());
        assert_eq!(seen(applied(Some("a")).as_ref(), &theirs, None), RootSeen::There);
    }
}
