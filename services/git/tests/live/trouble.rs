//! Forges that die, connections that are cut, clones that are damaged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fabrique_bed::Bed;
use fabrique_core::relation::Relation;
use fabrique_git::{GitDeployments, GitHistory};
use fabrique_ports::deployments::{CommitFate, Deployments, PushOutcome};
use fabrique_ports::source::{ChangedPaths, SourceHistory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

use crate::support::{Apps, Folder, gitea, repo, revision, texts, write, writing};

#[tokio::test]
async fn whatever_a_dying_forge_leaves_can_be_read_back() {
    let bed = Bed::builder().gitea().start().await.unwrap();
    let apps = Apps::new(bed.gitea(), "dying").await;
    let mut unclear = 0;
    for (number, delay) in [0, 20, 60, 120, 200, 300, 400].into_iter().enumerate() {
        let base = apps.deployments.snapshot().await.unwrap().commit;
        let change = writing("x", &[("apps/a", &number.to_string())]);
        let prepared = apps.deployments.prepare(&base, &[change]).await.unwrap();
        let kill = async {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            bed.gitea().peer().kill9().await.unwrap();
        };
        let (outcome, ()) = tokio::join!(apps.deployments.push(&prepared), kill);
        bed.gitea().peer().start_again().await.unwrap();
        let head = apps.deployments.snapshot().await.unwrap().commit;
        let fate = apps.deployments.fate(&prepared.commits[0], &head).await.unwrap();
        match outcome {
            Ok(PushOutcome::Pushed) => assert_eq!(fate, CommitFate::OnBranch),
            Ok(PushOutcome::Unknown(_)) => unclear += 1,
            Ok(other) => panic!("after {delay} ms: {other:?}"),
            Err(error) => {
                assert!(error.transient(), "{error}");
                assert_eq!(fate, CommitFate::OffBranch, "an error says that nothing arrived");
            }
        }
    }
    assert!(unclear > 0, "the forge never died in the middle");
}

#[tokio::test]
async fn a_forge_that_is_down_is_a_passing_fault_and_one_that_hangs_is_unknown() {
    let bed = Bed::builder().gitea().start().await.unwrap();
    let apps = Apps::new(bed.gitea(), "down").await;
    let deployments = GitDeployments::new(apps.config.clone()).unwrap();
    // Only what is asked of a forge that hangs is cut short: a busy one may take its time to answer.
    let mut config = apps.config.clone();
    config.timeouts.push = Duration::from_secs(2);
    config.timeouts.fetch = Duration::from_secs(2);
    let hasty = GitDeployments::new(config).unwrap();
    let base = deployments.snapshot().await.unwrap().commit;
    let prepared = deployments.prepare(&base, &[writing("x", &[("apps/a", "1")])]).await.unwrap();
    bed.gitea().peer().pause().unwrap();
    let outcome = hasty.push(&prepared).await.unwrap();
    assert!(matches!(outcome, PushOutcome::Unknown(_)), "{outcome:?}");
    assert!(hasty.snapshot().await.unwrap_err().transient());
    bed.gitea().peer().resume().unwrap();
    bed.gitea().peer().stop().await.unwrap();
    assert!(deployments.push(&prepared).await.unwrap_err().transient());
    assert!(deployments.snapshot().await.unwrap_err().transient());
    bed.gitea().peer().start_again().await.unwrap();
    assert_eq!(deployments.push(&prepared).await.unwrap(), PushOutcome::Pushed);
}

#[tokio::test]
async fn a_push_whose_answer_is_lost_is_unknown_and_found_on_the_branch() {
    let gitea = gitea().await;
    let mut apps = Apps::new(gitea, "cut").await;
    let base = apps.deployments.snapshot().await.unwrap().commit;
    let proxy = cutting_proxy(gitea.base_url().trim_start_matches("http://").to_owned()).await;
    apps.config.base_url = Url::parse(&format!("http://{proxy}")).unwrap();
    let cut = GitDeployments::new(apps.config.clone()).unwrap();
    let prepared = cut.prepare(&base, &[writing("x", &[("apps/a", "1")])]).await.unwrap();
    let outcome = cut.push(&prepared).await.unwrap();
    assert!(matches!(outcome, PushOutcome::Unknown(_)), "{outcome:?}");
    let head = apps.deployments.snapshot().await.unwrap().commit;
    assert_eq!(head, prepared.commits[0]);
    assert_eq!(apps.deployments.fate(&prepared.commits[0], &head).await.unwrap(), CommitFate::OnBranch);
}

/// Passes everything on, and hangs up on the answer to a push.
async fn cutting_proxy(target: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&target).await.unwrap();
            tokio::spawn(pass_on(client, server));
        }
    });
    address
}

