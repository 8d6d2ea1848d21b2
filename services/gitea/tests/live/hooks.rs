//! Webhooks: made, repaired, and heard.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;
use fabrique_bed::{Bed, GitRepo};
use fabrique_core::id::RepoName;
use fabrique_gitea::{Deliveries, Gitea};
use fabrique_ports::delivery::{Delivery, DeliveryReader, RawDelivery};
use fabrique_ports::forge::{HookDifference, HookOutcome, Hooks, WantedHook};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::{SECRET, admin, bed, config, private_repo, repo};

async fn stored_hooks(bed: &Bed, repo: &RepoName) -> Vec<Value> {
    let hooks = bed.gitea().api("GET", &format!("/repos/{repo}/hooks"), None).await.unwrap();
    hooks.as_array().unwrap().clone()
}

#[tokio::test]
async fn a_hook_is_created_once_and_a_dry_run_writes_nothing() {
    let bed = bed().await;
    let (app, _) = private_repo(bed, "hooked").await;
    let gitea = admin(bed);
    let wanted =
        WantedHook { url: "http://127.0.0.1:1/webhook".to_owned(), branch_filter: "main".to_owned() };
    assert_eq!(gitea.ensure_hook(&app, &wanted, true).await.unwrap(), HookOutcome::Created);
    assert_eq!(gitea.hooks(&app).await.unwrap(), []);
    assert_eq!(gitea.ensure_hook(&app, &wanted, false).await.unwrap(), HookOutcome::Created);
    assert_eq!(gitea.ensure_hook(&app, &wanted, false).await.unwrap(), HookOutcome::Present);
    let stored = stored_hooks(bed, &app).await;
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0]["active"], true);
    assert_eq!(stored[0]["events"], json!(["push"]));
    assert_eq!(stored[0]["branch_filter"], "main");
    assert_eq!(stored[0]["config"], json!({ "url": wanted.url, "content_type": "json" }));
    let nowhere = repo("hooked/nowhere");
    assert_eq!(gitea.ensure_hook(&nowhere, &wanted, false).await.unwrap(), HookOutcome::NoRepository);
    assert_eq!(gitea.hooks(&nowhere).await.unwrap(), []);
}

#[tokio::test]
async fn a_damaged_hook_is_repaired_in_place_and_its_doubles_go() {
    let bed = bed().await;
    let (app, _) = private_repo(bed, "damaged").await;
    let gitea = admin(bed);
    let wanted =
        WantedHook { url: "http://127.0.0.1:1/webhook".to_owned(), branch_filter: "main".to_owned() };
    gitea.ensure_hook(&app, &wanted, false).await.unwrap();
    let id = gitea.hooks(&app).await.unwrap()[0].id;
    let damage = json!({
        "active": false, "events": ["issues"], "authorization_header": "Bearer kept",
        "config": { "content_type": "form" },
    });
    bed.gitea().api("PATCH", &format!("/repos/{app}/hooks/{id}"), Some(damage)).await.unwrap();
    bed.gitea().create_webhook("damaged", "app", &wanted.url, "another").await.unwrap();
    let foreign =
        bed.gitea().create_webhook("damaged", "app", "http://127.0.0.1:1/argocd", "x").await.unwrap();

    let HookOutcome::Repaired(foretold) = gitea.ensure_hook(&app, &wanted, true).await.unwrap() else {
        panic!()
    };
    assert_eq!(stored_hooks(bed, &app).await.len(), 3);
    let HookOutcome::Repaired(done) = gitea.ensure_hook(&app, &wanted, false).await.unwrap() else {
        panic!()
    };
    assert_eq!(foretold, done);
    assert_eq!(done.len(), 5, "{done:?}");
    assert_eq!(gitea.ensure_hook(&app, &wanted, false).await.unwrap(), HookOutcome::Present);
    let stored = stored_hooks(bed, &app).await;
    let mut ids: Vec<_> = stored.iter().map(|hook| hook["id"].as_i64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [id, foreign]);
    let repaired = stored.iter().find(|hook| hook["id"] == id).unwrap();
    assert_eq!(repaired["active"], true);
    assert_eq!(repaired["events"], json!(["push"]));
    assert_eq!(repaired["branch_filter"], "main");
    assert_eq!(repaired["authorization_header"], "Bearer kept");
}

