//! Finding the app that a person means.

use fabrique_core::app::App;
use fabrique_core::id::AppName;
use fabrique_gitops::Registrations;
use fabrique_ports::bus::Command;

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

/// The app called `name` that a command is about. A build goes on although its registration is wrong, and can be cancelled.
pub(crate) fn of_command(
    registrations: &Registrations,
    name: &str,
    command: &Command,
) -> Result<AppName, OperatorError> {
    match app(registrations, name) {
        Err(OperatorError::WrongRegistration { name, .. }) if *command == Command::Cancel => Ok(name),
        found => found.map(|app| app.name.clone()),
    }
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
    use fabrique_core::id::RelPath;
    use fabrique_gitops::{Entry, Rules};

    use super::*;

    #[test]
    fn a_build_is_cancelled_although_its_registration_is_wrong_and_nothing_else_is_asked_for() {
        let file = (RelPath::parse("apps/citation/app.yaml").unwrap(), Entry::regular("spec: ["));
        let registrations = Registrations::load(&[file].into_iter().collect(), &Rules::default());
        let found = |name: &str, command: Command| {
            of_command(&registrations, name, &command).map(|app| app.to_string()).map_err(|e| e.to_string())
        };
        assert_eq!(found("citation", Command::Cancel).as_deref(), Ok("citation"));
        let retry = found("citation", Command::Retry).unwrap_err();
        assert!(retry.contains("apps/citation/app.yaml"), "{retry}");
        found("ledger", Command::Cancel).unwrap_err();
    }

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
