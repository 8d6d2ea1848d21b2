//! Everything that is wrong with what people wrote, at once.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use fabrique_core::app::App;
use fabrique_core::id::{RelPath, Revision};
use fabrique_gitops::head;
use fabrique_gitops::registration::{self, Ceiling};
use fabrique_gitops::{Entry, FileKind, Registrations, Rules, Tree, layout};
use fabrique_observer::AppsReader;
use fabrique_observer::declared::contract_of;
use fabrique_ports::deployments::READ;
use serde::Serialize;

use crate::error::OperatorError;
use crate::exit::Exit;

/// The most files and bytes that are read of a local directory, as of `cluster/apps` itself.
const MOST_FILES: usize = 50_000;
const MOST_BYTES: u64 = 128 << 20;

/// Something wrong, with its place and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The file, from the root of `cluster/apps`, or the configuration's own.
    pub file: String,
    /// The line, from 1; 0 when it is about the file as a whole.
    pub line: usize,
    /// The column, from 1; 0 when it is about the file as a whole.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What to do next.
    pub remedy: String,
}

impl From<&fabrique_gitops::Finding> for Finding {
    fn from(finding: &fabrique_gitops::Finding) -> Self {
        Self {
            file: finding.file.clone(),
            line: finding.line,
            column: finding.column,
            what: finding.what.clone(),
            remedy: finding.remedy.clone(),
        }
    }
}

/// What is declared and found is a part of the sentence.
impl From<fabrique_declarations::Finding> for Finding {
    fn from(finding: fabrique_declarations::Finding) -> Self {
        let fabrique_declarations::Finding { file, line, column, what, remedy, .. } = finding;
        Self { file, line, column, what, remedy }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, what, remedy) = (self.file.clone(), self.what.clone(), self.remedy.clone());
        fabrique_gitops::Finding { file, line: self.line, column: self.column, what, remedy }.fmt(f)
    }
}

/// What was checked and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Validation {
    /// The commit of `cluster/apps` that was checked; absent for a local directory.
    pub commit: Option<Revision>,
    /// How many apps are registered without a finding.
    pub apps: usize,
    /// Everything that is wrong, by file and line.
    pub findings: Vec<Finding>,
    /// What registrations ask of builders beyond what these have, by file and line.
    pub beyond: Vec<fabrique_declarations::Finding>,
}

impl Validation {
    fn of(
        commit: Option<Revision>,
        tree: &Tree,
        registrations: &Registrations,
        most: Option<&Ceiling>,
    ) -> Self {
        let mut findings: Vec<Finding> = registrations.findings.iter().map(Finding::from).collect();
        findings.extend(registrations.apps.values().flat_map(|app| environments(tree, app)));
        findings.sort();
        let beyond = most.map(|most| registration::above(tree, most)).unwrap_or_default();
        Self { commit, apps: registrations.apps.len(), findings, beyond }
    }

    /// How the process ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        Exit::ok_if(self.findings.is_empty() && self.beyond.is_empty())
    }
}

/// Compositions that cannot be read, and bindings that do not show what they should.
fn environments(tree: &Tree, app: &App) -> Vec<Finding> {
    let finding = |head: head::EnvironmentHead| {
        Some(Finding {
            file: layout::composition_of(&app.name, &head.environment).to_string(),
            line: 0,
            column: 0,
            what: head.trouble()?,
            remedy: format!("correct it, or `fabrique repair {}` to rewrite the bindings", app.name),
        })
    };
    head::observe(tree, app).into_iter().filter_map(finding).collect()
}

/// Checks `cluster/apps` as it is now. `most` is what builds may have, where that is known.
///
/// # Errors
/// When it cannot be read.
pub async fn live(apps: &AppsReader, most: Option<&Ceiling>) -> Result<Validation, OperatorError> {
    let apps = apps.read().await?;
    Ok(Validation::of(Some(apps.commit.clone()), &apps.tree, &apps.registrations, most))
}