#[tokio::test]
async fn a_changed_url_moves_our_hook_and_leaves_those_of_others() {
    let bed = bed().await;
    let (app, _) = private_repo(bed, "moved").await;
    let foreign = bed.gitea().create_webhook("moved", "app", "http://127.0.0.1:1/argocd", "x").await.unwrap();
    let gitea = admin(bed);
    let at = |url: &str| WantedHook { url: url.to_owned(), branch_filter: "*".to_owned() };
    let old = at("http://127.0.0.1:1/webhook");
    gitea.ensure_hook(&app, &old, false).await.unwrap();
    let mut staging = config(bed, bed.gitea().admin_token());
    staging.hook_secret = Some("staging's".into());
    let elsewhere = at("http://127.0.0.1:2/webhook");
    let made = Gitea::new(staging).unwrap().ensure_hook(&app, &elsewhere, false).await.unwrap();
    assert_eq!(made, HookOutcome::Created, "another installation does not take it over");
    let before = stored_hooks(bed, &app).await;
    let of = |url: &str, hooks: &[Value]| hooks.iter().find(|hook| hook["config"]["url"] == url).cloned();
    let id = of(&old.url, &before).unwrap()["id"].as_i64().unwrap();

    let mut catcher = Catcher::start().await;
    let new = at(&catcher.url);
    let difference = HookDifference { what: format!("it delivered to {}", old.url), loses: true };
    let moved = HookOutcome::Repaired(vec![difference]);
    assert_eq!(gitea.ensure_hook(&app, &new, true).await.unwrap(), moved);
    assert_eq!(stored_hooks(bed, &app).await, before, "a dry run");
    assert_eq!(gitea.ensure_hook(&app, &new, false).await.unwrap(), moved);
    assert_eq!(gitea.ensure_hook(&app, &new, false).await.unwrap(), HookOutcome::Present);
    let after = stored_hooks(bed, &app).await;
    assert_eq!(after.len(), 3);
    for other in ["http://127.0.0.1:1/argocd", &elsewhere.url] {
        assert_eq!(of(other, &after), of(other, &before), "{other}");
    }
    assert_eq!(of("http://127.0.0.1:1/argocd", &after).unwrap()["id"], foreign);
    gitea.test_delivery(&app, id).await.unwrap();
    assert!(matches!(catcher.next(SECRET).await, Ok(Delivery::Push(_))), "signed as before");
}

#[tokio::test]
async fn a_hook_left_behind_goes_and_so_does_one_of_the_former_secret() {
    let bed = bed().await;
    let (app, _) = private_repo(bed, "behind").await;
    let at = |port: u16| WantedHook {
        url: format!("http://127.0.0.1:{port}/webhook"),
        branch_filter: "*".to_owned(),
    };
    let gitea = admin(bed);
    gitea.ensure_hook(&app, &at(1), false).await.unwrap();
    let mut rotated = config(bed, bed.gitea().admin_token());
    rotated.hook_secret = Some("n3w".into());
    // It does not know the secret of the first one, and makes a second.
    assert_eq!(
        Gitea::new(rotated.clone()).unwrap().ensure_hook(&app, &at(2), false).await.unwrap(),
        HookOutcome::Created
    );
    rotated.former_hook_secret = Some(SECRET.into());
    let rotated = Gitea::new(rotated).unwrap();
    let HookOutcome::Repaired(how) = rotated.ensure_hook(&app, &at(2), false).await.unwrap() else {
        panic!()
    };
    let what = format!("an old one delivered to {}", at(1).url);
    assert_eq!(how, [HookDifference { what, loses: false }]);
    let urls: Vec<String> = rotated.hooks(&app).await.unwrap().into_iter().map(|hook| hook.url).collect();
    assert_eq!(urls, [at(2).url]);
}

