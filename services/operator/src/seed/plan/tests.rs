//! Plans against a world that does what they say.

use fabrique_core::id::RepoName;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

fn name(name: &str) -> AppName {
    AppName::parse(name).unwrap()
}

fn place(name: &str) -> EnvironmentName {
    EnvironmentName::parse(name).unwrap()
}

fn revision(digit: &str) -> Revision {
    Revision::parse(&digit.repeat(40)).unwrap()
}

fn digest() -> Digest {
    Digest::of(b"an image")
}

fn file(path: &str) -> RelPath {
    RelPath::parse(path).unwrap()
}

/// An app of which nothing is there but what its repository holds.
fn fresh(app: &str) -> AppSeen {
    AppSeen {
        app: name(app),
        needs: BTreeSet::new(),
        undeployed: BTreeSet::new(),
        findings: Vec::new(),
        waits: Vec::new(),
        declares: true,
        stand: Stand {
            target: Some(revision("a")),
            image: ImageSeen::Missing(revision("a")),
            composition: CompositionSeen::ToCome,
            from: None,
            others: BTreeSet::new(),
            moving: BTreeSet::new(),
            stop: None,
            used_up: None,
            told: String::new(),
        },
        migrations: FileSeen::Differs(file("migrations/prod/a/migrations.yaml")),
        application: FileSeen::Differs(file("applications/a-prod.yaml")),
        lacks: Vec::new(),
        deployer: DeployerSeen::Behind("there is none".to_owned()),
    }
}

fn hook(repo: &str, result: HookResult) -> EnsuredHook {
    let repo = RepoName::parse(repo).unwrap();
    let failed = matches!(result, HookResult::NoRepository | HookResult::Failed);
    let exit = if failed { Exit::Denied } else { Exit::Ok };
    EnsuredHook { repo, branch_filter: "main".to_owned(), result, detail: "no".to_owned(), exit }
}

fn secret(outcome: Outcome) -> DerivedSecret {
    let why = (outcome == Outcome::Refused).then(|| "the source has no password".to_owned());
    let exit = if why.is_some() { Exit::Denied } else { Exit::Ok };
    DerivedSecret { secret: "apps/pg".to_owned(), from: "postgres/role".to_owned(), outcome, why, exit }
}

fn seen(apps: Vec<AppSeen>) -> Seen {
    Seen {
        environment: EnvironmentName::parse("prod").unwrap(),
        apps,
        secrets: SecretsSeen::Seen(vec![secret(Outcome::Made)]),
        hooks: vec![hook("atlas/a", HookResult::Created), hook("cluster/apps", HookResult::Present)],
        root: RootSeen::There,
    }
}

/// Does what one line says, as those do it whose job it is. A worker that is stopped `early` has built and not committed.
fn done(seen: &mut Seen, row: &Row, early: bool) {
    match row.stage {
        Stage::Secrets => {
            let SecretsSeen::Seen(secrets) = &mut seen.secrets else { panic!("no cluster is asked") };
            let own = secrets.iter_mut().find(|secret| secret.secret == row.subject).unwrap();
            own.outcome = Outcome::Unchanged;
        }
        Stage::Webhooks => {
            let own = seen.hooks.iter_mut().find(|hook| hook.repo.to_string() == row.subject).unwrap();
            own.result = HookResult::Present;
        }
        Stage::Image | Stage::Declaration | Stage::Migrations | Stage::Composition | Stage::Application => {
            let app = seen.apps.iter_mut().find(|app| app.app.as_str() == row.subject).unwrap();
            if early && row.stage == Stage::Image {
                app.stand.image = ImageSeen::There(digest());
                app.stand.composition = CompositionSeen::ToCome;
            } else {
                brought(app);
            }
        }
    }
}

