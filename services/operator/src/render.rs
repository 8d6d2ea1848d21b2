//! `render`: Argo CD's files as they should be, against those that are there.

mod migrations;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use fabrique_core::id::{AppName, RelPath, Revision};
use fabrique_declarations::{Declares, Wait};
use fabrique_gitops::render::{self, Needs, Settings};
use fabrique_gitops::{Entry, Registrations, Rules, Tree};
use fabrique_observer::declared::{contract_of, needs_of};
use fabrique_observer::{Apps, AppsReader};
use serde::Serialize;

use crate::declared::{Judged, Ports, has_registration, is_cluster_apps, judged};
use crate::error::OperatorError;
use crate::exit::Exit;
use crate::render::migrations::Migrations;
use crate::validate::{Finding, checkout, unreadable};

/// The most lines of each side that a difference is told with.
const SHOWN: usize = 12;

/// What would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rendered {
    /// The commit of `cluster/apps` that was rendered from; absent for a checkout.
    pub commit: Option<Revision>,
    /// How many files there should be.
    pub files: usize,
    /// Those that are not as they should be.
    pub differences: Vec<Difference>,
    /// What was not rendered, and why; what is there of it stays.
    pub withheld: Vec<Withheld>,
    /// Applications of what is not registered any more. To remove one is to remove everything that it deployed.
    pub stale: Vec<String>,
    /// Buckets, databases and volumes that nobody asks for any more. They stay, and so do their files.
    pub kept: Vec<RelPath>,
    /// What a person has to mend.
    pub findings: Vec<Finding>,
}

/// A file that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The file, from the root of `cluster/apps`.
    pub file: RelPath,
    /// Whether there is none yet.
    pub new: bool,
    /// The lines that differ, with `-` and `+` before them, and a few words where there are too many.
    pub lines: Vec<String>,
    /// What it should hold.
    #[serde(skip)]
    pub content: String,
}

/// An Application that was not rendered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Withheld {
    /// Its file.
    pub file: RelPath,
    /// Why.
    pub why: String,
}

impl Rendered {
    /// How the process ends: with `check` every difference is a complaint, and what is stale is one until it is removed.
    #[must_use]
    pub fn exit(&self, check: bool, removed: bool) -> Exit {
        let stands = !check || self.differences.is_empty();
        Exit::ok_if(self.findings.is_empty() && stands && (removed || self.stale.is_empty()))
    }
}

/// Renders `cluster/apps` as it is now, with the declarations at the heads of their branches.
///
/// # Errors
/// When `cluster/apps`, a head or a file cannot be read.
pub async fn live(apps: &AppsReader, ports: &Ports, settings: &Settings) -> Result<Rendered, OperatorError> {
    let apps = apps.read().await?;
    let judged = judged(&apps.registrations, &apps.contract, ports).await?;
    of_judged(&apps, &judged, ports, settings).await
}

/// Renders one state of `cluster/apps`, whose declarations were read and judged.
pub(crate) async fn of_judged(
    apps: &Apps,
    judged: &Judged,
    ports: &Ports,
    settings: &Settings,
) -> Result<Rendered, OperatorError> {
    let contract = apps.contract.as_ref().ok().and_then(Option::as_ref);
    let migrations = migrations::all(&apps.tree, &apps.registrations, contract, ports, settings).await?;
    let commit = Some(apps.commit.clone());
    Ok(rendered(commit, &apps.tree, &apps.registrations, (judged, migrations), settings))
}

/// Renders a checkout of `cluster/apps`, with the declarations at the heads of their branches. Reads files: call it
/// where blocking is allowed.
///
/// # Errors
/// When it is no checkout of `cluster/apps`; when a file, a head or a declaration cannot be read.
pub async fn directory(
    root: &Path,
    rules: &Rules,
    ports: &Ports,
    settings: &Settings,
) -> Result<Rendered, OperatorError> {
    let tree = checkout(root)?;
    if !is_cluster_apps(root) && !is_new(root) {
        return Err(OperatorError::NotApps { path: root.display().to_string() });
    }
    let registrations = Registrations::load(&tree, rules);
    let contract = contract_of(&tree);
    let judged = judged(&registrations, &contract, ports).await?;
    let contract = contract.as_ref().ok().and_then(Option::as_ref);
    let migrations = migrations::all(&tree, &registrations, contract, ports, settings).await?;
    Ok(rendered(None, &tree, &registrations, (&judged, migrations), settings))
}

