//! `seed`: from a registration that nobody was told of to an app that is up.

use std::process::Stdio;
use std::time::Duration;

use fabrique_stage::{AppOptions, CONTRACT, Fabrique, Gate, MANIFEST, SampleApp, Stage};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::support::{FABRIQUE, Said};

/// Builds and their pushes take their time on a busy machine. Only ever a bound.
const AGES: Duration = Duration::from_mins(5);
const RENDERS: [(&str, &str); 2] = [
    ("FABRIQUE_RENDER__ENABLED", "true"),
    ("FABRIQUE_RENDER__DESTINATIONS", r#"[{environment="prod", namespaces=["apps"]}]"#),
];

/// What `--sure` is short for: no list says here what is not production, which says its name twice.
const SURE: [&str; 5] = ["--yes", "--environment", "prod", "--confirm", "prod"];

fn spelled<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let each = |arg: &&'a str| if *arg == "--sure" { SURE.to_vec() } else { vec![*arg] };
    args.iter().flat_map(each).collect()
}

/// Servers, and a worker that nobody wakes: no webhook is there, and no sweep comes.
struct Site {
    stage: Stage,
    worker: Option<Fabrique>,
}

impl Site {
    async fn new() -> Self {
        let stage = Box::pin(Stage::builder().start(FABRIQUE)).await.unwrap();
        let worker = Some(stage.worker_with(&RENDERS).await.unwrap());
        Self { stage, worker }
    }

    /// A registered app with its first push, of which nobody is told.
    async fn app(&self, name: &str) -> (SampleApp, String) {
        let options = AppOptions { hook: false, ..AppOptions::named(name) };
        let app = SampleApp::create(&self.stage, options).await.unwrap();
        let revision = app.push("first").await.unwrap();
        (app, revision)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(FABRIQUE);
        command
            .args(spelled(args))
            .env("FABRIQUE_CONFIG", self.stage.config())
            .envs(RENDERS)
            .env("NO_COLOR", "1");
        command
    }

    async fn say(&self, args: &[&str]) -> Said {
        ended(self.command(args).stdin(Stdio::null())).await
    }

