use std::fmt::Write as _;

use fabrique_core::id::{RelPath, RepoName, Revision};
use proptest::prelude::*;

use super::*;

fn inputs(target: Option<&str>, args: &[(&str, &str)]) -> BuildInputs {
    BuildInputs {
        repo: RepoName::parse("atlas/atlas").unwrap(),
        revision: Revision::parse(&"1b".repeat(20)).unwrap(),
        context: RelPath::root(),
        dockerfile: RelPath::parse("Dockerfile").unwrap(),
        target: target.map(str::to_owned),
        args: args.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        secrets: vec![],
        platforms: vec![],
        rebuild: 0,
    }
}

/// `line reference`, one below the other.
fn read(text: &str, inputs: &BuildInputs) -> String {
    needed(text, inputs).into_iter().fold(String::new(), |mut all, image| {
        writeln!(all, "{} {}", image.line, image.reference).unwrap();
        all
    })
}

fn plain(text: &str) -> String {
    read(text, &inputs(None, &[]))
}

#[test]
fn every_way_to_name_an_image_is_found_with_its_line() {
    let text = "# a comment\nFROM --platform=$BUILDPLATFORM busybox AS one\nRUN --mount=type=cache,target=/c \\\n  \
                --mount=type=bind,from=golang:1.25,target=/go make\nCOPY --from=alpine@sha256:ab / /\n\
                FROM registry:80/base/debian\nCOPY --chown=1:1 --from=one / /\n";
    assert_eq!(
        plain(text),
        "2 docker.io/library/busybox:latest\n3 docker.io/library/golang:1.25\n\
         5 docker.io/library/alpine@sha256:ab\n6 registry:80/base/debian:latest\n"
    );
}

#[test]
fn stages_by_name_and_number_and_scratch_are_no_images() {
    let text = "FROM registry:80/base AS Make\nFROM scratch\nCOPY --from=make / /\nCOPY --from=0 / /\n\
                RUN --mount=from=MAKE,target=/m true\nCOPY --from=7 / /\n";
    assert_eq!(plain(text), "1 registry:80/base:latest\n");
    // Only what comes before can be built on.
    assert_eq!(plain("FROM late\nFROM late AS late\n"), "2 docker.io/library/late:latest\n");
}

#[test]
fn stages_that_the_target_does_not_reach_do_not_count() {
    let text = "FROM one AS a\nFROM two AS b\nFROM three AS c\nCOPY --from=a / /\nFROM four AS d\n";
    let of = |target: &str| read(text, &inputs(Some(target), &[]));
    assert_eq!(of("C"), "1 docker.io/library/one:latest\n3 docker.io/library/three:latest\n");
    assert_eq!(of("1"), "2 docker.io/library/two:latest\n");
    assert_eq!(of("no-such"), "");
    assert_eq!(plain(text), "5 docker.io/library/four:latest\n");
}

#[test]
fn arguments_count_by_their_default_or_by_what_is_given() {
    let text = "ARG HOST=registry:80 TAG=\"1.2\"\nARG BASE=${HOST}/base\nFROM $BASE:${TAG}\n";
    assert_eq!(plain(text), "3 registry:80/base:1.2\n");
    assert_eq!(read(text, &inputs(None, &[("HOST", "docker.io")])), "3 docker.io/library/base:1.2\n");
    assert_eq!(plain("ARG X\nFROM ${X:-busybox}\n"), "2 docker.io/library/busybox:latest\n");
    assert_eq!(read("ARG X\nFROM ${X:-busybox}\n", &inputs(None, &[("X", "a/b:1")])), "2 docker.io/a/b:1\n");
}

#[test]
fn what_only_a_daemon_can_tell_is_left_to_it() {
    for text in [
        "FROM $UNKNOWN\n",
        "ARG X\nFROM $X\n",
        "FROM base-$TARGETARCH\n",
        "FROM ${TARGETARCH:-busybox}\n",
        "ARG X=busy\nFROM ${X#b}\n",
        "ARG X='$Y'\nFROM $X\n",
        "ARG X=bu\\sybox\nFROM $X\n",
        "FROM scratch\nARG X=busybox\nCOPY --from=$X / /\n",
        "FROM scratch\nRUN --mount=from=$X,target=/x true\n",
        "FROM scratch\nRUN '--mount=\"from=busybox\",target=/x' true\n",
        "FROM UPPER\n",
        "FROM scratch\nRUNN x\n",
        "FROM scratch AS a\nFROM busybox AS a\n",
        "",
        "\u{0}",
        "../other/Dockerfile",
    ] {
        assert_eq!(plain(text), "", "{text:?}");
    }
    // An argument that is declared in a stage is not there for FROM.
    assert_eq!(plain("FROM scratch AS a\nARG X=busybox\nFROM $X\n"), "");
}

