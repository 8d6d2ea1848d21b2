//! What a forge delivers to the receiver.

use fabrique_core::id::{BranchName, RepoName};

/// A delivery before anything about it is believed.
pub struct RawDelivery<'a> {
    /// Looks a header up by its lowercase name.
    pub header: &'a (dyn Fn(&str) -> Option<&'a str> + Sync),
    /// The body, byte for byte.
    pub body: &'a [u8],
}

/// What a believed delivery says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// A branch moved.
    Push(Push),
    /// Nothing that could start work, and this says why: a tag, a deletion, another event.
    Ignored {
        /// The repository, where the body names one.
        repo: Option<RepoName>,
        /// Why.
        reason: String,
    },
}

/// A branch moved. None of it says what to build: the forge is asked for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The forge's id of this delivery, cut and escaped; for people only.
    pub delivery: String,
    /// The repository.
    pub repo: RepoName,
    /// The branch.
    pub branch: BranchName,
    /// The head before it as the payload says, all zeros for a new branch. Never to build by: it tells what else a push
    /// to `cluster/apps` changed.
    pub before: String,
    /// The new head as the payload says; likewise.
    pub after: String,
    /// Whether the forge's button "test delivery" was pushed (before equals after).
    pub test: bool,
}

/// Why a delivery is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// It carries no signature, or an empty one.
    Unsigned,
    /// No configured secret makes this signature.
    BadSignature,
    /// It is signed, and its body makes no sense.
    Malformed(String),
}

/// Verifying and reading deliveries: pure, and always in this order.
pub trait DeliveryReader: Send + Sync {
    /// Checks the signature over the raw bytes, in constant time, against every configured secret.
    ///
    /// # Errors
    /// [`Rejection::Unsigned`] or [`Rejection::BadSignature`].
    fn verify(&self, delivery: &RawDelivery<'_>) -> Result<(), Rejection>;

    /// Reads a verified delivery.
    ///
    /// # Errors
    /// [`Rejection::Malformed`].
    fn parse(&self, delivery: &RawDelivery<'_>) -> Result<Delivery, Rejection>;
}
