//! One Application.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use fabrique_core::app::{App, Composition, Environment};
use fabrique_core::id::{AppName, RelPath};
use fabrique_yaml::flow_text;

use super::{Ground, MARK, migrations, patch, settings, stands};
use crate::overlay::OUTSIDE;
use crate::refusal::Refusal;
use crate::registration::SourceForm;
use crate::{binding, composition, layout, placeholder};

/// How a folder says by itself how it is rendered.
const SELF_DESCRIBED: [&str; 4] = ["kustomization.yaml", "kustomization.yml", "Kustomization", "Chart.yaml"];

/// How a sync is done, the same for all: what vanished from git is pruned, what was changed by hand is put back, an
/// empty folder deletes nothing, and nobody takes another's resources.
pub(super) const SYNC_POLICY: &str = "  syncPolicy:
    automated: { prune: true, selfHeal: true, allowEmpty: false }
    retry: { limit: 5, backoff: { duration: 10s, factor: 2, maxDuration: 3m } }
    syncOptions: [FailOnSharedResource=true]
";
/// How a sync that failed is tried again, the same for all.
pub(super) const RETRY: &str =
    "    retry: { limit: 5, backoff: { duration: 10s, factor: 2, maxDuration: 3m } }\n";

/// The annotation of the wave.
const WAVE: &str = "argocd.argoproj.io/sync-wave";

/// The Application of an environment, or nothing while nothing is deployed there.
pub(super) fn render(
    ground: &Ground<'_>,
    app: &App,
    environment: &Environment,
) -> Result<Option<String>, Refusal> {
    let Some(composition) = composition::load(ground.tree, app, &environment.name)? else { return Ok(None) };
    let directory = layout::directory_of(&app.name, &environment.name);
    let own = [
        layout::composition_of(&app.name, &environment.name),
        layout::placeholders_of(&app.name, &environment.name),
    ];
    let has_files = ground.tree.below(&directory).any(|(path, _)| !own.contains(path));
    let awaits = binding::awaits_overlay(ground.tree, app, environment, &composition);
    if composition.image.deployed.is_none() || awaits || !has_files {
        return Ok(None);
    }
    let choice = ground.registrations.choice(&app.name, &environment.name);
    let source = match choice.source.unwrap_or(ground.settings.source) {
        SourceForm::Copy => copied(ground, &directory),
        SourceForm::Repository => match repository(ground, app, environment, &composition)? {
            Some(source) => source,
            // Kept by people, so that there is nothing but the copy.
            None => copied(ground, &directory),
        },
    };
    let Some(destination) = ground.settings.destination(&environment.name) else { return Ok(None) };
    let namespace = choice.namespace.as_ref().or(destination.namespaces.first());
    let Some(namespace) = namespace else { return Ok(None) };

    let beside = migrations::source(ground.tree, &app.name, &environment.name);
    let source = match beside {
        Some(folder) => source.beside(ground, &folder),
        None => Source { text: format!("  source:\n{}", source.text), ..source },
    };
    let mut text = head(ground, app, environment, &source.paths);
    // Writing to a String does not fail.
    let _ = write!(
        text,
        "spec:\n  project: {}\n{}  destination:\n    server: {}\n    namespace: {}\n{SYNC_POLICY}",
        flow_text(&ground.settings.project),
        source.text,
        flow_text(&destination.server),
        flow_text(namespace),
    );
    Ok(Some(text))
}

/// What an Application says but for its wave.
pub(super) fn without_wave(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with(WAVE))
}

fn head(ground: &Ground<'_>, app: &App, environment: &Environment, paths: &str) -> String {
    let (name, place) = (&app.name, &environment.name);
    let mut text = format!(
        "{MARK} from {} and what is deployed; edits are overwritten.\n\
         # Removing this file removes everything that it deployed.\n\
         apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata:\n  name: {}\n  namespace: {}\n  labels:\n    \
         app.kubernetes.io/managed-by: fabrique\n    {}: {}\n    {}: {}\n  annotations:\n    \
         argocd.argoproj.io/manifest-generate-paths: {}\n    {WAVE}: \"{}\"\n",
        layout::registration_of(name),
        flow_text(&layout::application_name(name, place)),
        flow_text(&ground.settings.argocd_namespace),
        stands::APP,
        flow_text(name.as_str()),
        stands::ENVIRONMENT,
        flow_text(place.as_str()),
        flow_text(paths),
        ground.order.wave(name).unwrap_or_default(),
    );
    let needs = ground.needs.get(name).map(|needs| &needs.apps).filter(|needs| !needs.is_empty());
    if let Some(needs) = needs {
        let needs: Vec<&str> = needs.iter().map(AppName::as_str).collect();
        let _ = writeln!(text, "    {}: {}", stands::DEPENDS_ON, flow_text(&needs.join(",")));
    }
    text.push_str("  finalizers: [resources-finalizer.argocd.argoproj.io]\n");
    text
}

