use fabrique_core::id::{BuildId, Digest, RepoName, Revision};
use proptest::prelude::*;

use super::*;

fn app() -> AppName {
    AppName::parse("citation").unwrap()
}

fn prod() -> EnvironmentName {
    EnvironmentName::parse("prod").unwrap()
}

fn path() -> RelPath {
    layout::composition_of(&app(), &prod())
}

fn image(digit: char) -> DeployedImage {
    DeployedImage {
        repository: ImageRepository::parse("registry:80/citation-dagster").unwrap(),
        digest: Digest::parse(&format!("sha256:{}", digit.to_string().repeat(64))).unwrap(),
        revision: Revision::parse(&digit.to_string().repeat(40)).unwrap(),
        version: None,
        build: Some(BuildId::parse("citation-01k0000000000000000000000a").unwrap()),
    }
}

fn infra(digit: char) -> DeployedInfra {
    DeployedInfra {
        overlay: OverlaySource {
            repo: RepoName::parse("atlas/atlas").unwrap(),
            path: RelPath::parse("dataops/citation-dagster/deploy/overlays/prod").unwrap(),
        },
        revision: Revision::parse(&digit.to_string().repeat(40)).unwrap(),
    }
}

fn hold() -> Hold {
    Hold {
        by: "ada".into(),
        reason: "CVE: wait \"here\"".into(),
        since: Some("2026-08-01T00:00:00Z".into()),
        until: None,
    }
}

fn full() -> Composition {
    let mut composition = empty(&app(), &prod());
    composition.image.deployed = Some(image('a'));
    composition.infra.deployed = Some(infra('b'));
    composition
}

fn read(text: &str) -> Composition {
    parse(&path(), text.as_bytes(), &app(), &prod()).unwrap()
}

fn edited(text: &str, change: impl Fn(&mut Composition)) -> String {
    let mut wanted = read(text);
    change(&mut wanted);
    String::from_utf8(edit(&path(), text.as_bytes(), &wanted).unwrap()).unwrap()
}

