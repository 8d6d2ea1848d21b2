//! Commit messages whose trailers let every state be rebuilt from git.
//!
//! ```text
//! Deploy citation 1b1ddb30aa2f to prod
//!
//! registry:80/citation-dagster@sha256:2eee…
//!
//! App: citation
//! Environment: prod
//! Channel: image
//! Source-Revision: 1b1ddb30aa2f…
//! Image: registry:80/citation-dagster
//! Digest: sha256:2eee…
//! Previous: sha256:11aa…
//! Build-Id: citation-01k…
//! Build-Key: 90ab…
//! ```
//!
//! Whoever can push can write trailers: they are evidence only together with who pushed the commit, and
//! the content of the tree is always asked first.

use std::fmt;
use std::str::FromStr;

use fabrique_core::id::{
    AppName, BuildId, BuildKey, Channel, Digest, EnvironmentName, ImageRepository, Revision,
};

/// The longest subject, in characters.
const MAX_SUBJECT: usize = 120;
/// The longest body, in characters.
const MAX_BODY: usize = 4000;

/// What a commit did, in fixed words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trailers {
    /// `App`
    pub app: AppName,
    /// `Environment`
    pub environment: Option<EnvironmentName>,
    /// `Channel`; absent when the commit concerns both.
    pub channel: Option<Channel>,
    /// `Source-Revision`: what the channel shows from here on.
    pub source_revision: Option<Revision>,
    /// `Image`
    pub image: Option<ImageRepository>,
    /// `Digest`
    pub digest: Option<Digest>,
    /// `Previous`: what the channel showed before.
    pub previous: Option<Previous>,
    /// `Build-Id`
    pub build_id: Option<BuildId>,
    /// `Build-Key`
    pub build_key: Option<BuildKey>,
}

/// What a channel showed before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Previous {
    /// Of the image channel.
    Digest(Digest),
    /// Of the infra channel.
    Revision(Revision),
}

impl fmt::Display for Previous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Previous::Digest(digest) => digest.fmt(f),
            Previous::Revision(revision) => revision.fmt(f),
        }
    }
}

impl Trailers {
    /// The trailers of a commit that concerns `app` and says nothing more yet.
    #[must_use]
    pub fn of(app: &AppName) -> Self {
        Self {
            app: app.clone(),
            environment: None,
            channel: None,
            source_revision: None,
            image: None,
            digest: None,
            previous: None,
            build_id: None,
            build_key: None,
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        fn text<T: fmt::Display>(value: Option<&T>) -> Option<String> {
            value.map(T::to_string)
        }
        [
            ("App", Some(self.app.to_string())),
            ("Environment", text(self.environment.as_ref())),
            ("Channel", text(self.channel.as_ref())),
            ("Source-Revision", text(self.source_revision.as_ref())),
            ("Image", text(self.image.as_ref())),
            ("Digest", text(self.digest.as_ref())),
            ("Previous", text(self.previous.as_ref())),
            ("Build-Id", text(self.build_id.as_ref())),
            ("Build-Key", text(self.build_key.as_ref())),
        ]
        .into_iter()
        .filter_map(|(key, value)| value.map(|value| (key, value)))
        .collect()
    }

    /// Reads the last paragraph of a message. Unknown trailers are passed over, wrong values count as
    /// absent, and of a repeated key the last one counts, as in `git interpret-trailers`.
    fn parse(paragraph: &str) -> Option<Self> {
        fn value<T: FromStr>(paragraph: &str, wanted: &str) -> Option<T> {
            let of_key = |line: &str| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(wanted).then(|| value.trim().to_owned())
            };
            paragraph.lines().filter_map(of_key).next_back()?.parse().ok()
        }
        let channel: Option<String> = value(paragraph, "Channel");
        let digest = value(paragraph, "Previous").map(Previous::Digest);
        Some(Self {
            app: value(paragraph, "App")?,
            environment: value(paragraph, "Environment"),
            channel: [Channel::Image, Channel::Infra]
                .into_iter()
                .find(|c| channel.as_deref() == Some(c.as_str())),
            source_revision: value(paragraph, "Source-Revision"),
            image: value(paragraph, "Image"),
            digest: value(paragraph, "Digest"),
            previous: digest.or_else(|| value(paragraph, "Previous").map(Previous::Revision)),
            build_id: value(paragraph, "Build-Id"),
            build_key: value(paragraph, "Build-Key"),
        })
    }
}

/// The message of an automatic commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitMessage {
    subject: String,
    body: String,
    trailers: Trailers,
}

