//! Whether what is seen is what was promised: pure predicates over what the API server, git and `fabrique -o json`
//! said, so that each can be seen to fail without a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabrique_bed::hostile;
use serde_json::Value;

use crate::look::Footprint;

#[cfg(test)]
mod tests;

/// What speaks against it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Objection(String);

/// Nothing, or what speaks against it.
pub type Verdict = Result<(), Objection>;

/// An automatic commit of the image channel on `cluster/apps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// The commit.
    pub commit: String,
    /// When it was made, in seconds since 1970.
    pub at: u64,
    /// The app.
    pub app: String,
    /// The source revision that it deployed.
    pub revision: String,
    /// The digest that it deployed.
    pub digest: String,
}

fn hold(holds: bool, objection: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Objection(objection())) }
}

/// An Application that shows this revision of `cluster/apps`, and whose resources are well.
///
/// # Errors
/// With what it shows instead.
pub fn synced_and_healthy(application: &Value, revision: &str) -> Verdict {
    let status = &application["status"];
    let (sync, health) = (&status["sync"], &status["health"]["status"]);
    hold(sync["status"] == "Synced" && sync["revision"] == revision && health == "Healthy", || {
        format!("not Synced to {revision} and Healthy: {sync}, {health}; {}", status["conditions"])
    })
}

/// The revision of `cluster/apps` that an Application shows as synced.
#[must_use]
pub fn synced_to(application: &Value) -> Option<&str> {
    let sync = &application["status"]["sync"];
    sync["revision"].as_str().filter(|_| sync["status"] == "Synced")
}

/// A pod whose manifest names `image` by this digest, and whose node runs that digest and no other.
///
/// # Errors
/// With what it names or runs instead.
pub fn runs_digest(pod: &Value, container: &str, image: &str, digest: &str) -> Verdict {
    let wanted = format!("{image}@{digest}");
    let named = &named(&pod["spec"]["containers"], container)["image"];
    hold(named == wanted.as_str(), || format!("the manifest names {named}, not {wanted}"))?;
    let status = self::named(&pod["status"]["containerStatuses"], container);
    hold(status["ready"] == true, || format!("{container} is not ready: {}", status["state"]))?;
    let runs = status["imageID"].as_str().unwrap_or_default();
    hold(runs.rsplit('@').next() == Some(digest), || format!("the node runs {runs:?}, not {digest}"))
}

/// A container that is told its own image by `variable`.
///
/// # Errors
/// With what it is told instead.
pub fn knows_its_image(pod: &Value, container: &str, variable: &str) -> Verdict {
    let container = named(&pod["spec"]["containers"], container);
    let (image, value) = (&container["image"], &named(&container["env"], variable)["value"]);
    hold(image.is_string() && image == value, || format!("{variable} is {value}, the image {image}"))
}

/// A node that is a worker and nothing else.
///
/// # Errors
/// When it belongs to the control plane, or nobody knows.
pub fn is_worker(node: &Value) -> Verdict {
    let labels = &node["metadata"]["labels"];
    let has = |role: &str| labels.get(format!("node-role.kubernetes.io/{role}")).is_some();
    hold(has("worker") && !has("control-plane"), || format!("no worker: {}", labels))
}

/// Exactly one commit that deployed this revision of an app; which one.
///
/// # Errors
/// When there is none, or more.
pub fn committed_once<'a>(
    deployments: &'a [Deployment],
    app: &str,
    revision: &str,
) -> Result<&'a Deployment, Objection> {
    let of_it: Vec<_> = deployments
        .iter()
        .filter(|deployment| deployment.app == app && deployment.revision == revision)
        .collect();
    match of_it.as_slice() {
        [only] => Ok(only),
        others => Err(Objection(format!("not exactly one commit of {app} at {revision}: {others:#?}"))),
    }
}

