//! Against a real PostgreSQL, with pgvector.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::time::Duration;

use anyhow::Result;
use fabrique_bed::{Postgres, free_port, wait_until};
use fabrique_core::id::AppName;
use fabrique_migrate::{Connect, File, Limits, Refusal, Report, Set, TlsMode, migrate};
use fabrique_ports::Fault;
use futures::future::join_all;
use tokio::sync::OnceCell;

const PASSWORD: &str = "kX7-of-the-app";
const LIMITS: Limits = Limits { wait: Duration::from_secs(20), whole: Duration::from_secs(60) };

/// The server that tests share, each with a database and a role of its own.
async fn server() -> &'static Postgres {
    static SHARED: OnceCell<Postgres> = OnceCell::const_new();
    SHARED.get_or_init(|| async { Postgres::start().await.unwrap_or_else(|error| panic!("{error:#}")) }).await
}

async fn database(name: &str) -> Result<Connect> {
    let server = server().await;
    server.database(name, name, PASSWORD).await?;
    Ok(Connect {
        host: "127.0.0.1".to_owned(),
        port: server.port(),
        database: name.to_owned(),
        user: name.to_owned().into(),
        password: Some(PASSWORD.to_owned().into()),
        tls: TlsMode::VerifyFull,
        authority: Some(server.authority().to_owned()),
    })
}

async fn sql(connect: &Connect, statement: &str) -> Result<String> {
    server().await.sql(&connect.database, statement).await
}

fn set(files: &[(&str, &str)]) -> Set {
    let file = |(name, sql): &(&str, &str)| File { name: (*name).to_owned(), sql: (*sql).to_owned() };
    Set::new(files.iter().map(file).collect()).unwrap()
}

fn app() -> AppName {
    AppName::parse("citation").unwrap()
}

async fn run(connect: &Connect, files: &[(&str, &str)]) -> Report {
    migrate(connect, &app(), &set(files), LIMITS).await.unwrap_or_else(|error| panic!("{error}"))
}

fn told(report: &Report) -> String {
    report.refused.as_ref().map(ToString::to_string).unwrap_or_default()
}

const ONE: (&str, &str) = (
    "001-notes.sql",
    "CREATE TABLE notes (id int PRIMARY KEY, body text);\nINSERT INTO notes VALUES (1, 'a');",
);
const TWO: (&str, &str) = ("002-more.sql", "ALTER TABLE notes ADD COLUMN at timestamptz;");

#[tokio::test]
async fn the_first_run_applies_and_the_second_finds_nothing_to_do() -> Result<()> {
    let connect = database("first").await?;
    let first = run(&connect, &[ONE, TWO]).await;
    assert_eq!(
        (first.applied.as_slice(), first.already, &first.refused),
        (&["001-notes.sql", "002-more.sql"].map(str::to_owned)[..], 0, &None)
    );
    let second = run(&connect, &[ONE, TWO]).await;
    assert_eq!(second, Report { already: 2, ..Report::default() });
    assert_eq!(sql(&connect, "SELECT count(*) FROM notes").await?, "1");
    let ledger = "SELECT version, description, success FROM fabrique_migrations_citation ORDER BY 1";
    assert_eq!(sql(&connect, ledger).await?, "1|001-notes.sql|t\n2|002-more.sql|t");
    // Another app in the same database has a ledger of its own.
    let other = AppName::parse("mediawatch").unwrap();
    let report = migrate(&connect, &other, &set(&[("001-own.sql", "CREATE TABLE own ()")]), LIMITS).await?;
    assert_eq!(report.applied, ["001-own.sql"]);
    Ok(())
}

