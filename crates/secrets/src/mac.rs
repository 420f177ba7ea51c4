//! The MAC of SOPS, which detects modified, moved, added or removed values. It covers neither keys
//! of the document nor comments.

use sha2::{Digest, Sha512};

use crate::rules::Rules;

/// The MAC over all values of a document.
pub(crate) struct Mac {
    hash: Sha512,
    only_encrypted: bool,
}

/// SHA-256 of `sops`: separates the two ways of computing the MAC.
const ONLY_ENCRYPTED_START: [u8; 32] = [
    0x8a, 0x3f, 0xd2, 0xad, 0x54, 0xce, 0x66, 0x52, 0x7b, 0x10, 0x34, 0xf3, 0xd1, 0x47, 0xbe, 0x0b,
    0x0b, 0x97, 0x5b, 0x3b, 0xf4, 0x4f, 0x72, 0xc6, 0xfd, 0xad, 0xec, 0x81, 0x76, 0xf2, 0x7d, 0x69,
];

impl Mac {
    /// Starts a MAC.
    pub(crate) fn new(rules: &Rules) -> Self {
        let mut hash = Sha512::new();
        if rules.mac_only_encrypted {
            hash.update(ONLY_ENCRYPTED_START);
        }
        Self {
            hash,
            only_encrypted: rules.mac_only_encrypted,
        }
    }

    /// Adds an encrypted value.
    pub(crate) fn encrypted(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    /// Adds a plain value, unless the MAC covers only encrypted ones.
    pub(crate) fn visible(&mut self, bytes: &[u8]) {
        if !self.only_encrypted {
            self.hash.update(bytes);
        }
    }

    /// Returns the MAC in hexadecimal, before encryption.
    pub(crate) fn finish(self) -> String {
        let bytes = self.hash.finalize();
        bytes.iter().map(|byte| format!("{byte:02X}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::Sha256;

    #[test]
    fn the_initial_value_is_the_hash_of_sops() {
        assert_eq!(Sha256::digest(b"sops").as_slice(), ONLY_ENCRYPTED_START);
    }

    #[test]
    fn plain_values_are_covered_unless_excluded() {
        let mac = |mac_only_encrypted, readable: &[u8]| {
            let mut hash = Mac::new(&Rules {
                mac_only_encrypted,
                ..Rules::default()
            });
            hash.encrypted(b"x");
            hash.visible(readable);
            hash.finish()
        };
        assert_ne!(mac(false, b"a"), mac(false, b"b"));
        assert_eq!(mac(true, b"a"), mac(true, b"b"));
        assert_ne!(mac(true, b""), mac(false, b""));
        assert_eq!(mac(false, b"").len(), 128);
    }
}
