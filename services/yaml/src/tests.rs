use proptest::prelude::*;

use super::*;
use crate::path::{Path, resolve};

const NEW: &str = "sha256:00ff";

/// Replaces the scalar at `path`, or says why not.
fn put(text: &str, path: &str, new: &str) -> Result<String, String> {
    let yaml = Yaml::parse(text.as_bytes()).map_err(|e| e.what)?;
    let path: Path = path.parse().unwrap();
    let node = resolve(&yaml, &path).map_err(|e| format!("{e:?}"))?;
    let after = replace_scalars(&yaml, &[Replacement { node, text: new }]).map_err(|e| e.what)?;
    Ok(String::from_utf8(after).unwrap())
}

#[test]
fn invariant_8_tricky_scalars_are_replaced_byte_exactly() {
    // Each text holds the value between ‹ and ›, which are removed; the last column is how the new one is written.
    let cases: &[(&str, &str, &str, &str)] = &[
        ("plain", "a: ‹old›\n", NEW, "sha256:00ff"),
        ("trailing comment", "a: ‹old› # keep  me \n", NEW, "sha256:00ff"),
        ("double quotes and comment", "a: ‹\"old\"›   # keep\n", NEW, "\"sha256:00ff\""),
        ("single quotes and comment", "a: ‹'old'›   # keep 'me'\n", NEW, "'sha256:00ff'"),
        ("no final newline", "a: ‹old›", NEW, "sha256:00ff"),
        ("quoted without final newline", "a: ‹\"old\"›", NEW, "\"sha256:00ff\""),
        ("crlf", "b: 1\r\na: ‹old›\r\nc: 2\r\n", NEW, "sha256:00ff"),
        ("crlf and quotes", "b: 1\r\na: ‹\"old\"› # x\r\nc: 2\r\n", NEW, "\"sha256:00ff\""),
        ("byte order mark", "\u{feff}a: ‹old›\n", NEW, "sha256:00ff"),
        ("characters of several bytes before", "# é—日本\nk: 'ü'\na: ‹old› # ñ\n", NEW, "sha256:00ff"),
        ("characters outside of the basic plane", "k: \"😀😀\"\na: ‹\"😀\"›\n", NEW, "\"sha256:00ff\""),
        ("flow mapping", "x: { b: 1, a2: 2 }\na: ‹old›\n", NEW, "sha256:00ff"),
        ("trailing blanks", "a: ‹old›   \nb: 1\n", NEW, "sha256:00ff"),
        ("document start and end", "%YAML 1.2\n---\na: ‹old›\n...\n", NEW, "sha256:00ff"),
        ("comment before", "# a: no\na: ‹old›\n", NEW, "sha256:00ff"),
        ("key in quotes", "\"a\": ‹old›\n", NEW, "sha256:00ff"),
        ("value on the next line", "a:\n  ‹old›\nb: 1\n", NEW, "sha256:00ff"),
        ("value with a hash", "a: ‹o#ld› # c\n", NEW, "sha256:00ff"),
        ("value with a colon", "a: ‹registry:80/x:1›\n", NEW, "sha256:00ff"),
        ("escaped quotes", "a: ‹\"o\\\"ld\"› # \"\n", NEW, "\"sha256:00ff\""),
        ("doubled quotes", "a: ‹'o''ld'› # '\n", NEW, "'sha256:00ff'"),
        ("quoted over two lines", "a: ‹\"o\n  ld\"›\nb: 1\n", NEW, "\"sha256:00ff\""),
        ("empty quotes", "a: ‹\"\"›\n", NEW, "\"sha256:00ff\""),
        ("a number that was", "a: ‹12›\n", NEW, "sha256:00ff"),
        ("an all-digit text to plain", "a: ‹old›\n", "1234567", "\"1234567\""),
        ("a float-like text to plain", "a: ‹old›\n", "12345e67", "\"12345e67\""),
        ("a hexadecimal text to plain", "a: ‹old› # x\n", "0x1f", "\"0x1f\""),
        ("a boolean-like text to plain", "a: ‹old›\n", "true", "\"true\""),
        ("a text with a quote to single quotes", "a: ‹'old'›\n", "it's", "'it''s'"),
        ("a text with a quote to double quotes", "a: ‹\"old\"›\n", "a\"b\\c", "\"a\\\"b\\\\c\""),
        ("tabs before a comment", "a: ‹old›\t# c\n", NEW, "sha256:00ff"),
        ("a tag elsewhere", "b: !!str 1\na: ‹old›\n", NEW, "sha256:00ff"),
        ("an anchor elsewhere", "b: &x 1\nc: *x\na: ‹old›\n", NEW, "sha256:00ff"),
        ("a block scalar before", "b: |\n  a: no\n  # no\na: ‹old›\n", NEW, "sha256:00ff"),
        ("a null before", "b:\nc: ~\na: ‹old›\n", NEW, "sha256:00ff"),
        ("carriage returns of old", "b: 1\ra: ‹old›\r", NEW, "sha256:00ff"),
        ("line separators", "b: \"\u{2028}\u{85}\"\na: ‹old›\n", NEW, "sha256:00ff"),
    ];
    for (name, marked, new, written) in cases {
        let text = marked.replace(['‹', '›'], "");
        let (before, rest) = marked.split_once('‹').unwrap();
        let (_, after) = rest.split_once('›').unwrap();
        assert_eq!(put(&text, "a", new), Ok(format!("{before}{written}{after}")), "{name}");
    }
}

