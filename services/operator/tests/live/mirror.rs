//! Mirrors between two repositories of a real Gitea, with what a recorded GitHub says of the commits in the first.

use std::time::Instant;

use fabrique_bed::{GiteaOptions, RecordedGithub, free_port, wait_until};
use fabrique_gitea::Tokens;
use fabrique_github::{Github, GithubConfig};
use fabrique_operator::mirror::{
    self, Clones, EnsuredMirrors, MirrorResult, RightResult, SyncPorts, Synced, mirrored,
};
use fabrique_ports::bus::Board;

use super::*;

#[path = "mirror_ways.rs"]
mod ways;

/// A mirror is waited for as long as a slow machine may need.
const LONG: Duration = Duration::from_mins(2);
/// And that long where it cannot come.
const SHORT: Duration = Duration::from_secs(2);
const UPSTREAM: &str = "acme/citation";

/// `acme/citation` plays the repository on GitHub, `atlas/citation` is to mirror it; one app is built from there.
struct World {
    cluster: Cluster,
    github: RecordedGithub,
    /// A clone of `acme/citation`.
    upstream: GitRepo,
    apps: GitRepo,
}

impl World {
    async fn start() -> Self {
        Self::start_with(GiteaOptions::default()).await
    }

    async fn start_with(options: GiteaOptions) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bed = Bed::builder().gitea_with(options).nats().registry().start().await.unwrap();
        let gitea = bed.gitea();
        for org in ["cluster", "acme", "atlas"] {
            gitea.create_org(org).await.unwrap();
        }
        gitea.create_repo("cluster", "apps", true).await.unwrap();
        // Public, as it is cloned without credentials.
        gitea.create_repo("acme", "citation", false).await.unwrap();
        let upstream = GitRepo::clone(&gitea.clone_url_with_token("acme", "citation")).await.unwrap();
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", "apps")).await.unwrap();
        let admin = bus(&bed, "admin").await;
        assert!(admin.ensure().await.unwrap().iter().all(|finding| !finding.fatal));
        let state = tempfile::tempdir().unwrap();
        let git = git_config(&bed, &state);
        let cluster = Cluster { bed, head: String::new(), hook_url: String::new(), _state: state, git };
        let github = RecordedGithub::start().await.unwrap();
        let world = Self { cluster, github, upstream, apps };
        world.register("{ repo: atlas/citation, github: acme/citation, checks: [ci] }").await;
        world
    }

    async fn register(&self, source: &str) {
        self.register_all(&[("citation", source)]).await;
    }

    async fn register_all(&self, apps: &[(&str, &str)]) {
        for (app, source) in apps {
            let text = format!(
                "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: {app} }}\nspec:\n  source: {source}\n  \
                 image: {}/{app}\n  environments:\n    - {{ name: prod }}\n",
                self.cluster.bed.registry().host()
            );
            self.apps.write(&format!("apps/{app}/app.yaml"), text).await.unwrap();
        }
        self.apps.commit("Register").await.unwrap();
        self.apps.push().await.unwrap();
    }

    fn gitea(&self) -> Gitea {
        self.cluster.gitea(self.cluster.bed.gitea().admin_token())
    }

    async fn ensure(&self, dry_run: bool) -> EnsuredMirrors {
        self.ensure_by(&self.gitea(), &self.cluster.bed.gitea().base_url(), dry_run).await
    }

    async fn ensure_by(&self, gitea: &Gitea, base: &str, dry_run: bool) -> EnsuredMirrors {
        self.ensure_within(gitea, base, LONG, dry_run).await
    }

    async fn ensure_within(
        &self,
        gitea: &Gitea,
        base: &str,
        limit: Duration,
        dry_run: bool,
    ) -> EnsuredMirrors {
        let apps = self.cluster.apps().read().await.unwrap();
        let clones = Clones { base, limit, tell: &|_| {} };
        mirror::ensure(gitea, &mirrored(&apps.registrations), &clones, dry_run).await
    }

    /// A commit on the branch that is mirrored, which GitHub has as well.
    async fn commit(&self, text: &str) -> Revision {
        self.upstream.write("Dockerfile", format!("FROM scratch\n# {text}\n")).await.unwrap();
        self.upstream.commit(text).await.unwrap();
        self.upstream.push().await.unwrap();
        self.published().await
    }

    /// GitHub's branch is where the clone is.
    async fn published(&self) -> Revision {
        Revision::parse(&self.github.push(UPSTREAM, "main", &self.upstream).await.unwrap()).unwrap()
    }

    async fn sync(&self, patience: Duration, dry_run: bool) -> Synced {
        self.sync_by(self.gitea(), patience, dry_run).await
    }

    async fn sync_by(&self, gitea: Gitea, patience: Duration, dry_run: bool) -> Synced {
        let config = GithubConfig::new(self.github.url().parse().unwrap());
        let (bus, gitea) = (Arc::new(bus(&self.cluster.bed, "mirror").await), Arc::new(gitea));
        let ports = SyncPorts {
            origin: Arc::new(Github::new(&config, Arc::new(now)).unwrap()),
            mirrors: gitea.clone(),
            forge: gitea,
            source: Arc::new(GitHistory::new(self.cluster.git.clone()).unwrap()),
            upstreams: bus.clone(),
            wakes: bus,
            clock: Arc::new(now),
        };
        let apps = self.cluster.apps().read().await.unwrap();
        mirror::sync(&ports, &mirrored(&apps.registrations), patience, dry_run).await
    }

    async fn operator(&self) -> Operator {
        let known: Arc<dyn Upstreams> = Arc::new(bus(&self.cluster.bed, "operator").await);
        self.cluster.operator_knowing(Some(known)).await
    }

    /// The decision about the app, as workers take it: its target, and why.
    async fn decision(&self) -> (String, String) {
        let why = self.operator().await.why("citation").await.unwrap();
        let target = why.status.target.map(|target| target.short().to_owned()).unwrap_or_default();
        (target, why.status.reason)
    }

    /// What is the matter with the mirror, as `why` tells it.
    async fn trouble(&self) -> Option<String> {
        self.operator().await.why("citation").await.unwrap().upstream.unwrap().trouble
    }

    async fn wakes(&self) -> u64 {
        let app = AppName::parse("citation").unwrap();
        bus(&self.cluster.bed, "operator").await.work_of(&app).await.unwrap().0.0
    }
}

