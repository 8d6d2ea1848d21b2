//! What a registry asks for when it answers 401.

use secrecy::SecretString;
use serde::Deserialize;

/// A `WWW-Authenticate` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User and password, with each request.
    Basic,
    /// A token from this service.
    Bearer {
        /// Where tokens are given out.
        realm: String,
        /// As what the registry is known there.
        service: Option<String>,
    },
}

impl Challenge {
    /// Reads the header; nothing when it is of another kind.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        Some(Self::Bearer { realm: parameter(rest, "realm")?, service: parameter(rest, "service") })
    }
}

/// A parameter of a challenge, quoted or not. Quoted ones may hold commas.
fn parameter(text: &str, name: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let (key, after) = rest.split_once('=')?;
        let key = key.trim_matches([' ', ',', '\t']);
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if key.eq_ignore_ascii_case(name) {
            return Some(value.trim().to_owned());
        }
        rest = next;
    }
}

/// What a token service answers; old ones say `token`, OAuth2 ones `access_token`.
#[derive(Deserialize)]
pub(crate) struct TokenAnswer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl TokenAnswer {
    pub(crate) fn token(self) -> Option<SecretString> {
        [self.token, self.access_token].into_iter().find(|token| !token.is_empty()).map(SecretString::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_whatever_their_order() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
        };
        let header = r#"Bearer realm="https://auth/token",service="reg, one",scope="repository:a:pull""#;
        assert_eq!(Challenge::parse(header), bearer("https://auth/token", Some("reg, one")));
        assert_eq!(
            Challenge::parse(r#"bearer service=x, realm="http://a/t""#),
            bearer("http://a/t", Some("x"))
        );
        assert_eq!(Challenge::parse(r#"Basic realm="x""#), Some(Challenge::Basic));
        for other in ["", "Digest x=1", "Bearer", r#"Bearer service="x""#, r#"Bearer realm="x"#] {
            assert_eq!(Challenge::parse(other), None, "{other}");
        }
    }

    #[test]
    fn either_spelling_of_a_token_is_taken() {
        for (body, given) in [(r#"{"token":"a"}"#, true), (r#"{"access_token":"b"}"#, true), ("{}", false)] {
            let answer: TokenAnswer = serde_json::from_str(body).unwrap();
            assert_eq!(answer.token().is_some(), given, "{body}");
        }
    }
}
