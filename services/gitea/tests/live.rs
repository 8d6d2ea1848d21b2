//! The adapter against the bed's Gitea.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helpers fail the test")]

use std::time::Duration;

use fabrique_bed::{Bed, GitRepo, wait_until};
use fabrique_core::id::{BranchName, RelPath, RepoName, Revision};
use fabrique_gitea::{Administrator, Gitea, GiteaConfig, Purpose};
use fabrique_ports::Fault;
use fabrique_ports::forge::{
    BranchHead, CommitStatus, Forge, ForgeFile, ForgeInspection, Hooks, StatusOutcome, StatusState,
    WantedHook,
};
use fabrique_ports::setup::{ForgeSetup as _, RepositoryState};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;

#[path = "live/hooks.rs"]
mod hooks;

const SECRET: &str = "s3cret";

/// One Gitea for all tests, each with an organisation of its own.
async fn bed() -> &'static Bed {
    static BED: OnceCell<Bed> = OnceCell::const_new();
    let _ = rustls::crypto::ring::default_provider().install_default();
    BED.get_or_init(async || Bed::builder().gitea().start().await.unwrap()).await
}

fn config(bed: &Bed, token: &str) -> GiteaConfig {
    let mut config = GiteaConfig::new(bed.gitea().base_url().parse().unwrap());
    let tokens = &mut config.tokens;
    for slot in [&mut tokens.read, &mut tokens.status, &mut tokens.hooks, &mut tokens.apps] {
        *slot = Some(token.into());
    }
    config.hook_secret = Some(SECRET.into());
    config
}

fn admin(bed: &Bed) -> Gitea {
    Gitea::new(config(bed, bed.gitea().admin_token())).unwrap()
}

/// A private repository `<org>/app` with one commit, and that commit.
async fn private_repo(bed: &Bed, org: &str) -> (RepoName, Revision) {
    bed.gitea().create_org(org).await.unwrap();
    bed.gitea().create_repo(org, "app", true).await.unwrap();
    let head = bed.gitea().head(org, "app", "main").await.unwrap().unwrap();
    (repo(&format!("{org}/app")), Revision::parse(&head).unwrap())
}

fn repo(name: &str) -> RepoName {
    RepoName::parse(name).unwrap()
}

fn branch(name: &str) -> BranchName {
    BranchName::parse(name).unwrap()
}

fn unknown(digits: usize) -> Revision {
    Revision::parse(&"d".repeat(digits)).unwrap()
}

fn status(state: StatusState, description: &str) -> CommitStatus {
    CommitStatus {
        context: "fabrique/build/citation".to_owned(),
        state,
        description: description.to_owned(),
        link: Some("http://fabrique.example.org/builds/1".to_owned()),
    }
}

#[tokio::test]
async fn a_head_is_told_apart_from_a_missing_branch_and_a_missing_repository() {
    let bed = bed().await;
    let (app, head) = private_repo(bed, "heads").await;
    let gitea = admin(bed);
    assert_eq!(gitea.branch_head(&app, &branch("main")).await.unwrap(), BranchHead::At(head.clone()));
    assert_eq!(gitea.branch_head(&app, &branch("Main")).await.unwrap(), BranchHead::NoBranch);
    assert_eq!(gitea.branch_head(&app, &branch("a/b")).await.unwrap(), BranchHead::NoBranch);
    let nowhere = repo("heads/nowhere");
    assert_eq!(gitea.branch_head(&nowhere, &branch("main")).await.unwrap(), BranchHead::NoRepository);

    let body = json!({ "name": "empty", "private": true });
    bed.gitea().api("POST", "/orgs/heads/repos", Some(body)).await.unwrap();
    let empty = repo("heads/empty");
    assert_eq!(gitea.branch_head(&empty, &branch("main")).await.unwrap(), BranchHead::NoBranch);

    let mut blind = config(bed, bed.gitea().admin_token());
    blind.tokens.read = None;
    let blind = Gitea::new(blind).unwrap();
    assert_eq!(blind.branch_head(&app, &branch("main")).await.unwrap(), BranchHead::NoRepository);
}

