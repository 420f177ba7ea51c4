//! Users of nodes on the machine: containers have a user namespace each, so that root in a node has
//! no privileges on the machine.
//!
//! A node's ids are a range of the machine's that no other node, user or container has. Files of the
//! image are shown to the node with shifted ids (an idmapped mount), its own are written with them.

use std::net::IpAddr;
use std::path::Path;

use super::instance::Instance;
use super::{existing, node};
use crate::process;

/// How many ids a node has: those of a complete Debian, including `nobody`.
pub(super) const COUNT: u32 = 1 << 16;
/// The ranges, counted in [`COUNT`], that systemd sets aside for containers (UIDS-GIDS: 524288 to
/// 1879048191).
const FIRST: u32 = 8;
const RANGES: u32 = 28_664;
/// Runs the probe in namespaces of its own.
const UNSHARE: [&str; 8] = [
    "--mount",
    "--propagation=private",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "sh",
    "-c",
];
const PROBE: &str = concat!(include_str!("idmap.sh"), include_str!("probe.sh"));

/// A range of ids: the first, and how many.
type Range = (u32, u32);

/// Checks that containers can have their own user namespace; the error is the reason why not.
pub(super) fn probe(place: &Path) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can check this".to_owned());
    }
    let place = existing(place);
    let mut arguments: Vec<String> = UNSHARE.map(str::to_owned).into();
    arguments.push(PROBE.to_owned());
    arguments.push("sh".to_owned());
    arguments.push(place.display().to_string());
    arguments.push((FIRST * COUNT).to_string());
    match process::run("unshare", &arguments) {
        Ok(_) => Ok(()),
        Err(process::ProgramError::Failed { stderr, .. }) => Err(stderr),
        Err(error) => Err(error.to_string()),
    }
}

/// Chooses the first id of a node; `None` when every range is taken. The caller holds the instance lock.
///
/// The choice begins at the node's address, which no other node has, also none inside of a node:
/// a host in there does not see the ranges of those outside.
pub(super) fn choose(instance: &Instance, address: IpAddr) -> Option<u32> {
    let mut taken = running();
    for file in ["/etc/subuid", "/etc/subgid"] {
        taken.extend(granted(&fs_err::read_to_string(file).unwrap_or_default()));
    }
    for file in ["/etc/passwd", "/etc/group"] {
        taken.extend(users(&fs_err::read_to_string(file).unwrap_or_default()));
    }
    let nodes = node::all(instance).unwrap_or_default().into_iter();
    taken.extend(nodes.filter_map(|node| Some((node.ids?, COUNT))));
    // Users of other databases, such as a directory service.
    let elsewhere = |first: u32| process::run("getent", &["passwd", &first.to_string()]).is_ok();
    free(address, &taken).find(|first| !elsewhere(*first))
}

fn free(address: IpAddr, taken: &[Range]) -> impl Iterator<Item = u32> {
    let wish = match address {
        IpAddr::V4(address) => u32::from(address),
        IpAddr::V6(address) => u32::from_be_bytes(last_four(address.octets())),
    };
    let clashes = |first: u32| {
        let end = u64::from(first) + u64::from(COUNT);
        taken.iter().any(|(start, count)| {
            u64::from(*start) < end && u64::from(first) < u64::from(*start) + u64::from(*count)
        })
    };
    (0..RANGES)
        .map(move |step| (FIRST + (wish % RANGES + step) % RANGES) * COUNT)
        .filter(move |first| !clashes(*first))
}

fn last_four(octets: [u8; 16]) -> [u8; 4] {
    [octets[12], octets[13], octets[14], octets[15]]
}

/// Returns the subordinate ids of users: lines of `NAME:FIRST:COUNT`.
fn granted(text: &str) -> Vec<Range> {
    let range = |line: &str| {
        let mut words = line.split(':').skip(1);
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(range).collect()
}

/// Returns the ids of users or groups: lines of `NAME:x:ID:...`.
fn users(text: &str) -> Vec<Range> {
    let id = |line: &str| Some((line.split(':').nth(2)?.parse().ok()?, 1));
    text.lines().filter_map(id).collect()
}

/// Returns the ranges of all running containers of the machine.
fn running() -> Vec<Range> {
    let entries = fs_err::read_dir("/proc").into_iter().flatten().flatten();
    let mut found = std::collections::BTreeSet::new();
    for entry in entries {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(|c: char| c.is_ascii_digit())
        {
            for file in ["uid_map", "gid_map"] {
                let text = fs_err::read_to_string(entry.path().join(file)).unwrap_or_default();
                found.extend(mapped(&text));
            }
        }
    }
    found.into_iter().collect()
}

/// Returns what a map of a user namespace takes of the machine: lines of `INSIDE FIRST COUNT`. The
/// machine's own maps everything to itself.
fn mapped(text: &str) -> Vec<Range> {
    let range = |line: &str| {
        let mut words = line.split_whitespace().skip(1).map(str::parse);
        match (words.next()?.ok()?, words.next()?.ok()?) {
            (0, _) => None,
            range => Some(range),
        }
    };
    text.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(address: [u8; 4], taken: &[Range]) -> u32 {
        free(address.into(), taken).next().expect("a range")
    }

    #[test]
    fn nodes_get_distinct_user_ids_in_the_container_range() {
        let mut seen = std::collections::BTreeSet::new();
        for network in 77..80 {
            for last in 2..=254 {
                let ids = first([10, network, 3, last], &[]);
                assert!(
                    ids >= 524_288
                        && ids
                            .checked_add(COUNT)
                            .is_some_and(|end| end <= 1_879_048_192)
                );
                assert_eq!(ids % COUNT, 0);
                assert!(seen.insert(ids), "10.{network}.3.{last}");
            }
        }
    }

    #[test]
    fn user_ids_in_use_are_skipped() {
        let address = [10, 77, 3, 9];
        let wish = first(address, &[]);
        let users = users(&format!("root:x:0:0\nfar:x:{}:1::/:/bin/sh\n", wish + 7));
        assert_eq!(first(address, &users), wish + COUNT);
        let granted = granted(&format!("ops:{}:65536\nbroken\n", wish + COUNT - 1));
        assert_eq!(first(address, &granted), wish + 2 * COUNT);
        let mapped = mapped(&format!("         0 {wish} 65536\n"));
        assert_eq!(first(address, &mapped), wish + COUNT);
        assert!(super::mapped("         0          0 4294967295\n").is_empty());
        assert!(free(address.into(), &[(0, u32::MAX)]).next().is_none());
    }
}