/// No revision of any app was deployed by two commits.
///
/// # Errors
/// With those that were.
pub fn nothing_twice(deployments: &[Deployment]) -> Verdict {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for deployment in deployments {
        *counts.entry((&deployment.app, &deployment.revision)).or_default() += 1;
    }
    let twice: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 1).collect();
    hold(twice.is_empty(), || format!("deployed more than once: {twice:?}"))
}

/// Revisions of one app were deployed in the order of `pushed`, oldest first; some may have been passed over, but not
/// the last one.
///
/// # Errors
/// When an older one came after a newer one, or the newest is not the last.
pub fn newest_last(deployments: &[Deployment], app: &str, pushed: &[String]) -> Verdict {
    let mut own: Vec<&Deployment> = deployments.iter().filter(|deployment| deployment.app == app).collect();
    own.reverse();
    let places: Vec<usize> = own
        .iter()
        .filter_map(|deployment| pushed.iter().position(|revision| *revision == deployment.revision))
        .collect();
    hold(places.is_sorted(), || format!("{app}: older over newer: {places:?}"))?;
    hold(places.last().is_some_and(|last| last + 1 == pushed.len()), || {
        format!("{app}: the newest of {} pushes is not the last deployed: {places:?}", pushed.len())
    })
}

/// A push to an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The revision.
    pub revision: String,
    /// Whether its webhook was answered with 202: fabrique's word that it is not lost.
    pub acknowledged: bool,
}

/// What is deployed of `pushes`, oldest first, is no older than the newest that was acknowledged.
///
/// # Errors
/// When it is older, or nothing of them.
pub fn acknowledged_is_deployed(pushes: &[Push], deployed: Option<&str>) -> Verdict {
    let promised = pushes.iter().rposition(|push| push.acknowledged);
    let shown = pushes.iter().rposition(|push| Some(push.revision.as_str()) == deployed);
    hold(promised <= shown, || {
        format!("{deployed:?} is deployed, push {shown:?}; acknowledged was push {promised:?} of {pushes:#?}")
    })
}

/// What took a while took no longer than was promised.
///
/// # Errors
/// When it did.
pub fn within(what: &str, took: Duration, bound: Duration) -> Verdict {
    hold(took <= bound, || {
        format!("{what} took {:.1} s, and may take {:.1}", took.as_secs_f64(), bound.as_secs_f64())
    })
}

/// Nothing happened between two looks.
///
/// # Errors
/// With both, when something did.
pub fn unchanged(before: &Footprint, after: &Footprint) -> Verdict {
    hold(before == after, || format!("something changed: {before:#?} became {after:#?}"))
}