/// Checks a working copy of `cluster/apps`, for use before a push. Reads files: call it where blocking is
/// allowed. Symlinks are not followed. `most` is what builds may have, where that is known.
///
/// # Errors
/// When a file cannot be read, or there are too many.
pub fn directory(root: &Path, rules: &Rules, most: Option<&Ceiling>) -> Result<Validation, OperatorError> {
    let tree = checkout(root)?;
    let mut validation = Validation::of(None, &tree, &Registrations::load(&tree, rules), most);
    validation.findings.extend(contract_of(&tree).err().into_iter().flatten().map(Finding::from));
    validation.findings.sort();
    Ok(validation)
}

/// What fabrique reads of a working copy of `cluster/apps`.
///
/// # Errors
/// When a file cannot be read, or there are too many.
pub(crate) fn checkout(root: &Path) -> Result<Tree, OperatorError> {
    let mut reading = Reading::new(root);
    // The root itself must be there, or a mistyped path would look like a cluster without apps.
    fs::read_dir(root).map_err(|source| unreadable(root, source))?;
    for name in READ {
        // With its slash a folder that is a symlink would be followed.
        let path = root.join(name.trim_end_matches('/'));
        if fs::symlink_metadata(&path).is_ok() {
            reading.read(path)?;
        }
    }
    Ok(reading.entries.into_iter().collect())
}

/// Reads files below a root.
pub(crate) struct Reading<'a> {
    root: &'a Path,
    entries: BTreeMap<RelPath, Entry>,
    bytes: u64,
}

impl<'a> Reading<'a> {
    fn new(root: &'a Path) -> Self {
        Self { root, entries: BTreeMap::new(), bytes: 0 }
    }

    /// Everything below `root`, by path from it.
    ///
    /// # Errors
    /// When something cannot be read, or there is too much.
    pub(crate) fn of(root: &'a Path) -> Result<BTreeMap<RelPath, Entry>, OperatorError> {
        let mut reading = Self::new(root);
        reading.read(root.to_owned())?;
        Ok(reading.entries)
    }

    /// The one file at `path`; nothing where there is none, or a directory. A symlink is not followed.
    ///
    /// # Errors
    /// When it cannot be read, or is too large.
    pub(crate) fn file(path: &'a Path) -> Result<Option<Entry>, OperatorError> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let mut reading = Self::new(path);
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_dir() => reading.bounded(&metadata)?,
            Ok(_) => return Ok(None),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
            Err(source) => return Err(unreadable(path, source)),
        }
        Self::entry(path)
    }

    /// Reads what is at `start` and below it, but no folder of git, which holds nothing that is committed.
    fn read(&mut self, start: PathBuf) -> Result<(), OperatorError> {
        let mut left = vec![start];
        while let Some(path) = left.pop() {
            let metadata = fs::symlink_metadata(&path).map_err(|source| unreadable(&path, source))?;
            if metadata.is_dir() && path.file_name().is_some_and(|name| name == ".git") {
                continue;
            }
            if metadata.is_dir() {
                for entry in fs::read_dir(&path).map_err(|source| unreadable(&path, source))? {
                    left.push(entry.map_err(|source| unreadable(&path, source))?.path());
                }
                continue;
            }
            self.bounded(&metadata)?;
            let relative = path.strip_prefix(self.root).unwrap_or(&path).to_string_lossy().into_owned();
            // A name that no path of cluster/apps may have is no registration either.
            let Ok(relative) = RelPath::parse(&relative) else { continue };
            self.entries.extend(Self::entry(&path)?.map(|entry| (relative, entry)));
        }
        Ok(())
    }

    /// Counts a file before it is read.
    fn bounded(&mut self, metadata: &fs::Metadata) -> Result<(), OperatorError> {
        self.bytes += metadata.len();
        if self.bytes > MOST_BYTES || self.entries.len() >= MOST_FILES {
            let limit = format!("{MOST_FILES} files or {} MiB", MOST_BYTES >> 20);
            return Err(OperatorError::TooBig { path: self.root.display().to_string(), limit });
        }
        Ok(())
    }

    /// A file, or nothing for what git does not hold.
    fn entry(path: &Path) -> Result<Option<Entry>, OperatorError> {
        let metadata = fs::symlink_metadata(path).map_err(|source| unreadable(path, source))?;
        Ok(if metadata.is_symlink() {
            let target = fs::read_link(path).map_err(|source| unreadable(path, source))?;
            Some(Entry { kind: FileKind::Symlink, bytes: target.to_string_lossy().into_owned().into() })
        } else if metadata.is_file() {
            Some(Entry::regular(fs::read(path).map_err(|source| unreadable(path, source))?))
        } else {
            None
        })
    }
}