#[tokio::test]
async fn a_tip_tells_its_parent_its_time_and_what_it_touched() {
    let bed = bed().await;
    let (app, root) = private_repo(bed, "tips").await;
    let clone = GitRepo::clone(&bed.gitea().clone_url_with_token("tips", "app")).await.unwrap();
    let gitea = admin(bed);
    for (path, content) in [("kept", "1"), ("changed", "1"), ("removed", "1"), ("becomes a link", "1")] {
        clone.write(path, content).await.unwrap();
    }
    let parent = clone.commit("Begin").await.unwrap();
    clone.write("changed", "2").await.unwrap();
    clone.write("a/added é", "1").await.unwrap();
    clone.git(&["rm", "--quiet", "removed"]).await.unwrap();
    clone.git(&["rm", "--quiet", "--cached", "becomes a link"]).await.unwrap();
    let target = clone.git(&["rev-parse", "HEAD:kept"]).await.unwrap();
    let entry = format!("120000,{},becomes a link", target.trim());
    clone.git(&["add", "changed", "a"]).await.unwrap();
    clone.git(&["update-index", "--add", "--cacheinfo", &entry]).await.unwrap();
    let tree = clone.git(&["write-tree"]).await.unwrap();
    let head = clone.git(&["commit-tree", "-p", parent.trim(), "-m", "Change", tree.trim()]).await.unwrap();
    let refspec = format!("{}:refs/heads/main", head.trim());
    clone.git(&["push", "--quiet", "origin", &refspec]).await.unwrap();
    // A tag of the branch's name is another commit.
    clone.git(&["push", "--quiet", "origin", &format!("{root}:refs/tags/main")]).await.unwrap();

    let tip = gitea.branch_tip(&app, &branch("main")).await.unwrap().unwrap();
    assert_eq!(tip.revision.as_str(), head.trim());
    assert_eq!(tip.parents, [Revision::parse(parent.trim()).unwrap()]);
    let told = clone.git(&["show", "--no-patch", "--format=%ct", head.trim()]).await.unwrap();
    assert_eq!(tip.committed.to_string(), told.trim());
    let mut touched = tip.touched;
    touched.sort();
    // What became a link did change, and Gitea does not say so: why a tip never proves that nothing changed.
    assert_eq!(touched, ["a/added é", "changed", "removed"]);

    assert_eq!(gitea.branch_tip(&app, &branch("other")).await.unwrap(), None);
    assert_eq!(gitea.branch_tip(&repo("tips/nowhere"), &branch("main")).await.unwrap(), None);
}

#[tokio::test]
async fn a_link_is_told_from_a_file_and_not_followed() {
    let bed = bed().await;
    let (app, _) = private_repo(bed, "links").await;
    let clone = GitRepo::clone(&bed.gitea().clone_url_with_token("links", "app")).await.unwrap();
    clone.write("a/file.yaml", "ready: true\n").await.unwrap();
    std::os::unix::fs::symlink("a/file.yaml", clone.path().join("link.yaml")).unwrap();
    let head = Revision::parse(&clone.commit("Link").await.unwrap()).unwrap();
    clone.push().await.unwrap();
    let gitea = admin(bed);
    let file = async |path: &str| gitea.file(&app, &head, &RelPath::parse(path).unwrap()).await.unwrap();
    assert_eq!(file("a/file.yaml").await, Some(ForgeFile::Content(b"ready: true\n".to_vec())));
    assert_eq!(file("link.yaml").await, Some(ForgeFile::Elsewhere));
    assert_eq!((file("a").await, file("nowhere").await), (None, None));
}

#[tokio::test]
async fn branch_names_that_need_encoding_are_found() {
    let bed = bed().await;
    let (app, _) = private_repo(bed, "names").await;
    let clone = GitRepo::clone(&bed.gitea().clone_url_with_token("names", "app")).await.unwrap();
    let gitea = admin(bed);
    for name in ["feature/a.b", "100%25", "x#y", "é+ü", "a&b=c;d"] {
        clone.git(&["checkout", "--quiet", "-b", name]).await.unwrap();
        let revision = clone.commit(name).await.unwrap();
        clone.git(&["push", "--quiet", "origin", name]).await.unwrap();
        let expected = BranchHead::At(Revision::parse(&revision).unwrap());
        assert_eq!(gitea.branch_head(&app, &branch(name)).await.unwrap(), expected, "{name}");
        let tip = gitea.branch_tip(&app, &branch(name)).await.unwrap().expect(name);
        assert_eq!(tip.revision.as_str(), revision.trim(), "{name}");
    }
}