fn results(ensured: &EnsuredMirrors) -> Vec<MirrorResult> {
    ensured.mirrors.iter().map(|mirror| mirror.result).collect()
}

#[tokio::test]
async fn a_mirror_is_made_once_fetches_at_no_interval_and_nothing_else_is_taken_over() {
    let world = World::start().await;
    let gitea = world.cluster.bed.gitea();
    let dry = world.ensure(true).await;
    assert_eq!((results(&dry), dry.exit()), (vec![MirrorResult::Created], Exit::Findings));
    assert_eq!(gitea.head("atlas", "citation", "main").await.unwrap(), None, "a dry run writes nothing");

    let made = world.ensure(false).await;
    assert_eq!((results(&made), made.exit()), (vec![MirrorResult::Created], Exit::Ok), "{made:?}");
    let repo = gitea.api("GET", "/repos/atlas/citation", None).await.unwrap();
    assert_eq!((&repo["mirror"], &repo["private"]), (&true.into(), &true.into()));
    let again = world.ensure(false).await;
    assert_eq!(results(&again), [MirrorResult::Present], "{again:?}, {}", repo["mirror_interval"]);

    let interval = serde_json::json!({ "mirror_interval": "8h" });
    gitea.api("PATCH", "/repos/atlas/citation", Some(interval)).await.unwrap();
    assert_eq!(results(&world.ensure(true).await), [MirrorResult::Quieted]);
    assert_eq!(results(&world.ensure(false).await), [MirrorResult::Quieted]);
    assert_eq!(results(&world.ensure(false).await), [MirrorResult::Present]);

    world.register("{ repo: atlas/citation, github: acme/other }").await;
    let other = world.ensure(false).await;
    assert_eq!((results(&other), other.exit()), (vec![MirrorResult::Refused], Exit::Findings));
    assert!(other.mirrors[0].detail.contains("it mirrors http"), "{other:?}");
    world.register("{ repo: acme/citation, github: acme/citation }").await;
    let ordinary = world.ensure(false).await;
    assert!(ordinary.mirrors[0].detail.contains("not a pull mirror"), "{ordinary:?}");
    world.register("{ repo: nobody/citation, github: acme/citation }").await;
    let nobody = world.ensure(false).await;
    assert_eq!(results(&nobody), [MirrorResult::Refused], "{nobody:?}");
    assert!(nobody.mirrors[0].detail.contains("is there an organisation nobody"), "{nobody:?}");
}

