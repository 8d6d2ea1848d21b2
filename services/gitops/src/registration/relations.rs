//! What only shows when several declarations are looked at together.

use std::collections::BTreeMap;

use fabrique_core::app::{App, Environment, ImageFrom, InfraFrom, Source};
use fabrique_core::id::{Channel, EnvironmentName, ImageRepository, RelPath, RepoName};
use fabrique_core::upstream::Upstream;
use fabrique_yaml::{Finding, Node, Reader};

/// What no two apps may say of the same thing. Nothing tells which of the two was there first, so both wait.
pub(super) fn between_apps(apps: &[(RelPath, App)]) -> Vec<Finding> {
    let mut findings = shared_images(apps);
    findings.extend(two_origins(apps));
    findings
}

/// No two apps share an image: each would take the other's digests for its own.
fn shared_images(apps: &[(RelPath, App)]) -> Vec<Finding> {
    let mut by_image: BTreeMap<&ImageRepository, Vec<&(RelPath, App)>> = BTreeMap::new();
    for entry in apps {
        by_image.entry(&entry.1.image).or_default().push(entry);
    }
    let mut findings = Vec::new();
    for (image, sharing) in by_image.into_iter().filter(|(_, sharing)| sharing.len() > 1) {
        for (path, app) in &sharing {
            let others: Vec<&str> = sharing
                .iter()
                .map(|(_, other)| other.name.as_str())
                .filter(|name| *name != app.name.as_str())
                .collect();
            findings.push(Finding {
                file: path.as_str().to_owned(),
                line: 0,
                column: 0,
                what: format!("the image {image} is also the image of {}", others.join(", ")),
                remedy: "give each app its own image".to_owned(),
            });
        }
    }
    findings
}

/// A repository mirrors one other: no two apps that are built from it name different ones. One that names none is built
/// from whatever is there.
fn two_origins(apps: &[(RelPath, App)]) -> Vec<Finding> {
    type Naming<'a> = (&'a RelPath, &'a App, &'a RepoName);
    let mut by_repo: BTreeMap<String, Vec<Naming<'_>>> = BTreeMap::new();
    for (path, app) in apps {
        let Some(Upstream { github, .. }) = &app.source.upstream else { continue };
        // Both forges compare names without case.
        let repo = app.source.repo.to_string().to_ascii_lowercase();
        by_repo.entry(repo).or_default().push((path, app, github));
    }
    let mut findings = Vec::new();
    for naming in by_repo.values() {
        for (path, app, github) in naming {
            let others: Vec<String> = naming
                .iter()
                .filter(|(_, _, other)| !other.same_as(github))
                .map(|(other, _, origin)| format!("{origin} in {other}"))
                .collect();
            if others.is_empty() {
                continue;
            }
            findings.push(Finding {
                file: path.as_str().to_owned(),
                line: 0,
                column: 0,
                what: format!("{} mirrors {github} here, and {}", app.source.repo, others.join(", ")),
                remedy: "name one source.github for a repository, or mirror the other into one of its own"
                    .to_owned(),
            });
        }
    }
    findings
}

/// Every environment that another one is promoted from exists, and following them ends.
pub(super) fn between_environments(reader: &Reader<'_>, environments: &[(&Node, Environment)]) {
    for channel in [Channel::Image, Channel::Infra] {
        let sources: BTreeMap<&EnvironmentName, Option<&EnvironmentName>> =
            environments.iter().map(|(_, e)| (&e.name, source(e, channel))).collect();
        for (node, environment) in environments {
            let Some(from) = source(environment, channel) else { continue };
            if !sources.contains_key(from) {
                let names: Vec<&str> = sources.keys().map(|name| name.as_str()).collect();
                reader.report(
                    node,
                    format!(
                        "the {channel} of {} comes from {from}, which is not an environment",
                        environment.name
                    ),
                    format!("use one of {}", names.join(", ")),
                );
            } else if returns_to(&environment.name, &sources) {
                reader.report(
                    node,
                    format!("the {channel} of {} comes from itself through {from}", environment.name),
                    "let one environment of the circle come from build, head, pinned or files",
                );
            }
        }
    }
}

/// An overlay follows the head of the branch that is built: with another repository there would be two
/// heads to follow, and no order between them.
pub(super) fn overlays_and_source(
    reader: &Reader<'_>,
    environments: &[(&Node, Environment)],
    built: &Source,
) {
    for (node, environment) in environments {
        let Some(overlay) = environment.infra.overlay().filter(|o| !o.repo.same_as(&built.repo)) else {
            continue;
        };
        reader.report(
            node,
            format!(
                "the infra of {} comes from {}, and the source is {}",
                environment.name, overlay.repo, built.repo
            ),
            "keep the overlay in the source's repository, or its files in cluster/apps with infra.from: files",
        );
    }
}

fn source(environment: &Environment, channel: Channel) -> Option<&EnvironmentName> {
    match channel {
        Channel::Image => match &environment.image {
            ImageFrom::Environment(name) => Some(name),
            ImageFrom::Build => None,
        },
        Channel::Infra => match &environment.infra {
            InfraFrom::Environment(name) => Some(name),
            InfraFrom::Files | InfraFrom::Head(_) | InfraFrom::Pinned(_) => None,
        },
    }
}

fn returns_to(
    start: &EnvironmentName,
    sources: &BTreeMap<&EnvironmentName, Option<&EnvironmentName>>,
) -> bool {
    let mut at = start;
    for _ in 0..sources.len() {
        match sources.get(at).copied().flatten() {
            Some(next) if next == start => return true,
            Some(next) => at = next,
            None => return false,
        }
    }
    false
}
