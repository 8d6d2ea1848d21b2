//! What a kustomization reaches outside of its own directory.

use fabrique_core::id::RelPath;
use fabrique_yaml::{Finding, Node, Yaml};

/// Whether a file is what `kustomize build` starts from.
pub(crate) fn is_kustomization(path: &RelPath) -> bool {
    let name = path.as_str().rsplit('/').next().unwrap_or_default();
    matches!(name, "kustomization.yaml" | "kustomization.yml" | "Kustomization")
}

/// Fields that list files, directories or other kustomizations.
const LISTS: [&str; 9] = [
    "resources",
    "components",
    "bases",
    "configurations",
    "crds",
    "generators",
    "transformers",
    "validators",
    "patchesStrategicMerge",
];
/// Fields whose items name a file under `path`.
const WITH_PATH: [&str; 3] = ["patches", "patchesJson6902", "replacements"];
/// Fields whose items read files.
const GENERATORS: [&str; 2] = ["configMapGenerator", "secretGenerator"];

/// A scalar of a kustomization that names a file or a directory.
pub(super) struct Mention<'y> {
    pub(super) node: &'y Node,
    /// What stands before the path, in the `key=path` of generators.
    pub(super) prefix: &'y str,
    /// The path as written.
    pub(super) target: &'y str,
}

/// Every scalar that climbs. All scalars are looked at, not a list of fields: kustomize adds fields, and
/// no other text of a kustomization has a `..` between slashes.
pub(super) fn climbs(yaml: &Yaml) -> Vec<Mention<'_>> {
    let mut found = Vec::new();
    for document in yaml.documents() {
        document.walk(&mut |node| {
            let Some(mention) = keyed(node) else { return };
            let remote = mention.target.contains("://") || mention.target.contains(char::is_whitespace);
            if !remote && mention.target.split('/').any(|segment| segment == "..") {
                found.push(mention);
            }
        });
    }
    found
}

/// Everything that the known fields name, wherever it is. What is written out in place is nothing to look for.
pub(super) fn mentions(yaml: &Yaml) -> Vec<Mention<'_>> {
    let value = |node, key: &str| Node::entry(node, key).map(|(_, value)| value);
    let plain =
        |node: &'_ Node| node.text().is_some_and(|text| !text.contains('\n') && !text.starts_with('{'));
    let mut found = Vec::new();
    for document in yaml.documents() {
        let items = |key: &&str| value(document, key).map_or(&[][..], Node::items);
        let listed = LISTS.iter().flat_map(items);
        let below = WITH_PATH.iter().flat_map(items).filter_map(|item| value(item, "path"));
        let charts = items(&"helmCharts").iter().filter_map(|chart| value(chart, "repo"));
        let openapi = value(document, "openapi").and_then(|openapi| value(openapi, "path"));
        let whole = listed.chain(below).chain(charts).chain(openapi).filter(|node| plain(node));
        found.extend(whole.filter_map(|node| Some(Mention { node, prefix: "", target: node.text()? })));
        for generator in GENERATORS.iter().flat_map(items) {
            let lists = ["files", "envs"].iter().filter_map(|key| value(generator, key));
            let one = value(generator, "env");
            found.extend(lists.flat_map(Node::items).chain(one).filter_map(keyed));
        }
    }
    found
}

/// A path that may have the key of a generator before it.
fn keyed(node: &Node) -> Option<Mention<'_>> {
    let text = node.text()?;
    let (prefix, target) = match text.split_once('=') {
        Some((key, target)) => (&text[..=key.len()], target),
        None => ("", text),
    };
    Some(Mention { node, prefix, target })
}

/// Where `target` leads from `directory`, or nothing when it leaves the root. The root itself is `.`.
pub(super) fn follow(directory: &str, target: &str) -> Option<RelPath> {
    let mut at: Vec<&str> = directory.split('/').filter(|s| !matches!(*s, "" | ".")).collect();
    for segment in target.split('/') {
        match segment {
            ".." => {
                at.pop()?;
            }
            "" | "." => {}
            _ => at.push(segment),
        }
    }
    if at.is_empty() { Some(RelPath::root()) } else { RelPath::parse(&at.join("/")).ok() }
}

/// The directory of a file, `.` for the root.
pub(super) fn parent(path: &RelPath) -> &str {
    path.as_str().rsplit_once('/').map_or(".", |(parent, _)| parent)
}

/// The path from the directory `from` to `to`, both from the same root.
pub(super) fn relative(from: &str, to: &RelPath) -> String {
    let segments = |text: &str| text.split('/').filter(|s| *s != ".").map(str::to_owned).collect::<Vec<_>>();
    let (from, to) = (segments(from), segments(to.as_str()));
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..".to_owned(), from.len() - common);
    let path: Vec<String> = up.chain(to[common..].iter().cloned()).collect();
    if path.is_empty() { ".".to_owned() } else { path.join("/") }
}

pub(super) fn finding(path: &RelPath, node: &Node, what: String, remedy: &str) -> Finding {
    Finding {
        file: path.as_str().to_owned(),
        line: node.line,
        column: node.column,
        what,
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn following_stays_inside_or_is_refused() {
        let followed = |from, target| follow(from, target).map(String::from);
        assert_eq!(followed("deploy/prod", "../../base").as_deref(), Some("base"));
        assert_eq!(followed("deploy/prod", "../..").as_deref(), Some("."));
        assert_eq!(followed("deploy/prod", "../../..").as_deref(), None);
        assert_eq!(followed(".", "..").as_deref(), None);
        assert_eq!(followed("a", "./b//../c/").as_deref(), Some("a/c"));
    }

    proptest! {
        #[test]
        fn a_relative_path_leads_where_it_was_computed_for(from in "([a-c]/){0,3}[a-c]", to in "([a-c]/){0,3}[a-c]") {
            let to = RelPath::parse(&to).unwrap();
            prop_assert_eq!(follow(&from, &relative(&from, &to)), Some(to));
        }
    }
}
