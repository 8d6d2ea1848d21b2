//! Against Gitea: who may do what, and what it says when they may not.

use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabrique_bed::GitRepo;
use fabrique_core::id::Revision;
use fabrique_core::relation::Relation;
use fabrique_git::{GitDeployments, GitHistory};
use fabrique_ports::Fault;
use fabrique_ports::deployments::{CommitFate, Deployments, OwnCommit, PushOutcome};
use fabrique_ports::source::SourceHistory;
use secrecy::SecretString;
use serde_json::json;

use crate::support::{Apps, config, gitea, path, repo, revision, texts, write, writing};

#[tokio::test]
async fn a_private_source_is_read_with_its_organisations_token_and_not_without() {
    let gitea = gitea().await;
    gitea.create_org("source").await.unwrap();
    gitea.create_repo("source", "app", true).await.unwrap();
    let work = GitRepo::clone(&gitea.clone_url_with_token("source", "app")).await.unwrap();
    let one = revision(&work.head().await.unwrap());
    work.write("deploy/x.yaml", "x: 1\n").await.unwrap();
    let two = revision(&work.commit("Deploy").await.unwrap());
    work.push().await.unwrap();
    gitea.create_user("source-reader").await.unwrap();
    gitea.add_collaborator("source", "app", "source-reader", "read").await.unwrap();
    let token = gitea.create_token("source-reader", &["read:repository"]).await.unwrap();

    let app = repo("source/app");
    for (tokens, allowed) in [
        (vec![("Source", token.as_str())], true),
        (vec![("other", &token)], false),
        (vec![("source", "wrong")], false),
    ] {
        let state = tempfile::tempdir().unwrap();
        let mut config = config(state.path(), &gitea.base_url(), "source/apps", None);
        config.read.by_org =
            tokens.iter().map(|(org, token)| ((*org).to_owned(), SecretString::from(*token))).collect();
        let history = GitHistory::new(config).unwrap();
        let relation = history.relation(&app, &one, &two).await;
        if allowed {
            assert_eq!(relation.unwrap(), Relation::Ahead);
            let files = history.read_directory(&app, &two, &path("deploy")).await.unwrap().unwrap();
            assert_eq!(&files[0].content[..], b"x: 1\n");
            let file = history.read_file(&app, &two, &path("deploy/x.yaml")).await.unwrap().unwrap();
            assert_eq!((file.path.as_str(), &file.content[..]), ("deploy/x.yaml", &b"x: 1\n"[..]));
            for absent in ["deploy", "deploy/x", "deploy/x.yaml/y"] {
                let file = history.read_file(&app, &two, &path(absent)).await.unwrap();
                assert_eq!(file, None, "{absent} is no file");
            }
        } else {
            let error = relation.unwrap_err();
            assert_eq!(error.fault(), Fault::Denied, "{error}");
        }
    }
}

#[tokio::test]
async fn several_files_are_read_at_once_and_those_that_are_not_there_left_out() {
    const MANY: usize = 205;
    let gitea = gitea().await;
    let apps = Apps::new(gitea, "several").await;
    let names: Vec<String> = (0..MANY).map(|number| format!("apps/{number:03}/x.yaml")).collect();
    for name in &names {
        apps.work.write(name, format!("x: {name}\n")).await.unwrap();
    }
    let head = revision(&apps.work.commit("Many").await.unwrap());
    apps.work.push().await.unwrap();
    let (app, mut asked) = (repo("several/apps"), names.iter().map(|name| path(name)).collect::<Vec<_>>());
    asked.extend(["apps", "apps/000", "apps/000/x.yaml/y", "absent"].map(path));
    // Together they are more than the second bound, each alone is not.
    for (bytes, count) in [(16 << 20, MANY), (30, 3)] {
        let state = tempfile::tempdir().unwrap();
        let mut config = config(state.path(), &gitea.base_url(), "several/apps", Some(gitea.admin_token()));
        config.limits.directory_bytes = bytes;
        let history = GitHistory::new(config).unwrap();
        let asked =
            if count == MANY { asked.clone() } else { names[..count].iter().map(|n| path(n)).collect() };
        let files = history.read_files(&app, &head, &asked).await.unwrap();
        let read: Vec<(&str, &[u8])> = files.iter().map(|f| (f.path.as_str(), &f.content[..])).collect();
        assert_eq!(read.len(), count);
        for ((path, content), name) in read.into_iter().zip(&names) {
            assert_eq!((path, content), (name.as_str(), format!("x: {name}\n").as_bytes()));
        }
    }
}