/// No builder that nobody will use or remove, and no secret of one that is gone: each pod is ready, unclaimed and
/// trusted and has its certificate, each secret belongs to a pod that is there.
///
/// # Errors
/// With the orphans.
pub fn no_orphans(pods: &[Value], secrets: &[Value]) -> Verdict {
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let annotated = |pod: &Value, key: &str| pod["metadata"]["annotations"].get(key).is_some();
    let settled = |pod: &Value| {
        let ready = pod["status"]["conditions"].as_array().is_some_and(|conditions| {
            conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        });
        let leaving = pod["metadata"].get("deletionTimestamp").is_some();
        ready && !leaving && !annotated(pod, "fabrique/claim") && !annotated(pod, "fabrique/doubt")
    };
    let odd: Vec<String> = pods.iter().filter(|pod| !settled(pod)).map(name).collect();
    hold(odd.is_empty(), || format!("builders that are claimed, doubted, ending or not ready: {odd:?}"))?;
    let owners = |secret: &Value| -> Vec<String> {
        let owners = secret["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.filter_map(|owner| owner["uid"].as_str().map(str::to_owned)).collect()
    };
    let owned: BTreeSet<String> = secrets.iter().flat_map(owners).collect();
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let bare: Vec<String> = pods.iter().filter(|pod| !owned.contains(&uid(pod))).map(name).collect();
    hold(bare.is_empty(), || format!("no secret belongs to these builders, though each has one: {bare:?}"))?;
    let uids: BTreeSet<String> = pods.iter().map(uid).collect();
    let is_left = |secret: &&Value| !owners(secret).iter().any(|owner| uids.contains(owner));
    let left: Vec<String> = secrets.iter().filter(is_left).map(name).collect();
    hold(left.is_empty(), || format!("secrets of builders that are gone: {left:?}"))
}

/// An attempt at `revision` that ended without an image is in the history, its end is nobody's fault in the source,
/// and it says what happened in one of these words.
///
/// # Errors
/// With the history.
pub fn reason_told(builds: &[Value], revision: &str, words: &[&str]) -> Verdict {
    let told = builds.iter().any(|build| {
        let phase = &build["phase"];
        build["revision"] == revision && phase["phase"] == "failed" && excuses(phase, words)
    });
    hold(told, || format!("no attempt at {revision} tells of any of {words:?}: {builds:#?}"))
}

/// `why` says the same of the last attempt at `revision`, as it does until one succeeds.
///
/// # Errors
/// With what it says instead.
pub fn why_tells(why: &Value, revision: &str, words: &[&str]) -> Verdict {
    let failure = &why["failure"];
    let told = failure["revision"] == revision && excuses(failure, words);
    hold(told, || format!("`why` tells nothing of {words:?} at {revision}: {failure}, {}", why["reason"]))
}

/// Among the statuses of a commit is one of the app that said the same to its committer, and that it is not the end.
///
/// # Errors
/// With all of them.
pub fn status_tells(statuses: &Value, app: &str, words: &[&str]) -> Verdict {
    let context = format!("fabrique/build/{app}");
    let told = statuses.as_array().into_iter().flatten().any(|status| {
        let description = status["description"].as_str().unwrap_or_default();
        status["context"] == context.as_str()
            && status["status"] == "pending"
            && words.iter().any(|word| description.contains(word))
    });
    hold(told, || format!("no pending status of {app} tells of any of {words:?}: {statuses:#}"))
}

/// Among the events of the push of `revision`, as a timeline shows them, is one of an attempt that ended so.
///
/// # Errors
/// With the timeline.
pub fn events_tell(timeline: &Value, revision: &str, words: &[&str]) -> Verdict {
    let told = timeline["rows"].as_array().into_iter().flatten().any(|row| {
        let failed = row["text"].as_str().and_then(|text| text.strip_prefix("failed ("));
        row["stage"] == "build"
            && failed
                .is_some_and(|how| !how.starts_with("source)") && words.iter().any(|word| how.contains(word)))
    });
    hold(told && timeline["revision"] == revision, || {
        format!("no event of {revision} tells of any of {words:?}: {timeline:#}")
    })
}

/// Whether a failure is nobody's fault in the source, and says so in one of these words.
fn excuses(failure: &Value, words: &[&str]) -> bool {
    let message = failure["message"].as_str().unwrap_or_default();
    failure["kind"] != "source" && words.iter().any(|word| message.contains(word))
}

/// Exactly one attempt at `revision`, however it ended.
///
/// # Errors
/// With the history, when there were others or none.
pub fn built_at_once(builds: &[Value], revision: &str) -> Verdict {
    let attempts = builds.iter().filter(|build| build["revision"] == revision).count();
    hold(attempts == 1, || format!("{attempts} attempts at {revision}: {builds:#?}"))
}

/// What a hostile step may have come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walls {
    /// Whether it sees the daemon among the processes.
    pub sees_daemon: bool,
    /// What the registry answers when it pushes over the tag of another app: 000 when it is not reached.
    pub forged: &'static str,
    /// The SHA-256, in hex, of the one token that it may read.
    pub token: String,
}

