//! Overlays of an app's repository, as they are copied into an environment.

mod collect;
mod kustomization;

use std::collections::BTreeMap;

use bytes::Bytes;
use fabrique_core::id::{AppName, RelPath};
use fabrique_declarations::contract::Placeholder;
use fabrique_yaml::{Finding, Node, Yaml, escaped};

use crate::refusal::Refusal;
use crate::tree::{Entry, FileKind};
use crate::{composition, placeholder};

pub use collect::{Collector, Next, OUTSIDE, copied_from_outside};
use fabrique_declarations::overlay::is_remote;
pub(crate) use kustomization::is_kustomization;
use kustomization::{climbs, finding, follow, mentions, parent};

/// The most files of an overlay.
pub const MAX_FILES: usize = 500;
/// The largest file of an overlay, in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// The largest overlay, in bytes.
pub const MAX_BYTES: usize = 8 << 20;

/// The files of an overlay, by path from its directory. A copied file is a regular one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayFiles {
    files: BTreeMap<RelPath, Bytes>,
}

impl OverlayFiles {
    /// Accepts the files of an overlay's directory.
    ///
    /// # Errors
    /// When there is none, when there are too many or too large ones, when one is a symlink, a submodule or
    /// a `composition.yaml` at the top, or when a kustomization reaches outside of them: what is not copied
    /// is not there when the cluster renders it. [`Collector`] brings such files along.
    pub fn new(entries: impl IntoIterator<Item = (RelPath, Entry)>) -> Result<Self, Refusal> {
        let mut files = BTreeMap::new();
        let mut total = 0;
        for (path, entry) in entries {
            check_entry(&path, &entry)?;
            total += entry.bytes.len();
            files.insert(path, entry.bytes);
            if files.len() > MAX_FILES || total > MAX_BYTES {
                return Err(too_large());
            }
        }
        if files.is_empty() {
            return Err(Refusal::Unacceptable {
                what: "the overlay has no files".to_owned(),
                remedy: "correct infra.path in app.yaml, or add the overlay to the app's repository"
                    .to_owned(),
            });
        }
        for (path, content) in &files {
            if let Some(finding) = reference_outside(path, content) {
                return Err(finding.into());
            }
        }
        Ok(Self { files })
    }

    /// Everything that kustomizations name and that is not here: the cluster renders what was copied and fetches
    /// nothing. `overlay` is the directory that the files come from.
    #[must_use]
    pub fn absent(&self, overlay: &RelPath) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (path, content) in self.files.iter().filter(|(path, _)| is_kustomization(path)) {
            let Ok(yaml) = Yaml::parse(content) else { continue };
            for mention in mentions(&yaml) {
                let target = follow(parent(path), mention.target);
                let is_here = |target: RelPath| self.files.keys().any(|file| file.is_within(&target));
                if target.is_some_and(is_here) {
                    continue;
                }
                let (what, remedy) = match is_remote(mention.target) {
                    true => (
                        "is not in this repository",
                        "copy it into the repository: the cluster fetches nothing",
                    ),
                    false => ("does not exist at this revision", "correct the reference"),
                };
                let what = format!("{:?} {what}", mention.target);
                findings.push(finding(&origin(overlay, path), mention.node, what, remedy));
            }
        }
        findings.sort();
        findings
    }

    /// The files, in order of path.
    pub fn iter(&self) -> impl Iterator<Item = (&RelPath, &Bytes)> {
        self.files.iter()
    }
}

/// Where a file of a copy lies in the app's repository, from the overlay's directory there: where its author finds it.
#[must_use]
pub fn origin(overlay: &RelPath, path: &RelPath) -> RelPath {
    let outside = path.as_str().strip_prefix(OUTSIDE).and_then(|rest| rest.strip_prefix('/'));
    outside.and_then(|elsewhere| RelPath::parse(elsewhere).ok()).unwrap_or_else(|| overlay.join(path))
}

fn check_entry(path: &RelPath, entry: &Entry) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::PathRefused { path: escaped(path.as_str()), why });
    match entry.kind {
        FileKind::Symlink | FileKind::Submodule => {
            refuse("symlinks and submodules are not copied".to_owned())
        }
        FileKind::Regular | FileKind::Executable if entry.bytes.len() > MAX_FILE_BYTES => {
            refuse(format!("{} bytes, the limit is {MAX_FILE_BYTES}", entry.bytes.len()))
        }
        FileKind::Regular | FileKind::Executable
            if [composition::FILE_NAME, placeholder::FILE_NAME].contains(&path.as_str())
                || path.is_root() =>
        {
            refuse("this name belongs to the environment's own state".to_owned())
        }
        FileKind::Regular | FileKind::Executable => Ok(()),
    }
}

