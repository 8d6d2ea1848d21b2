//! The path to a node that was found in another way.

use super::resolve::resolve;
use super::syntax::{DocumentSelector, Path, Step};
use crate::{Kind, Node, Yaml};

/// What tells items of a list apart in every manifest.
const NAME: &str = "name";

/// A path that leads to `target`, a scalar of `yaml`, and to nothing else; nothing when none does, as below an anchor.
///
/// An item of a list is called by its `name`, and a document by its kind and name, where these tell it apart: such a
/// path still leads there after a person added something above it.
#[must_use]
pub fn path_to(yaml: &Yaml, target: &Node) -> Option<Path> {
    let documents = yaml.documents();
    let at = documents.iter().position(|document| steps_to(document, target, false).is_some())?;
    let selectors: Vec<DocumentSelector> = match documents {
        [_] => vec![DocumentSelector::Any],
        _ => called(&documents[at]).into_iter().chain([DocumentSelector::Index(at)]).collect(),
    };
    let candidates = selectors.into_iter().flat_map(|document| {
        [true, false].map(|by_name| {
            steps_to(&documents[at], target, by_name).map(|steps| Path { document: document.clone(), steps })
        })
    });
    candidates.flatten().find(|path| leads_to(yaml, path, target))
}

/// Whether the path, written down and read again, leads to exactly this node.
fn leads_to(yaml: &Yaml, path: &Path, target: &Node) -> bool {
    let read = path.to_string().parse::<Path>();
    read.is_ok_and(|read| read == *path && resolve(yaml, path).is_ok_and(|found| std::ptr::eq(found, target)))
}

fn called(document: &Node) -> Option<DocumentSelector> {
    let text = |keys: &[&str]| {
        let node = keys.iter().try_fold(document, |at, key| at.entry(key).map(|(_, value)| value))?;
        Some((keys.join("."), node.text()?.to_owned()))
    };
    Some(DocumentSelector::Having(vec![text(&["kind"])?, text(&["metadata", NAME])?]))
}

fn steps_to(node: &Node, target: &Node, by_name: bool) -> Option<Vec<Step>> {
    if std::ptr::eq(node, target) {
        return Some(Vec::new());
    }
    let (step, rest) = match &node.kind {
        Kind::Mapping(entries) => entries.iter().find_map(|(key, value)| {
            let rest = steps_to(value, target, by_name)?;
            Some((Step::Key(key.text()?.to_owned()), rest))
        })?,
        Kind::Sequence(items) => items.iter().enumerate().find_map(|(index, item)| {
            let rest = steps_to(item, target, by_name)?;
            let name = item.entry(NAME).and_then(|(_, name)| name.text()).filter(|_| by_name);
            let named = name.map(|name| Step::Having(NAME.to_owned(), name.to_owned()));
            Some((named.unwrap_or(Step::Index(index)), rest))
        })?,
        Kind::Scalar(..) | Kind::Alias => return None,
    };
    Some(std::iter::once(step).chain(rest).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The path to the one scalar that is `wanted`.
    fn path(text: &str, wanted: &str) -> Option<String> {
        let yaml = Yaml::parse(text.as_bytes()).unwrap();
        let mut found = Vec::new();
        yaml.documents().iter().for_each(|document| {
            document.walk(&mut |node| found.extend((node.text() == Some(wanted)).then_some(node)));
        });
        let [target] = found.as_slice() else { panic!("{wanted} stands {} times", found.len()) };
        path_to(&yaml, target).map(|path| path.to_string())
    }

    #[test]
    fn names_are_preferred_to_places() {
        let containers = "spec: { containers: [{ name: a, env: [{ name: X, value: 1 }, { name: X, value: 2 }] }, { name: b.c, image: X/ }] }";
        let path_in = |text: &str, wanted: &str| path(text, wanted).unwrap_or_else(|| "none".to_owned());
        let two = "kind: A\nmetadata: { name: x }\n---\nkind: B\nmetadata: { name: x }\nv: here\n";
        let unnamed = "v: 1\n---\nv: here\n";
        let all = [
            path_in("images:\n- name: registry:80/app\n  digest: here\n", "here"),
            path_in("images: [{ digest: here }]", "here"),
            path_in(containers, "2"),
            path_in(containers, "X/"),
            path_in("metadata: { annotations: { a.b/c: here } }", "here"),
            path_in(two, "here"),
            path_in(unnamed, "here"),
        ];
        insta::assert_snapshot!(all.join("\n"), @r#"
        images[name=registry:80/app].digest
        images[0].digest
        spec.containers[0].env[1].value
        spec.containers[name=b.c].image
        metadata.annotations["a.b/c"]
        (kind=B,metadata.name=x)v
        (1)v
        "#);
    }

    #[test]
    fn nothing_leads_below_an_anchor_to_a_key_or_to_the_whole_document() {
        assert_eq!(path("a: &x { b: here }\nc: *x\n", "here"), None);
        assert_eq!(path("a: &x here\nc: *x\n", "here"), None);
        assert_eq!(path("here: 1\n", "here"), None);
        assert_eq!(path("here\n", "here"), None);
    }

    fn any_yaml() -> impl Strategy<Value = String> {
        let scalar = "[a-c]{1,2}|'[ .\\[\\]a-c\"=~(),]{0,4}'";
        let node = scalar.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3)
                    .prop_map(|items| format!("[{}]", items.join(", "))),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{ name: {a}, v: {b} }}")),
                ("'[a-c. ]{0,3}'", inner).prop_map(|(key, value)| format!("{{ {key}: {value} }}")),
            ]
        });
        prop::collection::vec(node, 1..3).prop_map(|documents| documents.join("\n---\n"))
    }

    proptest! {
        #[test]
        fn a_path_leads_to_the_node_that_it_was_asked_for(text in any_yaml()) {
            let Ok(yaml) = Yaml::parse(text.as_bytes()) else { return Ok(()) };
            let mut nodes = Vec::new();
            yaml.documents().iter().for_each(|document| document.walk(&mut |node| nodes.push(node)));
            for node in nodes {
                if let Some(path) = path_to(&yaml, node) {
                    let read: Path = path.to_string().parse().unwrap();
                    prop_assert!(std::ptr::eq(resolve(&yaml, &read).unwrap(), node));
                }
            }
        }

        #[test]
        fn every_value_of_plain_keys_and_lists_has_a_path(values in prop::collection::vec("[a-c]{1,2}", 1..6)) {
            let text = format!("kind: K\nlist: [{}]\nmap: {{ name: n, items: [{{ name: {} }}] }}\n", values.join(", "), values[0]);
            let yaml = Yaml::parse(text.as_bytes()).unwrap();
            let root = &yaml.documents()[0];
            let list = root.entry("list").unwrap().1;
            for item in list.items() {
                prop_assert!(path_to(&yaml, item).is_some());
            }
        }
    }
}
