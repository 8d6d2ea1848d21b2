//! Parsing into nodes that know which bytes they are.

use std::collections::BTreeSet;
use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::YamlError;

/// The largest text that is parsed, in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// The deepest nesting that is parsed: far beyond any manifest, far below the stack.
const MAX_DEPTH: usize = 64;

/// How a scalar is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Without quotes.
    Plain,
    /// `'…'`
    Single,
    /// `"…"`
    Double,
    /// `|` or `>`
    Block,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A scalar's text, undecoded by any schema: `3.10` stays `3.10`.
    Scalar(String, Style),
    /// A sequence.
    Sequence(Vec<Node>),
    /// A mapping, in order.
    Mapping(Vec<(Node, Node)>),
    /// A reference to an anchor.
    Alias,
}

/// A node of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Its line, from 1.
    pub line: usize,
    /// Its column in characters, from 1.
    pub column: usize,
    /// Whether an anchor is attached.
    pub anchored: bool,
    /// The tag, if one is written.
    pub tag: Option<String>,
    /// Its first byte, from the start of the text.
    pub(crate) start: usize,
    /// Its bytes, where they are certain: one-line plain scalars, quoted scalars, flow collections.
    pub(crate) exact: Option<Range<usize>>,
    /// Its place in the event stream.
    pub(crate) event: usize,
}

impl Node {
    /// The text of a scalar that is not null.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar(text, _) if !self.is_null() => Some(text),
            Kind::Scalar(..) | Kind::Sequence(_) | Kind::Mapping(_) | Kind::Alias => None,
        }
    }

    /// Whether this is an unquoted null: nothing, `~` or `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar(text, Style::Plain) if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The entry under `key`.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<(&Node, &Node)> {
        self.entries().iter().find(|(k, _)| k.text() == Some(key)).map(|(k, v)| (k, v))
    }

    /// The entries of a mapping; none for anything else.
    #[must_use]
    pub fn entries(&self) -> &[(Node, Node)] {
        match &self.kind {
            Kind::Mapping(entries) => entries,
            Kind::Scalar(..) | Kind::Sequence(_) | Kind::Alias => &[],
        }
    }

    /// The items of a sequence; none for anything else.
    #[must_use]
    pub fn items(&self) -> &[Node] {
        match &self.kind {
            Kind::Sequence(items) => items,
            Kind::Scalar(..) | Kind::Mapping(_) | Kind::Alias => &[],
        }
    }

    /// The word for what this is, for messages.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match &self.kind {
            Kind::Scalar(..) if self.is_null() => "null",
            Kind::Scalar(_, Style::Block) => "a block scalar",
            Kind::Scalar(..) => "a scalar",
            Kind::Sequence(_) => "a list",
            Kind::Mapping(_) => "a mapping",
            Kind::Alias => "an alias",
        }
    }

    /// Its bytes in the text, where they are certain: one-line plain scalars, quoted scalars, flow collections.
    #[must_use]
    pub fn bytes(&self) -> Option<Range<usize>> {
        self.exact.clone()
    }

    /// The first byte after the node, where it is certain.
    pub(crate) fn certain_end(&self) -> Option<usize> {
        match &self.kind {
            Kind::Sequence(items) if self.exact.is_none() => items.last()?.certain_end(),
            Kind::Mapping(entries) if self.exact.is_none() => entries.last()?.1.certain_end(),
            Kind::Scalar(..) | Kind::Sequence(_) | Kind::Mapping(_) | Kind::Alias => {
                self.exact.as_ref().map(|range| range.end)
            }
        }
    }

    /// Calls `visit` on this node and every node below it, keys too.
    pub fn walk<'n>(&'n self, visit: &mut dyn FnMut(&'n Node)) {
        visit(self);
        for item in self.items() {
            item.walk(visit);
        }
        for (key, value) in self.entries() {
            key.walk(visit);
            value.walk(visit);
        }
    }
}

/// One event without its place, for comparing two texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flat {
    pub(crate) what: &'static str,
    pub(crate) text: String,
    pub(crate) style: Option<Style>,
    pub(crate) anchor: usize,
    pub(crate) tag: Option<String>,
}

