//! `cluster/apps`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use fabrique_core::id::{RelPath, Revision};
use fabrique_core::relation::Relation;
use fabrique_ports::PortResult;
use fabrique_ports::deployments::{
    CommitFate, Deployments, NewCommit, OwnCommit, PreparedPush, PushOutcome, READ, Snapshot, SnapshotFile,
};
use tokio::task::JoinHandle;

use crate::command::Git;
use crate::config::{GitConfig, Identity};
use crate::error::GitError;
use crate::history::prepare_state;
use crate::import::{Import, Known, parse};
use crate::mirror::{Mirror, Read};
use crate::objects::{Entry, content_of, contents, listing_bound, parse_tree};
use crate::push;
use crate::receive_pack::{ReceivePack, Reply};
use crate::remote::Remote;
use crate::report::request;

/// The longest message that is read back, in bytes; fabrique's own are shorter.
const MESSAGE: u64 = 16 << 10;

/// Reads and writes `cluster/apps` through one clone of its branch.
#[derive(Debug)]
pub struct GitDeployments {
    config: GitConfig,
    mirror: Arc<Mirror>,
    receive_pack: ReceivePack,
    newest: Mutex<Option<Cached>>,
    imports: AtomicU64,
    packing: Mutex<Option<Packing>>,
}

/// The pack of the newest import, on its way while the caller notes what it is about to push.
#[derive(Debug)]
struct Packing {
    tip: Revision,
    pack: JoinHandle<Result<Bytes, GitError>>,
}

/// The newest snapshot, with the objects that its contents came from.
#[derive(Debug, Clone)]
struct Cached {
    snapshot: Snapshot,
    contents: Arc<HashMap<String, Bytes>>,
}

impl GitDeployments {
    /// Checks the configuration and makes the state directory.
    ///
    /// # Errors
    /// [`GitError::Config`] or [`GitError::State`].
    pub fn new(config: GitConfig) -> Result<Self, GitError> {
        prepare_state(&config)?;
        let apps = &config.apps;
        let remote = Remote::new(&config.base_url, &apps.repo, apps.token.as_ref());
        let reference = apps.branch.full_ref();
        let name = apps.repo.to_string().to_ascii_lowercase();
        let directory = config.state_dir.join("deployments").join(format!("{name}.git"));
        let refspec = format!("+{reference}:{reference}");
        let git = Git::new(&config);
        let receive_pack = ReceivePack::new(&config, &git, &remote)?;
        let mirror = Arc::new(Mirror::new(git, apps.repo.clone(), remote, refspec, directory, &config));
        let (newest, imports, packing) = (Mutex::new(None), AtomicU64::new(0), Mutex::new(None));
        Ok(Self { config, mirror, receive_pack, newest, imports, packing })
    }

    fn newest(&self) -> Option<Cached> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn head(&self) -> Result<Revision, GitError> {
        let name = format!("{}^{{commit}}", self.config.apps.branch.full_ref());
        let _shared = self.mirror.shared().await?;
        let output = self.mirror.call(&["rev-parse", "--verify", "--end-of-options", &name]).output().await?;
        Revision::parse(String::from_utf8_lossy(&output.stdout).trim_end())
            .map_err(|error| GitError::Malformed { command: "rev-parse", what: error.to_string() })
    }

    async fn read_snapshot(&self) -> Result<Snapshot, GitError> {
        self.mirror.fetch().await?;
        let commit = self.head().await?;
        let before = self.newest();
        if let Some(cached) = &before
            && cached.snapshot.commit == commit
        {
            return Ok(cached.snapshot.clone());
        }
        let entries = self.entries(&commit).await?;
        let mut blobs = HashMap::with_capacity(entries.len());
        if let Some(cached) = &before {
            let kept = |entry: &Entry| cached.contents.get_key_value(&entry.object);
            blobs.extend(
                entries.iter().filter_map(kept).map(|(object, bytes)| (object.clone(), bytes.clone())),
            );
        }
        let new: Vec<&Entry> = entries.iter().filter(|entry| !blobs.contains_key(&entry.object)).collect();
        blobs.extend(contents(&self.mirror, &new).await?);
        let mut files = BTreeMap::new();
        for entry in &entries {
            let text = String::from_utf8_lossy(&entry.path);
            match RelPath::parse(&text) {
                Ok(path) => {
                    let content = content_of(entry, &blobs)?;
                    files.insert(path, SnapshotFile { kind: entry.kind, content });
                }
                Err(error) => tracing::warn!(%commit, %error, "a file of the deployments is left out"),
            }
        }
        let snapshot = Snapshot { commit, files: Arc::new(files) };
        let cached = Cached { snapshot: snapshot.clone(), contents: Arc::new(blobs) };
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(cached);
        self.mirror.tidy();
        Ok(snapshot)
    }

