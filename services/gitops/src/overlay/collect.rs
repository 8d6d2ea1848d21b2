//! Collecting an overlay with everything it reaches in its repository.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fabrique_core::id::{AppName, EnvironmentName, RelPath};
use fabrique_yaml::{Replacement, Yaml, replace_scalars};

use super::kustomization::{climbs, finding, follow, is_kustomization, parent, relative};
use super::{MAX_BYTES, MAX_FILES, OverlayFiles, check_entry};
use crate::layout;
use crate::refusal::Refusal;
use crate::tree::{Entry, Tree};

/// Where files from outside of the overlay's directory lie in the copy, under their path in the repository.
pub const OUTSIDE: &str = "outside";
/// The most directories that are read for one overlay.
const MAX_DIRECTORIES: usize = 20;

/// The directories of the source, outside of the overlay's own, that the present copy holds files of.
#[must_use]
pub fn copied_from_outside(tree: &Tree, app: &AppName, environment: &EnvironmentName) -> BTreeSet<RelPath> {
    let directory = layout::directory_of(app, environment);
    let Ok(outside) = RelPath::parse(&format!("{directory}/{OUTSIDE}")) else { return BTreeSet::new() };
    let below = format!("{outside}/");
    let sources = tree.below(&outside).filter_map(|(path, _)| path.as_str().strip_prefix(&below));
    sources.filter_map(|path| RelPath::parse(parent_or_root(path)).ok()).collect()
}

fn parent_or_root(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(directory, _)| directory)
}

/// What of the repository is to be read, by paths from its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The files at these paths. A directory may be among them, which is no file and asked for afterwards.
    Files(Vec<RelPath>),
    /// Everything below this directory.
    Directory(RelPath),
}

/// Collects an overlay and what it reaches: ask what is [`next`](Collector::next), read it, and
/// [`add`](Collector::add) it, until there is nothing; then [`finish`](Collector::finish).
///
/// The overlay's own directory becomes the top of the copy. What its kustomizations reach elsewhere in the
/// repository (`../../base`) comes along under [`OUTSIDE`] at its path in the repository, and the
/// references between the two are rewritten, nothing else. A binding to such a file is declared as
/// `outside/<path in the repository>`.
#[derive(Debug, Clone)]
pub struct Collector {
    root: RelPath,
    /// Directories that were read.
    read: BTreeSet<RelPath>,
    /// What was looked for as a file.
    sought: BTreeSet<RelPath>,
    files: BTreeMap<RelPath, Entry>,
}

impl Collector {
    /// Begins with the overlay's directory, a path from the root of its repository.
    #[must_use]
    pub fn new(root: RelPath) -> Self {
        Self { root, read: BTreeSet::new(), sought: BTreeSet::new(), files: BTreeMap::new() }
    }

    /// What to read next, or nothing when all is there.
    ///
    /// # Errors
    /// When a kustomization leads out of the repository or around in a circle, or reaches more than 20
    /// directories or 500 files.
    pub fn next(&self) -> Result<Option<Next>, Refusal> {
        if !self.read.contains(&self.root) {
            return Ok(Some(Next::Directory(self.root.clone())));
        }
        let is_there = |target: &RelPath| {
            self.files.contains_key(target) || self.read.iter().any(|directory| target.is_within(directory))
        };
        let mut missing = self.targets()?;
        missing.retain(|target| !is_there(target));
        // What a reference names may be either, whatever it is called.
        let unsought: Vec<RelPath> = missing.difference(&self.sought).cloned().collect();
        if self.sought.len() + unsought.len() > MAX_FILES {
            return Err(super::too_large());
        }
        if !unsought.is_empty() {
            return Ok(Some(Next::Files(unsought)));
        }
        let Some(target) = missing.pop_first() else { return Ok(None) };
        if self.read.len() >= MAX_DIRECTORIES {
            return Err(Refusal::Unacceptable {
                what: format!("the overlay {} reaches more than {MAX_DIRECTORIES} directories", self.root),
                remedy: "move what it needs together".to_owned(),
            });
        }
        Ok(Some(Next::Directory(target)))
    }

