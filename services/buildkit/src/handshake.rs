//! Why there is no TLS connection, in words that lead to the setting to be changed.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError};

/// A TLS handshake that one side gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// What is wrong, as the TLS library says it.
    pub found: String,
    /// What a person can do about it.
    pub remedy: &'static str,
}

/// The daemon does not accept who asks.
const OUR_CERTIFICATE: &str =
    "the daemon wants a certificate of its own authority: set `buildkit.tls.cert_file` and `key_file`";

impl Handshake {
    /// The handshake that failed below `error`; nothing where it is about something else.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(at) = cause {
            if let Some(found) = tls(at) {
                return Some(Self { found: found.to_string(), remedy: remedy(found)? });
            }
            let found = at.to_string();
            if refuses_us(&found) {
                return Some(Self { found, remedy: OUR_CERTIFICATE });
            }
            cause = at.source();
        }
        None
    }
}

/// A daemon looks at our certificate when we take the handshake for done. HTTP/2, which is spoken by then, keeps only
/// the words of what ended its connection.
fn refuses_us(words: &str) -> bool {
    let alerts = ["CertificateRequired", "BadCertificate", "UnknownCA"];
    let alert = words.split_once("received fatal alert: ").map(|(_, alert)| alert);
    alert.is_some_and(|alert| alerts.iter().any(|refusal| alert.starts_with(refusal)))
}

/// The TLS library's own error. An I/O error that wraps one does not show it as its source.
fn tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let wrapped = || error.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref();
    error.downcast_ref().or_else(wrapped)
}

fn remedy(error: &rustls::Error) -> Option<&'static str> {
    use CertificateError as Wrong;
    match error {
        rustls::Error::InvalidCertificate(Wrong::UnknownIssuer | Wrong::BadSignature) => {
            Some("`buildkit.tls.ca_file` has to hold the authority that signed the daemon's certificate")
        }
        rustls::Error::InvalidCertificate(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. }) => {
            Some(
                "write the address in `buildkit.daemons` with a name that is in the certificate, or add that name as `tls_name`",
            )
        }
        rustls::Error::InvalidCertificate(
            Wrong::Expired
            | Wrong::ExpiredContext { .. }
            | Wrong::NotValidYet
            | Wrong::NotValidYetContext { .. },
        ) => Some("give the daemon a certificate that is valid now, or set this machine's clock"),
        rustls::Error::InvalidCertificate(_) => Some("give the daemon another certificate, one for servers"),
        rustls::Error::InvalidMessage(_) => {
            Some("does buildkitd run with --tlscert and --tlskey? Without, leave `buildkit.tls` out")
        }
        rustls::Error::AlertReceived(alert) => Some(match alert {
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA => OUR_CERTIFICATE,
            _ => "look into the daemon's log: it has ended the handshake",
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(error: rustls::Error) -> Option<&'static str> {
        Handshake::of(&io::Error::new(io::ErrorKind::InvalidData, error)).map(|found| found.remedy)
    }

    #[test]
    fn each_way_to_fail_leads_to_the_setting_that_mends_it() {
        for (error, part) in [
            (CertificateError::UnknownIssuer, "buildkit.tls.ca_file"),
            (CertificateError::NotValidForName, "tls_name"),
            (CertificateError::Expired, "valid now"),
            (CertificateError::InvalidPurpose, "for servers"),
        ] {
            let remedy = found(rustls::Error::InvalidCertificate(error)).unwrap();
            assert!(remedy.contains(part), "{remedy}");
        }
        for (error, part) in [
            (rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType), "--tlscert"),
            (rustls::Error::AlertReceived(AlertDescription::CertificateRequired), "cert_file"),
            (rustls::Error::AlertReceived(AlertDescription::HandshakeFailure), "log"),
        ] {
            let remedy = found(error).unwrap();
            assert!(remedy.contains(part), "{remedy}");
        }
    }

    #[test]
    fn what_is_not_about_tls_is_left_to_others() {
        assert_eq!(Handshake::of(&io::Error::from(io::ErrorKind::ConnectionRefused)), None);
        assert_eq!(found(rustls::Error::HandshakeNotComplete), None);
        assert_eq!(Handshake::of(&io::Error::other("received fatal alert: InternalError")), None);
    }

    #[test]
    fn a_refusal_of_which_only_words_are_left_is_known_by_them() {
        let words = "connection error: received fatal alert: CertificateRequired";
        let handshake = Handshake::of(&io::Error::other(words)).unwrap();
        assert_eq!((handshake.found.as_str(), handshake.remedy), (words, OUR_CERTIFICATE));
    }
}
