//! Manifests and patches that are read and never filled: JSON, and the patches that a kustomization holds as texts.

use fabrique_yaml::{Kind, Node, Style, Yaml};

use super::spots::{Scalar, inline_patches};
use super::{File, place};
use crate::At;

/// One of them.
pub(super) struct Inside {
    pub(super) yaml: Yaml,
    /// The text in a kustomization that it is.
    text: Option<At<()>>,
    /// Whether that text has its lines as they are written.
    is_block: bool,
}

impl Inside {
    /// A file of JSON, which is YAML but for tabs between its values: inside of them it has none.
    pub(super) fn json(file: File<'_>) -> Option<Self> {
        if !file.path.ends_with(".json") {
            return None;
        }
        let bytes: Vec<u8> =
            file.bytes.iter().map(|byte| if *byte == b'\t' { b' ' } else { *byte }).collect();
        let yaml = Yaml::parse(&bytes).ok()?;
        Some(Self { yaml, text: None, is_block: false })
    }

    /// The patches in a kustomization. A text that names a file, or is no YAML, is none.
    pub(super) fn patches(kustomization: &Yaml) -> Vec<Self> {
        let read = |node: &Node| {
            let yaml = Yaml::parse(node.text()?.as_bytes()).ok()?;
            let is_patch = |node: &Node| !node.entries().is_empty() || !node.items().is_empty();
            let is_block = matches!(node.kind, Kind::Scalar(_, Style::Block));
            yaml.documents().iter().any(is_patch).then(|| Self { text: Some(place(node)), is_block, yaml })
        };
        inline_patches(kustomization).into_iter().filter_map(read).collect()
    }

    /// Whether it is this text of its file.
    pub(super) fn is_of(&self, node: &Node) -> bool {
        self.text == Some(place(node))
    }

    /// Where a scalar of it stands in the file; the patch as a whole where that is not certain.
    pub(super) fn place(&self, file: File<'_>, scalar: &Scalar<'_>) -> At<()> {
        let own = scalar.place();
        let Some(text) = self.text else { return own };
        if !self.is_block {
            return text;
        }
        // The text begins where its first line does, and all are indented alike.
        let at = At { value: (), line: text.line + own.line - 1, column: text.column + own.column - 1 };
        let all = String::from_utf8_lossy(file.bytes);
        let written = all.lines().nth(at.line - 1).unwrap_or_default().chars().skip(at.column - 1);
        let begins = scalar.text.lines().next().unwrap_or_default();
        if written.collect::<String>().contains(begins) { at } else { text }
    }
}
