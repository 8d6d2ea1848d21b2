//! More commits than a push may carry: those of apps that are ready together, and those of an app with many
//! environments.

use fabrique_bed::{GitRepo, wait_until};
use fabrique_stage::{AppOptions, Fabrique, Moment, SampleApp, Stage, Trap};
use serde_json::Value;

use crate::LONG;
use crate::scene::running;

/// More than fit in one push, behind another that is held up.
const APPS: usize = 8;
/// The most commits of one push, as Gitea's webhook lists them.
const MOST: usize = 5;

/// Apps that are built and recorded, and deployed nowhere yet.
struct Crowd {
    /// First, because fields drop in order and it must go before its peers.
    fabrique: Fabrique,
    apps: Vec<SampleApp>,
    revisions: Vec<String>,
    clone: GitRepo,
    stage: Stage,
}

impl Crowd {
    async fn built() -> Self {
        let (stage, fabrique) = running(Stage::builder().builders(2)).await;
        let (mut apps, mut revisions) = (Vec::new(), Vec::new());
        for number in 0..APPS {
            let options =
                AppOptions { deployed: false, overlay: false, ..AppOptions::named(&format!("app-{number}")) };
            let app = SampleApp::create(&stage, options).await.unwrap();
            revisions.push(app.push("first").await.unwrap());
            apps.push(app);
        }
        for (app, revision) in apps.iter().zip(&revisions) {
            stage.status_becomes(app, revision, "success").await.unwrap();
        }
        stage.hook("cluster", "apps").await.unwrap();
        let clone = stage.clone_apps().await.unwrap();
        Self { fabrique, apps, revisions, clone, stage }
    }

    /// One registration makes them all ready at once. The first push is held up by the returned trap, and the others
    /// gather behind it.
    async fn gathered(&mut self, moment: Moment) -> Trap {
        for app in &mut self.apps {
            app.options.deployed = true;
            app.write_registration(&self.clone).await.unwrap();
        }
        self.clone.commit("Deploy them all").await.unwrap();
        self.clone.push().await.unwrap();
        let trap = self.stage.trap(moment).unwrap();
        for app in &self.apps {
            self.stage.decided(&app.options.name, "is built and recorded").await.unwrap();
        }
        trap.sprung().await.unwrap();
        trap
    }

    /// How many commits fabrique has on the branch.
    async fn commits(&self) -> usize {
        self.clone.pull().await.unwrap();
        let automatic = self.clone.git(&["log", "--author=^fabrique <", "--format=%H"]).await.unwrap();
        automatic.lines().count()
    }