#[tokio::test]
async fn what_a_push_brought_is_told_after_it_is_gone_and_what_only_lies_there_was_not_pushed() {
    let bed = bed().await;
    let (app, first) = private_repo(bed, "commits").await;
    let gitea = admin(bed);
    let clone = GitRepo::clone(&bed.gitea().clone_url_with_token("commits", "app")).await.unwrap();
    let mut pushed = Vec::new();
    for number in 1..3 {
        clone.write("a", format!("{number}\n")).await.unwrap();
        pushed.push(Revision::parse(&clone.commit("Change").await.unwrap()).unwrap());
    }
    clone.push().await.unwrap();
    clone.git(&["reset", "--quiet", "--hard", first.as_str()]).await.unwrap();
    clone.push_force().await.unwrap();
    for revision in &pushed {
        wait_until("the push to be told of", Duration::from_secs(30), || async {
            gitea.was_pushed(&app, revision).await.unwrap().then_some(())
        })
        .await
        .unwrap();
    }

    // As after a push that ended between the arrival of its objects and the branch.
    let folder = bed.folder().join("gitea/repositories/commits/app.git");
    let tree = format!("{first}^{{tree}}");
    let author = ["-c", "user.name=x", "-c", "user.email=x@example.com"];
    let commit = [&author[..], &["commit-tree", "-p", first.as_str(), "-m", "Left behind", &tree]].concat();
    let left = std::process::Command::new("git").arg("-C").arg(folder).args(commit).output().unwrap();
    let left = Revision::parse(String::from_utf8_lossy(&left.stdout).trim()).unwrap();
    assert_eq!(
        gitea.set_status(&app, &left, &status(StatusState::Success, "left")).await.unwrap(),
        StatusOutcome::Set,
        "it is there"
    );
    assert!(!gitea.was_pushed(&app, &left).await.unwrap());

    assert!(!gitea.was_pushed(&app, &unknown(40)).await.unwrap());
    assert!(!gitea.was_pushed(&app, &unknown(64)).await.unwrap());
    let error = gitea.was_pushed(&repo("commits/nowhere"), &first).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Denied);
}

#[tokio::test]
async fn a_status_is_set_with_its_description_cut_at_the_forges_limit() {
    let bed = bed().await;
    let (app, head) = private_repo(bed, "statuses").await;
    let gitea = admin(bed);
    for (state, word) in [
        (StatusState::Pending, "pending"),
        (StatusState::Success, "success"),
        (StatusState::Failure, "failure"),
        (StatusState::Error, "error"),
    ] {
        let set = gitea.set_status(&app, &head, &status(state, &"é".repeat(400))).await.unwrap();
        assert_eq!(set, StatusOutcome::Set);
        let path = format!("/repos/{app}/commits/{head}/status");
        let shown = bed.gitea().api("GET", &path, None).await.unwrap();
        let shown = &shown["statuses"][0];
        assert_eq!(shown["status"], word);
        assert_eq!(shown["context"], "fabrique/build/citation");
        assert_eq!(shown["target_url"], "http://fabrique.example.org/builds/1");
        assert_eq!(shown["description"].as_str().unwrap().chars().count(), 255);
    }
}

#[tokio::test]
async fn a_status_for_an_unknown_revision_is_an_outcome_and_for_an_unknown_repository_an_error() {
    let bed = bed().await;
    let (app, head) = private_repo(bed, "strays").await;
    let gitea = admin(bed);
    let stray = gitea.set_status(&app, &unknown(40), &status(StatusState::Success, "built")).await.unwrap();
    assert_eq!(stray, StatusOutcome::UnknownRevision);
    let nowhere = repo("strays/nowhere");
    let error = gitea.set_status(&nowhere, &head, &status(StatusState::Success, "built")).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Denied);
}

#[tokio::test]
async fn refusals_say_which_token_to_mend() {
    let bed = bed().await;
    let (app, head) = private_repo(bed, "refusals").await;
    bed.gitea().create_user("reader").await.unwrap();
    bed.gitea().add_collaborator("refusals", "app", "reader", "read").await.unwrap();
    let token = bed.gitea().create_token("reader", &["write:repository"]).await.unwrap();
    let reader = Gitea::new(config(bed, &token)).unwrap();
    let built = status(StatusState::Success, "built");

    assert_eq!(reader.branch_head(&app, &branch("main")).await.unwrap(), BranchHead::At(head.clone()));
    let error = reader.set_status(&app, &head, &built).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Denied, "{error}");
    assert!(error.to_string().contains("`status` token"), "{error}");
    let wanted = WantedHook { url: "http://127.0.0.1:1/".to_owned(), branch_filter: "*".to_owned() };
    let error = reader.ensure_hook(&app, &wanted, false).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Denied, "{error}");
    assert!(error.to_string().contains("`hooks` token"), "{error}");

    let narrow = bed.gitea().create_token("reader", &["read:repository"]).await.unwrap();
    let error = Gitea::new(config(bed, &narrow)).unwrap().set_status(&app, &head, &built).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Denied, "{error}");

    let revoked = Gitea::new(config(bed, "0123456789012345678901234567890123456789")).unwrap();
    let error = revoked.branch_head(&app, &branch("main")).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Denied, "{error}");
    assert!(error.to_string().contains("`read` token"), "{error}");
}

