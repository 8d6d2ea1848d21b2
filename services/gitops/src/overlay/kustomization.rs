//! What a kustomization reaches outside of its own directory.

use fabrique_core::id::RelPath;
use fabrique_declarations::overlay::is_remote;
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

/// Everything that climbs, of what names files. Kustomize knows no other fields that do, and any other text with a `..`
/// between slashes is a value: of a literal, a label or an annotation.
pub(super) fn climbs(yaml: &Yaml) -> Vec<Mention<'_>> {
    let mut found: Vec<Mention<'_>> = yaml.documents().iter().flat_map(mentioned).collect();
    found.extend(yaml.documents().iter().flat_map(charts).map(whole));
    found.retain(|mention| {
        let is_path = !is_remote(mention.target) && !mention.target.contains(char::is_whitespace);
        is_path && mention.target.split('/').any(|segment| segment == "..")
    });
    found
}

/// Everything that has to be there, wherever it is. What is written out in place is nothing to look for.
pub(super) fn mentions(yaml: &Yaml) -> Vec<Mention<'_>> {
    let repositories =
        |document| items(document, "helmCharts").iter().filter_map(|chart| value(chart, "repo"));
    let documents = yaml.documents().iter();
    documents
        .flat_map(|document| mentioned(document).chain(repositories(document).filter(plain).map(whole)))
        .collect()
}

/// What the fields name that kustomize reads by itself.
fn mentioned(document: &Node) -> impl Iterator<Item = Mention<'_>> {
    let listed = LISTS.iter().flat_map(|key| items(document, key));
    let below = WITH_PATH.iter().flat_map(|key| items(document, key)).filter_map(|item| value(item, "path"));
    let openapi = value(document, "openapi").and_then(|openapi| value(openapi, "path"));
    let generated = GENERATORS.iter().flat_map(|key| items(document, key)).flat_map(|generator| {
        let lists = ["files", "envs"].iter().flat_map(|key| items(generator, key));
        lists.chain(value(generator, "env"))
    });
    listed.chain(below).chain(openapi).filter(plain).map(whole).chain(generated.filter_map(keyed))
}

/// What the fields of Helm name, which may be in the chart as well.
fn charts(document: &Node) -> impl Iterator<Item = &Node> {
    let globals = value(document, "helmGlobals").into_iter();
    let globals =
        globals.flat_map(|globals| ["chartHome", "configHome"].iter().filter_map(|key| value(globals, key)));
    let listed = ["helmCharts", "helmChartInflationGenerator"].iter().flat_map(|key| items(document, key));
    let listed = listed.flat_map(|chart| {
        let one = ["valuesFile", "values", "chartHome"].iter().filter_map(|key| value(chart, key));
        one.chain(items(chart, "additionalValuesFiles"))
    });
    globals.chain(listed).filter(plain)
}

fn value<'y>(node: &'y Node, key: &str) -> Option<&'y Node> {
    node.entry(key).map(|(_, value)| value)
}

fn items<'y>(node: &'y Node, key: &str) -> &'y [Node] {
    value(node, key).map_or(&[][..], Node::items)
}

fn plain(node: &&Node) -> bool {
    node.text().is_some_and(|text| !text.contains('\n') && !text.starts_with('{'))
}

/// A path and nothing else.
fn whole(node: &Node) -> Mention<'_> {
    Mention { node, prefix: "", target: node.text().unwrap_or_default() }
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
