//! Argo CD's Applications, committed together with what they deploy.

use std::collections::{BTreeMap, BTreeSet};

use fabrique_core::id::{AppName, Channel, EnvironmentName};
use fabrique_core::verdict::Verdict;
use fabrique_gitops::plan::Planned;
use fabrique_gitops::render::{self, Needs, Settings, Standing};
use fabrique_gitops::{Refusal, Registrations, Tree, layout};

use crate::writeback::{Proposal, Staged};

/// What the Applications of a proposal are rendered with.
#[derive(Debug, Clone)]
pub(crate) struct Along {
    /// Whose they are.
    pub(crate) app: AppName,
    /// What its declaration says; nothing when that is not known, then the needs of the rendered file count.
    pub(crate) needs: Option<Needs>,
    /// Where another revision is deployed than the one it is about: what that one's declaration says.
    pub(crate) here: BTreeMap<EnvironmentName, Needs>,
}

impl Along {
    pub(crate) fn of(app: &AppName, needs: Option<Needs>) -> Self {
        Self { app: app.clone(), needs, here: BTreeMap::new() }
    }
}

/// Adds to each commit of a proposal the Application of its environment, where there is none yet or where it changes:
/// what is deployed and who deploys it never differ at any commit. An environment whose Application may not be created
/// yet keeps none of its commits, and it is said why.
///
/// `tree` is the one that the commits go onto. A file here depends on the files of other apps, so that two proposals
/// with Applications from one tree could not follow each other in one push.
pub(crate) fn bring_along(
    proposal: &mut Proposal,
    tree: &Tree,
    (registrations, standing): (&Registrations, &Standing),
    settings: &Settings,
) {
    let Some(Along { app, needs: everywhere, here }) = proposal.along.clone() else { return };
    let mut tree = tree.clone();
    let mut standing = standing.on(&tree);
    let mut stopped: BTreeSet<EnvironmentName> = BTreeSet::new();
    for staged in std::mem::take(&mut proposal.staged) {
        let environment = staged.planned.message.trailers().environment.clone();
        if environment.as_ref().is_some_and(|environment| stopped.contains(environment)) {
            continue;
        }
        let needs = environment.as_ref().and_then(|place| here.get(place)).or(everywhere.as_ref());
        let along = |planned: Planned| match &environment {
            Some(place) => {
                let known = (registrations, &standing);
                render::along(planned, &tree, known, (&app, place), needs.cloned(), settings)
            }
            None => Ok(planned),
        };
        let next = along(staged.planned).and_then(|planned| {
            let next = tree.apply(&planned.changes)?;
            Ok::<_, Refusal>((planned, next))
        });
        match next {
            // What a commit was made for alone did not change.
            Ok((planned, _)) if planned.changes.is_empty() => {}
            Ok((planned, next)) => {
                standing = standing.on(&next);
                tree = next;
                proposal.staged.push(Staged { planned, automatic: staged.automatic });
            }
            Err(refusal) => {
                let Some(environment) = environment else { continue };
                let channel = staged.automatic.map_or(Channel::Image, |(_, channel, _)| channel);
                let mut verdict = Verdict::Trouble(refusal.to_string());
                if matches!(refusal, Refusal::NotYet { .. }) {
                    let needs = needs.into_iter().flat_map(|needs| &needs.apps);
                    let missing = needs.filter(|need| {
                        let file = layout::application_of(need, &environment);
                        registrations.apps.contains_key(*need) && !matches!(tree.read(&file), Ok(Some(_)))
                    });
                    verdict = Verdict::NotReady(refusal.to_string());
                    proposal.early.insert((environment.clone(), channel), missing.cloned().collect());
                }
                proposal.refused.push((environment.clone(), channel, verdict));
                stopped.insert(environment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::app::DeployedImage;
    use fabrique_core::id::{Digest, ImageRepository, RelPath, Revision};
    use fabrique_core::time::Timestamp;
    use fabrique_gitops::registration::SourceForm;
    use fabrique_gitops::{Entry, Rules, plan};

    use super::*;
    use crate::testing::settings;
    use crate::writeback::Judged;

    /// Two apps, whose manifests people keep.
    fn tree() -> Tree {
        let files = ["atom", "base", "citation"].into_iter().flat_map(|name| {
            let registration = format!(
                "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {name} }}\nspec:\n  \
                 source: {{ repo: atlas/{name} }}\n  image: registry:80/{name}\n  environments: [{{ name: prod }}]\n"
            );
            [
                (format!("apps/{name}/app.yaml"), registration),
                (format!("apps/{name}/prod/deployment.yaml"), "kind: Deployment\n".to_owned()),
            ]
        });
        files.map(|(path, text)| (RelPath::parse(&path).unwrap(), Entry::regular(text))).collect()
    }

    fn registrations(tree: &Tree) -> Registrations {
        Registrations::load(tree, &Rules { registries: vec!["registry:80".to_owned()] })
    }

    /// What would be committed on a tree to deploy the image of `revision`, before Applications come along.
    fn planned(tree: &Tree, name: &str, needs: &[&str], revision: char) -> Proposal {
        let registrations = registrations(tree);
        let app = &registrations.apps[&AppName::parse(name).unwrap()];
        let image = DeployedImage {
            repository: ImageRepository::parse(&format!("registry:80/{name}")).unwrap(),
            digest: Digest::of(format!("{name} {revision}").as_bytes()),
            revision: Revision::parse(&revision.to_string().repeat(40)).unwrap(),
            version: None,
            build: None,
        };
        let prod = EnvironmentName::parse("prod").unwrap();
        let planned = plan::deploy_image(tree, app, &prod, &image, None, Timestamp(0)).unwrap().unwrap();
        let needs = needs.iter().map(|name| AppName::parse(name).unwrap()).collect();
        let needs = Some(Needs { apps: needs, ..Needs::default() });
        let along = Some(Along::of(&app.name, needs));
        Proposal { staged: vec![Staged::by_person(planned)], along, ..Proposal::default() }
    }

    /// Puts a proposal onto a tree, and returns it with the tree after it.
    fn chained(mut proposal: Proposal, tree: &Tree) -> (Proposal, Tree) {
        bring_along(
            &mut proposal,
            tree,
            (&registrations(tree), &Standing::of(tree)),
            &settings(SourceForm::Copy, "apps", None),
        );
        let after = proposal.staged.iter().fold(tree.clone(), |t, s| t.apply(&s.planned.changes).unwrap());
        (proposal, after)
    }

    fn deployed(tree: &Tree, name: &str, needs: &[&str]) -> (Proposal, Tree) {
        chained(planned(tree, name, needs, 'a'), tree)
    }

    /// The wave of an app's Application.
    fn wave(tree: &Tree, name: &str) -> String {
        let file = RelPath::parse(&format!("applications/{name}-prod.yaml")).unwrap();
        let text = String::from_utf8_lossy(tree.read(&file).unwrap().unwrap()).into_owned();
        text.split_once("sync-wave: \"").unwrap().1.split('"').next().unwrap().to_owned()
    }

    #[test]
    fn one_commit_brings_the_image_and_the_application_once_what_it_needs_is_there() {
        let tree = tree();
        let (mut early, _) = deployed(&tree, "citation", &["base"]);
        assert_eq!((early.staged.len(), early.refused.len()), (0, 1));
        let Verdict::NotReady(why) = &early.refused[0].2 else { panic!("{early:?}") };
        assert!(why.contains("base, which it depends on, is not deployed"), "{why}");
        // It is not planned again at once; what is declared is judged anew each time.
        let [image, base] = ["a", "b"].map(|digit| Revision::parse(&digit.repeat(40)).unwrap());
        let test = EnvironmentName::parse("test").unwrap();
        early.refused.push((test, Channel::Image, early.refused[0].2.clone()));
        early.judged = Some(Judged { image: Some(image.clone()), overlay: image });
        early.note_refusals(&base);
        let [(place, Channel::Image, refused)] = &early.to_remember[..] else { panic!("{early:?}") };
        assert_eq!((place.as_str(), refused.waits), ("prod", true));
        assert_eq!(refused.awaits, BTreeSet::from([AppName::parse("base").unwrap()]), "it is to be told");

        let (_, tree) = deployed(&tree, "base", &[]);
        let (now, after) = deployed(&tree, "citation", &["base"]);
        assert_eq!((now.staged.len(), now.refused.len()), (1, 0));
        assert!(now.early.is_empty());
        assert_eq!(wave(&after, "citation"), "1");
    }

    #[test]
    fn those_that_share_a_push_agree_on_the_waves_in_either_order() {
        let (_, tree) = deployed(&tree(), "atom", &[]);
        let (_, tree) = deployed(&tree, "base", &[]);
        for is_there in [true, false] {
            let tree = if is_there { deployed(&tree, "citation", &["base"]).1 } else { tree.clone() };
            // Both on one tree, as a round plans them: base comes to need atom, and citation what it did not need.
            let base = planned(&tree, "base", &["atom"], 'b');
            let citation = planned(&tree, "citation", &["atom", "base"], 'b');
            for [first, second] in [[&base, &citation], [&citation, &base]] {
                let (_, after) = chained(first.clone(), &tree);
                let (last, after) = chained(second.clone(), &after);
                assert!(last.refused.is_empty(), "{last:?}");
                let waves = ["atom", "base", "citation"].map(|name| wave(&after, name));
                assert_eq!(waves, ["0", "1", "2"], "is_there: {is_there}");
            }
        }
    }
}
