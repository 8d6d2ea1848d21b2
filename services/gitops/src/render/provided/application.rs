//! The Application that brings a folder of provided resources.

use fabrique_core::id::EnvironmentName;
use fabrique_yaml::{Finding, flow_text};

use super::Kind;
use super::claim::is_rendered;
use crate::layout;
use crate::render::application::{RETRY, apps_url};
use crate::render::settings::Destination;
use crate::render::{Ground, MARK, Reason, Rendering, Withheld, root, stands};

/// A wave before that of any app.
const WAVE: i32 = -1;

/// Renders it where there is anything to bring.
pub(super) fn put(ground: &Ground<'_>, kind: Kind, place: &Destination, out: &mut Rendering) {
    let environment = &place.environment;
    let folder = layout::provided_folder(kind.folder(), environment);
    let stands = ground.tree.below(&folder).any(|(_, entry)| is_rendered(&entry.bytes));
    if !stands && !out.files.keys().any(|path| path.is_within(&folder)) {
        return;
    }
    let file = layout::provided_application(kind.folder(), environment);
    if let Some((app, theirs)) = ground.standing.owner(&file) {
        let what = format!("would bring {folder}, and is the Application of {app} in {theirs}");
        out.findings.push(Finding::of_file(file.as_str(), what, "rename the environment of that app"));
        return;
    }
    if ground.standing.is_by_hand(&file) {
        out.withheld.push(Withheld { file, why: Reason::ByHand });
        return;
    }
    out.files.insert(file, text(ground, kind, place, environment));
}

fn text(ground: &Ground<'_>, kind: Kind, place: &Destination, environment: &EnvironmentName) -> String {
    let (settings, folder) = (ground.settings, layout::provided_folder(kind.folder(), environment));
    format!(
        "{MARK} from {folder}; edits are overwritten.\n\
         # It prunes nothing and has no finalizer: whatever is removed here, what holds data stays.\n\
         apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata:\n  name: {}\n  namespace: {}\n  labels:\n    \
         app.kubernetes.io/managed-by: fabrique\n    {}: {}\n  annotations:\n    \
         argocd.argoproj.io/manifest-generate-paths: {}\n    argocd.argoproj.io/sync-wave: \"{WAVE}\"\n\
         spec:\n  project: {}\n  source:\n    repoURL: {}\n    targetRevision: {}\n    path: {}\n  destination:\n    \
         server: {}\n    namespace: {}\n  syncPolicy:\n    \
         automated: {{ prune: false, selfHeal: true, allowEmpty: false }}\n{RETRY}    \
         syncOptions: [FailOnSharedResource=true]\n",
        flow_text(&layout::provided_name(kind.folder(), environment)),
        flow_text(&settings.argocd_namespace),
        stands::ENVIRONMENT,
        flow_text(environment.as_str()),
        flow_text(&format!("/{folder}")),
        flow_text(&root::provided_project_name(settings)),
        flow_text(&apps_url(settings)),
        flow_text(&settings.branch),
        flow_text(folder.as_str()),
        flow_text(&place.server),
        flow_text(place.namespaces.first().map_or("default", String::as_str)),
    )
}
