//! What the tests share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use fabrique_bed::{Bed, GitRepo, Gitea};
use fabrique_core::id::{BranchName, RelPath, RepoName, Revision};
use fabrique_git::{AppsRepository, GitConfig, GitDeployments, GitHistory, Identity};
use fabrique_ports::deployments::{Deployments, NewCommit, PreparedPush, PushOutcome, Snapshot};
use secrecy::SecretString;
use tempfile::TempDir;
use tokio::sync::OnceCell;
use url::Url;

pub(crate) fn repo(text: &str) -> RepoName {
    RepoName::parse(text).unwrap()
}

pub(crate) fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

pub(crate) fn revision(text: &str) -> Revision {
    Revision::parse(text.trim()).unwrap()
}

pub(crate) fn config(state: &Path, base: &str, apps: &str, token: Option<&str>) -> GitConfig {
    let apps = AppsRepository {
        repo: repo(apps),
        branch: BranchName::parse("main").unwrap(),
        token: token.map(SecretString::from),
        identity: Identity { name: "fabrique".to_owned(), email: "fabrique@example.org".to_owned() },
    };
    let mut config = GitConfig::new(state.to_owned(), Url::parse(base).unwrap(), apps);
    config.read.default = token.map(SecretString::from);
    let _ = rustls::crypto::ring::default_provider().install_default();
    config
}

/// A commit that writes these files.
pub(crate) fn writing(message: &str, files: &[(&str, &str)]) -> NewCommit {
    let changes = files.iter().map(|(file, content)| (path(file), Some(Bytes::from((*content).to_owned()))));
    NewCommit { changes: changes.collect(), message: message.to_owned() }
}

/// Prepares and pushes on top of a snapshot.
pub(crate) async fn write(
    deployments: &GitDeployments,
    snapshot: &Snapshot,
    files: &[(&str, &str)],
) -> (PreparedPush, PushOutcome) {
    let prepared = deployments.prepare(&snapshot.commit, &[writing("Deploy", files)]).await.unwrap();
    let outcome = deployments.push(&prepared).await.unwrap();
    (prepared, outcome)
}

/// The files of a snapshot as text.
pub(crate) fn texts(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    snapshot.files.iter().map(|(path, file)| (path.to_string(), text(&file.content))).collect()
}

/// A forge that is only a folder: bare repositories by organisation, and a working copy of one of them.
pub(crate) struct Folder {
    root: TempDir,
    pub(crate) work: GitRepo,
}

impl Folder {
    /// With the repository `atlas/app`, which has one commit and no file, cloned.
    pub(crate) async fn new(format: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let bare = root.path().join("forge/atlas/app.git");
        std::fs::create_dir_all(&bare).unwrap();
        let format = format!("--object-format={format}");
        let git = |args: &[&str]| {
            let mut command = std::process::Command::new("git");
            command.args(args).current_dir(&bare).stdin(std::process::Stdio::null());
            for (role, what) in
                [("AUTHOR", "NAME"), ("AUTHOR", "EMAIL"), ("COMMITTER", "NAME"), ("COMMITTER", "EMAIL")]
            {
                command.env(format!("GIT_{role}_{what}"), "ada");
            }
            let output = command.output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        git(&["init", "--quiet", "--bare", "--initial-branch=main", &format, "."]);
        // A clone of an empty repository would not learn its object format.
        let root_commit = git(&["commit-tree", "-m", "Begin", &git(&["mktree"])]);
        git(&["update-ref", "refs/heads/main", &root_commit]);
        let work = GitRepo::clone(&format!("file://{}", bare.display())).await.unwrap();
        Self { root, work }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    pub(crate) fn bare(&self) -> PathBuf {
        self.root.path().join("forge/atlas/app.git")
    }

    pub(crate) fn config(&self) -> GitConfig {
        let base = format!("file://{}/forge", self.root.path().display());
        let mut config = config(&self.state(), &base, "atlas/app", None);
        config.allow_file = true;
        config
    }

    pub(crate) fn history(&self) -> GitHistory {
        GitHistory::new(self.config()).unwrap()
    }

    pub(crate) fn deployments(&self) -> GitDeployments {
        GitDeployments::new(self.config()).unwrap()
    }

    /// Writes an executable.
    pub(crate) async fn write_program(&self, file: &str, content: &str) {
        self.work.write(file, content).await.unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.work.path().join(file), mode).unwrap();
    }

    /// Commits the files and pushes.
    pub(crate) async fn commit(&self, files: &[(&str, &str)]) -> Revision {
        for (file, content) in files {
            self.work.write(file, content).await.unwrap();
        }
        let head = self.work.commit("Change").await.unwrap();
        self.work.push_force().await.unwrap();
        revision(&head)
    }

    /// Makes the forge forget what no branch holds.
    pub(crate) async fn forget(&self) {
        let bare = self.bare();
        let bare = bare.to_string_lossy();
        for args in
            [["reflog", "expire", "--expire=all", "--all"], ["gc", "--quiet", "--prune=now", "--aggressive"]]
        {
            self.work.git(&[&["--git-dir", &bare], &args[..]].concat()).await.unwrap();
        }
    }
}

/// A Gitea that the tests leave as it is.
pub(crate) async fn gitea() -> &'static Gitea {
    static BED: OnceCell<Bed> = OnceCell::const_new();
    BED.get_or_init(|| async { Bed::builder().gitea().start().await.unwrap() }).await.gitea()
}

/// A private `<org>/apps` on a forge, and the adapter for it.
pub(crate) struct Apps {
    _state: TempDir,
    pub(crate) config: GitConfig,
    pub(crate) deployments: GitDeployments,
    pub(crate) work: GitRepo,
}

impl Apps {
    pub(crate) async fn new(gitea: &Gitea, org: &str) -> Self {
        gitea.create_org(org).await.unwrap();
        gitea.create_repo(org, "apps", true).await.unwrap();
        let work = GitRepo::clone(&gitea.clone_url_with_token(org, "apps")).await.unwrap();
        work.write("apps/citation/app.yaml", "kind: App\n").await.unwrap();
        work.commit("Register citation").await.unwrap();
        work.push().await.unwrap();
        let state = tempfile::tempdir().unwrap();
        let apps = format!("{org}/apps");
        let config = config(state.path(), &gitea.base_url(), &apps, Some(gitea.admin_token()));
        let deployments = GitDeployments::new(config.clone()).unwrap();
        Self { _state: state, config, deployments, work }
    }

    /// The adapter as another worker has it, with a clone of its own.
    pub(crate) fn another(&self, state: &Path) -> GitDeployments {
        let mut config = self.config.clone();
        config.state_dir = state.to_owned();
        GitDeployments::new(config).unwrap()
    }

    /// The branch's head as git sees it.
    pub(crate) async fn head(&self) -> Revision {
        self.work.pull().await.unwrap();
        revision(&self.work.head().await.unwrap())
    }
}