#[tokio::test]
async fn nothing_is_built_before_its_checks_passed_whatever_passed_before_it() {
    let world = World::start().await;
    let first = world.commit("first").await;
    let made = world.ensure(false).await;
    assert_eq!(made.exit(), Exit::Ok, "{made:?}");
    // Gitea tells of a first clone by no webhook, so nobody was woken; what looks at the app waits.
    assert_eq!(world.wakes().await, 0);
    let (_, reason) = world.decision().await;
    assert!(reason.contains("was never asked about ci"), "{reason}");

    let dry = world.sync(LONG, true).await;
    assert!(dry.mirrors[0].apps[0].woken && dry.exit() == Exit::Ok, "{dry:?}");
    assert_eq!((world.wakes().await, world.decision().await.1), (0, reason), "a dry run keeps nothing");

    let synced = world.sync(LONG, false).await;
    assert_eq!(synced.exit(), Exit::Ok, "{synced:?}");
    assert_eq!(synced.mirrors[0].apps[0].head.as_ref(), Some(&first));
    let woken = world.wakes().await;
    assert_eq!(woken, 1);
    let waits = format!("on GitHub ({UPSTREAM}), for {}: ci did not run", first.short());
    assert_eq!(world.decision().await, (first.short().to_owned(), format!("waits: {waits}")));

    world.github.check_run(UPSTREAM, first.as_str(), ("ci", "in_progress", None));
    world.sync(LONG, false).await;
    assert!(world.decision().await.1.ends_with("ci is pending"));
    let quiet = world.sync(LONG, false).await;
    assert!(!quiet.mirrors[0].apps[0].woken, "{quiet:?}");
    assert_eq!(world.wakes().await, 2, "only news wake");

    world.github.forget_checks(UPSTREAM, first.as_str());
    world.github.check_run(UPSTREAM, first.as_str(), ("ci", "completed", Some("success")));
    world.sync(LONG, false).await;
    assert_eq!(world.wakes().await, 3);
    assert_eq!(
        world.decision().await,
        (first.short().to_owned(), format!("{} is not built yet", first.short()))
    );

    // The next push is mirrored and has not passed: it waits, and what passed before it is not deployed instead.
    let second = world.commit("second").await;
    let synced = world.sync(LONG, false).await;
    let app = &synced.mirrors[0].apps[0];
    assert_eq!((app.mirrored.as_ref(), app.passed.as_ref()), (Some(&second), Some(&first)), "{synced:?}");
    let waits = format!("waits: on GitHub ({UPSTREAM}), for {}: ci did not run", second.short());
    assert_eq!(world.decision().await, (second.short().to_owned(), waits));
    // One more comes before the second passed, and then the second does: the third still waits.
    let third = world.commit("third").await;
    world.github.commit_status(UPSTREAM, second.as_str(), "ci", "success");
    world.sync(LONG, false).await;
    let (target, reason) = world.decision().await;
    assert_eq!(target, third.short());
    assert!(reason.ends_with("ci did not run"), "{reason}");
    world.github.commit_status(UPSTREAM, third.as_str(), "ci", "success");
    world.sync(LONG, false).await;
    assert!(world.decision().await.1.ends_with("is not built yet"));

    // GitHub takes both back: nothing that it has not on the branch any more is built.
    world.upstream.git(&["reset", "--quiet", "--hard", first.as_str()]).await.unwrap();
    world.upstream.push_force().await.unwrap();
    world.published().await;
    let synced = world.sync(LONG, false).await;
    assert_eq!(synced.mirrors[0].apps[0].passed.as_ref(), Some(&first), "{synced:?}");
    let rewritten = world.commit("another second").await;
    world.sync(LONG, false).await;
    let why = world.operator().await.why("citation").await.unwrap();
    let facts = why.upstream.unwrap();
    assert_eq!((facts.head.as_ref(), facts.passed.as_ref()), (Some(&rewritten), Some(&first)));
    assert!(facts.waits.unwrap().ends_with("ci did not run"));
    assert_eq!(facts.trouble, None);
    assert_ne!(third, rewritten);
}