#[tokio::test]
async fn more_hooks_than_one_page_holds_are_all_looked_at() {
    let bed = bed().await;
    let (app, _) = private_repo(bed, "crowded").await;
    let gitea = admin(bed);
    let wanted = WantedHook { url: "http://127.0.0.1:1/webhook".to_owned(), branch_filter: "*".to_owned() };
    for number in 0..55 {
        let url = format!("http://127.0.0.1:1/other/{number}");
        bed.gitea().create_webhook("crowded", "app", &url, "x").await.unwrap();
    }
    gitea.ensure_hook(&app, &wanted, false).await.unwrap();
    assert_eq!(gitea.hooks(&app).await.unwrap().len(), 56);
    assert_eq!(gitea.ensure_hook(&app, &wanted, false).await.unwrap(), HookOutcome::Present);
}

/// A receiver that keeps what arrives.
struct Catcher {
    url: String,
    caught: mpsc::Receiver<(HeaderMap, Bytes)>,
}

impl Catcher {
    async fn start() -> Self {
        let (send, caught) = mpsc::channel(16);
        let app = axum::Router::new().route(
            "/webhook",
            post(move |headers: HeaderMap, body: Bytes| {
                let send = send.clone();
                async move { send.send((headers, body)).await.unwrap() }
            }),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/webhook", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, caught }
    }

    /// The next delivery, verified against one secret and read.
    async fn next(&mut self, secret: &str) -> Result<Delivery, fabrique_ports::delivery::Rejection> {
        let next = tokio::time::timeout(Duration::from_secs(20), self.caught.recv());
        let (headers, body) = next.await.expect("a delivery within 20 s").unwrap();
        let reader: Arc<dyn DeliveryReader> = Arc::new(Deliveries::new(vec![secret.into()]).unwrap());
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let raw = RawDelivery { header: &header, body: &body };
        reader.verify(&raw)?;
        reader.parse(&raw)
    }
}

#[tokio::test]
async fn a_hook_made_here_delivers_pushes_that_verify_and_a_rotated_secret_replaces_it() {
    let bed = bed().await;
    let (app, head) = private_repo(bed, "delivered").await;
    let mut catcher = Catcher::start().await;
    let wanted = WantedHook { url: catcher.url.clone(), branch_filter: "*".to_owned() };
    let gitea = admin(bed);
    gitea.ensure_hook(&app, &wanted, false).await.unwrap();

    let id = gitea.hooks(&app).await.unwrap()[0].id;
    gitea.test_delivery(&app, id).await.unwrap();
    let Ok(Delivery::Push(test)) = catcher.next(SECRET).await else { panic!("no push") };
    assert!(test.test);
    assert_eq!(
        (test.repo.clone(), test.branch.as_str(), test.after.as_str()),
        (app.clone(), "main", head.as_str())
    );

    let clone = GitRepo::clone(&bed.gitea().clone_url_with_token("delivered", "app")).await.unwrap();
    let revision = clone.commit("Second").await.unwrap();
    clone.push().await.unwrap();
    let Ok(Delivery::Push(push)) = catcher.next(SECRET).await else { panic!("no push") };
    assert!(!push.test);
    assert_eq!(push.after, revision);

    let mut rotated = config(bed, bed.gitea().admin_token());
    rotated.hook_secret = Some("n3w".into());
    let rotated = Gitea::new(rotated).unwrap();
    let HookOutcome::Repaired(how) = rotated.ensure_hook(&app, &wanted, false).await.unwrap() else {
        panic!()
    };
    let what = "its secret may have been another".to_owned();
    assert_eq!(how, [HookDifference { what, loses: true }]);
    assert_eq!(rotated.ensure_hook(&app, &wanted, false).await.unwrap(), HookOutcome::Present);
    let hooks = rotated.hooks(&app).await.unwrap();
    assert_eq!(hooks.len(), 1);
    rotated.test_delivery(&app, hooks[0].id).await.unwrap();
    assert!(matches!(catcher.next("n3w").await, Ok(Delivery::Push(_))));
    assert!(rotated.test_delivery(&app, id).await.is_err(), "the old hook is gone");
}
