//! Where the placeholders of an overlay stand.

use fabrique_core::id::AppName;
use fabrique_yaml::path::{Path, path_to};
use fabrique_yaml::{Replacement, Yaml, replace_scalars};

use super::{File, Parsed, Token, tokens};
use crate::contract::{Form, Placeholder};
use crate::{At, Finding};

/// A placeholder at its place, as the whole of a value that can be filled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The file, by its place in what was looked through.
    pub file: usize,
    /// The way to it.
    pub path: Path,
    /// What it is filled with.
    pub form: Form,
}

/// What was found of the placeholders of one app.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// Those at their places, in the order of the contract.
    pub placed: Vec<Placed>,
    /// Those that stand nowhere.
    pub missing: Vec<(Form, Finding)>,
    /// Those at another place, doubled, or where they cannot be filled, and files that would be YAML and are not.
    pub misplaced: Vec<Finding>,
}

impl Survey {
    /// Everything that is wrong.
    pub(super) fn into_findings(self) -> impl Iterator<Item = Finding> {
        self.misplaced.into_iter().chain(self.missing.into_iter().map(|(_, finding)| finding))
    }
}

/// Looks for the placeholders of `app` in the files of an overlay. `top` is the kustomization that it is built from, in
/// which a missing one is told. Comments do not count; in a file that is no YAML every line does.
#[must_use]
pub fn survey(app: &AppName, placeholders: &[Placeholder], top: &str, files: &[File<'_>]) -> Survey {
    let tokens = tokens(app, placeholders);
    let holds = |file: &File<'_>| {
        let text = String::from_utf8_lossy(file.bytes);
        tokens.iter().any(|token| text.contains(&token.text))
    };
    // Most files hold none and need not be understood.
    let holding = files.iter().enumerate().filter(|(_, file)| holds(file));
    let mut survey = Survey::default();
    let parsed: Vec<Parsed<'_>> =
        holding.filter_map(|(index, file)| Parsed::new(index, *file, &mut survey.misplaced)).collect();
    for token in &tokens {
        look_for(token, top, &parsed, &mut survey);
    }
    survey.misplaced.sort();
    survey
}

/// One occurrence of a placeholder.
struct Found {
    file: usize,
    name: String,
    at: At<()>,
    place: Result<Path, Wrong>,
}

enum Wrong {
    /// At another place, or as a part of a value.
    Place,
    /// Where it cannot be filled, and why.
    Value(String),
    /// In JSON, or in a patch that is a text of a kustomization.
    Inside,
}

pub(super) fn look_for(token: &Token<'_>, top: &str, files: &[Parsed<'_>], survey: &mut Survey) {
    let found: Vec<Found> = files.iter().flat_map(|file| occurrences(token, file)).collect();
    let (text, place) = (&token.text, token.place());
    if found.is_empty() {
        let what = format!("the placeholder {text} is missing");
        let finding = Finding::of_file(top, what, format!("write it as {place}"));
        survey.missing.push((token.placeholder.form, finding));
    }
    let mut first: Option<String> = None;
    for Found { file, name, at, place: found } in found {
        let (what, remedy) = match (found, &first) {
            (Ok(path), None) => {
                first = Some(format!("{name}:{}", at.line));
                survey.placed.push(Placed { file, path, form: token.placeholder.form });
                continue;
            }
            (Ok(_), Some(first)) => (
                format!("the placeholder {text} is doubled"),
                format!("keep the one of {first}, or this one"),
            ),
            (Err(Wrong::Place), _) => (
                format!("the placeholder {text} is at the wrong place"),
                format!("it is filled only as the whole of {place}: write it there"),
            ),
            (Err(Wrong::Inside), _) => (
                format!("the placeholder {text} cannot be filled here"),
                format!("write it in a file of YAML, as {place}"),
            ),
            (Err(Wrong::Value(why)), _) => (
                format!("the placeholder {text} cannot be filled: {why}"),
                "write it out on one line, without an anchor or a tag".to_owned(),
            ),
        };
        let finding = Finding::of_file(name, what, remedy);
        survey.misplaced.push(Finding { line: at.line, column: at.column, ..finding });
    }
}

fn occurrences(token: &Token<'_>, file: &Parsed<'_>) -> Vec<Found> {
    let found = |at: At<()>, place| Found { file: file.index, name: file.file.path.to_owned(), at, place };
    let Some(yaml) = &file.yaml else {
        let text = String::from_utf8_lossy(file.file.bytes);
        let lines = text.lines().enumerate().filter(|(_, line)| token.stands_in(line));
        let wrong = || if file.inside.is_empty() { Wrong::Place } else { Wrong::Inside };
        return lines
            .map(|(index, _)| found(At { value: (), line: index + 1, column: 1 }, Err(wrong())))
            .collect();
    };
    let scalars = file.scalars();
    let scalars = scalars.iter().filter(|scalar| token.stands_in(scalar.text));
    scalars
        .map(|scalar| {
            let place = match scalar.text == token.text && token.belongs(scalar.spot) {
                true => fillable(yaml, scalar.node).map_err(Wrong::Value),
                false if file.inside.iter().any(|inside| inside.is_of(scalar.node)) => Err(Wrong::Inside),
                false => Err(Wrong::Place),
            };
            found(scalar.place(), place)
        })
        .collect()
}

/// The way to a value that can be replaced without risk to the rest of the file.
fn fillable(yaml: &Yaml, node: &fabrique_yaml::Node) -> Result<Path, String> {
    replace_scalars(yaml, &[Replacement { node, text: "filled" }]).map_err(|error| error.what)?;
    path_to(yaml, node).ok_or_else(|| "no path leads to it alone".to_owned())
}
