//! Kubernetes quantities, exactly.
//!
//! The grammar is that of `k8s.io/apimachinery/pkg/api/resource`: a decimal number and a binary suffix (`Ki` to
//! `Ei`), a decimal suffix (`n`, `u`, `m`, none, `k`, `M` to `E`) or a decimal exponent (`e3`, `E-3`). Kubernetes
//! rounds what is finer than a billionth and caps what is above 2⁶³−1; here both are refused, so that an amount is
//! always what was written.

use std::borrow::Cow;
use std::fmt;
use std::iter::Sum;
use std::ops::Add;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

const NANOS: u128 = 1_000_000_000;
/// 2⁶³−1, the largest amount of Kubernetes.
const LARGEST: u128 = (i64::MAX as u128) * NANOS;
/// Digits that a `u128` holds for sure.
const MOST_DIGITS: usize = 38;
/// Powers of five up to here fit in a `u128`, and no exact amount needs a larger one.
const MOST_FRACTION: u32 = 54;

/// Binary suffixes with their power of two, the largest first.
const BINARY: [(&str, u32); 6] = [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
/// Decimal suffixes with their power of ten.
const DECIMAL: [(&str, i32); 9] =
    [("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// What a quantity in quotes looks like.
pub(crate) const PATTERN: &str = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$";

/// An amount that is not negative, in billionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quantity(u128);

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is {problem}")]
pub struct NotAQuantity {
    text: String,
    problem: &'static str,
}

impl Quantity {
    /// So many whole units: bytes, or cores.
    #[must_use]
    pub const fn whole(units: u64) -> Self {
        Self(units as u128 * NANOS)
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Whether it is a multiple of one unit: the finest amount of memory and storage.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.0.is_multiple_of(NANOS)
    }

    /// Whether it is a multiple of a thousandth: the finest amount of processor time.
    #[must_use]
    pub fn is_milli(self) -> bool {
        self.0.is_multiple_of(NANOS / 1000)
    }

    /// What is left after `other`, or nothing.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// So many hundredths of it, rounded up to a whole unit.
    #[must_use]
    pub fn percent(self, percent: u8) -> Self {
        Self((self.0 * u128::from(percent)).div_ceil(100 * NANOS) * NANOS)
    }

    /// For people: at most one decimal in the largest binary unit, never more than there is.
    #[must_use]
    pub fn rounded(self) -> String {
        let unit = BINARY.into_iter().find(|&(_, power)| self.0 >= NANOS << power);
        let Some((suffix, power)) = unit else { return self.to_string() };
        let tenths = self.0 * 10 / (NANOS << power);
        match tenths % 10 {
            0 => format!("{}{suffix}", tenths / 10),
            tenth => format!("{}.{tenth}{suffix}", tenths / 10),
        }
    }
}

impl Add for Quantity {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// The shortest exact spelling: binary where it is a whole number of them, else decimal.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary =
            BINARY.into_iter().find(|&(_, power)| self.0 > 0 && self.0.is_multiple_of(NANOS << power));
        if let Some((suffix, power)) = binary {
            return write!(f, "{}{suffix}", self.0 / (NANOS << power));
        }
        let (unit, suffix) = [(NANOS, ""), (1_000_000, "m"), (1000, "u")]
            .into_iter()
            .find(|(unit, _)| self.0.is_multiple_of(*unit))
            .unwrap_or((1, "n"));
        write!(f, "{}{suffix}", self.0 / unit)
    }
}

impl FromStr for Quantity {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        parse(text).map_err(|problem| NotAQuantity { text: text.chars().take(80).collect(), problem })
    }
}

const NO_NUMBER: &str = "no quantity: write a number and a suffix, like 500m, 1.5Gi or 2e3";
const NEGATIVE: &str = "negative";
const TOO_FINE: &str = "finer than a billionth";
const TOO_LARGE: &str = "more than 2^63-1";

fn parse(text: &str) -> Result<Quantity, &'static str> {
    if text.starts_with('-') {
        return Err(NEGATIVE);
    }
    let number = text.strip_prefix('+').unwrap_or(text);
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
    let (number, suffix) = number.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(NO_NUMBER);
    }
    let (twos, tens) = scale(suffix)?;
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(Quantity::default());
    }
    if digits.len() > MOST_DIGITS {
        return Err(if fraction.is_empty() { TOO_LARGE } else { "written with more than 38 digits" });
    }
    let mantissa: u128 = digits.parse().map_err(|_| TOO_LARGE)?;
    let fraction = i32::try_from(fraction.len()).map_err(|_| TOO_FINE)?;
    let amount = scaled(mantissa, twos, tens + 9 - fraction)?;
    if amount > LARGEST { Err(TOO_LARGE) } else { Ok(Quantity(amount)) }
}

/// The powers of two and of ten that a suffix stands for.
fn scale(suffix: &str) -> Result<(u32, i32), &'static str> {
    if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Ok((*power, 0));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Ok((0, *power));
    }
    if suffix.is_empty() {
        return Ok((0, 0));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or(NO_NUMBER)?;
    let (negative, digits) = match exponent.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, exponent.strip_prefix('+').unwrap_or(exponent)),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(NO_NUMBER);
    }
    // Beyond any amount in either direction, the number of digits does not matter.
    let exponent = digits.parse::<i32>().unwrap_or(i32::MAX).min(1000);
    Ok((0, if negative { -exponent } else { exponent }))
}

