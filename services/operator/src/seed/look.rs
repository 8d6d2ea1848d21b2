//! What is there, asked by the use cases that look after each part of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabrique_core::app::{App, DeployedImage, ImageFrom};
use fabrique_core::decision::Reason;
use fabrique_core::id::{AppName, Channel, Digest, EnvironmentName, RelPath, Revision};
use fabrique_core::verdict::Verdict;
use fabrique_core::view::Target;
use fabrique_declarations::{Declares, Finding, Subject, Wait};
use fabrique_gitops::render::MARK;
use fabrique_gitops::{composition, layout};
use fabrique_observer::Apps;
use fabrique_observer::migrations::rendered_at;
use fabrique_ports::applications::ApplicationState;
use fabrique_ports::secrets::Derivation;

use super::plan::{
    AppSeen, CompositionSeen, DeployerSeen, FileSeen, ImageSeen, RootSeen, SecretsSeen, Seen, Stand,
};
use super::{Ground, Wish, root};
use crate::declared::{Judged, judged};
use crate::error::OperatorError;
use crate::hooks::{self, Watched};
use crate::lookup;
use crate::render::{self, Rendered};
use crate::secrets;
use crate::why::Regarded;

/// A look at everything that a seed is about.
pub(super) struct Look {
    /// What is planned from.
    pub(super) seen: Seen,
    /// The secrets to derive.
    pub(super) derivations: Vec<Derivation>,
    /// The webhooks to ensure.
    pub(super) watched: Vec<Watched>,
}

/// Looks at everything. Nothing is changed.
pub(super) async fn look(ground: &Ground<'_>, wish: &Wish) -> Result<Look, OperatorError> {
    let apps = ground.operator.apps.read().await?;
    let named: Vec<App> = wish
        .apps
        .iter()
        .map(|name| lookup::app(&apps.registrations, name.as_str()).cloned())
        .collect::<Result<_, _>>()?;
    let judged = judged(&apps.registrations, &apps.contract, ground.declared).await?;
    let rendered = match ground.settings {
        Some(settings) => Some(render::of_judged(&apps, &judged, ground.declared, settings).await?),
        None => None,
    };
    let along: BTreeSet<AppName> = named.iter().map(|app| app.name.clone()).collect();
    let at = At { ground, apps: &apps, environment: &wish.environment, along: &along };
    let mut all = Vec::new();
    for app in &named {
        all.push(at.app(app, &judged, rendered.as_ref()).await?);
    }
    let (secrets, derivations) = at.secrets(&judged).await?;
    let watched = at.watched(&named);
    let url = &ground.webhooks.url;
    let ensured = hooks::ensure(ground.webhooks.port, watched.clone(), url, true).await;
    let root = match (ground.deployer, ground.settings) {
        (Some(deployer), Some(settings)) => {
            let applied = deployer.application(&settings.root).await?;
            root::seen(applied.as_ref(), &apps.tree, rendered.as_ref())
        }
        (Some(_), None) | (None, _) => RootSeen::Unasked,
    };
    if let (RootSeen::Outdated { .. }, Some(rendered), Some(settings)) = (root, &rendered, ground.settings) {
        for (app, seen) in named.iter().zip(&mut all) {
            let subject = judged.subjects.get(&app.name);
            seen.lacks = root::lacks(&apps, rendered, (app, &wish.environment), subject, settings);
        }
    }
    let seen =
        Seen { environment: wish.environment.clone(), apps: all, secrets, hooks: ensured.repositories, root };
    Ok(Look { seen, derivations, watched })
}

/// How far one app has come: what changes while a worker is on it.
pub(super) async fn stand(ground: &Ground<'_>, wish: &Wish, app: &AppName) -> Result<Stand, OperatorError> {
    let apps = ground.operator.apps.read().await?;
    let app = lookup::app(&apps.registrations, app.as_str())?.clone();
    let along = wish.apps.iter().cloned().collect();
    At { ground, apps: &apps, environment: &wish.environment, along: &along }.stand(&app).await
}

/// What Argo CD makes of an app.
pub(super) async fn deployer(
    ground: &Ground<'_>,
    wish: &Wish,
    app: &AppName,
) -> Result<DeployerSeen, OperatorError> {
    let apps = ground.operator.apps.read().await?;
    let app = lookup::app(&apps.registrations, app.as_str())?.clone();
    let along = BTreeSet::new();
    At { ground, apps: &apps, environment: &wish.environment, along: &along }.deployer(&app).await
}

