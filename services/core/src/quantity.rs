//! Amounts of memory, storage and processor time, spelled as Kubernetes spells them and comparable as numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text that is no amount of the kind that is wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct NotAnAmount {
    text: String,
    expected: &'static str,
}

/// Binary suffixes, the largest first.
const BINARY: [(&str, u64); 4] = [("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
/// Decimal suffixes.
const DECIMAL: [(&str, u64); 4] =
    [("T", 1_000_000_000_000), ("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)];

/// An amount of memory or storage in bytes: `512Mi`, `2G`, `1073741824`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bytes(pub u64);

impl Bytes {
    /// So many mebibytes.
    #[must_use]
    pub const fn mebi(count: u64) -> Self {
        Self(count << 20)
    }

    /// So many gibibytes.
    #[must_use]
    pub const fn gibi(count: u64) -> Self {
        Self(count << 30)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = BINARY.into_iter().find(|&(_, unit)| self.0 >= unit && self.0.is_multiple_of(unit));
        match whole {
            Some((suffix, unit)) => write!(f, "{}{suffix}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl TryFrom<String> for Bytes {
    type Error = NotAnAmount;
    fn try_from(text: String) -> Result<Self, NotAnAmount> {
        let suffix = BINARY.into_iter().chain(DECIMAL).find(|&(suffix, _)| text.ends_with(suffix));
        let (digits, unit) = match suffix {
            Some((suffix, unit)) => (&text[..text.len() - suffix.len()], unit),
            None => (text.as_str(), 1),
        };
        let amount = number(digits).and_then(|count| count.checked_mul(unit));
        amount.map(Self).ok_or(NotAnAmount { text, expected: "an amount of bytes such as 512Mi or 2Gi" })
    }
}

impl FromStr for Bytes {
    type Err = NotAnAmount;
    fn from_str(text: &str) -> Result<Self, NotAnAmount> {
        Self::try_from(text.to_owned())
    }
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> Self {
        bytes.to_string()
    }
}

/// Processor time in thousandths of a core: `500m`, `2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Millicores(pub u64);

impl fmt::Display for Millicores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1000) { write!(f, "{}", self.0 / 1000) } else { write!(f, "{}m", self.0) }
    }
}

impl TryFrom<String> for Millicores {
    type Error = NotAnAmount;
    fn try_from(text: String) -> Result<Self, NotAnAmount> {
        let amount = match text.strip_suffix('m') {
            Some(digits) => number(digits),
            None => number(&text).and_then(|cores| cores.checked_mul(1000)),
        };
        amount.map(Self).ok_or(NotAnAmount { text, expected: "processor time such as 500m or 2" })
    }
}

impl FromStr for Millicores {
    type Err = NotAnAmount;
    fn from_str(text: &str) -> Result<Self, NotAnAmount> {
        Self::try_from(text.to_owned())
    }
}

impl From<Millicores> for String {
    fn from(cores: Millicores) -> Self {
        cores.to_string()
    }
}

/// Digits only: `u64::from_str` would take a sign.
fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(text: &str) -> Option<u64> {
        Bytes::try_from(text.to_owned()).ok().map(|bytes| bytes.0)
    }

    fn millis(text: &str) -> Option<u64> {
        Millicores::try_from(text.to_owned()).ok().map(|cores| cores.0)
    }

    #[test]
    fn amounts_are_read_as_kubernetes_reads_them() {
        assert_eq!(bytes("512Mi"), Some(512 << 20));
        assert_eq!(bytes("2G"), Some(2_000_000_000));
        assert_eq!(bytes("17"), Some(17));
        assert_eq!(millis("250m"), Some(250));
        assert_eq!(millis("2"), Some(2000));
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for wrong in ["", "Mi", "-1", "+1", "1.5Gi", "1 Gi", "12Xi", "99999999999999999999", "20000000Ti"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
        for wrong in ["", "m", "-1", "0.5", "2cores"] {
            assert_eq!(millis(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn an_amount_survives_being_written(amount in any::<u64>(), shift in 0u32..40) {
            let amount = amount >> (shift % 24) << (shift / 2);
            prop_assert_eq!(bytes(&Bytes(amount).to_string()), Some(amount));
            let cores = amount / 1000;
            prop_assert_eq!(millis(&Millicores(cores).to_string()), Some(cores));
        }
    }
}
