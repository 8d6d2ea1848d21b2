//! Finding the app that a person means.

use fabrique_core::app::App;
use fabrique_core::id::AppName;
use fabrique_gitops::Registrations;

use crate::error::OperatorError;

/// How many near names a message shows.
const SHOWN: usize = 5;

/// The registered app called `name`.
pub(crate) fn app<'r>(registrations: &'r Registrations, name: &str) -> Result<&'r App, OperatorError> {
    let parsed = AppName::parse(name).ok();
    if let Some(app) = parsed.as_ref().and_then(|name| registrations.apps.get(name)) {
        return Ok(app);
    }
    if let Some((name, wrong)) = parsed.as_ref().and_then(|name| registrations.wrong.get_key_value(name)) {
        return Err(OperatorError::WrongRegistration { name: name.clone(), wrong: wrong.to_string() });
    }
    let hint = near(name, registrations.apps.keys().map(AppName::as_str));
    Err(OperatorError::UnknownApp { name: name.escape_debug().to_string(), hint })
}

/// The names most like `wanted`, nearest first.
fn near<'a>(wanted: &str, there: impl Iterator<Item = &'a str>) -> String {
    let wanted: String = wanted.chars().take(64).collect();
    let mut ranked: Vec<(usize, &str)> =
        there.map(|name| (strsim::damerau_levenshtein(&wanted, name), name)).collect();
    ranked.sort_unstable();
    let Some((distance, nearest)) = ranked.first() else {
        return "no app is registered".to_owned();
    };
    if *distance <= 2.max(nearest.len() / 3) {
        return format!("did you mean {nearest}?");
    }
    let more = if ranked.len() > SHOWN { ", …" } else { "" };
    let names: Vec<&str> = ranked.iter().take(SHOWN).map(|(_, name)| *name).collect();
    format!("there are: {}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_answered_with_the_name_that_was_meant() {
        assert_eq!(near("citatoin", ["citation", "atlas"].into_iter()), "did you mean citation?");
    }

    #[test]
    fn a_name_like_no_other_is_answered_with_what_there_is() {
        assert_eq!(near("zzzzzzzz", ["citation", "atlas"].into_iter()), "there are: atlas, citation");
        assert_eq!(near("x", std::iter::empty()), "no app is registered");
    }

    #[test]
    fn a_hostile_name_does_not_reach_the_terminal() {
        let error = app(&Registrations::default(), "\u{1b}[31m").unwrap_err();
        assert_eq!(error.to_string(), "\\u{1b}[31m is not a registered app; no app is registered");
    }
}
