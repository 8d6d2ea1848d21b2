//! What a push sends and what comes back, as bytes: the request of git's `receive-pack` and its report.
//!
//! Both are pkt-lines, of which the first four digits are the length (gitprotocol-common(5)). The report comes in
//! bands (gitprotocol-pack(5), "side-band-64k"): the first holds the report, itself in pkt-lines, the others what
//! the forge and its hooks say.

use fabrique_core::id::Revision;

/// The end of a list of pkt-lines.
const FLUSH: &[u8] = b"0000";
/// Digits of a pkt-line's length, which they count too.
const PREFIX: usize = 4;
/// Bands of an answer.
const REPORT: u8 = 1;
const MESSAGES: [u8; 2] = [2, 3];

/// The request that moves one branch from `base` to `tip` if it is at `base`, with the objects that takes.
///
/// `atomic` is not needed for one branch. With it the forge's git says in its messages why it did not move.
pub(crate) fn request(reference: &str, base: &Revision, tip: &Revision, pack: &[u8]) -> Vec<u8> {
    let format = if base.as_str().len() == 64 { "sha256" } else { "sha1" };
    let agent = concat!("fabrique/", env!("CARGO_PKG_VERSION"));
    let command = format!(
        "{base} {tip} {reference}\0 report-status side-band-64k atomic quiet object-format={format} agent={agent}"
    );
    let mut request = format!("{:04x}{command}", PREFIX + command.len()).into_bytes();
    request.extend_from_slice(FLUSH);
    request.extend_from_slice(pack);
    request
}

/// What the forge's git reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// What became of the objects: "ok" or what went wrong.
    pub(crate) unpack: Option<String>,
    /// Whether the branch was moved, or why not.
    pub(crate) branch: Option<Result<(), String>>,
    /// What the forge and its hooks say, as they say it.
    pub(crate) said: String,
}

impl Report {
    /// Reads an answer about one branch.
    ///
    /// # Errors
    /// What is wrong with it. One that was cut off is, however much it says before.
    pub(crate) fn parse(mut answer: &[u8], reference: &str) -> Result<Self, &'static str> {
        let (mut report, mut said) = (Vec::new(), Vec::new());
        loop {
            match next(&mut answer)? {
                Some([band, data @ ..]) if *band == REPORT => report.extend_from_slice(data),
                Some([band, data @ ..]) if MESSAGES.contains(band) => said.extend_from_slice(data),
                // Instead of an answer, and its last line.
                Some([b'E', b'R', b'R', b' ', text @ ..]) => {
                    said.extend_from_slice(text);
                    break;
                }
                Some(_) => return Err("the forge's answer is not a report of git's"),
                None => break,
            }
        }
        let mut parsed = Self { said: String::from_utf8_lossy(&said).into_owned(), ..Self::default() };
        let mut lines = report.as_slice();
        while !lines.is_empty()
            && let Some(line) = next(&mut lines)?
        {
            parsed.note(String::from_utf8_lossy(line).trim_end(), reference);
        }
        Ok(parsed)
    }

    fn note(&mut self, line: &str, reference: &str) {
        if let Some(unpack) = line.strip_prefix("unpack ") {
            self.unpack = Some(unpack.to_owned());
        } else if line.strip_prefix("ok ") == Some(reference) {
            self.branch = Some(Ok(()));
        } else if let Some((name, reason)) = line.strip_prefix("ng ").and_then(|rest| rest.split_once(' '))
            && name == reference
        {
            self.branch = Some(Err(reason.to_owned()));
        }
    }
}