    /// Adds what was read of it, by path from the root of the repository; nothing where nothing is there.
    pub fn add(&mut self, asked: Next, files: impl IntoIterator<Item = (RelPath, Entry)>) {
        self.files.extend(files);
        match asked {
            Next::Files(paths) => self.sought.extend(paths),
            Next::Directory(directory) => {
                self.read.insert(directory);
            }
        }
    }

    /// That `path`, which was to be read, cannot be copied: at the reference that leads there.
    #[must_use]
    pub fn refuse(&self, path: &RelPath, what: &str, remedy: &str) -> Refusal {
        for (file, entry) in &self.files {
            let Some(yaml) = kustomization(file, entry) else { continue };
            let all = climbs(&yaml);
            let Some(leads) =
                all.iter().find(|climb| follow(parent(file), climb.target).as_ref() == Some(path))
            else {
                continue;
            };
            return finding(file, leads.node, format!("{:?} cannot be copied: {what}", leads.target), remedy)
                .into();
        }
        Refusal::Unacceptable { what: format!("{path} cannot be copied: {what}"), remedy: remedy.to_owned() }
    }

    /// The directories and files that the copy is made of: a change in any of them is a change of the
    /// overlay.
    ///
    /// # Errors
    /// As [`Collector::next`].
    pub fn reached(&self) -> Result<BTreeSet<RelPath>, Refusal> {
        let mut reached = self.targets()?;
        reached.insert(self.root.clone());
        Ok(reached)
    }

    /// The files as they are copied.
    ///
    /// # Errors
    /// Whatever [`OverlayFiles::new`] refuses; a reference to something that does not exist; a directory
    /// `outside` in the overlay itself.
    pub fn finish(self) -> Result<OverlayFiles, Refusal> {
        let targets = self.targets()?;
        let mut copied = Vec::new();
        let mut total = 0;
        for (path, entry) in &self.files {
            if !self.is_copied(path, &targets) {
                continue;
            }
            check_entry(path, entry)?;
            total += entry.bytes.len();
            if copied.len() >= MAX_FILES || total > MAX_BYTES {
                return Err(super::too_large());
            }
            let bytes = self.relocated(path, entry)?;
            copied.push((self.place(path)?, Entry { bytes, ..entry.clone() }));
        }
        OverlayFiles::new(copied)
    }

    fn is_copied(&self, path: &RelPath, targets: &BTreeSet<RelPath>) -> bool {
        path.is_within(&self.root) || targets.iter().any(|target| path.is_within(target))
    }

    /// Everything outside of the overlay that the files so far reach, directly or through one another.
    fn targets(&self) -> Result<BTreeSet<RelPath>, Refusal> {
        let mut targets = BTreeSet::new();
        loop {
            let mut more = targets.clone();
            for (path, entry) in self.files.iter().filter(|(path, _)| self.is_copied(path, &targets)) {
                more.extend(self.targets_of(path, entry)?);
            }
            if more == targets {
                return Ok(targets);
            }
            targets = more;
        }
    }

    fn targets_of(&self, path: &RelPath, entry: &Entry) -> Result<Vec<RelPath>, Refusal> {
        let Some(yaml) = kustomization(path, entry) else { return Ok(Vec::new()) };
        let mut targets = Vec::new();
        for climb in climbs(&yaml) {
            let refuse = |what: &str, remedy: &str| {
                let what = format!("{:?} {what}", climb.target);
                Err(finding(path, climb.node, what, remedy).into())
            };
            let Some(target) = follow(parent(path), climb.target) else {
                return refuse("leads out of the repository", "refer to files of this repository");
            };
            if self.root.is_within(&target) {
                return refuse("contains the overlay itself", "refer to a directory beside it");
            }
            if !target.is_within(&self.root) {
                targets.push(target);
            }
        }
        Ok(targets)
    }