/// `mantissa · 2^twos · 10^tens`, exactly.
fn scaled(mantissa: u128, twos: u32, tens: i32) -> Result<u128, &'static str> {
    if let Ok(tens) = u32::try_from(tens) {
        let tens = 10_u128.checked_pow(tens).ok_or(TOO_LARGE)?;
        return mantissa.checked_mul(tens).and_then(|n| n.checked_mul(1 << twos)).ok_or(TOO_LARGE);
    }
    // A division by ten is one by five, which the twos cannot help with, and one by two, which they can.
    let fives = tens.unsigned_abs();
    let divisor = if fives > MOST_FRACTION { None } else { 5_u128.checked_pow(fives) };
    let Some(divisor) = divisor.filter(|divisor| mantissa.is_multiple_of(*divisor)) else {
        return Err(TOO_FINE);
    };
    let rest = mantissa / divisor;
    match twos.checked_sub(fives) {
        Some(more) => rest.checked_mul(1 << more).ok_or(TOO_LARGE),
        None if rest.trailing_zeros() >= fives - twos => Ok(rest >> (fives - twos)),
        None => Err(TOO_FINE),
    }
}

/// A number may stand without quotes.
impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number"], "pattern": PATTERN, "exclusiveMinimum": 0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nanos(text: &str) -> Result<u128, String> {
        text.parse::<Quantity>().map(|quantity| quantity.0).map_err(|error| error.to_string())
    }

    #[test]
    fn every_spelling_of_kubernetes_is_read_exactly() {
        let cases: &[(&str, u128)] = &[
            ("0", 0),
            ("00.00Gi", 0),
            ("1n", 1),
            ("1u", 1_000),
            ("1m", 1_000_000),
            ("500m", 500_000_000),
            ("0.5", 500_000_000),
            (".5", 500_000_000),
            ("5.", 5 * NANOS),
            ("1.G", 1_000_000_000 * NANOS),
            ("+1", NANOS),
            ("1k", 1_000 * NANOS),
            ("1M", 1_000_000 * NANOS),
            ("2G", 2_000_000_000 * NANOS),
            ("1T", 1_000_000_000_000 * NANOS),
            ("1P", 1_000_000_000_000_000 * NANOS),
            ("1E", 1_000_000_000_000_000_000 * NANOS),
            ("1Ki", 1024 * NANOS),
            ("2e3", 2_000 * NANOS),
            ("2E3", 2_000 * NANOS),
            ("2e+3", 2_000 * NANOS),
            ("25E-3", 25_000_000),
            ("1.5e-8", 15),
            ("0e1000000000000", 0),
            ("9223372036854775807", LARGEST),
            ("7Ei", (7 << 60) * NANOS),
            ("0.000000000931322574615478515625Gi", NANOS),
            ("000000000000000000000000000000000000000000001", NANOS),
        ];
        for (text, expected) in cases {
            assert_eq!(nanos(text), Ok(*expected), "{text}");
        }
        for (suffix, power) in BINARY {
            assert_eq!(nanos(&format!("1.5{suffix}")), Ok((3 << (power - 1)) * NANOS), "{suffix}");
        }
    }

    #[test]
    fn what_is_no_quantity_or_not_exact_is_refused_with_its_reason() {
        let mut all = Vec::new();
        for text in [
            "",
            "Gi",
            ".",
            "+",
            "-",
            "-1",
            "1.2.3",
            "1 Gi",
            "1gi",
            "1KI",
            "1K",
            "1mi",
            "1e",
            "1e+",
            "1e1.5",
            "1Eie3",
            "0x10",
            "1_000",
            "٣",
            "0.1n",
            "1e-10",
            "1.0000000001",
            "0.3Ki0",
            "8Ei",
            "9223372036854775808",
            "1e19",
            "1e99999999999999999999",
            "1e-99999999999999999999",
            &"9".repeat(50),
            &format!("0.{}1", "0".repeat(50)),
        ] {
            all.push(nanos(text).unwrap_err());
        }
        insta::assert_snapshot!(all.join("\n"));
    }

    #[test]
    fn an_amount_is_told_exactly_or_rounded_down_for_people() {
        let both = |text: &str| {
            let quantity: Quantity = text.parse().unwrap();
            (quantity.to_string(), quantity.rounded())
        };
        let told = |exact: &str, rounded: &str| (exact.to_owned(), rounded.to_owned());
        assert_eq!(both("1536Mi"), told("1536Mi", "1.5Gi"));
        assert_eq!(both("2000000000"), told("1953125Ki", "1.8Gi"));
        assert_eq!(both("1500m"), told("1500m", "1500m"));
        assert_eq!(both("1.000001"), told("1000001u", "1000001u"));
        assert_eq!(both("1023"), told("1023", "1023"));
        assert_eq!(
            Quantity::whole(1001).percent(10),
            Quantity::whole(101),
            "a reserve is never less than it says"
        );
    }

    proptest! {
        #[test]
        fn a_quantity_survives_being_written(amount in 0..LARGEST, unit in prop::sample::select(vec![1, 1000, 1_000_000, NANOS, NANOS << 10, NANOS << 40])) {
            let quantity = Quantity(amount / unit * unit);
            prop_assert_eq!(quantity.to_string().parse(), Ok(quantity));
        }

        #[test]
        fn what_is_read_has_the_published_pattern(text in "[+-]?[0-9.]{0,5}[numkKMGTPEie+-]{0,2}[0-9]{0,2}") {
            let matches = regex::Regex::new(PATTERN).unwrap().is_match(&text);
            match text.parse::<Quantity>() {
                Ok(_) => prop_assert!(matches, "{}", text),
                Err(error) => prop_assert!(!matches || [TOO_FINE, TOO_LARGE].contains(&error.problem), "{}", error),
            }
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,60}") {
            let _ = text.parse::<Quantity>();
        }
    }
}
