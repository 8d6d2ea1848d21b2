//! The bed tested against itself: what every other test takes for granted.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use fabrique_bed::{
    Bed, BuildkitOptions, GitRepo, GiteaOptions, MutualTls, NatsOptions, Peer, Queues, ROLES, wait_until,
};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(20);

/// Makes a repository of an organisation of its own and pushes a commit to it.
async fn pushed(bed: &Bed, org: &str, files: &[(&str, &str)]) -> Result<(GitRepo, String)> {
    bed.gitea().create_org(org).await?;
    bed.gitea().create_repo(org, "app", false).await?;
    let repo = GitRepo::clone(&bed.gitea().clone_url_with_token(org, "app")).await?;
    for (path, content) in files {
        repo.write(path, content).await?;
    }
    let revision = repo.commit("Change something").await?;
    repo.push().await?;
    Ok((repo, revision))
}

/// Builds a revision of `org/app` and pushes the image, as `buildctl` does it.
async fn build(bed: &Bed, org: &str, revision: &str, image: &str) -> Result<()> {
    let context = format!("{}?checksum={revision}&fetch-by-commit=true", bed.gitea().clone_url(org, "app"));
    let output = bed
        .buildkit(0)
        .buildctl()
        .args([
            "build",
            "--progress=plain",
            "--frontend=dockerfile.v0",
            "--opt",
            &format!("context={context}"),
        ])
        .args(["--output", &format!("type=image,name={}/{image},push=true", bed.registry().host())])
        .output()
        .await?;
    anyhow::ensure!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), bed.logs());
    Ok(())
}

fn dockerfile(bed: &Bed, run: &str) -> String {
    format!("FROM {}\nRUN {run}\n", bed.registry().busybox())
}

