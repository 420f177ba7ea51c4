//! Paths kept and put back, services and the network brought back to what they were.
//!
//! In: a way back. Out: copies; then the node as it was, and what could not be put back.
//! Never: a stop at the first thing that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use homestak_core::converge::{NetworkFact, Step, WayBack};
use serde::{Deserialize, Serialize};

use super::Kept;
use crate::act::act;
use crate::error::AgentError;
use crate::files::{self, Staged};
use crate::gather::network;
use crate::{clock, process};

/// What was at a path.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Found {
    Nothing,
    File {
        /// Name of the copy.
        copy: String,
        mode: u32,
        owner: (u32, u32),
    },
    Directory {
        mode: u32,
        owner: (u32, u32),
    },
    Link {
        target: String,
    },
    /// Something that no step touches.
    Other,
}

/// Copies what is at the paths of a way back, and reaches the disk with it.
pub(super) fn copy(way: &WayBack, copies: &Path) -> Result<BTreeMap<String, Found>> {
    fs_err::create_dir_all(copies)?;
    let mut found = BTreeMap::new();
    for path in &way.paths {
        // Directories that are made on the way to a file go with it.
        for ancestor in Path::new(path).ancestors() {
            let text = ancestor.to_string_lossy().into_owned();
            if found.contains_key(&text) {
                break;
            }
            let n_found = found.len();
            let what = look(ancestor, copies, n_found)?;
            let is_there = !matches!(what, Found::Nothing);
            if text == *path || !is_there {
                found.insert(text, what);
            }
            if is_there {
                break;
            }
        }
    }
    let directory = fs_err::File::open(copies)?;
    rustix::fs::syncfs(&directory)?;
    Ok(found)
}

fn look(path: &Path, copies: &Path, nth: usize) -> Result<Found> {
    let meta = match fs_err::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Found::Nothing);
        }
        Err(error) => return Err(error),
    };
    let mode = meta.permissions().mode() & 0o7777;
    let owner = (meta.uid(), meta.gid());
    let kind = meta.file_type();
    Ok(if kind.is_symlink() {
        let target = fs_err::read_link(path)?;
        Found::Link {
            target: target.to_string_lossy().into_owned(),
        }
    } else if kind.is_dir() {
        Found::Directory { mode, owner }
    } else if kind.is_file() {
        let copy = nth.to_string();
        fs_err::copy(path, copies.join(&copy))?;
        Found::File { copy, mode, owner }
    } else {
        Found::Other
    })
}

/// Goes back, and returns what could not be put back.
pub(super) fn go(kept: &Kept, copies: &Path) -> BTreeSet<String> {
    let mut stuck = BTreeSet::new();
    // What is inside comes before what it is in.
    for (path, found) in kept.found.iter().rev() {
        if let Err(error) = put(path, found, &kept.way, copies) {
            stuck.insert(format!("`{path}`: {error}"));
        }
    }
    let same_boot = kept.boot == clock::boot();
    for step in &kept.way.steps {
        let done = if same_boot {
            act(step, &mut Staged::default())
        } else {
            at_boot(step)
        };
        if let Err(error) = done {
            stuck.insert(error.message());
        }
    }
    if let Some(network) = &kept.way.network {
        let done = if same_boot {
            set_network(network)
        } else {
            clear_network(network)
        };
        if let Err(error) = done {
            stuck.insert(error.message());
        }
    }
    stuck
}

fn put(path: &str, found: &Found, way: &WayBack, copies: &Path) -> Result<()> {
    let place = Path::new(path);
    match found {
        Found::Nothing => remove(place, way.homes.contains(path)),
        Found::File { copy, mode, owner } => {
            let content = fs_err::read(copies.join(copy))?;
            let same = fs_err::symlink_metadata(place).is_ok_and(|meta| {
                meta.is_file()
                    && meta.permissions().mode() & 0o7777 == *mode
                    && (meta.uid(), meta.gid()) == *owner
            });
            if same && fs_err::read(place)? == content {
                return Ok(());
            }
            files::put_back(place, &content, *mode, *owner)
        }
        Found::Directory { mode, owner } => {
            fs_err::create_dir_all(place)?;
            std::os::unix::fs::chown(place, Some(owner.0), Some(owner.1))?;
            fs_err::set_permissions(place, std::fs::Permissions::from_mode(*mode))
        }
        Found::Link { target } => files::link(path, target).map_err(std::io::Error::other),
        Found::Other => Ok(()),
    }
}

fn remove(path: &Path, with_everything: bool) -> Result<()> {
    let done = match fs_err::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() && with_everything => fs_err::remove_dir_all(path),
        Ok(meta) if meta.is_dir() => match fs_err::remove_dir(path) {
            // Someone else put something there.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            done => done,
        },
        Ok(_) => fs_err::remove_file(path),
        Err(error) => Err(error),
    };
    match done {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(())
        }
        done => done,
    }
}

/// While the machine boots, what reads files has not begun, and waiting for it would not end.
fn at_boot(step: &Step) -> std::result::Result<(), AgentError> {
    match step {
        Step::Start { unit } => {
            process::must(&["systemctl", "start", "--no-block", "--", unit])?;
            Ok(())
        }
        Step::Stop { unit } => {
            process::must(&["systemctl", "stop", "--no-block", "--", unit])?;
            Ok(())
        }
        Step::Network { .. } | Step::Reload { .. } | Step::Restart { .. } => Ok(()),
        Step::Packages { .. }
        | Step::CreateUser { .. }
        | Step::OpenUser { .. }
        | Step::Directory { .. }
        | Step::Write { .. }
        | Step::Link { .. }
        | Step::Delete { .. }
        | Step::Hostname { .. }
        | Step::Sysctl { .. }
        | Step::ReadUnits
        | Step::Disable { .. }
        | Step::Enable { .. }
        | Step::LeaveGroup { .. }
        | Step::CloseUser { .. } => act(step, &mut Staged::default()),
    }
}

/// Takes away what a card has kept over a boot, as cards of containers do. The right addresses come
/// when the network is set up.
fn clear_network(was: &NetworkFact) -> std::result::Result<(), AgentError> {
    let is = network()?;
    for address in is
        .addresses
        .iter()
        .filter(|one| !was.addresses.contains(one))
    {
        process::must(&["ip", "address", "delete", address, "dev", &was.interface])?;
    }
    if is.gateway.is_some() && is.gateway != was.gateway {
        process::run(&["ip", "route", "delete", "default"])?;
    }
    Ok(())
}

/// Waits until the network is what it was. What its own configuration does not bring back, such as
/// an address that was given by hand, is given again.
fn set_network(was: &NetworkFact) -> std::result::Result<(), AgentError> {
    for n_looks in 0..50 {
        let is = network()?;
        let same = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
        let (addresses, wanted) = (same(&is.addresses), same(&was.addresses));
        if addresses == wanted && is.gateway == was.gateway {
            return Ok(());
        }
        clock::moment(200);
        if n_looks < 20 {
            continue;
        }
        let card = &was.interface;
        for address in wanted.difference(&addresses) {
            process::must(&["ip", "address", "replace", address, "dev", card])?;
        }
        for address in addresses.difference(&wanted) {
            process::must(&["ip", "address", "delete", address, "dev", card])?;
        }
        match &was.gateway {
            Some(gateway) => {
                process::must(&[
                    "ip", "route", "replace", "default", "via", gateway, "dev", card,
                ])?;
            }
            None => {
                process::run(&["ip", "route", "delete", "default"])?;
            }
        }
    }
    Err(AgentError::Step {
        step: format!("set up {}", was.interface),
        said: "its addresses are not what they were".to_owned(),
    })
}