/// Takes the next pkt-line's content from `bytes`; nothing at a flush.
fn next<'a>(bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>, &'static str> {
    const CUT_OFF: &str = "the forge's answer ends in the middle";
    let (prefix, rest) = bytes.split_at_checked(PREFIX).ok_or(CUT_OFF)?;
    let mut length = 0;
    for digit in prefix {
        let digit = char::from(*digit).to_digit(16).ok_or("the forge's answer is not in git's pkt-lines")?;
        length = length * 16 + usize::try_from(digit).unwrap_or_default();
    }
    if length == 0 {
        *bytes = rest;
        return Ok(None);
    }
    let length = length.checked_sub(PREFIX).ok_or("the forge's answer has a pkt-line of no length")?;
    let (content, rest) = rest.split_at_checked(length).ok_or(CUT_OFF)?;
    *bytes = rest;
    Ok(Some(content))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAIN: &str = "refs/heads/main";

    fn line(content: &[u8]) -> Vec<u8> {
        [format!("{:04x}", content.len() + 4).as_bytes(), content].concat()
    }

    /// An answer as git writes it: messages in pieces of this size, then the report's lines.
    pub(crate) fn answer(lines: &[&str], said: &str, piece: usize) -> Vec<u8> {
        let messages = said.as_bytes().chunks(piece).map(|part| line(&[b"\x02", part].concat()));
        let mut answer: Vec<u8> = messages.flatten().collect();
        if !lines.is_empty() {
            let mut report = b"\x01".to_vec();
            lines.iter().for_each(|text| report.extend(line(format!("{text}\n").as_bytes())));
            report.extend_from_slice(FLUSH);
            answer.extend(line(&report));
        }
        answer.extend_from_slice(FLUSH);
        answer
    }

    #[test]
    fn a_request_names_both_ids_and_ends_with_the_pack() {
        let (base, tip) = ("1".repeat(40), "2".repeat(40));
        let (base, tip) = (Revision::parse(&base).unwrap(), Revision::parse(&tip).unwrap());
        let request = request(MAIN, &base, &tip, b"PACK...");
        let command = format!(
            "{base} {tip} refs/heads/main\0 report-status side-band-64k atomic quiet object-format=sha1 \
             agent=fabrique/{}",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(request, [&line(command.as_bytes()), FLUSH, b"PACK..."].concat());
    }

    #[test]
    fn an_answer_is_read_whatever_its_pieces() {
        let said = "error: cannot lock ref 'refs/heads/main'\nand more\n";
        for piece in [1, 7, 1000] {
            let answer = answer(&["unpack ok", "ng refs/heads/main atomic transaction failed"], said, piece);
            let report = Report::parse(&answer, MAIN).unwrap();
            let branch = Some(Err("atomic transaction failed".to_owned()));
            assert_eq!(report, Report { unpack: Some("ok".to_owned()), branch, said: said.to_owned() });
        }
        let pushed = Report::parse(&answer(&["unpack ok", "ok refs/heads/main"], "", 9), MAIN).unwrap();
        assert_eq!(pushed.branch, Some(Ok(())));
        let other = Report::parse(&answer(&["unpack ok", "ok refs/heads/mainly"], "", 9), MAIN).unwrap();
        assert_eq!(other.branch, None, "another branch's fate is not this one's");
    }

    #[test]
    fn a_report_may_be_spread_over_several_lines_of_its_band() {
        let mut report = [line(b"unpack ok\n"), line(b"ok refs/heads/main\n"), FLUSH.to_vec()].concat();
        let tail = report.split_off(17);
        let answer = [line(&[b"\x01", &report[..]].concat()), line(&[b"\x01", &tail[..]].concat())];
        let answer = [&answer.concat(), FLUSH].concat();
        assert_eq!(Report::parse(&answer, MAIN).unwrap().branch, Some(Ok(())));
    }

    #[test]
    fn what_is_not_an_answer_is_told_from_one() {
        for bytes in [&b""[..], b"000", b"<html>", b"0003", b"0004", b"+005x", b"0005\x04"] {
            assert!(Report::parse(bytes, MAIN).is_err(), "{}", bytes.escape_ascii());
        }
        let error = Report::parse(b"000eERR no way", MAIN).unwrap();
        assert_eq!(error, Report { said: "no way".to_owned(), ..Report::default() });
        assert_eq!(Report::parse(FLUSH, MAIN), Ok(Report::default()), "nothing was said, and all of it");
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(Report::parse(&bytes, MAIN));
        }

        #[test]
        fn no_lines_are_too_odd(
            parts in proptest::collection::vec((0..5_u8, "[ -~\n\\PC]{0,20}"), 0..9),
        ) {
            let lines = parts.iter().flat_map(|(band, text)| line(&[&[*band], text.as_bytes()].concat()));
            let answer: Vec<u8> = lines.chain(FLUSH.iter().copied()).collect();
            drop(Report::parse(&answer, MAIN));
        }

        #[test]
        fn an_answer_that_was_cut_off_is_never_believed(cut in 0..1000_usize) {
            let whole = answer(&["unpack ok", "ok refs/heads/main"], "remote words\n", 5);
            let cut = cut % whole.len();
            prop_assert!(Report::parse(&whole[..cut], MAIN).is_err());
        }
    }
}