    async fn entries(&self, commit: &Revision) -> Result<Vec<Entry>, GitError> {
        let (files, bytes) = (self.config.limits.snapshot_files, self.config.limits.snapshot_bytes);
        let too_big = || GitError::TooBig { what: self.config.apps.repo.to_string(), files, bytes };
        let mut args = vec!["ls-tree", "-r", "-z", "-l", "--full-tree", commit.as_str(), "--"];
        args.extend(READ);
        let output =
            match self.mirror.read(&[commit], &self.mirror.call(&args).limit(listing_bound(files))).await {
                Ok(Read::Done(output)) => output,
                Ok(Read::Missing) => return Err(self.no_revision(commit)),
                Err(GitError::TooMuchOutput { .. }) => return Err(too_big()),
                Err(error) => return Err(error),
            };
        let entries = parse_tree(&output.stdout)?;
        let size: u64 = entries.iter().map(|entry| entry.size).sum();
        if entries.len() > files || size > bytes { Err(too_big()) } else { Ok(entries) }
    }

    /// The files of `base` that commits could meet; `base` is in the clone afterwards.
    async fn known(&self, base: &Revision) -> Result<Known, GitError> {
        let cached = self.newest().filter(|cached| cached.snapshot.commit == *base);
        if let Some(cached) = cached
            && self.mirror.exists()
        {
            let files = cached.snapshot.files.iter();
            return Ok(files.map(|(path, file)| (path.clone(), file.kind)).collect());
        }
        let entries = self.entries(base).await?;
        let known = entries.iter().filter_map(|entry| {
            let path = RelPath::parse(&String::from_utf8_lossy(&entry.path)).ok()?;
            Some((path, entry.kind))
        });
        Ok(known.collect())
    }

    async fn import(&self, base: &Revision, commits: &[NewCommit]) -> Result<PreparedPush, GitError> {
        if commits.is_empty() {
            return Err(GitError::Commit("there is no commit to make".to_owned()));
        }
        let paths = commits.iter().flat_map(|commit| commit.changes.keys());
        if let Some(path) = paths.into_iter().find(|path| !is_read(path)) {
            return Err(GitError::Commit(format!("{path:?} is outside what fabrique reads")));
        }
        let known = self.known(base).await?;
        let number = self.imports.fetch_add(1, Ordering::Relaxed);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let import = Import {
            base,
            commits,
            identity: &self.config.apps.identity,
            time,
            reference: &format!("refs/fabrique/import-{}-{number}", std::process::id()),
        };
        let stream = import.stream(known)?;
        let _shared = self.mirror.shared().await?;
        let call = self.mirror.call(&["fast-import", "--quiet", "--done", "--date-format=raw"]).input(stream);
        let output = call.run().await?;
        if !output.succeeded() {
            self.remove_crash_reports();
            return Err(output.failure());
        }
        let prepared = PreparedPush { base: base.clone(), commits: parse(&output.stdout, commits.len())? };
        let packing = prepared
            .commits
            .last()
            .map(|tip| Packing { tip: tip.clone(), pack: tokio::spawn(self.pack(base, tip)) });
        *self.packing.lock().unwrap_or_else(PoisonError::into_inner) = packing;
        Ok(prepared)
    }