/// What a worker and Argo CD do for one app: one push brings everything that belongs to it.
fn brought(app: &mut AppSeen) {
    app.stand.image = ImageSeen::There(digest());
    app.stand.composition = CompositionSeen::There(revision("a"));
    for seen in [&mut app.migrations, &mut app.application] {
        if let FileSeen::Differs(path) = seen {
            *seen = FileSeen::There(path.clone());
        }
    }
    app.deployer = match app.deployer {
        DeployerSeen::Unasked => DeployerSeen::Unasked,
        DeployerSeen::Running
        | DeployerSeen::Behind(_)
        | DeployerSeen::Degraded(_)
        | DeployerSeen::Failed(_) => DeployerSeen::Running,
    };
}

/// The same without anything that a person has to mend first.
fn unobstructed(mut seen: Seen) -> Seen {
    let along: BTreeSet<AppName> = seen.apps.iter().map(|app| app.app.clone()).collect();
    for app in &mut seen.apps {
        if matches!(app.stand.image, ImageSeen::Nothing(_)) {
            app.stand.image = ImageSeen::Missing(revision("a"));
        }
        app.stand.stop = None;
        if app.stand.not_rebuilt(&app.app).is_some() {
            (app.stand.from, app.stand.others) = (None, BTreeSet::new());
        }
        app.findings.clear();
        app.waits.clear();
        app.undeployed.retain(|need| along.contains(need));
        let moves = moves(app);
        for file in [&mut app.migrations, &mut app.application] {
            *file = match file.clone() {
                FileSeen::Unfit(why) => FileSeen::None(why),
                FileSeen::Differs(path) if !moves => FileSeen::There(path),
                other => other,
            };
        }
    }
    if let SecretsSeen::Seen(secrets) = &mut seen.secrets {
        for secret in secrets.iter_mut().filter(|secret| secret.outcome == Outcome::Refused) {
            secret.outcome = Outcome::Made;
        }
    }
    for hook in &mut seen.hooks {
        if matches!(hook.result, HookResult::NoRepository | HookResult::Failed) {
            hook.result = HookResult::Created;
        }
    }
    if !matches!(seen.root, RootSeen::Unasked | RootSeen::Outdated { .. }) {
        seen.root = RootSeen::There;
    }
    seen
}

/// What is left to do, or to wait for.
fn to_do(plan: &Plan) -> Vec<Row> {
    plan.rows.iter().filter(|row| !matches!(row.standing, Standing::There(_))).cloned().collect()
}

fn images() -> impl Strategy<Value = ImageSeen> {
    select(vec![
        ImageSeen::There(digest()),
        ImageSeen::UnderWay(BuildId::parse("a-01kb8t3f7v2m5q9x4c6d8e0g1h").unwrap()),
        ImageSeen::Missing(revision("a")),
        ImageSeen::Lost(digest()),
        ImageSeen::Nothing("no branch".to_owned()),
    ])
}

fn files(path: &'static str) -> impl Strategy<Value = FileSeen> {
    select(vec![
        FileSeen::None("none".to_owned()),
        FileSeen::There(file(path)),
        FileSeen::Differs(file(path)),
        FileSeen::Unfit("no image runs them".to_owned()),
    ])
}

fn maybe(text: &'static str) -> impl Strategy<Value = Option<String>> {
    prop_oneof![4 => Just(None), 1 => Just(Some(text.to_owned()))]
}

fn apps() -> impl Strategy<Value = Vec<AppSeen>> {
    let names = ["a", "b", "c", "d"];
    let needed = move || btree_set(select(names.to_vec()), 0..=2);
    let places = || vec(select(vec!["staging", "bench"]).prop_map(place), 0..=2);
    let one = (
        images(),
        (any::<bool>(), places(), places()),
        (needed(), needed()),
        (maybe("held"), maybe("a finding"), maybe("ready: false")),
        (files("migrations/prod/a/migrations.yaml"), files("applications/a-prod.yaml")),
        select(vec![
            DeployerSeen::Unasked,
            DeployerSeen::Running,
            DeployerSeen::Behind("OutOfSync".to_owned()),
            DeployerSeen::Degraded("Synced, Degraded".to_owned()),
            DeployerSeen::Failed("a migration failed".to_owned()),
        ]),
    );
    vec(one, 1..=4)
        .prop_map(move |all| names.into_iter().zip(all).map(|(name, one)| made(name, one)).collect())
}

