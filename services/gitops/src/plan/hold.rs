//! Holding a channel and releasing it.

use fabrique_core::app::{App, Hold};
use fabrique_core::id::{Channel, EnvironmentName};
use fabrique_core::time::Timestamp;

use super::{Plan, Site};
use crate::composition::MAX_TEXT;
use crate::message::{CommitMessage, Trailers, one_line};
use crate::refusal::Refusal;
use crate::tree::Tree;

/// When `hold` ends. One whose end cannot be read does not end.
#[must_use]
pub fn ends(hold: &Hold) -> Option<Timestamp> {
    let until = hold.until.as_deref()?.parse::<jiff::Timestamp>().ok()?;
    u64::try_from(until.as_millisecond()).ok().map(Timestamp)
}

/// Whether `hold` is not over at `now`.
#[must_use]
pub fn in_force(hold: &Hold, now: Timestamp) -> bool {
    ends(hold).is_none_or(|end| end > now)
}

/// Puts a person's hold on a channel; one that is there is replaced.
///
/// # Errors
/// [`Refusal::Unacceptable`] when the hold does not say who, or its end is no RFC 3339 time; whatever is
/// wrong with the composition.
pub fn set_hold(
    tree: &Tree,
    app: &App,
    environment: &EnvironmentName,
    channel: Channel,
    hold: &Hold,
) -> Plan {
    let hold = cleaned(hold)?;
    let subject = format!("Hold the {channel} of {} in {environment}", app.name);
    let body = format!("{}: {}", hold.by, hold.reason);
    change(tree, app, environment, channel, Some(hold), &subject, &body)
}

/// Lets a channel move again.
///
/// # Errors
/// Whatever is wrong with the composition.
pub fn release_hold(tree: &Tree, app: &App, environment: &EnvironmentName, channel: Channel) -> Plan {
    let subject = format!("Release the {channel} of {} in {environment}", app.name);
    change(tree, app, environment, channel, None, &subject, "")
}

fn change(
    tree: &Tree,
    app: &App,
    environment: &EnvironmentName,
    channel: Channel,
    hold: Option<Hold>,
    subject: &str,
    body: &str,
) -> Plan {
    let site = Site::open(tree, app, environment)?;
    let mut after = site.before.clone();
    match channel {
        Channel::Image => after.image.hold = hold,
        Channel::Infra => after.infra.hold = hold,
    }
    if after == site.before {
        return Ok(None);
    }
    let mut changes = site.changes();
    site.write_composition(&mut changes, &after)?;
    let trailers = Trailers { channel: Some(channel), ..site.trailers() };
    // No look at the bindings: a hold is most wanted when something is wrong with them.
    Ok(Some(super::Planned { changes, message: CommitMessage::new(subject, body, trailers) }))
}

/// The hold as it is written: one line each, bounded, with an end that everyone reads alike.
pub(super) fn cleaned(hold: &Hold) -> Result<Hold, Refusal> {
    let optional = |text: &Option<String>| text.as_deref().map(|text| one_line(text, MAX_TEXT));
    let clean = Hold {
        by: one_line(&hold.by, MAX_TEXT),
        reason: one_line(&hold.reason, MAX_TEXT),
        since: optional(&hold.since),
        until: optional(&hold.until),
    };
    let refuse = |what: String, remedy: &str| Err(Refusal::Unacceptable { what, remedy: remedy.to_owned() });
    if clean.by.is_empty() {
        return refuse("the hold does not say who holds".to_owned(), "name a person");
    }
    match clean.until.as_deref().map(str::parse::<jiff::Timestamp>) {
        Some(Err(error)) => {
            refuse(format!("the end of the hold is no time: {error}"), "write 2026-08-01T12:00:00Z")
        }
        Some(Ok(_)) | None => Ok(clean),
    }
}
