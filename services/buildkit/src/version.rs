//! BuildKit versions and the floor below which no build is sent.

use std::fmt;

/// The oldest BuildKit that is supported: the git `subdir` escape, the frontend's file write and the git bundle's
/// command injection are fixed there, and fetching by commit needs 0.30.
pub const FLOOR: Version = Version { major: 0, minor: 31, patch: 2, pre_release: false };

/// A version as `Info` answers it: `v0.34.2`, `v0.35.0-rc1`, `v0.34.2-12-gabcdef0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
    /// Whether it comes before the version it names.
    pre_release: bool,
}

impl Version {
    /// Reads a version, or nothing when the text is none. `0.0.0`, which a build without version information
    /// calls itself, is none either.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let (numbers, suffix) = text.split_at(text.find(['-', '+']).unwrap_or(text.len()));
        let mut parts = numbers.split('.').map(|part| part.parse::<u32>().ok());
        let (major, minor, patch) = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
        if parts.next().is_some() || (major, minor, patch) == (0, 0, 0) {
            return None;
        }
        // `-rc1` precedes the version; `-12-gabcdef0`, twelve commits after it, does not.
        let pre_release =
            suffix.strip_prefix('-').is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
        Some(Self { major, minor, patch, pre_release })
    }

    /// Whether it is at or above [`FLOOR`].
    #[must_use]
    pub fn supported(self) -> bool {
        self.reaches(FLOOR)
    }

    /// Whether it is at or above `floor`.
    pub(crate) fn reaches(self, floor: Version) -> bool {
        let numbers = |version: Version| (version.major, version.minor, version.patch);
        numbers(self) > numbers(floor) || (numbers(self) == numbers(floor) && !self.pre_release)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_divides_versions() {
        for good in
            ["v0.31.2", "0.34.2", "v0.34.2-12-gabcdef0", "v0.35.0-rc1", "v1.0.0", "0.32", "v0.31.2+dirty"]
        {
            assert!(Version::parse(good).unwrap().supported(), "{good}");
        }
        for old in ["v0.31.1", "v0.31.2-rc1", "0.9.3", "v0.30.0"] {
            assert!(!Version::parse(old).unwrap().supported(), "{old}");
        }
    }

    #[test]
    fn what_names_no_version_is_none() {
        for wrong in ["", "v0.0.0+unknown", "master", "v0", "0.34.x", "1.2.3.4"] {
            assert_eq!(Version::parse(wrong), None, "{wrong}");
        }
    }
}