#[tokio::test]
async fn a_commit_that_only_the_forge_remembers_is_fetched_by_id() {
    let gitea = gitea().await;
    let apps = Apps::new(gitea, "remembers").await;
    let base = revision(&apps.work.head().await.unwrap());
    let lost = revision(&apps.work.commit("To be lost").await.unwrap());
    apps.work.push().await.unwrap();
    apps.work.rewind(1).await.unwrap();
    apps.work.push_force().await.unwrap();
    let state = tempfile::tempdir().unwrap();
    let config = config(state.path(), &gitea.base_url(), "remembers/apps", Some(gitea.admin_token()));
    let history = GitHistory::new(config).unwrap();
    let app = repo("remembers/apps");
    assert_eq!(history.relation(&app, &lost, &base).await.unwrap(), Relation::Behind);
    let nowhere = revision(&"ab".repeat(20));
    assert_eq!(history.relation(&app, &nowhere, &base).await.unwrap(), Relation::Unknown);
}

#[tokio::test]
async fn the_beginning_of_an_id_names_ancestors_of_the_head_and_nothing_else() {
    let gitea = gitea().await;
    let apps = Apps::new(gitea, "pinned").await;
    let first = revision(&apps.work.head().await.unwrap());
    let root = revision(&apps.work.git(&["rev-list", "--max-parents=0", "HEAD"]).await.unwrap());
    apps.work.write("a", "a file\n").await.unwrap();
    let second = revision(&apps.work.commit("Second").await.unwrap());
    apps.work.push().await.unwrap();
    let state = tempfile::tempdir().unwrap();
    let config = config(state.path(), &gitea.base_url(), "pinned/apps", Some(gitea.admin_token()));
    let history = GitHistory::new(config).unwrap();
    let app = repo("pinned/apps");
    let found = async |head: &Revision, prefix: &str| history.ancestors(&app, head, prefix).await.unwrap();
    let beginning = |revision: &Revision| revision.as_str()[..7].to_owned();

    let newest = [second.clone(), first.clone(), root.clone()];
    let of_first = found(&second, &beginning(&first)).await;
    assert_eq!(
        of_first,
        [first.clone(), second.clone(), root.clone()],
        "the one that begins so, then the newest"
    );
    assert_eq!(found(&second, &beginning(&second)).await, newest);
    // The second is in the clone, and no ancestor of the first.
    assert_eq!(found(&first, &beginning(&second)).await, [first.clone(), root.clone()]);
    // So is a file.
    let blob = "02f6335";
    assert_eq!(found(&second, blob).await, newest, "an object that is no commit");
    assert_eq!(found(&second, "abcdef0").await, newest, "nothing begins so");
    let nowhere = revision(&"ab".repeat(20));
    let error = history.ancestors(&app, &nowhere, "abababa").await.unwrap_err();
    assert!(error.to_string().contains(nowhere.short()), "{error}");
}

#[tokio::test]
async fn a_push_is_refused_by_the_lease_after_somebody_elses_and_after_a_reset() {
    let gitea = gitea().await;
    let apps = Apps::new(gitea, "lease").await;
    let snapshot = apps.deployments.snapshot().await.unwrap();
    let (prepared, outcome) = write(&apps.deployments, &snapshot, &[("apps/a", "1")]).await;
    assert_eq!(outcome, PushOutcome::Pushed);
    assert_eq!(apps.head().await, prepared.commits[0]);

    // Somebody else pushes between our look and our push.
    let snapshot = apps.deployments.snapshot().await.unwrap();
    apps.work.write("apps/b", "theirs").await.unwrap();
    apps.work.commit("Theirs").await.unwrap();
    apps.work.push().await.unwrap();
    let theirs = apps.head().await;
    let (lost, outcome) = write(&apps.deployments, &snapshot, &[("apps/a", "2")]).await;
    assert_eq!(outcome, PushOutcome::Moved);
    assert_eq!(apps.head().await, theirs);
    let snapshot = apps.deployments.snapshot().await.unwrap();
    assert_eq!(texts(&snapshot)["apps/b"], "theirs");
    assert_eq!(
        apps.deployments.fate(&lost.commits[0], &snapshot.commit).await.unwrap(),
        CommitFate::OffBranch
    );

    // An operator resets the branch: a push without a lease would bring the dropped commit back.
    apps.work.rewind(1).await.unwrap();
    apps.work.push_force().await.unwrap();
    let reset = apps.head().await;
    let (_, outcome) = write(&apps.deployments, &snapshot, &[("apps/a", "3")]).await;
    assert_eq!(outcome, PushOutcome::Moved);
    assert_eq!(apps.head().await, reset);

    // The branch is gone.
    let snapshot = apps.deployments.snapshot().await.unwrap();
    assert_eq!(snapshot.commit, reset);
    let prepared = apps.deployments.prepare(&reset, &[writing("x", &[("apps/a", "4")])]).await.unwrap();
    apps.work.branch("other").await.unwrap();
    apps.work.push().await.unwrap();
    gitea.api("PATCH", "/repos/lease/apps", Some(json!({ "default_branch": "other" }))).await.unwrap();
    apps.work.delete_branch("main").await.unwrap();
    assert_eq!(apps.deployments.push(&prepared).await.unwrap(), PushOutcome::Moved);
    let error = apps.deployments.snapshot().await.unwrap_err();
    assert!(error.fault() == Fault::Denied && error.to_string().contains("no branch main"), "{error}");
}

