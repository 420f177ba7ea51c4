//! Whose guest it is: our UUID in a tag, in the SMBIOS of a VM and in the notes; site, manifest and
//! the id it was created with in tags.
//!
//! A name or an id alone is no identity: both are reused, and clones copy tags and notes.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use homestak_core::doc::scalar::SiteId;
use homestak_engine::ports::{GuestKind, GuestUuid};

use super::config::GuestConfig;

/// The tag of every guest that homestak manages.
pub const TAG: &str = "homestak";
/// Before the UUID.
const ID_PREFIX: &str = "homestak-id-";
/// Before the site.
const SITE_PREFIX: &str = "homestak-s-";
/// Before the manifest.
const MANIFEST_PREFIX: &str = "homestak-m-";
/// Before the id that the guest was created with. Clones and restored backups keep their tags, so
/// this one distinguishes them from the original in the list.
const VMID_PREFIX: &str = "homestak-v-";
/// Before the UUID in the notes.
const NOTE: &str = "homestak-id: ";
/// Before the mark of the run that created the guest.
const RUN_NOTE: &str = "homestak-run: ";

/// The metadata that identifies a managed guest.
pub struct GuestMetadata<'a> {
    /// Its identity.
    pub uuid: &'a GuestUuid,
    /// Its site.
    pub site: &'a SiteId,
    /// Its manifest.
    pub manifest: &'a str,
    /// The run that creates it, where one does.
    pub run: Option<&'a str>,
}

impl GuestMetadata<'_> {
    /// Returns the tags, for a guest with that id. A copy keeps them under another id.
    pub fn tags(&self, vmid: u32) -> BTreeSet<String> {
        [
            TAG.to_owned(),
            id_tag(self.uuid),
            format!("{SITE_PREFIX}{}", self.site),
            manifest_tag(self.manifest),
            format!("{VMID_PREFIX}{vmid}"),
        ]
        .into()
    }

    /// Returns the notes.
    pub fn notes(&self) -> String {
        let Self {
            uuid,
            site,
            manifest,
            run,
        } = self;
        let mut notes =
            format!("{NOTE}{uuid}\nhomestak-site: {site}\nhomestak-manifest: {manifest}\n");
        if let Some(run) = run {
            let _ = writeln!(notes, "{RUN_NOTE}{run}");
        }
        notes
    }

    /// Returns the notes with our lines replaced; others are kept.
    pub fn merge_notes(&self, notes: Option<&str>) -> String {
        let kept = notes.unwrap_or_default().lines();
        let kept: String = kept
            .filter(|line| !line.trim().starts_with("homestak-"))
            .map(|line| format!("{line}\n"))
            .collect();
        self.notes() + &kept
    }
}

/// Returns the tag that carries a UUID.
pub fn id_tag(uuid: &GuestUuid) -> String {
    format!("{ID_PREFIX}{uuid}")
}

/// Returns whether a tag is one of ours.
pub fn is_ours(tag: &str) -> bool {
    let prefixes = [ID_PREFIX, SITE_PREFIX, MANIFEST_PREFIX, VMID_PREFIX];
    tag == TAG || prefixes.iter().any(|prefix| tag.starts_with(prefix))
}

/// Reads the UUID in a set of tags; none when there are two.
pub fn uuid_in_tags(tags: &BTreeSet<String>) -> Option<GuestUuid> {
    match ids_in_tags(tags).as_slice() {
        [id] => GuestUuid::new(id),
        _ => None,
    }
}

/// Returns every identity that a set of tags names.
pub(super) fn ids_in_tags(tags: &BTreeSet<String>) -> Vec<&str> {
    let ids = tags.iter().filter_map(|tag| tag.strip_prefix(ID_PREFIX));
    ids.collect()
}

/// Reads the manifest in a set of tags.
pub fn manifest_in_tags(tags: &BTreeSet<String>) -> Option<String> {
    tags.iter()
        .find_map(|tag| tag.strip_prefix(MANIFEST_PREFIX))
        .and_then(decode)
}

/// Reads the site in a set of tags; none when there are two.
pub fn site_in_tags(tags: &BTreeSet<String>) -> Option<SiteId> {
    match sites_in_tags(tags).as_slice() {
        [site] => SiteId::new(site),
        _ => None,
    }
}

/// Returns every site that a set of tags names.
pub(super) fn sites_in_tags(tags: &BTreeSet<String>) -> Vec<&str> {
    let sites = tags.iter().filter_map(|tag| tag.strip_prefix(SITE_PREFIX));
    sites.collect()
}

/// Reads the id that the guest with an id was created with from its tags: another one, when any
/// of them names another.
pub fn created_as(tags: &BTreeSet<String>, vmid: u32) -> Option<u32> {
    let ids = tags.iter().filter_map(|tag| tag.strip_prefix(VMID_PREFIX));
    let ids: BTreeSet<u32> = ids.filter_map(|id| id.parse().ok()).collect();
    ids.iter()
        .copied()
        .find(|id| *id != vmid)
        .or_else(|| ids.first().copied())
}

/// Reads the run in notes.
pub fn run_in_notes(notes: &str) -> Option<String> {
    let run = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix(RUN_NOTE))?;
    Some(run.trim().to_owned()).filter(|run| !run.is_empty())
}

/// Reads the UUID in notes.
pub fn uuid_in_notes(notes: &str) -> Option<GuestUuid> {
    notes
        .lines()
        .find_map(|line| line.trim().strip_prefix(NOTE))
        .and_then(|text| GuestUuid::new(text.trim()))
}

/// Returns the tag that carries a manifest's name.
pub fn manifest_tag(manifest: &str) -> String {
    format!("{MANIFEST_PREFIX}{}", encode(manifest))
}