impl CommitMessage {
    /// A message of a one-line subject, a body (which may be empty) and trailers. Control characters
    /// become spaces: neither text can forge a trailer or a terminal escape.
    #[must_use]
    pub fn new(subject: &str, body: &str, trailers: Trailers) -> Self {
        let mut subject = one_line(subject, MAX_SUBJECT);
        if subject.is_empty() {
            "Update".clone_into(&mut subject);
        }
        let body: String = body.chars().take(MAX_BODY).collect();
        let mut lines: Vec<String> = Vec::new();
        for line in body.split('\n') {
            let line = one_line(line, MAX_BODY);
            // Git collapses blank lines, too.
            if !line.is_empty() || lines.last().is_some_and(|last| !last.is_empty()) {
                lines.push(line);
            }
        }
        Self { subject, body: lines.join("\n").trim_end().to_owned(), trailers }
    }

    /// The first line.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The same with one more paragraph before the trailers.
    pub(crate) fn noting(&self, note: &str) -> Self {
        let body = [self.body.as_str(), note].into_iter().filter(|text| !text.is_empty());
        Self::new(&self.subject, &body.collect::<Vec<_>>().join("\n\n"), self.trailers.clone())
    }

    /// What stands between subject and trailers.
    #[must_use]
    pub fn body(&self) -> &str {
        &self.body
    }

    /// The trailers.
    #[must_use]
    pub fn trailers(&self) -> &Trailers {
        &self.trailers
    }

    /// Reads a message back, or nothing when it is not one of fabrique's.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_end();
        let (head, paragraph) = text.rsplit_once("\n\n")?;
        let (subject, body) = head.split_once("\n\n").unwrap_or((head, ""));
        Some(Self::new(subject, body, Trailers::parse(paragraph)?))
    }
}

impl fmt::Display for CommitMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n\n", self.subject)?;
        if !self.body.is_empty() {
            write!(f, "{}\n\n", self.body)?;
        }
        for (key, value) in self.trailers.lines() {
            writeln!(f, "{key}: {value}")?;
        }
        Ok(())
    }
}

/// `text` on one line without control characters, at most `limit` characters.
pub(crate) fn one_line(text: &str, limit: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(limit).collect();
    clean.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_trailers() -> impl Strategy<Value = Trailers> {
        let previous = prop_oneof![
            "[0-9a-f]{64}".prop_map(|d| Previous::Digest(Digest::parse(&format!("sha256:{d}")).unwrap())),
            "[0-9a-f]{39}1".prop_map(|r| Previous::Revision(Revision::parse(&r).unwrap())),
        ];
        (
            prop::option::of("[a-z]{1,5}".prop_map(|e| EnvironmentName::parse(&e).unwrap())),
            prop::option::of(prop_oneof![Just(Channel::Image), Just(Channel::Infra)]),
            prop::option::of("[0-9a-f]{39}1".prop_map(|r| Revision::parse(&r).unwrap())),
            prop::option::of(
                "[a-z]{1,5}".prop_map(|n| ImageRepository::parse(&format!("r:80/{n}")).unwrap()),
            ),
            prop::option::of("[0-9a-f]{64}".prop_map(|d| Digest::parse(&format!("sha256:{d}")).unwrap())),
            prop::option::of(previous),
            prop::option::of("[0-9a-f]{64}".prop_map(|k| BuildKey::parse(&k).unwrap())),
            any::<bool>(),
        )
            .prop_map(
                |(environment, channel, source_revision, image, digest, previous, build_key, built)| {
                    Trailers {
                        app: AppName::parse("citation").unwrap(),
                        environment,
                        channel,
                        source_revision,
                        image,
                        digest,
                        previous,
                        build_id: built
                            .then(|| BuildId::parse("citation-01k0000000000000000000000a").unwrap()),
                        build_key,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn invariant_13_printing_a_message_and_reading_it_gives_it_back(
            subject in "[ -~é\\n\\r\\t]{0,40}",
            body in "[ -~é\\n\\r\\x1b]{0,80}",
            trailers in any_trailers(),
        ) {
            let message = CommitMessage::new(&subject, &body, trailers);
            prop_assert_eq!(CommitMessage::parse(&message.to_string()), Some(message));
        }

        #[test]
        fn no_text_forges_a_trailer(text in "[A-Za-z: \\n\\r]{0,60}", trailers in any_trailers()) {
            let forged = format!("{text}\n\nApp: evil\nDigest: sha256:00\n");
            let message = CommitMessage::new(&forged, &forged, trailers.clone());
            let read = CommitMessage::parse(&message.to_string()).unwrap();
            prop_assert_eq!(read.trailers(), &trailers);
        }
    }

    #[test]
    fn a_message_of_a_person_is_not_ours() {
        for text in
            ["", "Fix", "Fix\n\nSigned-off-by: A <a@b>\n", "App: citation", "Fix\n\nApp: Not A Name\n"]
        {
            assert_eq!(CommitMessage::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn trailers_that_others_add_are_passed_over() {
        let text = "Deploy\r\n\nApp: citation\nSigned-off-by: A <a@b>\nDigest: latest\nchannel: infra\n";
        let trailers = CommitMessage::parse(text).unwrap().trailers;
        assert_eq!(trailers.channel, Some(Channel::Infra));
        assert_eq!(trailers.digest, None);
    }
}