#[tokio::test]
async fn what_was_made_or_removed_since_it_was_looked_at_is_worth_another_look() {
    let gitea = bed().await.gitea();
    let administrator =
        Administrator::of(&admin(bed().await), gitea.admin_user(), gitea.admin_password().into());
    let (apps, main) = (repo("overtaken/apps"), branch("main"));
    administrator.make_organisation("overtaken").await.unwrap();
    let files = [(RelPath::parse("README.md").unwrap(), b"x".to_vec())];
    let gone = administrator.put_first(&apps, &main, &files, "Begin").await.unwrap_err();
    assert!(gone.transient() && gone.to_string().contains("404"), "{gone}");
    let gone = administrator.right(&apps, gitea.admin_user()).await.unwrap_err();
    assert!(gone.transient() && gone.to_string().contains("404"), "{gone}");

    administrator.make_repository(&apps, &main).await.unwrap();
    assert_eq!(administrator.repository(&apps, &main).await.unwrap(), RepositoryState::Empty);
    let there = administrator.make_repository(&apps, &main).await.unwrap_err();
    assert!(there.transient() && there.to_string().contains("409"), "{there}");
    administrator.put_first(&apps, &main, &files, "Begin").await.unwrap();
    assert_eq!(administrator.repository(&apps, &main).await.unwrap(), RepositoryState::Ready);
}

#[tokio::test]
async fn a_first_commit_whose_caller_went_away_is_brought_to_its_end() {
    let bed = bed().await;
    let (gitea, main) = (bed.gitea(), branch("main"));
    let administrator = Administrator::of(&admin(bed), gitea.admin_user(), gitea.admin_password().into());
    administrator.make_organisation("unnoticed").await.unwrap();
    let files = [(RelPath::parse("README.md").unwrap(), b"x".to_vec())];
    let first = async |apps: &RepoName| administrator.put_first(apps, &main, &files, "Begin").await;
    let mut unnoticed = 0;
    for cut in (100..500).step_by(40) {
        let apps = repo(&format!("unnoticed/after-{cut}"));
        administrator.make_repository(&apps, &main).await.unwrap();
        drop(tokio::time::timeout(Duration::from_millis(cut), first(&apps)).await);
        // Two at once are another matter: what is cut off ends first.
        let ended = format!("completed POST /api/v1/repos/{apps}/contents ");
        wait_until("Gitea to end the request", Duration::from_mins(1), || async {
            gitea.peer().log_tail(200).contains(&ended).then_some(())
        })
        .await
        .unwrap();
        let has_commit = async || {
            let path = format!("/repos/{apps}/git/commits/main");
            gitea.api_as(gitea.admin_token(), "GET", &path, None).await.unwrap().0 == 200
        };
        let look = async || match administrator.repository(&apps, &main).await {
            Err(error) if error.transient() => None,
            state => Some(state.unwrap()),
        };
        unnoticed += u32::from(look().await == Some(RepositoryState::Empty) && has_commit().await);
        wait_until("the branch to be there", Duration::from_mins(1), || async {
            match look().await {
                Some(RepositoryState::Ready) => return Some(()),
                Some(RepositoryState::Empty) => {
                    if let Err(error) = first(&apps).await {
                        assert!(error.transient(), "{error}");
                    }
                }
                None => {}
                other => panic!("{other:?}"),
            }
            None
        })
        .await
        .unwrap();
    }
    assert!(unnoticed > 0, "none was cut off between the commit and Gitea's notice of it");
}

#[tokio::test]
async fn each_purpose_uses_its_own_token_and_no_other() {
    let bed = bed().await;
    let (app, head) = private_repo(bed, "purposes").await;
    let good = bed.gitea().admin_token();
    let mut only_apps = config(bed, "0123456789012345678901234567890123456789");
    only_apps.tokens.apps = Some(good.into());
    only_apps.apps_repo = Some(repo("PURPOSES/app"));
    let gitea = Gitea::new(only_apps).unwrap();
    assert_eq!(gitea.branch_head(&app, &branch("main")).await.unwrap(), BranchHead::At(head.clone()));
    gitea.was_pushed(&app, &head).await.unwrap();
    assert!(gitea.rights(&app).await.unwrap().unwrap().push);
    assert!(gitea.inspecting(Purpose::Hooks).rights(&app).await.is_err());
    assert!(gitea.hooks(&app).await.is_err());
}

