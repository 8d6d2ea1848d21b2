//! The apps' repositories.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use fabrique_core::id::{RelPath, RepoName, Revision};
use fabrique_core::relation::Relation;
use fabrique_ports::PortResult;
use fabrique_ports::source::{ChangedPaths, SourceFile, SourceHistory};

use crate::command::Git;
use crate::config::GitConfig;
use crate::error::GitError;
use crate::mirror::{Mirror, Read};
use crate::objects::{Entry, committer_time, content_of, contents, listing_bound, parse_tree};
use crate::remote::Remote;

/// How many files are asked for with one call: their paths are its arguments.
const AT_ONCE: usize = 200;

/// What of some places is listed.
#[derive(Debug, Clone, Copy)]
enum Depth {
    /// The files at the places themselves. What is below one that is a directory is not even looked at.
    At,
    /// Every file below them.
    Below,
}

/// Reads the apps' repositories from clones of them, one each. What is local is answered without the forge.
#[derive(Debug)]
pub struct GitHistory {
    git: Git,
    config: GitConfig,
    mirrors: Mutex<BTreeMap<String, Arc<Mirror>>>,
}

impl GitHistory {
    /// Checks the configuration and makes the state directory.
    ///
    /// # Errors
    /// [`GitError::Config`] or [`GitError::State`].
    pub fn new(config: GitConfig) -> Result<Self, GitError> {
        prepare_state(&config)?;
        Ok(Self { git: Git::new(&config), config, mirrors: Mutex::new(BTreeMap::new()) })
    }

    fn mirror(&self, repo: &RepoName) -> Arc<Mirror> {
        // Gitea compares names without case, so two spellings are one clone.
        let name = repo.to_string().to_ascii_lowercase();
        let mut mirrors = self.mirrors.lock().unwrap_or_else(PoisonError::into_inner);
        let mirror = mirrors.entry(name.clone()).or_insert_with(|| {
            let remote = Remote::new(&self.config.base_url, repo, self.config.read.of(repo));
            let directory = self.config.state_dir.join("sources").join(format!("{name}.git"));
            let refspec = "+refs/heads/*:refs/heads/*".to_owned();
            let git = self.git.clone();
            Arc::new(Mirror::new(git, repo.clone(), remote, refspec, directory, &self.config))
        });
        Arc::clone(mirror)
    }

    async fn files(
        &self,
        mirror: &Mirror,
        revision: &Revision,
        directory: &RelPath,
    ) -> Result<Option<Vec<SourceFile>>, GitError> {
        let prefix = if directory.is_root() { String::new() } else { format!("{directory}/") };
        let entries = self.listed(mirror, revision, &[&prefix], Depth::Below).await?;
        if entries.is_empty() && !directory.is_root() {
            return Ok(None);
        }
        self.read(mirror, &entries, &prefix).await.map(Some)
    }

    async fn file(
        &self,
        mirror: &Mirror,
        revision: &Revision,
        path: &RelPath,
    ) -> Result<Option<SourceFile>, GitError> {
        Ok(self.some(mirror, revision, std::slice::from_ref(path)).await?.pop())
    }

