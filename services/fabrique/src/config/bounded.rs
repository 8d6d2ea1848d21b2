//! Values with bounds. The bounds are a part of the type, so that what the reference says of a key is what the check
//! at the start holds it to. Reading takes any value: everything that is out of bounds is told at once, by the check.

use std::borrow::Cow;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};

/// Milliseconds, in which the bounds of waits are written.
pub(crate) const MILLISECOND: u64 = 1;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

/// Bytes, in which the bounds of sizes are written.
pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const TIB: u64 = 1 << 40;

/// A duration of `LEAST` to `MOST` milliseconds, written like `30s` or `1h 30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Wait<const LEAST: u64, const MOST: u64>(#[serde(with = "humantime_serde")] Duration);

/// A number of things, `LEAST` to `MOST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Count<const LEAST: u64, const MOST: u64>(u64);

/// A size of `LEAST` to `MOST` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Bytes<const LEAST: u64, const MOST: u64>(u64);

impl<const LEAST: u64, const MOST: u64> Wait<LEAST, MOST> {
    pub(crate) fn get(self) -> Duration {
        self.0
    }
}

impl<const LEAST: u64, const MOST: u64> Serialize for Wait<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&written(self.0))
    }
}

/// A duration in the largest unit that it is a multiple of, as a person would write it: `4500ms`, `30s`, `180d`.
pub(crate) fn written(wait: Duration) -> String {
    let milliseconds = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s")];
    let unit = units.into_iter().find(|(unit, _)| milliseconds > 0 && milliseconds.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or(if milliseconds == 0 { (SECOND, "s") } else { (MILLISECOND, "ms") });
    format!("{}{name}", milliseconds / unit)
}

impl<const LEAST: u64, const MOST: u64> From<Duration> for Wait<LEAST, MOST> {
    fn from(wait: Duration) -> Self {
        Self(wait)
    }
}

impl<const LEAST: u64, const MOST: u64> From<Wait<LEAST, MOST>> for Duration {
    fn from(wait: Wait<LEAST, MOST>) -> Self {
        wait.0
    }
}

/// Describes a type to the schema, from which the reference and the check are made.
macro_rules! described {
    ($name:ident, $json:literal, $kind:literal) => {
        impl<const LEAST: u64, const MOST: u64> JsonSchema for $name<LEAST, MOST> {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": $json, "x-kind": $kind, "minimum": LEAST, "maximum": MOST })
            }
        }
    };
}

described!(Wait, "string", "wait");
described!(Count, "integer", "count");
described!(Bytes, "integer", "bytes");

/// Numbers as the adapters have them. What is too large for one is above every bound.
macro_rules! number {
    ($name:ident, $($type:ty),+) => {$(
        impl<const LEAST: u64, const MOST: u64> From<$type> for $name<LEAST, MOST> {
            fn from(number: $type) -> Self {
                Self(u64::try_from(number).unwrap_or(u64::MAX))
            }
        }

        impl<const LEAST: u64, const MOST: u64> From<$name<LEAST, MOST>> for $type {
            fn from(number: $name<LEAST, MOST>) -> Self {
                Self::try_from(number.0).unwrap_or(Self::MAX)
            }
        }
    )+};
}

number!(Count, usize, u32);
number!(Bytes, usize, u64);

/// Counts of at least one.
macro_rules! non_zero {
    ($($type:ty),+) => {$(
        impl<const MOST: u64> From<$type> for Count<1, MOST> {
            fn from(number: $type) -> Self {
                number.get().into()
            }
        }

        impl<const MOST: u64> From<Count<1, MOST>> for $type {
            fn from(number: Count<1, MOST>) -> Self {
                Self::new(number.into()).unwrap_or(Self::MIN)
            }
        }
    )+};
}

non_zero!(NonZeroUsize, NonZeroU32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_written_as_a_person_would_and_read_back_as_it_was() {
        let texts = ["0s", "250ms", "4500ms", "30s", "90s", "1m", "5h", "180d"];
        for text in texts {
            let wait: Wait<0, DAY> = serde_json::from_value(text.into()).unwrap();
            assert_eq!(serde_json::to_value(wait).unwrap(), text);
        }
    }

    #[test]
    fn a_number_that_is_too_large_for_its_reader_does_not_wrap_around() {
        let count: Count<0, 1> = serde_json::from_value((u64::MAX - 1).into()).unwrap();
        assert_eq!(u32::from(count), u32::MAX);
    }
}