/// Pushes once and expects a refusal that says this.
async fn refused(deployments: &GitDeployments, content: &str, words: &str) {
    let snapshot = deployments.snapshot().await.unwrap();
    let (_, outcome) = write(deployments, &snapshot, &[("apps/a", content)]).await;
    match outcome {
        PushOutcome::Refused(text) => assert!(text.contains(words), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_protected_branch_and_an_archived_repository_refuse_with_their_reason() {
    let gitea = gitea().await;
    let apps = Apps::new(gitea, "protected").await;
    let before = apps.head().await;
    let rule = json!({ "rule_name": "main", "branch_name": "main", "enable_push": false });
    gitea.api("POST", "/repos/protected/apps/branch_protections", Some(rule)).await.unwrap();
    refused(&apps.deployments, "1", "protected branch main").await;
    gitea.api("DELETE", "/repos/protected/apps/branch_protections/main", None).await.unwrap();
    gitea.api("PATCH", "/repos/protected/apps", Some(json!({ "archived": true }))).await.unwrap();
    refused(&apps.deployments, "2", "archived").await;
    assert_eq!(apps.head().await, before);
}

#[tokio::test]
async fn a_token_that_may_not_write_or_is_revoked_is_refused() {
    let gitea = gitea().await;
    let apps = Apps::new(gitea, "tokens").await;
    gitea.create_user("robot").await.unwrap();
    gitea.add_collaborator("tokens", "apps", "robot", "write").await.unwrap();
    let with = async |scopes: &[&str]| {
        let token = gitea.create_token("robot", scopes).await.unwrap();
        let state = tempfile::tempdir().unwrap();
        let mut config = apps.config.clone();
        config.state_dir = state.path().to_owned();
        config.apps.token = Some(SecretString::from(token));
        (state, GitDeployments::new(config).unwrap())
    };
    let (_reads, reader) = with(&["read:repository"]).await;
    refused(&reader, "1", "403").await;
    let (_writes, writer) = with(&["write:repository"]).await;
    let snapshot = writer.snapshot().await.unwrap();
    let (_, outcome) = write(&writer, &snapshot, &[("apps/a", "1")]).await;
    assert_eq!(outcome, PushOutcome::Pushed);

    let snapshot = writer.snapshot().await.unwrap();
    let prepared = writer.prepare(&snapshot.commit, &[writing("x", &[("apps/a", "2")])]).await.unwrap();
    gitea.api("DELETE", "/admin/users/robot?purge=true", None).await.unwrap();
    let outcome = writer.push(&prepared).await.unwrap();
    assert!(matches!(outcome, PushOutcome::Refused(_)), "{outcome:?}");
    assert_eq!(writer.snapshot().await.unwrap_err().fault(), Fault::Denied);
}

#[tokio::test]
async fn a_token_is_never_in_an_argument_a_file_or_an_error() {
    let gitea = gitea().await;
    let apps = Apps::new(gitea, "secrecy").await;
    let token = gitea.admin_token();
    let secrets = [token.to_owned(), STANDARD.encode(format!("fabrique:{token}"))];
    let pushing = async {
        for content in ["1", "2", "3"] {
            let snapshot = apps.deployments.snapshot().await.unwrap();
            let (_, outcome) = write(&apps.deployments, &snapshot, &[("apps/a", content)]).await;
            assert_eq!(outcome, PushOutcome::Pushed);
        }
    };
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let watched = secrets.clone();
    let state = apps.config.state_dir.display().to_string();
    let watcher = std::thread::spawn(move || watch_arguments(&is_done, &watched, &state));
    pushing.await;
    drop(done);
    let seen = watcher.join().unwrap();
    assert!(seen > 0, "none was seen");

    let mut wrong = apps.config.clone();
    wrong.state_dir = wrong.state_dir.join("wrong");
    wrong.apps.token = Some(SecretString::from("tok3n-that-is-wrong"));
    let error = GitDeployments::new(wrong.clone()).unwrap().snapshot().await.unwrap_err();
    for text in [format!("{error:?} {error}"), format!("{wrong:?} {:?}", apps.deployments)] {
        assert!(!text.contains("tok3n-that-is-wrong") && !secrets.iter().any(|s| text.contains(s)), "{text}");
    }
    no_file_holds(&apps.config.state_dir, &secrets);
}

/// Looks at every process's arguments until told to stop; how often it saw one of ours.
fn watch_arguments(stop: &std::sync::mpsc::Receiver<()>, secrets: &[String], state: &str) -> usize {
    let mut seen = 0;
    let start = Instant::now();
    while stop.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty)
        && start.elapsed() < Duration::from_secs(60)
    {
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(line) = std::fs::read(process.path().join("cmdline")) else { continue };
            let line = String::from_utf8_lossy(&line);
            // The test's own working copies carry the token in their URL.
            let ours = std::fs::read(process.path().join("environ")).unwrap_or_default();
            if !String::from_utf8_lossy(&ours).contains(state) {
                continue;
            }
            assert!(!secrets.iter().any(|secret| line.contains(secret)), "{line}");
            seen += 1;
        }
    }
    seen
}

fn no_file_holds(folder: &Path, secrets: &[String]) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            no_file_holds(&entry.path(), secrets);
        } else if let Ok(bytes) = std::fs::read(entry.path()) {
            let text = String::from_utf8_lossy(&bytes);
            assert!(!secrets.iter().any(|secret| text.contains(secret)), "{}", entry.path().display());
        }
    }
}