/// Writes what differs into a checkout, and with `remove` takes away what is stale. Symlinks are not followed.
///
/// # Errors
/// When a file cannot be written; those before it are. When something is to be removed where nothing is registered: that is
/// a checkout of a part, and nothing is written.
pub fn write(root: &Path, rendered: &Rendered, remove: bool) -> Result<(), OperatorError> {
    if remove && !rendered.stale.is_empty() {
        admit_removal(root)?;
    }
    for difference in &rendered.differences {
        let file = no_link(root, difference.file.as_str())?;
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).map_err(|source| unreadable(folder, source))?;
        }
        fs::write(&file, &difference.content).map_err(|source| unreadable(&file, source))?;
    }
    for stale in rendered.stale.iter().filter(|_| remove) {
        let file = no_link(root, stale)?;
        fs::remove_file(&file).map_err(|source| unreadable(&file, source))?;
    }
    Ok(())
}

/// Whether something may be removed from a checkout because it is registered no more.
///
/// # Errors
/// When nothing is registered: that is a checkout of a part.
pub fn admit_removal(root: &Path) -> Result<(), OperatorError> {
    if has_registration(root) {
        return Ok(());
    }
    Err(OperatorError::NothingRegistered { path: root.display().to_string() })
}

/// Whether nothing but words about itself is in a directory: `cluster/apps` before the first app.
fn is_new(root: &Path) -> bool {
    let names =
        fs::read_dir(root).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.file_name());
    names.into_iter().all(|name| {
        let name = name.to_string_lossy();
        name.starts_with('.') || name.ends_with(".md")
    })
}

/// The place of a file below `root`, on the way to which there is no link.
fn no_link(root: &Path, file: &str) -> Result<PathBuf, OperatorError> {
    let mut path = root.to_owned();
    for part in file.split('/') {
        path.push(part);
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
            return Err(unreadable(&path, Error::new(ErrorKind::InvalidInput, "it is a symlink")));
        }
    }
    Ok(path)
}

fn rendered(
    commit: Option<Revision>,
    tree: &Tree,
    registrations: &Registrations,
    (judged, (migrations, unfit)): (&Judged, Migrations),
    settings: &Settings,
) -> Rendered {
    // An Application reads what is run before its sync once that is there.
    let there = tree.iter().map(|(path, entry)| (path.clone(), entry.clone()));
    let run = migrations.iter().map(|(path, text)| (path.clone(), Entry::regular(text.clone())));
    let with: Tree = there.chain(run).collect();
    let mut rendering = render::render(&with, registrations, &needs(judged), settings);
    rendering.files.extend(migrations);
    rendering.findings.extend(unfit);
    let differences = rendering.differing(tree).map(|(file, stands, content)| Difference {
        file: file.clone(),
        new: stands.is_none(),
        lines: lines(&String::from_utf8_lossy(stands.unwrap_or_default()), content),
        content: content.to_owned(),
    });
    let differences: Vec<Difference> = differences.collect();
    let mut findings: Vec<Finding> = registrations.findings.iter().map(Finding::from).collect();
    findings.extend(judged.findings.iter().cloned().map(Finding::from));
    findings.extend(rendering.findings.iter().map(Finding::from));
    findings.sort();
    Rendered {
        commit,
        files: rendering.files.len(),
        differences,
        withheld: rendering
            .withheld
            .into_iter()
            .map(|held| Withheld { file: held.file, why: held.why.to_string() })
            .collect(),
        stale: rendering.stale.iter().map(ToString::to_string).collect(),
        kept: rendering.kept,
        findings,
    }
}

