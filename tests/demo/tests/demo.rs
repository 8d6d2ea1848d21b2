//! The demo, run as people and CI run it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail the test, and show what they measured"
)]

mod guide;
mod next;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use fabrique_bed::wait_until;
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};

/// How long a demo may take whose servers are built. Only ever a bound.
const LONG: Duration = Duration::from_secs(180);
/// What is told of a push, in this order.
const PHASES: [&str; 7] = ["delivery", "wake", "decision", "build", "step", "digest", "commit"];

/// The demo, with `fabrique` beside it.
fn demo(arguments: &[&str]) -> Command {
    static BUILT: OnceLock<()> = OnceLock::new();
    let demo = Path::new(env!("CARGO_BIN_EXE_demo"));
    // A run of the whole workspace's tests has built it; a run of this crate's alone has not.
    BUILT.get_or_init(|| {
        if !demo.with_file_name("fabrique").is_file() {
            let mut cargo = std::process::Command::new(env!("CARGO"));
            let built = cargo.args(["build", "--locked", "--package", "fabrique"]).status().unwrap();
            assert!(built.success(), "fabrique does not build");
        }
    });
    let mut command = Command::new(demo);
    command.args(arguments).kill_on_drop(true);
    command
}

/// A demo that was run to its end without a terminal.
struct Ended {
    pid: u32,
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn ended(arguments: &[&str]) -> Ended {
    let mut command = demo(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id().unwrap();
    let output = tokio::time::timeout(LONG, child.wait_with_output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { pid, code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The folders of a demo's servers, and the processes that work in them or name them.
fn leftovers(pid: u32) -> Vec<PathBuf> {
    let base = std::env::temp_dir().join(format!("fabrique-bed-{}", rustix::process::getuid().as_raw()));
    let mark = base.join(format!("{pid}-")).to_string_lossy().into_owned();
    let names_it = |text: &str| text.contains(&mark);
    let folders = entries(&base).filter(|path| names_it(&path.to_string_lossy()));
    let processes = entries(Path::new("/proc")).filter(|process| {
        let cwd = fs::read_link(process.join("cwd")).unwrap_or_default();
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        names_it(&cwd.to_string_lossy()) || names_it(&String::from_utf8_lossy(&command))
    });
    folders.chain(processes).collect()
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path())
}

/// An offset in milliseconds and a phase, for the line of a timeline.
fn row(line: &str) -> Option<(u64, &str)> {
    let (offset, rest) = line.trim_start().split_once(" s  ")?;
    let (seconds, millis) = offset.split_once('.')?;
    let offset = seconds.parse::<u64>().ok()? * 1000 + millis.parse::<u64>().ok()?;
    Some((offset, rest.split_whitespace().next()?))
}

/// Revision and digest of `committed citation REVISION DIGEST in 1.6 s`.
fn committed(line: &str) -> (&str, &str) {
    committed_of("citation", line)
}

/// The same of any app.
fn committed_of<'l>(app: &str, line: &'l str) -> (&'l str, &'l str) {
    let words: Vec<&str> = line.split(' ').collect();
    let ["committed", of, revision, digest, "in", took, "s"] = words.as_slice() else {
        panic!("not the line of a commit: {line:?}");
    };
    assert_eq!(*of, app, "{line}");
    let hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    assert!(revision.len() == 12 && hex(revision), "{line}");
    let digits = digest.strip_prefix("sha256:").unwrap();
    assert!(digits.len() == 64 && hex(digits), "{line}");
    let (whole, tenths) = took.split_once('.').unwrap();
    assert!(whole.parse::<u32>().is_ok() && tenths.len() == 1 && tenths.parse::<u32>().is_ok(), "{line}");
    (revision, digest)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_is_told_from_its_delivery_to_its_commit_and_nothing_is_left() {
    let Ended { pid, code, stdout, stderr } = ended(&["--once"]).await;

    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    let rows: Vec<(u64, &str)> = lines.iter().filter_map(|line| row(line)).collect();
    assert!(rows.is_sorted_by_key(|(offset, _)| *offset), "{stdout}");
    let first = PHASES.map(|phase| rows.iter().position(|(_, told)| *told == phase));
    assert!(first.iter().all(Option::is_some) && first.is_sorted(), "{first:?}\n{stdout}");

    let after_rows = lines.iter().rposition(|line| row(line).is_some()).unwrap() + 1;
    let (revision, digest) = committed(lines[after_rows]);
    assert!(stdout.contains(&format!("atlas/citation {revision} \"Say hello\"")), "{stdout}");
    let diff = format!("+    digest: {digest}");
    assert!(lines.iter().any(|line| line.starts_with(&diff)), "no {diff} in\n{stdout}");

    let commits: Vec<&&str> = lines.iter().filter(|line| line.starts_with("committed citation ")).collect();
    let [_, warm] = commits.as_slice() else { panic!("not two commits: {stdout}") };
    let (again, new_digest) = committed(warm);
    assert!(again != revision && new_digest != digest, "{stdout}");
    assert!(stdout.contains(&format!("\n-    digest: {digest}")), "{stdout}");
    assert!(stdout.contains(&format!("\n+    digest: {new_digest}")), "{stdout}");
    waited_for_the_other(&lines);
    assert!(!stdout.contains('\x1b'), "colours without a terminal");
    assert_eq!(leftovers(pid), Vec::<PathBuf>::new());
}

/// The app that needs another says that it waits and for which, and is deployed at that very revision once the other is
/// ready.
fn waited_for_the_other(lines: &[&str]) {
    let at = |begins: &str| {
        let found = lines.iter().position(|line| line.trim_start().starts_with(begins));
        found.unwrap_or_else(|| panic!("no {begins:?} in\n{}", lines.join("\n")))
    };
    let (waits, deployed) = (at("not committed mediawatch "), at("committed mediawatch "));
    let ready = lines.iter().position(|line| line.contains("\"ready: true\"")).unwrap();
    assert!(waits < ready && ready < deployed, "{waits} {ready} {deployed}");
    let (revision, _) = committed_of("mediawatch", lines[deployed]);
    let reason = "waits: citation, which it depends on, says ready: false";
    assert!(
        lines[waits].starts_with(&format!("not committed mediawatch {revision} after ")),
        "{}",
        lines[waits]
    );
    assert!(lines[waits].ends_with(reason), "{}", lines[waits]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_image_that_is_absent_fails_the_demo_and_names_step_and_image() {
    let Ended { pid, code, stdout, stderr } = ended(&["--once", "--base", "base/absent:1"]).await;

    assert_eq!(code, Some(1), "{stdout}{stderr}");
    assert!(!stdout.contains("committed citation"), "{stdout}");
    assert!(stdout.lines().filter_map(row).any(|(_, phase)| phase == "delivery"), "{stdout}");
    let said =
        stderr.lines().find(|line| line.starts_with("demo: step \"first push\" failed: not committed"));
    assert!(said.is_some_and(|said| said.contains("base/absent:1 does not exist")), "{stderr}");
    assert!(stderr.contains("---- fabrique why citation\n"), "{stderr}");
    assert!(stderr.ends_with("demo: everything is stopped\n"), "{stderr}");
    assert_eq!(leftovers(pid), Vec::<PathBuf>::new());
}

/// A demo with a terminal, and what it has shown so far.
struct Watched {
    child: Child,
    keyboard: File,
    shown: Arc<Mutex<String>>,
}

impl Watched {
    fn start() -> Self {
        let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
        let ours: OwnedFd = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&ours).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        let mut command = demo(&[]);
        command.env("TERM", "xterm").env_remove("NO_COLOR");
        command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
        let child = command.spawn().unwrap();
        let keyboard = File::from(ours);
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut screen, seen) = (keyboard.try_clone().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading ends with an error once nobody holds the other side any more.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { child, keyboard, shown }
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    async fn shows(&self, text: &str) {
        let what = format!("{text:?} on the screen");
        let shown = wait_until(&what, LONG, || async { self.shown().contains(text).then_some(()) });
        shown.await.unwrap_or_else(|error| panic!("{error}\n{}", self.shown()));
    }

    fn types(&mut self, line: &str) {
        writeln!(self.keyboard, "{line}").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_terminal_it_stays_up_until_it_is_interrupted() {
    let mut demo = Watched::start();
    demo.shows("Everything stays up until Ctrl-C").await;
    assert!(demo.shown().contains("\x1b[32m+"), "the diff has colours: {}", demo.shown());
    demo.types("n");
    demo.shows("NATS is stopped").await;
    demo.types("n");
    demo.shows("NATS runs again").await;

    let pid = demo.child.id().unwrap();
    assert!(!leftovers(pid).is_empty(), "it is up");
    let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(process, Signal::INT).unwrap();
    let status = tokio::time::timeout(LONG, demo.child.wait()).await.unwrap().unwrap();

    assert_eq!(status.code(), Some(0), "{}", demo.shown());
    demo.shows("everything is stopped").await;
    assert_eq!(leftovers(pid), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_on_the_way_it_stops_everything_and_says_so() {
    let mut demo = Watched::start();
    demo.shows("`fabrique all`").await;
    let pid = demo.child.id().unwrap();
    let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(process, Signal::INT).unwrap();
    let status = tokio::time::timeout(LONG, demo.child.wait()).await.unwrap().unwrap();

    assert_eq!(status.code(), Some(130), "{}", demo.shown());
    demo.shows("interrupted; everything is stopped").await;
    assert_eq!(leftovers(pid), Vec::<PathBuf>::new());
}
