//! `root.yaml`: the root Application and the projects. A person applies it; nothing below the root can widen it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use fabrique_core::id::Digest;
use fabrique_yaml::{Finding, flow_text};

use super::application::{SYNC_POLICY, apps_url};
use super::settings::{IN_CLUSTER, Settings};
use super::{Ground, MARK, Reason, Rendering, Withheld, provided, stands};
use crate::layout;
use crate::registration::SourceForm;

/// Groups whose kinds open what NetworkPolicies close: those of network plugins, which add to them or go before them, and
/// that of networks beside the cluster's. No app brings any.
pub const NETWORK_GROUPS: [&str; 6] = [
    "cilium.io",
    "crd.antrea.io",
    "crd.projectcalico.org",
    "k8s.cni.cncf.io",
    "policy.networking.k8s.io",
    "projectcalico.org",
];

/// Kinds that no app may bring besides: rights and bounds are the operator's, and an Application of an app's own would
/// be in a project of its own choice.
const DENIED: &str = "    - { group: rbac.authorization.k8s.io, kind: \"*\" }
    - { group: \"\", kind: ResourceQuota }
    - { group: \"\", kind: LimitRange }
    - { group: argoproj.io, kind: \"*\" }
";

/// What stands before the digest of the file in it. Applied, it tells which `root.yaml` the cluster has; and one that a person
/// edited has another digest than it says.
const RENDERED: &str = "    fabrique/rendered: ";

/// What has to be done about a `root.yaml` that changed.
pub const APPLY: &str = "nobody applies root.yaml by itself: look at what changed, then `kubectl apply --server-side -f root.yaml`";

/// Renders it, unless a person wrote one.
pub(super) fn put(ground: &Ground<'_>, out: &mut Rendering) {
    let file = layout::root();
    if ground.standing.is_by_hand(&file) {
        out.withheld.push(Withheld { file, why: Reason::ByHand });
        return;
    }
    let provided = provided_project(ground, out);
    let text: Vec<String> = [apps_project(ground), root_project(ground)]
        .into_iter()
        .chain(provided)
        .chain([root(ground)])
        .collect();
    let text = text.join("---\n");
    let text = format!("{MARK}; `fabrique render` overwrites edits. A person applies it.\n{text}");
    let digest = Digest::of(text.as_bytes());
    out.files.insert(file, text.replacen(&rendered(""), &rendered(&digest.to_string()), 1));
}

/// What becomes of `root.yaml` with a commit.
pub(super) enum Move {
    /// It comes along as it is rendered now.
    To(String),
    /// It stays although something is to be added to it, and this says why and what helps.
    Stays(String),
}

/// It as it is rendered now, where it stands as it was rendered once and what it is rendered from has moved since. What a person
/// edited stays, and so does everything while something that it is rendered from cannot be read.
pub(super) fn moved(ground: &Ground<'_>) -> Option<Move> {
    let file = layout::root();
    let stands = std::str::from_utf8(ground.tree.content(&file)?).ok()?;
    if !is_as_rendered(stands) {
        return None;
    }
    let mut out = Rendering::default();
    put(ground, &mut out);
    let due = out.files.remove(&file).filter(|text| text != stands)?;
    let Some(unread) = unread(ground) else { return Some(Move::To(due)) };
    adds(stands, &due).then(|| {
        Move::Stays(format!(
            "{file} stays as it is, although lines are to be added: {unread} cannot be used, and what that names would be lost; \
             correct it, then `fabrique render --path .` writes {file}, or the next commit like this one"
        ))
    })
}

/// What it is rendered from and cannot be read.
fn unread<'g>(ground: &'g Ground<'_>) -> Option<&'g str> {
    let contract = ground.contract.is_none() && provided::has_contract(ground.tree);
    let registration = ground.registrations.findings.first().map(|finding| finding.file.as_str());
    registration.or_else(|| contract.then_some(fabrique_declarations::contract::FILE_NAME))
}

/// Whether one has a line that another lacks, beside the digest.
fn adds(stands: &str, due: &str) -> bool {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    stands.lines().for_each(|line| *left.entry(line).or_default() += 1);
    due.lines().filter(|line| !line.starts_with(RENDERED)).any(|line| match left.get_mut(line) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        Some(_) | None => true,
    })
}

fn rendered(digest: &str) -> String {
    format!("{RENDERED}\"{digest}\"\n")
}

/// The digest that a `root.yaml` says of itself, as the annotation `fabrique/rendered` of its root Application.
#[must_use]
pub fn digest_in(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix(RENDERED)).map(|digest| digest.trim_matches('"'))
}

/// Whether a `root.yaml` is as it was rendered, whenever that was.
#[must_use]
pub fn is_as_rendered(text: &str) -> bool {
    let without = |digest| text.replacen(&rendered(digest), &rendered(""), 1);
    digest_in(text).is_some_and(|digest| Digest::of(without(digest).as_bytes()).to_string() == digest)
}

fn apps_project(ground: &Ground<'_>) -> String {
    let settings = ground.settings;
    let mut text = project(ground, &settings.project, "Apps that fabrique deploys");
    for url in sources(ground) {
        let _ = writeln!(text, "    - {}", flow_text(&url));
    }
    text.push_str(&destinations(&places(settings)));
    text.push_str("  # Nothing that belongs to the whole cluster.\n  clusterResourceWhitelist: []\n");
    text.push_str(&denied());
    text
}

fn denied() -> String {
    let mut text =
        "  namespaceResourceBlacklist:\n    - { group: networking.k8s.io, kind: NetworkPolicy }\n".to_owned();
    for group in NETWORK_GROUPS {
        // Writing to a String does not fail.
        let _ = writeln!(text, "    - {{ group: {group}, kind: \"*\" }}");
    }
    text.push_str(DENIED);
    text
}

/// Where apps may be deployed: each server with each of its namespaces.
fn places(settings: &Settings) -> BTreeSet<(&str, &str)> {
    let places = settings.destinations.iter();
    places
        .flat_map(|place| {
            place.namespaces.iter().map(|namespace| (place.server.as_str(), namespace.as_str()))
        })
        .collect()
}

fn destinations(places: &BTreeSet<(&str, &str)>) -> String {
    let mut text = "  destinations:\n".to_owned();
    for (server, namespace) in places {
        let (server, namespace) = (flow_text(server), flow_text(namespace));
        // Writing to a String does not fail.
        let _ = writeln!(text, "    - {{ server: {server}, namespace: {namespace} }}");
    }
    text
}

/// What the cluster provides, where the contract offers any: these three kinds and nothing else, beside the apps and,
/// for databases, where their PostgreSQL is.
fn provided_project(ground: &Ground<'_>, out: &mut Rendering) -> Option<String> {
    let (settings, contract) = (ground.settings, ground.contract.as_ref()?);
    if !provided::is_offered(contract, settings) {
        return None;
    }
    let mut places = places(settings);
    for namespace in provided::database_namespaces(contract) {
        if let Some(why) = Settings::refuses(&settings.argocd_namespace, namespace.as_str()) {
            let what = format!("a database of the namespace {namespace}, which {why}");
            out.findings.push(Finding::of_file("contract.yaml", what, "let its PostgreSQL be elsewhere"));
            continue;
        }
        let servers = settings.destinations.iter().map(|place| place.server.as_str());
        places.extend(servers.map(|server| (server, namespace.as_str())));
    }
    let mut text = project(ground, &provided_project_name(settings), "What the cluster provides to apps");
    let _ = write!(
        text,
        "    - {}\n{}  clusterResourceWhitelist: []\n  namespaceResourceWhitelist:\n    \
         - {{ group: objectbucket.io, kind: ObjectBucketClaim }}\n    \
         - {{ group: postgresql.cnpg.io, kind: Database }}\n    \
         - {{ group: \"\", kind: PersistentVolumeClaim }}\n",
        flow_text(&apps_url(settings)),
        destinations(&places),
    );
    Some(text)
}

/// The project of what the cluster provides.
pub(super) fn provided_project_name(settings: &Settings) -> String {
    format!("{}-provided", settings.project)
}

/// `cluster/apps`, and the repositories of the apps whose Application reads its own.
fn sources(ground: &Ground<'_>) -> BTreeSet<String> {
    let settings = ground.settings;
    let mut sources = BTreeSet::from([apps_url(settings)]);
    for app in ground.registrations.apps.values() {
        let reads_its_own = |place: &fabrique_core::app::Environment| {
            let choice = ground.registrations.choice(&app.name, &place.name);
            choice.source.unwrap_or(settings.source) == SourceForm::Repository
        };
        if app.environments.iter().any(reads_its_own) {
            sources.insert(settings.url(&app.source.repo));
        }
    }
    sources
}

fn root_project(ground: &Ground<'_>) -> String {
    let settings = ground.settings;
    let mut text = project(ground, &root_project_name(ground), "Applications of apps, and nothing else");
    let _ = write!(
        text,
        "    - {}\n  destinations:\n    - {{ server: {}, namespace: {} }}\n  clusterResourceWhitelist: []\n  \
         namespaceResourceWhitelist:\n    - {{ group: argoproj.io, kind: Application }}\n",
        flow_text(&apps_url(settings)),
        flow_text(IN_CLUSTER),
        flow_text(&settings.argocd_namespace),
    );
    text
}

/// The root Application. Its source is a directory by its own word: otherwise Argo CD looks at what lies there, and one file
/// for Kustomize or Helm would have it remove every app that this does not name. They are no manifests either. Whatever else
/// people keep there stays what it was.
fn root(ground: &Ground<'_>) -> String {
    let excluded = flow_text(&format!("{{{}}}", stands::BUILDS.join(",")));
    let settings = ground.settings;
    let folder = layout::applications();
    format!(
        "# Without a finalizer: to delete the root deletes no app.\n\
         apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata:\n  name: {}\n  namespace: {}\n  labels:\n    \
         app.kubernetes.io/managed-by: fabrique\n  annotations:\n    \
         argocd.argoproj.io/manifest-generate-paths: /{folder}\n{}spec:\n  project: {}\n  source:\n    repoURL: {}\n    \
         targetRevision: {}\n    path: {folder}\n    directory: {{ exclude: {excluded} }}\n  destination:\n    server: {}\n    namespace: {}\n{SYNC_POLICY}",
        flow_text(&settings.root),
        flow_text(&settings.argocd_namespace),
        rendered(""),
        flow_text(&root_project_name(ground)),
        flow_text(&apps_url(settings)),
        flow_text(&settings.branch),
        flow_text(IN_CLUSTER),
        flow_text(&settings.argocd_namespace),
    )
}

fn root_project_name(ground: &Ground<'_>) -> String {
    format!("{}-root", ground.settings.project)
}

fn project(ground: &Ground<'_>, name: &str, description: &str) -> String {
    format!(
        "apiVersion: argoproj.io/v1alpha1\nkind: AppProject\nmetadata:\n  name: {}\n  namespace: {}\n  labels:\n    \
         app.kubernetes.io/managed-by: fabrique\nspec:\n  description: {description}\n  sourceRepos:\n",
        flow_text(name),
        flow_text(&ground.settings.argocd_namespace),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is for installations whose root Application a person writes.
    #[test]
    fn the_project_of_the_manifests_denies_what_the_rendered_one_denies() {
        let component = include_str!("../../../../k8s/components/argocd/project.yaml");
        let (_, list) = component.split_once("namespaceResourceBlacklist:\n").unwrap();
        let written: BTreeSet<&str> =
            list.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        let rendered = denied();
        let rendered: BTreeSet<&str> = rendered.lines().skip(1).collect();
        assert_eq!(written, rendered);
    }
}
