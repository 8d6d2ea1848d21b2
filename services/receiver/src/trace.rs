//! The W3C trace that a delivery starts or continues.

use fabrique_ports::Ambient;

/// The header, and the name of the field in wakes and events.
pub(crate) const HEADER: &str = "traceparent";

/// A `traceparent` for what follows from a delivery: of the caller's trace when `header` names one, of a new
/// one otherwise.
pub(crate) fn following(header: Option<&str>, ambient: &dyn Ambient) -> String {
    let span = hex::encode(&nonzero(ambient.random())[..8]);
    match header.and_then(parse) {
        Some((trace, flags)) => format!("00-{trace}-{span}-{flags}"),
        None => format!("00-{}-{span}-01", hex::encode(nonzero(ambient.random()))),
    }
}

/// The trace id and flags of a valid version 00 header.
fn parse(header: &str) -> Option<(&str, &str)> {
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_id = |text: &str, digits| text.len() == digits && is_hex(text) && text.bytes().any(|b| b != b'0');
    let mut parts = header.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let valid = parts.next().is_none()
        && version == "00"
        && is_id(trace, 32)
        && is_id(parent, 16)
        && flags.len() == 2
        && is_hex(flags);
    valid.then_some((trace, flags))
}

/// All zeros mean "no trace", so that the one unlucky draw is mended. The first eight bytes stand for a
/// span by themselves.
fn nonzero(mut bytes: [u8; 16]) -> [u8; 16] {
    if bytes[..8].iter().all(|byte| *byte == 0) {
        bytes[0] = 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use fabrique_core::time::Timestamp;
    use proptest::prelude::*;

    use super::*;

    struct Fixed(u8);

    impl Ambient for Fixed {
        fn now(&self) -> Timestamp {
            Timestamp(0)
        }
        fn ulid(&self) -> String {
            String::new()
        }
        fn jitter(&self) -> f64 {
            0.5
        }
        fn random(&self) -> [u8; 16] {
            [self.0; 16]
        }
    }

    #[test]
    fn a_valid_trace_is_continued_with_a_span_of_our_own() {
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let expected = "00-4bf92f3577b34da6a3ce929d0e0e4736-abababababababab-00";
        assert_eq!(following(Some(header), &Fixed(0xab)), expected);
    }

    #[test]
    fn anything_else_starts_a_new_trace() {
        let new = "00-abababababababababababababababab-abababababababab-01";
        for header in [
            None,
            Some(""),
            Some("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
            Some("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"),
            Some("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
            Some("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"),
        ] {
            assert_eq!(following(header, &Fixed(0xab)), new, "{header:?}");
        }
        assert!(parse(&following(None, &Fixed(0))).is_some());
    }

    proptest! {
        #[test]
        fn what_goes_on_is_always_valid(header in ".{0,80}", byte in any::<u8>()) {
            prop_assert!(parse(&following(Some(&header), &Fixed(byte))).is_some());
        }
    }
}
