//! The images that a build needs, read from its Dockerfile without a daemon: pure.
//!
//! What is named here is needed for certain, in the spelling that the daemon's source policy judges. Everything that
//! only a daemon can tell is left to it: arguments without a value, expansions beyond the plain ones, stages that the
//! target does not reach, files that do not parse. So what is refused by this would be refused by the daemon too; but for
//! a frontend of another language (`# syntax=`), which the daemon would leave out and build in its own.

use std::collections::BTreeMap;

use fabrique_core::build::BuildInputs;
use fabrique_core::image::{ImageReference, is_registry};
use parse_dockerfile::{ArgInstruction, Flag, Instruction};

/// The base that is no image.
const SCRATCH: &str = "scratch";
/// Where an image without a registry comes from.
const HUB: &str = "docker.io";
/// Arguments that the daemon sets by itself.
const AUTOMATIC: [&str; 2] = ["TARGET", "BUILD"];
/// Frontends of the language that the daemon's own speaks, by the last part of their names, wherever they are kept.
const OWN_LANGUAGE: [&str; 2] = ["dockerfile", "dockerfile-upstream"];

/// An image that is needed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Needed {
    /// The line that names it, from one.
    pub(crate) line: usize,
    /// In full: `docker.io/library/busybox:latest`.
    pub(crate) reference: String,
    /// It would not be a file system but the language of the Dockerfile.
    pub(crate) frontend: bool,
}

/// The images that building `inputs` from the Dockerfile `text` needs for certain, by line.
pub(crate) fn needed(text: &str, inputs: &BuildInputs) -> Vec<Needed> {
    let Ok(file) = parse_dockerfile::parse(text) else { return Vec::new() };
    let line = |at: usize| text.get(..at).map_or(0, |before| before.matches('\n').count()) + 1;
    let syntax = file.parser_directives.syntax.as_ref().and_then(|syntax| {
        let reference = in_full(syntax.value.value.trim())?;
        let name = ImageReference::split(&reference).repository.rsplit('/').next();
        let foreign = name.is_some_and(|name| !OWN_LANGUAGE.contains(&name));
        foreign.then(|| Needed {
            line: line(syntax.span().start),
            reference: reference.clone(),
            frontend: true,
        })
    });
    let mut arguments = Arguments::default();
    for argument in file.global_args() {
        arguments.declare(argument, &inputs.args);
    }
    let names: Vec<Option<String>> = file
        .stages()
        .map(|stage| stage.from.as_.as_ref().map(|(_, name)| name.value.to_ascii_lowercase()))
        .collect();
    let mut stages = Vec::with_capacity(names.len());
    for (number, stage) in file.stages().enumerate() {
        let earlier = &names[..number];
        let from = arguments.word(&stage.from.image.value).map(|name| base(&name, earlier));
        let mut needs = vec![(line(stage.from.from.span.start), from.unwrap_or(Base::Unknown))];
        for instruction in stage.instructions {
            let (at, sources) = sources(instruction);
            needs.extend(sources.into_iter().map(|source| (line(at), copied(&source, &names))));
        }
        stages.push(needs);
    }
    let reached = target(inputs.target.as_deref(), &names).map(|target| reach(&stages, target));
    let mut needed: Vec<Needed> = reached.unwrap_or_default().into_iter().chain(syntax).collect();
    needed.sort();
    needed.dedup();
    needed
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Base {
    Stage(usize),
    Image(String),
    Nothing,
    Unknown,
}

/// What `FROM name` builds on.
fn base(name: &str, earlier: &[Option<String>]) -> Base {
    if name == SCRATCH {
        return Base::Nothing;
    }
    stage(name, earlier).or_else(|| in_full(name).map(Base::Image)).unwrap_or(Base::Unknown)
}

/// What `--from=name` reads.
fn copied(name: &str, stages: &[Option<String>]) -> Base {
    if let Some(stage) = stage(name, stages) {
        return stage;
    }
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        let number = name.parse().ok().filter(|number| *number < stages.len());
        return number.map_or(Base::Unknown, Base::Stage);
    }
    if name == SCRATCH {
        return Base::Unknown;
    }
    in_full(name).map_or(Base::Unknown, Base::Image)
}

fn stage(name: &str, stages: &[Option<String>]) -> Option<Base> {
    let is = |stage: &Option<String>| stage.as_ref().is_some_and(|stage| stage.eq_ignore_ascii_case(name));
    stages.iter().rposition(is).map(Base::Stage)
}

/// The stage that is built; nothing when there is no such one, which the daemon says.
fn target(name: Option<&str>, stages: &[Option<String>]) -> Option<usize> {
    let Some(name) = name else { return stages.len().checked_sub(1) };
    match stage(name, stages) {
        Some(Base::Stage(number)) => Some(number),
        _ => name.parse().ok().filter(|number| *number < stages.len()),
    }
}

/// The images of `target` and of all stages that it needs.
fn reach(stages: &[Vec<(usize, Base)>], target: usize) -> Vec<Needed> {
    let (mut reached, mut open, mut images) = (vec![false; stages.len()], vec![target], Vec::new());
    while let Some(number) = open.pop() {
        if std::mem::replace(&mut reached[number], true) {
            continue;
        }
        for (line, base) in &stages[number] {
            match base {
                Base::Stage(other) => open.push(*other),
                Base::Image(reference) => {
                    images.push(Needed { line: *line, reference: reference.clone(), frontend: false });
                }
                Base::Nothing | Base::Unknown => {}
            }
        }
    }
    images
}