type Texts = (Option<String>, Option<String>, Option<String>);
type Names = BTreeSet<&'static str>;
type Places = (bool, Vec<EnvironmentName>, Vec<EnvironmentName>);
type Drawn = (ImageSeen, Places, (Names, Names), Texts, (FileSeen, FileSeen), DeployerSeen);

fn made(app: &str, (image, places, (needs, undeployed), texts, files, deployer): Drawn) -> AppSeen {
    let mut seen = fresh(app);
    let (shown, from, others) = places;
    seen.stand.from = from.into_iter().next();
    seen.stand.others = others.into_iter().collect();
    seen.stand.moving = seen.stand.others.clone();
    seen.needs = needs.into_iter().map(name).collect();
    seen.undeployed = undeployed.into_iter().map(name).filter(|need| seen.needs.contains(need)).collect();
    seen.stand.image = image;
    if shown {
        seen.stand.composition = CompositionSeen::There(revision("a"));
    }
    let (stop, finding, wait) = texts;
    (seen.stand.stop, seen.findings) = (stop, finding.into_iter().collect());
    seen.waits = wait.into_iter().collect();
    (seen.migrations, seen.application) = files;
    seen.deployer = deployer;
    seen
}

fn anything() -> impl Strategy<Value = Seen> {
    let outcomes = select(vec![Outcome::Unchanged, Outcome::Made, Outcome::Changed, Outcome::Refused]);
    let results = select(vec![
        HookResult::Present,
        HookResult::Created,
        HookResult::Repaired,
        HookResult::NoRepository,
        HookResult::Failed,
    ]);
    let root = select(vec![
        RootSeen::Unasked,
        RootSeen::Absent,
        RootSeen::Behind,
        RootSeen::NotRendered,
        RootSeen::Outdated { edited: true },
        RootSeen::Outdated { edited: false },
        RootSeen::There,
    ]);
    (apps(), outcomes, results, root).prop_map(|(apps, outcome, result, root)| Seen {
        secrets: SecretsSeen::Seen(vec![secret(outcome)]),
        hooks: vec![hook("atlas/a", result), hook("cluster/apps", HookResult::Present)],
        root,
        ..seen(apps)
    })
}