#[test]
fn the_canonical_spelling_is_the_documented_one() {
    let mut composition = full();
    composition.image.deployed = Some(image('1'));
    composition.infra.hold = Some(hold());
    insta::assert_snapshot!(render(&composition), @r#"
apiVersion: fabrique/v1
kind: Composition
metadata: { app: citation, environment: prod }
image: { repository: registry:80/citation-dagster, digest: "sha256:1111111111111111111111111111111111111111111111111111111111111111", revision: "1111111111111111111111111111111111111111", version: null, build: citation-01k0000000000000000000000a, hold: null }
infra: { repo: atlas/atlas, path: dataops/citation-dagster/deploy/overlays/prod, revision: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, hold: { by: ada, reason: "CVE: wait \"here\"", since: "2026-08-01T00:00:00Z", until: null } }
"#);
    insta::assert_snapshot!(render(&empty(&app(), &prod())), @r#"
apiVersion: fabrique/v1
kind: Composition
metadata: { app: citation, environment: prod }
image: { repository: null, digest: null, revision: null, version: null, build: null, hold: null }
infra: { repo: null, path: null, revision: null, hold: null }
"#);
}

const COMMENTED: &str = "\
# desired state of citation
apiVersion: fabrique/v1
kind: Composition
metadata: { app: citation, environment: prod }
image: { repository: 'registry:80/citation-dagster', digest: \"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\", revision: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, version: null, build: ~, hold: null }   # ours
infra: { repo: atlas/atlas, path: dataops/x, revision: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, hold: null }  # theirs
";

#[test]
fn invariant_8_an_edit_keeps_comments_quotes_and_the_other_channel() {
    let after = edited(COMMENTED, |c| c.image.deployed = Some(image('1')));
    let old: Vec<&str> = COMMENTED.lines().collect();
    let new: Vec<&str> = after.lines().collect();
    assert_eq!(old.len(), new.len());
    for (index, (old, new)) in old.iter().zip(&new).enumerate() {
        assert_eq!(index == 4, old != new, "line {index}");
    }
    insta::assert_snapshot!(new[4], @r#"image: { repository: 'registry:80/citation-dagster', digest: "sha256:1111111111111111111111111111111111111111111111111111111111111111", revision: "1111111111111111111111111111111111111111", version: null, build: citation-01k0000000000000000000000a, hold: null }   # ours"#);
}

#[test]
fn a_chart_is_read_kept_and_given_up_for_an_overlay() {
    let text = COMMENTED.replace(
        "{ repo: atlas/atlas, path: dataops/x, revision: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb,",
        "{ repo: 'oci://registry:80/charts', chart: citation, version: 1.10,",
    );
    let chart = read(&text).infra.chart.unwrap();
    assert_eq!((chart.name.as_str(), chart.version.as_str()), ("citation", "1.10"), "as written, not 1.1");
    assert_eq!(edited(&edited(&text, |c| c.infra.hold = Some(hold())), |c| c.infra.hold = None), text);
    let newer = edited(&text, |c| c.infra.chart.as_mut().unwrap().version = "1.11".to_owned());
    assert_eq!(newer, text.replace("1.10", "\"1.11\""));
    let copied =
        edited(&text, |c| c.infra = InfraState { deployed: Some(infra('2')), ..InfraState::default() });
    assert!(
        copied.ends_with("  # theirs\n") && copied.contains("infra: { repo: atlas/atlas, path:"),
        "{copied}"
    );
}

#[test]
fn a_hold_comes_and_goes_without_a_trace() {
    let held = edited(COMMENTED, |c| c.infra.hold = Some(hold()));
    assert_eq!(read(&held).infra.hold, Some(hold()));
    assert!(held.ends_with("# theirs\n") && held.contains("  # theirs"));
    assert_eq!(edited(&held, |c| c.infra.hold = None), COMMENTED);
}

#[test]
fn what_people_write_by_hand_is_edited_in_place() {
    let head = "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {app: citation, environment: prod}\n";
    for (name, body) in [
        ("no channels", ""),
        ("null channels", "image: null\ninfra:\n"),
        ("empty channels", "image: {}\ninfra: {}  # nothing\n"),
        ("missing fields", "image: { hold: null }\n"),
        (
            "null placeholders",
            "image:\n  digest: null\n  revision: ~\n  hold:   # none\ninfra:\n  hold: null\n",
        ),
        (
            "block",
            "image:\n  # the digest\n  repository: registry:80/x\n  digest: sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc\n  revision: cccccccccccccccccccccccccccccccccccccccc # c\n  hold:\n    by: bob\n    reason: because\n# end\n",
        ),
        ("no final newline", "image: {hold: null}"),
    ] {
        for line_end in ["\n", "\r\n"] {
            let text = format!("{head}{body}").replace('\n', line_end);
            let after = edited(&text, |c| {
                c.image.deployed = Some(image('1'));
                c.image.hold = None;
                c.infra.hold = Some(hold());
                c.infra.deployed = Some(infra('2'));
            });
            let comments = |text: &str| text.lines().filter(|line| line.contains('#')).count();
            assert_eq!(comments(&after), comments(&text), "{name}: {after}");
            if line_end == "\r\n" {
                assert_eq!(after.matches("\r\n").count(), after.matches('\n').count(), "{name}: {after:?}");
            }
        }
    }
}

#[test]
fn a_hold_in_block_style_is_released() {
    let text = "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {app: citation, environment: prod}\nimage:\n  hold:\n    by: bob\n    reason: because # really\n  version: null\n";
    insta::assert_snapshot!(edited(text, |c| c.image.hold = None), @r#"
apiVersion: fabrique/v1
kind: Composition
metadata: {app: citation, environment: prod}
image:
  hold: null # really
  version: null
"#);
}

#[test]
fn a_block_text_in_the_way_is_refused_and_named() {
    let text = "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {app: citation, environment: prod}\nimage:\n  hold:\n    by: bob\n    reason: >-\n      long\n      story\n";
    let mut wanted = empty(&app(), &prod());
    wanted.image.hold = None;
    insta::assert_snapshot!(edit(&path(), text.as_bytes(), &wanted).unwrap_err(), @"apps/citation/prod/composition.yaml:6: a mapping cannot be replaced here without risk; write the value as a quoted string on one line");
}

#[test]
fn invariant_10_what_is_no_digest_or_otherwise_wrong_is_never_read() {
    let bad = [
        "image: { repository: registry:80/x, digest: sha256:abc, revision: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa }",
        "image: { repository: registry:80/x, digest: latest, revision: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa }",
        "image: { digest: \"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\" }",
        "image: { hold: { by: x } }",
        "image: { hold: { by: x, reason: y, until: tomorrow } }",
        "infra: { repo: a/b, chart: c, version: 1.4.2, path: d }",
        "infra: { repo: a/b, chart: c }",
        "imag: {}\nkind: App",
    ];
    let head = "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {app: citation, environment: prod}\n";
    let all: Vec<String> = bad
        .iter()
        .flat_map(|body| parse(&path(), format!("{head}{body}\n").as_bytes(), &app(), &prod()).unwrap_err())
        .map(|finding| finding.to_string())
        .collect();
    insta::assert_snapshot!(all.join("\n"), @r#"
apps/citation/prod/composition.yaml:4:45: digest: "sha256:abc" is not an image digest (sha256: and 64 lowercase hexadecimal digits); correct the value
apps/citation/prod/composition.yaml:4:45: digest: "latest" is not an image digest (sha256: and 64 lowercase hexadecimal digits); correct the value
apps/citation/prod/composition.yaml:4:8: the field revision is missing; add revision
apps/citation/prod/composition.yaml:4:8: the field repository is missing; add repository
apps/citation/prod/composition.yaml:4:16: the field reason is missing; add reason
apps/citation/prod/composition.yaml:4:43: until is no time: failed to parse four digit integer as year: invalid digit, expected 0-9 but got t; write it as 2026-08-01T12:00:00Z
apps/citation/prod/composition.yaml:4:53: infra has a chart and path, which belongs to an overlay; keep repo, chart and version, or repo, path and revision
apps/citation/prod/composition.yaml:4:8: the field version is missing; add version
apps/citation/prod/composition.yaml:5:1: the key "kind" is written twice; keep one of them
"#);
}

fn any_hold() -> impl Strategy<Value = Option<Hold>> {
    let text = "[ -~é—]{0,20}";
    prop::option::of(
        (text, text, prop::option::of(text), prop::option::of(Just("2026-08-01T00:00:00Z".to_owned())))
            .prop_map(|(by, reason, since, until)| Hold { by, reason, since, until }),
    )
}

fn any_composition() -> impl Strategy<Value = Composition> {
    let deployed = ("[0-9a-f]{64}", "[0-9a-f]{39}1", prop::option::of("[ -~]{1,10}"), any::<bool>())
        .prop_map(|(digest, revision, version, build)| DeployedImage {
            digest: Digest::parse(&format!("sha256:{digest}")).unwrap(),
            revision: Revision::parse(&revision).unwrap(),
            version,
            build: image('a').build.filter(|_| build),
            ..image('a')
        });
    let chart = ("[ -~]{1,10}", "[a-z0-9-]{1,6}", "[0-9]{1,2}\\.[0-9]{1,2}(\\.[0-9]e[0-9])?")
        .prop_map(|(repo, name, version)| Chart { repo: format!("x{repo}"), name, version });
    let copied = "[0-9]{5}e[0-9]{33}1"
        .prop_map(|revision| DeployedInfra { revision: Revision::parse(&revision).unwrap(), ..infra('a') });
    let infra = prop_oneof![
        prop::option::of(copied).prop_map(|deployed| InfraState { deployed, ..InfraState::default() }),
        chart.prop_map(|chart| InfraState { chart: Some(chart), ..InfraState::default() }),
    ];
    (prop::option::of(deployed), any_hold(), infra, any_hold()).prop_map(
        |(deployed, hold, infra, infra_hold)| Composition {
            image: ImageState { deployed, hold },
            infra: InfraState { hold: infra_hold, ..infra },
            ..empty(&app(), &prod())
        },
    )
}

proptest! {
    #[test]
    fn rendering_and_reading_gives_the_composition_back(composition in any_composition()) {
        prop_assert_eq!(read(&render(&composition)), composition);
    }

    #[test]
    fn editing_one_composition_into_another_is_rendering_the_other(a in any_composition(), b in any_composition()) {
        let after = edit(&path(), render(&a).as_bytes(), &b).unwrap();
        prop_assert_eq!(read(std::str::from_utf8(&after).unwrap()), b);
    }
}