/// Sends a line of the NATS protocol after the greeting and returns what the server answers.
async fn nats_says(bed: &Bed, connect: &str) -> Result<String> {
    let address = bed.nats().address();
    let mut stream = TcpStream::connect(address.trim_start_matches("nats://")).await?;
    stream.write_all(format!("CONNECT {connect}\r\nPING\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_millis(500), stream.read_to_end(&mut answer)).await;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Runs the `nats` command line as the administrator.
async fn nats(bed: &Bed, args: &[&str]) -> Result<String> {
    let mut command = bed.nats_cli().await?;
    let output = command.args(["--server", &bed.nats().url("admin")]).args(args).output().await?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    anyhow::ensure!(
        output.status.success(),
        "nats {args:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said)
}

#[tokio::test]
async fn all_peers_come_up() {
    let bed = Bed::shared().await;
    let peers = [bed.nats().peer(), bed.gitea().peer(), bed.registry().peer(), bed.buildkit(0).peer()];
    assert!(peers.iter().all(|peer| peer.is_running()));
    let base = bed.registry().digest("base/busybox", "1").await.unwrap();
    assert!(base.is_some_and(|digest| digest.starts_with("sha256:")));
}

#[tokio::test]
async fn a_push_reaches_gitea() {
    let bed = Bed::shared().await;
    let (repo, revision) = pushed(bed, "push", &[("a/b.txt", "1")]).await.unwrap();
    assert_eq!(bed.gitea().head("push", "app", "main").await.unwrap(), Some(revision.clone()));

    repo.rewind(1).await.unwrap();
    assert!(repo.push().await.is_err(), "a push that is no fast-forward must be refused");
    repo.push_force().await.unwrap();
    assert_ne!(bed.gitea().head("push", "app", "main").await.unwrap(), Some(revision));

    repo.branch("side").await.unwrap();
    repo.push().await.unwrap();
    assert!(bed.gitea().head("push", "app", "side").await.unwrap().is_some());
    repo.delete_branch("side").await.unwrap();
    assert_eq!(bed.gitea().head("push", "app", "side").await.unwrap(), None);
    repo.tag("v1").await.unwrap();
    repo.delete_tag("v1").await.unwrap();
}

#[tokio::test]
async fn a_token_can_do_what_its_scopes_say_and_no_more() {
    let bed = Bed::shared().await;
    pushed(bed, "scopes", &[]).await.unwrap();
    bed.gitea().create_user("reader").await.unwrap();
    bed.gitea().add_collaborator("scopes", "app", "reader", "write").await.unwrap();
    let token = bed.gitea().create_token("reader", &["read:repository"]).await.unwrap();
    let path = "/repos/scopes/app/branches";
    let (read, _) = bed.gitea().api_as(&token, "GET", path, None).await.unwrap();
    assert_eq!(read.as_u16(), 200);
    let branch = json!({ "new_branch_name": "mine" });
    let (write, _) = bed.gitea().api_as(&token, "POST", path, Some(branch)).await.unwrap();
    assert_eq!(write.as_u16(), 403);
}

/// Seconds from the end of a push to the arrival of its webhook.
async fn webhook_delay(bed: &Bed, org: &str) -> Result<f32> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (repo, _) = pushed(bed, org, &[("file", "1")]).await?;
    let url = format!("http://{}/", listener.local_addr()?);
    bed.gitea().create_webhook(org, "app", &url, "secret").await?;
    repo.commit("Again").await?;
    repo.push().await?;
    let start = std::time::Instant::now();
    let (mut stream, _) =
        tokio::time::timeout(SOON, listener.accept()).await.context("no webhook came")??;
    let delay = start.elapsed().as_secs_f32();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await?;
    Ok(delay)
}

#[tokio::test]
async fn channel_queues_deliver_webhooks_at_once_and_the_default_ones_do_not() {
    let options = GiteaOptions { queues: Queues::Default, ..GiteaOptions::default() };
    let slow = Bed::builder().gitea_with(options).start().await.unwrap();
    let fast = webhook_delay(Bed::shared().await, "hooks").await.unwrap();
    let slow = webhook_delay(&slow, "hooks").await.unwrap();
    assert!(fast < slow, "channel {fast} s, default {slow} s");
}

#[tokio::test]
async fn buildkit_builds_from_gitea_and_pushes_to_the_registry() {
    let bed = Bed::shared().await;
    let file = dockerfile(bed, "echo hello > /greeting && wget --help 2>&1 | grep -q busybox -i");
    let (_, revision) = pushed(bed, "builds", &[("Dockerfile", &file)]).await.unwrap();
    build(bed, "builds", &revision, "hello:1").await.unwrap();
    assert!(bed.registry().digest("hello", "1").await.unwrap().is_some());
    assert_eq!(bed.registry().tags("hello").await.unwrap(), ["1"]);
    assert_eq!(bed.registry().digest("hello", "2").await.unwrap(), None);
}

#[tokio::test]
async fn each_role_has_a_password_and_nobody_else_gets_in() {
    let bed = Bed::shared().await;
    for role in ROLES {
        let (user, pass) = (bed.nats().user(role), bed.nats().password(role));
        let answer = nats_says(bed, &json!({ "user": user, "pass": pass }).to_string()).await.unwrap();
        assert!(answer.contains("PONG"), "{role}: {answer}");
    }
    let refused = nats_says(bed, r#"{"user":"worker","pass":"wrong"}"#).await.unwrap();
    assert!(refused.contains("Authorization Violation"), "{refused}");
    let refused = nats_says(bed, "{}").await.unwrap();
    assert!(refused.contains("Authorization Violation"), "{refused}");
}

#[tokio::test]
async fn an_open_bus_lets_anyone_in_and_a_small_one_fills_up() {
    let options = NatsOptions { open: true, max_file_store: Some(1 << 20) };
    let bed = Bed::builder().nats_with(options).start().await.unwrap();
    assert!(nats_says(&bed, "{}").await.unwrap().contains("PONG"));
    assert_eq!(bed.nats().url("worker"), bed.nats().address());
    let too_much = ["stream", "add", "S", "--subjects=s", "--defaults", "--max-bytes=2097152"];
    let refused = nats(&bed, &too_much).await.unwrap_err().to_string();
    assert!(refused.contains("insufficient storage"), "{refused}");
}

async fn crash(peer: &Peer) -> Result<()> {
    let before = peer.pid().context("it should run")?;
    peer.kill9().await?;
    assert!(!peer.is_running());
    assert!(!Path::new(&format!("/proc/{before}")).exists());
    peer.start_again().await?;
    assert_ne!(peer.pid(), Some(before));
    Ok(())
}

#[tokio::test]
async fn every_peer_keeps_its_data_and_port_over_kill_9() {
    let bed = Bed::builder().all().start().await.unwrap();
    let file = dockerfile(&bed, "head -c 8 /dev/urandom > /random");
    let (_, revision) = pushed(&bed, "crash", &[("Dockerfile", &file)]).await.unwrap();
    build(&bed, "crash", &revision, "random:1").await.unwrap();
    nats(&bed, &["kv", "add", "facts"]).await.unwrap();
    nats(&bed, &["kv", "put", "facts", "sky", "blue"]).await.unwrap();

    for peer in [bed.nats().peer(), bed.gitea().peer(), bed.registry().peer(), bed.buildkit(0).peer()] {
        crash(peer).await.unwrap();
    }

    assert!(nats(&bed, &["kv", "get", "facts", "sky", "--raw"]).await.unwrap().contains("blue"));
    assert_eq!(bed.gitea().head("crash", "app", "main").await.unwrap(), Some(revision.clone()));
    let first = bed.registry().digest("random", "1").await.unwrap();
    assert!(first.is_some());
    // The step is random: the same digest again can only come from the daemon's cache.
    build(&bed, "crash", &revision, "random:2").await.unwrap();
    assert_eq!(bed.registry().digest("random", "2").await.unwrap(), first);
}

#[tokio::test]
async fn a_killed_builder_takes_its_running_step_along() {
    let bed = Bed::builder().gitea().registry().buildkit(1).start().await.unwrap();
    let file = dockerfile(&bed, "sleep 31.4159");
    let (_, revision) = pushed(&bed, "steps", &[("Dockerfile", &file)]).await.unwrap();
    let building = build(&bed, "steps", &revision, "never:1");
    let killing = async {
        wait_until("the step to run", SOON, || async { steps().pop() }).await?;
        bed.buildkit(0).peer().kill9().await?;
        wait_until("the step to be gone", SOON, || async { steps().is_empty().then_some(()) }).await
    };
    let (built, killed) = tokio::join!(building, killing);
    killed.unwrap();
    assert!(built.is_err(), "a build cannot survive its daemon");
}

/// The processes of the step above, told by its argument.
fn steps() -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.starts_with(b"sleep\x0031.4159")
    })
    .collect()
}

#[tokio::test]
async fn a_paused_peer_is_silent_until_it_goes_on() {
    let bed = Bed::builder().registry().buildkit(1).start().await.unwrap();
    let answers = async |wait: u64| {
        let ask = bed.registry().tags("base/busybox");
        tokio::time::timeout(Duration::from_millis(wait), ask).await.is_ok_and(|tags| tags.is_ok())
    };
    let builder_answers = async |wait: u64| {
        let mut command = bed.buildkit(0).buildctl();
        let ask = command.args(["debug", "workers"]).stdout(Stdio::null()).status();
        let answer = tokio::time::timeout(Duration::from_millis(wait), ask).await;
        answer.is_ok_and(|status| status.is_ok_and(|status| status.success()))
    };
    for peer in [bed.registry().peer(), bed.buildkit(0).peer()] {
        peer.pause().unwrap();
    }
    assert!(!answers(300).await && !builder_answers(500).await);
    for peer in [bed.registry().peer(), bed.buildkit(0).peer()] {
        assert!(peer.is_running());
        peer.resume().unwrap();
    }
    assert!(answers(5_000).await && builder_answers(5_000).await);

    bed.registry().peer().pause().unwrap();
    bed.registry().peer().stop().await.unwrap();
    assert!(!bed.registry().peer().is_running());
}

#[tokio::test]
async fn a_peer_that_cannot_start_says_why() {
    let options =
        GiteaOptions { extra_ini: "[database]\nDB_TYPE = nonsense\n".into(), ..GiteaOptions::default() };
    let error = Bed::builder().gitea_with(options).start().await.unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("gitea ended while starting"), "{error}");
    assert!(error.contains("nonsense"), "the end of the log belongs in the error: {error}");
}

