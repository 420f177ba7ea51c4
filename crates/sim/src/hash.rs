//! Digests in hexadecimal, as Proxmox VE reports them.
//!
//! SHA-1 and MD5 are here because Proxmox VE uses them for configurations and uploads; neither
//! resists an attacker.

use sha2::Digest;

/// Returns the digest of a message.
pub(crate) fn hex<D: Digest>(message: &[u8]) -> String {
    homestak_core::hex::encode(&D::digest(message))
}

#[cfg(test)]
mod tests {
    use md5::Md5;
    use sha1::Sha1;

    use super::hex;

    #[test]
    fn digests_are_those_of_the_published_examples() {
        assert_eq!(
            hex::<Sha1>(b"abc"),
            "a9993e364706816aba3e25717850c26c9cd0d89d"
        );
        assert_eq!(hex::<Md5>(b"abc"), "900150983cd24fb0d6963f7d28e17f72");
    }
}