#[test]
fn scalars_deep_in_manifests_are_replaced_byte_exactly() {
    let cases = [
        ("{a: {b: [1, {c: ‹old›}]}}", "a.b[1].c"),
        ("a: {b: ‹old›, c: 1}\n", "a.b"),
        ("a: {b: ‹\"old\"›,c: 1}\n", "a.b"),
        ("- a: 1\n- a: ‹old›\n  b: 2\n", "[1].a"),
        ("images:\n- name: x\n  digest: ‹old›\n- digest: d2\n  name: y\n", "images[name=x].digest"),
        ("images:\n- name: x\n  digest: d\n- digest: ‹old›\n  name: y\n", "images[name=y].digest"),
        ("l:\n- ‹registry:80/a=registry:80/a:1›\n- registry:80/a2=registry:80/a2:1\n", "l[~registry:80/a]"),
        ("kind: A\nx: 1\n---\nkind: B\nx: ‹2›\n--- # c\nkind: C\n", "(kind=B)x"),
        ("kind: A\nx: 1\n---\nkind: B\nx: ‹2›\n", "(1)x"),
        ("kind: A\nx: 1\n---\nkind: B\ny: ‹2›\n", "y"),
        (
            "metadata:\n  annotations:\n    argocd.argoproj.io/sync-wave: ‹\"1\"›\n",
            "metadata.annotations[\"argocd.argoproj.io/sync-wave\"]",
        ),
        ("a: {b: [1, ‹2› , 3]} # c\n", "a.b[1]"),
        ("? a\n: ‹old›\n", "a"),
    ];
    for (marked, path) in cases {
        let text = marked.replace(['‹', '›'], "");
        let (before, rest) = marked.split_once('‹').unwrap();
        let (old, after) = rest.split_once('›').unwrap();
        let written = if old.starts_with('"') { "\"sha256:00ff\"" } else { NEW };
        assert_eq!(put(&text, path, NEW), Ok(format!("{before}{written}{after}")), "{marked:?}");
    }
}