#[tokio::test]
async fn a_file_is_told_as_it_was_when_its_neighbours_changed_last() {
    let Apps { deployments, work, .. } = &Apps::new(gitea().await, "beside").await;
    let (prod, composition) = (path("apps/citation/prod"), path("apps/citation/prod/composition.yaml"));
    let then = async || {
        work.push().await.unwrap();
        let head = deployments.snapshot().await.unwrap().commit;
        let then = deployments.when_others_changed(&head, &prod, &composition).await.unwrap();
        then.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
    };
    let commit = async |file: &str, text: &str| {
        work.write(file, text).await.unwrap();
        work.commit(text).await.unwrap();
    };
    commit(composition.as_str(), "one").await;
    assert_eq!(then().await, None, "it has no neighbour");
    commit("apps/citation/prod/kustomization.yaml", "shows one").await;
    assert_eq!(then().await.as_deref(), Some("one"));
    commit(composition.as_str(), "two").await;
    commit("apps/citation/production/kustomization.yaml", "another folder").await;
    assert_eq!(then().await.as_deref(), Some("one"), "what it says now came later");

    // A merge brings its neighbour as late as the branch has it.
    work.branch("aside").await.unwrap();
    commit("apps/citation/prod/patch.yaml", "aside").await;
    work.branch("main").await.unwrap();
    commit(composition.as_str(), "three").await;
    work.git(&["merge", "--quiet", "--no-edit", "aside"]).await.unwrap();
    assert_eq!(then().await.as_deref(), Some("three"));
    let nowhere = revision(&"ab".repeat(20));
    let error = deployments.when_others_changed(&nowhere, &prod, &composition).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Unexpected);
}

#[tokio::test]
async fn what_automation_committed_in_a_folder_is_told_newest_first_and_nothing_of_people() {
    let Apps { deployments, work, .. } = &Apps::new(gitea().await, "own").await;
    // Automation is renamed for whoever honours this.
    work.write(".mailmap", "Ada <ada@example.org> <fabrique@example.org>\n").await.unwrap();
    work.commit("Rename").await.unwrap();
    work.push().await.unwrap();
    let mut own = Vec::new();
    for (number, app) in ["citation", "citations", "citation"].into_iter().enumerate() {
        let base = deployments.snapshot().await.unwrap().commit;
        let message = format!("Deploy {number}\n\nbody\n\nApp: {app}\n");
        let commit =
            writing(&message, &[(&format!("apps/{app}/prod/composition.yaml"), &number.to_string())]);
        let prepared = deployments.prepare(&base, &[commit]).await.unwrap();
        assert_eq!(deployments.push(&prepared).await.unwrap(), PushOutcome::Pushed);
        own.push(OwnCommit { commit: prepared.commits[0].clone(), message });
    }
    work.pull().await.unwrap();
    work.write("apps/citation/prod/composition.yaml", "by hand").await.unwrap();
    let head = revision(&work.commit("Go back by hand").await.unwrap());
    work.push().await.unwrap();

    let told = deployments.own_commits(&head, &path("apps/citation"), 10).await.unwrap();
    assert_eq!(told, [own[2].clone(), own[0].clone()]);
    assert_eq!(deployments.own_commits(&head, &path("apps/citation"), 1).await.unwrap(), [own[2].clone()]);
    assert_eq!(deployments.own_commits(&own[1].commit, &path("apps/citation"), 9).await.unwrap().len(), 1);
    assert_eq!(deployments.own_commits(&head, &path("apps/nobody"), 10).await.unwrap(), []);
    let nowhere = revision(&"ab".repeat(20));
    let error = deployments.own_commits(&nowhere, &path("apps/citation"), 10).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Unexpected);
}
