//! What a pod says of itself: its labels, its annotations, its status.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use fabrique_core::id::{AppName, TrustDomain};
use fabrique_core::time::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::autopsy::{Cause, State, state};
use crate::config::{Bytes, Isolation, Millicores, Resources};
use crate::labels;

/// Apps that a daemon remembers having built; older ones have lost their cache to others.
pub(crate) const REMEMBERED_APPS: usize = 32;

/// Kubernetes' own name of one pod, never used twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub String);

/// A worker, from its start to its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The worker's name.
    pub worker: String,
    /// Unique to this start of it.
    pub incarnation: String,
}

/// Who builds on a daemon. Taken by writing it where there was none, on the condition that the pod has not changed
/// since: of two workers that try, the API server lets one through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Who.
    pub holder: Holder,
    /// Grows with every renewal. A claim that stays as it is belongs to a worker that is gone.
    pub beat: u64,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.holder.worker, self.holder.incarnation, self.beat)
    }
}

impl Claim {
    /// Reads an annotation. What cannot be read is a claim all the same: of somebody unknown, who never renews it.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut parts = text.rsplitn(3, '/');
        let (beat, incarnation, worker) = (parts.next(), parts.next(), parts.next());
        Self {
            holder: Holder {
                worker: worker.unwrap_or(text).to_owned(),
                incarnation: incarnation.unwrap_or_default().to_owned(),
            },
            beat: beat.and_then(|beat| beat.parse().ok()).unwrap_or(0),
        }
    }
}

/// How far a daemon is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Not ready yet; what holds it up, where it is more than time.
    Starting(Option<Cause>),
    /// It answers at this address.
    Ready(IpAddr),
    /// It is over, or being ended.
    Over(Cause),
}

/// A builder pod, as the pool sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// Which pod.
    pub uid: Uid,
    /// The version of this view, for compare-and-swap.
    pub version: String,
    /// Its place in the pool.
    pub seat: u16,
    /// Who may use it.
    pub trust: TrustDomain,
    /// How its builds are kept apart.
    pub isolation: Isolation,
    /// Why it is this isolation, where whoever made it said so.
    pub reason: Option<String>,
    /// The configuration it was made with.
    pub generation: String,
    /// When the worker that made it was started, by that worker's clock.
    pub since: Timestamp,
    /// How long it may take to become ready, where whoever made it said so.
    pub start_limit: Option<Duration>,
    /// What it has.
    pub resources: Resources,
    /// How far it is.
    pub phase: Phase,
    /// Since when it has been bound to a node that has not started any container for want of something, such as the
    /// Secret that whoever made the pod did not live to write. Nothing of a pod whose cache is a volume that has to be
    /// provided and attached first: that takes as long as it takes.
    pub held_up: Option<Timestamp>,
    /// The node it runs on, once there is one.
    pub node: Option<String>,
    /// Whether Kubernetes is already removing it.
    pub ending: bool,
    /// Who builds on it.
    pub claim: Option<Claim>,
    /// How long the claim may stand still, where whoever claimed it said so.
    pub claim_limit: Option<Duration>,
    /// The apps it has built, the last one first.
    pub apps: Vec<AppName>,
    /// How many builds it has begun.
    pub builds: u32,
    /// When it was made.
    pub created: Timestamp,
    /// When its last build ended, or else when it was made.
    pub idle_since: Timestamp,
    /// Whether somebody found it odd.
    pub doubt: bool,
}