#[tokio::test]
async fn what_is_built_is_judged_again_when_the_registration_asks_for_other_checks() {
    let world = World::start().await;
    let head = world.commit("first").await;
    world.github.check_run(UPSTREAM, head.as_str(), ("ci", "completed", Some("success")));
    assert_eq!(world.ensure(false).await.exit(), Exit::Ok);
    world.sync(LONG, false).await;
    assert!(world.decision().await.1.ends_with("is not built yet"));
    world.register("{ repo: atlas/citation, github: acme/citation, checks: [ci, lint] }").await;
    assert!(world.decision().await.1.contains("never asked about ci, lint"));
    world.sync(LONG, false).await;
    assert!(world.decision().await.1.ends_with("lint did not run"));
    world.register("{ repo: atlas/citation, github: acme/citation }").await;
    assert!(world.decision().await.1.ends_with("is not built yet"), "a mirror alone asks for no checks");
}

#[tokio::test]
async fn a_push_to_github_during_a_sync_is_followed_at_once() {
    let world = World::start().await;
    world.commit("first").await;
    assert_eq!(world.ensure(false).await.exit(), Exit::Ok);
    // Gitea cannot fetch the second one before the third is there as well.
    world.upstream.write("Dockerfile", "FROM scratch\n# second\n").await.unwrap();
    world.upstream.commit("second").await.unwrap();
    world.published().await;
    let (asked, begun) = (world.github.asked().len(), Instant::now());
    let (synced, third) = tokio::join!(world.sync(LONG, false), async {
        // Where the branch is takes two questions.
        wait_until("it to have asked", LONG, || async {
            (world.github.asked().len() >= asked + 2).then_some(())
        })
        .await
        .unwrap();
        world.upstream.write("Dockerfile", "FROM scratch\n# third\n").await.unwrap();
        world.upstream.commit("third").await.unwrap();
        let third = world.published().await;
        world.upstream.push().await.unwrap();
        third
    });
    let app = &synced.mirrors[0].apps[0];
    assert_eq!((app.head.as_ref(), app.mirrored.as_ref()), (Some(&third), Some(&third)), "{synced:?}");
    assert!(begun.elapsed() < LONG, "it waited in vain for what GitHub had before");
}

#[tokio::test]
async fn a_pin_below_a_head_that_passed_is_asked_about_until_it_passed() {
    let world = World::start().await;
    let source = "{ repo: atlas/citation, github: acme/citation, checks: [ci], declaration: manifest.yaml }";
    world.register(source).await;
    let contract = include_str!("../../../../docs/contract.yaml.example");
    world.apps.write("contract.yaml", contract).await.unwrap();
    world.apps.commit("Add a contract").await.unwrap();
    world.apps.push().await.unwrap();
    let passes = |revision: &Revision| {
        world.github.check_run(UPSTREAM, revision.as_str(), ("ci", "completed", Some("success")));
    };
    let (older, newer) = (world.commit("first").await, world.commit("second").await);
    let mut made = false;
    // A whole id, which no history is read for, and the beginning of one.
    for (pinned, written) in [(&newer, newer.as_str()), (&older, &older.as_str()[..9])] {
        let text =
            format!("codeLocation: citation\ncontractVersion: 3\nready: true\nrevision: \"{written}\"\n");
        world.upstream.write("manifest.yaml", text).await.unwrap();
        let head = world.commit(&format!("pin {written}")).await;
        passes(&head);
        if !std::mem::replace(&mut made, true) {
            assert_eq!(world.ensure(false).await.exit(), Exit::Ok);
        }
        assert_eq!(world.sync(LONG, false).await.mirrors[0].apps[0].passed.as_ref(), Some(&head));
        let waits = format!("waits: on GitHub ({UPSTREAM}), for {}: ci did not run", pinned.short());
        assert_eq!(world.decision().await, (pinned.short().to_owned(), waits));

        passes(pinned);
        let news = world.sync(LONG, false).await;
        assert!(news.mirrors[0].apps[0].woken, "{news:?}");
        let (target, reason) = world.decision().await;
        assert_eq!(
            (target.as_str(), reason.ends_with("is not built yet")),
            (pinned.short(), true),
            "{reason}"
        );
        // It costs nothing more from then on.
        let asked = world.github.asked().len();
        let quiet = world.sync(LONG, false).await;
        assert!(!quiet.mirrors[0].apps[0].woken, "{quiet:?}");
        let paths: Vec<String> =
            world.github.asked().split_off(asked).into_iter().map(|it| it.path).collect();
        assert!(!paths.iter().any(|path| path.contains(pinned.as_str())), "{paths:?}");
    }
}

