//! `docs/add-an-app.md`, typed in another terminal as it stands there, on the servers of a demo that stays up.

use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::next::Suggestions;
use crate::{LONG, Watched};

/// Printed behind each block, so that its output can be told from the next one's.
const MARK: &str = "----guide----";

/// What is typed at once, and what has to come of it, where the page shows that.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    typed: String,
    shown: Option<String>,
}

/// The blocks to be typed, each with the output that follows it at once.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut parts = page.split("```");
    let mut between = parts.next().unwrap_or_default();
    while let (Some(part), Some(rest)) = (parts.next(), parts.next()) {
        let (kind, text) = part.split_once('\n').unwrap();
        match kind {
            "sh" => blocks.push(Block { typed: text.to_owned(), shown: None }),
            "text" => {
                assert_eq!(between.trim(), "", "an output has to follow what is typed");
                blocks.last_mut().unwrap().shown = Some(text.to_owned());
            }
            other => panic!("a block of {other:?}"),
        }
        between = rest;
    }
    blocks
}

/// Whether `text` is what `shown` shows: `…` stands for anything, in a line, and alone in one for any lines.
fn shows(shown: &str, text: &str) -> bool {
    fn lines(shown: &[&str], text: &[&str]) -> bool {
        match (shown, text) {
            ([], []) => true,
            (["…", shown @ ..], _) => (0..=text.len()).any(|skipped| lines(shown, &text[skipped..])),
            ([first, shown @ ..], [line, text @ ..]) => in_line(first, line) && lines(shown, text),
            ([], [_, ..]) | ([_, ..], []) => false,
        }
    }
    lines(&shown.lines().collect::<Vec<_>>(), &text.lines().collect::<Vec<_>>())
}

fn in_line(shown: &str, line: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn an_output_is_compared_but_for_what_it_leaves_open() {
    assert!(shows("…\ncommitted a … in … s\n", "x\ny\ncommitted a 1b in 1.0 s\n"));
    assert!(shows("a … b …", "a c b d"));
    assert!(shows("…\nb\n…\n", "b\n") && shows("a", "a\n"));
    assert!(!shows("a", "a\nb") && !shows("a …c", "a b") && !shows("a\nb", "a") && !shows("…b", "a"));
    assert!(!shows("…\ncommitted …\n", "not committed\n"));
}

#[test]
fn a_page_is_what_is_typed_and_what_comes_of_it() {
    let page = "a\n```sh\nls\n```\n```text\nb\n```\nc\n```sh\ncd d\n```\n";
    let of =
        |typed: &str, shown: Option<&str>| Block { typed: typed.to_owned(), shown: shown.map(str::to_owned) };
    assert_eq!(blocks(page), [of("ls\n", Some("b\n")), of("cd d\n", None)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_adds_an_app_as_it_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/add-an-app.md");
    let blocks = blocks(&std::fs::read_to_string(page).unwrap());
    assert!(blocks.len() > 8, "{blocks:#?}");
    let demo = Watched::start();
    demo.shows("as ada, password lovelace").await;
    let next = Suggestions::of(&demo);
    assert!(next.beside("add an app").starts_with("docs/add-an-app.md"));

    let folder = Folder::create();
    let mut script = format!("set -e\n{}\ncd '{}'\n", next.beside("first"), folder.0.display());
    for block in &blocks {
        script += &format!("{}echo '{MARK}'\n", block.typed);
    }
    let mut shell = Command::new("bash");
    // Nobody's own settings of git, as on a machine that is new.
    shell.args(["-c", &script]).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    shell.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LONG * 2, shell.output()).await.unwrap().unwrap();

    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    let outputs: Vec<&str> = stdout.split(&format!("{MARK}\n")).collect();
    assert_eq!(outputs.len(), blocks.len() + 1, "{stdout}");
    for (block, output) in blocks.iter().zip(outputs) {
        if let Some(shown) = &block.shown {
            assert!(shows(shown, output), "{}\nshows\n{output}\nand not\n{shown}\n{stderr}", block.typed);
        }
    }
}

/// A folder that goes away with everything in it.
struct Folder(std::path::PathBuf);

impl Folder {
    fn create() -> Self {
        let path = std::env::temp_dir().join(format!("fabrique-guide-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