#[test]
fn invariant_9_what_is_not_exactly_one_plain_place_is_refused() {
    let cases = [
        ("a: null\n", "a"),
        ("a: ~\n", "a"),
        ("a:\nb: 1\n", "a"),
        ("a: |\n  x\n", "a"),
        ("a: >-\n  x\n", "a"),
        ("a: x\n  y\n", "a"),
        ("a: &x old\nb: *x\n", "a"),
        ("b: &x old\na: *x\n", "a"),
        ("a: &x {b: 1}\nc: *x\n", "a.b"),
        ("a: !!str old\n", "a"),
        ("a: !secret old\n", "a"),
        ("a: {b: 1}\n", "a"),
        ("a: [1]\n", "a"),
        ("a: 1\na: 2\n", "a"),
        ("a: 1\nb: {c: 1, c: 2}\n", "a"),
        ("a: [\n", "a"),
        ("a: 1\n b: 2\n", "a"),
        ("a: 1\n---\na: 2\n", "a"),
        ("l: [{n: x, v: 1}, {n: x, v: 2}]\n", "l[n=x].v"),
        ("l: [{n: x, v: 1}]\n", "l[n=y].v"),
        ("l: [registry:80/app2]\n", "l[~registry:80/app]"),
        ("digest: 1\n", "digets"),
        ("a: 1\n", "(2)a"),
        ("kind: A\nmetadata: {name: n}\n", "(kind=B)a"),
        ("a: 1\n", "a.b"),
        ("a: [1, 2]\n", "a[7]"),
        ("", "a"),
    ];
    let all: Vec<String> = cases
        .iter()
        .map(|(text, path)| format!("{text:?} at {path}: {}", put(text, path, NEW).unwrap_err()))
        .collect();
    insta::assert_snapshot!(all.join("\n"), @r#"
"a: null\n" at a: the value is null
"a: ~\n" at a: the value is null
"a:\nb: 1\n" at a: the value is null
"a: |\n  x\n" at a: the value is a block scalar
"a: >-\n  x\n" at a: the value is a block scalar
"a: x\n  y\n" at a: the value spans several lines
"a: &x old\nb: *x\n" at a: Unsupported { line: 1, what: "an anchor stands on the path: other places use the same value" }
"b: &x old\na: *x\n" at a: Unsupported { line: 2, what: "an alias stands on the path: its value is written elsewhere" }
"a: &x {b: 1}\nc: *x\n" at a.b: Unsupported { line: 1, what: "an anchor stands on the path: other places use the same value" }
"a: !!str old\n" at a: the value carries the tag tag:yaml.org,2002:!str
"a: !secret old\n" at a: the value carries the tag !secret
"a: {b: 1}\n" at a: NotFound { found: "line 1 holds a mapping, a scalar is expected" }
"a: [1]\n" at a: NotFound { found: "line 1 holds a list, a scalar is expected" }
"a: 1\na: 2\n" at a: the key "a" is written twice
"a: 1\nb: {c: 1, c: 2}\n" at a: the key "c" is written twice
"a: [\n" at a: not YAML: while parsing a node, did not find expected node content
"a: 1\n b: 2\n" at a: not YAML: mapping values are not allowed in this context
"a: 1\n---\na: 2\n" at a: Ambiguous { lines: [1, 3] }
"l: [{n: x, v: 1}, {n: x, v: 2}]\n" at l[n=x].v: Ambiguous { lines: [1, 1] }
"l: [{n: x, v: 1}]\n" at l[n=y].v: NotFound { found: "l (line 1) has no [n=y], its values: x" }
"l: [registry:80/app2]\n" at l[~registry:80/app]: NotFound { found: "l (line 1) has no [~registry:80/app], its items: registry:80/app2" }
"digest: 1\n" at digets: NotFound { found: "the document (line 1) has no .digets, its keys: digest" }
"a: 1\n" at (2)a: NotFound { found: "no document matches; the file has 1 ((0) ? ?)" }
"kind: A\nmetadata: {name: n}\n" at (kind=B)a: NotFound { found: "no document matches; the file has 1 ((0) A n)" }
"a: 1\n" at a.b: NotFound { found: "a (line 1) is a scalar without .b" }
"a: [1, 2]\n" at a[7]: NotFound { found: "a (line 1) has no [7], its length: 2 items" }
"" at a: NotFound { found: "no document matches; the file has 0 ()" }
"#);
}

#[test]
fn one_scalar_is_not_replaced_twice_in_one_edit() {
    let yaml = Yaml::parse(b"a: 1\nb: 2\n").unwrap();
    let node = resolve(&yaml, &"a".parse().unwrap()).unwrap();
    let twice = [Replacement { node, text: "x" }, Replacement { node, text: "y" }];
    assert!(replace_scalars(&yaml, &twice).is_err());
}

#[test]
fn several_scalars_are_replaced_in_any_order() {
    let yaml = Yaml::parse("é: 1 # x\nb: '2'\nc: {d: \"3\"}\n".as_bytes()).unwrap();
    let at = |path: &str| resolve(&yaml, &path.parse().unwrap()).unwrap();
    let edits = [
        Replacement { node: at("c.d"), text: "three" },
        Replacement { node: at("é"), text: "one" },
        Replacement { node: at("b"), text: "two" },
    ];
    let after = replace_scalars(&yaml, &edits).unwrap();
    assert_eq!(String::from_utf8(after).unwrap(), "é: one # x\nb: 'two'\nc: {d: \"three\"}\n");
}

#[test]
fn limits_hold() {
    assert!(Yaml::parse("[".repeat(100).as_bytes()).unwrap_err().what.contains("nested"));
    assert!(Yaml::parse(&vec![b'a'; (1 << 20) + 1]).unwrap_err().what.contains("limit"));
    assert!(Yaml::parse(b"a: \xff").unwrap_err().what.contains("UTF-8"));
}

/// One line of a mapping: its text with the value at `%`, the value as written, whether it may be edited.
fn any_line() -> impl Strategy<Value = (String, String)> {
    let value = prop_oneof![
        "[a-z][a-z0-9/:@.-]{0,8}[a-z0-9]",
        "[a-z]{1,4}".prop_map(|text| format!("\"{text}\"")),
        "[a-z #:é'{}]{0,6}".prop_map(|text| format!("'{}'", text.replace('\'', "''"))),
        "[a-z #:é'{}]{0,6}".prop_map(|text| format!("\"{text}\"")),
        "[0-9]{1,4}",
    ];
    let after = prop_oneof![Just(""), Just(" # comment"), Just("   # é \"quote' {"), Just("  ")];
    let shape = prop_oneof![
        Just("%"),
        Just("{ k: %, l: 1 }"),
        Just("[ 1, % ]"),
        Just("[%]"),
        Just("\n  k: %"),
        Just("\n- x\n- %"),
    ];
    (value, after, shape).prop_map(|(value, after, shape)| (format!("{shape}{after}"), value))
}

proptest! {
    #[test]
    fn invariant_8_a_replacement_changes_only_the_bytes_of_its_scalar(
        lines in prop::collection::vec(any_line(), 1..8),
        chosen in any::<prop::sample::Index>(),
        new in prop_oneof!["[ -~é]{0,12}", "[0-9]{1,40}", "[0-9]{1,5}e[0-9]{1,5}", "sha256:[0-9a-f]{8}"],
        crlf in any::<bool>(),
        bom in any::<bool>(),
        newline in any::<bool>(),
    ) {
        let chosen = chosen.index(lines.len());
        let (mut before, mut after, mut value) = (String::new(), String::new(), String::new());
        if bom { before.push('\u{feff}'); }
        for (index, (line, written)) in lines.iter().enumerate() {
            let out = if index <= chosen { &mut before } else { &mut after };
            out.push_str(&format!("k{index}: "));
            if index == chosen {
                let (left, right) = line.split_once('%').unwrap();
                out.push_str(left);
                after.push_str(right);
                value.clone_from(written);
            } else {
                out.push_str(&line.replacen('%', written, 1));
            }
            after.push_str(if index >= chosen { "\n" } else { "" });
            if index < chosen { before.push('\n'); }
        }
        if !newline { after = after.trim_end_matches('\n').to_owned(); }
        if crlf { before = before.replace('\n', "\r\n"); after = after.replace('\n', "\r\n"); }
        let text = format!("{before}{value}{after}");
        let yaml = Yaml::parse(text.as_bytes()).unwrap();
        let mut target = None;
        yaml.documents()[0].walk(&mut |node| if node.start == before.len() && node.text().is_some() { target = Some(node) });
        let node = target.unwrap();
        let edited = replace_scalars(&yaml, &[Replacement { node, text: &new }]).unwrap();
        let edited = String::from_utf8(edited).unwrap();
        prop_assert!(edited.starts_with(&before) && edited.ends_with(&after), "{edited:?}");
        let again = Yaml::parse(edited.as_bytes()).unwrap();
        let mut read = None;
        again.documents()[0].walk(&mut |node| if node.start == before.len() && read.is_none() { read = node.text() });
        prop_assert_eq!(read, Some(new.as_str()));
    }

    #[test]
    fn parsing_and_replacing_never_panic(text in "[ -~\\n\\ré&*!|>'\"#:{}\\[\\],?-]{0,60}") {
        if let Ok(yaml) = Yaml::parse(text.as_bytes()) {
            let mut nodes = Vec::new();
            for document in yaml.documents() {
                document.walk(&mut |node| nodes.push(node));
            }
            for node in nodes {
                let _ = replace_scalars(&yaml, &[Replacement { node, text: "x" }]);
            }
        }
    }
}