proptest! {
    #[test]
    fn a_second_run_has_nothing_to_do(seen in anything()) {
        let mut seen = unobstructed(seen);
        let first = plan(&seen, false);
        prop_assert!(!first.is_refused(), "{first:#?}");
        for row in to_do(&first) {
            done(&mut seen, &row, false);
        }
        let second = plan(&seen, false);
        prop_assert!(second.is_done() && second.asks.is_empty(), "{second:#?}");
        prop_assert_eq!(second.changes(), 0);
        prop_assert!(plan(&seen, true).is_done(), "and needs no build");
    }

    #[test]
    fn whoever_was_interrupted_goes_on_with_the_rest(seen in anything(), at in any::<Index>()) {
        let mut seen = unobstructed(seen);
        let first = to_do(&plan(&seen, false));
        let count = if first.is_empty() { 0 } else { at.index(first.len() + 1) };
        for (number, row) in first.iter().take(count).enumerate() {
            done(&mut seen, row, number + 1 == count);
        }
        let next = plan(&seen, false);
        prop_assert!(!next.is_refused(), "what was done stands in nobody's way: {next:#?}");
        for row in to_do(&next) {
            let known = first.iter().any(|known| (known.stage, &known.subject) == (row.stage, &row.subject));
            // An image that was built anew is to be shown.
            prop_assert!(known || row.stage == Stage::Composition, "nothing else is added: {row:?}");
            done(&mut seen, &row, false);
        }
        prop_assert!(plan(&seen, false).is_done());
    }

    #[test]
    fn whatever_is_asked_of_a_worker_is_in_the_plan_and_nothing_else_is(seen in anything()) {
        let seen = unobstructed(seen);
        let plan = plan(&seen, false);
        for app in &seen.apps {
            let asked = plan.rows.iter().any(|row| {
                row.subject == app.app.as_str() && matches!(row.standing, Standing::Asked(_))
            });
            prop_assert_eq!(asked, plan.asks.iter().any(|(name, _)| *name == app.app));
        }
    }

    #[test]
    fn every_step_has_its_place_and_every_app_comes_after_those_that_it_needs(seen in anything()) {
        let plan = plan(&seen, false);
        prop_assert!(plan.rows.is_sorted_by_key(|row| row.stage));
        for stage in [Stage::Image, Stage::Declaration, Stage::Migrations, Stage::Composition, Stage::Application] {
            let of_stage: Vec<&str> =
                plan.rows.iter().filter(|row| row.stage == stage).map(|row| row.subject.as_str()).collect();
            prop_assert_eq!(of_stage.len(), seen.apps.len());
            let place = |app: &AppName| of_stage.iter().position(|name| *name == app.as_str());
            for app in seen.apps.iter().filter(|app| !is_in_a_circle(&seen, app)) {
                for need in app.needs.iter().filter(|need| place(need).is_some()) {
                    prop_assert!(place(need) < place(&app.app), "{need} before {}: {of_stage:?}", app.app);
                }
            }
        }
    }

    #[test]
    fn without_a_build_what_is_not_there_is_refused_and_nothing_else_is(seen in anything()) {
        let (with, without) = (plan(&seen, false), plan(&seen, true));
        for (built, row) in with.rows.iter().zip(&without.rows) {
            if row.stage != Stage::Image {
                prop_assert_eq!(built, row);
                continue;
            }
            let app = seen.apps.iter().find(|app| app.app.as_str() == row.subject).unwrap();
            let there = matches!(app.stand.image, ImageSeen::There(_));
            prop_assert_eq!(there, matches!(row.standing, Standing::There(_)), "{:?}", row);
            prop_assert_eq!(!there, matches!(row.standing, Standing::Refused(..)), "{:?}", row);
        }
    }
}

/// Whether an app needs itself through others, or needs such an app.
fn is_in_a_circle(seen: &Seen, app: &AppSeen) -> bool {
    let mut known = BTreeSet::new();
    let mut left: Vec<&AppName> = vec![&app.app];
    let on_a_circle = |start: &AppName| {
        let mut reached: BTreeSet<&AppName> = BTreeSet::new();
        let mut left: Vec<&AppName> = vec![start];
        while let Some(next) = left.pop() {
            for need in seen.apps.iter().filter(|other| other.app == *next).flat_map(|other| &other.needs) {
                if need == start {
                    return true;
                }
                if reached.insert(need) {
                    left.push(need);
                }
            }
        }
        false
    };
    while let Some(next) = left.pop() {
        if known.insert(next) {
            if on_a_circle(next) {
                return true;
            }
            left.extend(seen.apps.iter().filter(|other| other.app == *next).flat_map(|other| &other.needs));
        }
    }
    false
}

fn told(plan: &Plan) -> String {
    let mut lines = String::new();
    for row in &plan.rows {
        let word = match &row.standing {
            Standing::There(_) => "there",
            Standing::Own(_) => "own",
            Standing::Asked(_) => "asked",
            Standing::Awaited(_) => "awaited",
            Standing::Refused(..) => "refused",
        };
        lines.push_str(&format!("{} {}: {word}: {}\n", row.stage, row.subject, row.standing.what()));
    }
    lines
}