/// What each app needs by what it declares, and why it is left alone.
fn needs(judged: &Judged) -> BTreeMap<AppName, Needs> {
    let needs = judged.subjects.iter().map(|(app, subject)| {
        let mut needs = needs_of(&subject.declares, &subject.file).unwrap_or_default();
        match &subject.declares {
            Declares::Nothing => {}
            Declares::Unreadable => needs.waits.push("its declaration cannot be read".to_owned()),
            Declares::Misregistered => needs.waits.push("its registration cannot be used".to_owned()),
            Declares::All(_) => {
                if judged.findings.iter().any(|finding| finding.apps.contains(app)) {
                    needs
                        .waits
                        .push(format!("`fabrique validate {app}` tells what is wrong with its declaration"));
                }
            }
        }
        needs.waits.extend(judged.waits.get(app).into_iter().flatten().map(Wait::to_string));
        (app.clone(), needs)
    });
    needs.collect()
}

/// The lines in which two texts differ, from the first to the last of them.
fn lines(before: &str, after: &str) -> Vec<String> {
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| pairs.take_while(|(a, b)| a == b).count();
    let head = same(&mut before.iter().zip(&after));
    let (old, new) = (&before[head..], &after[head..]);
    let tail = same(&mut old.iter().rev().zip(new.iter().rev()));
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    let mut told = Vec::new();
    for (sign, lines) in [('-', old), ('+', new)] {
        told.extend(lines.iter().take(SHOWN).map(|line| format!("{sign} {line}")));
        if lines.len() > SHOWN {
            told.push(format!("{sign} … and {} more", lines.len() - SHOWN));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_by_its_lines_alone() {
        assert_eq!(lines("a\nb\nc\n", "a\nB\nc\n"), ["- b", "+ B"]);
        assert_eq!(lines("a\na\n", "a\na\na\n"), ["+ a"]);
        assert_eq!(lines("same\n", "same\n"), [""; 0]);
        let long: String = (0..20).map(|line| format!("{line}\n")).collect();
        let told = lines("", &long);
        assert_eq!((told.len(), told[12].as_str()), (13, "+ … and 8 more"));
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(elsewhere.path(), root.path().join("applications")).unwrap();
        let difference = Difference {
            file: RelPath::parse("applications/a-prod.yaml").unwrap(),
            new: true,
            lines: Vec::new(),
            content: "x".to_owned(),
        };
        let mut rendered = Rendered {
            commit: None,
            files: 1,
            differences: vec![difference],
            withheld: Vec::new(),
            stale: Vec::new(),
            kept: Vec::new(),
            findings: Vec::new(),
        };
        assert_eq!(write(root.path(), &rendered, false).unwrap_err().exit(), Exit::Usage);
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        fs::remove_file(root.path().join("applications")).unwrap();
        write(root.path(), &rendered, false).unwrap();
        (rendered.stale, rendered.differences) = (vec!["applications/a-prod.yaml".to_owned()], Vec::new());
        write(root.path(), &rendered, false).unwrap();
        assert!(root.path().join("applications/a-prod.yaml").is_file(), "only where it is asked for");
        // Whose `apps/` is not checked out would lose everything.
        let refused = write(root.path(), &rendered, true).unwrap_err();
        assert!(
            refused.to_string().contains("registers no app") && refused.exit() == Exit::Usage,
            "{refused}"
        );
        assert!(root.path().join("applications/a-prod.yaml").is_file());
        fs::create_dir_all(root.path().join("apps/b")).unwrap();
        fs::write(root.path().join("apps/b/app.yaml"), "").unwrap();
        write(root.path(), &rendered, true).unwrap();
        assert!(!root.path().join("applications/a-prod.yaml").exists());
        assert_eq!((rendered.exit(true, true), rendered.exit(false, false)), (Exit::Ok, Exit::Findings));
    }

    #[test]
    fn a_folder_without_an_app_is_new_only_while_nothing_else_is_in_it() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(".git")).unwrap();
        fs::write(root.path().join("README.md"), "").unwrap();
        assert!(is_new(root.path()));
        fs::create_dir_all(root.path().join("src")).unwrap();
        assert!(!is_new(root.path()));
    }
}
