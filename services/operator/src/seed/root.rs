//! What Argo CD has of `root.yaml`, which nobody but a person applies.

use fabrique_gitops::render::digest_in;
use fabrique_gitops::{Tree, layout};
use fabrique_ports::applications::ApplicationState;

use super::plan::RootSeen;
use crate::render::Rendered;

/// What is applied against what is there and should be. One that says nothing of itself is somebody's own.
pub(super) fn seen(applied: Option<&ApplicationState>, tree: &Tree, rendered: Option<&Rendered>) -> RootSeen {
    let Some(applied) = applied else { return RootSeen::Absent };
    let file = layout::root();
    let stands = tree.read(&file).ok().flatten().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let differs = rendered.and_then(|rendered| rendered.differences.iter().find(|one| one.file == file));
    let wanted = differs.map(|difference| difference.content.as_str()).or(stands.as_deref());
    match (applied.rendered.as_deref(), wanted.and_then(digest_in)) {
        (Some(applied), Some(wanted)) if applied != wanted && differs.is_some() => RootSeen::NotRendered,
        (Some(applied), Some(wanted)) if applied != wanted => RootSeen::Behind,
        (_, _) => RootSeen::There,
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::RelPath;
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
        assert_eq!(seen(applied(Some("a")).as_ref(), &a, Some(&due)), RootSeen::NotRendered);
        assert_eq!(
            seen(applied(Some("c")).as_ref(), &a, Some(&due)),
            RootSeen::There,
            "applied before it was pushed"
        );
        assert_eq!(seen(applied(None).as_ref(), &a, Some(&due)), RootSeen::There, "somebody's own");
        let theirs = tree("kind: Application\n".to_owned());
        assert_eq!(seen(applied(Some("a")).as_ref(), &theirs, None), RootSeen::There);
    }
}