/// Reads a pod. `None` when it is not one of ours, whatever its labels say.
#[must_use]
pub fn read(pod: &Pod) -> Option<Daemon> {
    let metadata = &pod.metadata;
    let label = |key: &str| metadata.labels.as_ref()?.get(key).map(String::as_str);
    let note = |key: &str| metadata.annotations.as_ref()?.get(key).map(String::as_str);
    let created = metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond());
    let created = Timestamp(u64::try_from(created).unwrap_or(0));
    let number = |key: &str| note(key).and_then(|text| text.parse::<u64>().ok());
    let limit = |key: &str| number(key).map(Duration::from_millis);
    Some(Daemon {
        uid: Uid(metadata.uid.clone()?),
        version: metadata.resource_version.clone()?,
        seat: label(labels::SEAT)?.parse().ok()?,
        trust: TrustDomain::parse(note(labels::TRUST_DOMAIN)?).ok()?,
        isolation: Isolation::parse(label(labels::ISOLATION)?)?,
        reason: note(labels::ISOLATION_REASON).map(str::to_owned),
        generation: label(labels::GENERATION)?.to_owned(),
        since: Timestamp(number(labels::SINCE).unwrap_or(0)),
        start_limit: limit(labels::START_LIMIT),
        resources: Resources {
            memory: Bytes(number(labels::MEMORY)?),
            // Pods of releases that did not write these are of another generation.
            cpu: Millicores(number(labels::CPU).unwrap_or(0)),
            cpu_limit: number(labels::CPU_LIMIT).map(Millicores),
            ephemeral_storage: number(labels::EPHEMERAL_STORAGE).map(Bytes),
        },
        phase: phase(pod),
        held_up: held_up(pod),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        ending: metadata.deletion_timestamp.is_some(),
        claim: note(labels::CLAIM).map(Claim::parse),
        claim_limit: limit(labels::CLAIM_LIMIT),
        apps: apps(note(labels::APPS).unwrap_or_default()),
        builds: number(labels::BUILDS).and_then(|builds| builds.try_into().ok()).unwrap_or(0),
        created,
        idle_since: number(labels::IDLE_SINCE).map_or(created, Timestamp),
        doubt: note(labels::DOUBT).is_some(),
    })
}

fn phase(pod: &Pod) -> Phase {
    let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()?.parse().ok());
    match (state(pod, None), address) {
        (State::Ready, Some(address)) => Phase::Ready(address),
        (State::Ready, None) => Phase::Starting(None),
        (State::Starting(cause), _) => Phase::Starting(cause),
        (State::Over(cause), _) => Phase::Over(cause),
    }
}

/// The kubelet says whether the pod's sandbox is there, which it makes once all volumes are. Which of them it waits for
/// it does not say.
fn held_up(pod: &Pod) -> Option<Timestamp> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    if volumes.into_iter().flatten().any(|volume| volume.ephemeral.is_some()) {
        return None;
    }
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
    condition("PodReadyToStartContainers").filter(|condition| condition.status == "False")?;
    let bound = condition("PodScheduled").filter(|condition| condition.status == "True")?;
    let since = bound.last_transition_time.as_ref()?.0.as_millisecond();
    u64::try_from(since).ok().map(Timestamp)
}

fn apps(text: &str) -> Vec<AppName> {
    let mut seen = BTreeSet::new();
    let names = text.split(',').filter_map(|name| AppName::parse(name).ok());
    names.filter(|name| seen.insert(name.clone())).take(REMEMBERED_APPS).collect()
}

