//! One bare clone of one repository: made on demand, brought up to date, thrown away when it is damaged.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Instant;

use fabrique_core::id::{RepoName, Revision};
use fabrique_core::relation::Relation;
use tokio::sync::Mutex;

use crate::command::{Call, Git, Output};
use crate::config::{GitConfig, Limits, Timeouts};
use crate::error::GitError;
use crate::lock::{Lock, Mode};
use crate::remote::Remote;

/// The commit that was fetched last by its id alone.
const PREFETCHED: &str = "refs/fabrique/prefetched";
/// How many of the newest ancestors are told.
const NEWEST: usize = 5;
/// How many objects of one beginning are looked at: with seven digits there are a few in the largest repository.
const CANDIDATES: usize = 64;
/// How long a commit that no branch holds any more is kept: after a force push it is still deployed.
const KEEP_LOST: &str = "--prune=30.days.ago";

/// What a question about revisions came to.
#[derive(Debug)]
pub(crate) enum Read {
    /// Git's answer.
    Done(Output),
    /// Neither the clone nor the forge has all of the revisions.
    Missing,
}

/// A clone and everything to look after it.
#[derive(Debug)]
pub(crate) struct Mirror {
    git: Git,
    repo: RepoName,
    remote: Remote,
    refspec: String,
    directory: PathBuf,
    timeouts: Timeouts,
    limits: Limits,
    /// When the newest fetch that succeeded began. Held during a fetch.
    fetched: Mutex<Option<Instant>>,
    healed: StdMutex<Option<Instant>>,
    tidying: AtomicBool,
}

impl Mirror {
    /// The clone in `directory`, which need not be there, of everything that `refspec` names.
    pub(crate) fn new(
        git: Git,
        repo: RepoName,
        remote: Remote,
        refspec: String,
        directory: PathBuf,
        config: &GitConfig,
    ) -> Self {
        Self {
            git,
            repo,
            remote,
            refspec,
            directory,
            timeouts: config.timeouts,
            limits: config.limits,
            fetched: Mutex::new(None),
            healed: StdMutex::new(None),
            tidying: AtomicBool::new(false),
        }
    }

    pub(crate) fn repo(&self) -> &RepoName {
        &self.repo
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A call of git in this clone. [`Mirror::shared`] must be held while it runs.
    pub(crate) fn call(&self, args: &[&str]) -> Call<'_> {
        self.git.call(args).at(&self.directory).timeout(self.timeouts.local)
    }

    /// Keeps the clone from being deleted.
    pub(crate) async fn shared(&self) -> Result<Lock, GitError> {
        self.lock(Mode::Shared).await
    }

    /// Does `work`, and does it again with a new clone if the first one may have been damaged.
    pub(crate) async fn healing<T, F>(&self, work: impl Fn() -> F) -> Result<T, GitError>
    where
        F: Future<Output = Result<T, GitError>>,
    {
        match work().await {
            Err(error) if self.may_heal(&error) => {
                self.heal(&error).await?;
                work().await
            }
            answer => answer,
        }
    }

    /// Asks the clone, fetching first what it lacks. Without the forge when nothing is lacking.
    pub(crate) async fn read(&self, revisions: &[&Revision], call: &Call<'_>) -> Result<Read, GitError> {
        if self.exists() {
            let _shared = self.shared().await?;
            let output = call.run().await?;
            if output.succeeded() {
                return Ok(Read::Done(output));
            }
        }
        if !self.provide(revisions).await? {
            return Ok(Read::Missing);
        }
        let _shared = self.shared().await?;
        call.output().await.map(Read::Done)
    }