    /// Where a file of the repository lies in the copy.
    fn place(&self, path: &RelPath) -> Result<RelPath, Refusal> {
        let refuse = |why: &str| Refusal::PathRefused { path: path.to_string(), why: why.to_owned() };
        let placed = if path.is_within(&self.root) {
            let inside = match self.root.is_root() {
                true => path.as_str(),
                false => path.as_str()[self.root.as_str().len()..].trim_start_matches('/'),
            };
            if inside == OUTSIDE || inside.starts_with("outside/") {
                return Err(refuse("the name outside is taken for what the overlay reaches elsewhere"));
            }
            inside.to_owned()
        } else {
            format!("{OUTSIDE}/{path}")
        };
        RelPath::parse(&placed).map_err(|_| refuse("the path does not fit in an environment's directory"))
    }

    /// The file's bytes, with references across the overlay's border rewritten.
    fn relocated(&self, path: &RelPath, entry: &Entry) -> Result<Bytes, Refusal> {
        let Some(yaml) = kustomization(path, entry) else { return Ok(entry.bytes.clone()) };
        let placed = self.place(path)?;
        let mut edits = Vec::new();
        for climb in climbs(&yaml) {
            let Some(target) = follow(parent(path), climb.target) else { continue };
            if !self.files.keys().any(|file| file.is_within(&target)) {
                let what = format!("{:?} does not exist at this revision", climb.target);
                return Err(finding(path, climb.node, what, "correct the reference").into());
            }
            if target.is_within(&self.root) != path.is_within(&self.root) {
                let to = relative(parent(&placed), &self.place(&target)?);
                edits.push((climb.node, format!("{}{to}", climb.prefix)));
            }
        }
        let replacements: Vec<Replacement<'_>> =
            edits.iter().map(|(node, text)| Replacement { node, text }).collect();
        let bytes = replace_scalars(&yaml, &replacements).map_err(|error| Refusal::UnsupportedYaml {
            file: path.clone(),
            line: error.line,
            what: error.what,
            remedy: error.remedy.to_owned(),
        })?;
        Ok(Bytes::from(bytes))
    }
}