/// The daemon's apps once `app` is built on it.
pub(crate) fn with_app(apps: &[AppName], app: &AppName) -> Vec<AppName> {
    let others = apps.iter().filter(|&other| other != app);
    std::iter::once(app).chain(others).take(REMEMBERED_APPS).cloned().collect()
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::TrustDomain;

    use super::*;
    use crate::config::Settings;
    use crate::pod::{PodPlan, builder_pod};
    use crate::testing::{generation_named, owner, settings};

    fn had() -> Resources {
        Resources {
            cpu: Millicores(1500),
            cpu_limit: Some(Millicores(2000)),
            memory: Bytes::gibi(1),
            ephemeral_storage: Some(Bytes::gibi(3)),
        }
    }

    fn pod() -> Pod {
        pod_by(&settings())
    }

    fn pod_by(settings: &Settings) -> Pod {
        let trust = TrustDomain::parse("Atlas_1").unwrap();
        let plan = PodPlan {
            settings,
            isolation: Isolation::Userns,
            seat: 3,
            trust: &trust,
            resources: had(),
            avoid: &[],
            secret: "secret",
            owner: owner(),
            since: Timestamp(900),
            reason: "it is configured",
        };
        let mut pod = builder_pod(&plan, &generation_named("0123456789ab"));
        pod.metadata.uid = Some("uid-1".into());
        pod.metadata.resource_version = Some("7".into());
        pod
    }

    fn note(pod: &mut Pod, key: &str, value: &str) {
        pod.metadata.annotations.as_mut().unwrap().insert(key.into(), value.into());
    }

    #[test]
    fn a_pod_tells_the_pool_what_it_was_made_with() {
        let daemon = read(&pod()).unwrap();
        assert_eq!((daemon.seat, daemon.trust.as_str()), (3, "Atlas_1"));
        assert_eq!((daemon.isolation, daemon.resources), (Isolation::Userns, had()));
        assert_eq!((daemon.generation.as_str(), daemon.since), ("0123456789ab", Timestamp(900)));
        assert_eq!(daemon.start_limit, Some(settings().pool.start));
        assert_eq!(daemon.reason.as_deref(), Some("it is configured"));
        assert_eq!((daemon.claim, daemon.apps.len(), daemon.builds), (None, 0, 0));
        assert_eq!(daemon.phase, Phase::Starting(None));
    }

    #[test]
    fn what_workers_wrote_is_read_back() {
        let mut pod = pod();
        let claim =
            Claim { holder: Holder { worker: "rack/worker-1".into(), incarnation: "01k".into() }, beat: 4 };
        note(&mut pod, labels::CLAIM, &claim.to_string());
        note(&mut pod, labels::CLAIM_LIMIT, "90000");
        note(&mut pod, labels::APPS, "citation,atlas,citation,NOT AN APP");
        note(&mut pod, labels::BUILDS, "12");
        note(&mut pod, labels::IDLE_SINCE, "1000");
        let daemon = read(&pod).unwrap();
        assert_eq!((daemon.claim, daemon.claim_limit), (Some(claim), Some(Duration::from_secs(90))));
        assert_eq!(daemon.apps.iter().map(AppName::as_str).collect::<Vec<_>>(), ["citation", "atlas"]);
        assert_eq!((daemon.builds, daemon.idle_since), (12, Timestamp(1000)));
    }

    #[test]
    fn a_pod_whose_node_waits_for_a_volume_is_held_up_since_it_was_bound() {
        let with = |mut pod: Pod, scheduled: &str, sandbox: &str| {
            let conditions = serde_json::json!({ "conditions": [
                { "type": "PodScheduled", "status": scheduled, "lastTransitionTime": "1970-01-01T00:16:40Z" },
                { "type": "PodReadyToStartContainers", "status": sandbox },
            ] });
            pod.status = Some(serde_json::from_value(conditions).unwrap());
            read(&pod).unwrap().held_up
        };
        assert_eq!(with(pod(), "True", "False"), Some(Timestamp(1_000_000)));
        assert_eq!((with(pod(), "True", "True"), with(pod(), "False", "False")), (None, None));
        assert_eq!(read(&pod()).unwrap().held_up, None, "nobody says so");
        let mut attached = settings();
        attached.cache.storage_class = Some("fast".into());
        assert_eq!(with(pod_by(&attached), "True", "False"), None, "its cache is being attached");
    }

    #[test]
    fn a_claim_in_an_unknown_form_is_still_a_claim() {
        for text in ["", "somebody", "a/b"] {
            assert_eq!(Claim::parse(text).beat, 0, "{text}");
        }
    }

    #[test]
    fn a_pod_that_only_looks_like_ours_is_none() {
        let mut stranger = pod();
        stranger.metadata.labels.as_mut().unwrap().remove(labels::SEAT);
        assert_eq!(read(&stranger), None);
        assert_eq!(read(&Pod::default()), None);
    }
}
