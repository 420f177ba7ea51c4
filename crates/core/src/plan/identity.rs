//! The identity of a node's guest: a UUID and a MAC address, derived from the site's id and names.
//!
//! The same for every driver of a site, so that two of them, or one that lost its state, never
//! create two guests for one node; different for every site, whatever its manifests are called.

use sha2::{Digest as _, Sha256};

use crate::doc::scalar::SiteId;
use crate::observed::GuestUuid;

/// Returns the identity of a node's first guest.
pub fn uuid(site: &SiteId, manifest: &str, host: &str, node: &str) -> GuestUuid {
    derive(&["guest", site.as_str(), manifest, host, node])
}

/// Returns the identity of the guest that replaces another one.
pub fn successor(of: &GuestUuid) -> GuestUuid {
    derive(&["successor", of.as_str()])
}

/// Returns the MAC address of a guest: a locally administered one.
pub fn mac(uuid: &GuestUuid) -> String {
    let digest = digest(&["mac", uuid.as_str()]);
    let tail: Vec<String> = digest[..5].iter().map(|b| format!("{b:02x}")).collect();
    format!("02:{}", tail.join(":"))
}

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        // Length-prefixed: otherwise `a` + `bc` and `ab` + `c` would be the same.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

fn derive(parts: &[&str]) -> GuestUuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(parts)[..16]);
    GuestUuid::from_custom_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{mac, successor, uuid};
    use crate::doc::scalar::SiteId;

    fn site(text: &str) -> SiteId {
        SiteId::new(text).unwrap()
    }

    #[test]
    fn the_same_site_and_names_give_the_same_identity_and_others_another() {
        let ours = site("aaaabbbbccccdddd");
        let one = uuid(&ours, "m", "father", "a");
        assert_eq!(one, uuid(&ours, "m", "father", "a"));
        let others = [
            uuid(&ours, "m", "father", "b"),
            uuid(&ours, "m", "mother", "a"),
            uuid(&ours, "n", "father", "a"),
            uuid(&ours, "mf", "ather", "a"),
            uuid(&site("aaaabbbbccccddde"), "m", "father", "a"),
            successor(&one),
        ];
        for other in others {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn ten_thousand_nodes_have_ten_thousand_mac_addresses() {
        let ours = site("aaaabbbbccccdddd");
        let macs: BTreeSet<String> = (0..10_000)
            .map(|n| mac(&uuid(&ours, "m", "h", &n.to_string())))
            .collect();
        assert_eq!(macs.len(), 10_000);
        assert!(
            macs.iter()
                .all(|mac| mac.starts_with("02:") && mac.len() == 17)
        );
    }
}