/// A reference that leaves the copy. [`Collector`] leaves none behind; files that come from elsewhere may
/// have some.
fn reference_outside(path: &RelPath, content: &[u8]) -> Option<Finding> {
    let yaml = is_kustomization(path).then(|| Yaml::parse(content).ok()).flatten()?;
    climbs(&yaml).into_iter().find(|climb| follow(parent(path), climb.target).is_none()).map(|climb| {
        let what = format!("{:?} is outside of the overlay", climb.target);
        finding(path, climb.node, what, "move what it refers to into the overlay")
    })
}

fn too_large() -> Refusal {
    Refusal::Unacceptable {
        what: format!("the overlay has more than {MAX_FILES} files or {MAX_BYTES} bytes"),
        remedy: "keep only manifests in its directory".to_owned(),
    }
}

/// The first of the contract's placeholders, or of the usual ones (`__<APP>_IMAGE_DIGEST__`, `__<APP>_IMAGE__`), that is still in
/// `content`. In YAML only values and keys count: a comment may name what is filled in.
pub(crate) fn leftover_placeholder(
    path: &RelPath,
    content: &[u8],
    (app, placeholders): (&AppName, &[Placeholder]),
) -> Option<Finding> {
    let usual = Placeholder::both();
    let tokens: Vec<String> =
        placeholders.iter().chain(&usual).map(|placeholder| placeholder.of(app)).collect();
    let text = String::from_utf8_lossy(content);
    let token = |text: &str| tokens.iter().find(|token| has_token(text, token)).cloned();
    token(&text)?;
    let at = |line: usize, column: usize, token: String| Finding {
        file: path.as_str().to_owned(),
        line,
        column,
        what: format!("the placeholder {token} is filled by no binding"),
        remedy: "add a binding for this place to app.yaml".to_owned(),
    };
    let is_yaml =
        path.as_str().ends_with(".yaml") || path.as_str().ends_with(".yml") || is_kustomization(path);
    match Yaml::parse(content).ok().filter(|_| is_yaml) {
        Some(yaml) => {
            let mut found = None;
            let mut visit = |node: &Node| {
                if let (None, Some(token)) = (&found, node.text().and_then(token)) {
                    found = Some(at(node.line, node.column, token));
                }
            };
            yaml.documents().iter().for_each(|document| document.walk(&mut visit));
            found
        }
        None => text
            .lines()
            .enumerate()
            .find_map(|(index, line)| token(line).map(|token| at(index + 1, 1, token))),
    }
}

