//! What a look asks the forge for.

use std::sync::Mutex;

use async_trait::async_trait;
use fabrique_core::build::BuildInputs;
use fabrique_core::decision::{Action, decide};
use fabrique_core::id::{BranchName, BuildKey, Digest, ImageRepository};
use fabrique_core::memory::Memory;
use fabrique_core::policy::Policy;
use fabrique_core::time::Timestamp;
use fabrique_ports::forge::{BranchTip, CommitStatus, Forge, StatusOutcome};
use fabrique_ports::records::{ImageRecord, Records, Swap, Versioned};
use fabrique_ports::registry::Registry;
use fabrique_ports::testing::SourceStub;
use fabrique_ports::{Fault, Peer, PortError};

use super::*;

const CONTRACT: &str = "apiVersion: fabrique/v1\nkind: Contract\nversion: 3\naccepts: [3]\nendpoints: { gitea: \
                        'http://gitea', argocd: 'https://argocd', registry: 'registry:80', nats: 'nats://nats' }\n\
                        environments: { prod: {} }\n";

/// Peers that know the declarations of apps, each in the repository of its name, and nothing else.
#[derive(Default)]
struct World {
    declarations: BTreeMap<String, String>,
    /// What the forge was asked for: the repositories whose heads, and those whose files.
    heads: Mutex<Vec<String>>,
    files: Mutex<Vec<String>>,
}

fn unasked<T>(peer: Peer) -> PortResult<T> {
    Err(PortError::new(peer, Fault::Unexpected, "nobody is to ask for this"))
}

fn taken(of: &Mutex<Vec<String>>) -> Vec<String> {
    let mut taken = std::mem::take(&mut *of.lock().unwrap());
    taken.sort();
    taken
}

#[async_trait]
impl Forge for World {
    async fn branch_head(&self, repo: &RepoName, _: &BranchName) -> PortResult<BranchHead> {
        self.heads.lock().unwrap().push(repo.name().to_owned());
        Ok(BranchHead::At(revision(HEAD)))
    }

    async fn branch_tip(&self, _: &RepoName, _: &BranchName) -> PortResult<Option<BranchTip>> {
        unasked(Peer::Forge)
    }

    async fn was_pushed(&self, _: &RepoName, _: &Revision) -> PortResult<bool> {
        unasked(Peer::Forge)
    }

    async fn file(&self, repo: &RepoName, _: &Revision, _: &RelPath) -> PortResult<Option<ForgeFile>> {
        self.files.lock().unwrap().push(repo.name().to_owned());
        let text = self.declarations.get(repo.name());
        Ok(text.map(|text| ForgeFile::Content(text.clone().into_bytes())))
    }

    async fn set_status(&self, _: &RepoName, _: &Revision, _: &CommitStatus) -> PortResult<StatusOutcome> {
        unasked(Peer::Forge)
    }
}

#[async_trait]
impl Registry for World {
    async fn has(&self, _: &ImageRepository, _: &Digest) -> PortResult<bool> {
        unasked(Peer::Registry)
    }

    async fn resolve(&self, _: &ImageRepository, _: &str) -> PortResult<Option<Digest>> {
        unasked(Peer::Registry)
    }

    async fn tag(&self, _: &ImageRepository, _: &Digest, _: &str) -> PortResult<()> {
        unasked(Peer::Registry)
    }

    async fn ping(&self, _: &str) -> PortResult<()> {
        unasked(Peer::Registry)
    }
}

#[async_trait]
impl Records for World {
    async fn record(&self, _: &BuildKey) -> PortResult<Option<ImageRecord>> {
        Ok(None)
    }

    async fn record_at(&self, _: &BuildKey) -> PortResult<Versioned<Option<ImageRecord>>> {
        Ok(Versioned::default())
    }

    async fn swap_record(&self, _: &ImageRecord, _: u64) -> PortResult<Swap> {
        Ok(Swap::Lost)
    }
}

/// Apps, each with those that it needs; the declarations of the `absent` are not there.
fn world(needs: &[(&str, Vec<String>)], absent: &[&str]) -> (Arc<World>, Apps) {
    let mut world = World::default();
    let mut files = vec![(contract::FILE_NAME.to_owned(), CONTRACT.to_owned())];
    for (app, needed) in needs {
        let registration = format!(
            "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {app} }}\nspec:\n  source: {{ repo: atlas/{app}, \
             declaration: manifest.yaml }}\n  image: registry:80/{app}\n"
        );
        files.push((format!("apps/{app}/app.yaml"), registration));
        if !absent.contains(app) {
            let needed = needed.join(", ");
            let declaration = format!(
                "codeLocation: {app}\ncontractVersion: 3\nready: true\ndependsOn: {{ codeLocations: [{needed}] }}\n"
            );
            world.declarations.insert((*app).to_owned(), declaration);
        }
    }
    let files = files.into_iter().map(|(path, text)| (RelPath::parse(&path).unwrap(), Entry::regular(text)));
    let rules = Rules { registries: vec!["registry:80".to_owned()] };
    let apps = Apps::parse(revision("a"), files.collect(), &rules);
    assert!(apps.registrations.findings.is_empty(), "{:?}", apps.registrations.findings);
    (Arc::new(world), apps)
}