    /// Every app is deployed, by one commit each and by what was built before.
    async fn each_committed_once(&self) {
        for (app, revision) in self.apps.iter().zip(&self.revisions) {
            self.stage.committed_once(app, revision).await.unwrap_or_else(|error| panic!("{error:#}"));
            let builds = self.stage.builds(&app.options.name).await.unwrap();
            assert_eq!(builds.len(), 1, "adopted, not built again: {builds:?}");
        }
        assert_eq!(self.commits().await, APPS, "one commit for each app");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn apps_that_are_ready_together_share_a_push_of_at_most_five_commits() {
    let mut crowd = Crowd::built().await;
    crowd.gathered(Moment::BeforeTheUpdate).await.open().unwrap();
    crowd.each_committed_once().await;

    let mut shared = 0;
    for delivery in crowd.stage.deliveries("cluster", "apps", 1).await.unwrap() {
        let after = delivery["after"].as_str().unwrap().to_owned();
        let before = pushed_from(&crowd.stage, &after).await;
        let range = format!("{before}..{after}");
        let commits = crowd.clone.git(&["rev-list", "--author=^fabrique <", &range]).await.unwrap();
        assert!(commits.lines().count() <= MOST, "{range} is a push of {}", commits.lines().count());
        shared += usize::from(commits.lines().count() > 1);
    }
    assert!(shared > 0, "no push is shared");
}

/// Where the push to `cluster/apps` that ended at `after` began, as Gitea's own feed has it.
async fn pushed_from(stage: &Stage, after: &str) -> String {
    let feed =
        stage.bed.gitea().api("GET", "/repos/cluster/apps/activities/feeds?limit=50", None).await.unwrap();
    let contents = feed.as_array().unwrap().iter().filter_map(|event| event["content"].as_str());
    let pushes: Vec<Value> = contents.filter_map(|content| serde_json::from_str(content).ok()).collect();
    let push = pushes.iter().find(|push| push["HeadCommit"]["Sha1"] == after);
    let push = push.unwrap_or_else(|| panic!("the feed has no push to {after}: {pushes:#?}"));
    // The comparison's URL is org/repo/compare/before...after.
    let url = push["CompareURL"].as_str().unwrap();
    url.rsplit('/').next().unwrap().split("...").next().unwrap().to_owned()
}

/// Kills the forge while it holds a push that several apps share, with others left for the next.
async fn forge_killed_under_a_shared_push(moment: Moment) {
    let mut crowd = Crowd::built().await;
    // The push that is held at one moment does not come to another trap at the same moment any more.
    let first = crowd.gathered(moment).await;
    let second = crowd.stage.trap(moment).unwrap();
    first.open().unwrap();
    second.sprung().await.unwrap();
    let there = crowd.commits().await;
    let gitea = crowd.stage.bed.gitea().peer();
    gitea.kill9().await.unwrap();
    gitea.start_again().await.unwrap();
    second.open().unwrap();
    match moment {
        Moment::BeforeTheUpdate => assert!(there + 1 < APPS, "{there} are there, and nobody shares a push"),
        Moment::AfterTheUpdate => assert!(there > 2, "{there} are there, and nobody shared a push"),
    }
    crowd.each_committed_once().await;
    assert_eq!(crowd.fabrique.logged(&["phase=Building"]), APPS);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: of the four moments of a forge's end one is in every run"]
async fn a_forge_killed_before_it_took_a_shared_push_has_one_commit_of_each_app_in_the_end() {
    forge_killed_under_a_shared_push(Moment::BeforeTheUpdate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forge_killed_after_it_took_a_shared_push_has_one_commit_of_each_app_in_the_end() {
    forge_killed_under_a_shared_push(Moment::AfterTheUpdate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_app_that_the_forge_refuses_keeps_no_other_out_that_shares_its_push() {
    const REFUSED: usize = APPS - 1;
    let mut crowd = Crowd::built().await;
    let refused = format!("app-{REFUSED}");
    // What people register is let through.
    let composition = format!("apps/{refused}/prod/composition.yaml");
    let veto = crowd.stage.veto(&composition, "frozen until Monday").unwrap();
    crowd.gathered(Moment::BeforeTheUpdate).await.open().unwrap();
    for (app, revision) in crowd.apps[..REFUSED].iter().zip(&crowd.revisions) {
        crowd.stage.committed_once(app, revision).await.unwrap_or_else(|error| panic!("{error:#}"));
    }
    let status = crowd.stage.status_becomes(&crowd.apps[REFUSED], &crowd.revisions[REFUSED], "error").await;
    let status = status.unwrap();
    assert!(status.description.contains("frozen until Monday"), "{status:?}");
    assert_eq!(crowd.stage.composition(&refused).await.unwrap(), None);
    assert_eq!(crowd.commits().await, REFUSED);

    drop(veto);
    crowd.each_committed_once().await;
}

/// The environments to which fabrique has committed an image of an app, in the order of the commits.
async fn environments(apps: &GitRepo) -> Vec<String> {
    let trailer = |key: &str| format!("%(trailers:key={key},valueonly,separator=)");
    let format = format!("--format={} {}", trailer("Channel"), trailer("Environment"));
    let log = apps.git(&["log", "--reverse", "--author=^fabrique <", &format]).await.unwrap();
    log.lines().filter_map(|line| line.strip_prefix("image ").map(str::to_owned)).collect()
}

/// An app with more environments than a push may carry is built once. The forge is killed while it holds the push
/// that the cut left for later.
async fn forge_killed_under_what_a_cut_left(moment: Moment) {
    let names: Vec<String> = (1..=MOST + 2).map(|number| format!("env-{number}")).collect();
    let (stage, fabrique) = running(Stage::builder()).await;
    let options = AppOptions { deployed: false, ..AppOptions::named("citation") };
    let app = SampleApp::create(&stage, options).await.unwrap();
    let clone = stage.clone_apps().await.unwrap();
    let environments_of: String = names.iter().map(|name| format!("    - name: {name}\n")).collect();
    let registration = app.registration().unwrap() + "  environments:\n" + &environments_of;
    clone.write("apps/citation/app.yaml", registration).await.unwrap();
    clone.commit("Deploy it everywhere").await.unwrap();
    clone.push().await.unwrap();

    let first = stage.trap(moment).unwrap();
    let revision = app.push("everywhere").await.unwrap();
    first.sprung().await.unwrap();
    let second = stage.trap(moment).unwrap();
    first.open().unwrap();
    second.sprung().await.unwrap();
    clone.pull().await.unwrap();
    let there = environments(&clone).await;
    let taken = if moment == Moment::AfterTheUpdate { names.len() } else { MOST };
    assert_eq!(there, names[..taken], "the first push carries as many as it may, and the second the rest");
    let gitea = stage.bed.gitea().peer();
    gitea.kill9().await.unwrap();
    gitea.start_again().await.unwrap();
    second.open().unwrap();

    stage.status_becomes(&app, &revision, "success").await.unwrap();
    let digest = stage.bed.registry().digest("citation", &revision[..12]).await.unwrap().unwrap();
    for name in &names {
        let path = format!("apps/citation/{name}/composition.yaml");
        wait_until(&format!("{name} to show the image"), LONG, || async {
            stage.apps_file(&path).await.ok()??.contains(&digest).then_some(())
        })
        .await
        .unwrap();
    }
    stage.settled("citation", 0).await.unwrap();
    clone.pull().await.unwrap();
    assert_eq!(environments(&clone).await, names, "one commit for each environment");
    assert_eq!(fabrique.logged(&["phase=Building"]), 1);
    stage.build_becomes("citation", &revision, "committed").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: of the four moments of a forge's end one is in every run"]
async fn a_forge_killed_before_it_took_what_a_cut_left_has_one_commit_of_each_environment() {
    forge_killed_under_what_a_cut_left(Moment::BeforeTheUpdate).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: of the four moments of a forge's end one is in every run"]
async fn a_forge_killed_after_it_took_what_a_cut_left_has_one_commit_of_each_environment() {
    forge_killed_under_what_a_cut_left(Moment::AfterTheUpdate).await;
}
