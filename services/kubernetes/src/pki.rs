//! Certificates: one authority for all builders, a server certificate for each pod, and short-lived client
//! certificates that exist in the worker's memory only.
//!
//! The authority's key is mounted by workers and by nobody else, so whoever holds it may use every daemon. A pod's
//! certificate is for serving **only**: with a certificate that is good for both, whoever reads it out of one
//! daemon would be a client of all others. Its name is the pod's, which is what the worker dials by.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fabrique_core::time::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData,
};
use secrecy::{ExposeSecret, SecretString};
use time::OffsetDateTime;
use x509_parser::pem::parse_x509_pem;

/// The authority's certificate in a pod's Secret.
pub const CA_FILE: &str = "ca.crt";
/// The certificate in a pod's Secret.
pub const CERT_FILE: &str = "tls.crt";
/// The key in a pod's Secret.
pub const KEY_FILE: &str = "tls.key";

/// Clocks of workers, nodes and the API server may differ by this much.
const SKEW: Duration = Duration::from_hours(1);
/// How long a client certificate is good. Renewed at half of it.
const CLIENT_LIFE: Duration = Duration::from_hours(2);

/// Certificates that cannot be used or made. Never carries a key.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The authority's certificate is not one certificate in PEM.
    #[error("the builder authority's certificate is not a certificate in PEM")]
    NotACertificate,
    /// A certificate that may not sign others.
    #[error("the builder authority's certificate is not an authority's (CA:TRUE, keyCertSign)")]
    NotAnAuthority,
    /// A certificate that is not good now.
    #[error("the builder authority's certificate is not valid now: it expired, or a clock is wrong")]
    NotValidNow,
    /// The key is for another certificate.
    #[error("the builder authority's key does not belong to its certificate")]
    Mismatch,
    /// The key cannot be read. The cause is left out, since it may quote the key.
    #[error("the builder authority's key is not a private key in PEM (PKCS #8)")]
    NotAKey,
    /// Making a certificate failed.
    #[error("a certificate could not be made")]
    Make(#[from] rcgen::Error),
}

/// A certificate and its private key.
#[derive(Clone)]
pub struct Identity {
    /// The certificate in PEM.
    pub certificate: String,
    /// Its key in PEM.
    pub key: SecretString,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// The authority that signs for all builders.
pub struct BuilderCa {
    certificate: String,
    valid_until: Timestamp,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for BuilderCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuilderCa").finish_non_exhaustive()
    }
}

impl BuilderCa {
    /// The authority of an installation, from its mounted Secret.
    ///
    /// # Errors
    /// When the two do not belong together, or the certificate is not an authority's or not valid `now`.
    pub fn from_pem(certificate: &str, key: &SecretString, now: Timestamp) -> Result<Self, PkiError> {
        let (_, pem) = parse_x509_pem(certificate.as_bytes()).map_err(|_| PkiError::NotACertificate)?;
        let parsed = pem.parse_x509().map_err(|_| PkiError::NotACertificate)?;
        let signs = parsed.key_usage().ok().flatten().is_none_or(|usage| usage.value.key_cert_sign());
        if !parsed.is_ca() || !signs {
            return Err(PkiError::NotAnAuthority);
        }
        let seconds = i64::try_from(now.0 / 1000).unwrap_or(i64::MAX);
        let validity = parsed.validity();
        if validity.not_before.timestamp() > seconds || validity.not_after.timestamp() <= seconds {
            return Err(PkiError::NotValidNow);
        }
        let key = KeyPair::from_pem(key.expose_secret()).map_err(|_| PkiError::NotAKey)?;
        if key.subject_public_key_info() != parsed.public_key().raw {
            return Err(PkiError::Mismatch);
        }
        let issuer = Issuer::from_ca_cert_pem(certificate, key)?;
        let end = u64::try_from(validity.not_after.timestamp()).unwrap_or(0).saturating_mul(1000);
        Ok(Self { certificate: certificate.to_owned(), valid_until: Timestamp(end), issuer })
    }

    /// A new authority, for an installation or a test: what [`BuilderCa::from_pem`] reads.
    ///
    /// # Errors
    /// When there is no randomness.
    pub fn generate(now: Timestamp, life: Duration) -> Result<Identity, PkiError> {
        let mut params = params("fabrique builders", now, life)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        Ok(Identity { certificate: certificate.pem(), key: SecretString::from(key.serialize_pem()) })
    }

    /// When the authority ends, and every daemon with it.
    #[must_use]
    pub fn valid_until(&self) -> Timestamp {
        self.valid_until
    }

    /// The certificate that daemons and workers believe.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The identity of one pod, good for serving under its name and for nothing else.
    ///
    /// # Errors
    /// When there is no randomness, or `pod` is no DNS name.
    pub fn server(&self, pod: &str, now: Timestamp, life: Duration) -> Result<Identity, PkiError> {
        let mut params = params(pod, now, life)?;
        params.subject_alt_names = CertificateParams::new(vec![pod.to_owned()])?.subject_alt_names;
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// The identity of a worker, for two hours.
    ///
    /// # Errors
    /// When there is no randomness.
    pub fn client(&self, worker: &str, now: Timestamp) -> Result<Identity, PkiError> {
        self.sign(params(worker, now, CLIENT_LIFE)?, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity, PkiError> {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity { certificate: certificate.pem(), key: SecretString::from(key.serialize_pem()) })
    }
}

fn params(name: &str, now: Timestamp, life: Duration) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    let early = Timestamp(now.0.saturating_sub(u64::try_from(SKEW.as_millis()).unwrap_or(u64::MAX)));
    params.not_before = point(early);
    params.not_after = point(now.after(life).after(SKEW));
    Ok(params)
}

/// Whole seconds. Beyond the calendar of X.509 there is only "never".
fn point(at: Timestamp) -> OffsetDateTime {
    let seconds = i64::try_from(at.0 / 1000).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(rcgen::date_time_ymd(9999, 12, 31))
}

/// The worker's client certificate: made when first needed, renewed at half of its life, never written anywhere.
pub struct ClientCertificates {
    ca: Arc<BuilderCa>,
    worker: String,
    current: Mutex<Option<(Timestamp, Identity)>>,
}

impl fmt::Debug for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificates").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl ClientCertificates {
    /// Certificates for `worker`.
    #[must_use]
    pub fn new(ca: Arc<BuilderCa>, worker: String) -> Self {
        Self { ca, worker, current: Mutex::new(None) }
    }

    /// The authority whose daemons are believed, in PEM.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.ca.certificate()
    }

    /// A certificate that is good for at least an hour from `now`, whichever way the clock has moved.
    ///
    /// # Errors
    /// As [`BuilderCa::client`].
    pub fn current(&self, now: Timestamp) -> Result<Identity, PkiError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, identity)) = &*current
            && *made <= now
            && made.until(now) < CLIENT_LIFE / 2
        {
            return Ok(identity.clone());
        }
        let identity = self.ca.client(&self.worker, now)?;
        *current = Some((now, identity.clone()));
        Ok(identity)
    }
}

#[cfg(test)]
mod tests;
