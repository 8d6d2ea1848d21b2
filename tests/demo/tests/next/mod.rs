//! What the demo says to try next, typed in another terminal as it stands on the screen.

use std::path::PathBuf;
use std::process::Stdio;

use fabrique_bed::wait_until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::{LONG, Watched, committed, row};

/// Where what is to be typed begins, behind its name.
const COLUMN: usize = 16;
/// What the demo promises of a start whose servers are built, in seconds.
const PROMISED: f32 = 20.0;
/// What no start takes that builds nothing and waits for nothing, however busy the machine is.
const BROKEN: f32 = 60.0;

/// The suggestions as they stand on the screen.
pub(crate) struct Suggestions(Vec<String>);

impl Suggestions {
    pub(crate) fn of(demo: &Watched) -> Self {
        let shown = demo.shown().replace('\r', "");
        let (_, suggestions) = shown.split_once("Everything stays up until Ctrl-C").unwrap();
        Self(suggestions.lines().map(str::to_owned).collect())
    }

    /// The lines beside a name.
    pub(crate) fn beside(&self, name: &str) -> String {
        let mut lines = self.0.iter().skip_while(|line| !line.starts_with(&format!("  {name}")));
        let first = lines.next().unwrap_or_else(|| panic!("nothing is said of {name:?}: {:#?}", self.0));
        let more = lines.take_while(|line| line.starts_with(&" ".repeat(COLUMN)));
        let text: Vec<&str> = std::iter::once(first).chain(more).map(|line| &line[COLUMN..]).collect();
        text.join("\n")
    }

    /// Types `command` in a terminal that was prepared as the suggestions say first.
    async fn typed(&self, command: &str) -> Typed {
        let output = self.terminal(command).output();
        let output = tokio::time::timeout(LONG, output).await.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Typed { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    fn terminal(&self, command: &str) -> Command {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("{}\n{command}", self.beside("first"))]);
        shell.stdin(Stdio::null()).kill_on_drop(true);
        shell
    }

    /// What the receiver counted: Prometheus' text.
    async fn metrics(&self) -> Option<String> {
        let first = self.beside("first");
        let (_, config) = first.split_once("FABRIQUE_CONFIG=")?;
        let config = PathBuf::from(config.split_whitespace().next()?);
        let config = tokio::fs::read_to_string(config).await.ok()?;
        let (_, receiver) = config.split_once("receiver:\n  listen: ")?;
        let mut stream = TcpStream::connect(receiver.lines().next()?).await.ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }
}

/// What came of a command.
#[derive(Debug)]
struct Typed {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Typed {
    /// The revision of a push that was followed to its commit.
    fn committed(&self) -> &str {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        committed(self.stdout.lines().last().unwrap()).0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_it_says_to_try_next_does_what_it_says() {
    let mut demo = Watched::start();
    demo.shows("as ada, password lovelace").await;
    start_is_measured(&demo);
    let next = Suggestions::of(&demo);

    let again = next.typed(&next.beside("push again")).await;
    let pushed = again.committed();
    let rows: Vec<&str> = again.stdout.lines().filter_map(row).map(|(_, phase)| phase).collect();
    assert!(rows.contains(&"push") && rows.contains(&"delivery") && rows.contains(&"commit"), "{again:?}");

    let ask = next.beside("ask");
    let (why, also) = ask.split_once("     also: ").unwrap();
    let told = next.typed(why.trim_end()).await;
    assert!(told.code == Some(0) && told.stdout.contains(pushed), "{told:?}");
    for command in also.split(", ").filter(|command| *command != "tail") {
        let told = next.typed(&format!("fabrique {command}")).await;
        assert!(told.code == Some(0) && !told.stdout.is_empty(), "{command}: {told:?}");
    }

    assert!(also.contains("tail"), "{also}");
    let mut tail = next.terminal("exec fabrique tail").stdout(Stdio::piped()).spawn().unwrap();
    let broken = next.typed(&next.beside("break it")).await;
    assert_eq!(broken.code, Some(1), "{broken:?}");
    let end = broken.stdout.lines().last().unwrap();
    assert!(end.starts_with("not committed citation ") && end.contains("RUN false"), "{end}");
    let told = next.typed(why.trim_end()).await;
    assert!(told.stdout.contains("RUN false"), "{told:?}");
    let mut events = tail.stdout.take().unwrap();
    let mut seen = String::new();
    let told = async {
        let mut buffer = [0; 4096];
        while !seen.contains("RUN false") {
            let count = events.read(&mut buffer).await.unwrap();
            assert!(count > 0, "it ended after {seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    tokio::time::timeout(LONG, told).await.unwrap();
    tail.kill().await.unwrap();

    let mended = next.typed(&next.beside("mend it")).await;
    assert_ne!(mended.committed(), pushed);

    lost_and_found(&mut demo, &next).await;
}

/// A push while NATS is stopped: its webhook is refused and not repeated, and the push is found all the same.
async fn lost_and_found(demo: &mut Watched, next: &Suggestions) {
    assert!(next.beside("lose a push").starts_with("type n and Enter here to stop NATS, push, and n again"));
    demo.types("n");
    demo.shows("NATS is stopped").await;
    let push = next.beside("push again").replace("&& follow", "&& git push -q");
    let pushed = next.typed(&push).await;
    assert_eq!(pushed.code, Some(0), "{pushed:?}");
    wait_until("the webhook to be refused", LONG, || async {
        let refused = "fabrique_receiver_deliveries_total{outcome=\"unavailable\"}";
        next.metrics().await?.contains(refused).then_some(())
    })
    .await
    .unwrap();
    demo.types("n");
    demo.shows("NATS runs again").await;
    let found = "fabrique timeline citation --revision $(git rev-parse HEAD) --wait 1m";
    let found = next.typed(found).await;
    let head = next.typed("git rev-parse --short=12 HEAD").await;
    assert_eq!(found.committed(), head.stdout.trim());
}

/// The figure beside `ready`. What was promised is measured and not judged: that depends on what else the machine does.
fn start_is_measured(demo: &Watched) {
    let shown = demo.shown();
    let ready = shown.lines().find(|line| line.contains("started, and waiting for a push")).unwrap();
    // It stands between the codes of its colour.
    let figure = ready.rsplit("\x1b[2m").next().unwrap().split(" s").next().unwrap().trim();
    let seconds: f32 = figure.parse().unwrap_or_else(|_| panic!("no figure in {ready:?}"));
    println!("ready after {seconds} s; promised is less than {PROMISED} s once the servers are built");
    assert!(seconds < BROKEN, "ready after {seconds} s: something was built, or waited for in vain");
}