#[tokio::test]
async fn stopping_a_bed_ends_its_peers_and_removes_its_folder() {
    let bed = Bed::builder().nats().registry().start().await.unwrap();
    let pids = [bed.nats().peer().pid().unwrap(), bed.registry().peer().pid().unwrap()];
    let folder = bed.folder().to_owned();
    assert!(folder.exists());
    bed.stop().await.unwrap();
    assert!(!folder.exists());
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}

#[tokio::test]
async fn peers_die_with_an_owner_that_is_killed() {
    let mut owner = tokio::process::Command::new(env!("CARGO_BIN_EXE_bed"))
        .arg("hold")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let mut pids = Vec::new();
    let folder = lines.next_line().await.unwrap().expect("the owner ended early");
    let folder = Path::new(folder.strip_prefix("folder ").unwrap());
    for _ in 0..4 {
        let line = lines.next_line().await.unwrap().expect("the owner ended early");
        let (name, pid) = line.split_once(' ').unwrap();
        pids.extend(tree(pid.parse().unwrap()));
        assert!(Path::new(&format!("/proc/{pid}")).exists(), "{name} should run");
    }
    assert!(pids.len() > 4, "rootlesskit has children");
    owner.kill().await.unwrap();
    wait_until("the peers to end", SOON, || async {
        let left = pids.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists());
        (left.count() == 0).then_some(())
    })
    .await
    .unwrap();

    let _next = Bed::builder().start().await.unwrap();
    assert!(!folder.exists(), "the next bed sweeps what a killed owner left");
}