#[test]
fn what_looks_like_an_instruction_inside_another_is_none() {
    let text = "FROM scratch\nRUN <<EOF\nFROM busybox\nCOPY --from=busybox / /\nEOF\nONBUILD COPY --from=busybox / /\n\
                RUN echo \\\n  FROM busybox\n";
    assert_eq!(plain(text), "");
}

#[test]
fn a_frontend_of_another_language_is_an_image_and_one_of_this_language_is_not_fetched() {
    let frontends = |text: &str| {
        let found = needed(text, &inputs(None, &[])).into_iter();
        found.map(|image| (image.line, image.reference, image.frontend)).collect::<Vec<_>>()
    };
    for own in
        ["docker/dockerfile:1", "docker.io/docker/dockerfile-upstream:master", "registry:80/x/dockerfile:1"]
    {
        assert_eq!(frontends(&format!("# syntax={own}\nFROM scratch\n")), []);
    }
    let found = frontends("# escape=\\\n#syntax = evil/frontend@sha256:ab\nFROM scratch\n");
    assert_eq!(found, [(2, "docker.io/evil/frontend@sha256:ab".to_owned(), true)]);
}

#[test]
fn references_are_completed_as_the_daemon_does() {
    for (name, full) in [
        ("busybox", "docker.io/library/busybox:latest"),
        ("index.docker.io/busybox:1", "docker.io/library/busybox:1"),
        ("org/image", "docker.io/org/image:latest"),
        ("localhost/image", "localhost/image:latest"),
        ("registry:80/a/b", "registry:80/a/b:latest"),
        ("ghcr.io/a@sha256:ab", "ghcr.io/a@sha256:ab"),
        ("registry:80/a:1@sha256:ab", "registry:80/a:1@sha256:ab"),
    ] {
        assert_eq!(in_full(name).as_deref(), Some(full), "{name}");
    }
    for none in ["", "a b", "Busybox", "a$b", "a/"] {
        assert_eq!(in_full(none), None, "{none:?}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_without_harm(text in "([A-Z]{2,5}|FROM|COPY|ARG|RUN|--from=|[a-z$\\{}=\"':/@ -]|\n){0,40}") {
        needed(&text, &inputs(None, &[]));
    }
}

/// What means something to the parser, which is not ours.
const PIECES: [&str; 58] = [
    "FROM ",
    "from a\n",
    "FROM a\n",
    " AS ",
    " as x",
    "ARG ",
    "ARG",
    "RUN ",
    "RUN",
    "COPY ",
    "COPY",
    "ADD ",
    "ENV a=b\n",
    "LABEL ",
    "HEALTHCHECK NONE",
    "HEALTHCHECK ",
    "ONBUILD ",
    "CMD ",
    "SHELL [\"a\"]\n",
    "VOLUME ",
    "--from=",
    "--from=0 ",
    "--mount=type=bind,from=",
    "--",
    "<<EOF",
    "<<-EOF",
    "<<\"EOF\"",
    "<<'E",
    "<<",
    "EOF",
    "EOF\n",
    "[",
    "]",
    "\"",
    "\"a\"",
    ",",
    "\\",
    "\\\n",
    "`\n",
    "\\u",
    "\\ud800",
    "\\ud834\\udd1e",
    "\n",
    "\r\n",
    "\r",
    "\t",
    " ",
    "#",
    "# escape=`\n",
    "# syntax=a\n",
    "# check=skip=a\n",
    "$",
    "${A:-",
    "}",
    "=",
    "\u{feff}",
    "\0",
    "日é😀",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Repositories write it, and a panic would end the session of the app.
    #[test]
    fn any_text_is_read_without_a_panic(
        pieces in prop::collection::vec(
            prop_oneof![9 => prop::sample::select(PIECES.to_vec()).prop_map(str::to_owned), 1 => any::<String>()], 0..16,
        ),
        target in prop::option::of("[a-z0-9]{0,3}"),
    ) {
        let text = pieces.concat();
        let lines = text.matches('\n').count() + 1;
        for image in needed(&text, &inputs(target.as_deref(), &[("A", "b"), ("TARGETARCH", "")])) {
            prop_assert!((1..=lines).contains(&image.line), "{:?} in {:?}", image, text);
        }
    }
}