/// A parsed text of one or several documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Yaml {
    pub(crate) text: String,
    pub(crate) events: Vec<Flat>,
    documents: Vec<Node>,
}

impl Yaml {
    /// Parses UTF-8 text, with or without a byte order mark.
    ///
    /// # Errors
    /// When it is not UTF-8, larger than 1 MiB, nested deeper than 64, not YAML, or when a mapping has a
    /// key twice.
    pub fn parse(bytes: &[u8]) -> Result<Self, YamlError> {
        let whole = |what: String, remedy| YamlError { line: 1, column: 1, what, remedy };
        if bytes.len() > MAX_BYTES {
            return Err(whole(
                format!("the file has {} bytes, the limit is {MAX_BYTES}", bytes.len()),
                "split it",
            ));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|e| whole(format!("not UTF-8 after byte {}", e.valid_up_to()), "save it as UTF-8"))?;
        let mut builder = Builder::new(text);
        builder.run()?;
        let Builder { events, documents, .. } = builder;
        let yaml = Self { text: text.to_owned(), events, documents };
        for document in &yaml.documents {
            refuse_duplicate_keys(document)?;
        }
        Ok(yaml)
    }

    /// The documents, in order.
    #[must_use]
    pub fn documents(&self) -> &[Node] {
        &self.documents
    }
}

fn refuse_duplicate_keys(document: &Node) -> Result<(), YamlError> {
    let mut twice = None;
    document.walk(&mut |node| {
        let mut seen = BTreeSet::new();
        for (key, _) in node.entries() {
            if let Kind::Scalar(text, _) = &key.kind
                && !seen.insert(text.as_str())
                && twice.is_none()
            {
                twice = Some(YamlError::at(
                    key,
                    format!("the key {text:?} is written twice"),
                    "keep one of them",
                ));
            }
        }
    });
    twice.map_or(Ok(()), Err)
}

struct Builder<'t> {
    text: &'t str,
    /// The length of the byte order mark, which the parser is not shown.
    skipped: usize,
    /// The byte offset of every character, and of the end.
    offsets: Vec<usize>,
    events: Vec<Flat>,
    documents: Vec<Node>,
    open: Vec<Open>,
}

struct Open {
    node: Node,
    /// A mapping's key that waits for its value.
    key: Option<Node>,
}

impl<'t> Builder<'t> {
    fn new(text: &'t str) -> Self {
        let skipped = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let offsets =
            text[skipped..].char_indices().map(|(at, _)| at + skipped).chain([text.len()]).collect();
        Self { text, skipped, offsets, events: Vec::new(), documents: Vec::new(), open: Vec::new() }
    }

    fn run(&mut self) -> Result<(), YamlError> {
        for next in Parser::new_from_str(&self.text[self.skipped..]) {
            let (event, span) = next.map_err(|e| YamlError {
                line: e.marker().line(),
                column: e.marker().col() + 1,
                what: format!("not YAML: {}", e.info()),
                remedy: "correct the syntax",
            })?;
            self.on(event, span)?;
        }
        Ok(())
    }

    fn on(&mut self, event: Event<'_>, span: Span) -> Result<(), YamlError> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.map(|t| t.to_string());
                let style = match style {
                    ScalarStyle::Plain => Style::Plain,
                    ScalarStyle::SingleQuoted => Style::Single,
                    ScalarStyle::DoubleQuoted => Style::Double,
                    ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
                };
                let mut node = self.node(Kind::Scalar(text.to_string(), style), span, anchor, tag.clone());
                node.exact = self.scalar_bytes(&text, style, node.start);
                self.flat("scalar", text.to_string(), Some(style), anchor, tag);
                self.close(node);
            }
            Event::SequenceStart(anchor, tag) => {
                self.open(Kind::Sequence(Vec::new()), "sequence", span, anchor, tag.map(|t| t.to_string()))?;
            }
            Event::MappingStart(anchor, tag) => {
                self.open(Kind::Mapping(Vec::new()), "mapping", span, anchor, tag.map(|t| t.to_string()))?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.flat("end", String::new(), None, 0, None);
                if let Some(Open { mut node, .. }) = self.open.pop() {
                    node.exact = self.flow_bytes(node.start, self.byte(span.start.index()));
                    self.close(node);
                }
            }
            Event::Alias(anchor) => {
                let node = self.node(Kind::Alias, span, 0, None);
                self.flat("alias", String::new(), None, anchor, None);
                self.close(node);
            }
            Event::DocumentStart(_) => self.flat("document", String::new(), None, 0, None),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn node(&self, kind: Kind, span: Span, anchor: usize, tag: Option<String>) -> Node {
        Node {
            kind,
            line: span.start.line(),
            column: span.start.col() + 1,
            anchored: anchor != 0,
            tag,
            start: self.byte(span.start.index()),
            exact: None,
            event: self.events.len(),
        }
    }

