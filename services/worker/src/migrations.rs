//! Migrations, committed together with the image that needs them.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};

use fabrique_core::app::{App, ImageFrom};
use fabrique_core::id::{Channel, EnvironmentName, Revision};
use fabrique_core::verdict::Verdict;
use fabrique_gitops::render::{Settings, migrations};
use fabrique_gitops::{Finding, Refusal, Tree};
use fabrique_observer::Apps;
use fabrique_observer::migrations::{Wanted, wanted};
use fabrique_ports::PortResult;
use fabrique_ports::source::SourceHistory;

use crate::writeback::{Proposal, Staged};

/// Adds to each commit of an image what has to be run before it. An environment whose migrations cannot be had, or may not be
/// run, keeps none of its commits, and it is said why: neither an image, nor an overlay that goes before one. A person may have
/// `released` a revision from what was applied before it.
pub(crate) async fn bring(
    proposal: &mut Proposal,
    source: &dyn SourceHistory,
    (apps, tree): (&Apps, &Tree),
    (app, released): (&App, Option<&Revision>),
    settings: &Settings,
) -> PortResult<()> {
    let Ok(Some(contract)) = &apps.contract else { return Ok(()) };
    let known = (&apps.registrations, contract);
    let mut revisions: BTreeMap<Revision, Result<Option<Wanted>, Finding>> = BTreeMap::new();
    let mut stopped: BTreeSet<EnvironmentName> = BTreeSet::new();
    for staged in std::mem::take(&mut proposal.staged) {
        let Some((environment, channel, committed)) = &staged.automatic else {
            proposal.staged.push(staged);
            continue;
        };
        if stopped.contains(environment) {
            continue;
        }
        if !is_built_for(app, environment) {
            proposal.staged.push(staged);
            continue;
        }
        let revision = &committed.revision;
        let wanted = match revisions.entry(revision.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(wanted(source, app, revision).await?),
        };
        let is_released = released == Some(revision);
        let file = match wanted {
            Ok(Some(wanted)) => wanted.admitted(tree, known, (app, environment), settings, is_released),
            Ok(None) => Ok(None),
            Err(finding) => Err(finding.clone()),
        };
        let (environment, channel) = (environment.clone(), *channel);
        let planned = match file.map_err(Refusal::from) {
            Ok(Some(file)) if channel == Channel::Image => migrations::along(staged.planned, tree, file),
            Ok(_) => Ok(staged.planned),
            Err(refusal) => Err(refusal),
        };
        match planned {
            Ok(planned) => proposal.staged.push(Staged { planned, automatic: staged.automatic }),
            Err(refusal) => {
                let verdict = Verdict::Trouble(refusal.to_string());
                proposal.refused.push((environment.clone(), channel, verdict));
                stopped.insert(environment);
            }
        }
    }
    Ok(())
}

/// Whether automation brings images to an environment. Elsewhere a person does, with what they need.
fn is_built_for(app: &App, environment: &EnvironmentName) -> bool {
    app.environments.iter().any(|it| it.name == *environment && it.image == ImageFrom::Build)
}

#[cfg(test)]
mod tests {
    use fabrique_core::app::DeployedImage;
    use fabrique_core::id::{AppName, Digest, ImageRepository, RelPath};
    use fabrique_core::memory::Committed;
    use fabrique_core::time::Timestamp;
    use fabrique_gitops::registration::SourceForm;
    use fabrique_gitops::render::Destination;
    use fabrique_gitops::render::migrations::Runner;
    use fabrique_gitops::{Rules, plan};
    use fabrique_ports::source::{FileKind, SourceFile};
    use fabrique_ports::testing::SourceStub;

    use super::*;
    use crate::testing::{self, runner};

    type File = fabrique_gitops::Entry;

    fn file(name: &str, text: &str) -> SourceFile {
        let (path, kind) = (RelPath::parse(name).unwrap(), FileKind::Regular);
        SourceFile { path, kind, content: text.to_owned().into() }
    }

    /// A repository of which every revision has the same files.
    fn repository(files: Vec<(&'static str, String)>) -> SourceStub {
        let beneath = files.clone();
        SourceStub::default()
            .directories(move |_, directory| {
                let below = format!("{directory}/");
                let inside =
                    beneath.iter().filter_map(|(name, text)| Some((name.strip_prefix(&below)?, text)));
                Ok(Some(inside.map(|(name, text)| file(name, text)).collect()))
            })
            .files(move |_, path| {
                let found = files.iter().find(|(name, _)| *name == path.as_str());
                Ok(found.map(|(name, text)| file(name, text)))
            })
    }

    fn settings(runner: Option<Runner>) -> Settings {
        testing::settings(SourceForm::Copy, "dagster", runner)
    }

    fn apps(contract: bool) -> Apps {
        let registration = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: citation }\nspec:\n  source: { repo: \
                            atlas/citation, declaration: code-location.manifest.yaml, migrations: sql }\n  image: \
                            registry:80/citation\n  environments: [{ name: prod }]\n";
        let mut files = vec![
            ("apps/citation/app.yaml", registration),
            ("apps/citation/prod/deployment.yaml", "kind: Deployment\n"),
        ];
        if contract {
            files.push(("contract.yaml", include_str!("../../../docs/contract.yaml.example")));
        }
        let files =
            files.into_iter().map(|(path, text)| (RelPath::parse(path).unwrap(), File::regular(text)));
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        Apps::parse(Revision::parse(&"c".repeat(40)).unwrap(), files.collect(), &rules)
    }

