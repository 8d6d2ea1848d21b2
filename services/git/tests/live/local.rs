//! Mechanics: relations, differences, files, commits.

use bytes::Bytes;
use fabrique_core::relation::Relation;
use fabrique_ports::Fault;
use fabrique_ports::deployments::{CommitFate, Deployments, NewCommit, PushOutcome};
use fabrique_ports::source::{ChangedPaths, FileKind, SourceHistory};

use crate::support::{Folder, path, repo, revision, texts, write, writing};

fn these(paths: &[&str]) -> ChangedPaths {
    ChangedPaths::These(paths.iter().map(|path| (*path).to_owned()).collect())
}

#[tokio::test]
async fn relations_of_fifty_commits_a_branch_and_a_force_push() {
    let forge = Folder::new("sha1").await;
    let (history, app) = (forge.history(), repo("atlas/app"));
    let first = forge.commit(&[("a", "0")]).await;
    let mut last = first.clone();
    for number in 1..50 {
        last = forge.commit(&[("a", &number.to_string())]).await;
    }
    assert_eq!(history.relation(&app, &first, &last).await.unwrap(), Relation::Ahead);
    assert_eq!(history.relation(&app, &last, &first).await.unwrap(), Relation::Behind);
    assert_eq!(history.relation(&app, &last, &last).await.unwrap(), Relation::Same);

    forge.work.rewind(1).await.unwrap();
    let rewritten = forge.commit(&[("b", "1")]).await;
    assert_eq!(history.relation(&app, &last, &rewritten).await.unwrap(), Relation::Diverged);
    forge.work.branch("feature/x").await.unwrap();
    let branched = forge.commit(&[("c", "1")]).await;
    assert_eq!(history.relation(&app, &rewritten, &branched).await.unwrap(), Relation::Ahead);
    // A branch in the place of a folder of branches.
    forge.work.delete_branch("feature/x").await.unwrap();
    forge.work.git(&["branch", "-m", "feature"]).await.unwrap();
    let renamed = forge.commit(&[("c", "2")]).await;
    assert_eq!(history.relation(&app, &branched, &renamed).await.unwrap(), Relation::Ahead);
}

#[tokio::test]
async fn what_is_local_needs_no_forge() {
    let forge = Folder::new("sha1").await;
    let (history, app) = (forge.history(), repo("atlas/app"));
    let one = forge.commit(&[("a", "1")]).await;
    let two = forge.commit(&[("a", "2")]).await;
    assert_eq!(history.relation(&app, &one, &two).await.unwrap(), Relation::Ahead);
    std::fs::rename(forge.bare(), forge.state().join("away")).unwrap();
    assert_eq!(history.relation(&app, &two, &one).await.unwrap(), Relation::Behind);
    assert_eq!(history.changed_paths(&app, &one, &two).await.unwrap(), these(&["a"]));
    // The spelling of the name makes no second clone.
    assert_eq!(history.relation(&repo("Atlas/App"), &one, &two).await.unwrap(), Relation::Ahead);
}

#[tokio::test]
async fn a_revision_that_no_branch_holds_is_fetched_by_id_and_a_lost_one_is_unknown() {
    let forge = Folder::new("sha1").await;
    let (history, app) = (forge.history(), repo("atlas/app"));
    let base = forge.commit(&[("a", "1")]).await;
    let lost = forge.commit(&[("a", "2")]).await;
    forge.work.rewind(1).await.unwrap();
    let head = forge.commit(&[("a", "3")]).await;
    // The clone is made only now, from branches that do not hold it.
    assert_eq!(history.relation(&app, &lost, &head).await.unwrap(), Relation::Diverged);

    let nowhere = revision(&"ab".repeat(20));
    assert_eq!(history.relation(&app, &nowhere, &head).await.unwrap(), Relation::Unknown);
    assert_eq!(history.relation(&app, &head, &revision(&"ab".repeat(32))).await.unwrap(), Relation::Unknown);
    assert_eq!(history.changed_paths(&app, &nowhere, &head).await.unwrap(), ChangedPaths::CannotTell);
    assert_eq!(history.commit_time(&app, &nowhere).await.unwrap_err().fault(), Fault::Unexpected);
    let tree = revision(&forge.work.git(&["rev-parse", "HEAD^{tree}"]).await.unwrap());
    assert_eq!(history.relation(&app, &tree, &head).await.unwrap(), Relation::Unknown, "a tree is no commit");

    forge.forget().await;
    let fresh = fabrique_git::GitHistory::new({
        let mut config = forge.config();
        config.state_dir = forge.state().join("fresh");
        config
    });
    let fresh = fresh.unwrap();
    assert_eq!(fresh.relation(&app, &lost, &head).await.unwrap(), Relation::Unknown);
    assert_eq!(fresh.relation(&app, &base, &head).await.unwrap(), Relation::Ahead);
}

