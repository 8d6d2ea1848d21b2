//! Replacing bytes, and proving that nothing else changed.

use crate::node::{Kind, Node, Style, Yaml};
use crate::{YamlError, scalar};

/// A scalar and its new text.
#[derive(Debug, Clone, Copy)]
pub struct Replacement<'y> {
    /// The scalar to replace: a node of the text that is edited.
    pub node: &'y Node,
    /// The new text.
    pub text: &'y str,
}

/// Replaces scalars, changing no other byte.
///
/// The new text is written in the style of the old one, except that a plain scalar is quoted where its
/// new text would not stay a string.
///
/// # Errors
/// When a target is not a scalar on certain bytes: null, a block scalar, a plain scalar over several
/// lines, an alias; when it carries an anchor or a tag; when two replacements hit one scalar; or when the
/// result does not parse to the same events with exactly those scalars replaced.
pub fn replace_scalars(yaml: &Yaml, replacements: &[Replacement<'_>]) -> Result<Vec<u8>, YamlError> {
    let mut edits = Vec::new();
    let mut wanted = yaml.events.clone();
    for Replacement { node, text } in replacements {
        let (old, style) = editable(node)?;
        if old == *text {
            continue;
        }
        let (written, style) = scalar::written(text, style).ok_or_else(|| {
            YamlError::at(
                node,
                "the new value does not fit in this kind of quotes",
                "use double quotes there",
            )
        })?;
        let Some(range) = node.exact.clone() else {
            return Err(uncertain(node));
        };
        let Some(event) = wanted.get_mut(node.event) else {
            return Err(uncertain(node));
        };
        event.text = (*text).to_owned();
        event.style = Some(style);
        edits.push((range, written, *node));
    }
    edits.sort_by_key(|(range, ..)| range.start);
    let mut out = String::with_capacity(yaml.text.len() + 64);
    let mut done = 0;
    for (range, written, node) in edits {
        // Overlap means one scalar twice (or a node of another text).
        let kept = yaml.text.get(done..range.start).ok_or_else(|| uncertain(node))?;
        out.push_str(kept);
        out.push_str(&written);
        done = range.end;
    }
    out.push_str(&yaml.text[done..]);
    let after = Yaml::parse(out.as_bytes())?;
    if after.events != wanted {
        let node = replacements.first().map_or_else(|| yaml.documents().first(), |r| Some(r.node));
        return Err(node.map_or_else(
            || YamlError { line: 1, column: 1, what: NOT_PROVEN.to_owned(), remedy: REWRITE },
            |node| YamlError::at(node, NOT_PROVEN, REWRITE),
        ));
    }
    Ok(out.into_bytes())
}

/// Puts `written`, a one-line value in flow syntax, under `key` of `mapping`, whatever stood there.
///
/// An entry that is missing is put before the first one. The caller parses the result and compares it
/// with what it wanted: this function only promises to touch no byte outside of the entry.
///
/// # Errors
/// When the bytes of the old value are not certain.
pub fn put_value(yaml: &Yaml, mapping: &Node, key: &str, written: &str) -> Result<Vec<u8>, YamlError> {
    let text = &yaml.text;
    let (range, new) = match mapping.entry(key) {
        Some((key_node, value)) => {
            if value.anchored || value.tag.is_some() || key_node.anchored {
                return Err(YamlError::at(
                    value,
                    "an anchor or a tag stands here",
                    "write the value without it",
                ));
            }
            match value.exact.clone() {
                Some(range) => (range, written.to_owned()),
                None => (after_colon(text, key_node, value)?, format!(" {written}")),
            }
        }
        None => missing(text, mapping, key, written)?,
    };
    let mut out = text.clone();
    out.replace_range(range, &new);
    Ok(out.into_bytes())
}

/// From behind the key's colon to the end of a value that has no certain beginning.
fn after_colon(text: &str, key: &Node, value: &Node) -> Result<std::ops::Range<usize>, YamlError> {
    let key_end = key.exact.as_ref().map(|range| range.end).ok_or_else(|| uncertain(key))?;
    let rest = &text[key_end..];
    let colon = rest.find(':').filter(|at| rest[..*at].trim().is_empty()).ok_or_else(|| uncertain(key))?;
    let start = key_end + colon + 1;
    let nothing = matches!(&value.kind, Kind::Scalar(text, Style::Plain) if text.is_empty());
    let end = if nothing { Some(start) } else { value.certain_end() };
    Ok(start..end.filter(|end| *end >= start).ok_or_else(|| uncertain(value))?)
}

fn missing(
    text: &str,
    mapping: &Node,
    key: &str,
    written: &str,
) -> Result<(std::ops::Range<usize>, String), YamlError> {
    let flow = mapping.exact.is_some();
    let Some((first, _)) = mapping.entries().first() else {
        let range = mapping.exact.clone().ok_or_else(|| uncertain(mapping))?;
        return Ok((range, format!("{{ {key}: {written} }}")));
    };
    let start = first.start;
    if flow {
        return Ok((start..start, format!("{key}: {written}, ")));
    }
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let indent = &text[line_start..start];
    if !indent.chars().all(|c| c == ' ') {
        return Err(uncertain(mapping));
    }
    let line_end = if text[start..].lines().next().is_some_and(|l| text[start + l.len()..].starts_with('\r'))
    {
        "\r\n"
    } else {
        "\n"
    };
    Ok((start..start, format!("{key}: {written}{line_end}{indent}")))
}

const NOT_PROVEN: &str = "the edit would change more than this value";
const REWRITE: &str = "write the value as a quoted string on one line";

fn uncertain(node: &Node) -> YamlError {
    YamlError::at(node, format!("{} cannot be replaced here without risk", node.describe()), REWRITE)
}

/// The text and style of a scalar that may be replaced.
fn editable(node: &Node) -> Result<(&str, Style), YamlError> {
    let refuse = |what: String| Err(YamlError::at(node, what, REWRITE));
    if node.anchored {
        return refuse("the value carries an anchor: other places would change with it".to_owned());
    }
    if let Some(tag) = &node.tag {
        return refuse(format!("the value carries the tag {tag}"));
    }
    match &node.kind {
        Kind::Scalar(..) if node.is_null() => refuse("the value is null".to_owned()),
        Kind::Scalar(text, style @ (Style::Plain | Style::Single | Style::Double))
            if node.exact.is_some() =>
        {
            Ok((text, *style))
        }
        Kind::Scalar(_, Style::Block) => refuse("the value is a block scalar".to_owned()),
        Kind::Scalar(..) => refuse("the value spans several lines".to_owned()),
        Kind::Sequence(_) | Kind::Mapping(_) | Kind::Alias => {
            refuse(format!("a scalar is expected, {} is there", node.describe()))
        }
    }
}
