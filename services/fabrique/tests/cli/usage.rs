//! What is asked wrongly: arguments, configuration, registrations. No server is needed to say so.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::support::{FABRIQUE, Said};

/// A configuration without any mistake and without any server behind it.
pub(crate) const GOOD: &str = "gitea: { url: http://127.0.0.1:9/ }\nnats: { servers: [\"nats://127.0.0.1:9\"] }\n\
                    registry: { allowed: [\"registry:80\"] }\n";

pub(crate) fn configured(folder: &Path, text: &str) -> PathBuf {
    let file = folder.join("fabrique.yaml");
    fs::write(&file, format!("{text}\nstate: {{ dir: {} }}\n", folder.join("state").display())).unwrap();
    file
}

/// Runs a command with nothing in the environment.
pub(crate) async fn say(args: &[&str]) -> Said {
    let path = std::env::var("PATH").unwrap();
    Said::of(Command::new(FABRIQUE).env_clear().env("PATH", path).args(args)).await
}

async fn with_config(text: &str, args: &[&str]) -> Said {
    let folder = tempfile::tempdir().unwrap();
    let file = configured(folder.path(), text);
    say(&[&["--config", file.to_str().unwrap()], args].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_scripts_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = say(&["completion", shell]).await.ok();
        assert!(said.out.contains("reconcile") && said.out.contains("no-cache"), "{shell}: {}", said.out);
    }
    say(&["completion", "tcsh"]).await.refused_by_clap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_ends_with_2_and_a_hint() {
    for args in [&["frobnicate"][..], &["why"], &["logs", "../x"], &["reconcile", "--once", "--every", "5m"]]
    {
        say(args).await.refused_by_clap();
    }
}

#[tokio::test]
async fn every_mistake_of_the_configuration_is_told_with_its_key_and_the_remedy() {
    let text = "gitea: { url: ftp://gitea }\nnats: { servers: [] }\nworker: { looks: 0 }\n";
    let said = with_config(text, &["status"]).await;
    assert_eq!((said.code, said.out.as_str()), (2, ""), "{said:?}");
    for key in ["gitea.url", "nats.servers", "registry.allowed", "worker.looks"] {
        let line = said.err.lines().find(|line| line.starts_with(&format!("fabrique: {key}: ")));
        assert!(line.is_some_and(|line| line.matches(';').count() >= 1), "{key} has no remedy: {said:?}");
    }
    assert_eq!(said.err.lines().count(), 4, "{said:?}");
}

#[tokio::test]
async fn a_role_that_cannot_listen_as_configured_says_so_before_it_asks_any_server() {
    let said = with_config(&format!("{GOOD}receiver: {{ listen: '8080' }}\n"), &["receiver"]).await;
    said.refused(2, "receiver.listen: not an IP address with a port");
    for (section, command) in [("worker", "worker"), ("reconciler", "reconcile")] {
        let text = format!("{GOOD}{section}: {{ listen: 'localhost:9102' }}\n");
        with_config(&text, &[command]).await.refused(2, &format!("{section}.listen: "));
    }
}

#[tokio::test]
async fn validate_tells_mistakes_of_the_configuration_as_its_result() {
    let text = "gitea: { url: ftp://gitea }\nnats: { servers: [x] }\nregistry: { allowed: [r] }\n";
    let said = with_config(text, &["validate", "-o", "json"]).await;
    assert_eq!((said.code, said.err.as_str()), (2, ""), "{said:?}");
    assert_eq!(said.json()["findings"][0]["file"], "gitea.url", "{said:?}");
}

#[tokio::test]
async fn an_unknown_key_and_a_wrong_type_name_the_key_and_the_file() {
    let said = with_config("gitea: { ulr: http://x/ }\n", &["status"]).await;
    said.refused(2, "gitea.ulr: an unknown key");
    assert!(said.err.contains("did you mean url?") && said.err.contains("fabrique.yaml"), "{said:?}");
    with_config("wroker: { lease: 3s }\n", &["status"]).await.refused(2, "did you mean worker?");
    let users = "nats: { users: { recever: { password_file: /x } } }\n";
    with_config(users, &["status"]).await.refused(2, "did you mean receiver?");
    let unlike = with_config("reconciler: { zzzzzzz: 1 }\n", &["status"]).await;
    unlike.refused(2, "there are: every, listen, concurrency");
    let said = with_config("worker: { lease: soon }\n", &["status"]).await;
    said.refused(2, "worker.lease");
    say(&["--config", "/nowhere/fabrique.yaml", "status"]).await.refused(2, "/nowhere/fabrique.yaml");
}

#[tokio::test]
async fn a_secret_in_the_configuration_file_is_refused_and_not_repeated() {
    for (key, text) in [
        ("gitea.read_token", "gitea: { read_token: hunter2 }\n"),
        ("receiver.secret", "receiver: { secret: hunter2 }\n"),
        ("nats.users.worker.password", "nats: { users: { worker: { password: hunter2 } } }\n"),
    ] {
        let said = with_config(text, &["status"]).await;
        said.refused(2, key);
        assert!(said.err.contains(&format!("{key}_file")) && !said.err.contains("hunter2"), "{said:?}");
    }
}

#[tokio::test]
async fn a_peer_that_is_away_is_one_line_and_code_3() {
    let said = with_config(GOOD, &["status"]).await;
    said.refused(3, "nats://127.0.0.1:9");
    assert!(said.err.contains("is nats-server running"), "{said:?}");
    with_config(GOOD, &["validate"]).await.refused(3, "127.0.0.1:9");
    with_config(GOOD, &["hooks", "ensure"]).await.refused(2, "receiver.public_url");
}

#[tokio::test]
async fn a_doctor_without_anything_configured_says_what_is_missing() {
    let said = with_config(GOOD, &["doctor", "-o", "json"]).await;
    assert_eq!((said.code, said.err.as_str()), (1, ""), "{said:?}");
    let report = said.json();
    let told = |name: &str, what: &str| {
        let checks = report["checks"].as_array().unwrap();
        let told = checks.iter().any(|check| {
            let has = |field: &str, part: &str| check[field].as_str().unwrap().contains(part);
            has("name", name) && has("what", what) && check["remedy"] != ""
        });
        assert!(told, "{name}: {what}: {report:#}");
    };
    told("buildkitd", "buildkit.daemons lists no build daemon");
    told("webhooks", "not checked");
    told("token hooks", "not configured");
    told("nats user operator", "no credentials configured");
    told("nats", "nats://127.0.0.1:9");
    told("registrations", "127.0.0.1:9");
}

#[tokio::test]
async fn a_checkout_is_validated_without_any_server_or_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let write = |app: &str, text: &str| {
        let directory = folder.path().join("apps").join(app);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("app.yaml"), text).unwrap();
    };
    let registration = |name: &str, source: &str| {
        format!(
            "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {name} }}\nspec:\n  \
             source: {source}\n  image: registry:80/{name}\n"
        )
    };
    write("good", &registration("good", "{ repo: atlas/good }"));
    let path = folder.path().to_str().unwrap();
    let offline = ["validate", "--path", path, "--registry", "registry:80"];
    let said = say(&offline).await.ok();
    assert_eq!(said.out, "1 app registered, 0 findings\n");

    write("bad", &registration("bad", "{ repo: atlas/bad, branch: -x }"));
    write("worse", "kind: App\nkind: App\n");
    let said = say(&offline).await;
    assert_eq!((said.code, said.err.as_str()), (1, ""), "{said:?}");
    for place in ["apps/bad/app.yaml:5:", "apps/worse/app.yaml:2:"] {
        assert!(said.out.lines().any(|line| line.starts_with(place)), "{place} {said:?}");
    }
    let json = say(&[&offline[..], &["-o", "json"]].concat()).await.json();
    assert_eq!((&json["apps"], &json["findings"][0]["line"]), (&1.into(), &5.into()), "{json}");

    let configured = configured(folder.path(), GOOD);
    let said = say(&["--config", configured.to_str().unwrap(), "validate", "--path", path]).await;
    assert_eq!(said.code, 1, "with the registries of the configuration: {said:?}");
    say(&["validate", "--path", "/nowhere", "--registry", "registry:80"]).await.refused(2, "/nowhere");
}