#[tokio::test]
async fn a_file_that_breaks_leaves_nothing_behind_and_says_where() -> Result<()> {
    let connect = database("broken").await?;
    let broken = ("002-broken.sql", "CREATE TABLE half (id int);\n\nINSERT INTO half VALUES (1);\nSELEC 1;");
    let report = run(&connect, &[ONE, broken, TWO]).await;
    assert_eq!(report.applied, ["001-notes.sql"]);
    let why = told(&report);
    assert!(
        why.starts_with("002-broken.sql:4: syntax error at or near \"SELEC\" (42601); nothing of it is left"),
        "{why}"
    );
    assert_eq!(
        sql(&connect, "SELECT to_regclass('half') IS NULL, count(*) FROM fabrique_migrations_citation")
            .await?,
        "t|1"
    );
    // What is wrong with data is told without the data.
    let doubled = ("002-doubled.sql", "INSERT INTO notes VALUES (77123, 'b'), (77123, 'c');");
    let why = told(&run(&connect, &[ONE, doubled]).await);
    assert!(why.contains("duplicate key value") && !why.contains("77123"), "{why}");
    // Once corrected it goes on where it stopped.
    assert_eq!(run(&connect, &[ONE, TWO]).await.applied, ["002-more.sql"]);
    Ok(())
}

#[tokio::test]
async fn no_end_of_a_line_hides_a_commit_from_what_is_refused() -> Result<()> {
    let connect = database("hidden").await?;
    // The server itself takes these for two statements.
    for (name, hiding) in [("cr", "-- x\rCOMMIT;"), ("string", "SELECT E'a'\n'\\''; COMMIT; --'")] {
        let half = format!("CREATE TABLE half_{name} ();\n{hiding}");
        sql(&connect, &format!("BEGIN; {half}\nROLLBACK")).await?;
        let there = sql(&connect, &format!("SELECT to_regclass('half_{name}') IS NOT NULL")).await?;
        assert_eq!(there, "t", "{name} was to commit");
        let refused = Set::new(vec![File { name: "001-half.sql".to_owned(), sql: half }]).unwrap_err();
        assert!(refused.to_string().contains(": COMMIT begins or ends a transaction"), "{refused}");
    }
    Ok(())
}

#[tokio::test]
async fn an_error_names_its_line_whatever_ends_the_lines() -> Result<()> {
    let connect = database("lines").await?;
    let broken = format!("CREATE TABLE half ();{}SELEC 1;\r\n", "\r\n".repeat(40));
    let why = told(&run(&connect, &[("001-broken.sql", &broken)]).await);
    assert!(why.starts_with("001-broken.sql:41: syntax error"), "{why}");
    Ok(())
}