/// One state of `cluster/apps`.
struct At<'a> {
    ground: &'a Ground<'a>,
    apps: &'a Arc<Apps>,
    environment: &'a EnvironmentName,
    /// The apps that were named together.
    along: &'a BTreeSet<AppName>,
}

impl At<'_> {
    async fn app(
        &self,
        app: &App,
        judged: &Judged,
        rendered: Option<&Rendered>,
    ) -> Result<AppSeen, OperatorError> {
        let subject = judged.subjects.get(&app.name);
        let needs = subject.map(needs_of).unwrap_or_default();
        let of_it = judged.findings.iter().filter(|finding| finding.apps.contains(&app.name));
        let stand = self.stand(app).await?;
        Ok(AppSeen {
            app: app.name.clone(),
            undeployed: needs.iter().filter(|need| !self.is_deployed(need)).cloned().collect(),
            needs,
            findings: of_it.map(Finding::to_string).collect(),
            waits: judged.waits.get(&app.name).into_iter().flatten().map(Wait::to_string).collect(),
            declares: subject.is_some_and(|subject| subject.declares != Declares::Nothing),
            migrations: self.migrations(app, &stand).await?,
            application: self.application(app, rendered),
            lacks: Vec::new(),
            deployer: self.deployer(app).await?,
            stand,
        })
    }

    /// Whether something of an app runs here.
    fn is_deployed(&self, app: &AppName) -> bool {
        let registered = self.apps.registrations.apps.get(app);
        registered.is_some_and(|app| self.deployed(app).is_some())
    }

    fn deployed(&self, app: &App) -> Option<DeployedImage> {
        composition::load(&self.apps.tree, app, self.environment).ok()??.image.deployed
    }

    async fn stand(&self, app: &App) -> Result<Stand, OperatorError> {
        let regarded = self.ground.operator.regard(self.apps, app).await?;
        let (status, next) = self.ground.operator.told(self.apps, app, &regarded);
        let (told, next) = (status.reason, format!("; {next}"));
        let (from, others) = self.images_of(app);
        let moving = self.moving(&regarded);
        let target = match &regarded.view.target {
            Target::At { revision, .. } => revision.clone(),
            Target::Nothing(why) => {
                let image = ImageSeen::Nothing(format!("there is nothing to build: {why}{next}"));
                let (target, composition) = (None, CompositionSeen::ToCome);
                return Ok(Stand {
                    target,
                    image,
                    composition,
                    from,
                    others,
                    moving,
                    stop: None,
                    used_up: None,
                    told,
                });
            }
        };
        let channels = [Channel::Image, Channel::Infra].map(|channel| self.verdict(&regarded, channel));
        let deployed = self.deployed(app);
        let [of_image, of_infra] = channels.map(|verdict| self.way(&regarded, verdict));
        let composition = match (&of_image, &of_infra, &deployed) {
            (Way::There, Way::There, Some(image)) => CompositionSeen::There(image.revision.clone()),
            _ => CompositionSeen::ToCome,
        };
        let stopped = [of_image.clone(), of_infra].into_iter().find_map(|way| match way {
            Way::Stopped(why) => Some(why),
            Way::There | Way::Coming => None,
        });
        let promoted = matches!(of_image, Way::There) && deployed.is_none();
        let promoted =
            promoted.then(|| "its image comes from another environment, by a person's word".to_owned());
        let failed = failure(&regarded);
        let (of_source, of_others) = match failed {
            Some((why, true)) => (Some(why), None),
            Some((why, false)) => (None, Some(why)),
            None => (None, None),
        };
        let stop = stopped.or(of_source).or(promoted).map(|why| format!("{why}{next}"));
        let image = self.image(app, &regarded, &of_image, target.clone()).await?;
        let used_up = of_others.map(|why| format!("{why}{next}"));
        let target = Some(target);
        Ok(Stand { target, image, composition, from, others, moving, stop, used_up, told })
    }

    /// The other environments of which a worker moves something.
    fn moving(&self, regarded: &Regarded) -> BTreeSet<EnvironmentName> {
        let others = regarded.decision.channels.iter().filter(|own| own.environment != *self.environment);
        let coming = others.filter(|own| self.way(regarded, Some(&own.verdict)) == Way::Coming);
        coming.map(|own| own.environment.clone()).collect()
    }

    /// Where the images of this environment come from, if not from builds, and where builds go besides.
    fn images_of(&self, app: &App) -> (Option<EnvironmentName>, BTreeSet<EnvironmentName>) {
        let (here, others): (Vec<_>, Vec<_>) =
            app.environments.iter().partition(|place| place.name == *self.environment);
        let from = here.first().and_then(|here| match &here.image {
            ImageFrom::Build => None,
            ImageFrom::Environment(from) => Some(from.clone()),
        });
        let follow = others.into_iter().filter(|place| place.image == ImageFrom::Build);
        (from, follow.map(|place| place.name.clone()).collect())
    }

    fn verdict<'r>(&self, regarded: &'r Regarded, channel: Channel) -> Option<&'r Verdict> {
        let mut channels = regarded.decision.channels.iter();
        let own = channels.find(|own| own.environment == *self.environment && own.channel == channel);
        own.map(|own| &own.verdict)
    }

    fn way(&self, regarded: &Regarded, verdict: Option<&Verdict>) -> Way {
        match verdict {
            None | Some(Verdict::Advance | Verdict::NoImageYet) => Way::Coming,
            Some(
                Verdict::UpToDate
                | Verdict::OtherImage { .. }
                | Verdict::Unchanged { .. }
                | Verdict::Older { .. }
                | Verdict::NotDescendant { .. }
                | Verdict::NotAutomatic,
            ) => Way::There,
            // What it waits for is brought along.
            Some(Verdict::NotReady(_)) if regarded.view.awaits.iter().any(|app| self.along.contains(app)) => {
                Way::Coming
            }
            Some(
                verdict @ (Verdict::NotReady(_)
                | Verdict::Misdeclared(_)
                | Verdict::Held { .. }
                | Verdict::TakenBack { .. }
                | Verdict::Rewound { .. }
                | Verdict::DeployedUnknown { .. }
                | Verdict::OffBranch
                | Verdict::Trouble(_)),
            ) => Way::Stopped(verdict.to_string()),
        }
    }

    async fn image(
        &self,
        app: &App,
        regarded: &Regarded,
        way: &Way,
        target: Revision,
    ) -> Result<ImageSeen, OperatorError> {
        let registry = &self.ground.operator.ports.registry;
        if let (Way::There, Some(image)) = (way, self.deployed(app)) {
            let has = registry.has(&image.repository, &image.digest).await?;
            let promoted = self.images_of(app).0.is_some();
            return Ok(if has {
                ImageSeen::There(image.digest)
            } else {
                lost(regarded, image.digest, promoted)
            });
        }
        // The view has only what the registry answers for.
        if let Some(record) = &regarded.view.record {
            return Ok(ImageSeen::There(record.digest.clone()));
        }
        Ok(match &regarded.view.memory.running {
            Some(running) => ImageSeen::UnderWay(running.build.clone()),
            None => ImageSeen::Missing(target),
        })
    }

    /// What is run before the sync of the image that is deployed, or is to be.
    async fn migrations(&self, app: &App, stand: &Stand) -> Result<FileSeen, OperatorError> {
        let none = |why: &str| Ok(FileSeen::None(why.to_owned()));
        let Some(settings) = self.ground.settings else { return none("none: workers render nothing") };
        let Ok(Some(contract)) = &self.apps.contract else { return none("none: there is no contract") };
        let revision = match (&stand.composition, &stand.target) {
            (CompositionSeen::There(revision), _) => revision.clone(),
            (CompositionSeen::ToCome, Some(target)) => target.clone(),
            (CompositionSeen::ToCome, None) => return none("none: there is no revision to take them from"),
        };
        let known = (&self.apps.registrations, contract);
        let (source, place) = (self.ground.declared.source.as_ref(), (app, self.environment));
        Ok(match rendered_at(source, &revision, &self.apps.tree, known, place, settings).await? {
            Ok(None) => FileSeen::None("none: it declares none".to_owned()),
            Ok(Some((file, text))) => self.compared(file, text.as_bytes()),
            Err(finding) => FileSeen::Unfit(finding.to_string()),
        })
    }

    /// A file of `cluster/apps`; nothing where there is none that could be read.
    fn stands(&self, file: &RelPath) -> Option<&[u8]> {
        self.apps.tree.read(file).ok().flatten().map(|bytes| &bytes[..])
    }

    fn compared(&self, file: RelPath, wanted: &[u8]) -> FileSeen {
        let same = self.stands(&file).is_some_and(|stands| stands == wanted);
        if same { FileSeen::There(file) } else { FileSeen::Differs(file) }
    }

    fn application(&self, app: &App, rendered: Option<&Rendered>) -> FileSeen {
        let file = layout::application_of(&app.name, self.environment);
        let (Some(rendered), Some(settings)) = (rendered, self.ground.settings) else {
            return FileSeen::None(
                "workers render none: render.enabled is off, and people keep it".to_owned(),
            );
        };
        if settings.destination(self.environment).is_none() {
            let environment = self.environment;
            return FileSeen::None(format!("none: render.destinations does not name {environment}"));
        }
        let stands = self.stands(&file);
        if stands.is_some_and(|stands| !stands.starts_with(MARK.as_bytes())) {
            return FileSeen::None(format!("{file} is written by hand, and left alone"));
        }
        let differs = rendered.differences.iter().any(|difference| difference.file == file);
        if stands.is_some() && !differs { FileSeen::There(file) } else { FileSeen::Differs(file) }
    }

    async fn deployer(&self, app: &App) -> Result<DeployerSeen, OperatorError> {
        let Some(deployer) = self.ground.deployer else { return Ok(DeployerSeen::Unasked) };
        let name = layout::application_name(&app.name, self.environment);
        let digest = self.deployed(app).map(|image| image.digest);
        let Some(state) = deployer.application(&name).await? else {
            return Ok(DeployerSeen::Behind(format!("there is no Application {name} yet")));
        };
        let compared = self.are_seen(app, &state.revisions).await?;
        let synced = match &state.operation {
            Some(operation) if operation.is_failed() => self.are_seen(app, &operation.revisions).await?,
            Some(_) | None => false,
        };
        Ok(running(&state, digest.as_ref().map(Digest::as_str), Of { compared, synced }))
    }

    /// Whether these commits, one for each source of an Application, have everything that is committed of the app here. Whoever
    /// changes other apps moves the branch, and Argo CD does not look for that at once.
    async fn are_seen(&self, app: &App, revisions: &[String]) -> Result<bool, OperatorError> {
        let composition = composition::load(&self.apps.tree, app, self.environment).ok().flatten();
        let overlay = composition.and_then(|found| found.infra.deployed).map(|infra| infra.revision);
        for revision in revisions {
            let Ok(revision) = Revision::parse(revision) else { return Ok(false) };
            // Where Argo CD reads the overlay in the app's repository, it says that commit.
            if revision == self.apps.commit || overlay.as_ref() == Some(&revision) {
                continue;
            }
            let changed = self.ground.operator.apps.changed_since(&revision, &self.apps.commit).await?;
            let concerns = |path: &String| concerns(app, self.environment, path);
            if changed.is_none_or(|paths| paths.iter().any(concerns)) {
                return Ok(false);
            }
        }
        Ok(!revisions.is_empty())
    }

    /// The derived secrets that the named apps depend on.
    async fn secrets(&self, judged: &Judged) -> Result<(SecretsSeen, Vec<Derivation>), OperatorError> {
        let mut wanted = BTreeSet::new();
        for app in self.along {
            if let Some(Declares::All(declaration)) =
                judged.subjects.get(app).map(|subject| &subject.declares)
            {
                wanted.extend(declaration.depends_on.secrets.iter().map(|secret| secret.value.as_str()));
            }
        }
        if wanted.is_empty() {
            return Ok((SecretsSeen::Seen(Vec::new()), Vec::new()));
        }
        let mut derivations = match secrets::derivations(&self.apps.contract, None) {
            Ok(derivations) => derivations,
            // It is a finding about the declarations already.
            Err(OperatorError::NoContract(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        derivations.retain(|derivation| wanted.contains(derivation.target.name.as_str()));
        let Some(port) = self.ground.secrets else {
            let names = derivations.iter().map(|derivation| derivation.target.to_string()).collect();
            return Ok((SecretsSeen::Unasked(names), Vec::new()));
        };
        let report = secrets::derive(port, &derivations, true).await?;
        Ok((SecretsSeen::Seen(report.secrets), derivations))
    }

    /// The repositories of the named apps, and `cluster/apps`.
    fn watched(&self, named: &[App]) -> Vec<Watched> {
        let (repo, branch) = self.ground.webhooks.apps;
        let mut watched = hooks::watched(&self.apps.registrations, (repo, branch));
        let of_named = |known: &Watched| named.iter().any(|app| app.source.repo.same_as(&known.repo));
        watched.retain(|known| known.repo.same_as(repo) || of_named(known));
        watched
    }
}

/// How a channel gets where it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    /// It is there.
    There,
    /// A worker brings it.
    Coming,
    /// Nobody does.
    Stopped(String),
}

/// What is to be said of an image that is deployed and that the registry has no more. A build under way is no way to one that
/// a person promoted.
fn lost(regarded: &Regarded, digest: Digest, promoted: bool) -> ImageSeen {
    match &regarded.view.memory.running {
        Some(running) if !promoted => ImageSeen::UnderWay(running.build.clone()),
        Some(_) | None => ImageSeen::Lost(digest),
    }
}

/// Why nobody builds or commits it any more, and whether trying again would not help either.
fn failure(regarded: &Regarded) -> Option<(String, bool)> {
    match &regarded.decision.reason {
        reason @ Reason::Failed { kind, dead, .. } if !kind.retryable() || *dead => {
            Some((reason.to_string(), !kind.retryable()))
        }
        _ => None,
    }
}

fn needs_of(subject: &Subject) -> BTreeSet<AppName> {
    match &subject.declares {
        Declares::All(declaration) => {
            declaration.depends_on.code_locations.iter().map(|need| need.value.clone()).collect()
        }
        Declares::Nothing | Declares::Unreadable | Declares::Misregistered => BTreeSet::new(),
    }
}

/// Whether a file of `cluster/apps` may be one that the Application of the app reads here: everything of the app but its
/// registration and what is another environment's, and what is run before its sync.
fn concerns(app: &App, environment: &EnvironmentName, path: &str) -> bool {
    let below =
        |folder: &RelPath| path.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/'));
    if below(&layout::migrations_folder(&app.name, environment)) {
        return true;
    }
    let others = app.environments.iter().filter(|other| other.name != *environment);
    let of_others =
        others.map(|other| layout::directory_of(&app.name, &other.name)).any(|folder| below(&folder));
    below(&layout::home_of(&app.name)) && !of_others && path != layout::registration_of(&app.name).as_str()
}

/// Of what is committed now are …
#[derive(Debug, Clone, Copy)]
struct Of {
    /// … what Argo CD says about an Application.
    compared: bool,
    /// … the sync that failed.
    synced: bool,
}

/// Whether an Application runs what is committed, with `digest`, as far as it tells its images: it tells those of pods.
fn running(state: &ApplicationState, digest: Option<&str>, of: Of) -> DeployerSeen {
    let shows = |digest: &str| state.images.iter().any(|image| image.ends_with(digest));
    let is_it = digest.is_none_or(|digest| state.images.is_empty() || shows(digest));
    if state.is_well() && is_it && of.compared {
        return DeployerSeen::Running;
    }
    let message =
        |message: Option<&String>| message.map(|message| format!(": {message}")).unwrap_or_default();
    let told = format!("{}, {}", state.sync, state.health);
    let own = message(state.message.as_ref());
    if !of.compared {
        return DeployerSeen::Behind(format!("{told}, of an older commit{own}"));
    }
    let failed = state.operation.as_ref().filter(|operation| operation.is_failed() && of.synced);
    match failed {
        Some(operation) if state.sync != "Synced" => {
            let why = message(operation.message.as_ref());
            DeployerSeen::Failed(format!("{told}; its sync failed{why}"))
        }
        Some(_) | None if state.sync == "Synced" && state.health == "Degraded" => {
            DeployerSeen::Degraded(format!("{told}{own}"))
        }
        Some(_) | None => {
            let older = if is_it { "" } else { ", with another image" };
            DeployerSeen::Behind(format!("{told}{older}{own}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use fabrique_ports::applications::SyncOperation;

    use super::*;

    const NOW: Of = Of { compared: true, synced: true };

    fn state(sync: &str, health: &str, images: &[&str]) -> ApplicationState {
        ApplicationState {
            sync: sync.to_owned(),
            health: health.to_owned(),
            images: images.iter().map(|&image| image.to_owned()).collect(),
            ..ApplicationState::default()
        }
    }

    #[test]
    fn an_application_runs_what_is_deployed_once_it_is_well_and_shows_that_image() {
        let new = Some("sha256:bb");
        let image = ["registry:80/citation@sha256:bb"];
        assert_eq!(running(&state("Synced", "Healthy", &image), new, NOW), DeployerSeen::Running);
        assert_eq!(running(&state("Synced", "Healthy", &[]), new, NOW), DeployerSeen::Running);
        for behind in [
            state("Synced", "Healthy", &["registry:80/citation@sha256:aa"]),
            state("OutOfSync", "Healthy", &image),
            state("Synced", "Progressing", &image),
        ] {
            assert!(matches!(running(&behind, new, NOW), DeployerSeen::Behind(_)), "{behind:?}");
        }
    }

    #[test]
    fn what_is_said_of_an_older_commit_says_nothing_of_what_is_committed() {
        let image = ["registry:80/citation@sha256:bb"];
        let older = Of { compared: false, synced: true };
        let mut failed = state("OutOfSync", "Healthy", &image);
        failed.operation = Some(SyncOperation { phase: "Failed".to_owned(), ..SyncOperation::default() });
        let images: [&[&str]; 2] = [&image, &[]];
        let well = images.map(|images| state("Synced", "Healthy", images));
        for state in well.into_iter().chain([state("Synced", "Degraded", &image), failed]) {
            let seen = running(&state, Some("sha256:bb"), older);
            let DeployerSeen::Behind(said) = seen else { panic!("{state:?}: {seen:?}") };
            assert!(said.contains("of an older commit"), "{said}");
        }
    }

    #[test]
    fn a_sync_that_failed_and_an_app_that_is_degraded_are_told_with_their_words() {
        let image = ["registry:80/citation@sha256:bb"];
        let mut failed = state("OutOfSync", "Healthy", &image);
        let operation = |phase: &str| {
            let message = Some("Job migrate: Job has reached the backoff limit".to_owned());
            Some(SyncOperation { phase: phase.to_owned(), message, ..SyncOperation::default() })
        };
        failed.operation = operation("Failed");
        let seen = running(&failed, Some("sha256:bb"), NOW);
        assert!(matches!(&seen, DeployerSeen::Failed(said) if said.contains("Job migrate")), "{seen:?}");
        // It is tried again, or it was another commit's.
        let older = Of { compared: true, synced: false };
        assert!(matches!(running(&failed, None, older), DeployerSeen::Behind(_)));
        failed.operation = operation("Running");
        assert!(matches!(running(&failed, None, NOW), DeployerSeen::Behind(_)));
        let mut degraded = state("Synced", "Degraded", &[]);
        degraded.operation = operation("Succeeded");
        degraded.message = Some("Deployment exceeded its progress deadline".to_owned());
        let seen = running(&degraded, Some("sha256:bb"), NOW);
        assert!(matches!(&seen, DeployerSeen::Degraded(said) if said.contains("deadline")), "{seen:?}");
    }

    #[test]
    fn a_file_concerns_an_application_that_may_read_it() {
        let text = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: citation }\nspec:\n  source: { repo: \
                    atlas/citation }\n  image: registry:80/citation\n  environments: [{ name: staging }, { name: prod }]\n";
        let file = RelPath::parse("apps/citation/app.yaml").unwrap();
        let tree: fabrique_gitops::Tree =
            [(file, fabrique_gitops::Entry::regular(text.to_owned()))].into_iter().collect();
        let rules = fabrique_gitops::Rules { registries: vec!["registry:80".to_owned()] };
        let registrations = fabrique_gitops::Registrations::load(&tree, &rules);
        let app = registrations.apps.values().next().unwrap();
        let prod = EnvironmentName::parse("prod").unwrap();
        for path in [
            "apps/citation/prod/composition.yaml",
            "apps/citation/base/a.yaml",
            "migrations/prod/citation/a.yaml",
        ] {
            assert!(concerns(app, &prod, path), "{path}");
        }
        for path in [
            "apps/citation/staging/composition.yaml",
            "apps/citation/app.yaml",
            "apps/citation-two/prod/a.yaml",
            "apps/mediawatch/prod/composition.yaml",
            "contract.yaml",
        ] {
            assert!(!concerns(app, &prod, path), "{path}");
        }
    }
}