    /// The files at `paths`, which may be more than the bounds allow together.
    async fn many(
        &self,
        mirror: &Mirror,
        revision: &Revision,
        paths: &[RelPath],
    ) -> Result<Vec<SourceFile>, GitError> {
        let mut files = Vec::new();
        for paths in paths.chunks(AT_ONCE) {
            match self.some(mirror, revision, paths).await {
                Ok(some) => files.extend(some),
                // The bounds are for each file.
                Err(GitError::TooBig { .. }) => {
                    for path in paths {
                        files.extend(self.file(mirror, revision, path).await?);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }

    /// The files at `paths`, within the bounds all together.
    async fn some(
        &self,
        mirror: &Mirror,
        revision: &Revision,
        paths: &[RelPath],
    ) -> Result<Vec<SourceFile>, GitError> {
        let places: Vec<&str> = paths.iter().map(RelPath::as_str).collect();
        let mut entries = self.listed(mirror, revision, &places, Depth::At).await?;
        let wanted: BTreeSet<&[u8]> = places.iter().map(|place| place.as_bytes()).collect();
        entries.retain(|entry| wanted.contains(&entry.path[..]));
        self.read(mirror, &entries, "").await
    }

    /// The files at or below `places`, within the bounds on count and size; those of the whole tree when there is only an
    /// empty one.
    async fn listed(
        &self,
        mirror: &Mirror,
        revision: &Revision,
        places: &[&str],
        depth: Depth,
    ) -> Result<Vec<Entry>, GitError> {
        let mut args = vec!["ls-tree", "-z", "-l", "--full-tree"];
        args.extend(matches!(depth, Depth::Below).then_some("-r"));
        args.extend([revision.as_str(), "--"]);
        args.extend(places.iter().filter(|place| !place.is_empty()));
        let limits = &self.config.limits;
        let (files, bytes) = (limits.directory_files, limits.directory_bytes);
        let what = match places {
            [] | [""] => ".".to_owned(),
            [place] => place.trim_end_matches('/').to_owned(),
            several => format!("{} files", several.len()),
        };
        let too_big = || GitError::TooBig { what: what.clone(), files, bytes };
        let call = mirror.call(&args).limit(listing_bound(files));
        let output = match mirror.read(&[revision], &call).await {
            Ok(Read::Done(output)) => output,
            Ok(Read::Missing) => return Err(no_revision(mirror, revision)),
            Err(GitError::TooMuchOutput { .. }) => return Err(too_big()),
            Err(error) => return Err(error),
        };
        let entries = parse_tree(&output.stdout)?;
        if entries.len() > files || entries.iter().map(|entry| entry.size).sum::<u64>() > bytes {
            return Err(too_big());
        }
        Ok(entries)
    }

    /// The entries with their contents, by path after `prefix`.
    async fn read(
        &self,
        mirror: &Mirror,
        entries: &[Entry],
        prefix: &str,
    ) -> Result<Vec<SourceFile>, GitError> {
        let contents = contents(mirror, &entries.iter().collect::<Vec<_>>()).await?;
        let file = |entry: &Entry| {
            let text = String::from_utf8_lossy(&entry.path);
            let path = text.strip_prefix(prefix).unwrap_or(&text);
            let path =
                RelPath::parse(path).map_err(|_| GitError::HostilePath(text.escape_debug().to_string()))?;
            Ok(SourceFile { path, kind: entry.kind, content: content_of(entry, &contents)? })
        };
        entries.iter().map(file).collect()
    }
}

#[async_trait]
impl SourceHistory for GitHistory {
    async fn prefetch(&self, repo: &RepoName, revision: &Revision) -> PortResult<()> {
        let mirror = self.mirror(repo);
        Ok(mirror.healing(|| mirror.prefetch(revision)).await.map(drop)?)
    }

    async fn relation(&self, repo: &RepoName, from: &Revision, to: &Revision) -> PortResult<Relation> {
        let mirror = self.mirror(repo);
        let relation = mirror.relation(from, to).await?;
        mirror.tidy();
        Ok(relation)
    }

    async fn changed_paths(
        &self,
        repo: &RepoName,
        from: &Revision,
        to: &Revision,
    ) -> PortResult<ChangedPaths> {
        let bound = self.config.limits.changed_paths;
        let mirror = self.mirror(repo);
        let paths = mirror.changed_paths(from, to, bound).await?;
        mirror.tidy();
        Ok(paths.map_or(ChangedPaths::CannotTell, ChangedPaths::These))
    }

    async fn commit_time(&self, repo: &RepoName, revision: &Revision) -> PortResult<i64> {
        let mirror = self.mirror(repo);
        let call = mirror.call(&["cat-file", "commit", revision.as_str()]);
        let revisions = [revision];
        match mirror.healing(|| mirror.read(&revisions, &call)).await? {
            Read::Done(output) => Ok(committer_time(&output.stdout).ok_or_else(|| GitError::Malformed {
                command: "cat-file",
                what: format!("commit {revision} has no committer"),
            })?),
            Read::Missing => Err(no_revision(&mirror, revision).into()),
        }
    }

    async fn read_directory(
        &self,
        repo: &RepoName,
        revision: &Revision,
        directory: &RelPath,
    ) -> PortResult<Option<Vec<SourceFile>>> {
        let mirror = self.mirror(repo);
        Ok(mirror.healing(|| self.files(&mirror, revision, directory)).await?)
    }

    async fn read_file(
        &self,
        repo: &RepoName,
        revision: &Revision,
        path: &RelPath,
    ) -> PortResult<Option<SourceFile>> {
        let mirror = self.mirror(repo);
        Ok(mirror.healing(|| self.file(&mirror, revision, path)).await?)
    }

    async fn read_files(
        &self,
        repo: &RepoName,
        revision: &Revision,
        paths: &[RelPath],
    ) -> PortResult<Vec<SourceFile>> {
        let mirror = self.mirror(repo);
        Ok(mirror.healing(|| self.many(&mirror, revision, paths)).await?)
    }

    async fn ancestors(&self, repo: &RepoName, head: &Revision, prefix: &str) -> PortResult<Vec<Revision>> {
        let mirror = self.mirror(repo);
        let ancestors = mirror.healing(|| mirror.ancestors(head, prefix)).await?;
        Ok(ancestors.ok_or_else(|| no_revision(&mirror, head))?)
    }
}

/// Makes the directories that everything else takes for granted.
pub(crate) fn prepare_state(config: &GitConfig) -> Result<(), GitError> {
    config.check()?;
    let path = &config.state_dir;
    std::fs::create_dir_all(path).map_err(|source| GitError::State { path: path.clone(), source })
}

fn no_revision(mirror: &Mirror, revision: &Revision) -> GitError {
    GitError::NoRevision { repo: mirror.repo().clone(), revision: revision.clone() }
}