    /// A commit of an image, and what became of it.
    async fn brought(source: &SourceStub, apps: &Apps, settings: &Settings) -> Proposal {
        brought_of(Channel::Image, None, source, apps, settings).await
    }

    /// The same of a channel, where a person released a revision.
    async fn brought_of(
        channel: Channel,
        released: Option<&Revision>,
        source: &SourceStub,
        apps: &Apps,
        settings: &Settings,
    ) -> Proposal {
        let app = &apps.registrations.apps[&AppName::parse("citation").unwrap()];
        let revision = Revision::parse(&"a".repeat(40)).unwrap();
        let image = DeployedImage {
            repository: ImageRepository::parse("registry:80/citation").unwrap(),
            digest: Digest::of(b"image"),
            revision: revision.clone(),
            version: None,
            build: None,
        };
        let prod = EnvironmentName::parse("prod").unwrap();
        let planned =
            plan::deploy_image(&apps.tree, app, &prod, &image, None, Timestamp(0)).unwrap().unwrap();
        let committed = Committed { commit: None, revision: revision.clone(), digest: None, key: None };
        let automatic = Some((prod, channel, committed));
        let mut proposal = Proposal { staged: vec![Staged { planned, automatic }], ..Proposal::default() };
        bring(&mut proposal, source, (apps, &apps.tree), (app, released), settings).await.unwrap();
        proposal
    }