    fn open(
        &mut self,
        kind: Kind,
        what: &'static str,
        span: Span,
        anchor: usize,
        tag: Option<String>,
    ) -> Result<(), YamlError> {
        let node = self.node(kind, span, anchor, tag.clone());
        if self.open.len() >= MAX_DEPTH {
            return Err(YamlError::at(&node, format!("nested deeper than {MAX_DEPTH}"), "flatten it"));
        }
        self.flat(what, String::new(), None, anchor, tag);
        self.open.push(Open { node, key: None });
        Ok(())
    }

    fn close(&mut self, node: Node) {
        let Some(parent) = self.open.last_mut() else {
            self.documents.push(node);
            return;
        };
        match &mut parent.node.kind {
            Kind::Sequence(items) => items.push(node),
            Kind::Mapping(entries) => match parent.key.take() {
                None => parent.key = Some(node),
                Some(key) => entries.push((key, node)),
            },
            Kind::Scalar(..) | Kind::Alias => {}
        }
    }

    fn flat(
        &mut self,
        what: &'static str,
        text: String,
        style: Option<Style>,
        anchor: usize,
        tag: Option<String>,
    ) {
        self.events.push(Flat { what, text, style, anchor, tag });
    }

    /// The parser counts characters.
    fn byte(&self, character: usize) -> usize {
        self.offsets.get(character).copied().unwrap_or(self.text.len())
    }

    /// The bytes of a scalar, or nothing when they are not certain. The parser's end is not used (it may lie
    /// after a trailing comment) and its start is checked on the text (that of a null is misplaced).
    fn scalar_bytes(&self, value: &str, style: Style, start: usize) -> Option<Range<usize>> {
        let end = match style {
            Style::Plain if value.is_empty() => return None,
            Style::Plain => start + value.len(),
            Style::Single => start + quoted_length(self.text.get(start..)?, '\'')?,
            Style::Double => start + quoted_length(self.text.get(start..)?, '"')?,
            Style::Block => return None,
        };
        let written = self.text.get(start..end)?;
        let certain = match style {
            Style::Plain => written == value,
            Style::Single | Style::Double => decodes_to(written, value),
            Style::Block => false,
        };
        certain.then_some(start..end)
    }

    fn flow_bytes(&self, start: usize, last: usize) -> Option<Range<usize>> {
        let at = |byte: usize| self.text.as_bytes().get(byte).copied();
        matches!((at(start), at(last)), (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')))
            .then_some(start..last + 1)
    }
}

/// The length of the quoted scalar at the start of `text`, quotes included.
fn quoted_length(text: &str, quote: char) -> Option<usize> {
    let mut rest = text.char_indices().peekable();
    if rest.next()?.1 != quote {
        return None;
    }
    while let Some((at, c)) = rest.next() {
        if c == '\\' && quote == '"' {
            rest.next();
        } else if c == quote {
            if quote == '\'' && rest.peek().is_some_and(|(_, next)| *next == quote) {
                rest.next();
            } else {
                return Some(at + quote.len_utf8());
            }
        }
    }
    None
}

fn decodes_to(written: &str, value: &str) -> bool {
    let mut scalars = Parser::new_from_str(written).filter_map(|next| match next {
        Ok((Event::Scalar(text, ..), _)) => Some(text.to_string()),
        Ok(_) | Err(_) => None,
    });
    scalars.next().as_deref() == Some(value) && scalars.next().is_none()
}
