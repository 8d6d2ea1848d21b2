//! An app's own repository, in a directory and without any server.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fabrique_core::id::{AppName, RelPath};
use fabrique_declarations::contract::{self, Placeholder};
use fabrique_declarations::overlay::{self, File};
use fabrique_declarations::{Contract, Declaration, Finding, manifest};
use fabrique_gitops::overlay::{Collector, Next, OUTSIDE};
use fabrique_gitops::{Entry, Refusal, layout, registration};

use super::Declared;
use crate::error::OperatorError;
use crate::validate::{Reading, unreadable};

/// The most entries of a repository that are looked at for declarations.
const MOST_ENTRIES: usize = 500_000;
/// The largest declaration that is read at all; a smaller limit is told with its place.
const MOST_BYTES: u64 = 1 << 20;
/// Where the overlay of an app is, beside its declaration.
const OVERLAY: &str = "deploy/overlays/prod";
/// Folders of tools, which hold nothing of the app.
const SKIPPED: [&str; 2] = ["node_modules", "target"];

/// Whether a directory is a checkout of `cluster/apps`, by a contract of ours or a registration in it.
#[must_use]
pub fn is_cluster_apps(root: &Path) -> bool {
    // Others have contracts too.
    let contract = fs::read_to_string(root.join(contract::FILE_NAME)).unwrap_or_default();
    has_registration(root) || contract.contains("fabrique/v1")
}

/// Whether an app is registered in a directory, well or not.
pub(crate) fn has_registration(root: &Path) -> bool {
    let registrations = fs::read_dir(root.join(layout::APPS)).into_iter().flatten().filter_map(Result::ok);
    registrations.map(|app| app.path().join(registration::FILE_NAME)).any(|file| file.is_file())
}

/// Checks every declaration below `root`, and the overlay beside each; or the overlays that are named, by their paths
/// from `root`. Their placeholders are those of the `contract`, which is a file; or the usual ones. Reads files: call it where
/// blocking is allowed. Symlinks are not followed.
///
/// # Errors
/// When a file cannot be read, or there are too many.
pub fn directory(
    root: &Path,
    overlays: &[RelPath],
    contract: Option<&Path>,
) -> Result<Declared, OperatorError> {
    let mut declared = Declared::default();
    let placeholders = match contract.map(placeholders).transpose()? {
        None => Some(Placeholder::both()),
        Some(Ok(placeholders)) => Some(placeholders),
        Some(Err(findings)) => {
            declared.findings.extend(findings);
            None
        }
    };
    // Where each app's declaration lies: what is at or below it is about that app.
    let mut apps: BTreeMap<RelPath, AppName> = BTreeMap::new();
    for path in declarations(root)? {
        let file = path.as_str();
        let full = root.join(file);
        let bytes = match fs::metadata(&full).map_err(|source| unreadable(&full, source))? {
            metadata if metadata.len() > MOST_BYTES => {
                declared.findings.push(Finding::of_file(file, "is larger than 1 MiB", "shorten it"));
                continue;
            }
            _ => fs::read(&full).map_err(|source| unreadable(&full, source))?,
        };
        match Declaration::parse(file, &bytes) {
            Ok(declaration) => {
                declared.declarations += 1;
                let app = declaration.code_location.value;
                if let Some((other, _)) = apps.iter().find(|(_, other)| **other == app) {
                    let what = format!("codeLocation {app} is declared in {other} as well");
                    declared.findings.push(Finding::of_file(file, what, "give each app its own name"));
                }
                apps.insert(parent(&path), app);
            }
            Err(findings) => declared.findings.extend(findings),
        }
    }
    let mut looked_at = 0;
    for (directory, app) in wanted(root, &apps, overlays, &mut declared.findings) {
        // Without a contract that can be read nobody knows what an overlay has to hold.
        let Some(placeholders) = &placeholders else { continue };
        looked_at += 1;
        declared.findings.extend(overlay(root, &directory, &app, placeholders)?);
    }
    declared.overlays = Some(looked_at);
    declared.findings.sort();
    Ok(declared)
}

/// What a contract says of placeholders, or what is wrong with it.
fn placeholders(contract: &Path) -> Result<Result<Vec<Placeholder>, Vec<Finding>>, OperatorError> {
    let name = contract.display().to_string();
    let size = fs::metadata(contract).map_err(|source| unreadable(contract, source))?.len();
    if size > MOST_BYTES {
        return Ok(Err(vec![Finding::of_file(&name, "is larger than 1 MiB", "name a contract.yaml")]));
    }
    let bytes = fs::read(contract).map_err(|source| unreadable(contract, source))?;
    Ok(Contract::parse(&name, &bytes).map(|contract| contract.placeholders))
}

