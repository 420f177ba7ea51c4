//! The code that shows whether values were changed, moved, added or taken away.
//!
//! In: the bytes of every value, in document order. Out: the code, as text.
//! Never: keys of the document or comments; SOPS does not cover them.

use sha2::{Digest, Sha512};

use crate::rules::Rules;

/// The running MAC over all values of a document.
pub(crate) struct Mac {
    hash: Sha512,
    only_encrypted: bool,
}

/// SHA-256 of `sops`: keeps the two ways of computing a MAC from giving the same one.
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

    /// Counts in a value that is encrypted.
    pub(crate) fn encrypted(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    /// Counts in a value that is readable, unless only encrypted ones count.
    pub(crate) fn visible(&mut self, bytes: &[u8]) {
        if !self.only_encrypted {
            self.hash.update(bytes);
        }
    }

    /// Returns the MAC as SOPS writes it before encrypting it.
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
    fn the_start_value_is_what_sops_says_it_is() {
        assert_eq!(Sha256::digest(b"sops").as_slice(), ONLY_ENCRYPTED_START);
    }

    #[test]
    fn readable_values_count_unless_they_are_left_out() {
        let code = |mac_only_encrypted, readable: &[u8]| {
            let mut mac = Mac::new(&Rules {
                mac_only_encrypted,
                ..Rules::default()
            });
            mac.encrypted(b"x");
            mac.visible(readable);
            mac.finish()
        };
        assert_ne!(code(false, b"a"), code(false, b"b"));
        assert_eq!(code(true, b"a"), code(true, b"b"));
        assert_ne!(code(true, b""), code(false, b""));
        assert_eq!(code(false, b"").len(), 128);
    }
}
