//! `spec.build.resources`: what builds get of the machine they run on.

use fabrique_core::app::BuildResources;
use fabrique_core::quantity::{Bytes, Millicores};
use fabrique_yaml::Fields;

/// Below this no daemon starts reliably.
const LEAST_MEMORY: Bytes = Bytes::mebi(128);
/// What a daemon and its logs need of the disk beside the cache.
const LEAST_STORAGE: Bytes = Bytes::mebi(64);
/// Below this a build does not get anywhere.
const LEAST_CPU: Millicores = Millicores(10);

/// Reads the field. What builds may have at the most is the builders' own configuration, which is not known here.
pub(super) fn read(build: &Fields<'_>) -> Option<BuildResources> {
    let reader = build.reader;
    let Some(node) = build.get("resources") else { return Some(BuildResources::default()) };
    let known = ["cpu", "cpu_limit", "memory", "memory_limit", "ephemeral_storage"];
    let fields = reader.mapping(node, "build.resources", &known)?;
    let cpu = at_least(&fields, "cpu", &LEAST_CPU);
    let cpu_limit = at_least(&fields, "cpu_limit", &LEAST_CPU);
    let memory = at_least(&fields, "memory", &LEAST_MEMORY);
    let memory_limit = at_least(&fields, "memory_limit", &LEAST_MEMORY);
    let storage = at_least(&fields, "ephemeral_storage", &LEAST_STORAGE);
    within(&fields, "cpu", cpu.flatten(), "cpu_limit", cpu_limit.flatten());
    within(&fields, "memory", memory.flatten(), "memory_limit", memory_limit.flatten());
    Some(BuildResources {
        cpu: cpu?,
        cpu_limit: cpu_limit?,
        memory: memory?,
        memory_limit: memory_limit?,
        ephemeral_storage: storage?,
    })
}

fn at_least<T>(fields: &Fields<'_>, name: &str, least: &T) -> Option<Option<T>>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
    T::Err: std::fmt::Display,
{
    let amount: Option<T> = fields.optional(name)?;
    let node = fields.get(name);
    if let (Some(amount), Some(node)) = (&amount, node)
        && amount < least
    {
        fields.reader.report(
            node,
            format!("build.resources.{name} is {amount}, too little to build with"),
            format!("write {least} or more"),
        );
    }
    Some(amount)
}

fn within<T>(fields: &Fields<'_>, name: &str, amount: Option<T>, limit_name: &str, limit: Option<T>)
where
    T: PartialOrd + std::fmt::Display,
{
    if let (Some(amount), Some(limit), Some(node)) = (amount, limit, fields.get(limit_name))
        && limit < amount
    {
        fields.reader.report(
            node,
            format!("{limit_name} is {limit}, below the {name} of {amount}"),
            format!("write {amount} or more"),
        );
    }
}