/// Whether `token` stands in `text` and is not part of a longer word.
fn has_token(text: &str, token: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(token)
        .any(|(at, _)| !text[..at].ends_with(is_word) && !text[at + token.len()..].starts_with(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    fn overlay(files: &[(&str, &str)]) -> Result<OverlayFiles, String> {
        let entries = files.iter().map(|(p, text)| (path(p), Entry::regular(text.to_string())));
        OverlayFiles::new(entries).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn invariant_15_what_is_no_plain_bounded_file_is_not_copied() {
        for kind in [FileKind::Symlink, FileKind::Submodule] {
            let entry = Entry { kind, bytes: "../../secret".into() };
            assert!(OverlayFiles::new([(path("a.yaml"), entry)]).is_err());
        }
        assert!(OverlayFiles::new([(path("a"), Entry::regular(vec![0; MAX_FILE_BYTES]))]).is_ok());
        assert!(OverlayFiles::new([(path("a"), Entry::regular(vec![0; MAX_FILE_BYTES + 1]))]).is_err());
        let many = |n: usize| (0..n).map(|i| (path(&format!("{i}.yaml")), Entry::regular("")));
        assert!(OverlayFiles::new(many(MAX_FILES)).is_ok());
        assert!(OverlayFiles::new(many(MAX_FILES + 1)).is_err());
        assert!(overlay(&[]).is_err());
        assert!(overlay(&[("composition.yaml", "")]).is_err());
        assert!(overlay(&[("sub/composition.yaml", "")]).is_ok());
    }

    #[test]
    fn a_kustomization_that_reaches_outside_is_named() {
        let bad = "resources:\n  - deployment.yaml\n  - ../../base\n";
        insta::assert_snapshot!(overlay(&[("kustomization.yaml", bad)]).unwrap_err(), @r#"kustomization.yaml:3:5: "../../base" is outside of the overlay; move what it refers to into the overlay"#);
        let inside = "resources: [../base, x/../../base]\nconfigMapGenerator: [{files: [a=../b.txt]}]\n";
        assert!(overlay(&[("sub/kustomization.yaml", inside)]).is_ok());
        let generator = "configMapGenerator: [{files: [a=../../b.txt]}]\n";
        assert!(overlay(&[("sub/kustomization.yaml", generator)]).is_err());
        assert!(overlay(&[("kustomization.yaml", "resources: ['https://host/a/../b']\n")]).is_ok());
    }

    #[test]
    fn everything_that_a_kustomization_names_has_to_be_in_the_copy() {
        let names = "\
resources: [base, ./deployment.yaml, 'https://host/base?ref=v1', 'git@host:a/b', ghost.yaml, ../outside/x]
components: [parts/tls]
patches: [{ path: patch.yaml }, { target: { kind: Job } }, { path: ghost-patch.yaml }]
patchesStrategicMerge: [\"a: 1\\nb: 2\\n\", ghost-merge.yaml]
replacements: [{ path: ghost-replacement.yaml }]
openapi: { path: ghost-schema.json }
helmCharts: [{ name: redis, repo: 'https://host/charts' }, { name: local }]
transformers: ['{ kind: Inline }']
configMapGenerator: [{ files: [a.txt, key=ghost.txt], envs: [ghost.env], literals: [x=../y] }, { env: a.env }]
";
        let files = [
            ("sub/kustomization.yaml", names),
            ("sub/base/kustomization.yaml", ""),
            ("sub/deployment.yaml", ""),
            ("sub/parts/tls/kustomization.yaml", "resources: [../../a.txt]\n"),
            ("sub/patch.yaml", ""),
            ("sub/a.txt", ""),
            ("sub/a.env", ""),
            ("outside/x/kustomization.yaml", "resources: [ghost.yaml]\n"),
        ];
        let entries = files.iter().map(|(p, text)| (path(p), Entry::regular(text.to_string())));
        let absent = OverlayFiles::new(entries).unwrap().absent(&path("deploy/prod"));
        let absent: Vec<String> = absent.iter().map(Finding::to_string).collect();
        insta::assert_snapshot!(absent.join("\n"), @r#"
        deploy/prod/sub/kustomization.yaml:1:38: "https://host/base?ref=v1" is not in this repository; copy it into the repository: the cluster fetches nothing
        deploy/prod/sub/kustomization.yaml:1:66: "git@host:a/b" is not in this repository; copy it into the repository: the cluster fetches nothing
        deploy/prod/sub/kustomization.yaml:1:82: "ghost.yaml" does not exist at this revision; correct the reference
        deploy/prod/sub/kustomization.yaml:3:68: "ghost-patch.yaml" does not exist at this revision; correct the reference
        deploy/prod/sub/kustomization.yaml:4:41: "ghost-merge.yaml" does not exist at this revision; correct the reference
        deploy/prod/sub/kustomization.yaml:5:24: "ghost-replacement.yaml" does not exist at this revision; correct the reference
        deploy/prod/sub/kustomization.yaml:6:18: "ghost-schema.json" does not exist at this revision; correct the reference
        deploy/prod/sub/kustomization.yaml:7:35: "https://host/charts" is not in this repository; copy it into the repository: the cluster fetches nothing
        deploy/prod/sub/kustomization.yaml:9:39: "ghost.txt" does not exist at this revision; correct the reference
        deploy/prod/sub/kustomization.yaml:9:62: "ghost.env" does not exist at this revision; correct the reference
        x/kustomization.yaml:1:13: "ghost.yaml" does not exist at this revision; correct the reference
        "#);
    }

    #[test]
    fn only_whole_placeholders_outside_of_comments_are_left_over() {
        let app = AppName::parse("citation-eu").unwrap();
        let left = |name: &str, text: &str| {
            leftover_placeholder(&path(name), text.as_bytes(), (&app, &[]))
                .map(|f| (f.line, f.what.contains("DIGEST")))
        };
        assert_eq!(left("a.yaml", "# __CITATION_EU_IMAGE__\na: 1\n"), None);
        assert_eq!(left("a.yaml", "b: 1\na: x@__CITATION_EU_IMAGE_DIGEST__\n"), Some((2, true)));
        assert_eq!(
            left("a.yaml", "a: __CITATION_EU_IMAGE__S\nb: __CITATION_IMAGE__\nc: A__CITATION_EU_IMAGE__\n"),
            None
        );
        assert_eq!(
            left("a.yaml", "a: [\n# __CITATION_EU_IMAGE__\n"),
            Some((2, false)),
            "not YAML: every line counts"
        );
        assert_eq!(left("run.sh", "#!/bin/sh\necho __CITATION_EU_IMAGE__ \n"), Some((2, false)));
        assert_eq!(left("a.bin", "\u{fffd}"), None);
        let own = Placeholder { name: "__<APP>_REF__".to_owned(), ..Placeholder::both().remove(1) };
        let found = leftover_placeholder(&path("a.yaml"), b"a: __CITATION_EU_REF__\n", (&app, &[own]));
        assert!(found.unwrap().what.contains("__CITATION_EU_REF__ is filled by no binding"));
    }
}
