//! Filling `@NAME@` placeholders of the peers' configuration files.

use anyhow::{Result, ensure};

/// Replaces each `@NAME@` by its value.
///
/// # Errors
/// When a name does not occur, or a placeholder is left: a template and its code must agree.
pub(crate) fn fill(template: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut text = template.to_owned();
    for (name, value) in values {
        let mark = format!("@{name}@");
        ensure!(text.contains(&mark), "the template has no {mark}");
        text = text.replace(&mark, value);
    }
    if let Some(left) = text.split_whitespace().find(|word| is_placeholder(word)) {
        anyhow::bail!("the template's {left} was given no value");
    }
    Ok(text)
}

/// A password nobody has seen before. It starts with a letter, or NATS would read some of them as numbers.
pub(crate) fn secret() -> String {
    format!("x{}", uuid::Uuid::new_v4().simple())
}

fn is_placeholder(word: &str) -> bool {
    let mut parts = word.split('@').skip(1);
    parts.any(|part| part.len() > 1 && part.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_every_occurrence() {
        assert_eq!(fill("port @PORT@, again @PORT@", &[("PORT", "1")]).unwrap(), "port 1, again 1");
    }

    #[test]
    fn a_value_without_a_place_and_a_place_without_a_value_are_both_errors() {
        assert!(fill("nothing", &[("PORT", "1")]).is_err());
        assert!(fill("port: @PORT@/", &[]).is_err());
    }
}
