//! The messages that fabrique publishes, generated from `proto/fabrique/v1`.
//!
//! They are the outside's view: other programs read them, so they change only by the rule in
//! `proto/README.md`. Inside, the domain's own types are used; the bus adapter translates at the edge. This
//! crate must know neither those types nor NATS.
//!
//! `serde` on every message follows the proto3 JSON mapping: lowerCamelCase, defaults left out, unknown
//! fields and enum values ignored.

/// Version 1 of the messages.
#[expect(
    missing_docs,
    clippy::too_many_lines,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the documentation is in the .proto file"
)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/fabrique.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/fabrique.v1.serde.rs"));
}

#[cfg(test)]
mod tests {
    use super::v1::{BuildChanged, BuildPhase, Decision};

    #[test]
    fn json_is_readable_and_leaves_defaults_out() {
        let decision = Decision {
            app: "citation".to_owned(),
            target: None,
            action: "nothing".to_owned(),
            reason: "no watched path changed".to_owned(),
            dead_letter: false,
        };
        assert_eq!(
            serde_json::to_string(&decision).unwrap(),
            r#"{"app":"citation","action":"nothing","reason":"no watched path changed"}"#
        );
    }

    #[test]
    fn a_reader_ignores_what_a_newer_writer_added() {
        let newer = r#"{"app":"a","phase":"BUILD_PHASE_SIGNED","supersededBy":"1b1d","attestation":{"x":1}}"#;
        let read: BuildChanged = serde_json::from_str(newer).unwrap();
        assert_eq!(read.phase(), BuildPhase::Unspecified);
        assert_eq!(read.superseded_by.as_deref(), Some("1b1d"));
    }
}
