//! Who is at the keyboard: what workers record with a command.

use std::os::unix::fs::MetadataExt as _;
use std::{env, fs};

/// A name is for people; a longer one is cut.
const LONGEST: usize = 64;

/// `login@host`. Who used sudo is recorded as who they are.
pub(crate) fn caller() -> String {
    let login = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| plain(&env::var(name).ok()?));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok().and_then(|name| plain(&name));
    format!("{}@{}", login.unwrap_or_else(own_user), host.as_deref().unwrap_or("unknown"))
}

/// What the system calls the process's user, or its number: in a container there is often no name.
fn own_user() -> String {
    let Ok(own) = fs::metadata("/proc/self") else { return "unknown".to_owned() };
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_of(own.uid(), &users).unwrap_or_else(|| format!("uid-{}", own.uid()))
}

/// The login of a user in the format of `/etc/passwd`.
fn name_of(uid: u32, users: &str) -> Option<String> {
    let uid = uid.to_string();
    let mut entries = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    entries.find(|entry| entry.get(2) == Some(&uid.as_str())).and_then(|entry| plain(entry.first()?))
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
    fn a_user_without_a_login_in_the_environment_is_looked_up() {
        let users = "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\nbroken\n";
        assert_eq!(name_of(1000, users).as_deref(), Some("ada"));
        assert_eq!(name_of(7, users), None);
    }

    #[test]
    fn a_name_cannot_forge_another() {
        assert_eq!(plain("eve@bastion\n").as_deref(), Some("evebastion"));
        assert_eq!(plain("\n"), None);
    }
}