    /// A failed import leaves a report in the clone, for whose author it is not.
    fn remove_crash_reports(&self) {
        let Ok(entries) = fs::read_dir(self.mirror.directory()) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with("fast_import_crash_") {
                // Left behind it does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    async fn log(&self, head: &Revision, directory: &RelPath, most: u32) -> Result<Vec<OwnCommit>, GitError> {
        let Identity { name, email } = &self.config.apps.identity;
        let author = format!("--author={name} <{email}>");
        let most_commits = format!("--max-count={most}");
        // A .mailmap is a file like any other here: whoever writes it must not rename authors.
        let call = self.mirror.call(&[
            "log",
            "-z",
            "--no-mailmap",
            "--no-show-signature",
            "--encoding=UTF-8",
            "--format=%H%n%B",
            "--fixed-strings",
            &author,
            &most_commits,
            "--end-of-options",
            head.as_str(),
            "--",
            directory.as_str(),
        ]);
        match self.mirror.read(&[head], &call.limit(u64::from(most) * MESSAGE)).await? {
            Read::Done(output) => parse_log(&String::from_utf8_lossy(&output.stdout)),
            Read::Missing => Err(self.no_revision(head)),
        }
    }

    async fn beside(
        &self,
        head: &Revision,
        directory: &RelPath,
        file: &RelPath,
    ) -> Result<Option<Bytes>, GitError> {
        // As the branch went: what a merge brought counts from the merge on.
        let (others, but) = (format!(":(literal){directory}"), format!(":(exclude,literal){file}"));
        let call = self.mirror.call(&[
            "rev-list",
            "--first-parent",
            "--max-count=1",
            "--end-of-options",
            head.as_str(),
            "--",
            &others,
            &but,
        ]);
        let output = match self.mirror.read(&[head], &call.pathspecs()).await? {
            Read::Done(output) => output,
            Read::Missing => return Err(self.no_revision(head)),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        if text.trim().is_empty() {
            return Ok(None);
        }
        let commit = Revision::parse(text.trim())
            .map_err(|error| GitError::Malformed { command: "rev-list", what: error.to_string() })?;
        let entries = self.entries(&commit).await?;
        let Some(entry) = entries.iter().find(|entry| &entry.path[..] == file.as_str().as_bytes()) else {
            return Ok(None);
        };
        let blobs = contents(&self.mirror, &[entry]).await?;
        content_of(entry, &blobs).map(Some)
    }

    async fn push_prepared(&self, prepared: &PreparedPush) -> Result<PushOutcome, GitError> {
        let Some(tip) = prepared.commits.last() else {
            return Err(GitError::Commit("there is nothing to push".to_owned()));
        };
        let pack = match self.packed(&prepared.base, tip).await {
            Ok(pack) => pack,
            // The clone was made again since: the caller reads, decides and makes the commits again.
            Err(error) if error.may_be_damage() => return Ok(PushOutcome::Unknown(error.to_string())),
            Err(error) => return Err(error),
        };
        let reference = self.config.apps.branch.full_ref();
        let request = request(&reference, &prepared.base, tip, &pack);
        match self.receive_pack.answer(request).await? {
            Reply::Answer(answer) => push::outcome(&answer, &reference, tip),
            Reply::Refused(text) => Ok(PushOutcome::Refused(text)),
            Reply::Unclear(text) => Ok(PushOutcome::Unknown(text)),
        }
    }

    async fn packed(&self, base: &Revision, tip: &Revision) -> Result<Bytes, GitError> {
        let under_way = self.packing.lock().unwrap_or_else(PoisonError::into_inner).take();
        match under_way.filter(|packing| packing.tip == *tip) {
            // An end without a result is one of the runtime.
            Some(Packing { pack, .. }) => match pack.await {
                Ok(pack) => pack,
                Err(_) => self.pack(base, tip).await,
            },
            None => self.pack(base, tip).await,
        }
    }

    /// The objects that a repository at `base` lacks of `tip`.
    fn pack(
        &self,
        base: &Revision,
        tip: &Revision,
    ) -> impl Future<Output = Result<Bytes, GitError>> + Send + 'static {
        let wanted = format!("{tip}\n^{base}\n");
        // No snapshot could hold more than that.
        let limit = self.config.limits.snapshot_bytes;
        let mirror = Arc::clone(&self.mirror);
        async move {
            let args = ["pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q"];
            let call = mirror.call(&args).input(wanted).limit(limit);
            let _shared = mirror.shared().await?;
            Ok(call.output().await?.stdout)
        }
    }

    fn no_revision(&self, revision: &Revision) -> GitError {
        GitError::NoRevision { repo: self.config.apps.repo.clone(), revision: revision.clone() }
    }
}

#[async_trait]
impl Deployments for GitDeployments {
    async fn snapshot(&self) -> PortResult<Snapshot> {
        Ok(self.mirror.healing(|| self.read_snapshot()).await?)
    }

    async fn changed_since(&self, commit: &Revision, head: &Revision) -> PortResult<Option<Vec<String>>> {
        Ok(self.mirror.changed_paths(commit, head, self.config.limits.changed_paths).await?)
    }

    async fn prepare(&self, base: &Revision, commits: &[NewCommit]) -> PortResult<PreparedPush> {
        Ok(self.mirror.healing(|| self.import(base, commits)).await?)
    }

    async fn push(&self, prepared: &PreparedPush) -> PortResult<PushOutcome> {
        Ok(self.push_prepared(prepared).await?)
    }

    async fn own_commits(
        &self,
        head: &Revision,
        directory: &RelPath,
        most: u32,
    ) -> PortResult<Vec<OwnCommit>> {
        Ok(self.mirror.healing(|| self.log(head, directory, most)).await?)
    }

    async fn when_others_changed(
        &self,
        head: &Revision,
        directory: &RelPath,
        file: &RelPath,
    ) -> PortResult<Option<Bytes>> {
        Ok(self.mirror.healing(|| self.beside(head, directory, file)).await?)
    }

    async fn fate(&self, commit: &Revision, head: &Revision) -> PortResult<CommitFate> {
        match self.mirror.relation(commit, head).await? {
            Relation::Same | Relation::Ahead => Ok(CommitFate::OnBranch),
            Relation::Behind | Relation::Diverged => Ok(CommitFate::OffBranch),
            // A head that is there has its whole history with it.
            Relation::Unknown if self.mirror.provide(&[head]).await? => Ok(CommitFate::OffBranch),
            Relation::Unknown => Err(self.no_revision(head).into()),
        }
    }
}

fn parse_log(text: &str) -> Result<Vec<OwnCommit>, GitError> {
    let commits = text.split('\0').map(str::trim_start).filter(|record| !record.is_empty());
    let commits = commits.map(|record| {
        let (commit, message) = record.split_once('\n').unwrap_or((record, ""));
        let commit = Revision::parse(commit)
            .map_err(|error| GitError::Malformed { command: "log", what: error.to_string() })?;
        Ok(OwnCommit { commit, message: message.to_owned() })
    });
    commits.collect()
}

fn is_read(path: &RelPath) -> bool {
    let path = path.as_str();
    READ.iter().any(|read| if read.ends_with('/') { path.starts_with(read) } else { path == *read })
}
