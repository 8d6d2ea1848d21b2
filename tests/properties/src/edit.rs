//! Edits of YAML: all or nothing, and byte-exact elsewhere.

use fabrique_yaml::{Kind, Node, Replacement, Style, Yaml, put_value, replace_scalars};

/// How many of the scalars of an edit are tried alone as well.
const ALONE: usize = 8;

/// Whatever text is YAML, and whichever of its values are replaced at once: either all of them show the new text and
/// every other byte is what it was, or it is refused. `chosen` picks the values, a bit each. Returns whether there was an
/// edit.
///
/// # Panics
/// Where that does not hold.
pub fn edit(bytes: &[u8], chosen: &[u8], new: &str) -> bool {
    let Ok(yaml) = Yaml::parse(bytes) else { return false };
    let (nodes, keys) = (nodes(&yaml), keys(&yaml));
    let is_value = |number: &usize| {
        let node = nodes[*number];
        matches!(node.kind, Kind::Scalar(..)) && !keys.iter().any(|key| std::ptr::eq(*key, node))
    };
    let picked: Vec<usize> = (0..nodes.len())
        .filter(is_value)
        .enumerate()
        .filter(|(bit, _)| chosen.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1))
        .map(|(_, number)| number)
        .collect();
    let replacements: Vec<Replacement<'_>> =
        picked.iter().map(|number| Replacement { node: nodes[*number], text: new }).collect();
    let edited = replace_scalars(&yaml, &replacements);
    match &edited {
        Ok(after) => {
            elsewhere_nothing_changed(bytes, after, &replacements, new);
            shows(&nodes, after, &picked, new);
            // What is refused alone has to be refused among others, or half of an edit would be made.
            for one in replacements.iter().take(ALONE) {
                assert!(replace_scalars(&yaml, &[*one]).is_ok(), "made among others and not alone");
            }
        }
        Err(_) => assert!(!replacements.is_empty(), "nothing to replace was refused"),
    }
    for mapping in nodes.iter().filter(|node| matches!(node.kind, Kind::Mapping(_))) {
        put(bytes, &yaml, mapping);
    }
    edited.is_ok_and(|after| after != bytes)
}

/// The scalars that are keys: nobody edits those.
fn keys(yaml: &Yaml) -> Vec<&Node> {
    let mut keys = Vec::new();
    for document in yaml.documents() {
        document.walk(&mut |node| keys.extend(node.entries().iter().map(|(key, _)| key)));
    }
    keys
}

/// Every node of every document, in the order in which they are written.
fn nodes(yaml: &Yaml) -> Vec<&Node> {
    let mut nodes = Vec::new();
    for document in yaml.documents() {
        document.walk(&mut |node| nodes.push(node));
    }
    nodes
}

/// Walks both texts side by side: the same bytes, then a scalar in each, then the same bytes again.
fn elsewhere_nothing_changed(before: &[u8], after: &[u8], replacements: &[Replacement<'_>], new: &str) {
    let mut ranges: Vec<(std::ops::Range<usize>, bool)> = replacements
        .iter()
        .map(|one| (one.node.bytes().expect("an edited scalar has its bytes"), one.node.text() == Some(new)))
        .collect();
    ranges.sort_by_key(|(range, _)| range.start);
    let (mut from, mut to) = (0, 0);
    for (range, same) in ranges {
        let kept = &before[from..range.start];
        assert!(after[to..].starts_with(kept), "other bytes before byte {} changed", range.start);
        to += kept.len();
        let width = if same { range.len() } else { width(&after[to..], new) };
        if same {
            assert_eq!(after[to..to + width], before[range.clone()], "rewritten without need");
        }
        (from, to) = (range.end, to + width);
    }
    assert_eq!(&after[to..], &before[from..], "bytes behind the last edit changed");
}

/// The bytes of the scalar that was just written at the beginning of `text`.
fn width(text: &[u8], new: &str) -> usize {
    let quoted = |end: fn(&[u8], usize) -> Option<usize>| {
        let mut at = 1;
        while at < text.len() {
            match end(text, at) {
                Some(next) => at = next,
                None => return at + 1,
            }
        }
        panic!("quotes without an end");
    };
    match text.first() {
        Some(b'"') => quoted(|text, at| match text[at] {
            b'\\' => Some(at + 2),
            b'"' => None,
            _ => Some(at + 1),
        }),
        Some(b'\'') => quoted(|text, at| match text[at] {
            b'\'' if text.get(at + 1) == Some(&b'\'') => Some(at + 2),
            b'\'' => None,
            _ => Some(at + 1),
        }),
        _ => {
            assert!(text.starts_with(new.as_bytes()), "something else than {new:?} was written");
            new.len()
        }
    }
}

/// The picked scalars are texts that say `new`, and all other nodes are what they were.
fn shows(before: &[&Node], after: &[u8], picked: &[usize], new: &str) {
    let after = Yaml::parse(after).expect("an edited text is YAML");
    let after = nodes(&after);
    assert_eq!(before.len(), after.len(), "nodes came or went");
    for (number, (old, now)) in before.iter().zip(after).enumerate() {
        let same = match (&old.kind, &now.kind) {
            (Kind::Scalar(_, style), Kind::Scalar(text, written)) if picked.contains(&number) => {
                assert_eq!(text, new);
                written == style || (*style == Style::Plain && *written == Style::Double)
            }
            (Kind::Scalar(old, style), Kind::Scalar(text, written)) => old == text && style == written,
            (Kind::Sequence(old), Kind::Sequence(now)) => old.len() == now.len(),
            (Kind::Mapping(old), Kind::Mapping(now)) => old.len() == now.len(),
            (Kind::Alias, Kind::Alias) => true,
            _ => false,
        };
        assert!(same && old.anchored == now.anchored && old.tag == now.tag, "{old:?} became {now:?}");
    }
}

/// Putting a value under a key that is there replaces that value's bytes and no others; under one that is not, it only adds.
fn put(bytes: &[u8], yaml: &Yaml, mapping: &Node) {
    const WRITTEN: &str = "{ by: ada, reason: \"x\" }";
    const ABSENT: &str = "hold-that-is-not-there";
    let first = mapping.entries().iter().find_map(|(key, _)| key.text());
    for key in first.into_iter().chain([ABSENT]) {
        let Ok(after) = put_value(yaml, mapping, key, WRITTEN) else { continue };
        assert!(std::str::from_utf8(&after).is_ok(), "half a character");
        match mapping.entry(key).map(|(_, value)| value.bytes()) {
            Some(Some(range)) => {
                let wanted = [&bytes[..range.start], WRITTEN.as_bytes(), &bytes[range.end..]].concat();
                assert_eq!(after, wanted, "{key}");
            }
            // An old value without certain bytes, from behind its colon.
            Some(None) => {}
            None if mapping.entries().is_empty() => {}
            None => {
                let same = bytes.iter().zip(&after).take_while(|(old, new)| old == new).count();
                assert!(after.ends_with(&bytes[same..]), "bytes of the mapping went away for {key}");
            }
        }
    }
}
