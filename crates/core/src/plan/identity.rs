//! Who a node's guest is: a UUID and a MAC address that follow from names.
//!
//! In: manifest, host and node. Out: the same identity whoever asks, so that two drivers, or one
//! that lost its memory, never make two guests for one node.
//! Never: randomness.

use sha2::{Digest as _, Sha256};

use crate::observed::GuestUuid;

/// Returns the identity of a node's first guest.
pub fn uuid(manifest: &str, host: &str, node: &str) -> Option<GuestUuid> {
    made_of(&["guest", manifest, host, node])
}

/// Returns the identity of the guest that takes the place of another, which must not be mistaken
/// for it.
pub fn successor(of: &GuestUuid) -> Option<GuestUuid> {
    made_of(&["successor", of.as_str()])
}

/// Returns the MAC address of a guest: one that is administered locally, so that it is nobody's.
pub fn mac(uuid: &GuestUuid) -> String {
    let digest = digest(&["mac", uuid.as_str()]);
    let tail: Vec<String> = digest[..5].iter().map(|b| format!("{b:02x}")).collect();
    format!("02:{}", tail.join(":"))
}

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        // The length first: otherwise `a` + `bc` and `ab` + `c` would be one.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

/// A UUID of version 8, which is for forms of one's own.
fn made_of(parts: &[&str]) -> Option<GuestUuid> {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(parts)[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    GuestUuid::new(&format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{mac, successor, uuid};

    #[test]
    fn the_same_names_give_the_same_identity_and_others_another() {
        let one = uuid("m", "father", "a").unwrap();
        assert_eq!(Some(&one), uuid("m", "father", "a").as_ref());
        let others = [
            uuid("m", "father", "b"),
            uuid("m", "mother", "a"),
            uuid("n", "father", "a"),
            uuid("mf", "ather", "a"),
            successor(&one),
        ];
        for other in others {
            assert_ne!(Some(&one), other.as_ref());
        }
    }

    #[test]
    fn ten_thousand_nodes_have_ten_thousand_mac_addresses() {
        let macs: BTreeSet<String> = (0..10_000)
            .map(|n| mac(&uuid("m", "h", &n.to_string()).unwrap()))
            .collect();
        assert_eq!(macs.len(), 10_000);
        assert!(
            macs.iter()
                .all(|mac| mac.starts_with("02:") && mac.len() == 17)
        );
    }
}