/// Where an instruction is, and the names that it copies or mounts from.
fn sources(instruction: &Instruction<'_>) -> (usize, Vec<String>) {
    let plain = |name: &&str| !name.is_empty() && !name.contains(['$', '"', '\'', '\\']);
    let values = |options: &[Flag<'_>], wanted: &str| -> Vec<String> {
        let wanted = options.iter().filter(|flag| flag.name.value == wanted);
        wanted.filter_map(|flag| flag.value.as_ref()).map(|value| value.value.to_string()).collect()
    };
    match instruction {
        Instruction::Copy(copy) => {
            let names = values(&copy.options, "from");
            (copy.copy.span.start, names.into_iter().filter(|name| plain(&name.as_str())).collect())
        }
        Instruction::Run(run) => {
            let mounts = values(&run.options, "mount");
            let from = |mount: String| {
                let fields = mount.split(',').filter_map(|field| field.split_once('='));
                let mut names =
                    fields.filter(|(key, _)| key.eq_ignore_ascii_case("from")).map(|(_, name)| name);
                names.next().filter(plain).map(str::to_owned)
            };
            (
                run.run.span.start,
                mounts.into_iter().filter(|mount| !mount.contains('"')).filter_map(from).collect(),
            )
        }
        _ => (0, Vec::new()),
    }
}

/// What is known of the arguments that a FROM may use. One whose value cannot be told has none.
#[derive(Debug, Default)]
struct Arguments(BTreeMap<String, Option<String>>);

impl Arguments {
    /// `ARG NAME=default …`: a value from outside goes before the default.
    fn declare(&mut self, argument: &ArgInstruction<'_>, given: &BTreeMap<String, String>) {
        for word in words(&argument.arguments.value) {
            let (name, default) = match word.split_once('=') {
                Some((name, default)) => (name, Some(default)),
                None => (word.as_str(), None),
            };
            let value = match (given.get(name), default) {
                (Some(given), _) => Some(given.clone()),
                (None, Some(default)) => self.word(default),
                (None, None) => continue,
            };
            self.0.insert(name.to_owned(), value);
        }
    }

    /// The word with its quotes taken off and its variables replaced, where that is plain.
    fn word(&self, word: &str) -> Option<String> {
        let quoted = |quote| word.strip_prefix(quote).and_then(|rest: &str| rest.strip_suffix(quote));
        let (inner, literal) = match (quoted('"'), quoted('\'')) {
            (Some(inner), _) => (inner, false),
            (None, Some(inner)) => (inner, true),
            (None, None) => (word, false),
        };
        if inner.contains(['"', '\'', '\\', '`']) || (literal && inner.contains('$')) {
            return None;
        }
        let mut text = String::with_capacity(inner.len());
        let mut rest = inner;
        while let Some((before, after)) = rest.split_once('$') {
            text.push_str(before);
            let (value, after) = self.variable(after)?;
            text.push_str(&value);
            rest = after;
        }
        text.push_str(rest);
        (!text.is_empty()).then_some(text)
    }

    /// The value of what follows a dollar sign, and what follows that.
    fn variable<'t>(&self, text: &'t str) -> Option<(String, &'t str)> {
        let (inner, after) = match text.strip_prefix('{') {
            Some(inner) => inner.split_once('}')?,
            None => {
                let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
                text.split_at(end)
            }
        };
        let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len());
        let (name, operator) = inner.split_at(end);
        if name.is_empty() || operator.contains(['$', '{']) {
            return None;
        }
        let automatic = AUTOMATIC.iter().any(|prefix| name.starts_with(prefix));
        let value = match self.0.get(name) {
            Some(None) => return None,
            Some(Some(value)) => Some(value.as_str()),
            None if automatic => return None,
            None => None,
        };
        let value = match (value, operator.strip_prefix(":-"), operator.strip_prefix('-')) {
            (Some(value), _, _) if operator.is_empty() => value,
            (value, Some(default), _) => value.filter(|value| !value.is_empty()).unwrap_or(default),
            (value, _, Some(default)) => value.unwrap_or(default),
            _ => return None,
        };
        Some((value.to_owned(), after))
    }
}

/// The words of a line, quotes and all.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for c in line.chars() {
        match (quote, c) {
            (None, ' ' | '\t') => words.push(String::new()),
            (open, c) => {
                match open {
                    None if c == '"' || c == '\'' => quote = Some(c),
                    Some(open) if open == c => quote = None,
                    _ => {}
                }
                if let Some(word) = words.last_mut() {
                    word.push(c);
                }
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A reference as the daemon completes it, after `distribution/reference`; nothing for one that it would not take.
fn in_full(name: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:/@".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return None;
    }
    let (domain, path) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (first, rest),
        Some(_) | None => (HUB, name),
    };
    let domain = if domain == "index.docker.io" { HUB } else { domain };
    let official = domain == HUB && !path.contains('/');
    let path = if official { format!("library/{path}") } else { path.to_owned() };
    let full = format!("{domain}/{path}");
    let named = ImageReference::split(&full).repository;
    if named.chars().any(|c| c.is_ascii_uppercase()) || named.ends_with('/') {
        return None;
    }
    let tagged = full.len() > named.len();
    Some(if tagged { full } else { format!("{full}:latest") })
}

#[cfg(test)]
mod tests;
