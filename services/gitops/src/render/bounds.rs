//! What a `root.yaml` lets in, whoever wrote it.

use fabrique_core::app::App;
use fabrique_core::id::EnvironmentName;
use fabrique_yaml::{Node, Yaml};

use super::application::apps_url;
use super::root::provided_project_name;
use super::settings::Settings;
use super::stands::value;
use crate::registration::{Registrations, SourceForm};

/// An AppProject, as far as it tells what its Applications read and where they deploy it.
struct Project<'y> {
    sources: Vec<&'y str>,
    /// Servers and namespaces; a server that is called by its name instead is no matter of this file.
    destinations: Vec<(Option<&'y str>, &'y str)>,
}

impl<'y> Project<'y> {
    fn find(yaml: &'y Yaml, name: &str) -> Option<Self> {
        let is_it = |document: &&Node| {
            let named = value(document, "metadata").and_then(|metadata| value(metadata, "name"));
            let kind = value(document, "kind").and_then(Node::text);
            kind == Some("AppProject") && named.and_then(Node::text) == Some(name)
        };
        let spec = value(yaml.documents().iter().find(is_it)?, "spec")?;
        let list = |key| value(spec, key).map(Node::items).unwrap_or_default().iter();
        let place = |node: &'y Node| {
            let server = value(node, "server").and_then(Node::text);
            Some((server, value(node, "namespace")?.text()?))
        };
        Some(Self {
            sources: list("sourceRepos").filter_map(Node::text).collect(),
            destinations: list("destinations").filter_map(place).collect(),
        })
    }

    fn lacks(&self, name: &str, sources: &[&str], destinations: &[(&str, &str)]) -> Vec<String> {
        let bare = |url: &str| url.strip_suffix(".git").unwrap_or(url).to_owned();
        let is_read = |url: &str| self.sources.iter().any(|known| fits(&bare(known), &bare(url)));
        let is_place = |(server, namespace): (&str, &str)| {
            let mut known = self.destinations.iter();
            known.any(|(at, within)| at.is_none_or(|at| fits(at, server)) && fits(within, namespace))
        };
        let sources = sources.iter().filter(|url| !is_read(url));
        let destinations = destinations.iter().filter(|place| !is_place(**place));
        let sources = sources.map(|url| format!("the repository {url} in the project {name}"));
        sources
            .chain(destinations.map(|(server, namespace)| {
                format!("the namespace {namespace} of {server} in the project {name}")
            }))
            .collect()
    }
}

/// What a `root.yaml` lacks for the Application of an app in an environment; and for what the cluster provides to it, where it
/// `asks` for anything and `due`, the one that is rendered now, has a project of that.
#[must_use]
pub fn lacks(
    (stands, due): (&str, &str),
    registrations: &Registrations,
    (app, environment): (&App, &EnvironmentName),
    asks: bool,
    settings: &Settings,
) -> Vec<String> {
    let Ok(stands) = Yaml::parse(stands.as_bytes()) else {
        return vec!["a form in which it can be read".to_owned()];
    };
    let Some(place) = settings.destination(environment) else { return Vec::new() };
    let choice = registrations.choice(&app.name, environment);
    let mut sources = vec![apps_url(settings)];
    if choice.source.unwrap_or(settings.source) == SourceForm::Repository {
        sources.push(settings.url(&app.source.repo));
    }
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let namespace = choice.namespace.as_ref().or(place.namespaces.first());
    let destinations: Vec<(&str, &str)> =
        namespace.map(|namespace| (place.server.as_str(), namespace.as_str())).into_iter().collect();
    let missing = |name: &str, sources: &[&str], destinations: &[(&str, &str)]| {
        Project::find(&stands, name).map_or_else(
            || vec![format!("the project {name}")],
            |project| project.lacks(name, sources, destinations),
        )
    };
    let mut all = missing(&settings.project, &sources, &destinations);
    let name = provided_project_name(settings);
    let due = Yaml::parse(due.as_bytes()).ok().filter(|_| asks);
    if let Some(provided) = due.as_ref().and_then(|due| Project::find(due, &name)) {
        let here = provided.destinations.iter().filter(|(server, _)| *server == Some(place.server.as_str()));
        let here: Vec<(&str, &str)> =
            here.map(|(_, namespace)| (place.server.as_str(), *namespace)).collect();
        all.extend(missing(&name, &provided.sources, &here));
    }
    all
}

/// Whether a text is of a pattern, in which `*` stands for anything.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut left) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let Some(last) = parts.next_back() else { return left.is_empty() };
    for part in parts {
        let Some((_, rest)) = left.split_once(part) else { return false };
        left = rest;
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_anything_and_whatever_is_beside_it_for_itself() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "apps", true),
            ("apps", "apps", true),
            ("apps", "apps-two", false),
            ("apps-*", "apps-two", true),
            ("*-two", "apps-two", true),
            ("a*a", "a", false),
            ("a*p*-two", "apps-two", true),
            ("a*p*-one", "apps-two", false),
            ("http://gitea/*", "https://github.com/x/y", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }
}
