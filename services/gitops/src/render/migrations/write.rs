//! The ConfigMap, its texts readable in a diff.

use std::fmt::Write as _;

use fabrique_core::id::{AppName, EnvironmentName};
use fabrique_yaml::flow_text;

use super::{Migrations, ORDER, Target};
use crate::render::stands::{APP, ENVIRONMENT};

/// What both hooks have in common, the wave to be put in. A hook that stands is deleted before it is made again.
pub(super) fn metadata(
    app: &AppName,
    environment: &EnvironmentName,
    (name, namespace): (&str, &str),
    wave: i32,
) -> String {
    format!(
        "metadata:\n  name: {}\n  namespace: {}\n  labels:\n    app.kubernetes.io/managed-by: fabrique\n    \
         {APP}: {}\n    {ENVIRONMENT}: {}\n  annotations:\n    argocd.argoproj.io/hook: PreSync\n    \
         argocd.argoproj.io/hook-delete-policy: BeforeHookCreation\n    argocd.argoproj.io/sync-wave: \"{wave}\"\n",
        flow_text(name),
        flow_text(namespace),
        flow_text(app.as_str()),
        flow_text(environment.as_str()),
    )
}

/// What the ConfigMap of an app is called.
pub(super) fn name(app: &AppName) -> String {
    format!("{app}-migrations")
}

pub(super) fn config_map(
    app: &AppName,
    environment: &EnvironmentName,
    migrations: &Migrations,
    target: &Target,
) -> String {
    let mut text = "apiVersion: v1\nkind: ConfigMap\n".to_owned();
    text.push_str(&metadata(app, environment, (&name(app), &target.namespace), -2));
    // Applied by a client, its content would be in an annotation as well, which holds a quarter of it.
    text.push_str("    argocd.argoproj.io/sync-options: ServerSideApply=true\n");
    text.push_str(&data(migrations));
    text
}

/// All of it that grows with the migrations.
pub(super) fn data(migrations: &Migrations) -> String {
    let mut text = "data:\n".to_owned();
    for (key, value) in std::iter::once((ORDER, migrations.order().as_str()))
        .chain(migrations.0.iter().map(|(name, sql)| (name.as_str(), sql.as_str())))
    {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  {}: {}", flow_text(key), scalar(value));
    }
    text
}

/// `text` as a block of lines below a key at two spaces where that says exactly it, or else in quotes.
fn scalar(text: &str) -> String {
    let plain = |c: char| {
        c == '\n'
            || c == '\t'
            || (!c.is_control() && !matches!(c, '\u{feff}' | '\u{85}' | '\u{2028}' | '\u{2029}'))
    };
    let lines = text.strip_suffix('\n').unwrap_or(text);
    // A last line without words, and one that is only spaces, are read differently by different readers.
    let sound = lines.lines().all(|line| line.is_empty() || !line.trim().is_empty())
        && !lines.ends_with('\n')
        && !lines.starts_with('\n');
    if lines.is_empty()
        || !sound
        || !text.chars().all(plain)
        || lines.lines().any(|line| line.starts_with('\t'))
    {
        return quoted(text);
    }
    let chomping = if text.ends_with('\n') { "" } else { "-" };
    let mut block = format!("|2{chomping}");
    for line in lines.split('\n') {
        block.push('\n');
        if !line.is_empty() {
            block.push_str("    ");
            block.push_str(line);
        }
    }
    block
}

/// Never plain: `1` would be a number.
fn quoted(text: &str) -> String {
    let written = flow_text(text);
    if written.starts_with('"') { written } else { format!("\"{text}\"") }
}

#[cfg(test)]
mod tests {
    use fabrique_yaml::{Node, Yaml};
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<String> {
        let yaml = Yaml::parse(text.as_bytes()).unwrap();
        let node = yaml.documents()[0].entry("data")?.1.entry("a.sql")?.1;
        Node::text(node).map(str::to_owned)
    }

    fn written(text: &str) -> String {
        format!("data:\n  a.sql: {}\n  b.sql: \"\"\n", scalar(text))
    }

    #[test]
    fn statements_are_lines_of_their_own() {
        assert_eq!(
            scalar("select 1;\n\n  -- x\nselect 2;\n"),
            "|2\n    select 1;\n\n      -- x\n    select 2;"
        );
        assert_eq!(scalar("1"), "|2-\n    1");
        assert_eq!(scalar(""), "\"\"");
        assert_eq!(scalar("a\r\nb"), "\"a\\r\\nb\"");
    }

    proptest! {
        #[test]
        fn every_text_is_read_as_it_was(text in r#"([a-z;:#'"\\-]|  |\n|\t|\r|é|\u{feff}|\u{2028}|\u{7}|\|){0,20}"#) {
            let file = written(&text);
            prop_assert_eq!(read(&file), Some(text), "{}", file);
        }
    }
}
