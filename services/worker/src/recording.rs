//! The point of no return: a digest that the registry answers for becomes the record of its build key.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use fabrique_core::build::BuildInputs;
use fabrique_core::id::Digest;
use fabrique_core::memory::{Built, Memory};
use fabrique_ports::builder::BuildFailure;
use fabrique_ports::records::{ImageRecord, Records, Swap};
use fabrique_ports::registry::Registry;
use fabrique_ports::{Fault, Peer, PortError, PortResult};

use crate::failing::{from_port, infrastructure};
use crate::lease::Fence;
use crate::session::Session;

/// What an attempt has made.
pub(crate) struct Done<'a> {
    pub(crate) record: &'a ImageRecord,
    pub(crate) inputs: &'a BuildInputs,
    /// What it exported for daemons that lack its steps.
    pub(crate) cache: Option<Digest>,
}

/// What became of it.
pub(crate) enum Recorded {
    /// It is the record of its key.
    Now,
    /// The record is this other image, which is there: two attempts at one build met, and the first one stands.
    Another(Digest),
    /// The attempt failed, although its image may be recorded.
    Failed(BuildFailure),
}

/// Records what the daemon says it pushed, if the registry has it. Where the registry cannot be asked it is recorded all the
/// same, and the attempt has failed: whoever looks next adopts it once the registry answers for it, and builds nothing.
pub(crate) async fn checked_and_recorded(session: &Session, done: Done<'_>) -> PortResult<Recorded> {
    let (ports, record) = (&session.context.ports, done.record);
    let answers = || ports.registry.has(&record.image, &record.digest);
    let unanswered = match answers.retry(patient()).when(PortError::transient).await {
        Ok(true) => None,
        Ok(false) => {
            let message = format!("the daemon pushed {}, and the registry does not have it", record.digest);
            return Ok(Recorded::Failed(infrastructure(message)));
        }
        Err(error) => Some(error),
    };
    if let Standing::Another(digest) = recorded(session, record).await? {
        return Ok(Recorded::Another(digest));
    }
    let built = Built {
        build: record.build.clone(),
        key: record.key.clone(),
        revision: record.revision.clone(),
        digest: record.digest.clone(),
    };
    let Done { inputs, cache, .. } = done;
    session.memory.update(move |memory| note_built(memory, &built, inputs, cache.as_ref())).await?;
    Ok(unanswered.map_or(Recorded::Now, |error| {
        let mut failure = from_port(&error);
        failure.message = format!("{} is recorded, and not answered for: {}", record.digest, failure.message);
        Recorded::Failed(failure)
    }))
}

/// The record of a key, once an attempt at it wanted to be that.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Ours,
    Another(Digest),
}

/// Records an image, for as long as the app is this worker's: a bus that is away for a while costs no build.
async fn recorded(session: &Session, record: &ImageRecord) -> PortResult<Standing> {
    let ports = &session.context.ports;
    let fence = session.lease.fence();
    let put = || put(ports.records.as_ref(), ports.registry.as_ref(), &fence, record);
    let not_yet = |error: &PortError, _: Duration| {
        tracing::warn!(build = %record.build, digest = %record.digest, %error, "the image is not recorded yet");
    };
    tokio::select! {
        put = put.retry(stubborn()).when(PortError::transient).notify(not_yet) => put?.ok_or_else(|| lost(record)),
        () = session.lease.lost().cancelled() => Err(lost(record)),
    }
}

fn lost(record: &ImageRecord) -> PortError {
    let message = format!("the app was lost before {} could be recorded", record.digest);
    PortError::new(Peer::Bus, Fault::Transient, message)
}

/// Makes the record, or takes the place of one whose image is lost; nothing where another worker has claimed the app.
///
/// A worker that was stopped on the way here may go on when another one has built, recorded and committed the same: neither
/// its claim nor its swap holds then.
async fn put(
    records: &dyn Records,
    registry: &dyn Registry,
    fence: &Fence,
    record: &ImageRecord,
) -> PortResult<Option<Standing>> {
    if !fence.holds().await? {
        return Ok(None);
    }
    if let Swap::Done(_) = records.swap_record(record, 0).await? {
        return Ok(Some(Standing::Ours));
    }
    let known = records.record_at(&record.key).await?;
    if let Some(other) = known.value {
        // Written by an attempt that got no answer.
        if other.build == record.build {
            return Ok(Some(Standing::Ours));
        }
        let differs = other.image == record.image && other.digest != record.digest;
        // Not known to be lost: whoever looks next asks again.
        if differs && !matches!(registry.has(&other.image, &other.digest).await, Ok(false)) {
            return Ok(Some(Standing::Another(other.digest)));
        }
    }
    match records.swap_record(record, known.revision).await? {
        Swap::Done(_) => Ok(Some(Standing::Ours)),
        Swap::Lost => {
            let message = format!("the record of {} changed while it was being written", record.key);
            Err(PortError::new(Peer::Bus, Fault::Transient, message))
        }
    }
}

/// What the memory learns of an image that is recorded.
fn note_built(memory: &mut Memory, built: &Built, inputs: &BuildInputs, cache: Option<&Digest>) {
    if let Some(running) = memory.running.as_mut().filter(|r| r.build == built.build) {
        running.pushed = true;
    }
    memory.built = Some(built.clone());
    if cache.is_some() {
        memory.cache = cache.cloned();
    }
    memory.supersedes = 0;
    memory.failure = None;
    // A person may have asked for another one meanwhile, whose wish is not fulfilled by this.
    if (BuildInputs { rebuild: memory.rebuild, ..inputs.clone() }).key() == built.key {
        memory.no_cache = false;
    }
}

/// Recording it is worth more: five to ten minutes of waiting, since the jitter comes on top of the longest delay, besides
/// what each attempt takes until it is given up. The build keeps its slot meanwhile. It ends before where the app is lost.
fn stubborn() -> ExponentialBuilder {
    let longest = Duration::from_secs(2);
    ExponentialBuilder::default()
        .with_jitter()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(longest)
        .with_max_times(150)
}

/// An image that is pushed is worth a few attempts at asking for it and at tagging it.
pub(crate) fn patient() -> ExponentialBuilder {
    ExponentialBuilder::default().with_jitter().with_min_delay(Duration::from_millis(100)).with_max_times(5)
}

#[cfg(test)]
mod tests;