    /// The same at a terminal, with a person who types this.
    async fn typed(&self, args: &[&str], answer: &str) -> Said {
        let line = [&[FABRIQUE], &spelled(args)[..]].concat().join(" ");
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        command.env("FABRIQUE_CONFIG", self.stage.config()).envs(RENDERS).env("NO_COLOR", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        let output = tokio::time::timeout(AGES, child.wait_with_output()).await.unwrap().unwrap();
        drop(stdin);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\r', "");
        Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Everything that a seed changes: the head of `cluster/apps`, and the webhooks of two repositories.
    async fn state(&self, repo: &str) -> (Option<String>, usize) {
        let gitea = self.stage.bed.gitea();
        let mut hooks = 0;
        for repo in [repo, "cluster/apps"] {
            let path = format!("/repos/{repo}/hooks");
            hooks += gitea.api("GET", &path, None).await.unwrap().as_array().unwrap().len();
        }
        (gitea.head("cluster", "apps", "main").await.unwrap(), hooks)
    }
}

async fn ended(command: &mut Command) -> Said {
    let output = tokio::time::timeout(AGES, command.kill_on_drop(true).output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// The result of a step.
fn step<'r>(report: &'r Value, step: &str, subject: &str) -> (&'r str, &'r str) {
    let steps = report["steps"].as_array().unwrap();
    let found = steps.iter().find(|one| one["step"] == step && one["subject"] == subject);
    let found = found.unwrap_or_else(|| panic!("no {step} of {subject}: {report:#}"));
    (found["result"].as_str().unwrap(), found["what"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_seed_builds_and_commits_and_a_second_changes_nothing() {
    let site = Site::new().await;
    let (app, revision) = site.app("citation").await;
    let before = site.state("atlas/citation").await;

    let dry = site.say(&["seed", "citation", "--dry-run"]).await;
    assert_eq!(dry.code, 1, "{dry:?}");
    let order: Vec<&str> = dry.out.lines().filter_map(|line| line.split(' ').next()).collect();
    let stages =
        ["STEP", "image", "declaration", "migrations", "webhooks", "webhooks", "composition", "application"];
    assert_eq!(order[..8], stages, "{dry:?}");
    assert!(dry.line("image").contains("to change") && dry.out.ends_with("5 would be changed\n"), "{dry:?}");
    let refused = site.say(&["seed", "citation", "--no-build", "--sure"]).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.line("image").contains("--no-build was said"), "{refused:?}");
    assert!(refused.out.ends_with("nothing was changed\n"), "{refused:?}");
    site.say(&["seed", "citation", "--environment", "prod"]).await.refused(2, "nobody can be asked here");
    site.say(&["seed", "citation", "--yes"])
        .await
        .refused(2, "prod may be production: name it with --environment prod");
    let once = ["seed", "citation", "--yes", "--environment", "prod"];
    site.say(&once).await.refused(2, "say its name again with --confirm prod");
    site.say(&["seed", "citatoin", "--yes"]).await.refused(2, "did you mean citation?");
    site.say(&["seed", "citation", "--yes", "--environment", "bench"])
        .await
        .refused(2, "has no environment bench");
    for word in ["no", "oui"] {
        let no = site.typed(&["seed", "citation", "--environment", "prod"], word).await;
        assert!(no.code == 1 && no.out.contains("not agreed: nothing was changed"), "{no:?}");
    }
    assert_eq!(site.state("atlas/citation").await, before, "something was changed");
    assert_eq!(site.stage.stored_manifests("citation"), 0, "something was built");

    let said = site.typed(&["seed", "citation", "--environment", "prod"], "prod").await;
    assert!(said.code == 0 && said.out.trim_end().ends_with("5 changed"), "{said:?}");
    assert!(
        said.out.find("to change") < said.out.find("Type the name of the environment, prod"),
        "the plan comes first: {said:?}"
    );
    let composition = site.stage.committed_once(&app, &revision).await.unwrap();
    assert_eq!(composition.infra.as_deref(), Some(revision.as_str()));
    let application = site.stage.apps_file("applications/citation-prod.yaml").await.unwrap();
    assert!(application.is_some_and(|text| text.contains("name: citation-prod")));
    let up = site.state("atlas/citation").await;
    assert_eq!(up.1, 2, "one webhook each");

    for again in [&["--sure"][..], &["--no-build", "--sure"], &["--environment", "prod"]] {
        let again = site.typed(&[&["seed", "citation"], again].concat(), "").await;
        assert!(again.code == 0 && again.out.trim_end().ends_with("\n0 changed"), "{again:?}");
    }
    let dry = site.say(&["seed", "citation", "--dry-run"]).await.ok();
    assert!(dry.out.ends_with("\n0 would be changed\n"), "{dry:?}");
    let json = site.say(&["seed", "citation", "--sure", "-o", "json"]).await.ok().json();
    assert_eq!((&json["changed"], &json["environment"]), (&0.into(), &"prod".into()), "{json:#}");
    assert!(step(&json, "image", "citation").1.contains(&composition.digest), "{json:#}");
    assert_eq!(site.state("atlas/citation").await, up);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_it_goes_on_when_it_is_run_again() {
    let mut site = Site::new().await;
    let (app, _) = site.app("citation").await;
    let gate = Gate::new();
    let revision = app.push_steps(&gate.steps()).await.unwrap();
    // With nobody to build, it gets as far as it gets alone.
    site.worker = None;
    let alone = site.say(&["seed", "citation", "--sure", "-o", "json"]).await;
    assert_eq!(alone.code, 3, "{alone:?}");
    let json = alone.json();
    assert_eq!(step(&json, "webhooks", "atlas/citation").0, "changed", "{json:#}");
    assert_eq!(step(&json, "image", "citation").0, "failed", "{json:#}");
    assert_eq!(step(&json, "composition", "citation").0, "not-reached", "{json:#}");
    site.worker = Some(site.stage.worker_with(&RENDERS).await.unwrap());

    let mut command = site.command(&["seed", "citation", "--sure"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    gate.reached().await.unwrap();
    child.kill().await.unwrap();
    let limited = site.say(&["seed", "citation", "--sure", "--limit", "2s"]).await;
    assert!(limited.code == 3 && limited.out.contains("the same command goes on"), "{limited:?}");
    let no_build = site.say(&["seed", "citation", "--no-build", "--sure"]).await;
    assert!(no_build.code == 1 && no_build.line("image").contains("is under way"), "{no_build:?}");

    let on = site.say(&["seed", "citation", "--sure", "-o", "json"]);
    let on = gate.open_until(on).await.ok().json();
    assert_eq!(step(&on, "webhooks", "atlas/citation").0, "there", "{on:#}");
    assert_eq!(step(&on, "composition", "citation").0, "changed", "{on:#}");
    site.stage.committed_once(&app, &revision).await.unwrap();
    let again = site.say(&["seed", "citation", "--sure"]).await.ok();
    assert!(again.out.ends_with("\n0 changed\n"), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_that_needs_another_comes_up_with_it_and_not_alone() {
    let site = Site::new().await;
    let (base, _) = site.app("mediawatch").await;
    let (citation, _) = site.app("citation").await;
    let clone = site.stage.clone_apps().await.unwrap();
    clone.write("contract.yaml", CONTRACT).await.unwrap();
    for name in ["mediawatch", "citation"] {
        let path = format!("apps/{name}/app.yaml");
        let text = clone.read(&path).await.unwrap();
        let declared = text.replace("branch: main }", &format!("branch: main, declaration: {MANIFEST} }}"));
        assert_ne!(text, declared);
        clone.write(&path, declared).await.unwrap();
    }
    clone.commit("Declare").await.unwrap();
    clone.push().await.unwrap();
    let declare = async |app: &SampleApp, lines: &str| {
        let name = &app.options.name;
        let manifest = format!("codeLocation: {name}\ncontractVersion: 3\n{lines}\n");
        app.source.write(MANIFEST, manifest).await.unwrap();
        let revision = app.source.commit(&format!("Declare {lines:?}")).await.unwrap();
        app.source.push().await.unwrap();
        revision
    };
    let needs = declare(&citation, "ready: true\ndependsOn: { codeLocations: [mediawatch] }").await;
    declare(&base, "ready: false").await;
    let before = site.state("atlas/citation").await;
    let waits = site.say(&["seed", "mediawatch", "citation", "--sure"]).await;
    assert!(waits.code == 1 && waits.out.contains("says ready: false"), "{waits:?}");
    let ready = declare(&base, "ready: true").await;
    let alone = site.say(&["seed", "citation", "--sure"]).await;
    assert!(alone.code == 1 && alone.out.contains("`fabrique seed mediawatch citation`"), "{alone:?}");
    assert_eq!(site.state("atlas/citation").await, before, "something was changed");

    let both = site.say(&["seed", "citation", "mediawatch", "--sure", "-o", "json"]).await.ok().json();
    assert_eq!(step(&both, "declaration", "citation").0, "there", "{both:#}");
    for (app, revision) in [(&base, &ready), (&citation, &needs)] {
        assert_eq!(step(&both, "application", &app.options.name).0, "changed", "{both:#}");
        site.stage.committed_once(app, revision).await.unwrap();
    }
    let again = site.say(&["seed", "citation", "mediawatch", "--sure"]).await.ok();
    assert!(again.out.ends_with("\n0 changed\n"), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_fails_is_told_and_not_tried_again_by_itself() {
    let site = Site::new().await;
    let (app, _) = site.app("citation").await;
    app.push_steps("RUN echo gone wrong && false").await.unwrap();
    let failed = site.say(&["seed", "citation", "--sure", "-o", "json"]).await;
    assert_eq!(failed.code, 1, "{failed:?}");
    let json = failed.json();
    let (result, why) = step(&json, "image", "citation");
    assert!(result == "failed" && why.contains("failed by its source"), "{json:#}");
    assert_eq!(site.stage.composition("citation").await.unwrap(), None);
    let again = site.say(&["seed", "citation", "--sure"]).await;
    assert!(again.code == 1 && again.line("image").contains("refused"), "{again:?}");
    app.write_source("mended").await.unwrap();
    let fixed = app.source.commit("Mend the Dockerfile").await.unwrap();
    app.source.push().await.unwrap();
    site.say(&["seed", "citation", "--sure"]).await.ok();
    site.stage.committed_once(&app, &fixed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn in_another_cluster_than_the_environments_own_it_does_nothing() {
    let stage = Box::pin(Stage::builder().start(FABRIQUE)).await.unwrap();
    let site = Site { stage, worker: None };
    site.app("citation").await;
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let context =
        |name: &str| format!("- {{ name: {name}, context: {{ cluster: nowhere, user: nobody }} }}\n");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: paris\ncontexts:\n{}{}clusters:\n\
         - {{ name: nowhere, cluster: {{ server: \"http://127.0.0.1:9\" }} }}\nusers:\n- {{ name: nobody, user: {{}} }}\n",
        context("paris"),
        context("lab"),
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let before = site.state("atlas/citation").await;
    let say = async |environments: &str, more: &[&str]| {
        let mut command = site.command(&[&["seed", "citation"], more].concat());
        command.env("KUBECONFIG", &kubeconfig).env("FABRIQUE_SEED__ENVIRONMENTS", environments);
        ended(command.stdin(Stdio::null())).await
    };
    let lab = r#"[{environment="prod", context="lab"}]"#;
    let other = say(lab, &["--yes"]).await;
    other.refused(2, "prod is the context lab, and this is paris: nothing was changed");
    say(lab, &["--dry-run"]).await.refused(2, "kubectl config use-context lab");
    let bench = r#"[{environment="bench", context="paris"}]"#;
    say(bench, &["--yes"]).await.refused(2, "seed.environments does not name prod");
    let production = r#"[{environment="prod", context="paris", production=true}]"#;
    say(production, &["--yes"]).await.refused(2, "prod is production: say so with --environment prod");
    let once = ["--environment", "prod", "--yes"];
    say(production, &once).await.refused(2, "--confirm prod");
    say(production, &["--environment", "prod", "--yes", "--confirm", "bench"])
        .await
        .refused(2, "--confirm says bench");
    // Said twice it is let in, as far as the cluster that nobody is.
    let twice = say(production, &["--environment", "prod", "--yes", "--confirm", "prod"]).await;
    assert!(twice.code == 3 && twice.err.contains("the API server"), "{twice:?}");
    let named = say(lab, &["--context", "lab", "--yes"]).await;
    assert!(named.code == 3 && named.err.contains("the API server"), "{named:?}");
    say("[]", &["--context", "lab", "--yes"]).await.refused(2, "nothing to be compared with");
    let inside = ["--set", "gitea.url=http://gitea-http.gitea.svc.cluster.local:3000/", "--yes"];
    say("[]", &inside).await.refused(2, "is a name inside the cluster");
    assert_eq!(site.state("atlas/citation").await, before, "something was changed");
    assert_eq!(site.stage.composition("citation").await.unwrap(), None);
}