#[tokio::test]
async fn a_renamed_repository_is_followed_with_the_token() {
    let bed = bed().await;
    let (app, head) = private_repo(bed, "renamed").await;
    let rename = Some(json!({ "name": "newer" }));
    bed.gitea().api("PATCH", "/repos/renamed/app", rename).await.unwrap();
    let gitea = admin(bed);
    assert_eq!(gitea.branch_head(&app, &branch("main")).await.unwrap(), BranchHead::At(head.clone()));
    let set = gitea.set_status(&app, &head, &status(StatusState::Success, "built")).await.unwrap();
    assert_eq!(set, StatusOutcome::Set);
    let path = format!("/repos/renamed/newer/commits/{head}/status");
    assert_eq!(bed.gitea().api("GET", &path, None).await.unwrap()["statuses"][0]["status"], "success");
}

#[tokio::test]
async fn a_redirect_to_another_server_is_not_followed() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bed = bed().await;
    let elsewhere = bed.gitea().base_url();
    let app = axum::Router::new().fallback(move || {
        let location = format!("{elsewhere}/api/v1/version");
        async move { (axum::http::StatusCode::TEMPORARY_REDIRECT, [("location", location)]) }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let gitea = Gitea::new(GiteaConfig::new(url.parse().unwrap())).unwrap();
    let error = gitea.info().await.unwrap_err();
    assert!(error.to_string().contains("redirected away"), "{error}");
}

#[tokio::test]
async fn an_unreachable_or_silent_server_is_transient_and_bounded() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let closed = GiteaConfig::new(
        format!("http://127.0.0.1:{}/", fabrique_bed::free_port().unwrap()).parse().unwrap(),
    );
    let error = Gitea::new(closed).unwrap().info().await.unwrap_err();
    assert!(error.transient(), "{error}");

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let mut config = GiteaConfig::new(url.parse().unwrap());
    config.timeouts.request = Duration::from_millis(100);
    let error = Gitea::new(config).unwrap().info().await.unwrap_err();
    assert!(error.transient() && error.to_string().contains("timed out"), "{error}");
}

#[tokio::test]
async fn inspection_tells_version_login_and_rights() {
    let bed = bed().await;
    let (app, _) = private_repo(bed, "inspected").await;
    let gitea = admin(bed);
    let info = gitea.info().await.unwrap();
    assert!(!info.version.is_empty());
    assert_eq!(info.login.as_deref(), Some(bed.gitea().admin_user()));
    let rights = gitea.rights(&app).await.unwrap().unwrap();
    assert!(rights.pull && rights.push && rights.admin && !rights.archived);
    assert_eq!(gitea.rights(&repo("inspected/nowhere")).await.unwrap(), None);

    let archive = Some(json!({ "archived": true }));
    bed.gitea().api("PATCH", "/repos/inspected/app", archive).await.unwrap();
    assert!(gitea.rights(&app).await.unwrap().unwrap().archived);

    bed.gitea().create_user("viewer").await.unwrap();
    bed.gitea().add_collaborator("inspected", "app", "viewer", "read").await.unwrap();
    let token = bed.gitea().create_token("viewer", &["read:repository"]).await.unwrap();
    let viewer = Gitea::new(config(bed, &token)).unwrap();
    assert_eq!(viewer.info().await.unwrap().login, None);
    let rights = viewer.rights(&app).await.unwrap().unwrap();
    assert!(rights.pull && !rights.push && !rights.admin);
}

#[tokio::test]
async fn a_protected_branch_takes_the_pushes_of_those_that_its_protection_names() {
    let bed = bed().await;
    let (app, _) = private_repo(bed, "protected").await;
    bed.gitea().create_user("writer").await.unwrap();
    bed.gitea().add_collaborator("protected", "app", "writer", "write").await.unwrap();
    let token = bed.gitea().create_token("writer", &["write:repository"]).await.unwrap();
    let writer = Gitea::new(config(bed, &token)).unwrap();
    let may_push = async |name: &str| writer.may_push(&app, &branch(name)).await.unwrap();
    assert_eq!((may_push("main").await, may_push("other").await), (Some(true), None));

    let rules = "/repos/protected/app/branch_protections";
    let nobody = json!({ "rule_name": "main", "enable_push": false });
    bed.gitea().api("POST", rules, Some(nobody)).await.unwrap();
    assert_eq!(may_push("main").await, Some(false));
    assert!(writer.rights(&app).await.unwrap().unwrap().push, "which says nothing of the branch");

    let named = json!({
        "enable_push": true, "enable_push_whitelist": true, "push_whitelist_usernames": ["writer"],
    });
    bed.gitea().api("PATCH", &format!("{rules}/main"), Some(named)).await.unwrap();
    assert_eq!(may_push("main").await, Some(true));
}