/// Writes a name in what tags allow and lower-casing keeps: `a-z0-9.-`, the rest as `_` and two
/// hexadecimal digits a byte.
fn encode(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "_{byte:02x}");
        }
    }
    text
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'_' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

/// The result of comparing the configuration of a guest with a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// It is the guest: tag and SMBIOS (for a container: tag and notes) agree.
    Ours,
    /// It has the tag but another identity otherwise: a copy, or an edited guest. Never changed.
    Conflicting,
    /// Another guest.
    Other,
}

/// Compares the configuration of the guest with an id with a UUID.
pub fn ownership(kind: GuestKind, vmid: u32, config: &GuestConfig, uuid: &GuestUuid) -> Ownership {
    let tags = config.tags();
    let tagged = tags.contains(&id_tag(uuid));
    let proof = match kind {
        GuestKind::Vm => config.smbios_uuid(),
        GuestKind::Ct => config.notes().and_then(uuid_in_notes),
    };
    let proven = proof.as_ref() == Some(uuid);
    let copied = created_as(&tags, vmid).is_some_and(|created| created != vmid);
    let lone = uuid_in_tags(&tags).is_some() && sites_in_tags(&tags).len() < 2;
    if tagged && proven && !copied && lone {
        Ownership::Ours
    } else if tagged {
        Ownership::Conflicting
    } else {
        Ownership::Other
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::pve::quirks::{is_tag, parse_tags, render_tags};

    const A: &str = "5d1f2a3b-0000-4000-8000-00000000000a";
    const B: &str = "5d1f2a3b-0000-4000-8000-00000000000b";

    fn uuid(text: &str) -> GuestUuid {
        GuestUuid::new(text).expect("a UUID")
    }

    fn ownership_of(kind: GuestKind, config: serde_json::Value) -> Ownership {
        ownership(kind, 101, &GuestConfig::new(config), &uuid(A))
    }

    fn marked(text: &str, manifest: &str) -> (String, String) {
        let site = SiteId::new("aaaabbbbccccdddd").expect("an id");
        let uuid = uuid(text);
        let metadata = GuestMetadata {
            uuid: &uuid,
            site: &site,
            manifest,
            run: Some("r1"),
        };
        (render_tags(&metadata.tags(101)), metadata.notes())
    }

    #[test]
    fn a_guest_is_ours_if_tags_smbios_and_notes_agree() {
        let (tags, notes) = marked(A, "n1");
        assert_eq!(run_in_notes(&notes).as_deref(), Some("r1"));
        let smbios = format!("uuid={}", A.to_uppercase());
        let vm = json!({"tags": tags, "smbios1": smbios, "description": notes});
        assert_eq!(ownership_of(GuestKind::Vm, vm), Ownership::Ours);
        let ct = json!({"tags": tags, "description": notes});
        assert_eq!(ownership_of(GuestKind::Ct, ct), Ownership::Ours);
        assert_eq!(
            ownership_of(GuestKind::Vm, json!({"name": "n1"})),
            Ownership::Other
        );
    }

    #[test]
    fn a_copy_of_our_guest_is_conflicting() {
        let (tags, notes) = marked(A, "n1");
        let copy = json!({"tags": tags, "smbios1": format!("uuid={B}"), "description": notes});
        assert_eq!(ownership_of(GuestKind::Vm, copy), Ownership::Conflicting);
        assert_eq!(
            ownership_of(GuestKind::Ct, json!({"tags": tags})),
            Ownership::Conflicting
        );
    }

    #[test]
    fn a_restored_backup_under_another_id_is_conflicting() {
        let (tags, notes) = marked(A, "n1");
        let vm = json!({"tags": tags, "smbios1": format!("uuid={A}"), "description": notes});
        let ct = json!({"tags": tags, "description": notes});
        for (kind, config) in [(GuestKind::Vm, vm), (GuestKind::Ct, ct)] {
            let config = GuestConfig::new(config);
            assert_eq!(ownership(kind, 101, &config, &uuid(A)), Ownership::Ours);
            assert_eq!(
                ownership(kind, 102, &config, &uuid(A)),
                Ownership::Conflicting
            );
        }
    }

    #[test]
    fn notes_alone_do_not_identify_a_guest() {
        let copy = json!({"description": marked(A, "n1").1});
        assert_eq!(
            ownership_of(GuestKind::Vm, copy),
            Ownership::Other,
            "its tags were removed by someone"
        );
    }

    #[test]
    fn a_guest_with_tags_of_two_sites_is_conflicting() {
        let (tags, notes) = marked(A, "n1");
        let tags = format!("{tags};homestak-s-otherssite");
        let vm = json!({"tags": tags, "smbios1": format!("uuid={A}"), "description": notes});
        assert_eq!(ownership_of(GuestKind::Vm, vm), Ownership::Conflicting);
    }

    #[test]
    fn two_ids_in_the_tags_give_no_identity() {
        let mut both = parse_tags(&marked(A, "n1").0);
        both.insert(id_tag(&uuid(B)));
        assert_eq!(uuid_in_tags(&both), None);
    }

    proptest! {
        #[test]
        fn a_manifest_reads_back_from_its_tag(name in ".{0,30}") {
            let tag = manifest_tag(&name);
            prop_assert!(is_tag(&tag), "{}", tag);
            prop_assert_eq!(manifest_in_tags(&parse_tags(&tag)), Some(name));
        }

        #[test]
        fn any_text_can_be_decoded(text in ".{0,30}") {
            let _ = (decode(&text), uuid_in_notes(&text));
        }
    }
}