#[tokio::test]
async fn a_mirror_that_does_not_follow_and_a_job_that_does_not_run_are_told_by_why() {
    let world = World::start().await;
    let first = world.commit("first").await;
    assert_eq!(world.ensure(false).await.exit(), Exit::Ok);
    assert_eq!(world.sync(LONG, false).await.exit(), Exit::Ok);
    assert_eq!(world.trouble().await, None);

    // GitHub has a commit that cannot be fetched: as it is when the queue of mirrors does not move.
    world.upstream.write("Dockerfile", "FROM scratch\n# second\n").await.unwrap();
    world.upstream.commit("second").await.unwrap();
    let second = world.published().await;
    let synced = world.sync(SHORT, false).await;
    assert_eq!(synced.exit(), Exit::Findings);
    let app = &synced.mirrors[0].apps[0];
    assert_eq!((app.head.as_ref(), app.mirrored.as_ref()), (Some(&second), Some(&first)));
    let trouble = world.trouble().await.unwrap();
    let told = format!("Gitea's mirror is at {} and GitHub at {}", first.short(), second.short());
    assert!(trouble.starts_with(&told) && trouble.contains("queue of mirrors"), "{trouble}");

    // It is well again once the commit can be fetched. Gitea's own fetches are not to be counted on.
    world.upstream.push().await.unwrap();
    wait_until("the mirror to follow", LONG, || async {
        (world.sync(SHORT, false).await.exit() == Exit::Ok).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(world.trouble().await, None);

    let operator = world.operator().await.fresh_for(Duration::ZERO);
    let trouble = operator.why("citation").await.unwrap().upstream.unwrap().trouble.unwrap();
    assert!(trouble.contains("is the job that runs `fabrique mirror sync` well?"), "{trouble}");
    let reader = bus(&world.cluster.bed, "operator").await;
    let apps = world.cluster.apps().read().await.unwrap();
    let status = mirror::status(&reader, &apps.registrations, now(), Duration::ZERO).await.unwrap();
    assert_eq!((status.apps.len(), status.exit()), (1, Exit::Findings));
    let fresh = mirror::status(&reader, &apps.registrations, now(), LONG * 60).await.unwrap();
    assert_eq!(fresh.exit(), Exit::Ok, "{fresh:?}");
}

#[tokio::test]
async fn a_limit_of_github_and_what_is_not_there_are_told_and_keep_what_was_known() {
    let world = World::start().await;
    let head = world.commit("first").await;
    let unmade = world.sync(SHORT, false).await;
    assert!(unmade.mirrors[0].failed.as_ref().unwrap().contains("fabrique mirror ensure"), "{unmade:?}");
    assert_eq!(unmade.exit(), Exit::Findings);
    assert_eq!(world.ensure(false).await.exit(), Exit::Ok);
    world.github.check_run(UPSTREAM, head.as_str(), ("ci", "completed", Some("success")));
    world.sync(LONG, false).await;

    let reset = (now().0 / 1000 + 600).to_string();
    let limit = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset.as_str())];
    world.github.next_answer(403, &limit, serde_json::json!({ "message": "API rate limit exceeded" }));
    let limited = world.sync(SHORT, false).await;
    assert_eq!(limited.limited_until.map(|until| until.0.to_string()), Some(format!("{reset}000")));
    assert_eq!(limited.exit(), Exit::Unreachable, "{limited:?}");
    world.github.next_answer(401, &[], serde_json::json!({ "message": "Bad credentials" }));
    let denied = world.sync(SHORT, false).await;
    assert!(denied.mirrors[0].failed.as_ref().unwrap().contains("github.token_file"), "{denied:?}");
    assert_eq!(denied.exit(), Exit::Denied, "{denied:?}");
    assert!(world.decision().await.1.ends_with("is not built yet"), "what passed is still known");

    world.register("{ repo: atlas/citation, github: acme/nowhere, checks: [ci] }").await;
    let nowhere = world.sync(SHORT, false).await;
    assert!(
        nowhere.mirrors[0].failed.as_ref().unwrap().contains("no repository acme/nowhere"),
        "{nowhere:?}"
    );
    assert_eq!(nowhere.exit(), Exit::Findings, "{nowhere:?}");
    assert!(world.decision().await.1.contains("never asked"), "{:?}", world.decision().await);
}

