//! Following a path in a parsed file.

use fabrique_core::image::ImageReference;

use super::syntax::{DocumentSelector, Path, Step, print_steps};
use crate::{Kind, Node, Yaml, suggest};

/// Why a path does not lead to exactly one scalar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathError {
    /// Nothing is there.
    NotFound {
        /// How far the path leads, and what is near: for people.
        found: String,
    },
    /// Several places match.
    Ambiguous {
        /// Their lines, from 1.
        lines: Vec<usize>,
    },
    /// The path crosses something that cannot be followed safely.
    Unsupported {
        /// The line, from 1.
        line: usize,
        /// What stands there.
        what: String,
    },
}

/// The one scalar that `path` leads to.
///
/// # Errors
/// When the path leads to nothing, to several places, to a collection, or across an anchor or alias (an
/// edit below an anchor would change every place that uses it).
pub fn resolve<'y>(yaml: &'y Yaml, path: &Path) -> Result<&'y Node, PathError> {
    let mut here = documents(yaml, path)?;
    for (done, step) in path.steps.iter().enumerate() {
        for node in &here {
            refuse_shared(node)?;
        }
        let next: Vec<&Node> = here.iter().flat_map(|node| follow(node, step)).collect();
        if next.is_empty() {
            return Err(PathError::NotFound { found: near(&here, &path.steps[..done], step) });
        }
        here = next;
    }
    match here.as_slice() {
        [node] => {
            refuse_shared(node)?;
            match node.kind {
                Kind::Scalar(..) => Ok(node),
                Kind::Sequence(_) | Kind::Mapping(_) | Kind::Alias => Err(PathError::NotFound {
                    found: format!("line {} holds {}, a scalar is expected", node.line, node.describe()),
                }),
            }
        }
        several => Err(PathError::Ambiguous { lines: several.iter().map(|node| node.line).collect() }),
    }
}

fn refuse_shared(node: &Node) -> Result<(), PathError> {
    let what = match &node.kind {
        Kind::Alias => "an alias stands on the path: its value is written elsewhere",
        Kind::Scalar(..) | Kind::Sequence(_) | Kind::Mapping(_) if node.anchored => {
            "an anchor stands on the path: other places use the same value"
        }
        Kind::Scalar(..) | Kind::Sequence(_) | Kind::Mapping(_) => return Ok(()),
    };
    Err(PathError::Unsupported { line: node.line, what: what.to_owned() })
}

fn documents<'y>(yaml: &'y Yaml, path: &Path) -> Result<Vec<&'y Node>, PathError> {
    let all = yaml.documents();
    let chosen: Vec<&Node> = match &path.document {
        DocumentSelector::Any => all.iter().collect(),
        DocumentSelector::Index(index) => all.get(*index).into_iter().collect(),
        DocumentSelector::Having(pairs) => {
            all.iter().filter(|doc| pairs.iter().all(|(key, value)| has(doc, key, value))).collect()
        }
    };
    if chosen.is_empty() {
        let names: Vec<String> = all
            .iter()
            .enumerate()
            .map(|(i, doc)| {
                let word = |key: &str| dotted(doc, key).and_then(Node::text).unwrap_or("?").to_owned();
                format!("({i}) {} {}", word("kind"), word("metadata.name"))
            })
            .take(suggest::SHOWN)
            .collect();
        let found = format!("no document matches; the file has {} ({})", all.len(), names.join(", "));
        return Err(PathError::NotFound { found });
    }
    Ok(chosen)
}

fn dotted<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    key.split('.').try_fold(node, |at, part| at.entry(part).map(|(_, value)| value))
}

fn has(node: &Node, key: &str, value: &str) -> bool {
    dotted(node, key).and_then(Node::text) == Some(value)
}

fn is_image(node: &Node, image: &str) -> bool {
    node.text().is_some_and(|text| {
        let new = text.rsplit_once('=').map_or(text, |(_, new)| new);
        ImageReference::split(new).repository == image
    })
}

fn follow<'n>(node: &'n Node, step: &Step) -> Vec<&'n Node> {
    match step {
        Step::Key(key) => {
            node.entries().iter().filter(|(k, _)| k.text() == Some(key)).map(|(_, v)| v).collect()
        }
        Step::Index(index) => node.items().get(*index).into_iter().collect(),
        Step::Having(key, value) => node.items().iter().filter(|item| has(item, key, value)).collect(),
        Step::Image(image) => node.items().iter().filter(|item| is_image(item, image)).collect(),
    }
}

/// What stands where the path ends, nearest first.
fn near(here: &[&Node], reached: &[Step], step: &Step) -> String {
    let place = if reached.is_empty() { "the document".to_owned() } else { print_steps(reached) };
    let texts = |of: &dyn Fn(&Node) -> Vec<String>| -> Vec<String> {
        here.iter().flat_map(|node| of(node)).collect()
    };
    let (wanted, there, word) = match step {
        Step::Key(key) => {
            let keys =
                texts(&|n| n.entries().iter().filter_map(|(k, _)| k.text().map(str::to_owned)).collect());
            (key.clone(), keys, "keys")
        }
        Step::Index(index) => {
            let counts = texts(&|n| vec![format!("{} items", n.items().len())]);
            (index.to_string(), counts, "length")
        }
        Step::Having(key, value) => {
            let values = texts(&|n| {
                n.items()
                    .iter()
                    .filter_map(|i| dotted(i, key).and_then(Node::text).map(str::to_owned))
                    .collect()
            });
            (value.clone(), values, "values")
        }
        Step::Image(image) => {
            let items = texts(&|n| n.items().iter().filter_map(|i| i.text().map(str::to_owned)).collect());
            (image.clone(), items, "items")
        }
    };
    let lines: Vec<String> = here.iter().map(|node| node.line.to_string()).collect();
    let at = format!("{place} (line {})", lines.join(", "));
    if there.is_empty() {
        let kinds: Vec<&str> = here.iter().map(|node| node.describe()).collect();
        return format!("{at} is {} without {step}", kinds.join(", "));
    }
    format!("{at} has no {step}, its {word}: {}", suggest::nearest(&wanted, &there).join(", "))
}