#[tokio::test]
async fn a_limit_beyond_what_the_server_counts_to_is_as_much_as_it_can() -> Result<()> {
    let connect = database("patient").await?;
    for whole in [Duration::from_hours(25 * 24), Duration::from_secs(i64::MAX as u64)] {
        migrate(&connect, &app(), &set(&[ONE]), Limits { whole, ..LIMITS }).await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_was_applied_and_is_something_else_now_is_refused_and_changes_nothing() -> Result<()> {
    let connect = database("edited").await?;
    run(&connect, &[ONE, TWO]).await;
    let three = ("003-three.sql", "CREATE TABLE three ();");
    for (files, file) in [
        (vec![ONE, ("002-more.sql", "SELECT 1"), three], "002-more.sql was applied at 2"),
        (vec![TWO], "001-notes.sql was applied at 2"),
        (vec![three, ONE, TWO], "number 1 is 003-three.sql now, and 001-notes.sql was applied there"),
    ] {
        let report = run(&connect, &files).await;
        assert!(told(&report).starts_with(file) && report.applied.is_empty(), "{report:?}");
    }
    assert_eq!(sql(&connect, "SELECT to_regclass('three') IS NULL").await?, "t");
    Ok(())
}

#[tokio::test]
async fn an_older_set_finds_nothing_to_do_and_a_broken_last_file_is_taken_back() -> Result<()> {
    let connect = database("older").await?;
    run(&connect, &[ONE, TWO]).await;
    let older = run(&connect, &[ONE]).await;
    assert_eq!(older, Report { already: 2, ahead: vec!["002-more.sql".to_owned()], ..Report::default() });
    let broken = ("003-broken.sql", "SELEC 1;");
    assert!(told(&run(&connect, &[ONE, TWO, broken]).await).starts_with("003-broken.sql:1: syntax error"));
    assert_eq!(run(&connect, &[ONE, TWO]).await, Report { already: 2, ..Report::default() });
    assert_eq!(sql(&connect, "SELECT count(*) FROM fabrique_migrations_citation").await?, "2");
    // Another way than the one that was gone is none.
    let other = run(&connect, &[ONE, ("002-other.sql", "SELECT 1;")]).await;
    assert!(told(&other).starts_with("002-more.sql was applied at 2"), "{other:?}");
    Ok(())
}

#[tokio::test]
async fn runs_at_once_apply_each_file_once() -> Result<()> {
    let connect = database("at_once").await?;
    let slow =
        ("001-slow.sql", "CREATE TABLE slow (id int);\nSELECT pg_sleep(0.5);\nINSERT INTO slow VALUES (1);");
    // A run that waited inside of PostgreSQL would be waited for by this one, for ever.
    let index = ("002-index.sql", "-- no-transaction\nCREATE INDEX CONCURRENTLY slow_id ON slow (id);");
    let files = [slow, index, ("003-end.sql", "INSERT INTO slow VALUES (2);")];
    let reports = join_all((0..4).map(|_| run(&connect, &files))).await;
    let applied: Vec<usize> =
        reports.iter().map(|report| report.applied.len()).filter(|count| *count > 0).collect();
    assert_eq!(applied, [3], "{reports:?}");
    assert!(
        reports.iter().all(|report| report.refused.is_none() && report.applied.len() + report.already == 3)
    );
    assert_eq!(sql(&connect, "SELECT count(*) FROM slow").await?, "2");
    Ok(())
}

#[tokio::test]
async fn a_vector_index_is_made_while_others_write() -> Result<()> {
    let server = Postgres::start_with_vectors().await?;
    server.database("vectors", "vectors", PASSWORD).await?;
    server.sql("vectors", "CREATE EXTENSION vector").await?;
    let shared = database("vectors").await?;
    let connect = Connect { port: server.port(), tls: TlsMode::Disable, authority: None, ..shared };
    let table = (
        "001-researchers.sql",
        "CREATE TABLE researchers (id int, embedding vector(3));\nINSERT INTO researchers SELECT i, ARRAY[i, i % 7, 1]::vector FROM generate_series(1, 500) i;",
    );
    let index = (
        "002-researchers-hnsw.sql",
        "-- no-transaction\n-- Two statements; each by itself; as here.\nSET maintenance_work_mem = '64MB';\n\
         CREATE INDEX CONCURRENTLY researchers_embedding ON researchers USING hnsw (embedding vector_cosine_ops);",
    );
    assert_eq!(run(&connect, &[table, index]).await.applied.len(), 2);
    let valid = "SELECT indisvalid, amname FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = c.relam \
                 WHERE c.relname = 'researchers_embedding'";
    assert_eq!(server.sql("vectors", valid).await?, "t|hnsw");
    assert_eq!(run(&connect, &[table, index]).await.already, 2);
    Ok(())
}

#[tokio::test]
async fn what_a_file_without_a_transaction_leaves_is_told_until_it_is_gone() -> Result<()> {
    let connect = database("leftover").await?;
    let table = ("001-double.sql", "CREATE TABLE double (id int);\nINSERT INTO double VALUES (1), (1);");
    let index = (
        "002-unique.sql",
        "-- no-transaction\nCREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS double_id ON double (id);",
    );
    let why = told(&run(&connect, &[table, index]).await);
    assert!(
        why.starts_with(
            "002-unique.sql:2: could not create unique index \"double_id\" (23505); it has no transaction"
        ),
        "{why}"
    );
    assert!(why.ends_with("DROP INDEX CONCURRENTLY public.double_id, which is not valid"), "{why}");
    // IF NOT EXISTS would call this done.
    let report = run(&connect, &[table, index]).await;
    assert_eq!(
        report.refused,
        Some(Refusal::InvalidIndex {
            file: "002-unique.sql".to_owned(),
            index: "public.double_id".to_owned()
        })
    );
    sql(&connect, "DROP INDEX double_id; DELETE FROM double").await?;
    assert_eq!(run(&connect, &[table, index]).await.applied, ["002-unique.sql"]);
    Ok(())
}

#[tokio::test]
async fn no_file_sets_anything_for_the_next_one_or_for_the_ledger() -> Result<()> {
    let connect = database("settings").await?;
    // As pg_dump begins its files.
    let dump = (
        "001-dump.sql",
        "SELECT pg_catalog.set_config('search_path', '', false);\nCREATE TABLE public.dumped ();",
    );
    let next = ("002-next.sql", "ALTER TABLE dumped ADD COLUMN id int;");
    assert_eq!(run(&connect, &[dump, next]).await.applied.len(), 2);
    assert_eq!(run(&connect, &[dump, next]).await.already, 2);
    Ok(())
}

#[tokio::test]
async fn a_run_ends_in_time_and_the_server_with_it() -> Result<()> {
    let connect = database("slow").await?;
    let endless = set(&[("001-endless.sql", "CREATE TABLE endless ();\nSELECT pg_sleep(600);")]);
    let limits = Limits { whole: Duration::from_secs(2), ..LIMITS };
    let error = migrate(&connect, &app(), &endless, limits).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Transient);
    assert!(error.to_string().contains("not done within 2 s"), "{error}");
    let there = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fabrique migrate' AND datname = 'slow'";
    wait_until("its session to end", Duration::from_secs(20), || async {
        sql(&connect, there).await.is_ok_and(|count| count == "0").then_some(())
    })
    .await?;
    assert_eq!(sql(&connect, "SELECT to_regclass('endless') IS NULL").await?, "t");
    Ok(())
}

#[tokio::test]
async fn who_may_not_come_in_is_told_at_once_and_without_the_password() -> Result<()> {
    let mut connect = database("denied").await?;
    connect.password = Some("not-the-password".to_owned().into());
    let error = migrate(&connect, &app(), &set(&[ONE]), LIMITS).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Denied);
    let told = format!("{error} {error:?}");
    assert!(told.contains("username and password") && !told.contains("not-the-password"), "{told}");
    Ok(())
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_believed() -> Result<()> {
    let mut connect = database("authority").await?;
    connect.authority = None;
    let error = migrate(&connect, &app(), &set(&[ONE]), LIMITS).await.unwrap_err();
    assert!(!error.transient(), "{error}");
    assert!(error.to_string().contains("PGSSLROOTCERT"), "{error}");
    Ok(())
}

#[tokio::test]
async fn the_server_is_waited_for_and_not_for_ever() -> Result<()> {
    let limits = Limits { wait: Duration::from_millis(600), ..LIMITS };
    let nobody = Connect { port: free_port()?, ..database("waiting").await? };
    let error = migrate(&nobody, &app(), &set(&[ONE]), limits).await.unwrap_err();
    assert!(error.transient() && error.to_string().contains("was waited for for 0.6 s"), "{error}");
    let server = Postgres::start().await?;
    let late = Connect {
        port: server.port(),
        database: "late".to_owned(),
        user: "late".to_owned().into(),
        authority: Some(server.authority().to_owned()),
        ..nobody
    };
    server.database("before", "late", PASSWORD).await?;
    server.peer().stop().await?;
    let files = set(&[ONE]);
    let app = app();
    // Without a server first, then without the database, which comes last.
    let (report, made) = tokio::join!(migrate(&late, &app, &files, LIMITS), async {
        server.peer().start_again().await?;
        server.sql("postgres", "CREATE DATABASE late OWNER late").await
    });
    made?;
    assert_eq!(report?.applied, ["001-notes.sql"]);
    Ok(())
}
