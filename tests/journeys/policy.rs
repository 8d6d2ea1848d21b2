//! What is refused, and what a registration decides about a build.

use fabrique_bed::wait_until;
use fabrique_core::id::Revision;
use fabrique_stage::{AppOptions, Gate, SampleApp, Settings, Stage};

use crate::LONG;
use crate::scene::{DIFFERS, Scene, key_of, person_rewrites, rewrite_in, running};

/// Mistakes in registrations: the app, what stands there instead of what, and what has to be said about it.
const MISTAKES: [(&str, &str, &str, &str); 8] = [
    ("malformed", "kind: App", "kind: [App", "malformed"),
    ("misnamed", "name: misnamed", "name: good", "metadata.name is good, the directory is apps/misnamed"),
    ("unknown", "branch: main", "brnach: main", "brnach"),
    ("outside", "image: 127.0.0.1", "image: docker.example.org", "outside of the allowed registries"),
    ("dots", "context: .", "context: ../secrets", "../secrets"),
    ("dash", "branch: main", "branch: -x", "-x"),
    ("anchored", "kind: App", "kind: &kind App", "anchor"),
    ("doubled", "kind: App", "kind: App\nkind: App", "twice"),
];

#[tokio::test(flavor = "multi_thread")]
async fn wrong_registrations_are_told_apart_and_hold_no_other_app_up() {
    let scene = Scene::open(AppOptions::named("good")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let good = app.registration().unwrap();
    let clone = stage.clone_apps().await.unwrap();
    for (name, right, wrong, _) in MISTAKES {
        let file = format!("apps/{name}/app.yaml");
        clone.write(&file, good.replace("name: good", &format!("name: {name}"))).await.unwrap();
        rewrite_in(&clone, &file, |text| text.replacen(right, wrong, 1)).await;
    }
    let linked = clone.path().join("apps/linked");
    tokio::fs::create_dir(&linked).await.unwrap();
    tokio::fs::symlink("../good/app.yaml", linked.join("app.yaml")).await.unwrap();
    clone.commit("Register badly").await.unwrap();
    clone.push().await.unwrap();

    let second = app.push("second").await.unwrap();
    stage.committed_once(app, &second).await.unwrap();
    let (code, stdout, stderr) = stage.try_command(&["validate"]).await.unwrap();
    let said = stdout + &stderr;
    assert_eq!(code, 1, "{said}");
    let words = MISTAKES.map(|(name, _, _, words)| (name, words));
    for (name, words) in words.into_iter().chain([("linked", "symlink")]) {
        assert!(said.contains(&format!("apps/{name}/app.yaml")) && said.contains(words), "{name}: {said}");
    }
    assert!(!said.contains("apps/good/app.yaml"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_fits_nowhere_or_twice_or_not_safely_stops_its_app_alone() {
    let (stage, _fabrique) = running(Stage::builder()).await;
    stage.hook("cluster", "apps").await.unwrap();
    let create = async |name: &str, spoil: fn(&str) -> String| {
        let options = AppOptions { overlay: false, ..AppOptions::named(name) };
        let app = SampleApp::create(&stage, options).await.unwrap();
        let file = format!("apps/{name}/prod/kustomization.yaml");
        person_rewrites(&stage, &file, |text| spoil(&text)).await;
        (app, file)
    };
    let spoiled = [
        create("nowhere", |text| text.replace("name: ", "name: other/")).await,
        create("twice", |text| format!("{text}{}", &text[text.find("  - name").unwrap()..])).await,
        create("anchored", |text| text.replace("digest: ", "digest: &digest ")).await,
    ];
    let good = SampleApp::create(&stage, AppOptions::named("good")).await.unwrap();

    let words = ["nothing at images[name=", "matches 2 places (lines 4, 6)", "anchor"];
    for ((app, file), words) in spoiled.iter().zip(words) {
        let revision = app.push("first").await.unwrap();
        let status = stage.status_becomes(app, &revision, "error").await.unwrap();
        assert!(status.description.contains(file.as_str()), "{status:?}");
        let reason = stage.decided(&app.options.name, words).await.unwrap();
        assert!(reason.contains(file.as_str()), "{reason}");
        assert_eq!(stage.composition(&app.options.name).await.unwrap(), None);
    }
    let revision = good.push("first").await.unwrap();
    stage.committed_once(&good, &revision).await.unwrap();

    // The file is corrected, and the app goes on by itself.
    let (app, file) = &spoiled[0];
    person_rewrites(&stage, file, |text| text.replace("name: other/", "name: ")).await;
    let head = app.source.head().await.unwrap();
    stage.committed_once(app, &head).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlay_that_leads_out_of_the_repository_is_refused() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let link = app.source.path().join("deploy/overlays/prod/passwd");
    tokio::fs::symlink("/etc/passwd", link).await.unwrap();
    rewrite_in(&app.source, "deploy/overlays/prod/kustomization.yaml", |text| {
        text.replace("[deployment.yaml]", "[deployment.yaml, passwd]")
    })
    .await;
    let linked = app.push("with a symlink").await.unwrap();

    let status = stage.status_becomes(app, &linked, "error").await.unwrap();
    assert!(status.description.contains("passwd"), "{status:?}");
    assert_eq!(stage.apps_file("apps/citation/prod/passwd").await.unwrap(), None);
    let infra = stage.composition("citation").await.unwrap().unwrap().infra;
    assert_eq!(infra, Some(scene.first.clone()), "the copy stays as it was");
    let why = stage.json(&["why", "citation"]).await.unwrap();
    assert!(why["reason"].as_str().unwrap().contains("passwd"), "{why}");
    let next = why["next"].as_str().unwrap();
    assert!(
        next.contains("a newer push") && !next.contains("repair"),
        "nothing was edited in cluster/apps: {next}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_build_arguments_build_the_same_revision_again() {
    let options =
        AppOptions { build: vec!["args: { GREETING: hello }".to_owned()], ..AppOptions::named("citation") };
    let scene = Scene::open(options).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let revision = app.push_steps("ARG GREETING\nRUN echo \"$GREETING\" > /greeting").await.unwrap();
    let hello = stage.committed_once(app, &revision).await.unwrap();

    person_rewrites(stage, "apps/citation/app.yaml", |text| text.replace("hello", "goodbye")).await;
    stage.build_becomes("citation", &revision, "committed").await.unwrap();
    let goodbye = fabrique_bed::wait_until("another digest", crate::LONG, || async {
        stage.composition("citation").await.ok()?.filter(|composition| composition.digest != hello.digest)
    })
    .await
    .unwrap();
    assert_eq!(goodbye.revision, revision);
    let config = stage.manifest("citation", &goodbye.digest).await.unwrap();
    let config = stage.image_config("citation", &config).await.unwrap().to_string();
    assert!(config.contains("goodbye"), "the history names the argument: {config}");
    assert_eq!(stage.builds("citation").await.unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_without_cache_that_waits_for_the_build_before_it_uses_no_cache() {
    let stage = crate::stage().await;
    // What is asked for during a build does not end it.
    let _worker = stage.worker_with(&[("FABRIQUE_WORKER__MAX_SUPERSEDES", "0")]).await.unwrap();
    let _receiver = stage.receiver().await.unwrap();
    let (app, gate) = (SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap(), Gate::new());
    app.push_steps(&format!("{}\n{DIFFERS}", gate.steps())).await.unwrap();
    gate.reached().await.unwrap();
    stage.command(&["rebuild", "citation", "--no-cache"]).await.unwrap();
    stage.decided("citation", "is finished before").await.unwrap();
    gate.open();
    let deployed = async || stage.composition("citation").await.ok().flatten();
    let first = wait_until("the image of the build before", LONG, deployed).await.unwrap();
    let another = async || {
        let now = stage.composition("citation").await.ok().flatten()?;
        (now.digest != first.digest).then_some(now)
    };
    gate.open_until(wait_until("another image, as steps from the cache make none", LONG, another))
        .await
        .unwrap();
}

/// The tags that fabrique will set for a revision: for people, and for the build key.
fn tags(app: &SampleApp, revision: &str) -> [String; 2] {
    let parsed: Revision = revision.parse().unwrap();
    [parsed.short().to_owned(), key_of(app, revision).keep_tag()]
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_and_labels_forged_by_hand_are_rebuilt_and_not_adopted() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let old = stage.composition("citation").await.unwrap().unwrap();
    let [_, key] = tags(app, &scene.first);
    let kept = stage.bed.registry().digest("citation", &key).await.unwrap();
    assert_eq!(kept.as_deref(), Some(&*old.digest), "these are the tags that fabrique sets");

    let manifest = stage.manifest("citation", &old.digest).await.unwrap();
    app.source.write("message", "second").await.unwrap();
    let second = app.source.commit("second").await.unwrap();
    // The old image under the labels of the new one: whoever believed them would adopt it.
    let config = stage.image_config("citation", &manifest).await.unwrap().to_string();
    let [of_first, of_second] = [&scene.first, &second].map(|revision| key_of(app, revision));
    assert!(config.contains(of_first.as_str()) && config.contains(&scene.first), "{config}");
    let config = config.replace(of_first.as_str(), of_second.as_str()).replace(&scene.first, &second);
    let forged = stage.reconfigured("citation", &manifest, config).await.unwrap();
    for tag in tags(app, &second) {
        stage.forge_tag("citation", &tag, &forged).await.unwrap();
    }
    app.source.push().await.unwrap();

    let new = stage.committed_once(app, &second).await.unwrap();
    let forged = stage.image_config("citation", &forged).await.unwrap();
    let built = stage.manifest("citation", &new.digest).await.unwrap();
    assert_ne!(stage.image_config("citation", &built).await.unwrap(), forged);
    assert_eq!(stage.builds("citation").await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tag_of_the_build_key_alone_keeps_an_image_when_the_registry_collects_garbage() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app, registry) = (&scene.stage, &scene.app, scene.stage.bed.registry());
    let old = stage.composition("citation").await.unwrap().unwrap();
    let second = app.push("second").await.unwrap();
    let new = stage.committed_once(app, &second).await.unwrap();
    let [of_old, of_new] = [tags(app, &scene.first), tags(app, &second)];
    let tagged = || async {
        let there = registry.tags("citation").await.ok()?;
        of_old.iter().chain(&of_new).all(|tag| there.contains(tag)).then_some(())
    };
    fabrique_bed::wait_until("both images to have both tags", crate::LONG, tagged).await.unwrap();

    for tag in [&of_old[0], &of_old[1], &of_new[0]] {
        stage.delete_manifest("citation", tag).await.unwrap();
    }
    registry.collect_garbage().await.unwrap();
    assert_eq!(registry.digest("citation", &old.digest).await.unwrap(), None, "nothing led to it");
    assert_eq!(registry.digest("citation", &new.digest).await.unwrap(), Some(new.digest));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_pushed_by_a_step_is_rebuilt_and_not_adopted() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let old = stage.composition("citation").await.unwrap().unwrap();
    let forged = stage.manifest("citation", &old.digest).await.unwrap();
    // The victim is there before its push, so that the attacker can know its name.
    app.source.branch("victim").await.unwrap();
    app.source.write("message", "the victim's").await.unwrap();
    let victim = app.source.commit("To be impersonated").await.unwrap();
    app.source.branch("main").await.unwrap();
    let (host, port) =
        stage.bed.registry().host().split_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).unwrap();
    let requests: Vec<String> = tags(app, &victim)
        .iter()
        .map(|tag| {
            let head = format!(
                "PUT /v2/citation/manifests/{tag} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nContent-Type: {}\\r\\nContent-Length: {}\\r\\nConnection: close\\r\\n\\r\\n",
                forged.media_type,
                forged.text.len()
            );
            format!("RUN (printf '{head}'; cat /forged.json) | nc {host} {port}")
        })
        .collect();
    app.source.write("forged.json", &forged.text).await.unwrap();
    let attack = format!("COPY forged.json /forged.json\n{}", requests.join("\n"));
    let attacker = app.push_steps(&attack).await.unwrap();
    stage.committed_once(app, &attacker).await.unwrap();
    for tag in tags(app, &victim) {
        let digest = stage.bed.registry().digest("citation", &tag).await.unwrap();
        assert_eq!(digest.as_deref(), Some(&*old.digest), "the step forged {tag}");
    }

    app.source.branch("victim").await.unwrap();
    app.source.git(&["push", "--quiet", "--force", "origin", "victim:main"]).await.unwrap();
    let new = stage.committed_once(app, &victim).await.unwrap();
    assert_ne!(new.digest, old.digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_mounted_by_name_and_shows_nowhere_else_while_provenance_makes_an_index() {
    const SECRET: &str = "correct-horse-battery-staple";
    let secrets = tempfile::tempdir().unwrap();
    std::fs::create_dir(secrets.path().join("citation")).unwrap();
    std::fs::write(secrets.path().join("citation/token"), SECRET).unwrap();
    let settings =
        Settings { provenance: true, secrets_dir: Some(secrets.path().to_owned()), ..Settings::default() };
    let options = AppOptions { build: vec!["secrets: [token]".to_owned()], ..AppOptions::named("citation") };
    let scene = Scene::open_on(Stage::builder().settings(settings), options).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let checksum =
        "RUN --mount=type=secret,id=token cat /run/secrets/token && sha256sum /run/secrets/token > /proof";
    let revision = app.push_steps(checksum).await.unwrap();
    let composition = stage.committed_once(app, &revision).await.unwrap();

    let index = stage.manifest("citation", &composition.digest).await.unwrap();
    assert_eq!(index.media_type, "application/vnd.oci.image.index.v1+json");
    let build = stage.build_becomes("citation", &revision, "committed").await.unwrap();
    let log = fabrique_bed::wait_until("the log of the step", crate::LONG, || async {
        stage.log(&build.id).await.ok().filter(|log| log.contains("***"))
    })
    .await
    .unwrap();
    let mut told = vec![("log", log), ("index", index.text.clone())];
    let (mut images, mut attestations) = (0, 0);
    for entry in index.body["manifests"].as_array().unwrap() {
        let manifest = stage.manifest("citation", entry["digest"].as_str().unwrap()).await.unwrap();
        if entry["annotations"]["vnd.docker.reference.type"] == "attestation-manifest" {
            attestations += 1;
            for layer in manifest.body["layers"].as_array().unwrap() {
                let statement = stage.blob("citation", layer["digest"].as_str().unwrap()).await.unwrap();
                told.push(("provenance", statement));
            }
        } else {
            images += 1;
        }
        told.push(("configuration", stage.image_config("citation", &manifest).await.unwrap().to_string()));
        told.push(("manifest", manifest.text));
    }
    assert_eq!((images, attestations), (1, 1), "{}", index.text);
    let events = stage.events("fabrique.>").await.unwrap();
    told.push(("events", serde_json::to_string(&events).unwrap()));
    told.push(("fabrique's own log", std::fs::read_to_string(scene.fabrique.peer.log_path()).unwrap()));
    for (where_, text) in told {
        assert!(!text.contains(SECRET), "the secret is in the {where_}: {text}");
    }
}
