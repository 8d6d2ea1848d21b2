//! Columns for people: aligned, without borders, the last one fitted to the terminal's width.

use std::fmt::Write as _;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Between two columns.
const GAP: usize = 2;
/// However narrow the terminal is, this much of the last column is shown.
const LEAST: usize = 16;

/// How a table is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// Columns of the terminal; without one every line is as long as it is.
    pub(crate) width: Option<usize>,
    /// What happens to text that is longer.
    pub(crate) fit: Fit,
    /// Whether colours help.
    pub(crate) colour: bool,
}

/// How the last column fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// One line a row: for lists.
    Cut,
    /// Every word counts.
    Wrap,
}

/// What a cell tells at a glance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Nothing.
    Plain,
    /// All is well.
    Good,
    /// Under way, or worth a look.
    Busy,
    /// Somebody has to act.
    Bad,
    /// For completeness.
    Faint,
}

impl Tone {
    fn code(self) -> Option<&'static str> {
        match self {
            Tone::Plain => None,
            Tone::Good => Some("32"),
            Tone::Busy => Some("33"),
            Tone::Bad => Some("31"),
            Tone::Faint => Some("2"),
        }
    }
}

/// One cell: a single line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell with a tone.
    pub(crate) fn toned(tone: Tone, text: impl AsRef<str>) -> Self {
        Self { text: clean(text.as_ref()), tone }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(Tone::Plain, text)
    }
}

/// Rows under a head. Columns without any content are left out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table with these columns.
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// An empty table of names and values.
    pub(crate) fn facts() -> Self {
        Self::default()
    }

    /// Adds a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows.push(cells.into());
    }

    /// Adds a name and its value; nothing when there is none.
    pub(crate) fn fact(&mut self, name: &str, value: impl AsRef<str>) {
        if !value.as_ref().is_empty() {
            self.row([Cell::toned(Tone::Faint, name), value.into()]);
        }
    }

    /// The table as text.
    pub(crate) fn render(&self, look: Look) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0).max(self.head.len());
        let content = |column: usize| {
            self.rows.iter().filter_map(move |row| row.get(column)).map(|cell| cell.text.width()).max()
        };
        let used: Vec<(usize, usize)> = (0..columns)
            .filter_map(|column| {
                let widest = content(column).filter(|widest| *widest > 0)?;
                Some((column, widest.max(self.head.get(column).map_or(0, |head| head.width()))))
            })
            .collect();
        let mut text = String::new();
        if !self.head.is_empty() {
            let head: Vec<Cell> = self.head.iter().map(|head| Cell::toned(Tone::Faint, head)).collect();
            line(&mut text, &head, &used, look);
        }
        for row in &self.rows {
            line(&mut text, row, &used, look);
        }
        text
    }
}

fn line(text: &mut String, row: &[Cell], used: &[(usize, usize)], look: Look) {
    let nothing = Cell::from("");
    let mut at = 0;
    let mut owed = 0;
    for (number, &(column, width)) in used.iter().enumerate() {
        let cell = row.get(column).unwrap_or(&nothing);
        let last = number + 1 == used.len();
        let room = look.width.filter(|_| last).map(|total| total.saturating_sub(at).max(LEAST));
        for (number, shown) in fitted(&cell.text, room, look.fit).into_iter().enumerate() {
            if number > 0 {
                text.push('\n');
                owed = at;
            }
            if !shown.is_empty() {
                let _infallible = write!(text, "{:owed$}", "");
                paint(text, &shown, cell.tone.code().filter(|_| look.colour));
                owed = 0;
            }
            owed += width.saturating_sub(shown.width()) + GAP;
        }
        at += width + GAP;
    }
    text.push('\n');
}

fn fitted(text: &str, room: Option<usize>, fit: Fit) -> Vec<String> {
    match (room, fit) {
        (None, _) => vec![text.to_owned()],
        (Some(room), Fit::Cut) => vec![cut(text, room)],
        (Some(room), Fit::Wrap) => wrap(text, room),
    }
}

/// Lines of whole words; a word that is longer than a line has one of its own.
fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.width() + 1 + word.width() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn paint(text: &mut String, shown: &str, code: Option<&str>) {
    let _infallible = match code {
        Some(code) => write!(text, "\u{1b}[{code}m{shown}\u{1b}[0m"),
        None => write!(text, "{shown}"),
    };
}

/// `text`, or as much of it as leaves room for the sign that something is missing.
pub(crate) fn cut(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.to_owned();
    }
    let mut taken = 0;
    let kept: String = text
        .chars()
        .take_while(|c| {
            taken += c.width().unwrap_or(0);
            taken < room
        })
        .collect();
    format!("{}…", kept.trim_end())
}

/// On one line, and without anything that steers a terminal.
pub(crate) fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\t' => clean.push_str("    "),
            c if c.is_control() => clean.extend(c.escape_default()),
            c => clean.push(c),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIPE: Look = Look { width: None, fit: Fit::Cut, colour: false };

    fn table() -> Table {
        let mut table = Table::new(&["APP", "DAEMON", "STATE", "WHY"]);
        table.row(["citation".into(), "".into(), Cell::toned(Tone::Good, "ok"), "it is deployed".into()]);
        table.row(["a".into(), "".into(), Cell::toned(Tone::Bad, "dead"), "".into()]);
        table
    }

    #[test]
    fn columns_align_and_an_empty_one_is_left_out() {
        insta::assert_snapshot!(table().render(PIPE), @r"
        APP       STATE  WHY
        citation  ok     it is deployed
        a         dead
        ");
    }

    #[test]
    fn only_the_last_column_is_cut_and_only_on_a_terminal() {
        let mut table = Table::new(&["APP", "WHY"]);
        table.row(["citation".into(), "a reason that is too long for this terminal".into()]);
        let narrow = table.render(Look { width: Some(30), ..PIPE });
        assert_eq!(narrow, "APP       WHY\ncitation  a reason that is to…\n");
        assert!(narrow.lines().all(|line| line.width() <= 30));
        assert!(table.render(PIPE).contains("for this terminal"));
    }

    #[test]
    fn where_every_word_counts_the_last_column_wraps_under_itself() {
        let mut table = Table::facts();
        table.fact("next", "push a fix, or `fabrique retry citation`");
        let wrapped = table.render(Look { width: Some(26), fit: Fit::Wrap, colour: false });
        assert_eq!(wrapped, "next  push a fix, or\n      `fabrique retry\n      citation`\n");
    }

    #[test]
    fn colours_come_only_where_they_help() {
        assert!(!table().render(PIPE).contains('\u{1b}'));
        assert!(table().render(Look { colour: true, ..PIPE }).contains("\u{1b}[31mdead\u{1b}[0m"));
    }

    #[test]
    fn what_others_wrote_stays_on_its_line_and_does_not_steer_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\nc\n"), "a\\u{1b}[31mb\\nc");
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(cut("漢字漢字", 5), "漢字…");
    }
}
