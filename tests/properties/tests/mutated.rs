//! The properties on real files with random changes: pieces cut out, doubled, moved, and put in that mean something to
//! YAML. And on the files as they are, which has to be the case that always holds.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fabrique_properties::{CONTRACT, DECLARATION, FILES, checkout, contract, declaration, edit};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// What a person types by mistake, and what YAML reads otherwise than it looks.
const PIECES: [&str; 40] = [
    "\n",
    "\r\n",
    "\r",
    "\t",
    " ",
    "  ",
    ":",
    ": ",
    "- ",
    "#",
    " #",
    "{",
    "}",
    "[",
    "]",
    ",",
    "'",
    "\"",
    "|",
    ">-",
    "&a ",
    "*a",
    "!!str ",
    "? ",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "~",
    "null",
    "0x1f",
    "1e400",
    "-1",
    "\u{feff}",
    "\u{85}",
    "\u{2028}",
    "é日😀",
    "\0",
    "<<: ",
    "\\",
    "@`",
];

/// A change of a text.
#[derive(Debug, Clone)]
enum Change {
    Put(Index, &'static str),
    Cut(Index, usize),
    Double(Index, usize),
    Move(Index, usize, Index),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        3 => (any::<Index>(), select(PIECES.to_vec())).prop_map(|(at, piece)| Change::Put(at, piece)),
        2 => (any::<Index>(), 1..20usize).prop_map(|(at, width)| Change::Cut(at, width)),
        1 => (any::<Index>(), 1..60usize).prop_map(|(at, width)| Change::Double(at, width)),
        1 => (any::<Index>(), 1..60usize, any::<Index>()).prop_map(|(at, width, to)| Change::Move(at, width, to)),
    ];
    vec(change, 0..5)
}

fn changed(text: &str, changes: &[Change]) -> String {
    let mut text: Vec<char> = text.chars().collect();
    for change in changes {
        match change {
            Change::Put(at, piece) => {
                let at = at.index(text.len() + 1);
                text.splice(at..at, piece.chars());
            }
            Change::Cut(at, width) => drop(cut(&mut text, at, *width)),
            Change::Double(at, width) => {
                let piece = cut(&mut text, at, *width);
                let at = at.index(text.len() + 1);
                text.splice(at..at, piece.iter().chain(&piece).copied());
            }
            Change::Move(at, width, to) => {
                let piece = cut(&mut text, at, *width);
                let to = to.index(text.len() + 1);
                text.splice(to..to, piece);
            }
        }
    }
    text.into_iter().collect()
}

fn cut(text: &mut Vec<char>, at: &Index, width: usize) -> Vec<char> {
    let at = at.index(text.len() + 1);
    let end = (at + width).min(text.len());
    text.drain(at..end).collect()
}

/// The manifests of this repository: what people write, with their comments.
fn manifests() -> &'static [String] {
    static MANIFESTS: OnceLock<Vec<String>> = OnceLock::new();
    MANIFESTS.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../k8s");
        let mut files: Vec<PathBuf> = Vec::new();
        let mut folders = vec![root];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "yaml") {
                    files.push(path);
                }
            }
        }
        files.sort();
        let read = files.iter().map(|file| std::fs::read_to_string(file).unwrap());
        // Every node of a file is looked at for every case: the short ones say as much.
        let short: Vec<String> = read.filter(|text| text.len() < 2_000).collect();
        assert!(short.len() > 20, "only {} manifests", short.len());
        short.into_iter().chain(FILES.map(|(_, text)| text.to_owned())).collect()
    })
}

#[test]
fn everything_holds_for_the_files_as_they_are() {
    declaration(DECLARATION.as_bytes());
    contract(CONTRACT.as_bytes());
    for (which, (_, text)) in FILES.iter().enumerate() {
        checkout(which, text.as_bytes());
    }
    let mut made = 0;
    for text in manifests() {
        for new in ["sha256:0", "yes", "it's \"this\"", "", "a\nb", "\u{feff}é"] {
            edit(text.as_bytes(), &[0xff; 400], new);
            made += usize::from(edit(text.as_bytes(), &[0b0001_0001], new));
        }
    }
    assert!(made > 3 * manifests().len(), "only {made} edits of {} files were made", manifests().len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_declaration_is_read_or_refused_with_places(changes in changes()) {
        declaration(changed(DECLARATION, &changes).as_bytes());
    }

    #[test]
    fn a_contract_is_read_or_refused_with_places(changes in changes()) {
        contract(changed(CONTRACT, &changes).as_bytes());
    }

    #[test]
    fn a_checkout_is_told_of_and_deployed_into_whole_or_not_at_all(which in 0..FILES.len(), changes in changes()) {
        checkout(which, changed(FILES[which].1, &changes).as_bytes());
    }

    #[test]
    fn a_checkout_may_hold_any_bytes(which in 0..FILES.len(), bytes in vec(any::<u8>(), 0..200)) {
        checkout(which, &bytes);
    }

    #[test]
    fn an_edit_is_all_or_nothing_and_byte_exact_elsewhere(
        which in any::<Index>(),
        changes in changes(),
        // A few values, or half of them.
        chosen in prop_oneof![vec(select(vec![0, 0, 1, 16, 33]), 1..24), vec(any::<u8>(), 0..24)],
        new in prop_oneof![
            "sha256:[0-9a-f]{8}",
            "[ -~é\\t\\n]{0,12}",
            select(vec!["", "yes", "null", "0x1f", "a: b", "- a", "'", "\"", "\\", "\u{feff}x", "\u{2028}"]).prop_map(str::to_owned),
        ],
    ) {
        edit(changed(&manifests()[which.index(manifests().len())], &changes).as_bytes(), &chosen, &new);
    }
}
