//! Which texts are identifiers: the stricter of what git, Gitea, registries, Kubernetes and NATS accept.

use crate::image::is_registry;

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

pub(super) fn is_hex64(text: &str) -> bool {
    text.len() == 64 && is_lower_hex(text)
}

pub(super) fn is_revision(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && is_lower_hex(text) && text.bytes().any(|b| b != b'0')
}

pub(super) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(is_hex64)
}

pub(super) fn is_app_name(text: &str) -> bool {
    text.len() <= 40
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.ends_with('-')
}

pub(super) fn is_build_id(text: &str) -> bool {
    let is_ulid = |ulid: &str| {
        ulid.bytes().all(|b| {
            b.is_ascii_digit() || (b.is_ascii_lowercase() && !matches!(b, b'i' | b'l' | b'o' | b'u'))
        })
    };
    text.is_ascii()
        && text.len() > 27
        && is_app_name(&text[..text.len() - 27])
        && text.as_bytes()[text.len() - 27] == b'-'
        && is_ulid(&text[text.len() - 26..])
}

pub(super) fn is_gitea_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 100
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !text.starts_with(['.', '-'])
        && !text.contains("..")
}

pub(super) fn is_branch(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 250
        && !text.starts_with('-')
        && !text.ends_with(['/', '.'])
        && !text.contains("..")
        && !text.contains("@{")
        && text != "@"
        && text
            .split('/')
            .all(|part| !part.is_empty() && !part.starts_with('.') && part.strip_suffix(".lock").is_none())
        && !text
            .chars()
            .any(|c| c.is_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\'))
}

pub(super) fn is_image_repository(text: &str) -> bool {
    let Some((registry, name)) = text.split_once('/') else { return false };
    let (host, port) = registry.split_once(':').map_or((registry, None), |(h, p)| (h, Some(p)));
    let host_ok = !host.is_empty()
        && host.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-'))
        && host.starts_with(|c: char| c.is_ascii_alphanumeric())
        && host.ends_with(|c: char| c.is_ascii_alphanumeric());
    let port_ok = port.is_none_or(|p| p.parse::<u16>().is_ok_and(|n| n > 0) && !p.starts_with(['0', '+']));
    let part_ok = |part: &str| {
        part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'))
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric())
            && !part.contains("..")
    };
    // What daemons take for a folder of the Docker Hub ("library/busybox", "registry/app") would be pushed there.
    text.len() <= 255 && host_ok && port_ok && is_registry(registry) && name.split('/').all(part_ok)
}

pub(super) fn is_rel_path(text: &str) -> bool {
    text == "."
        || (!text.is_empty()
            && text.len() <= 1024
            && !text.starts_with('-')
            && !text.chars().any(|c| c.is_control() || c == '\\')
            && text.split('/').all(|part| !part.is_empty() && part != "." && part != ".."))
}

pub(super) fn is_secret_name(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

pub(super) fn is_check_name(text: &str) -> bool {
    (1..=200).contains(&text.chars().count()) && text.trim() == text && !text.chars().any(char::is_control)
}

pub(super) fn is_platform(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    matches!(parts.len(), 2 | 3)
        && parts
            .iter()
            .all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
}