#[test]
fn a_first_seed_is_told_in_order() {
    insta::assert_snapshot!(told(&plan(&seen(vec![fresh("a")]), false)), @r"
    image a: asked: a worker builds aaaaaaaaaaaa
    declaration a: there: fits what the cluster offers
    secrets apps/pg: own: to be made from postgres/role
    migrations a: asked: migrations/prod/a/migrations.yaml comes in the commit of the image
    webhooks atlas/a: own: to be made
    webhooks cluster/apps: there: delivers pushes to main
    composition a: asked: a worker commits apps/a/prod/composition.yaml
    application a: asked: applications/a-prod.yaml comes in the commit of the image
    ");
}

#[test]
fn an_app_that_needs_another_is_refused_alone_and_goes_along_with_it() {
    let mut needing = fresh("b");
    needing.needs = BTreeSet::from([name("a")]);
    needing.undeployed = needing.needs.clone();
    let alone = plan(&seen(vec![needing.clone()]), false);
    assert!(
        alone.is_refused() && told(&alone).contains("`fabrique seed a b` brings both"),
        "{}",
        told(&alone)
    );
    let both = plan(&seen(vec![needing.clone(), fresh("a")]), false);
    assert!(!both.is_refused(), "{}", told(&both));
    assert_eq!(both.asks, [(name("a"), Ask::Look), (name("b"), Ask::Look)]);
    // What is up already stays up, whatever is said of it now.
    brought(&mut needing);
    needing.waits = vec!["its declaration says ready: false".to_owned()];
    let up = plan(&seen(vec![needing]), false);
    assert!(!up.is_refused(), "{}", told(&up));
}

#[test]
fn a_derived_secret_is_refused_where_no_cluster_is_asked_and_an_app_without_one_is_not() {
    let mut without = seen(vec![fresh("a")]);
    without.secrets = SecretsSeen::Unasked(vec!["apps/pg".to_owned()]);
    let refused = plan(&without, false);
    assert!(refused.is_refused() && told(&refused).contains("seed.environments"), "{}", told(&refused));
    without.secrets = SecretsSeen::Unasked(Vec::new());
    assert!(!plan(&without, false).is_refused());
}

#[test]
fn an_application_that_no_commit_would_write_is_left_to_render() {
    let mut up = fresh("a");
    brought(&mut up);
    up.application = FileSeen::Differs(file("applications/a-prod.yaml"));
    let plan = plan(&seen(vec![up]), false);
    assert!(plan.is_refused() && told(&plan).contains("`fabrique render --path .`"), "{}", told(&plan));
}

#[test]
fn a_lost_image_is_not_built_anew_where_that_moves_another_environment_or_brings_nothing() {
    let mut up = fresh("a");
    brought(&mut up);
    up.stand.image = ImageSeen::Lost(digest());
    let alone = plan(&seen(vec![up.clone()]), false);
    assert_eq!(alone.asks, [(name("a"), Ask::Build)]);
    let mut shared = up.clone();
    shared.stand.others = BTreeSet::from([place("staging")]);
    let refused = plan(&seen(vec![shared.clone()]), false);
    assert!(refused.is_refused() && refused.asks.is_empty(), "{refused:#?}");
    assert!(told(&refused).contains("moves staging as well; `fabrique rebuild a`"), "{}", told(&refused));
    let mut promoted = up;
    promoted.stand.from = Some(place("staging"));
    let refused = plan(&seen(vec![promoted]), false);
    assert!(refused.is_refused() && refused.asks.is_empty(), "{refused:#?}");
    assert!(told(&refused).contains("push it there again"), "{}", told(&refused));
    // What a worker builds and commits anyway says where else it goes.
    shared.stand.image = ImageSeen::Missing(revision("a"));
    shared.stand.composition = CompositionSeen::ToCome;
    shared.stand.moving = BTreeSet::from([place("staging")]);
    let both = plan(&seen(vec![shared.clone()]), false);
    assert!(told(&both).contains("it is to come to staging as well"), "{}", told(&both));
    assert_eq!(both.elsewhere, BTreeSet::from([place("staging")]));
    brought(&mut shared);
    assert_eq!(plan(&seen(vec![shared]), false).elsewhere, BTreeSet::new(), "nobody is asked for anything");
}

#[test]
fn whoever_denies_or_is_away_decides_how_it_ends() {
    let mut denied = seen(vec![fresh("a")]);
    denied.hooks = vec![hook("atlas/a", HookResult::Failed)];
    assert_eq!(plan(&denied, false).refusals().collect::<Vec<_>>(), [Exit::Denied]);
    denied.hooks = vec![hook("atlas/a", HookResult::Present)];
    denied.secrets = SecretsSeen::Seen(vec![secret(Outcome::Refused)]);
    assert_eq!(plan(&denied, false).refusals().collect::<Vec<_>>(), [Exit::Denied]);
    let mut wrong = fresh("a");
    wrong.findings = vec!["a finding".to_owned()];
    assert_eq!(plan(&seen(vec![wrong]), false).refusals().collect::<Vec<_>>(), [Exit::Findings]);
}

#[test]
fn what_failed_too_often_is_tried_again_and_what_fails_by_its_source_is_not() {
    let mut app = fresh("a");
    app.stand.used_up = Some("dead letter after 5 attempts".to_owned());
    assert_eq!(plan(&seen(vec![app.clone()]), false).asks, [(name("a"), Ask::Look)]);
    app.stand.stop = Some("failed by its source".to_owned());
    let refused = plan(&seen(vec![app]), false);
    assert!(refused.is_refused() && told(&refused).contains("image a: refused: failed by its source"));
}

#[test]
fn a_root_that_was_not_applied_as_it_is_stands_in_the_way_and_what_helps_is_told() {
    let mut up = fresh("b");
    brought(&mut up);
    for (root, helps) in [
        (RootSeen::Absent, "has no root Application"),
        (RootSeen::Behind, "root.yaml changed since it was applied"),
        (RootSeen::NotRendered, "`fabrique render --path .`"),
    ] {
        for app in [fresh("a"), up.clone()] {
            let mut seen = seen(vec![app]);
            seen.root = root;
            let refused = plan(&seen, false);
            let told = told(&refused);
            assert!(
                refused.is_refused() && told.contains(helps) && told.contains("apply root.yaml"),
                "{told}"
            );
            seen.root = RootSeen::Unasked;
            assert!(!plan(&seen, false).is_refused());
        }
    }
}

#[test]
fn a_root_that_lets_an_app_in_stops_nothing_of_it_and_is_told() {
    let mut up = fresh("b");
    brought(&mut up);
    for (edited, word) in [(true, "without its first line it is yours"), (false, "though not for it")] {
        let mut seen = seen(vec![fresh("a"), up.clone()]);
        seen.root = RootSeen::Outdated { edited };
        let first = plan(&seen, false);
        assert!(!first.is_refused() && told(&first).matches(word).count() == 2, "{}", told(&first));
        for row in to_do(&first) {
            done(&mut seen, &row, false);
        }
        let second = plan(&seen, false);
        assert!(second.is_done() && second.changes() == 0, "{}", told(&second));
        assert_eq!(told(&second).matches(word).count(), 2, "{}", told(&second));
    }
}

#[test]
fn a_root_that_lacks_something_for_an_app_is_refused_with_it_and_no_remedy_destroys_an_edit() {
    for (edited, helps) in [
        (true, "add that, and remove its first line, or `fabrique render --path .` overwrites it; commit"),
        (false, "`fabrique render --path .` in a checkout of cluster/apps writes it"),
    ] {
        let mut lacking = fresh("a");
        lacking.lacks = vec!["the project x".to_owned(), "the repository y".to_owned()];
        let mut seen = seen(vec![lacking, fresh("b")]);
        seen.root = RootSeen::Outdated { edited };
        let refused = plan(&seen, false);
        let told = told(&refused);
        let refusals = refused.rows.iter().filter(|row| matches!(row.standing, Standing::Refused(..)));
        let refusals: Vec<&str> = refusals.map(|row| row.subject.as_str()).collect();
        assert_eq!(refusals, ["a"], "{told}");
        assert!(told.contains("the project x, the repository y") && told.contains(helps), "{told}");
    }
}
