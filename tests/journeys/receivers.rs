//! What a receiver knows of `cluster/apps`: around its start, of what nobody told it, and while it cannot be read.

use fabrique_bed::wait_until;
use fabrique_stage::{AppOptions, Fabrique, SampleApp, Stage};
use serde_json::Value;

use crate::LONG;
use crate::scene::person_rewrites;

/// A receiver alone, and registered apps that no webhook leads to: every delivery is a test's own.
async fn receiving(names: &[&str]) -> (Stage, Fabrique) {
    let stage = crate::stage().await;
    for name in names {
        register(&stage, name).await;
    }
    let receiver = stage.receiver().await.unwrap();
    (stage, receiver)
}

async fn register(stage: &Stage, name: &str) {
    let unhooked = AppOptions { hook: false, ..AppOptions::named(name) };
    SampleApp::create(stage, unhooked).await.unwrap();
}

async fn head_of_apps(stage: &Stage) -> String {
    stage.bed.gitea().head("cluster", "apps", "main").await.unwrap().unwrap()
}

/// A person's edit of an app's registration: the heads of `cluster/apps` before and after it.
async fn edited(stage: &Stage, app: &str) -> (String, String) {
    let before = head_of_apps(stage).await;
    let remark = |text: String| format!("{text}# looked at by hand\n");
    let after = person_rewrites(stage, &format!("apps/{app}/app.yaml"), remark).await;
    (before, after)
}

/// A person's removal of an app's registration: the heads of `cluster/apps` before and after it.
async fn unregistered(stage: &Stage, app: &str) -> (String, String) {
    let before = head_of_apps(stage).await;
    let apps = stage.clone_apps().await.unwrap();
    apps.git(&["rm", "--quiet", "--", &format!("apps/{app}/app.yaml")]).await.unwrap();
    let after = apps.commit(&format!("Unregister {app}")).await.unwrap();
    apps.push().await.unwrap();
    (before, after)
}

/// What a delivery is answered.
#[derive(Debug)]
struct Answered {
    status: u16,
    body: Value,
}

impl Answered {
    fn of((status, body): (u16, String)) -> Self {
        Self { status, body: serde_json::from_str(&body).unwrap() }
    }

    /// The apps that it woke, as it says.
    fn woken(&self) -> Vec<&str> {
        assert_eq!(self.status, 202, "{self:?}");
        self.body["woken"].as_array().unwrap().iter().map(|app| app.as_str().unwrap()).collect()
    }

    fn refused(&self, status: u16, why: &str) {
        let reason = self.body["reason"].as_str().unwrap_or_default();
        assert!(self.status == status && reason.contains(why), "{self:?}");
    }
}

async fn pushed(stage: &Stage, repo: &str, before: &str, after: &str) -> Answered {
    Answered::of(stage.deliver_push(repo, before, after).await.unwrap())
}

/// The same once it is not 503 any more, which is right as long as something takes longer than Gitea waits.
async fn answered(stage: &Stage, repo: &str, before: &str, after: &str) -> Answered {
    wait_until("an answer other than 503", LONG, || async {
        Some(pushed(stage, repo, before, after).await).filter(|answer| answer.status != 503)
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_to_cluster_apps_around_a_receivers_start_wakes_the_apps_that_it_touches() {
    let (stage, receiver) = receiving(&["citation", "ledger"]).await;
    let apps = async |before: &str, after: &str| answered(&stage, "cluster/apps", before, after).await;
    let wanted = async |app: &str| stage.wanted(app).await.unwrap();

    // Pushed while it starts, and delivered once it has read that.
    receiver.peer.stop().await.unwrap();
    let (before, after) = edited(&stage, "citation").await;
    receiver.peer.start_again().await.unwrap();
    assert_eq!(apps(&before, &after).await.woken(), ["citation"]);
    assert!(wanted("citation").await > 0);
    // What it changed cannot be known: any app may be meant.
    assert_eq!(apps(&"1".repeat(40), &after).await.woken(), ["citation", "ledger"]);
    // Told by a reading, once: a delivery that is answered 503 may have woken it, and the next tells no app then.
    let (citation, ledger) = (wanted("citation").await, wanted("ledger").await);
    let (before, after) = edited(&stage, "ledger").await;
    apps(&before, &after).await;
    assert!(wanted("ledger").await > ledger);
    assert_eq!(wanted("citation").await, citation, "nothing of it was changed");
    apps(&before, &after).await.refused(200, "it changes no app");

    // Delivered before it has read anything.
    receiver.peer.stop().await.unwrap();
    let (before, after) = edited(&stage, "citation").await;
    let gitea = stage.bed.gitea().peer();
    gitea.pause().unwrap();
    let delivered = async || {
        let answer = stage.deliver_push("cluster/apps", &before, &after).await;
        answer.ok().map(Answered::of)
    };
    let reading = async {
        let refused = wait_until("the receiver to answer", LONG, &delivered).await.unwrap();
        gitea.resume().unwrap();
        refused.refused(503, "the registrations are still being read");
        wait_until("the registrations to be read", LONG, || async {
            delivered().await.filter(|answer| answer.status != 503)
        })
        .await
        .unwrap()
    };
    let (started, answered) = tokio::join!(receiver.peer.start_again(), reading);
    started.unwrap();
    assert_eq!(answered.woken(), ["citation"]);

    // An app that is not registered any more when it reads for the first time.
    receiver.peer.stop().await.unwrap();
    let (before, after) = unregistered(&stage, "ledger").await;
    receiver.peer.start_again().await.unwrap();
    assert_eq!(apps(&before, &after).await.woken(), ["ledger"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_repository_is_looked_up_before_it_is_ignored_and_503_while_it_cannot_be() {
    let (stage, _receiver) = receiving(&["citation"]).await;
    let (none, head) = ("0".repeat(40), head_of_apps(&stage).await);
    let to = async |repo: &str| pushed(&stage, repo, &none, &head).await;
    let in_time = async |repo: &str| answered(&stage, repo, &none, &head).await;
    in_time("atlas/stranger").await.refused(200, "no app is registered for atlas/stranger");
    register(&stage, "ledger").await;
    assert_eq!(in_time("atlas/ledger").await.woken(), ["ledger"], "nothing else told of it");
    assert!(stage.wanted("ledger").await.unwrap() > 0);

    let gitea = stage.bed.gitea().peer();
    gitea.pause().unwrap();
    to("atlas/stranger").await.refused(503, "the registrations are still being read");
    to("cluster/apps").await.refused(503, "the registrations are still being read");
    assert_eq!(to("atlas/citation").await.woken(), ["citation"], "a known one needs no reading");
    gitea.resume().unwrap();
    // 202 first where the push to `atlas/ledger` was 503 once: the change that its reading told is still owed.
    let ignored = wait_until("the registrations to be read", LONG, || async {
        Some(to("atlas/stranger").await).filter(|answer| answer.status == 200)
    });
    ignored.await.unwrap().refused(200, "no app is registered for atlas/stranger");

    gitea.stop().await.unwrap();
    to("atlas/stranger").await.refused(503, "");
    assert_eq!(to("atlas/ledger").await.woken(), ["ledger"]);
    gitea.start_again().await.unwrap();
}
