//! `init`: from a forge with nothing in it to an installation.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fabrique_bed::{Bed, free_port, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::support::{FABRIQUE, Said, processes};

/// A run makes some thirty requests and waits for Gitea to commit: on a busy machine that takes its time.
const AGES: Duration = Duration::from_mins(5);
const TOKENS: [&str; 4] = ["read", "status", "hooks", "apps"];

/// A forge and a bus with nothing in them, and a configuration whose tokens and secrets nobody has made.
struct Site {
    bed: Bed,
    folder: TempDir,
    config: PathBuf,
}

impl Site {
    async fn new() -> Self {
        let bed = Bed::builder().gitea().nats().start().await.unwrap();
        let (url, password) = (bed.gitea().base_url(), bed.gitea().admin_password());
        Self::over(bed, &url, password)
    }

    fn over(bed: Bed, url: &str, password: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        std::fs::write(file("admin-password"), password).unwrap();
        std::fs::write(file("nats-admin"), bed.nats().password("admin")).unwrap();
        let tokens = TOKENS.map(|name| (format!("{name}_token_file"), json!(file(&format!("{name}-token")))));
        let mut gitea: BTreeMap<String, Value> = tokens.into();
        gitea.insert("url".to_owned(), json!(url));
        gitea.insert("timeouts".to_owned(), json!({ "request": "1m" }));
        let config = json!({
            "gitea": gitea,
            "nats": {
                "servers": [bed.nats().address()],
                "users": { "admin": { "password_file": file("nats-admin") } },
            },
            "registry": { "allowed": ["registry:80"] },
            "receiver": {
                "public_url": "http://127.0.0.1:9/webhook", "secret_file": file("webhook-secret"),
            },
            "init": {
                "admin_user": bed.gitea().admin_user(), "admin_password_file": file("admin-password"),
                "limit": "2m",
            },
            "state": { "dir": file("state") },
        });
        let path = file("fabrique.yaml");
        std::fs::write(&path, config.to_string()).unwrap();
        Self { bed, folder, config: path }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(FABRIQUE);
        command.args(args).env("FABRIQUE_CONFIG", &self.config);
        command
    }

    async fn say(&self, args: &[&str]) -> Said {
        let mut command = self.command(args);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(AGES, output).await.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// What was made: files that are not the test's own.
    fn made(&self) -> Vec<String> {
        let own = ["admin-password", "fabrique.yaml", "nats-admin", "state"];
        let names = std::fs::read_dir(self.folder.path()).unwrap();
        let mut made: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !own.contains(&name.as_str()))
            .collect();
        made.sort();
        made
    }

    async fn status(&self, token: &str, method: &str, path: &str, body: Option<Value>) -> u16 {
        self.bed.gitea().api_as(token, method, path, body).await.unwrap().0.as_u16()
    }

    async fn has(&self, path: &str) -> bool {
        self.status(self.bed.gitea().admin_token(), "GET", path, None).await == 200
    }

    /// Names and scopes of an account's tokens.
    async fn tokens_of(&self, login: &str) -> Vec<(String, Vec<String>)> {
        let listed = self.bed.gitea().tokens(login).await.unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let scopes = |token: &Value| {
            let mut scopes: Vec<String> = token["scopes"].as_array().unwrap().iter().map(text).collect();
            scopes.sort();
            scopes
        };
        listed.iter().map(|token| (text(&token["name"]), scopes(token))).collect()
    }
}