/// A kustomization that cannot be read reaches nothing here; kustomize will say what is wrong with it.
fn kustomization(path: &RelPath, entry: &Entry) -> Option<Yaml> {
    if !is_kustomization(path) {
        return None;
    }
    Yaml::parse(&entry.bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    /// Plays the repository: answers whatever is asked for. A directory is called with a slash behind it.
    fn collect(root: &str, repo: &[(&str, &str)]) -> Result<(OverlayFiles, Vec<String>), String> {
        let mut collector = Collector::new(path(root));
        let mut asked = Vec::new();
        while let Some(next) = collector.next().map_err(|e| e.to_string())? {
            let wanted = |file: &str| match &next {
                Next::Files(paths) => paths.iter().any(|path| path.as_str() == file),
                Next::Directory(directory) => file.starts_with(&format!("{directory}/")),
            };
            let found = repo.iter().filter(|(file, _)| wanted(file));
            let found: Vec<_> =
                found.map(|(file, text)| (path(file), Entry::regular(text.to_string()))).collect();
            match &next {
                Next::Files(paths) => asked.extend(paths.iter().map(RelPath::to_string)),
                Next::Directory(directory) => asked.push(format!("{directory}/")),
            }
            collector.add(next, found);
        }
        collector.finish().map(|files| (files, asked)).map_err(|e| e.to_string())
    }

    fn show(files: &OverlayFiles) -> String {
        files
            .iter()
            .map(|(p, b)| format!("{p}: {}", String::from_utf8_lossy(b).trim_end()))
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn a_base_comes_along_and_only_references_across_the_border_change() {
        let repo = [
            ("deploy/overlays/prod/kustomization.yaml", "resources: [../../base, 'sub'] # both\n"),
            (
                "deploy/overlays/prod/sub/kustomization.yaml",
                "resources: [../x.yaml]\npatches: [{path: ../../../common/p.yaml}]\n",
            ),
            ("deploy/overlays/prod/x.yaml", "a: ../../base\n"),
            ("deploy/base/kustomization.yaml", "resources: [d.yaml, ../shared]\n"),
            ("deploy/base/d.yaml", "d: 1\n"),
            (
                "deploy/shared/kustomization.yaml",
                "configMapGenerator: [{files: [k=../overlays/prod/x.yaml]}]\n",
            ),
            ("deploy/common/p.yaml", "p: 1\n"),
            ("deploy/common/not-reached.yaml", "n: 1\n"),
            ("deploy/overlays/test/kustomization.yaml", "resources: []\n"),
        ];
        let (files, asked) = collect("deploy/overlays/prod", &repo).unwrap();
        assert_eq!(
            asked,
            [
                "deploy/overlays/prod/",
                "deploy/base",
                "deploy/common/p.yaml",
                "deploy/base/",
                "deploy/shared",
                "deploy/shared/"
            ]
        );
        insta::assert_snapshot!(show(&files), @r#"
kustomization.yaml: resources: [outside/deploy/base, 'sub'] # both
outside/deploy/base/d.yaml: d: 1
outside/deploy/base/kustomization.yaml: resources: [d.yaml, ../shared]
outside/deploy/common/p.yaml: p: 1
outside/deploy/shared/kustomization.yaml: configMapGenerator: [{files: [k=../../../x.yaml]}]
sub/kustomization.yaml: resources: [../x.yaml]
patches: [{path: "../outside/deploy/common/p.yaml"}]
x.yaml: a: ../../base
"#);
    }

    #[test]
    fn an_overlay_that_reaches_nothing_is_copied_as_it_is() {
        let text = "# é\r\nresources: [ a.yaml ]\r\n";
        let (files, asked) = collect("o", &[("o/kustomization.yaml", text), ("o/a.yaml", "a: 1")]).unwrap();
        assert_eq!(asked, ["o/"]);
        assert_eq!(files.iter().map(|(_, b)| b.len()).sum::<usize>(), text.len() + 4);
    }

    #[test]
    fn references_that_lead_astray_are_named() {
        let with = |text: &str| {
            collect("a/o", &[("a/o/kustomization.yaml", text), ("a/b/x.yaml", "")]).map(|_| ()).unwrap_err()
        };
        let all = [
            with("resources:\n- ../../../etc\n"),
            with("resources: [..]\n"),
            with("resources: [../ghost]\n"),
            with("resources: [../b/ghost.yaml]\n"),
            collect("a/o", &[("a/o/outside/x.yaml", "")]).map(|_| ()).unwrap_err(),
            collect("a/o", &[]).map(|_| ()).unwrap_err(),
        ];
        insta::assert_snapshot!(all.join("\n"), @r#"
a/o/kustomization.yaml:2:3: "../../../etc" leads out of the repository; refer to files of this repository
a/o/kustomization.yaml:1:13: ".." contains the overlay itself; refer to a directory beside it
a/o/kustomization.yaml:1:13: "../ghost" does not exist at this revision; correct the reference
a/o/kustomization.yaml:1:13: "../b/ghost.yaml" does not exist at this revision; correct the reference
a/o/outside/x.yaml: the name outside is taken for what the overlay reaches elsewhere; nothing was written
the overlay has no files; correct infra.path in app.yaml, or add the overlay to the app's repository
"#);
    }

    #[test]
    fn values_that_look_like_paths_are_neither_followed_nor_rewritten() {
        let values = "\
resources: [d.yaml]
configMapGenerator:
- { name: a, literals: [LOG_DIR=../logs, ../conf], files: [../conf/a.txt], options: { annotations: { b: ../logs } } }
commonAnnotations: { source: ../logs }
commonLabels: { from: ../ghost }
labels: [{ pairs: { c: ../ghost } }]
namePrefix: ../ghost
images: [{ name: ../ghost, newName: ../logs }]
patches: [{ patch: '../ghost', target: { name: ../ghost } }]
replacements: [{ source: { fieldPath: ../ghost } }]
helmCharts: [{ name: a, valuesInline: { path: ../ghost }, valuesFile: ../conf/values.yaml }]
helmGlobals: { chartHome: ../conf/charts }
";
        let repo = [
            ("a/o/kustomization.yaml", values),
            ("a/o/d.yaml", ""),
            ("a/logs/x", "log"),
            ("a/conf/a.txt", "a"),
            ("a/conf/values.yaml", "v: 1"),
            ("a/conf/charts/c/Chart.yaml", "c: 1"),
        ];
        let (files, asked) = collect("a/o", &repo).unwrap();
        assert_eq!(asked, ["a/o/", "a/conf/a.txt", "a/conf/charts", "a/conf/values.yaml", "a/conf/charts/"]);
        let expected = values.replace("files: [../conf/a.txt]", "files: [outside/a/conf/a.txt]");
        let expected = expected.replace("../conf/values", "outside/a/conf/values");
        let expected = expected.replace("../conf/charts", "outside/a/conf/charts");
        let copied = files.iter().find(|(path, _)| path.as_str() == "kustomization.yaml").unwrap().1;
        assert_eq!(String::from_utf8_lossy(copied), expected);
    }

    #[test]
    fn a_reference_is_a_file_or_a_directory_whatever_it_is_called() {
        let text = "\
resources: [../base.v1, ../../patch.yaml]
configMapGenerator: [{ name: a, files: [../conf/LICENSE] }]
";
        let repo = [
            ("a/o/kustomization.yaml", text),
            ("a/base.v1/kustomization.yaml", "resources: []\n"),
            ("a/conf/LICENSE", "MIT"),
            ("a/conf/neighbour", ""),
            ("patch.yaml", "p: 1"),
            ("elsewhere", ""),
        ];
        let (files, asked) = collect("a/o", &repo).unwrap();
        assert_eq!(asked, ["a/o/", "a/base.v1", "a/conf/LICENSE", "patch.yaml", "a/base.v1/"]);
        insta::assert_snapshot!(show(&files), @r#"
kustomization.yaml: resources: [outside/a/base.v1, outside/patch.yaml]
configMapGenerator: [{ name: a, files: [outside/a/conf/LICENSE] }]
outside/a/base.v1/kustomization.yaml: resources: []
outside/a/conf/LICENSE: MIT
outside/patch.yaml: p: 1
"#);
    }

    #[test]
    fn what_cannot_be_read_is_refused_at_the_reference_that_leads_there() {
        let mut collector = Collector::new(path("a/o"));
        let refused =
            |collector: &Collector, at: &str| collector.refuse(&path(at), "it is too big", "make it smaller");
        insta::assert_snapshot!(refused(&collector, "a/o"), @"a/o cannot be copied: it is too big; make it smaller");
        let text = Entry::regular("resources:\n- ../../base\n".to_owned());
        collector.add(collector.next().unwrap().unwrap(), [(path("a/o/kustomization.yaml"), text)]);
        insta::assert_snapshot!(refused(&collector, "base"), @r#"a/o/kustomization.yaml:2:3: "../../base" cannot be copied: it is too big; make it smaller"#);
    }

    #[test]
    fn the_number_of_directories_and_files_is_bounded() {
        let many: Vec<String> = (0..30).map(|i| format!("../d{i}")).collect();
        let text = format!("resources: [{}]\n", many.join(", "));
        assert!(collect("o", &[("o/kustomization.yaml", &text)]).unwrap_err().contains("20"));
        let many: Vec<String> = (0..501).map(|i| format!("../d/{i}.yaml")).collect();
        let text = format!("resources: [{}]\n", many.join(", "));
        assert!(collect("o", &[("o/kustomization.yaml", &text)]).unwrap_err().contains("500"));
    }
}