#[tokio::test]
async fn differences_are_of_trees_whatever_the_history() {
    let forge = Folder::new("sha1").await;
    let (history, app) = (forge.history(), repo("atlas/app"));
    let one = forge.commit(&[("old name", "a long enough content to be a rename\n"), ("kept", "1")]).await;
    forge.work.git(&["mv", "old name", "new\nname"]).await.unwrap();
    let renamed = forge.commit(&[("\u{e9}t\u{e9}\t\"x\"", "1")]).await;
    let both = these(&["new\nname", "old name", "\u{e9}t\u{e9}\t\"x\""]);
    assert_eq!(history.changed_paths(&app, &one, &renamed).await.unwrap(), both);
    assert_eq!(history.changed_paths(&app, &renamed, &one).await.unwrap(), both);

    forge.work.rewind(1).await.unwrap();
    let rewritten = forge.commit(&[("kept", "2")]).await;
    let all = these(&["kept", "new\nname", "old name", "\u{e9}t\u{e9}\t\"x\""]);
    assert_eq!(history.changed_paths(&app, &renamed, &rewritten).await.unwrap(), all);
    assert_eq!(history.changed_paths(&app, &one, &one).await.unwrap(), these(&[]));
}

#[tokio::test]
async fn too_many_paths_cannot_be_told() {
    let forge = Folder::new("sha1").await;
    let mut config = forge.config();
    config.limits.changed_paths = 10;
    let history = fabrique_git::GitHistory::new(config).unwrap();
    let one = forge.commit(&[("a", "1")]).await;
    let names: Vec<String> = (0..11).map(|n| format!("d/{n}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let ten = forge.commit(&files[..10]).await;
    let eleven = forge.commit(&files).await;
    let app = repo("atlas/app");
    assert!(matches!(history.changed_paths(&app, &one, &ten).await.unwrap(), ChangedPaths::These(_)));
    assert_eq!(history.changed_paths(&app, &one, &eleven).await.unwrap(), ChangedPaths::CannotTell);
}

#[tokio::test]
async fn a_directory_is_read_with_kinds_and_bytes() {
    let forge = Folder::new("sha1").await;
    let (history, app) = (forge.history(), repo("atlas/app"));
    forge.write_program("deploy/run.sh", "#!/bin/sh\n").await;
    std::os::unix::fs::symlink("../base", forge.work.path().join("deploy/link")).unwrap();
    forge.work.write("deploy/a b/crlf.yaml", "a: 1\r\n\0").await.unwrap();
    forge.work.write("deployed", "another").await.unwrap();
    forge.work.git(&["add", "."]).await.unwrap();
    let submodule = format!("160000,{},deploy/sub", "ab".repeat(20));
    forge.work.git(&["update-index", "--add", "--cacheinfo", &submodule]).await.unwrap();
    forge.work.git(&["commit", "--quiet", "-m", "Files"]).await.unwrap();
    forge.work.push().await.unwrap();
    let head = revision(&forge.work.head().await.unwrap());

    let files = history.read_directory(&app, &head, &path("deploy")).await.unwrap().unwrap();
    let seen: Vec<_> = files.iter().map(|f| (f.path.as_str(), f.kind, &f.content[..])).collect();
    assert_eq!(
        seen,
        [
            ("a b/crlf.yaml", FileKind::Regular, &b"a: 1\r\n\0"[..]),
            ("link", FileKind::Symlink, b"../base"),
            ("run.sh", FileKind::Executable, b"#!/bin/sh\n"),
            ("sub", FileKind::Submodule, b""),
        ]
    );
    assert_eq!(history.read_directory(&app, &head, &path("depl")).await.unwrap(), None);
    assert_eq!(history.read_directory(&app, &head, &path("deployed")).await.unwrap(), None, "a file");
    assert_eq!(history.read_directory(&app, &head, &path(":(glob)*")).await.unwrap(), None);
    assert_eq!(
        history
            .read_directory(&app, &head, &fabrique_core::id::RelPath::root())
            .await
            .unwrap()
            .unwrap()
            .len(),
        5
    );
    let time = forge.work.git(&["log", "-1", "--format=%ct"]).await.unwrap();
    assert_eq!(history.commit_time(&app, &head).await.unwrap().to_string(), time);
}

#[tokio::test]
async fn a_directory_beyond_the_bounds_or_with_a_hostile_name_is_an_error() {
    let forge = Folder::new("sha1").await;
    let mut config = forge.config();
    config.limits.directory_files = 2;
    config.limits.directory_bytes = 100;
    let history = fabrique_git::GitHistory::new(config).unwrap();
    let big = "x".repeat(101);
    let head = forge
        .commit(&[
            ("many/1", ""),
            ("many/2", ""),
            ("many/3", ""),
            ("big/1", &big),
            ("odd/a\nb", ""),
            ("ok/1", ""),
        ])
        .await;
    let app = repo("atlas/app");
    for directory in ["many", "big", "odd"] {
        let error = history.read_directory(&app, &head, &path(directory)).await.unwrap_err();
        assert!(error.fault() == Fault::Unexpected && !error.to_string().contains('\n'), "{error}");
        assert!(error.is_of_content(), "another revision helps, and nothing else: {error}");
    }
    // Nothing of a directory is listed to learn that it is no file.
    let paths = ["many", "ok", "ok/1", "big", "nowhere"].map(path);
    let files = history.read_files(&app, &head, &paths).await.unwrap();
    assert_eq!(files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["ok/1"]);
    for directory in ["many", "big", "odd"] {
        assert_eq!(history.read_file(&app, &head, &path(directory)).await.unwrap(), None);
    }
    let error = history.read_file(&app, &head, &path("big/1")).await.unwrap_err();
    assert!(error.is_of_content(), "{error}");
    assert_eq!(history.read_directory(&app, &head, &path("ok")).await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn a_sha256_repository_is_read_and_written() {
    let forge = Folder::new("sha256").await;
    let one = forge.commit(&[("apps/a", "1")]).await;
    let two = forge.commit(&[("apps/a", "2")]).await;
    assert_eq!(one.as_str().len(), 64);
    assert_eq!(forge.history().relation(&repo("atlas/app"), &one, &two).await.unwrap(), Relation::Ahead);
    let deployments = forge.deployments();
    let snapshot = deployments.snapshot().await.unwrap();
    assert_eq!(snapshot.commit, two);
    let (_, outcome) = write(&deployments, &snapshot, &[("apps/a", "3")]).await;
    assert_eq!(outcome, PushOutcome::Pushed);
    assert_eq!(texts(&deployments.snapshot().await.unwrap())["apps/a"], "3");
}

#[tokio::test]
async fn commits_change_what_they_say_and_nothing_else() {
    let forge = Folder::new("sha1").await;
    forge.write_program("apps/x/run.sh", "1").await;
    let base = forge.commit(&[("apps/x/old", "1"), ("README", "r"), ("contract.yaml", "c")]).await;
    let deployments = forge.deployments();
    let snapshot = deployments.snapshot().await.unwrap();
    assert_eq!(texts(&snapshot).keys().collect::<Vec<_>>(), ["apps/x/old", "apps/x/run.sh", "contract.yaml"]);

    let odd = "apps/x/\"quoted\" \u{e9}";
    let mut second = writing("Second\n\nChannel: image", &[("apps/x/old/now-a-directory", "")]);
    second.changes.insert(path("apps/x/old"), None);
    let commits = [writing("First", &[("apps/x/run.sh", "2"), (odd, "\r\n")]), second];
    let prepared = deployments.prepare(&base, &commits).await.unwrap();
    assert_eq!(deployments.snapshot().await.unwrap().commit, base, "nothing is pushed yet");
    assert_eq!(deployments.fate(&prepared.commits[0], &base).await.unwrap(), CommitFate::OffBranch);
    assert_eq!(deployments.push(&prepared).await.unwrap(), PushOutcome::Pushed);
    assert_eq!(deployments.push(&prepared).await.unwrap(), PushOutcome::Pushed, "it is there already");

    forge.work.pull().await.unwrap();
    let log = forge.work.git(&["log", "--format=%H|%an|%ce|%B", "-2"]).await.unwrap();
    let [one, two] = &prepared.commits[..] else { panic!("two commits") };
    assert_eq!(
        log,
        format!(
            "{two}|fabrique|fabrique@example.org|Second\n\nChannel: image\n\n{one}|fabrique|fabrique@example.org|First"
        )
    );
    let listing = forge.work.git(&["ls-tree", "-r", "-z", "HEAD"]).await.unwrap();
    let mode_and_path = |line: &str| {
        let (head, path) = line.split_once('\t').unwrap();
        format!("{} {path}", &head[..6])
    };
    let tree: Vec<String> = listing.trim_end_matches('\0').split('\0').map(mode_and_path).collect();
    assert_eq!(
        tree,
        [
            "100644 README",
            &format!("100644 {odd}"),
            "100644 apps/x/old/now-a-directory",
            "100755 apps/x/run.sh",
            "100644 contract.yaml"
        ]
    );
    let head = deployments.snapshot().await.unwrap().commit;
    for commit in &prepared.commits {
        assert_eq!(deployments.fate(commit, &head).await.unwrap(), CommitFate::OnBranch);
    }
    let changed = deployments.changed_since(&base, &head).await.unwrap().unwrap();
    assert_eq!(changed, [odd, "apps/x/old", "apps/x/old/now-a-directory", "apps/x/run.sh"]);
    assert_eq!(deployments.changed_since(&revision(&"ab".repeat(20)), &head).await.unwrap(), None);
    forge.work.git(&["--git-dir", &forge.bare().to_string_lossy(), "fsck", "--strict"]).await.unwrap();
}

#[tokio::test]
async fn every_place_that_fabrique_writes_to_is_committed_and_read_back() {
    let forge = Folder::new("sha1").await;
    let base = forge.commit(&[("README", "r")]).await;
    let deployments = forge.deployments();
    let files = [
        ("applications/citation-prod.yaml", "application"),
        ("apps/citation/prod/composition.yaml", "composition"),
        ("buckets/prod/corpus.yaml", "bucket"),
        ("databases/prod/corpus.yaml", "database"),
        ("migrations/prod/citation/migrations.yaml", "migrations"),
        ("volumes/prod/corpus.yaml", "volume"),
    ];
    let prepared = deployments.prepare(&base, &[writing("Deploy", &files)]).await.unwrap();
    assert_eq!(deployments.push(&prepared).await.unwrap(), PushOutcome::Pushed);
    let read = texts(&deployments.snapshot().await.unwrap());
    assert_eq!(read, files.map(|(file, text)| (file.to_owned(), text.to_owned())).into());
}

#[tokio::test]
async fn a_commit_that_must_not_be_made_is_refused() {
    let forge = Folder::new("sha1").await;
    std::fs::create_dir(forge.work.path().join("apps")).unwrap();
    std::os::unix::fs::symlink("/etc", forge.work.path().join("apps/link")).unwrap();
    let base = forge.commit(&[("apps/a", "1"), ("README", "r")]).await;
    let deployments = forge.deployments();
    let deleting = NewCommit { changes: [(path("apps/nope"), None)].into(), message: "Delete".to_owned() };
    for (what, commits) in [
        ("no commit", vec![]),
        ("an equal tree", vec![writing("Same", &[("apps/a", "1")])]),
        (
            "an equal tree after one that differs",
            vec![writing("1", &[("apps/a", "2")]), writing("2", &[("apps/a", "2")])],
        ),
        ("no change", vec![NewCommit { changes: [].into(), message: "Empty".to_owned() }]),
        ("a file that is not there", vec![deleting]),
        ("below a symlink", vec![writing("x", &[("apps/link/passwd", "x")])]),
        ("over a symlink", vec![writing("x", &[("apps/link", "x")])]),
        ("outside", vec![writing("x", &[("README", "x")])]),
        (".git", vec![writing("x", &[("apps/.git/config", "x")])]),
        ("no message", vec![writing(" \n", &[("apps/a", "3")])]),
    ] {
        let refused = deployments.prepare(&base, &commits).await;
        assert!(
            refused.as_ref().is_err_and(|error| error.fault() == Fault::Unexpected),
            "{what}: {refused:?}"
        );
    }
    let gone = deployments.prepare(&revision(&"ab".repeat(20)), &[writing("x", &[("apps/a", "2")])]).await;
    assert_eq!(gone.unwrap_err().fault(), Fault::Unexpected);
    let content = Bytes::from("from fast-import's point of view\ndone\nreset refs/heads/main\n");
    let hostile =
        NewCommit { changes: [(path("apps/a"), Some(content.clone()))].into(), message: "x".to_owned() };
    let prepared = deployments.prepare(&base, &[hostile]).await.unwrap();
    assert_eq!(deployments.push(&prepared).await.unwrap(), PushOutcome::Pushed);
    assert_eq!(deployments.snapshot().await.unwrap().files[&path("apps/a")].content, content);
}

#[tokio::test]
async fn an_unchanged_head_shares_its_snapshot() {
    let forge = Folder::new("sha1").await;
    forge.commit(&[("apps/a", "1")]).await;
    let deployments = forge.deployments();
    let (one, two) = tokio::join!(deployments.snapshot(), deployments.snapshot());
    assert_eq!(one.as_ref().unwrap().commit, two.unwrap().commit);
    let three = deployments.snapshot().await.unwrap();
    assert!(std::sync::Arc::ptr_eq(&three.files, &deployments.snapshot().await.unwrap().files));
    forge.commit(&[("apps/a", "2"), ("apps/b/\nodd", "left out")]).await;
    assert_eq!(texts(&deployments.snapshot().await.unwrap()), [("apps/a".to_owned(), "2".to_owned())].into());
}