/// A step that tried everything of [`fabrique_bed::hostile`] that a log can tell of came to no more than this.
///
/// # Errors
/// With what it came to, or did not even try.
pub fn walls_hold(log: &str, walls: &Walls) -> Verdict {
    let said = |word: &str| hostile::said(log, word);
    for end in ["searched", "looked", "knocked"] {
        hold(log.lines().any(|line| line == end), || format!("it never {end}: {log}"))?;
    }
    let sees = said("sees");
    hold(sees.contains(&"bash"), || format!("it does not even see itself: {log}"))?;
    let daemon = sees.contains(&"buildkitd");
    hold(daemon == walls.sees_daemon, || format!("it sees the daemon: {daemon}"))?;
    hold(said("keys") == ["0"], || format!("keys that it read: {:?}", said("keys")))?;
    hold(said("finds").is_empty(), || format!("it found {:?}", said("finds")))?;
    hold(said("found").is_empty(), || format!("in the cache of another app: {:?}", said("found")))?;
    hold(said("open").is_empty(), || format!("these let it in: {:?}", said("open")))?;
    hold(said("forged") == [walls.forged], || format!("the registry answered {:?}", said("forged")))?;
    let tokens: Vec<_> = said("token").iter().filter_map(|line| line.split(' ').next()).collect();
    hold(tokens == [walls.token.as_str()], || format!("tokens that it read: {tokens:?}"))
}

/// Whoever knocked was let in at exactly these doors, in this order.
///
/// # Errors
/// With the doors that did, or when it never came to the last one.
pub fn opened(said: &str, wanted: &[String]) -> Verdict {
    hold(said.lines().any(|line| line == "knocked"), || format!("it never knocked: {said}"))?;
    let open = hostile::said(said, "open");
    hold(open == wanted, || format!("these let it in: {open:?}, and not {wanted:?}"))
}

/// The pod `after` something happened to it is the one that was there `before`, and is used on.
///
/// # Errors
/// When it is another, on its way out, or doubted.
pub fn lives_on(before: &Value, after: &Value) -> Verdict {
    let (old, new) = (&before["metadata"]["uid"], &after["metadata"]["uid"]);
    hold(old.is_string() && old == new, || format!("it is another pod: {new} instead of {old}"))?;
    let leaving = after["metadata"].get("deletionTimestamp").is_some();
    let doubted = after["metadata"]["annotations"].get("fabrique/doubt").is_some();
    hold(!leaving && !doubted, || format!("leaving: {leaving}, doubted: {doubted}"))?;
    let phase = &after["status"]["phase"];
    hold(phase == "Running", || format!("it is {phase}"))
}

/// An attempt that ended for a reason of the source's, which is told to its committer.
///
/// # Errors
/// With how it ended instead.
pub fn blamed_on_the_source(build: &Value) -> Verdict {
    let phase = &build["phase"];
    hold(phase["phase"] == "failed" && phase["kind"] == "source", || format!("it ended otherwise: {build:#}"))
}

/// Exactly one active webhook for pushes delivers JSON to `url`.
///
/// # Errors
/// With those that are there.
pub fn hooked_once(hooks: &Value, url: &str) -> Verdict {
    let ours = |hook: &&Value| hook["config"]["url"] == url;
    let all = hooks.as_array().map(Vec::as_slice).unwrap_or_default();
    let ours: Vec<&Value> = all.iter().filter(ours).collect();
    let sound = |hook: &Value| {
        let events = hook["events"].as_array();
        hook["active"] == true
            && hook["config"]["content_type"] == "json"
            && events.is_some_and(|events| events.iter().any(|event| event == "push"))
    };
    hold(matches!(*ours, [only] if sound(only)), || format!("not one sound webhook to {url}: {hooks}"))
}

/// How often Argo CD's log says that a webhook told it of a push to a repository.
#[must_use]
pub fn pushes_heard(log: &str, repo: &str) -> usize {
    let (event, of) = ("Received push event repo: ", format!("/{repo}, "));
    log.lines().filter(|line| line.contains(event) && line.contains(&of)).count()
}

/// The element of a list of that name; null when there is none.
fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().into_iter().flatten().find(|element| element["name"] == name);
    found.unwrap_or(&Value::Null)
}
