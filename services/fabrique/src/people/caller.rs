//! Who is at the keyboard: what workers record with a command.

use std::env;
use std::os::unix::fs::MetadataExt as _;

/// A name is for people; a longer one is cut.
const LONGEST: usize = 64;

/// `login@host`. Who used sudo is recorded as who they are.
pub(crate) fn caller() -> String {
    let login = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| plain(&env::var(name).ok()?));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().and_then(|name| plain(&name));
    format!("{}@{}", login.unwrap_or_else(uid), host.as_deref().unwrap_or("unknown"))
}

/// In a container there is often no name.
fn uid() -> String {
    std::fs::metadata("/proc/self").map_or_else(|_| "unknown".to_owned(), |own| format!("uid-{}", own.uid()))
}

/// What is left of `name` without anything that has a meaning elsewhere.
fn plain(name: &str) -> Option<String> {
    let plain = |c: &char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = name.chars().filter(plain).take(LONGEST).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_a_login_at_a_host() {
        let caller = caller();
        let (login, host) = caller.split_once('@').unwrap();
        assert!(!login.is_empty() && !host.is_empty(), "{caller}");
    }

    #[test]
    fn a_name_cannot_forge_another() {
        assert_eq!(plain("eve@bastion\n").as_deref(), Some("evebastion"));
        assert_eq!(plain("\n"), None);
    }
}
