//! Changing a composition that people wrote or commented, without touching anything else in it.

use fabrique_core::app::Composition;
use fabrique_core::id::RelPath;
use fabrique_yaml::{Node, Replacement, Yaml, YamlError, put_value, replace_scalars};

use super::text::{Fields, Spelled, flow, image_fields, infra_fields};
use super::{first, parse};
use crate::refusal::Refusal;

/// `bytes` with the values of `wanted`, every other byte unchanged.
///
/// A text that replaces a text keeps its quotes; a null, a hold or a missing field is written in place as
/// a flow value. The result is parsed and must be `wanted`.
///
/// # Errors
/// [`Refusal::BadFile`] when `bytes` is no composition, [`Refusal::UnsupportedYaml`] when a value cannot be
/// changed without risk to the rest of the file.
pub(crate) fn edit(path: &RelPath, bytes: &[u8], wanted: &Composition) -> Result<Vec<u8>, Refusal> {
    let read = |bytes: &[u8]| parse(path, bytes, &wanted.app, &wanted.environment);
    let before = read(bytes).map_err(first)?;
    let unsupported = |error: YamlError| Refusal::UnsupportedYaml {
        file: path.clone(),
        line: error.line,
        what: error.what,
        remedy: error.remedy.to_owned(),
    };
    let mut text = bytes.to_vec();
    for (channel, old, new) in [
        ("image", image_fields(&before.image), image_fields(&wanted.image)),
        ("infra", infra_fields(&before.infra), infra_fields(&wanted.infra)),
    ] {
        if old != new {
            text = edit_channel(&text, channel, &old, &new).map_err(unsupported)?;
        }
    }
    match read(&text) {
        Ok(after) if after == *wanted => Ok(text),
        Ok(_) | Err(_) => Err(Refusal::UnsupportedYaml {
            file: path.clone(),
            line: 1,
            what: "the composition cannot be edited without risk".to_owned(),
            remedy: "write each channel on one line as { key: value }".to_owned(),
        }),
    }
}

fn edit_channel(bytes: &[u8], channel: &str, old: &Fields, new: &Fields) -> Result<Vec<u8>, YamlError> {
    let mut text = bytes.to_vec();
    if old.iter().zip(new).any(|((before, _), (after, _))| before != after) {
        // An overlay in place of a chart: no field stays what it was.
        let yaml = Yaml::parse(&text)?;
        let Some(root) = yaml.documents().first() else { return Ok(text) };
        return put_value(&yaml, root, channel, &flow(new));
    }
    // Missing fields go before the first one: from last to first they end up in canonical order.
    for ((key, before), (_, after)) in old.iter().zip(new).rev() {
        if before == after {
            continue;
        }
        let yaml = Yaml::parse(&text)?;
        let Some(root) = yaml.documents().first() else { return Ok(text) };
        text = match root.entry(channel) {
            None => return Ok(append(&text, channel, new)),
            Some((_, value)) if value.is_null() => return put_value(&yaml, root, channel, &flow(new)),
            Some((_, mapping)) => set(&yaml, mapping, key, after)?,
        };
    }
    Ok(text)
}

/// Adds a channel that the file does not mention, as its last line.
fn append(text: &[u8], channel: &str, fields: &Fields) -> Vec<u8> {
    let line_end = if text.windows(2).any(|pair| pair == b"\r\n") { "\r\n" } else { "\n" };
    let mut out = text.to_vec();
    if !out.ends_with(b"\n") {
        out.extend_from_slice(line_end.as_bytes());
    }
    out.extend_from_slice(format!("{channel}: {}{line_end}", flow(fields)).as_bytes());
    out
}

fn set(yaml: &Yaml, mapping: &Node, key: &str, new: &Spelled) -> Result<Vec<u8>, YamlError> {
    match (new, mapping.entry(key)) {
        (Spelled::Text(text, _), Some((_, node))) if node.text().is_some() => {
            replace_scalars(yaml, &[Replacement { node, text }])
        }
        (Spelled::Text(..) | Spelled::Mapping(_) | Spelled::Null, _) => {
            put_value(yaml, mapping, key, new.written())
        }
    }
}
