//! SHA-256 as the registry and build keys spell it.

use sha2::{Digest as _, Sha256};

/// The hash of `bytes` in lowercase hexadecimal digits.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