/// Every declaration below `root`, in order.
fn declarations(root: &Path) -> Result<Vec<RelPath>, OperatorError> {
    let (mut found, mut left, mut seen) = (Vec::new(), vec![root.to_owned()], 0);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).map_err(|source| unreadable(&directory, source))? {
            let entry = entry.map_err(|source| unreadable(&directory, source))?;
            seen += 1;
            if seen > MOST_ENTRIES {
                let limit = format!("{MOST_ENTRIES} entries");
                return Err(OperatorError::TooBig { path: root.display().to_string(), limit });
            }
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            let kind = entry.file_type().map_err(|source| unreadable(&path, source))?;
            if kind.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name.as_ref()) {
                left.push(path);
            } else if kind.is_file() && name == manifest::FILE_NAME {
                found.extend(relative(root, &path));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn relative(root: &Path, path: &Path) -> Option<RelPath> {
    RelPath::parse(path.strip_prefix(root).ok()?.to_str()?).ok()
}

fn parent(path: &RelPath) -> RelPath {
    let parent = path.as_str().rsplit_once('/').and_then(|(parent, _)| RelPath::parse(parent).ok());
    parent.unwrap_or_else(RelPath::root)
}

/// The overlays to look at, each with its app.
fn wanted(
    root: &Path,
    apps: &BTreeMap<RelPath, AppName>,
    named: &[RelPath],
    findings: &mut Vec<Finding>,
) -> Vec<(RelPath, AppName)> {
    if named.is_empty() {
        let beside = apps.iter().filter_map(|(directory, app)| {
            let overlay = directory.join(&RelPath::parse(OVERLAY).ok()?);
            root.join(overlay.as_str()).is_dir().then(|| (overlay, app.clone()))
        });
        return beside.collect();
    }
    let mut wanted = Vec::new();
    for overlay in named {
        // The nearest declaration above it, or the only one there is.
        let above = apps.iter().filter(|(directory, _)| overlay.is_within(directory));
        let nearest = above.max_by_key(|(directory, _)| directory.as_str().len());
        let only = apps.iter().next().filter(|_| apps.len() == 1);
        match nearest.or(only) {
            Some((_, app)) => wanted.push((overlay.clone(), app.clone())),
            None => {
                let what = format!("no {} that can be read lies above it", manifest::FILE_NAME);
                findings.push(Finding::of_file(
                    overlay.as_str(),
                    what,
                    "add or correct the app's declaration",
                ));
            }
        }
    }
    wanted
}

/// Checks one overlay with everything that it reaches, as it would be copied.
fn overlay(
    root: &Path,
    directory: &RelPath,
    app: &AppName,
    placeholders: &[Placeholder],
) -> Result<Vec<Finding>, OperatorError> {
    let mut collector = Collector::new(directory.clone());
    let collected = loop {
        match collector.next() {
            Ok(Some(next)) => match read(root, &next) {
                Ok(files) => collector.add(next, files),
                Err((path, error @ OperatorError::TooBig { .. })) => {
                    break Err(collector.refuse(&path, &error.to_string(), "refer to a smaller directory"));
                }
                Err((_, error)) => return Err(error),
            },
            Ok(None) => break collector.finish(),
            Err(refusal) => break Err(refusal),
        }
    };
    let files = match collected {
        Ok(files) => files,
        Err(refusal) => return Ok(vec![refused(directory, refusal)]),
    };
    let absent = files.absent(directory);
    let outside = format!("{OUTSIDE}/");
    let copied: Vec<(String, &[u8], bool)> = files
        .iter()
        .map(|(path, bytes)| match path.as_str().strip_prefix(&outside) {
            Some(elsewhere) => (elsewhere.to_owned(), &bytes[..], false),
            None => (directory.join(path).to_string(), &bytes[..], true),
        })
        .collect();
    let files: Vec<File<'_>> =
        copied.iter().map(|(path, bytes, own)| File { path, bytes, own: *own }).collect();
    let mut findings = overlay::findings(app, placeholders, directory.as_str(), &files);
    findings.extend(absent.into_iter().map(Finding::from));
    findings.sort();
    findings.dedup();
    Ok(findings)
}

/// What the collector asks for, by path from `root`. An error comes with what it is about.
fn read(root: &Path, next: &Next) -> Result<BTreeMap<RelPath, Entry>, (RelPath, OperatorError)> {
    match next {
        Next::Files(paths) => {
            let mut files = BTreeMap::new();
            for path in paths {
                let file = Reading::file(&root.join(path.as_str())).map_err(|error| (path.clone(), error))?;
                files.extend(file.map(|entry| (path.clone(), entry)));
            }
            Ok(files)
        }
        Next::Directory(directory) => {
            let base = root.join(directory.as_str());
            if !base.is_dir() {
                return Ok(BTreeMap::new());
            }
            let files = Reading::of(&base).map_err(|error| (directory.clone(), error))?;
            Ok(files.into_iter().map(|(path, entry)| (directory.join(&path), entry)).collect())
        }
    }
}

/// What cannot be copied.
fn refused(directory: &RelPath, refusal: Refusal) -> Finding {
    match refusal {
        Refusal::BadFile(finding) => Finding::from(*finding),
        other => {
            let said = other.to_string();
            let (what, remedy) = said.rsplit_once("; ").unwrap_or((&said, "correct the overlay"));
            Finding::of_file(directory.as_str(), what, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    const KUSTOMIZATION: &str = "\
resources: [../../base]
images:
  - { name: 'registry:80/citation', digest: __CITATION_IMAGE_DIGEST__ }
";
    const PATCH: &str = "\
spec: { containers: [{ name: a, env: [{ name: DAGSTER_CURRENT_IMAGE, value: __CITATION_IMAGE__ }] }] }
";
    const BASE: &str = "spec: { containers: [{ name: a, image: registry:80/citation }] }\n";

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn declaration(name: &str) -> String {
        format!("codeLocation: {name}\nready: true\ncontractVersion: 1\n")
    }

    /// A repository with an app in a folder and its overlay.
    fn repository() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "ops/citation/code-location.manifest.yaml", &declaration("citation"));
        write(root.path(), "ops/citation/deploy/overlays/prod/kustomization.yaml", KUSTOMIZATION);
        write(root.path(), "ops/citation/deploy/overlays/prod/patch.yaml", PATCH);
        write(root.path(), "ops/citation/deploy/base/kustomization.yaml", "resources: [d.yaml]\n");
        write(root.path(), "ops/citation/deploy/base/d.yaml", BASE);
        root
    }

    fn told(declared: &Declared) -> String {
        declared.findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_repository_without_findings_is_well() {
        let root = repository();
        write(root.path(), ".git/code-location.manifest.yaml", "nonsense");
        let declared = directory(root.path(), &[], None).unwrap();
        assert_eq!((declared.declarations, declared.overlays, told(&declared).as_str()), (1, Some(1), ""));
        assert_eq!(declared.exit(), Exit::Ok);
    }

    #[test]
    fn declarations_overlays_and_the_bases_that_they_reach_are_checked_at_once() {
        let root = repository();
        write(root.path(), "ops/other/code-location.manifest.yaml", "codeLocation: other\nrady: true\n");
        write(root.path(), "ops/second/code-location.manifest.yaml", &declaration("citation"));
        write(
            root.path(),
            "ops/citation/deploy/base/d.yaml",
            &BASE.replace("citation }", "citation }, { image: 'x:1' }"),
        );
        write(
            root.path(),
            "ops/citation/deploy/overlays/prod/patch.yaml",
            &PATCH.replace("__CITATION_IMAGE__", "citation:0.0.0"),
        );
        let declared = directory(root.path(), &[], None).unwrap();
        assert_eq!(declared.exit(), Exit::Findings);
        insta::assert_snapshot!(told(&declared));
    }

    #[test]
    fn an_overlay_elsewhere_is_named_and_belongs_to_the_nearest_declaration() {
        let root = repository();
        write(root.path(), "ops/citation/eu/kustomization.yaml", "images: []\n");
        write(root.path(), "elsewhere/kustomization.yaml", "images: []\n");
        let overlays = ["ops/citation/eu", "elsewhere", "ops/citation/deploy/overlays/prod", "nowhere"];
        let overlays = overlays.map(|path| RelPath::parse(path).unwrap());
        let declared = directory(root.path(), &overlays, None).unwrap();
        assert_eq!(declared.overlays, Some(4));
        insta::assert_snapshot!(told(&declared));
    }

    #[test]
    fn the_placeholders_are_those_of_the_contract_that_is_named() {
        let root = repository();
        for file in ["kustomization.yaml", "patch.yaml"] {
            let file = format!("ops/citation/deploy/overlays/prod/{file}");
            let text = fs::read_to_string(root.path().join(&file)).unwrap();
            let text = text.replace("__CITATION_IMAGE_DIGEST__", "__CITATION_DIGEST__");
            write(root.path(), &file, &text.replace("__CITATION_IMAGE__", "__CITATION_REF__"));
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let contract = elsewhere.path().join("contract.yaml");
        let text = "\
apiVersion: fabrique/v1
kind: Contract
version: 1
accepts: [1]
endpoints: { gitea: 'http://gitea:3000', argocd: 'http://argocd', registry: 'registry:80', nats: 'nats://nats:4222' }
placeholders:
  - { name: __<APP>_DIGEST__, form: digest, place: { images: digest } }
  - { name: __<APP>_REF__, form: reference, place: { env: DAGSTER_CURRENT_IMAGE } }
environments: { prod: {} }
";
        fs::write(&contract, text).unwrap();
        let named = directory(root.path(), &[], Some(&contract)).unwrap();
        assert_eq!((told(&named).as_str(), named.overlays), ("", Some(1)));
        let usual = directory(root.path(), &[], None).unwrap();
        assert!(told(&usual).contains("the placeholder __CITATION_IMAGE__ is missing"), "{}", told(&usual));
        fs::write(&contract, "nonsense: true\n").unwrap();
        let wrong = directory(root.path(), &[], Some(&contract)).unwrap();
        assert!(
            wrong.overlays == Some(0) && told(&wrong).contains("contract.yaml:1:1: "),
            "{}",
            told(&wrong)
        );
        let missing = directory(root.path(), &[], Some(Path::new("/nowhere"))).unwrap_err();
        assert_eq!(missing.exit(), Exit::Usage);
    }

    #[test]
    fn what_is_reached_is_read_without_its_neighbours() {
        let root = repository();
        // More than is read of a checkout.
        for neighbour in [".git/objects", "target/debug", "ops/citation/conf/huge"] {
            write(root.path(), neighbour, "");
            let file = fs::File::options().write(true).open(root.path().join(neighbour)).unwrap();
            file.set_len(200 << 20).unwrap();
        }
        write(root.path(), "ops/citation/conf/LICENSE", "MIT");
        write(root.path(), "patch.yaml", "kind: Deployment\n");
        let kustomization = "ops/citation/deploy/overlays/prod/kustomization.yaml";
        let more = format!(
            "{KUSTOMIZATION}patches: [{{ path: ../../../../../patch.yaml }}]\nconfigMapGenerator: [{{ files: [../../../conf/LICENSE] }}]\n"
        );
        write(root.path(), kustomization, &more);
        assert_eq!(told(&directory(root.path(), &[], None).unwrap()), "");
        write(root.path(), kustomization, &more.replace("conf/LICENSE", "conf"));
        let told = told(&directory(root.path(), &[], None).unwrap());
        assert!(told.contains("kustomization.yaml:5:32: \"../../../conf\" cannot be copied: "), "{told}");
    }

    #[test]
    fn what_could_not_be_copied_is_a_finding() {
        let root = repository();
        let missing = KUSTOMIZATION.replace("../../base", "../../bass");
        write(root.path(), "ops/citation/deploy/overlays/prod/kustomization.yaml", &missing);
        assert!(
            told(&directory(root.path(), &[], None).unwrap())
                .contains("kustomization.yaml:1:13: \"../../bass\" does not exist")
        );
        std::os::unix::fs::symlink("/etc/passwd", root.path().join("ops/citation/deploy/overlays/prod/link"))
            .unwrap();
        write(root.path(), "ops/citation/deploy/overlays/prod/kustomization.yaml", KUSTOMIZATION);
        assert!(
            told(&directory(root.path(), &[], None).unwrap())
                .contains("symlinks and submodules are not copied")
        );
    }

    #[test]
    fn what_the_cluster_would_have_to_fetch_is_told_once_with_all_else() {
        let root = repository();
        let remote =
            KUSTOMIZATION.replace("[../../base]", "[../../base, ghost.yaml, 'https://host/base?ref=v1']");
        let kustomization = "ops/citation/deploy/overlays/prod/kustomization.yaml";
        write(root.path(), kustomization, &remote.replace("__CITATION_IMAGE_DIGEST__", "x"));
        insta::assert_snapshot!(told(&directory(root.path(), &[], None).unwrap()), @r#"
        ops/citation/deploy/overlays/prod/kustomization.yaml: the placeholder __CITATION_IMAGE_DIGEST__ is missing; write it as images[].digest of the kustomization
        ops/citation/deploy/overlays/prod/kustomization.yaml:1:47: "ghost.yaml" does not exist at this revision; correct the reference
        ops/citation/deploy/overlays/prod/kustomization.yaml:1:59: "https://host/base?ref=v1" is not in this repository; copy it into the repository: the cluster fetches nothing
        ops/citation/deploy/overlays/prod/kustomization.yaml:3:45: a literal digest stands where the cluster fills one; write digest: __CITATION_IMAGE_DIGEST__
        "#);
    }

    #[test]
    fn cluster_apps_is_recognised_by_a_registration_or_the_contract() {
        let root = repository();
        assert!(!is_cluster_apps(root.path()));
        write(root.path(), "apps/web/main.rs", "");
        assert!(!is_cluster_apps(root.path()), "an app may have a folder of that name");
        write(root.path(), "apps/a/app.yaml", "");
        assert!(is_cluster_apps(root.path()));
        let root = repository();
        write(root.path(), "contract.yaml", "openapi: 3.1.0\n");
        assert!(!is_cluster_apps(root.path()), "others have contracts too");
        write(root.path(), "contract.yaml", "apiVersion: fabrique/v1\n");
        assert!(is_cluster_apps(root.path()));
    }
}
