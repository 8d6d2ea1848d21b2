//! The names that declarations and contracts are made of. Each has one rule, which is also what the schema says.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::LazyLock;

use regex::Regex;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// A text that breaks the rule of a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct InvalidName {
    text: String,
    expected: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $expected:literal, $longest:literal, $pattern:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                static RULE: LazyLock<Regex> = LazyLock::new(|| Regex::new($pattern).expect("a valid pattern"));
                if text.len() <= $longest && RULE.is_match(text) {
                    return Ok(Self(text.to_owned()));
                }
                Err(InvalidName { text: text.chars().take(80).collect(), expected: $expected })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "maxLength": $longest, "pattern": $pattern })
            }
        }
    };
}

name!(
    /// The name of a Kubernetes object: a DNS subdomain.
    ObjectName,
    "the name of a Kubernetes object (a-z, 0-9, - and ., at most 253 characters)",
    253,
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
);

name!(
    /// The name of a namespace: a DNS label.
    Namespace,
    "a namespace (a-z, 0-9 and -, at most 63 characters)",
    63,
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
);

name!(
    /// The name of a bucket, under the rule that S3 and Ceph's object gateway share.
    BucketName,
    "the name of a bucket (a-z, 0-9, - and ., 3 to 63 characters)",
    63,
    r"^[a-z0-9][-a-z0-9.]+[a-z0-9]$"
);

name!(
    /// The name of a database or a role of PostgreSQL that needs no quotes.
    DatabaseName,
    "the name of a database (a-z, 0-9, - and _, at most 63 characters, starting with a letter)",
    63,
    r"^[a-z][-a-z0-9_]*$"
);

name!(
    /// A key of a Kubernetes Secret.
    SecretKey,
    "a key of a secret (A-Z, a-z, 0-9, -, _ and ., at most 253 characters)",
    253,
    r"^[-._a-zA-Z0-9]+$"
);

name!(
    /// The name of an environment variable.
    VariableName,
    "the name of a variable (A-Z, a-z, 0-9 and _, not starting with a digit)",
    128,
    r"^[A-Za-z_][A-Za-z0-9_]*$"
);

name!(
    /// The file of a migration inside of the folder that the registration names.
    MigrationFile,
    "the file of a migration (A-Z, a-z, 0-9, -, _ and ., ending with .sql, without a folder)",
    128,
    r"^[A-Za-z0-9][-._A-Za-z0-9]*\.sql$"
);

name!(
    /// The beginning of a revision, as a declaration pins it.
    RevisionPrefix,
    "the beginning of a revision (7 to 64 of 0-9 and a-f)",
    64,
    r"^[0-9a-f]{7,64}$"
);

/// A version of the contract: a whole number from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContractVersion(NonZeroU32);

impl ContractVersion {
    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl FromStr for ContractVersion {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let number = Some(text).filter(|text| !text.starts_with('+')).and_then(|text| text.parse().ok());
        let expected = "a version of the contract (a whole number from 1)";
        number.map(Self).ok_or_else(|| InvalidName { text: text.chars().take(80).collect(), expected })
    }
}

impl fmt::Display for ContractVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl JsonSchema for ContractVersion {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ContractVersion".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": u32::MAX })
    }
}

/// The rule of [`AppName`](fabrique_core::id::AppName), for the schema.
pub(crate) const APP_NAME: &str = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$";
/// The rule of [`EnvironmentName`](fabrique_core::id::EnvironmentName), which is the same.
pub(crate) const ENVIRONMENT_NAME: &str = APP_NAME;

#[cfg(test)]
mod tests {
    use fabrique_core::id::AppName;
    use proptest::prelude::*;

    use super::*;

    fn accepts<T: FromStr>(good: &[&str], bad: &[&str]) {
        good.iter().for_each(|text| assert!(text.parse::<T>().is_ok(), "{text}"));
        bad.iter().for_each(|text| assert!(text.parse::<T>().is_err(), "{text}"));
    }

    #[test]
    fn every_name_has_its_rule() {
        let long = "a".repeat(254);
        accepts::<ObjectName>(
            &["rook-ceph-datalake", "a.b-c.d", "0"],
            &["", "-a", "a-", "A", "a..b", "a_b", &long],
        );
        accepts::<Namespace>(&["postgres", "0"], &["", "a.b", &"a".repeat(64)]);
        accepts::<BucketName>(&["atlas-datalake", "a.b"], &["ab", "-ab", "Abc", &"a".repeat(64)]);
        accepts::<DatabaseName>(&["pgvector", "a_b-1"], &["", "1a", "A", "a b"]);
        accepts::<SecretKey>(&["username", "tls.crt", "_A"], &["", "a b", "a/b"]);
        accepts::<VariableName>(&["DAGSTER_CURRENT_IMAGE"], &["", "1A", "A-B", "a=b"]);
        accepts::<MigrationFile>(
            &["001-researchers-hnsw.sql"],
            &["", ".sql", "a.txt", "../a.sql", "a/b.sql"],
        );
        accepts::<ContractVersion>(&["1", "4294967295"], &["", "0", "-1", "+1", "1.0", "v1", "4294967296"]);
        accepts::<RevisionPrefix>(
            &["a3f9c1d", "1234567", &"a".repeat(64)],
            &["a3f9c1", "A3F9C1D", &"a".repeat(65)],
        );
    }

    #[test]
    fn a_refusal_says_the_rule_and_shortens_hostile_text() {
        let error =
            format!("\n{long}", long = "x".repeat(500)).parse::<DatabaseName>().unwrap_err().to_string();
        assert!(
            error.len() < 250 && !error.contains('\n') && error.contains("starting with a letter"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn the_rule_of_apps_is_the_one_of_core(text in "[a-c0-1A_-]{0,4}|[a-z-]{38,42}") {
            let published = Regex::new(APP_NAME).unwrap().is_match(&text);
            prop_assert_eq!(AppName::parse(&text).is_ok(), published, "{}", text);
        }
    }
}