#[tokio::test]
async fn a_gitea_that_does_not_answer_and_one_that_denies_end_differently() {
    let world = World::start().await;
    world.commit("first").await;
    let url = world.cluster.bed.gitea().base_url();
    let nobody =
        Gitea::new(GiteaConfig::new(format!("http://127.0.0.1:{}/", free_port().unwrap()).parse().unwrap()))
            .unwrap();
    let away = world.ensure_by(&nobody, &url, false).await;
    assert_eq!((results(&away), away.exit()), (vec![MirrorResult::Failed], Exit::Unreachable), "{away:?}");
    let away = world.sync_by(nobody, SHORT, false).await;
    assert_eq!(away.exit(), Exit::Unreachable, "{away:?}");

    let stranger = world.cluster.gitea("0123456789abcdef0123456789abcdef01234567");
    let denied = world.ensure_by(&stranger, &url, false).await;
    assert_eq!((results(&denied), denied.exit()), (vec![MirrorResult::Failed], Exit::Denied), "{denied:?}");
    let denied = world.sync_by(stranger, SHORT, false).await;
    assert_eq!(denied.exit(), Exit::Denied, "{denied:?}");
}

/// A token by purpose of an account of its own, with the scopes that `init` gives it.
async fn account(world: &World, login: &str, scope: &str) -> String {
    let gitea = world.cluster.bed.gitea();
    gitea.create_user(login).await.unwrap();
    gitea.create_token(login, &[scope, "read:user"]).await.unwrap()
}

/// What an account may do in the mirror.
async fn right(world: &World, login: &str) -> String {
    let path = format!("/repos/atlas/citation/collaborators/{login}/permission");
    let told = world.cluster.bed.gitea().api("GET", &path, None).await.unwrap();
    told["permission"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn whoever_reads_a_mirror_and_reports_on_it_gets_that_right_and_no_more() {
    let world = World::start().await;
    world.commit("first").await;
    let url = world.cluster.bed.gitea().base_url();
    let read = account(&world, "reader", "read:repository").await;
    let status = account(&world, "reporter", "write:repository").await;
    let gitea = |hooks: &str| {
        let mut config = GiteaConfig::new(url.parse().unwrap());
        config.tokens = Tokens {
            read: Some(read.as_str().into()),
            status: Some(status.as_str().into()),
            hooks: Some(hooks.into()),
            apps: None,
        };
        Gitea::new(config).unwrap()
    };
    let admin = gitea(world.cluster.bed.gitea().admin_token());
    let outcomes = |ensured: &EnsuredMirrors| -> Vec<(Option<String>, RightResult)> {
        ensured.mirrors[0].rights.iter().map(|right| (right.account.clone(), right.result)).collect()
    };
    let both = |result| {
        [("reader", result), ("reporter", result)].map(|(who, result)| (Some(who.to_owned()), result))
    };
    let made = world.ensure_by(&admin, &url, false).await;
    assert_eq!((outcomes(&made), made.exit()), (both(RightResult::Granted).to_vec(), Exit::Ok), "{made:?}");
    assert_eq!(
        (right(&world, "reader").await, right(&world, "reporter").await),
        ("read".into(), "write".into())
    );
    let again = world.ensure_by(&admin, &url, false).await;
    assert_eq!(
        (outcomes(&again), again.exit()),
        (both(RightResult::Present).to_vec(), Exit::Ok),
        "{again:?}"
    );

    // A dry run says what would be given, and gives nothing.
    let path = "/repos/atlas/citation/collaborators/reader";
    world.cluster.bed.gitea().api("DELETE", path, None).await.unwrap();
    let dry = world.ensure_by(&admin, &url, true).await;
    assert_eq!((outcomes(&dry)[0].1, dry.exit()), (RightResult::Granted, Exit::Findings), "{dry:?}");
    assert_eq!(right(&world, "reader").await, "none");

    // Whoever may not give it says who has to give what to whom.
    let hooker = account(&world, "hooker", "write:repository").await;
    let body = serde_json::json!({ "permission": "write" });
    let path = "/repos/atlas/citation/collaborators/hooker";
    world.cluster.bed.gitea().api("PUT", path, Some(body)).await.unwrap();
    let missing = world.ensure_by(&gitea(&hooker), &url, false).await;
    assert_eq!(
        (outcomes(&missing)[0].1, missing.exit()),
        (RightResult::Missing, Exit::Denied),
        "{missing:?}"
    );
    let told = &missing.mirrors[0].rights[0].detail;
    assert!(told.starts_with("give reader `read` in atlas/citation"), "{told}");
    // Without its token nobody knows whose right it is.
    let unseen = world.ensure(false).await;
    assert_eq!(unseen.exit(), Exit::Ok, "{unseen:?}");
}