pub(crate) fn unreadable(path: &Path, source: std::io::Error) -> OperatorError {
    OperatorError::Directory { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules { registries: vec!["registry:80".to_owned()] }
    }

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn registration(name: &str, branch: &str) -> String {
        format!(
            "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {name} }}\nspec:\n  \
             source: {{ repo: atlas/{name}, branch: {branch} }}\n  image: registry:80/{name}\n  \
             environments:\n    - {{ name: prod }}\n"
        )
    }

    #[test]
    fn what_stands_beside_the_apps_is_read_and_a_symlink_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "migrations/prod/citation/migrations.yaml", "kind: ConfigMap\n");
        write(root.path(), "elsewhere/a", "a");
        std::os::unix::fs::symlink("elsewhere", root.path().join("volumes")).unwrap();
        let tree = checkout(root.path()).unwrap();
        let path = |text: &str| RelPath::parse(text).unwrap();
        let migrations = tree.read(&path("migrations/prod/citation/migrations.yaml"));
        assert_eq!(migrations.unwrap().map(|bytes| &bytes[..]), Some(&b"kind: ConfigMap\n"[..]));
        assert!(!matches!(tree.read(&path("volumes/a")), Ok(Some(_))));
    }

    #[test]
    fn every_finding_of_every_file_is_told_with_its_place() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "apps/good/app.yaml", &registration("good", "main"));
        write(root.path(), "apps/bad/app.yaml", &registration("bad", "-x"));
        write(root.path(), "apps/worse/app.yaml", "kind: App\nkind: App\n");
        write(root.path(), "apps/good/prod/composition.yaml", "nonsense: true\n");
        let validation = directory(root.path(), &rules(), None).unwrap();
        assert_eq!((validation.apps, validation.exit()), (1, Exit::Findings));
        let places: Vec<_> = validation.findings.iter().map(|f| (f.file.as_str(), f.line)).collect();
        assert!(places.contains(&("apps/bad/app.yaml", 5)), "{places:?}");
        assert!(places.contains(&("apps/worse/app.yaml", 2)), "{places:?}");
        assert!(places.contains(&("apps/good/prod/composition.yaml", 0)), "{places:?}");
    }

    #[test]
    fn a_directory_without_findings_is_well() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "apps/good/app.yaml", &registration("good", "main"));
        let validation = directory(root.path(), &rules(), None).unwrap();
        assert_eq!((validation.apps, validation.findings.len(), validation.exit()), (1, 0, Exit::Ok));
    }

    #[test]
    fn a_symlink_is_reported_and_not_followed() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "elsewhere.yaml", &registration("linked", "main"));
        fs::create_dir_all(root.path().join("apps/linked")).unwrap();
        std::os::unix::fs::symlink("../../elsewhere.yaml", root.path().join("apps/linked/app.yaml")).unwrap();
        let validation = directory(root.path(), &rules(), None).unwrap();
        assert_eq!(validation.apps, 0);
        assert!(validation.findings[0].what.contains("symlink"), "{validation:?}");
    }

    #[test]
    fn a_mistyped_path_is_no_cluster_without_apps() {
        let root = tempfile::tempdir().unwrap();
        let error = directory(&root.path().join("nowhere"), &rules(), None).unwrap_err();
        assert_eq!(error.exit(), Exit::Usage);
    }
}
