//! One registration, read by itself.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use fabrique_core::app::{App, BuildResources, BuildSpec, Source};
use fabrique_core::id::{
    AppName, BranchName, CheckName, EnvironmentName, ImageRepository, Platform, RelPath, RepoName,
    TrustDomain,
};
use fabrique_core::upstream::Upstream;
use fabrique_yaml::{Fields, Node, Reader, Yaml};
use globset::GlobBuilder;

use super::application::{self, Choice};
use super::{Rules, environment, resources};

const MAX_ARGS: usize = 64;
const MAX_ARG_LENGTH: usize = 4096;
const MAX_SECRETS: usize = 32;
const MAX_CHECKS: usize = 32;
const MAX_PLATFORMS: usize = 8;
const MAX_WATCH: usize = 64;
const MAX_GLOB_LENGTH: usize = 512;
const MAX_STAGE_LENGTH: usize = 128;
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// An app, and what its environments choose for their Applications.
pub(super) type Registered = (App, BTreeMap<EnvironmentName, Choice>);

pub(super) fn read(
    reader: &Reader<'_>,
    document: &Node,
    directory: &str,
    rules: &Rules,
) -> Option<Registered> {
    let root = reader.mapping(document, "the registration", &["apiVersion", "kind", "metadata", "spec"])?;
    root.constant("apiVersion", "fabrique/v1");
    root.constant("kind", "App");
    let metadata = root.required("metadata").and_then(|node| reader.mapping(node, "metadata", &["name"]));
    let name: Option<AppName> = metadata.and_then(|m| {
        let node = m.required("name")?;
        let name: AppName = reader.value(node, "metadata.name")?;
        if name.as_str() != directory {
            reader.report(
                node,
                format!("metadata.name is {name}, the directory is apps/{directory}"),
                "give both the same name",
            );
        }
        Some(name)
    });
    let spec = root
        .required("spec")
        .and_then(|node| reader.mapping(node, "spec", &["source", "image", "build", "environments"]))?;
    let source = spec.required("source").and_then(|node| read_source(reader, node));
    let image = read_image(&spec, rules);
    let build = read_build(&spec, source.as_ref());
    let environments = match spec.get("environments") {
        Some(node) => environment::read_all(reader, node, source.as_ref()),
        None => Some(Vec::new()),
    };
    let environments = environments?;
    let choices = spec.get("environments").map(|node| application::read(reader, node, &environments));
    let app = App { name: name?, source: source?, image: image?, build: build?, environments };
    Some((app, choices.unwrap_or_default()))
}

/// Where the source is, of a registration that something else may be wrong with.
pub(super) fn source_of(bytes: &[u8]) -> Option<(RepoName, BranchName)> {
    let yaml = Yaml::parse(bytes).ok()?;
    let (_, spec) = yaml.documents().first()?.entry("spec")?;
    let (_, source) = spec.entry("source")?;
    let repo = RepoName::parse(source.entry("repo")?.1.text()?).ok()?;
    let branch = match source.entry("branch") {
        Some((_, branch)) => BranchName::parse(branch.text()?).ok()?,
        None => parse_default("main")?,
    };
    Some((repo, branch))
}

fn read_source(reader: &Reader<'_>, node: &Node) -> Option<Source> {
    let known = ["repo", "branch", "declaration", "migrations", "github", "checks"];
    let fields = reader.mapping(node, "spec.source", &known)?;
    let repo: Option<RepoName> = fields.parsed("repo");
    let branch = fields.optional::<BranchName>("branch");
    let declaration = fields.optional("declaration");
    let migrations = fields.optional("migrations");
    let upstream = read_upstream(&fields);
    let branch = match branch? {
        Some(branch) => branch,
        None => parse_default("main")?,
    };
    Some(Source {
        repo: repo?,
        branch,
        declaration: declaration?,
        migrations: migrations?,
        upstream: upstream?,
    })
}

/// Where the source is mirrored from, and what has to pass there.
fn read_upstream(fields: &Fields<'_>) -> Option<Option<Upstream>> {
    let github = fields.optional::<RepoName>("github");
    let checks = read_set::<CheckName>(fields, "checks", MAX_CHECKS);
    match (github?, fields.get("checks")) {
        (Some(github), _) => Some(Some(Upstream { github, checks: checks?.into_iter().collect() })),
        (None, Some(node)) => {
            let what = "checks are named, and not the repository that they are run for";
            fields.reader.report(node, what, "add source.github, like acme/citation");
            None
        }
        (None, None) => Some(None),
    }
}

fn read_image(spec: &Fields<'_>, rules: &Rules) -> Option<ImageRepository> {
    let node = spec.required("image")?;
    let image: ImageRepository = spec.reader.value(node, "spec.image")?;
    if !rules.allow(&image) {
        let allowed =
            if rules.registries.is_empty() { "none".to_owned() } else { rules.registries.join(", ") };
        spec.reader.report(
            node,
            format!("{image} is outside of the allowed registries ({allowed})"),
            "use an allowed registry, or let an operator allow this one",
        );
    }
    Some(image)
}

