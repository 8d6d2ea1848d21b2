//! A stage with an app that was built once, and what commands said.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fabrique_bed::{GitRepo, wait_until};
use fabrique_stage::{AppOptions, Fabrique, SampleApp, Stage};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

/// The binary under test.
pub(crate) const FABRIQUE: &str = env!("CARGO_BIN_EXE_fabrique");
/// How long anything may take here. Only ever a bound.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// What a command said and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Runs a command to its end.
    pub(crate) async fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(LONG, output).await.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// It ended well and had nothing to remark.
    pub(crate) fn ok(self) -> Self {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{self:?}");
        self
    }

    /// It ended with `code` and one line that contains `why`, and printed no result.
    pub(crate) fn refused(&self, code: i32, why: &str) {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{self:?}");
        assert!(self.err.starts_with("fabrique: ") && self.err.contains(why), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
    }

    /// The arguments made no sense.
    pub(crate) fn refused_by_clap(&self) {
        assert_eq!((self.code, self.out.as_str()), (2, ""), "{self:?}");
        assert!(self.err.contains("--help"), "{self:?}");
    }

    /// The only line that begins with a word.
    pub(crate) fn line(&self, word: &str) -> String {
        let mut lines = self.out.lines().filter(|line| line.split(' ').next() == Some(word));
        let line = lines.next().unwrap_or_else(|| panic!("no line of {word}: {self:?}"));
        assert_eq!(lines.next(), None, "{self:?}");
        line.to_owned()
    }

    /// The result of `-o json`.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The results of `-o json` of a command that prints one a line.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Fabrique at work: `citation` is built and deployed, `broken` has no Dockerfile, and `later` follows a branch
/// that does not exist yet. `slow` is like `broken` until its test pushes something.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    /// What `citation` is deployed at.
    pub(crate) revision: String,
    /// Its image.
    pub(crate) digest: String,
    /// The app whose builds may take long.
    pub(crate) slow: SampleApp,
    /// Who the commands are from.
    pub(crate) caller: String,
    fabrique: Fabrique,
}

/// The scene that every test reads and none changes for another.
pub(crate) async fn scene() -> &'static Scene {
    static SCENE: OnceCell<Scene> = OnceCell::const_new();
    SCENE.get_or_init(|| Box::pin(Scene::start())).await
}

impl Scene {
    async fn start() -> Self {
        let stage = Stage::builder().start(FABRIQUE).await.unwrap();
        let fabrique = stage.all().await.unwrap();
        let unhooked = |name| AppOptions { hook: false, ..AppOptions::named(name) };
        let app = SampleApp::create(&stage, unhooked("citation")).await.unwrap();
        let broken = SampleApp::over(&stage, unhooked("broken"), source(&stage, "broken").await);
        broken.register(&stage).await.unwrap();
        let slow = SampleApp::over(&stage, unhooked("slow"), source(&stage, "slow").await);
        slow.register(&stage).await.unwrap();
        let later = SampleApp::over(&stage, unhooked("later"), source(&stage, "later").await);
        let registration = later.registration().unwrap().replace("branch: main", "branch: later");
        let apps = stage.clone_apps().await.unwrap();
        apps.write("apps/later/app.yaml", registration).await.unwrap();
        apps.commit("Register later").await.unwrap();
        apps.push().await.unwrap();
        stage.command(&["hooks", "ensure"]).await.unwrap();
        let revision = app.push("hello").await.unwrap();
        let digest = stage.deployed(&app, &revision).await.unwrap().digest;
        // Settled: the overlay is copied, and the status is closed.
        stage.status_becomes(&app, &revision, "success").await.unwrap();
        for app in ["citation", "broken", "later", "slow"] {
            let settled = wait_until(app, LONG, || async {
                let why = stage.json(&["why", app]).await.ok()?;
                let idle = why["wanted"] == why["done"] && why["holder"].is_null();
                (idle && why["action"] == "nothing").then_some(())
            });
            settled.await.unwrap();
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        Self { stage, revision, digest, slow, caller: format!("ada@{}", host.trim()), fabrique }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(FABRIQUE);
        command
            .args(args)
            .env("FABRIQUE_CONFIG", self.stage.config())
            .env_remove("SUDO_USER")
            .env("USER", "ada");
        command
    }

    /// Runs a command for people.
    pub(crate) async fn say(&self, args: &[&str]) -> Said {
        Said::of(&mut self.command(args)).await
    }

    /// Starts a command for people with both outputs piped.
    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().unwrap()
    }

    /// Starts a command and returns its first line that contains `wanted`.
    pub(crate) async fn tail_until(&self, args: &[&str], wanted: &str) -> String {
        use tokio::io::{AsyncBufReadExt as _, BufReader};
        let mut child = self.spawn(args);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let found = async {
            loop {
                let line = lines.next_line().await.unwrap().unwrap();
                if line.contains(wanted) {
                    return line;
                }
            }
        };
        tokio::time::timeout(LONG, found).await.unwrap()
    }

    /// Every secret of the configuration, by the name of its file.
    pub(crate) fn secrets(&self) -> Vec<(String, String)> {
        let folder = self.stage.config().parent().unwrap();
        let secret =
            |name: &str| name.ends_with("-token") || name.starts_with("nats-") || name.ends_with("-secret");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        files
            .map(|file| (file.file_name().into_string().unwrap(), file.path()))
            .filter(|(name, _)| secret(name))
            .map(|(name, path)| (name, read(&path)))
            .collect()
    }

    /// What the services logged.
    pub(crate) fn server_logs(&self) -> String {
        self.fabrique.log()
    }
}

/// A repository with nothing but its first commit.
async fn source(stage: &Stage, name: &str) -> GitRepo {
    stage.create_source("atlas", name, false).await.unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Sends a signal to a process of this test.
pub(crate) async fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().await.unwrap();
    assert!(sent.success());
}

/// The arguments of every process, as anybody on this machine sees them.
pub(crate) fn processes() -> String {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let arguments = all.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    let own: Vec<String> = arguments
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains("fabrique"))
        .collect();
    own.join("\n")
}
