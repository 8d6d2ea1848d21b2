//! The labels and annotations of builder pods. The pool's state is rebuilt from them after a restart, so they are
//! the memory that all workers share.

use fabrique_core::id::{Digest, TrustDomain};

use crate::config::Resources;

/// Which component an object belongs to: Kubernetes' recommended label.
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// The value of [`COMPONENT`] on builder pods and everything that is theirs.
pub const BUILDER: &str = "fabrique-builder";
/// Who made the object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`].
pub const FABRIQUE: &str = "fabrique";
/// The pod's place in the pool, from zero.
pub const SEAT: &str = "fabrique/seat";
/// The trust domain in the form of [`trust_label`].
pub const TRUST: &str = "fabrique/trust";
/// The isolation; why is in [`ISOLATION_REASON`].
pub const ISOLATION: &str = "fabrique/isolation";
/// The hash of everything that all pods of one configuration share: see [`crate::pod::generation`].
pub const GENERATION: &str = "fabrique/generation";

/// Annotation: the trust domain as it is written everywhere else.
pub const TRUST_DOMAIN: &str = "fabrique/trust-domain";
/// Annotation: why the pod has its isolation, for people.
pub const ISOLATION_REASON: &str = "fabrique/isolation-reason";
/// Annotation: when the worker that made the pod was started, in milliseconds since the epoch by its clock. Tells
/// which of two generations is the newer.
pub const SINCE: &str = "fabrique/since";
/// Annotation: how long the pod may take to become ready, in milliseconds. Written at its creation, for workers whose
/// own configuration says something else.
pub const START_LIMIT: &str = "fabrique/start-limit";
/// Annotation: the pod's memory in bytes. What it has is read here and not in its spec, which a LimitRange may change.
pub const MEMORY: &str = "fabrique/memory";
/// Annotation: its reserved processor time in thousandths of a core.
pub const CPU: &str = "fabrique/cpu";
/// Annotation: its limit on processor time, in the same unit, where it has one.
pub const CPU_LIMIT: &str = "fabrique/cpu-limit";
/// Annotation: its room on the node's disk in bytes, without the cache, where it has any for sure.
pub const EPHEMERAL_STORAGE: &str = "fabrique/ephemeral-storage";
/// Annotation: who builds on the daemon now, absent when nobody does. See [`crate::pool::Claim`].
pub const CLAIM: &str = "fabrique/claim";
/// Annotation: how long the claim may stand still, in milliseconds. Written together with it, like
/// [`START_LIMIT`] for workers whose own configuration says something else.
pub const CLAIM_LIMIT: &str = "fabrique/claim-limit";
/// Annotation: the apps that were built on the daemon, the last one first, separated by commas.
pub const APPS: &str = "fabrique/apps";
/// Annotation: how many builds the daemon has run.
pub const BUILDS: &str = "fabrique/builds";
/// Annotation: when the last build ended, in milliseconds since the epoch by the worker's clock.
pub const IDLE_SINCE: &str = "fabrique/idle-since";
/// Annotation: present once somebody doubts the daemon; it is never used again.
pub const DOUBT: &str = "fabrique/doubt";

/// The annotations that say what a pod has.
#[must_use]
pub fn resources(resources: &Resources) -> Vec<(String, String)> {
    let amounts = [
        (MEMORY, Some(resources.memory.0)),
        (CPU, Some(resources.cpu.0)),
        (CPU_LIMIT, resources.cpu_limit.map(|cpu| cpu.0)),
        (EPHEMERAL_STORAGE, resources.ephemeral_storage.map(|bytes| bytes.0)),
    ];
    let there = amounts.into_iter().filter_map(|(key, amount)| Some((key.to_owned(), amount?.to_string())));
    there.collect()
}

/// The selector of every builder pod.
#[must_use]
pub fn builders() -> String {
    format!("{COMPONENT}={BUILDER},{MANAGED_BY}={FABRIQUE}")
}

/// A trust domain as a label's value: itself where it fits, else a hash of it.
#[must_use]
pub fn trust_label(trust: &TrustDomain) -> String {
    /// The longest value of a label.
    const LONGEST: usize = 63;
    let text = trust.as_str();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    if bytes.len() <= LONGEST && edge(bytes.first()) && edge(bytes.last()) {
        text.to_owned()
    } else {
        format!("x.{}", &Digest::of(bytes).as_str()["sha256:".len()..][..32])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_trust_domain_always_fits_a_label(text in "[A-Za-z0-9._-]{1,100}") {
            let Ok(trust) = TrustDomain::parse(&text) else { return Ok(()) };
            let label = trust_label(&trust);
            prop_assert!(label.len() <= 63);
            prop_assert!(label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)));
            prop_assert!(label.as_bytes()[0].is_ascii_alphanumeric());
            prop_assert!(label.as_bytes()[label.len() - 1].is_ascii_alphanumeric());
        }
    }
}
