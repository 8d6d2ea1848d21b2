//! Many apps, many pushes, few slots.

use std::cell::Cell;
use std::time::{Duration, Instant};

use fabrique_bed::{GitRepo, wait_until};
use fabrique_stage::{AppOptions, Fabrique, Gate, SampleApp, Stage};

use crate::LONG;

/// How long two hundred looks may take: a few seconds on an idle machine.
const CROWDED: Duration = Duration::from_mins(2);

/// How long a crowd's builds may take, two hundred of them in the soak.
const SERVED: Duration = Duration::from_mins(10);

async fn app(stage: &Stage, name: &str) -> SampleApp {
    SampleApp::create(stage, AppOptions::named(name)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_push_supersedes_with_every_slot_busy() {
    let stage = crate::stage().await;
    let fabrique = stage.all().await.unwrap();
    let (busy, other) = (app(&stage, "busy").await, app(&stage, "other").await);
    let gate = Gate::new();
    let old = busy.push_steps(&gate.steps()).await.unwrap();
    gate.reached().await.unwrap();
    let waiting = other.push("waits for the only slot").await.unwrap();
    fabrique.logs(1, &["decided", "app=other", "action=\"build\""]).await.unwrap();
    let newest = busy.push_steps("COPY message /message").await.unwrap();
    // The gate stays shut: only a supersede ends the first build.
    stage.committed_once(&busy, &newest).await.unwrap();
    stage.committed_once(&other, &waiting).await.unwrap();
    let status = stage.status_becomes(&busy, &old, "error").await.unwrap();
    assert!(status.description.contains(&newest[..12]), "{status:?}");
    assert_eq!(stage.image_commits("busy").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_whose_build_has_just_ended_is_built_again_after_all_that_waited_for_it() {
    let stage = crate::stage().await;
    let fabrique = stage.all().await.unwrap();
    let busy = app(&stage, "busy").await;
    let others = [app(&stage, "one").await, app(&stage, "two").await];
    // From here on `busy` is the one that was served longest ago.
    for app in [&busy, &others[0], &others[1]] {
        let first = app.push("first").await.unwrap();
        stage.committed_once(app, &first).await.unwrap();
        stage.settled(&app.options.name, 0).await.unwrap();
    }
    let before = built(&fabrique).len();
    let gate = Gate::new();
    busy.push_steps(&gate.steps()).await.unwrap();
    gate.reached().await.unwrap();
    let mut waiting = Vec::new();
    for other in &others {
        let decided = ["decided", &format!("app={}", other.options.name), "action=\"build\""];
        let decisions = fabrique.logged(&decided);
        waiting.push(other.push("waits for the only slot").await.unwrap());
        fabrique.logs(decisions + 1, &decided).await.unwrap();
    }
    let newest = busy.push_steps("COPY message /message").await.unwrap();
    stage.committed_once(&busy, &newest).await.unwrap();
    for (other, revision) in others.iter().zip(&waiting) {
        stage.committed_once(other, revision).await.unwrap();
    }
    assert_eq!(built(&fabrique)[before..], ["busy", "one", "two", "busy"]);
}

/// Two apps whose builds stand at their gates at the same time.
async fn two_are_built_at_once(stage: &Stage) {
    let (one, two) = (app(stage, "one").await, app(stage, "two").await);
    let gates = [Gate::new(), Gate::new()];
    let first = one.push_steps(&gates[0].steps()).await.unwrap();
    let second = two.push_steps(&gates[1].steps()).await.unwrap();
    for gate in &gates {
        gate.reached().await.unwrap();
    }
    for gate in &gates {
        gate.open();
    }
    stage.committed_once(&one, &first).await.unwrap();
    stage.committed_once(&two, &second).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_daemons_build_two_apps_at_once() {
    let stage = crate::started(Stage::builder().builders(2)).await;
    let _fabrique = stage.all().await.unwrap();
    two_are_built_at_once(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_with_two_slots_builds_two_apps_at_once() {
    let stage = crate::stage().await;
    let address = stage.bed.buildkit(0).address();
    let daemons = format!("[{{name=\"daemon-0\", address=\"{address}\", slots=2}}]");
    let _fabrique = stage.all_with(&[("FABRIQUE_BUILDKIT__DAEMONS", &daemons)]).await.unwrap();
    two_are_built_at_once(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_two_workers_without_a_slot_looks_once_at_an_app_that_waits_for_one() {
    let stage = crate::stage().await;
    let workers = [stage.worker().await.unwrap(), stage.worker().await.unwrap()];
    let _receiver = stage.receiver().await.unwrap();
    let (one, two) = (app(&stage, "one").await, app(&stage, "two").await);
    let (late, later) = (app(&stage, "late").await, app(&stage, "later").await);
    let gates = [Gate::new(), Gate::new()];
    for (busy, gate) in [&one, &two].into_iter().zip(&gates) {
        busy.push_steps(&gate.steps()).await.unwrap();
        gate.reached().await.unwrap();
    }
    let mut waiting = Vec::new();
    for waits in [&late, &later] {
        let revision = waits.push("waits for a slot").await.unwrap();
        let wanted = format!("target=\"{}\" action=\"build\"", &revision[..12]);
        for worker in &workers {
            worker.logs(1, &[&wanted]).await.unwrap();
        }
        waiting.push((waits, revision, wanted));
    }
    let looks = workers.each_ref().map(|worker| worker.logged(&[&waiting[0].2]));
    assert_eq!(looks, [1, 1], "looks at an app that has to wait");
    gates.iter().for_each(Gate::open);
    for (waits, revision, _) in waiting {
        stage.committed_once(waits, &revision).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_push_of_a_stream_is_lost_between_two_workers() {
    let stage = crate::stage().await;
    let _workers = [stage.worker().await.unwrap(), stage.worker().await.unwrap()];
    let _receiver = stage.receiver().await.unwrap();
    let app = app(&stage, "citation").await;
    let mut newest = String::new();
    for number in 0..12_u64 {
        newest = app.push(&format!("push {number}")).await.unwrap();
        // Spread over the length of a build, so that some wakes meet a claim and some a release.
        tokio::time::sleep(Duration::from_millis(37 * (number % 8))).await;
    }
    // No sweep helps here: the last wake alone has to do it.
    stage.committed_once(&app, &newest).await.unwrap();
}

/// Registers `count` apps of one repository in one commit, each a file of its own in `scratch`, and pushes
/// their sources in one commit before.
async fn crowd(stage: &Stage, count: usize, branch: &str) -> GitRepo {
    let source = stage.create_source("atlas", "crowd", false).await.unwrap();
    let apps = stage.clone_apps().await.unwrap();
    for number in 0..count {
        let folder = format!("app-{number}");
        source.write(&format!("{folder}/Dockerfile"), "FROM scratch\nCOPY name /name\n").await.unwrap();
        source.write(&format!("{folder}/name"), &folder).await.unwrap();
        let name = format!("{branch}-{number}");
        let image = format!("{}/{name}", stage.bed.registry().host());
        let registration = format!(
            "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {name} }}\nspec:\n  source: {{ repo: atlas/crowd, branch: {branch} }}\n  image: {image}\n  build: {{ context: {folder} }}\n"
        );
        apps.write(&format!("apps/{name}/app.yaml"), registration).await.unwrap();
    }
    source.commit("Add the crowd").await.unwrap();
    source.push().await.unwrap();
    apps.commit("Register the crowd").await.unwrap();
    // Fabrique writes there too.
    wait_until("the crowd's registrations to be pushed", LONG, || async {
        apps.git(&["pull", "--quiet", "--rebase"]).await.unwrap();
        apps.push().await.ok()
    })
    .await
    .unwrap();
    source
}

/// Pushes to `busy` every second until `done`, and returns how often.
async fn pushing(busy: &SampleApp, done: impl Future<Output = ()>) -> usize {
    let finished = Cell::new(false);
    let pushing = async {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        let mut pushes = 0;
        while !finished.get() {
            ticks.tick().await;
            busy.push(&format!("push {pushes}")).await.unwrap();
            pushes += 1;
        }
        pushes
    };
    let (pushes, ()) = tokio::join!(pushing, async {
        done.await;
        finished.set(true);
    });
    pushes
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_pushed_every_second_starves_none_of_two_hundred() {
    const CROWD: usize = 200;
    let stage = crate::stage().await;
    let fabrique = stage.all().await.unwrap();
    stage.hook("cluster", "apps").await.unwrap();
    let busy = app(&stage, "busy").await;
    let started = Instant::now();
    // Their branch does not exist, so that each needs a look and no build.
    let crowd = crowd(&stage, CROWD, "later");
    let looked = async {
        crowd.await;
        wait_until("every app of the crowd to be looked at", CROWDED, || async {
            (fabrique.logged(&["decided", "app=later-", "action=\"nothing\""]) >= CROWD).then_some(())
        })
        .await
        .unwrap();
    };
    let pushes = pushing(&busy, looked).await;
    assert!(started.elapsed() < CROWDED + LONG, "{:?}", started.elapsed());
    let newest = busy.push("the last").await.unwrap();
    stage.committed_once(&busy, &newest).await.unwrap();
    let looks = fabrique.logged(&["decided", "app=later-"]);
    assert!(looks <= CROWD + CROWD / 10, "{looks} looks at {CROWD} apps with nothing to do");
    assert!(pushes > 0);
}

/// The apps whose builds went to a daemon, in this order.
fn built(fabrique: &Fabrique) -> Vec<String> {
    let builds = fabrique.values(&["phase=Building"], "build");
    builds.iter().filter_map(|id| Some(id.rsplit_once('-')?.0.to_owned())).collect()
}

/// A crowd that waits for the only slot, which another app holds until its gate is opened.
struct Queue<'a> {
    fabrique: &'a Fabrique,
    busy: &'a SampleApp,
    crowd: &'a [String],
}

impl Queue<'_> {
    /// Has `wake` ask for a build of everybody while the slot is taken, and opens the gate once each has been
    /// refused the slot. From then on `busy` is pushed every second. Returns the crowd in the order in which it
    /// was built.
    ///
    /// A look at `busy` may meet the slot in the moment in which it is free: it is not to take it, since everybody
    /// in the crowd waits for longer.
    async fn served(&self, door: &SampleApp, wake: impl Future<Output = ()>) -> Vec<String> {
        let gate = Gate::new();
        door.push_steps(&gate.steps()).await.unwrap();
        gate.reached().await.unwrap();
        let decided = ["decided", "app=main-", "action=\"build\""];
        let before = (built(self.fabrique).len(), self.fabrique.logged(&decided));
        wake.await;
        wait_until("everybody to wait for the slot", SERVED, || async {
            (self.fabrique.logged(&decided) >= before.1 + self.crowd.len()).then_some(())
        })
        .await
        .unwrap();
        gate.open();
        let everybody = async {
            wait_until("everybody to be built", SERVED, || async {
                let built = built(self.fabrique);
                self.crowd.iter().all(|app| built[before.0..].contains(app)).then_some(())
            })
            .await
            .unwrap();
        };
        let pushes = pushing(self.busy, everybody).await;
        assert!(pushes > 0);
        let mut served = built(self.fabrique).split_off(before.0);
        let last = served.iter().rposition(|app| self.crowd.contains(app)).unwrap();
        served.truncate(last + 1);
        assert!(served.iter().all(|app| self.crowd.contains(app)), "somebody slipped in: {served:?}");
        served
    }
}

fn in_order(mut numbered: Vec<(u64, String)>) -> Vec<String> {
    numbered.sort_unstable();
    numbered.into_iter().map(|(_, name)| name).collect()
}

/// A crowd of `count` is built twice through one slot while another app is pushed every second.
async fn nobody_starves(count: usize) {
    let stage = crate::stage().await;
    let fabrique = stage.all().await.unwrap();
    stage.hook("cluster", "apps").await.unwrap();
    let (busy, door) = (app(&stage, "busy").await, app(&stage, "door").await);
    let first = busy.push("the first").await.unwrap();
    stage.committed_once(&busy, &first).await.unwrap();
    let names: Vec<String> = (0..count).map(|number| format!("main-{number}")).collect();
    let queue = Queue { fabrique: &fabrique, busy: &busy, crowd: &names };

    let first = queue.served(&door, async { drop(crowd(&stage, count, "main").await) }).await;
    let (mut woken, mut served) = (Vec::new(), Vec::new());
    for name in &names {
        stage.settled(name, 0).await.unwrap();
        woken.push((stage.wanted(name).await.unwrap(), name.clone()));
        served.push((stage.served(name).await.unwrap(), name.clone()));
    }
    assert_eq!(first, in_order(woken), "of those never served, the one woken first is served first");

    // Asked for in an order that is neither theirs nor its reverse.
    let second = queue
        .served(&door, async {
            for name in names.iter().skip(1).step_by(2).chain(names.iter().step_by(2)) {
                stage.command(&["rebuild", name]).await.unwrap();
            }
        })
        .await;
    assert_eq!(second, in_order(served), "the one served longest ago is served first");

    let newest = busy.push("the last").await.unwrap();
    stage.committed_once(&busy, &newest).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_pushed_every_second_starves_none_of_a_crowd_that_is_built_through_one_slot() {
    nobody_starves(25).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: four hundred builds through one slot take minutes"]
async fn an_app_pushed_every_second_starves_none_of_two_hundred_that_are_built_through_one_slot() {
    nobody_starves(200).await;
}