async fn pass_on(mut client: TcpStream, mut server: TcpStream) -> std::io::Result<()> {
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut pushing = false;
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                pushing |= String::from_utf8_lossy(&up[..read]).contains("POST /cut/apps.git/git-receive-pack");
                server.write_all(&up[..read]).await?;
            }
            read = server.read(&mut down) => {
                let read = read?;
                if read == 0 || pushing {
                    return Ok(());
                }
                client.write_all(&down[..read]).await?;
            }
        }
    }
}

#[tokio::test]
async fn a_header_is_not_sent_to_where_a_redirect_points() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let thief = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (base, elsewhere) = (listener.local_addr().unwrap(), thief.local_addr().unwrap());
    let redirecting = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 1 << 14];
            let _ = stream.read(&mut request).await;
            let answer = format!(
                "HTTP/1.1 302 Found\r\nLocation: http://{elsewhere}/a/b.git/info/refs\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let state = tempfile::tempdir().unwrap();
    let config = crate::support::config(state.path(), &format!("http://{base}"), "a/b", Some("token"));
    assert!(GitDeployments::new(config).unwrap().snapshot().await.is_err());
    let visited = tokio::time::timeout(Duration::from_millis(50), thief.accept()).await;
    assert!(visited.is_err(), "the redirect was followed");
    redirecting.abort();
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn damage(clone: &Path, how: &str) {
    match how {
        "emptied objects" => {
            for file in files(&clone.join("objects")) {
                std::fs::remove_file(&file).unwrap();
                std::fs::write(file, "").unwrap();
            }
        }
        "no objects" => std::fs::remove_dir_all(clone.join("objects")).unwrap(),
        "no head" => std::fs::remove_file(clone.join("HEAD")).unwrap(),
        "garbage for a head" => std::fs::write(clone.join("HEAD"), "\0garbage").unwrap(),
        "a broken configuration" => std::fs::write(clone.join("config"), "[core").unwrap(),
        "locks of a killed git" => {
            std::fs::write(clone.join("refs/heads/main.lock"), "").unwrap();
            std::fs::write(clone.join("packed-refs.lock"), "").unwrap();
        }
        "a broken branch" => std::fs::write(clone.join("refs/heads/main"), "ab".repeat(20)).unwrap(),
        "a file in its place" => {
            std::fs::remove_dir_all(clone).unwrap();
            std::fs::create_dir_all(clone).unwrap();
            std::fs::write(clone.join("HEAD"), "x").unwrap();
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_damaged_clone_is_made_again() {
    let forge = Folder::new("sha1").await;
    let mut last = forge.commit(&[("apps/a", "0")]).await;
    for (number, how) in [
        "emptied objects",
        "no objects",
        "no head",
        "garbage for a head",
        "a broken configuration",
        "locks of a killed git",
        "a broken branch",
        "a file in its place",
    ]
    .into_iter()
    .enumerate()
    {
        // A new adapter each time: one that has just healed a clone does not do it again at once.
        let (history, deployments) = (forge.history(), forge.deployments());
        history.commit_time(&repo("atlas/app"), &last).await.unwrap();
        deployments.snapshot().await.unwrap();
        damage(&forge.state().join("sources/atlas/app.git"), how);
        damage(&forge.state().join("deployments/atlas/app.git"), how);
        let new = forge.commit(&[("apps/a", &format!("{number} {how}"))]).await;
        let relation = history.relation(&repo("atlas/app"), &last, &new).await;
        assert_eq!(relation.unwrap_or_else(|error| panic!("{how}: {error}")), Relation::Ahead, "{how}");
        let snapshot = deployments.snapshot().await.unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_eq!(texts(&snapshot)["apps/a"], format!("{number} {how}"));
        let (_, outcome) = write(&deployments, &snapshot, &[("apps/b", how)]).await;
        assert_eq!(outcome, PushOutcome::Pushed, "{how}");
        forge.work.pull().await.unwrap();
        last = new;
    }
}

#[tokio::test]
async fn a_clone_that_is_damaged_again_so_soon_is_not_made_again() {
    let forge = Folder::new("sha1").await;
    let first = forge.commit(&[("apps/a", "0")]).await;
    let second = forge.commit(&[("apps/a", "1")]).await;
    for (healing, again) in [(Duration::ZERO, true), (Duration::from_secs(3600), false)] {
        let mut config = forge.config();
        config.timeouts.healing = healing;
        let (history, app) = (GitHistory::new(config).unwrap(), repo("atlas/app"));
        history.relation(&app, &first, &second).await.unwrap();
        for healed in [true, again] {
            damage(&forge.state().join("sources/atlas/app.git"), "no objects");
            let relation = history.relation(&app, &first, &second).await;
            assert_eq!(relation.is_ok(), healed, "{healing:?}: {relation:?}");
        }
    }
}

#[tokio::test]
async fn an_untidy_clone_is_repacked_and_loses_nothing() {
    let forge = Folder::new("sha1").await;
    let mut config = forge.config();
    config.limits.packs = 2;
    let (history, app) = (GitHistory::new(config).unwrap(), repo("atlas/app"));
    // So many objects at once are kept as a pack.
    let many = async |round: &str| {
        let names: Vec<String> = (0..120).map(|number| format!("{round}/{number}")).collect();
        forge.commit(&names.iter().map(|name| (name.as_str(), name.as_str())).collect::<Vec<_>>()).await
    };
    let first = many("first").await;
    let lost = many("lost").await;
    assert_eq!(history.relation(&app, &first, &lost).await.unwrap(), Relation::Ahead);
    forge.work.rewind(1).await.unwrap();
    let mut head = first.clone();
    for round in ["2", "3", "4"] {
        head = many(round).await;
        assert_eq!(history.relation(&app, &first, &head).await.unwrap(), Relation::Ahead);
    }
    forge.forget().await;
    let packs = forge.state().join("sources/atlas/app.git/objects/pack");
    let tidy = || {
        // What no branch holds goes to a pack of its own, with the times from which its age is counted.
        let cruft = files(&packs).iter().any(|file| file.extension().is_some_and(|kind| kind == "mtimes"));
        async move { cruft.then_some(()) }
    };
    fabrique_bed::wait_until("a repack", Duration::from_secs(20), tidy).await.unwrap();
    assert_eq!(history.relation(&app, &lost, &head).await.unwrap(), Relation::Diverged);
}

#[tokio::test]
async fn two_processes_worth_of_adapters_share_a_state_directory() {
    let forge = Folder::new("sha1").await;
    let one = forge.commit(&[("apps/a", "1")]).await;
    let two = forge.commit(&[("apps/a", "2")]).await;
    let histories: Vec<GitHistory> = (0..8).map(|_| forge.history()).collect();
    let app = repo("atlas/app");
    let asked = histories.iter().map(|history| history.relation(&app, &one, &two));
    for relation in futures::future::join_all(asked).await {
        assert_eq!(relation.unwrap(), Relation::Ahead);
    }
}

#[tokio::test]
async fn what_was_prefetched_is_compared_without_the_forge() {
    let bed = Bed::builder().gitea().start().await.unwrap();
    let apps = Apps::new(bed.gitea(), "ahead").await;
    let history = GitHistory::new(apps.config.clone()).unwrap();
    let app = repo("ahead/apps");
    let deployed = revision(&apps.work.head().await.unwrap());
    history.prefetch(&app, &deployed).await.unwrap();
    let mut heads = Vec::new();
    for content in ["1", "2"] {
        apps.work.write("file", content).await.unwrap();
        heads.push(revision(&apps.work.commit("Change").await.unwrap()));
        apps.work.push().await.unwrap();
        history.prefetch(&app, heads.last().unwrap()).await.unwrap();
    }
    // One that the forge does not have is nothing to stop for.
    history.prefetch(&app, &revision(&"ab".repeat(20))).await.unwrap();
    bed.gitea().peer().stop().await.unwrap();
    for head in &heads {
        assert_eq!(history.relation(&app, &deployed, head).await.unwrap(), Relation::Ahead);
        let changed = history.changed_paths(&app, &deployed, head).await.unwrap();
        assert_eq!(changed, ChangedPaths::These(vec!["file".to_owned()]));
    }
}