fn observer(world: &Arc<World>) -> Observer {
    let [forge, registry, records] = [(); 3].map(|()| Arc::clone(world));
    Observer::new(forge, Arc::new(SourceStub::default()), registry, records, Policy::default())
}

fn chain(apps: &[&'static str], last: &[&str]) -> Vec<(&'static str, Vec<String>)> {
    let next = apps.iter().skip(1).map(|next| vec![(*next).to_owned()]);
    let last = last.iter().map(|needed| (*needed).to_owned()).collect();
    apps.iter().copied().zip(next.chain([last])).collect()
}

#[tokio::test]
async fn dependencies_are_followed_before_a_build_and_not_again_at_its_commit() {
    let names = ["a", "b", "c", "d", "e"];
    let (world, apps) = world(&chain(&names, &[]), &[]);
    let (memory, now, app) = (Memory::default(), Timestamp(0), &apps.registrations.apps[&name("a")]);
    let view = observer(&world).observe(app, &apps, &memory, now).await.unwrap();
    assert!(matches!(decide(&view).action, Action::Build { .. }), "{view:?}");
    assert_eq!(taken(&world.heads), names);
    let (revision, key) = (revision(HEAD), BuildInputs::of(app, &revision(HEAD), 0).key());
    for _ in 0..2 {
        let built = (&revision, &key);
        let seen = observer(&world).candidate(app, &apps, &memory, built, None, now).await.unwrap();
        assert_eq!(seen.declared, Declared::Admitted);
        assert_eq!(taken(&world.heads), ["a", "b"], "its own, and the one that it needs");
    }
}

#[tokio::test]
async fn a_circle_through_apps_further_on_is_refused_before_a_build() {
    let (world, apps) = world(&chain(&["a", "b", "c"], &["a"]), &[]);
    for app in apps.registrations.apps.values() {
        let memory = Memory::default();
        let view = observer(&world).observe(app, &apps, &memory, Timestamp(0)).await.unwrap();
        let told = why(view.declared);
        assert!(told.starts_with("refused: ") && told.contains("closes the circle a → b → c → a"), "{told}");
    }
}

#[tokio::test]
async fn a_declaration_that_is_not_there_is_asked_for_once_in_a_round_and_again_in_the_next() {
    let needs = [
        ("a", vec!["b".to_owned()]),
        ("b", vec!["absent".to_owned()]),
        ("c", vec!["b".to_owned()]),
        ("absent", vec![]),
    ];
    let (world, apps) = world(&needs, &["absent"]);
    let observer = observer(&world);
    for _ in 0..2 {
        let round = observer.for_one_round();
        for app in apps.registrations.apps.values() {
            round.observe(app, &apps, &Memory::default(), Timestamp(0)).await.unwrap();
        }
        let asked = taken(&world.files);
        assert_eq!(asked.iter().filter(|repo| *repo == "absent").count(), 1, "{asked:?}");
    }
}

#[test]
fn no_more_apps_are_followed_than_there_is_room_for_however_many_a_level_has() {
    let many: Vec<String> = (0..300).map(|number| format!("x{number}")).collect();
    let mut needs: Vec<(&str, Vec<String>)> = many.iter().map(|app| (app.as_str(), Vec::new())).collect();
    let front: Vec<String> = (0..5).map(|number| format!("front{number}")).collect();
    for (front, needed) in front.iter().zip(many.chunks(60)) {
        needs.push((front, needed.to_vec()));
    }
    let (world, apps) = world(&needs, &[]);
    let mut known = unread_all(&apps.registrations);
    for app in &front {
        let read = read(&world.declarations[app]);
        set(&mut known, &name(app), &read);
    }
    let level: Vec<&App> = front.iter().map(|app| &apps.registrations.apps[&name(app)]).collect();
    let mut seen: BTreeSet<AppName> = front.iter().map(|app| name(app)).collect();
    let next = beyond(&level, &known, &mut seen, &apps);
    assert_eq!(next.len(), FOLLOWED - front.len());
    assert!(beyond(&level, &known, &mut seen, &apps).is_empty(), "there is no room for more");
}
