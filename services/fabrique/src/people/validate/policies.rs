//! Network policies in files, judged before anybody applies them. Policies add up: one that opens the world undoes
//! all others, whoever wrote it.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use fabrique_gitops::render::NETWORK_GROUPS;
use fabrique_kubernetes::network::{BUILDERS_NAMESPACE, findings_among, findings_in};
use fabrique_operator::OperatorError;
use fabrique_operator::validate::Finding;
use serde_json::Value;

use super::{not_read, whole_file};
use crate::people::trouble::Complaint;

/// The most manifests in one folder.
const MOST_FILES: usize = 10_000;
/// The largest manifest: policies are small, and lists of them are not large either.
const MOST_BYTES: u64 = 4 << 20;
/// How manifests are called in a folder. A file that is named itself may be called anything.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];
/// The kinds whose rules are understood.
const JUDGED: [&str; 3] = ["NetworkPolicy", "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"];

const STANDARD_INPUT: &str = "standard input";

/// What was judged, and what is wrong with it.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// How many policies.
    pub(super) policies: usize,
    /// What opens too much or cannot be judged, by file.
    pub(super) findings: Vec<Finding>,
    /// Whether a folder has manifests at all.
    has_manifests: bool,
}

/// Judges every policy in `paths`.
///
/// # Errors
/// When something cannot be read, or is too much.
pub(super) fn judge(paths: &[PathBuf]) -> anyhow::Result<Judged> {
    let mut all = Judged::default();
    for path in paths {
        let judged = if path.as_os_str() == "-" {
            let mut judged = Judged::default();
            judged.take(Path::new(STANDARD_INPUT), &read(io::stdin().lock(), Path::new(STANDARD_INPUT))?);
            judged.or_nothing(Path::new(STANDARD_INPUT))
        } else {
            of_files(path)?.or_nothing(path)
        };
        all.policies += judged.policies;
        all.findings.extend(judged.findings);
    }
    Ok(all)
}

fn of_files(path: &Path) -> anyhow::Result<Judged> {
    let files = manifests(path)?;
    let mut judged = Judged { has_manifests: path.is_dir() && !files.is_empty(), ..Judged::default() };
    for file in files {
        let opened = fs::File::open(&file).map_err(|error| unreadable(&file, error))?;
        judged.take(&file, &read(opened, &file)?);
    }
    Ok(judged)
}

impl Judged {
    /// A place that is misnamed must not pass for one without mistakes. A folder of manifests may well be without
    /// policies, as most apps are.
    fn or_nothing(mut self, place: &Path) -> Self {
        if self.policies == 0 && !self.has_manifests && self.findings.is_empty() {
            let remedy = "name the manifests that are applied".to_owned();
            self.findings.push(whole_file(place, "holds no network policy".to_owned(), remedy));
        }
        self
    }

    fn take(&mut self, file: &Path, text: &str) {
        match serde_saphyr::from_multiple::<Value>(text) {
            Ok(documents) => {
                documents.iter().for_each(|document| self.document(file, document));
                // One file is what is applied together; the files of a folder need not be.
                let remedy = "leave the plain rule out: Cilium's own opens DNS, for the names on its list";
                let told = findings_among(&documents, BUILDERS_NAMESPACE).into_iter();
                self.findings
                    .extend(told.map(|finding| whole_file(file, finding.to_string(), remedy.to_owned())));
            }
            Err(error) => {
                let remedy = "what cannot be read cannot be judged: name rendered manifests".to_owned();
                self.findings.push(not_read(file, &error, remedy));
            }
        }
    }

    fn document(&mut self, file: &Path, document: &Value) {
        let kind = document["kind"].as_str().unwrap_or_default();
        if kind.ends_with("List") {
            let items = document["items"].as_array().into_iter().flatten();
            items.for_each(|item| self.document(file, item));
        } else if JUDGED.contains(&kind) && !is_foreign(document) {
            self.policies += 1;
            let remedy = "name the hosts and ports that are needed; for builds, on the allow-list";
            let told = findings_in(document, BUILDERS_NAMESPACE).into_iter();
            self.findings
                .extend(told.map(|finding| whole_file(file, finding.to_string(), remedy.to_owned())));
        } else if kind.ends_with("NetworkPolicy") || kind.ends_with("Policy") && group(document).is_some() {
            let name = document["metadata"]["name"].as_str().unwrap_or("without a name");
            let of = group(document).map(|group| format!(" ({group})")).unwrap_or_default();
            let what = format!("{kind} {name}{of}: a kind whose rules are not understood");
            let remedy = format!("look at it yourself; judged are {}", JUDGED.join(", "));
            self.findings.push(whole_file(file, what, remedy));
        }
    }
}

/// The group of a kind that may open what NetworkPolicies close.
fn group(document: &Value) -> Option<&str> {
    let (group, _) = document["apiVersion"].as_str()?.split_once('/')?;
    NETWORK_GROUPS.contains(&group).then_some(group)
}

/// Others call their kinds NetworkPolicy too, and mean something else by the same words.
fn is_foreign(document: &Value) -> bool {
    group(document).is_some_and(|group| group != "cilium.io")
}

/// The file itself, or the manifests in a folder and below it, in order. Links to files are followed, as by whoever
/// applies the folder; links to folders are not, or this might never end.
fn manifests(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !fs::metadata(path).map_err(|error| unreadable(path, error))?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let (mut files, mut folders) = (Vec::new(), vec![path.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| unreadable(&folder, error))? {
            let entry = entry.map_err(|error| unreadable(&folder, error))?;
            let below = entry.path();
            let extension = below.extension().and_then(|extension| extension.to_str());
            if entry.file_type().map_err(|error| unreadable(&below, error))?.is_dir() {
                folders.push(below);
            } else if extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) && !below.is_dir() {
                files.push(below);
            }
        }
        if files.len() > MOST_FILES {
            let path = path.display();
            return Err(Complaint::usage(format!("{path} holds more than {MOST_FILES} manifests")).into());
        }
    }
    files.sort();
    Ok(files)
}

fn read(from: impl io::Read, name: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    from.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(name, error))?;
    if bytes.len() as u64 > MOST_BYTES {
        let limit = MOST_BYTES >> 20;
        return Err(Complaint::usage(format!("{} is larger than {limit} MiB", name.display())).into());
    }
    let no_text = |error| unreadable(name, io::Error::new(io::ErrorKind::InvalidData, error));
    Ok(String::from_utf8(bytes).map_err(no_text)?)
}

fn unreadable(path: &Path, source: io::Error) -> OperatorError {
    OperatorError::Directory { path: path.display().to_string(), source }
}