#[tokio::test]
async fn a_key_on_the_command_line_counts_most_but_a_secret_has_no_place_there() {
    let said = with_config(GOOD, &["status", "--set", "worker.looks=0", "--set=gitea.url=ftp://gitea"]).await;
    assert_eq!(said.code, 2, "{said:?}");
    for key in ["worker.looks", "gitea.url"] {
        assert!(said.err.contains(&format!("fabrique: {key}: ")), "{key}: {said:?}");
    }
    let said = with_config(GOOD, &["status", "--set=worker.loks=1"]).await;
    assert!(said.code == 2 && said.err.contains("did you mean looks?"), "{said:?}");
    let said = with_config(GOOD, &["status", "--set", "gitea.read_token=hunter2"]).await;
    assert!(said.code == 2 && said.err.contains("on the command line"), "{said:?}");
    assert!(!said.err.contains("hunter2"), "{said:?}");
    say(&["status", "--set", "worker.looks"]).await.refused_by_clap();
}

#[tokio::test]
async fn variables_that_kubernetes_sets_for_a_service_called_fabrique_are_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    let file = configured(folder.path(), GOOD);
    let mut command = Command::new(FABRIQUE);
    command.env_clear().env("FABRIQUE_SERVICE_HOST", "10.0.0.1").env("FABRIQUE_PORT_8080_TCP", "tcp://x");
    command.env("FABRIQUE_WORKER__LOOKS", "0").args(["validate", "--config"]).arg(file);
    let said = Said::of(&mut command).await;
    assert_eq!((said.code, said.out.lines().count(), said.err.as_str()), (2, 1, ""), "{said:?}");
    assert!(said.out.starts_with("worker.looks: "), "{said:?}");
}