const APPS: &str = "/repos/cluster/apps";

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_forge_is_set_up_once_with_tokens_that_do_what_they_are_for() {
    let site = Site::new().await;
    let dry = site.say(&["init", "--dry-run"]).await;
    assert_eq!(dry.code, 1, "{dry:?}");
    assert!(dry.line("organisation").contains("would be made"), "{dry:?}");
    assert!(site.made().is_empty() && !site.has("/orgs/cluster").await, "a dry run changed something");
    assert!(!site.has("/users/fabrique-read").await);

    let said = site.say(&["init", "-o", "json"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    let json = said.json();
    let gates = json["gates"].as_array().unwrap();
    let results: Vec<_> = gates.iter().map(|gate| gate["result"].as_str().unwrap()).collect();
    assert!(results.iter().all(|result| ["passed", "changed"].contains(result)), "{json}");
    assert_eq!(site.made(), ["apps-token", "hooks-token", "read-token", "status-token", "webhook-secret"]);
    for name in site.made() {
        let mode = std::fs::metadata(site.path(&name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    first_content(&site).await;
    tokens_do_what_they_are_for(&site).await;

    let before: Vec<String> = site.made().iter().map(|name| site.text(name)).collect();
    let again = site.say(&["init"]).await.ok();
    assert!(again.out.ends_with("0 changed\n"), "{again:?}");
    let dry = site.say(&["init", "--dry-run"]).await.ok();
    assert!(dry.out.ends_with("0 would be changed\n"), "{dry:?}");
    let after: Vec<String> = site.made().iter().map(|name| site.text(name)).collect();
    assert_eq!(before, after);
    let told = [said.out, said.err, again.out, processes()].concat();
    assert!(!before.iter().any(|secret| told.contains(secret.as_str())), "a value was told");
    assert!(!told.contains(site.bed.gitea().admin_password()));
    let hooks = site.say(&["hooks", "ensure", "--dry-run"]).await.ok();
    assert!(hooks.line("cluster/apps").contains("present"), "{hooks:?}");
}

/// What a person finds in `cluster/apps`, in one commit.
async fn first_content(site: &Site) {
    let gitea = site.bed.gitea();
    let root = gitea.api("GET", &format!("{APPS}/contents"), None).await.unwrap();
    let mut names: Vec<_> =
        root.as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["README.md", "app.yaml.example", "contract.yaml.example"]);
    let commits = gitea.api("GET", &format!("{APPS}/commits?sha=main"), None).await.unwrap();
    assert_eq!(commits.as_array().unwrap().len(), 1, "{commits}");
    let repository = gitea.api("GET", APPS, None).await.unwrap();
    let settings = (&repository["private"], &repository["default_branch"]);
    assert_eq!(settings, (&json!(true), &json!("main")));
}

/// Each can do what it is for in `cluster/apps`, and not what another is for.
async fn tokens_do_what_they_are_for(site: &Site) {
    let file =
        |name: &str| json!({ "content": "eA==", "message": "Try", "new_branch": format!("try-{name}") });
    for (name, reads, writes, administers) in [
        ("read", 404, 403, 404),
        ("status", 404, 404, 404),
        ("apps", 200, 201, 403),
        ("hooks", 200, 201, 200),
    ] {
        let token = site.text(&format!("{name}-token"));
        assert_eq!(site.status(&token, "GET", APPS, None).await, reads, "{name}");
        assert_eq!(site.status(&token, "GET", &format!("{APPS}/hooks"), None).await, administers, "{name}");
        let path = format!("{APPS}/contents/try-{name}");
        assert_eq!(site.status(&token, "POST", &path, Some(file(name))).await, writes, "{name}");
        assert_eq!(site.status(&token, "GET", "/admin/users", None).await, 403, "{name}");
        let listed = site.tokens_of(&format!("fabrique-{name}")).await;
        let scopes =
            if name == "read" { ["read:repository", "read:user"] } else { ["read:user", "write:repository"] };
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].1, scopes, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_anywhere_it_goes_on_when_it_is_run_again_and_leaves_no_token_behind() {
    let site = Site::new().await;
    // Each time it is killed as soon as it has come one step further.
    let read_pending = site.path(".read-token.pending");
    let apps_token = site.path("apps-token");
    until_killed(&site, async || site.has("/orgs/cluster").await).await;
    until_killed(&site, async || site.has(APPS).await).await;
    until_killed(&site, async || site.has("/users/fabrique-hooks").await).await;
    until_killed(&site, async || read_pending.exists() || site.path("read-token").exists()).await;
    until_killed(&site, async || apps_token.exists()).await;
    let ended = site.say(&["init"]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    // A token whose value came to nobody: made, and then there was no time to write it.
    std::fs::remove_file(site.path("status-token")).unwrap();
    let lost = &site.tokens_of("fabrique-status").await[0].0;
    std::fs::write(site.path(".status-token.pending"), lost).unwrap();
    let ended = site.say(&["init"]).await;
    assert!(ended.code == 0 && ended.out.ends_with("1 changed\n"), "{ended:?}");
    for name in TOKENS {
        let listed = site.tokens_of(&format!("fabrique-{name}")).await;
        assert_eq!(listed.len(), 1, "{name}: {listed:?}");
        assert_eq!(site.status(&site.text(&format!("{name}-token")), "GET", "/user", None).await, 200);
    }
    let left: Vec<String> = site.made().into_iter().filter(|name| name.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(site.say(&["init"]).await.ok().out.ends_with("0 changed\n"));
}

/// Runs it until `far_enough`, or to its end where it was faster.
async fn until_killed(site: &Site, far_enough: impl AsyncFn() -> bool) {
    let mut command = site.command(&["init"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let ended = command.spawn().unwrap().wait_with_output();
    let come = wait_until("it to come so far", AGES, || async { far_enough().await.then_some(()) });
    tokio::select! {
        come = come => come.unwrap(),
        ended = ended => {
            let ended = ended.unwrap();
            assert!(ended.status.success(), "it gave up: {ended:?}");
            assert!(far_enough().await, "it ended before it came so far: {ended:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_have_made_is_kept() {
    let site = Site::new().await;
    let gitea = site.bed.gitea();
    gitea.create_org("cluster").await.unwrap();
    gitea.create_repo("cluster", "apps", true).await.unwrap();
    gitea.create_user("fabrique-apps").await.unwrap();
    gitea.add_collaborator("cluster", "apps", "fabrique-apps", "admin").await.unwrap();
    let token = gitea.create_token("fabrique-apps", &["write:repository"]).await.unwrap();
    std::fs::write(site.path("apps-token"), &token).unwrap();
    std::fs::write(site.path("webhook-secret"), "a secret of people\n").unwrap();
    let head = gitea.head("cluster", "apps", "main").await.unwrap();
    let said = site.say(&["init"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        said.line("repository").contains("passed") && said.line("secrets").contains("passed"),
        "{said:?}"
    );
    assert_eq!(gitea.head("cluster", "apps", "main").await.unwrap(), head);
    assert_eq!(
        (site.text("apps-token"), site.text("webhook-secret")),
        (token, "a secret of people\n".to_owned())
    );
    assert_eq!(site.tokens_of("fabrique-apps").await.len(), 1, "no second one");
    let right =
        gitea.api("GET", &format!("{APPS}/collaborators/fabrique-apps/permission"), None).await.unwrap();
    assert_eq!(right["permission"], "admin", "no right is taken away");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_has_to_do_first_is_told_before_anything_is_made() {
    let site = Site::new().await;
    let gitea = site.bed.gitea();
    gitea.create_org("cluster").await.unwrap();
    let body = json!({ "name": "apps", "auto_init": true, "default_branch": "trunk", "private": true });
    gitea.api("POST", "/orgs/cluster/repos", Some(body)).await.unwrap();
    std::fs::write(site.path("read-token"), "0123456789abcdef0123456789abcdef01234567").unwrap();
    let said = site.say(&["init"]).await;
    assert_eq!(said.code, 1, "{said:?}");
    let spaced: Vec<&str> = said.out.split_whitespace().collect();
    let told = spaced.join(" ");
    assert!(told.contains("no branch main") && told.contains("Gitea refuses the token in"), "{said:?}");
    assert!(said.line("tokens").contains("not reached"), "{said:?}");
    assert_eq!(site.made(), ["read-token"]);
    assert!(!site.has("/users/fabrique-read").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_refuses_to_begin_without_gitea_or_without_its_administrator() {
    let bed = Bed::builder().gitea().nats().start().await.unwrap();
    let nobody = format!("http://127.0.0.1:{}", free_port().unwrap());
    let site = Site::over(bed, &nobody, "only-for-the-test-bed");
    let said = site.say(&["--set", "init.limit=1s", "init"]).await;
    assert_eq!(said.code, 3, "{said:?}");
    assert!(said.line("gitea").contains("failed"), "{said:?}");
    for gate in ["streams", "organisation", "tokens", "accounts"] {
        assert!(said.line(gate).contains("not reached"), "{gate}: {said:?}");
    }
    let Site { bed, .. } = site;
    let url = bed.gitea().base_url();
    let site = Site::over(bed, &url, "not the password");
    let said = site.say(&["init"]).await;
    assert_eq!(said.code, 4, "{said:?}");
    assert!(said.line("gitea").contains("failed") && !said.out.contains("not the password"), "{said:?}");
    assert!(site.made().is_empty() && !site.has("/orgs/cluster").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_administrator_it_makes_the_streams_and_asks_no_forge() {
    let bed = Bed::builder().gitea().nats().start().await.unwrap();
    let nobody = format!("http://127.0.0.1:{}", free_port().unwrap());
    let site = Site::over(bed, &nobody, "unused");
    let text = site.text("fabrique.yaml");
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["init"] = json!({});
    std::fs::write(&site.config, config.to_string()).unwrap();
    let dry = site.say(&["init", "--dry-run"]).await;
    assert_eq!(dry.code, 1, "{dry:?}");
    let said = site.say(&["init", "-o", "json"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    let json = said.json();
    assert_eq!(
        json["gates"][1],
        json!({
            "gate": "streams", "result": "changed", "what": [format!("{} streams and buckets", json["changed"])],
        })
    );
    assert!(json["changed"].as_u64() > Some(0), "{json}");
    let again = site.say(&["init"]).await.ok();
    assert!(again.out.ends_with("0 changed\n"), "{again:?}");
    assert!(site.made().is_empty());
}

#[test]
fn a_configuration_whose_secrets_are_missing_is_one_for_init_alone() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("read-token");
    let config = json!({
        "gitea": { "url": "http://gitea:3000/", "read_token_file": missing },
        "nats": { "servers": ["nats://127.0.0.1:9"] },
        "registry": { "allowed": ["registry:80"] },
        "state": { "dir": folder.path().join("state") },
    });
    let path = folder.path().join("fabrique.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    let run = |args: &[&str], path: &Path| {
        let output =
            std::process::Command::new(FABRIQUE).args(args).env("FABRIQUE_CONFIG", path).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, told) = run(&["status"], &path);
    assert!(code == 2 && told.contains("gitea.read_token_file"), "{told}");
    let (code, told) = run(&["--set", "nats.timeouts.start=1s", "init"], &path);
    assert!(code == 3 && !told.contains("read_token_file"), "{told}");
}

/// Gitea stops answering, and a request may take a minute: the gate's limit holds all the same, while it looks and while it
/// does something.
#[tokio::test(flavor = "multi_thread")]
async fn one_limit_holds_for_a_gate_however_long_a_request_may_take() {
    const LIMIT: Duration = Duration::from_secs(15);
    let site = Site::new().await;
    let gitea = site.bed.gitea().peer();
    gitea.pause().unwrap();
    let before = Instant::now();
    let said = site.say(&["--set", "init.limit=2s", "init"]).await;
    let took = before.elapsed();
    gitea.resume().unwrap();
    assert!(said.code == 3 && said.line("gitea").contains("failed"), "{said:?}");
    assert!(took < LIMIT, "{took:?}");

    let mut command = site.command(&["--set", "init.limit=15s", "init"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let begun = || async { site.has("/orgs/cluster").await.then_some(()) };
    wait_until("it to have begun", AGES, begun).await.unwrap();
    gitea.pause().unwrap();
    let before = Instant::now();
    let ended = tokio::time::timeout(AGES, child.wait_with_output()).await;
    let took = before.elapsed();
    gitea.resume().unwrap();
    let ended = ended.unwrap().unwrap();
    let told = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.code() == Some(3) && told.contains("failed"), "{told}");
    assert!(took < LIMIT * 2, "{took:?}: {told}");
    assert!(site.say(&["init"]).await.code == 0, "it goes on");
}
