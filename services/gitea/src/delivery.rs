//! Deliveries: the signature, then the payload.
//!
//! Recognised is one event, a push to a branch. Everything else that a signed delivery can say is ignored
//! with a reason. The headers are not covered by the signature, so that the event's name in the header must
//! agree with the body before either is believed.

use fabrique_core::id::{BranchName, RepoName};
use fabrique_ports::delivery::{Delivery, DeliveryReader, Push, RawDelivery, Rejection};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use sha2::Sha256;

use crate::error::GiteaError;
use crate::text::escaped;

/// The only header that is believed: `X-Hub-Signature-256` and the others come from other forges, too.
const SIGNATURE: &str = "x-gitea-signature";
const EVENT: &str = "x-gitea-event";
const DELIVERY: &str = "x-gitea-delivery";

const SHOWN: usize = 100;

/// Verifies and reads Gitea's deliveries.
#[derive(Debug)]
pub struct Deliveries {
    secrets: Vec<SecretString>,
}

impl Deliveries {
    /// Accepts deliveries signed with any of `secrets`: the current one and, during a rotation, the one
    /// before it.
    ///
    /// # Errors
    /// [`GiteaError::Configuration`] unless there are one or two secrets and none is empty: Gitea sends an
    /// empty signature where no secret is set, and an empty secret would sign anything.
    pub fn new(secrets: Vec<SecretString>) -> Result<Self, GiteaError> {
        if !matches!(secrets.len(), 1 | 2) {
            let found = secrets.len();
            return Err(GiteaError::Configuration(format!(
                "one or two webhook secrets are needed, not {found}"
            )));
        }
        if secrets.iter().any(|secret| secret.expose_secret().is_empty()) {
            return Err(GiteaError::Configuration("a webhook secret is empty".to_owned()));
        }
        Ok(Self { secrets })
    }
}

impl DeliveryReader for Deliveries {
    fn verify(&self, delivery: &RawDelivery<'_>) -> Result<(), Rejection> {
        let signature = (delivery.header)(SIGNATURE).map(str::trim).unwrap_or_default();
        if signature.is_empty() {
            return Err(Rejection::Unsigned);
        }
        let mut expected = [0; 32];
        // `hex` reads capitals too, which Gitea never sends.
        if signature.bytes().any(|byte| byte.is_ascii_uppercase())
            || hex::decode_to_slice(signature, &mut expected).is_err()
        {
            return Err(Rejection::BadSignature);
        }
        let signed = |secret: &SecretString| {
            Hmac::<Sha256>::new_from_slice(secret.expose_secret().as_bytes())
                .is_ok_and(|mac| mac.chain_update(delivery.body).verify_slice(&expected).is_ok())
        };
        if self.secrets.iter().any(signed) { Ok(()) } else { Err(Rejection::BadSignature) }
    }

    fn parse(&self, delivery: &RawDelivery<'_>) -> Result<Delivery, Rejection> {
        let event = (delivery.header)(EVENT).unwrap_or_default();
        if event.is_empty() {
            return Err(malformed("there is no X-Gitea-Event header"));
        }
        let payload: Payload = serde_json::from_slice(delivery.body).map_err(|error| {
            let problem = escaped(&error.to_string(), 2 * SHOWN);
            malformed(format!("the body is not the JSON of a delivery: {problem}"))
        })?;
        match (event, payload.moved()) {
            ("push", Some(moved)) => {
                let id = (delivery.header)(DELIVERY).unwrap_or_default();
                push(&payload, moved, escaped(id, SHOWN))
            }
            ("push", None) => Err(malformed("the header says push, and the body is none")),
            (_, Some(_)) => Err(malformed(format!(
                "the header says {:?}, and the body is a push",
                event.chars().take(SHOWN).collect::<String>()
            ))),
            (_, None) => Ok(Delivery::Ignored {
                repo: payload.repo().ok(),
                reason: format!("the event {} starts no work", escaped(event, SHOWN)),
            }),
        }
    }
}

/// What is read of a payload. Commits and paths are not: Gitea lists the first few only.
#[derive(Deserialize)]
struct Payload {
    #[serde(rename = "ref")]
    reference: Option<String>,
    before: Option<String>,
    after: Option<String>,
    repository: Option<Repository>,
}

#[derive(Deserialize)]
struct Repository {
    full_name: String,
    object_format_name: Option<String>,
}

/// The fields that only a push has.
#[derive(Clone, Copy)]
struct Moved<'a> {
    reference: &'a str,
    before: &'a str,
    after: &'a str,
}

impl Payload {
    fn moved(&self) -> Option<Moved<'_>> {
        match (self.reference.as_deref(), self.before.as_deref(), self.after.as_deref()) {
            (Some(reference), Some(before), Some(after)) => Some(Moved { reference, before, after }),
            _ => None,
        }
    }

    fn repo(&self) -> Result<RepoName, Rejection> {
        let Some(repository) = &self.repository else {
            return Err(malformed("the body names no repository"));
        };
        RepoName::parse(&repository.full_name).map_err(|error| malformed(error.to_string()))
    }
}

fn push(payload: &Payload, moved: Moved<'_>, delivery: String) -> Result<Delivery, Rejection> {
    let repo = payload.repo()?;
    let format = payload.repository.as_ref().and_then(|repository| repository.object_format_name.as_deref());
    for id in [moved.before, moved.after] {
        if !is_object_id(id, format) {
            return Err(malformed(format!(
                "{:?} is not an object id of this repository",
                id.chars().take(SHOWN).collect::<String>()
            )));
        }
    }
    if moved.before.len() != moved.after.len() {
        return Err(malformed("before and after are object ids of different kinds"));
    }
    let ignored = |reason: String| Ok(Delivery::Ignored { repo: Some(repo.clone()), reason });
    let deleted = moved.after.bytes().all(|digit| digit == b'0');
    if let Some(tag) = moved.reference.strip_prefix("refs/tags/") {
        let tag = escaped(tag, SHOWN);
        return ignored(if deleted {
            format!("the tag {tag} was deleted")
        } else {
            format!("{tag} is a tag")
        });
    }
    let Some(branch) = moved.reference.strip_prefix("refs/heads/") else {
        return ignored(format!("{} is not a branch", escaped(moved.reference, SHOWN)));
    };
    if deleted {
        return ignored(format!("the branch {} was deleted", escaped(branch, SHOWN)));
    }
    let branch = match BranchName::parse(branch) {
        Ok(branch) => branch,
        Err(error) => return ignored(escaped(&error.to_string(), 2 * SHOWN)),
    };
    let test = moved.before == moved.after;
    let (before, after) = (moved.before.to_owned(), moved.after.to_owned());
    Ok(Delivery::Push(Push { delivery, repo, branch, before, after, test }))
}

/// An object id of the repository's format, all zeros included; of either format where it is not named.
fn is_object_id(id: &str, format: Option<&str>) -> bool {
    let length_fits = match format {
        Some("sha256") => id.len() == 64,
        Some("sha1") => id.len() == 40,
        Some(_) | None => matches!(id.len(), 40 | 64),
    };
    length_fits && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn malformed(reason: impl Into<String>) -> Rejection {
    Rejection::Malformed(reason.into())
}

#[cfg(test)]
mod tests;