    /// Brings the clone up to date with the forge as it is now. Callers that wait for each other share a fetch
    /// that began after all of them had asked.
    pub(crate) async fn fetch(&self) -> Result<(), GitError> {
        let asked = Instant::now();
        let mut fetched = self.fetched.lock().await;
        if fetched.is_some_and(|began| began >= asked) {
            return Ok(());
        }
        let began = Instant::now();
        if !self.create().await? {
            let _shared = self.shared().await?;
            self.fetch_call(&["--prune"], &self.refspec).output().await.map_err(|e| self.no_branch(e))?;
        }
        *fetched = Some(began);
        Ok(())
    }

    /// How `to` stands to `from`.
    pub(crate) async fn relation(&self, from: &Revision, to: &Revision) -> Result<Relation, GitError> {
        self.healing(|| self.try_relation(from, to)).await
    }

    async fn try_relation(&self, from: &Revision, to: &Revision) -> Result<Relation, GitError> {
        let range = format!("{from}...{to}");
        let call = self.call(&["rev-list", "--left-right", "--count", "--end-of-options", &range, "--"]);
        let output = match self.read(&[from, to], &call).await? {
            Read::Done(output) => output,
            Read::Missing => return Ok(Relation::Unknown),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let counts: Vec<&str> = text.split_ascii_whitespace().collect();
        match counts[..] {
            ["0", "0"] => Ok(Relation::Same),
            ["0", _] => Ok(Relation::Ahead),
            [_, "0"] => Ok(Relation::Behind),
            [_, _] => Ok(Relation::Diverged),
            _ => Err(GitError::Malformed { command: "rev-list", what: text.escape_debug().to_string() }),
        }
    }

    /// The paths that differ between two trees, at most `bound`; nothing when it cannot be told.
    pub(crate) async fn changed_paths(
        &self,
        from: &Revision,
        to: &Revision,
        bound: usize,
    ) -> Result<Option<Vec<String>>, GitError> {
        let bytes = u64::try_from(bound).unwrap_or(u64::MAX).saturating_mul(1 << 10);
        let call = self
            .call(&[
                "diff-tree",
                "-r",
                "-z",
                "--name-only",
                "--no-renames",
                "--ignore-submodules=none",
                "--end-of-options",
                from.as_str(),
                to.as_str(),
                "--",
            ])
            .limit(bytes);
        let revisions = [from, to];
        let output = match self.healing(|| self.read(&revisions, &call)).await {
            Ok(Read::Done(output)) => output,
            Ok(Read::Missing) | Err(GitError::TooMuchOutput { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let paths = output.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        let paths: Vec<String> =
            paths.take(bound + 1).map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        Ok((paths.len() <= bound).then_some(paths))
    }

    /// The ancestors of `head` whose ids begin with `prefix`, and its newest ones; nothing when the forge lacks `head`.
    /// Git looks the beginning up in its index of objects, so that nothing is walked but the way to a candidate.
    pub(crate) async fn ancestors(
        &self,
        head: &Revision,
        prefix: &str,
    ) -> Result<Option<Vec<Revision>>, GitError> {
        let newest = format!("--max-count={NEWEST}");
        let call = self.call(&["rev-list", &newest, "--end-of-options", head.as_str(), "--"]);
        let Read::Done(newest) = self.read(&[head], &call).await? else { return Ok(None) };
        let named = {
            let _shared = self.shared().await?;
            self.call(&["rev-parse", &format!("--disambiguate={prefix}")]).output().await?
        };
        let candidates = revisions(&named.stdout);
        let candidates: Vec<&Revision> = candidates.iter().take(CANDIDATES).collect();
        let no_commits = if candidates.is_empty() { Vec::new() } else { self.absent(&candidates).await? };
        let mut ancestors = Vec::new();
        for candidate in candidates.into_iter().filter(|candidate| !no_commits.contains(candidate)) {
            if matches!(self.try_relation(candidate, head).await?, Relation::Same | Relation::Ahead) {
                ancestors.push(candidate.clone());
            }
        }
        let newest = revisions(&newest.stdout).into_iter().filter(|one| !ancestors.contains(one));
        let newest: Vec<Revision> = newest.collect();
        ancestors.extend(newest);
        Ok(Some(ancestors))
    }

    /// Fetches those revisions that the clone lacks. Whether all of them are there then.
    pub(crate) async fn provide(&self, revisions: &[&Revision]) -> Result<bool, GitError> {
        if self.exists() && self.absent(revisions).await?.is_empty() {
            return Ok(true);
        }
        self.fetch().await?;
        let absent = self.absent(revisions).await?;
        if absent.is_empty() {
            return Ok(true);
        }
        for revision in absent {
            if !self.fetch_one(&revision).await? {
                return Ok(false);
            }
        }
        // What was fetched by id need not be a commit.
        Ok(self.absent(revisions).await?.is_empty())
    }

    /// Those that are no commits in the clone.
    async fn absent(&self, revisions: &[&Revision]) -> Result<Vec<Revision>, GitError> {
        let _shared = self.shared().await?;
        let names: String = revisions.iter().map(|revision| format!("{revision}\n")).collect();
        let call = self.call(&["cat-file", "--batch-check=%(objectname) %(objecttype)"]).input(names);
        let output = call.output().await?;
        let found = String::from_utf8_lossy(&output.stdout);
        let is_commit = |revision: &Revision| {
            found.lines().any(|line| line.strip_prefix(revision.as_str()) == Some(" commit"))
        };
        Ok(revisions.iter().filter(|revision| !is_commit(revision)).map(|r| (*r).clone()).collect())
    }

    /// Fetches a commit by its id unless it is here, without asking for the branches, which takes one request less.
    /// Whether the forge has it. One at a time: whoever waits for the same commit then finds it.
    pub(crate) async fn prefetch(&self, revision: &Revision) -> Result<bool, GitError> {
        let _turn = self.fetched.lock().await;
        self.create().await?;
        // Named, so that the next fetch tells the forge that it is here.
        self.fetch_id(&format!("+{revision}:{PREFETCHED}")).await
    }

    /// Fetches a commit that no branch holds. Whether the forge has it.
    async fn fetch_one(&self, revision: &Revision) -> Result<bool, GitError> {
        self.fetch_id(revision.as_str()).await
    }

    async fn fetch_id(&self, refspec: &str) -> Result<bool, GitError> {
        let _shared = self.shared().await?;
        let output = self.fetch_call(&[], refspec).run().await?;
        if output.succeeded() {
            return Ok(true);
        }
        // The second one is about ids of the other length, which git takes for the name of a ref.
        let unknown = ["not our ref", "couldn't find remote ref", "unadvertised object"];
        if unknown.iter().any(|words| output.stderr.contains(words)) {
            return Ok(false);
        }
        Err(output.failure())
    }

    fn fetch_call(&self, extra: &[&str], refspec: &str) -> Call<'_> {
        let mut args = vec!["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"];
        args.extend(["--no-auto-maintenance", "--no-recurse-submodules", "--no-show-forced-updates"]);
        args.extend(extra);
        args.extend(["--end-of-options", self.remote.url(), refspec]);
        self.call(&args).with(&self.remote).timeout(self.timeouts.fetch)
    }

    fn no_branch(&self, error: GitError) -> GitError {
        match error {
            GitError::Failed { said, .. } if said.contains("couldn't find remote ref") => {
                let branch = self.refspec.rsplit("refs/heads/").next().unwrap_or_default().to_owned();
                GitError::NoBranch { repo: self.repo.clone(), branch }
            }
            error => error,
        }
    }

    /// Whether there is a clone, damaged or not.
    pub(crate) fn exists(&self) -> bool {
        self.directory.join("HEAD").exists()
    }

    async fn lock(&self, mode: Mode) -> Result<Lock, GitError> {
        let path = self.directory.with_extension("lock");
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)
                .map_err(|source| GitError::State { path: parent.to_owned(), source })?;
        }
        Lock::take(&path, mode, self.timeouts.clone).await
    }

    /// Makes the clone if there is none. Whether it was made now, and so is up to date.
    async fn create(&self) -> Result<bool, GitError> {
        if self.exists() {
            return Ok(false);
        }
        let _exclusive = self.lock(Mode::Exclusive).await?;
        if self.exists() {
            return Ok(false);
        }
        tracing::info!(repo = %self.repo, "making a clone");
        match self.clone_as("sha1").await {
            Err(GitError::Failed { said, .. }) if said.contains("mismatched algorithms") => {
                self.clone_as("sha256").await?;
            }
            answer => answer.map_err(|error| self.no_branch(error))?,
        }
        Ok(true)
    }

    /// Clones aside and moves the result, so that a clone that is there is whole.
    async fn clone_as(&self, format: &str) -> Result<(), GitError> {
        let aside = self.directory.with_extension("new");
        remove(&aside)?;
        remove(&self.directory)?;
        let state = |source| GitError::State { path: aside.clone(), source };
        fs::create_dir_all(&aside).map_err(state)?;
        let format = format!("--object-format={format}");
        let init = ["init", "--quiet", "--bare", "--template=", &format];
        self.git.call(&init).at(&aside).timeout(self.timeouts.local).output().await?;
        let fetch = self.fetch_call(&[], &self.refspec).at(&aside).timeout(self.timeouts.clone);
        fetch.output().await?;
        fs::rename(&aside, &self.directory).map_err(state)
    }

    fn may_heal(&self, error: &GitError) -> bool {
        let healed = self.healed.lock().unwrap_or_else(PoisonError::into_inner);
        error.may_be_damage() && healed.is_none_or(|at| at.elapsed() > self.timeouts.healing)
    }

    /// Throws the clone away.
    async fn heal(&self, error: &GitError) -> Result<(), GitError> {
        tracing::warn!(repo = %self.repo, %error, "the clone may be damaged: making a new one");
        let _exclusive = self.lock(Mode::Exclusive).await?;
        *self.healed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        remove(&self.directory)
    }

    /// Repacks the clone in the background when it has become untidy.
    pub(crate) fn tidy(self: &Arc<Self>) {
        if self.packs() <= self.limits.packs && self.loose() <= self.limits.loose_objects {
            return;
        }
        if self.tidying.swap(true, Ordering::SeqCst) {
            return;
        }
        let mirror = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = mirror.repack().await {
                tracing::warn!(repo = %mirror.repo, %error, "could not tidy the clone up");
            }
            mirror.tidying.store(false, Ordering::SeqCst);
        });
    }

    fn packs(&self) -> usize {
        let is_pack = |name: &OsStr| Path::new(name).extension().is_some_and(|kind| kind == "pack");
        names(&self.directory.join("objects/pack")).iter().filter(|name| is_pack(name)).count()
    }

    /// About how many loose objects there are: one of their 256 folders stands for all, as in git itself.
    fn loose(&self) -> usize {
        names(&self.directory.join("objects/17")).len() * 256
    }

    async fn repack(&self) -> Result<(), GitError> {
        // Shared: git's own readers and writers live with a repack.
        let _shared = self.shared().await?;
        let call = self.call(&["gc", "--quiet", "--cruft", KEEP_LOST]);
        call.timeout(self.timeouts.tidy).output().await.map(drop)
    }
}

/// The ids that git wrote, one a line.
fn revisions(output: &[u8]) -> Vec<Revision> {
    String::from_utf8_lossy(output).lines().filter_map(|line| Revision::parse(line).ok()).collect()
}

fn names(directory: &Path) -> Vec<OsString> {
    fs::read_dir(directory)
        .map(|entries| entries.flatten().map(|entry| entry.file_name()).collect())
        .unwrap_or_default()
}

fn remove(directory: &Path) -> Result<(), GitError> {
    match fs::remove_dir_all(directory) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(GitError::State { path: directory.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