fn read_build(spec: &Fields<'_>, source: Option<&Source>) -> Option<BuildSpec> {
    let reader = spec.reader;
    let known = [
        "context",
        "dockerfile",
        "target",
        "args",
        "secrets",
        "platforms",
        "watch",
        "timeout",
        "trust",
        "resources",
        "registry_cache",
    ];
    let Some(node) = spec.get("build") else {
        return defaults(source?);
    };
    let fields = reader.mapping(node, "spec.build", &known)?;
    let context = fields.optional("context");
    let dockerfile = fields.optional("dockerfile");
    let target = read_target(&fields);
    let args = read_args(&fields);
    let secrets = read_set(&fields, "secrets", MAX_SECRETS);
    let platforms = read_set::<Platform>(&fields, "platforms", MAX_PLATFORMS);
    let watch = read_watch(&fields);
    let timeout = read_timeout(&fields);
    let trust = fields.optional("trust");
    let resources = resources::read(&fields);
    let registry_cache = fields.optional("registry_cache");
    let base = defaults(source?)?;
    let platforms = platforms?;
    Some(BuildSpec {
        context: context?.unwrap_or(base.context),
        dockerfile: dockerfile?.unwrap_or(base.dockerfile),
        target: target?,
        args: args?,
        secrets: secrets?,
        platforms: if platforms.is_empty() { base.platforms } else { platforms },
        watch: watch?,
        timeout: timeout?,
        trust: trust?.unwrap_or(base.trust),
        resources: resources?,
        registry_cache: registry_cache?,
    })
}

fn defaults(source: &Source) -> Option<BuildSpec> {
    Some(BuildSpec {
        context: RelPath::root(),
        dockerfile: parse_default("Dockerfile")?,
        target: None,
        args: BTreeMap::new(),
        secrets: Vec::new(),
        platforms: vec![parse_default::<Platform>("linux/amd64")?],
        watch: Vec::new(),
        timeout: DEFAULT_TIMEOUT,
        trust: parse_default::<TrustDomain>(source.repo.org())?,
        resources: BuildResources::default(),
        registry_cache: None,
    })
}

/// A default is a constant, or an organisation, whose rule the trust domain shares.
fn parse_default<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn read_target(fields: &Fields<'_>) -> Option<Option<String>> {
    let Some(node) = fields.get("target") else { return Some(None) };
    let text = fields.reader.line(node, "build.target", MAX_STAGE_LENGTH)?;
    if !text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        || text.starts_with('-')
    {
        fields.reader.report(
            node,
            format!("{text:?} is not the name of a stage"),
            "use letters, digits, '.', '_', '-'",
        );
        return None;
    }
    Some((!text.is_empty()).then_some(text))
}

fn read_args(fields: &Fields<'_>) -> Option<BTreeMap<String, String>> {
    let reader = fields.reader;
    let Some(node) = fields.get("args") else { return Some(BTreeMap::new()) };
    if node.entries().len() > MAX_ARGS {
        reader.report(node, format!("more than {MAX_ARGS} build arguments"), "remove some");
        return None;
    }
    let names: Vec<&str> = node.entries().iter().filter_map(|(key, _)| key.text()).collect();
    reader.mapping(node, "build.args", &names)?;
    let mut args = BTreeMap::new();
    for (key, value) in node.entries() {
        let name = key.text()?;
        let valid = !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !valid {
            reader.report(
                key,
                format!("{name:?} is not the name of a build argument"),
                "use letters, digits and '_'",
            );
        }
        // As written: 3.10 is a version here, not the number 3.1.
        let text = reader.line(value, &format!("build.args.{name}"), MAX_ARG_LENGTH)?;
        args.insert(name.to_owned(), text);
    }
    Some(args)
}

fn read_set<T>(fields: &Fields<'_>, name: &str, limit: usize) -> Option<Vec<T>>
where
    T: FromStr + PartialEq,
    T::Err: std::fmt::Display,
{
    let Some(node) = fields.get(name) else { return Some(Vec::new()) };
    let mut values = Vec::new();
    for item in fields.reader.list(node, name, limit) {
        let value = fields.reader.value(item, name)?;
        if values.contains(&value) {
            fields.reader.report(
                item,
                format!("{name} names {:?} twice", item.text().unwrap_or_default()),
                "keep one",
            );
        }
        values.push(value);
    }
    Some(values)
}

fn read_watch(fields: &Fields<'_>) -> Option<Vec<String>> {
    let reader = fields.reader;
    let Some(node) = fields.get("watch") else { return Some(Vec::new()) };
    let mut globs = Vec::new();
    for item in reader.list(node, "build.watch", MAX_WATCH) {
        let Some(glob) = reader.line(item, "build.watch", MAX_GLOB_LENGTH) else { continue };
        let from_root = !glob.starts_with('/') && !glob.split('/').any(|part| part == ".." || part == ".");
        if !from_root || glob.is_empty() {
            reader.report(
                item,
                format!("{glob:?} is not a glob from the repository's root"),
                "drop '/', './' and '../'",
            );
        } else if let Err(error) = GlobBuilder::new(&glob).literal_separator(true).build() {
            reader.report(item, format!("{glob:?} does not compile: {}", error.kind()), "correct the glob");
        }
        globs.push(glob);
    }
    Some(globs)
}

fn read_timeout(fields: &Fields<'_>) -> Option<Duration> {
    let Some(node) = fields.get("timeout") else { return Some(DEFAULT_TIMEOUT) };
    let text = fields.reader.text(node, "build.timeout")?;
    match humantime::parse_duration(text) {
        Ok(timeout) if (SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&timeout) => Some(timeout),
        Ok(_) => {
            fields.reader.report(
                node,
                format!("the timeout {text:?} is out of bounds"),
                "choose between 10s and 24h",
            );
            None
        }
        Err(error) => {
            fields.reader.report(
                node,
                format!("the timeout {text:?} is no duration: {error}"),
                "write it as 30m or 1h 15m",
            );
            None
        }
    }
}