    fn source(migrations: &str, more: &[(&'static str, &str)]) -> SourceStub {
        let declaration = format!(
            "codeLocation: citation\nready: true\ncontractVersion: 3\ndependsOn:\n  database: [pgvector]\n  secrets: \
             [pgvector-pg-auth]\n  migrations: [{migrations}]\n"
        );
        let mut files = vec![("code-location.manifest.yaml", declaration)];
        files.extend(more.iter().map(|(name, text)| (*name, (*text).to_owned())));
        repository(files)
    }

    fn paths(proposal: &Proposal) -> Vec<&str> {
        proposal
            .staged
            .iter()
            .flat_map(|staged| staged.planned.changes.iter().map(|(path, _)| path.as_str()))
            .collect()
    }

    #[tokio::test]
    async fn the_commit_of_an_image_brings_the_migrations_of_its_revision() {
        let source =
            source("001-a.sql", &[("sql/001-a.sql", "SELECT 1;\n"), ("sql/002-b.sql", "not declared")]);
        let proposal = brought(&source, &apps(true), &settings(Some(runner()))).await;
        let file = "migrations/prod/citation/migrations.yaml";
        assert_eq!(paths(&proposal), ["apps/citation/prod/composition.yaml", file]);
        let changes = &proposal.staged[0].planned.changes;
        let (_, content) = changes.iter().find(|(path, _)| path.as_str() == file).unwrap();
        let text = String::from_utf8_lossy(content.unwrap());
        assert!(text.contains("001-a.sql: |2") && !text.contains("002-b.sql"), "{text}");
    }

    #[tokio::test]
    async fn an_image_whose_migrations_cannot_be_had_is_not_deployed() {
        let there = [("sql/001-a.sql", "SELECT 1;\n")];
        let why = async |source: &SourceStub, settings: &Settings| {
            let proposal = brought(source, &apps(true), settings).await;
            assert!(proposal.staged.is_empty());
            let [(_, Channel::Image, Verdict::Trouble(why))] = &proposal.refused[..] else {
                panic!("{proposal:?}")
            };
            why.clone()
        };
        let missing = why(&source("002-b.sql", &there), &settings(Some(runner()))).await;
        assert!(missing.contains("002-b.sql is not in sql at this revision"), "{missing}");
        let nobody = why(&source("001-a.sql", &there), &settings(None)).await;
        assert!(nobody.contains("set render.migrations.image"), "{nobody}");
    }

    #[tokio::test]
    async fn an_applied_migration_that_was_edited_stops_image_and_overlay_unless_a_person_released_it() {
        let (runs, folder) = (settings(Some(runner())), |first: &'static str| {
            source("001-a.sql, 002-b.sql", &[("sql/001-a.sql", first), ("sql/002-b.sql", "SELECT 2;\n")])
        });
        let mut stands = apps(true);
        let deployed = brought(&folder("SELECT 1;\n"), &stands, &runs).await;
        let file = RelPath::parse("migrations/prod/citation/migrations.yaml").unwrap();
        let mut changes = deployed.staged[0].planned.changes.iter();
        let text = changes.find_map(|(path, text)| text.filter(|_| *path == file)).unwrap();
        let more = stands.tree.iter().map(|(path, entry)| (path.clone(), entry.clone()));
        stands.tree = more.chain([(file.clone(), File::regular(text.to_vec()))]).collect();
        let edited = folder("SELECT 0;\n");
        let revision = Revision::parse(&"a".repeat(40)).unwrap();
        for channel in [Channel::Image, Channel::Infra] {
            let refused = brought_of(channel, None, &edited, &stands, &runs).await;
            let [(_, of, Verdict::Trouble(why))] = &refused.refused[..] else { panic!("{refused:?}") };
            assert!(refused.staged.is_empty() && *of == channel, "{refused:?}");
            assert!(why.contains("001-a.sql was edited since it was deployed"), "{why}");
            let released = brought_of(channel, Some(&revision), &edited, &stands, &runs).await;
            assert_eq!((released.staged.len(), released.refused.len()), (1, 0), "{released:?}");
            let kept = brought_of(channel, None, &folder("SELECT 1;\n"), &stands, &runs).await;
            assert_eq!((kept.staged.len(), kept.refused.len()), (1, 0), "{kept:?}");
        }
    }

    #[tokio::test]
    async fn migrations_that_are_taken_back_are_run_no_more() {
        let broken = source("001-a.sql", &[("sql/001-a.sql", "SELEC 1;\n")]);
        let first = brought(&broken, &apps(true), &settings(Some(runner()))).await;
        let file = RelPath::parse("migrations/prod/citation/migrations.yaml").unwrap();
        let text = |proposal: &Proposal| {
            let mut changes = proposal.staged[0].planned.changes.iter();
            let content = changes.find(|(path, _)| **path == file).and_then(|(_, content)| content.cloned());
            content.map(|content| String::from_utf8(content.to_vec()).unwrap())
        };
        let broken = text(&first).unwrap();
        let mut stands = apps(true);
        let more = stands.tree.iter().map(|(path, entry)| (path.clone(), entry.clone()));
        stands.tree = more.chain([(file.clone(), File::regular(broken))]).collect();
        let none = text(&brought(&source("", &[]), &stands, &settings(Some(runner()))).await).unwrap();
        assert!(
            none.contains("order: \"\"") && none.contains("kind: Job") && !none.contains("SELEC"),
            "{none}"
        );
        // Without its database nothing is run any more, and no secret is mounted for it.
        let nothing = repository(vec![(
            "code-location.manifest.yaml",
            "codeLocation: citation\nready: true\ncontractVersion: 3\n".to_owned(),
        )]);
        let given_up = brought(&nothing, &stands, &settings(Some(runner()))).await;
        let left = text(&given_up).unwrap();
        assert!(left.lines().all(|line| line.starts_with('#')), "{left}");
        let again = stands.tree.iter().map(|(path, entry)| (path.clone(), entry.clone()));
        stands.tree = again.chain([(file.clone(), File::regular(left))]).collect();
        assert_eq!(text(&brought(&nothing, &stands, &settings(Some(runner()))).await), None);
        let again = source("001-a.sql", &[("sql/001-a.sql", "SELECT 1;\n")]);
        let back = text(&brought(&again, &stands, &settings(Some(runner()))).await).unwrap();
        assert!(back.contains("SELECT 1") && back.contains("kind: Job"), "{back}");
    }

    #[tokio::test]
    async fn two_environments_of_one_api_server_do_not_migrate_one_database() {
        let mut both = apps(true);
        let name = AppName::parse("citation").unwrap();
        let app = both.registrations.apps.get_mut(&name).unwrap();
        let mut test = app.environments[0].clone();
        test.name = EnvironmentName::parse("test").unwrap();
        app.environments.push(test.clone());
        let mut settings = settings(Some(runner()));
        settings
            .destinations
            .push(Destination { environment: test.name, ..settings.destinations[0].clone() });
        let source = source("001-a.sql", &[("sql/001-a.sql", "SELECT 1;\n")]);
        let refused = brought(&source, &both, &settings).await;
        let [(_, Channel::Image, Verdict::Trouble(why))] = &refused.refused[..] else {
            panic!("{refused:?}")
        };
        assert!(why.contains("prod and test are on one API server"), "{why}");
        settings.destinations[1].server = "https://test.example.com:6443".to_owned();
        assert_eq!(paths(&brought(&source, &both, &settings).await).len(), 2);
    }

    #[tokio::test]
    async fn an_app_that_declares_no_migration_is_deployed_as_ever() {
        let none = brought(&source("", &[]), &apps(true), &settings(None)).await;
        assert_eq!(paths(&none), ["apps/citation/prod/composition.yaml"]);
        // Whether it may be deployed without a contract is judged elsewhere.
        let without = brought(&source("001-a.sql", &[]), &apps(false), &settings(None)).await;
        assert_eq!(paths(&without), ["apps/citation/prod/composition.yaml"]);
    }
}