/// Where manifests come from.
struct Source {
    /// The fields of `spec.source`.
    text: String,
    /// The folders whose changes concern the Application, in the form of `manifest-generate-paths`.
    paths: String,
}

impl Source {
    /// One of two: what is run before a sync is in a folder of its own, which no overlay can hide.
    fn beside(self, ground: &Ground<'_>, folder: &RelPath) -> Self {
        let settings = ground.settings;
        let mut text = "  sources:\n".to_owned();
        for (number, line) in self.text.lines().enumerate() {
            let line = line.strip_prefix("    ").unwrap_or(line);
            // Writing to a String does not fail.
            let _ = writeln!(text, "    {} {line}", if number == 0 { "-" } else { " " });
        }
        let _ = write!(
            text,
            "    - repoURL: {}\n      targetRevision: {}\n      path: {}\n",
            flow_text(&apps_url(settings)),
            flow_text(&settings.branch),
            flow_text(folder.as_str()),
        );
        Self { text, paths: format!("{};/{folder}", self.paths) }
    }
}

/// The filled copy in `cluster/apps`.
fn copied(ground: &Ground<'_>, directory: &RelPath) -> Source {
    let settings = ground.settings;
    let mut text = format!(
        "    repoURL: {}\n    targetRevision: {}\n    path: {}\n",
        flow_text(&settings.url(&settings.repo)),
        flow_text(&settings.branch),
        flow_text(directory.as_str()),
    );
    let is_there = |name: &str| {
        let path = RelPath::parse(name).map(|name| directory.join(&name));
        path.is_ok_and(|path| ground.tree.content(&path).is_some())
    };
    if !SELF_DESCRIBED.iter().any(|name| is_there(name)) {
        // A folder of plain manifests; the composition and its places are none.
        let own = format!("{{{},{}}}", composition::FILE_NAME, placeholder::FILE_NAME);
        let _ = writeln!(text, "    directory: {{ exclude: {} }}", flow_text(&own));
    }
    Source { text, paths: format!("/{directory}") }
}

/// The overlay in the app's own repository at the deployed revision, with the deployed image put in by Argo CD. The
/// copy beside the composition says where.
fn repository(
    ground: &Ground<'_>,
    app: &App,
    environment: &Environment,
    composition: &Composition,
) -> Result<Option<Source>, Refusal> {
    let Some(infra) = &composition.infra.deployed else { return Ok(None) };
    let overlay = &infra.overlay;
    let mut text = format!(
        "    repoURL: {}\n    targetRevision: {}\n    path: {}\n",
        flow_text(&ground.settings.url(&overlay.repo)),
        flow_text(infra.revision.as_str()),
        flow_text(overlay.path.as_str()),
    );
    let put_in = patch::put_in(ground.tree, app, environment, composition)?;
    text.push_str("    kustomize:\n      images:\n");
    for image in &put_in.images {
        let _ = writeln!(text, "        - {}", flow_text(image));
    }
    if !put_in.patches.is_empty() {
        text.push_str("      patches:\n");
    }
    for patch in &put_in.patches {
        let (kind, name) = (flow_text(&patch.kind), flow_text(&patch.name));
        let _ = writeln!(text, "        - target: {{ kind: {kind}, name: {name} }}\n          patch: |");
        for line in patch.text.lines() {
            let _ = writeln!(text, "            {line}");
        }
    }
    let directory = layout::directory_of(&app.name, &environment.name);
    Ok(Some(Source { text, paths: reached(ground, &directory, &overlay.path).join(";") }))
}

/// The overlay's folder and every folder that it reaches outside of it, by the copy. Argo CD renders nothing anew when
/// only others changed, so that none may be missing.
fn reached(ground: &Ground<'_>, directory: &RelPath, overlay: &RelPath) -> Vec<String> {
    let mut folders = BTreeSet::from([format!("/{overlay}")]);
    let prefix = format!("{directory}/{OUTSIDE}/");
    for (path, _) in ground.tree.below(directory) {
        let outside = path.as_str().strip_prefix(&prefix).and_then(|path| path.rsplit_once('/'));
        folders.extend(outside.map(|(folder, _)| format!("/{folder}")));
    }
    folders.into_iter().collect()
}

/// The address of `cluster/apps`, for the root.
pub(super) fn apps_url(settings: &settings::Settings) -> String {
    settings.url(&settings.repo)
}
