//! What registrations ask for beyond what the builders' own configuration permits.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use fabrique_core::quantity::{Bytes, Millicores};
use fabrique_declarations::{At, Finding};
use fabrique_yaml::{Node, Yaml};
use humantime::{format_duration, parse_duration};

use crate::layout;
use crate::tree::Tree;

/// The most that builds may have, by `max` and `pool.longest_build` in the builders' own configuration; no bound where it
/// is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ceiling {
    /// Processor time, reserved or as a limit.
    pub cpu: Option<Millicores>,
    /// Memory, at first or after an attempt that ran out of it.
    pub memory: Option<Bytes>,
    /// Room on the node's disk.
    pub ephemeral_storage: Option<Bytes>,
    /// How long a build may take: every pod lasts for that.
    pub timeout: Option<Duration>,
}

/// Every amount in a `spec.build.resources`, and every `spec.build.timeout`, that is above `most`, with its place, in order of file and line. No such app
/// is built, which a push would otherwise be the first to tell. What cannot be read at all is told by
/// [`super::Registrations::load`], and not here.
#[must_use]
pub fn above(tree: &Tree, most: &Ceiling) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _) in tree.iter() {
        let (Some(_), Ok(Some(bytes))) = (layout::registered_in(path), tree.read(path)) else { continue };
        let Ok(yaml) = Yaml::parse(bytes) else { continue };
        let build = yaml.documents().first().and_then(build);
        let asked = build.and_then(|build| Some(build.entry("resources")?.1));
        findings.extend(asked.into_iter().flat_map(|asked| of_one(path.as_str(), asked, most)));
        findings.extend(build.and_then(|build| too_long(path.as_str(), build, most.timeout?)));
    }
    findings.sort();
    findings
}

fn build(document: &Node) -> Option<&Node> {
    ["spec", "build"].iter().try_fold(document, |node, key| Some(node.entry(key)?.1))
}

fn too_long(file: &str, build: &Node, most: Duration) -> Option<Finding> {
    let node = build.entry("timeout")?.1;
    let wanted = parse_duration(node.text()?).ok()?;
    (wanted > most).then(|| {
        let (wanted, most) = (format_duration(wanted), format_duration(most));
        Finding::between(
            file,
            At { value: (), line: node.line, column: node.column },
            format!("build.timeout of {wanted}"),
            format!("pool.longest_build of the builders' file permits {most} at the most"),
            format!("ask for {most} or less, or raise pool.longest_build there"),
        )
    })
}

fn of_one(file: &str, asked: &Node, most: &Ceiling) -> Vec<Finding> {
    let cpu = |field| over::<Millicores>(file, asked, field, "cpu", most.cpu);
    let memory = |field| over::<Bytes>(file, asked, field, "memory", most.memory);
    let storage = |field| over::<Bytes>(file, asked, field, "ephemeral_storage", most.ephemeral_storage);
    let all = [
        cpu("cpu"),
        cpu("cpu_limit"),
        memory("memory"),
        memory("memory_limit"),
        storage("ephemeral_storage"),
    ];
    all.into_iter().flatten().collect()
}

fn over<T>(file: &str, asked: &Node, field: &str, key: &str, most: Option<T>) -> Option<Finding>
where
    T: FromStr + Ord + Display,
{
    let (most, node) = (most?, asked.entry(field)?.1);
    let wanted: T = node.text()?.parse().ok()?;
    (wanted > most).then(|| {
        Finding::between(
            file,
            At { value: (), line: node.line, column: node.column },
            format!("build.resources.{field} of {wanted}"),
            format!("max.{key} of the builders' file permits {most} at the most"),
            format!("ask for {most} or less, or raise max.{key} there"),
        )
    })
}
