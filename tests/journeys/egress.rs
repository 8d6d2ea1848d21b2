//! What builds fetched, as people are told it, and which way fabrique itself goes.

use fabrique_stage::{AppOptions, SampleApp};
use serde_json::Value;

use crate::scene::Scene;

/// The fetches of the app's newest build, by what they were for: place, location and answer.
async fn fetched(scene: &Scene, what: &str) -> Vec<(String, String, Value)> {
    let told = scene.stage.json(&["builds", scene.name(), "--egress"]).await.unwrap();
    let fetches = told["egress"]["fetches"].as_array().unwrap_or_else(|| panic!("{told:#}"));
    let of = fetches.iter().filter(|fetch| fetch["what"] == what);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    of.map(|fetch| (text(&fetch["place"]), text(&fetch["location"]), fetch["answer"].clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_egress_says_what_was_fetched_from_where_and_with_what_answer() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let registry = stage.bed.registry().host();
    let gitea = stage.bed.gitea().base_url();
    let gitea = gitea.trim_start_matches("http://").trim_end_matches('/');

    let [source] = fetched(&scene, "source").await.try_into().unwrap();
    assert_eq!((source.0.as_str(), source.2), (gitea, "had".into()), "{}", source.1);
    assert!(source.1.ends_with(&format!(".git#{}", scene.first)), "{}", source.1);
    let [image] = fetched(&scene, "image").await.try_into().unwrap();
    assert_eq!((image.0.as_str(), image.2), (registry.as_str(), "had".into()), "{}", image.1);
    assert!(image.1.contains("@sha256:"), "{}", image.1);

    // What is refused is told too, of a build that fails of it, and without what might be secret in it.
    let url = format!("http://{registry}/v2/?token=hidden");
    let refused = app.push_steps(&format!("ADD {url} /x")).await.unwrap();
    stage.status_becomes(app, &refused, "failure").await.unwrap();
    let [add] = fetched(&scene, "add").await.try_into().unwrap();
    assert_eq!((add.0.as_str(), add.2), (registry.as_str(), "refused".into()));
    assert_eq!(add.1, format!("http://{registry}/v2/"));

    // For people: a table, and what it cannot know.
    let (code, table, remarks) = stage.try_command(&["builds", scene.name(), "--egress"]).await.unwrap();
    assert_eq!(code, 0, "{table}{remarks}");
    for words in ["WHAT", "FROM", "ANSWER", "refused", &add.1, gitea] {
        assert!(table.contains(words), "no {words}:\n{table}");
    }
    assert!(!table.contains("hidden"), "{table}");
    assert!(remarks.contains("requests of RUN steps are seen only on daemons"), "{remarks}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_in_the_environment_is_asked_for_none_of_the_peers() {
    let stage = crate::stage().await;
    // Nothing answers there.
    let proxy = format!("http://127.0.0.1:{}", fabrique_bed::free_port().unwrap());
    let names = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let _fabrique = stage.all_with(&names.map(|name| (name, proxy.as_str()))).await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let revision = app.push("first").await.unwrap();
    stage.committed_once(&app, &revision).await.unwrap();
    stage.status_becomes(&app, &revision, "success").await.unwrap();
}