#[tokio::test]
async fn a_failed_test_leaves_its_folder() {
    let bed = Bed::builder().start().await.unwrap();
    let folder = bed.folder().to_owned();
    let failing = std::thread::spawn(move || {
        let _bed = bed;
        panic!("on purpose");
    });
    assert!(failing.join().is_err());
    let _next = Bed::builder().start().await.unwrap();
    assert!(folder.exists());
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn mutual_tls_lets_in_only_who_has_a_certificate() {
    let files = Bed::builder().start().await.unwrap();
    let tls = MutualTls::create(files.folder()).unwrap();
    let options =
        BuildkitOptions { tls: Some(tls.server()), extra_toml: "[log]\nformat = \"json\"\n".into() };
    let bed = Bed::builder().buildkit_with(options).start().await.unwrap();
    let workers = async |identity: bool| {
        let mut command = tokio::process::Command::new(bed.buildctl());
        command
            .args(["--addr", &bed.buildkit(0).address(), "--timeout", "5"])
            .arg("--tlscacert")
            .arg(&tls.ca);
        if identity {
            command.arg("--tlscert").arg(&tls.client_cert).arg("--tlskey").arg(&tls.client_key);
        }
        command.args(["debug", "workers"]).output().await.unwrap().status.success()
    };
    assert!(workers(true).await);
    assert!(!workers(false).await);
    assert!(bed.buildkit(0).peer().log_tail(1).starts_with('{'), "the extra lines of TOML count");
}

/// A process and all below it.
fn tree(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let all = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let text: String = children.into_iter().chain(all).collect();
        let new: Vec<u32> = text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        found.extend(new.into_iter().filter(|pid| !found.contains(pid)).collect::<Vec<_>>());
        next += 1;
    }
    found
}
