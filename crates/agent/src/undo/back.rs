//! Paths kept and put back, services and the network brought back to what they were. What fails is
//! reported, and everything else is still put back.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Result};
use std::path::Path;

use homestak_api::durable::Access;
use homestak_core::converge::{NetworkFact, Step, UndoPlan};
use serde::{Deserialize, Serialize};

use super::{Kept, processes};
use crate::act::act;
use crate::error::AgentError;
use crate::files::{self, Staged};
use crate::gather::{Accounts, LARGEST_FILE, network};
use crate::path::{self, Directory, Fault, Keeper};
use crate::{clock, process, state};

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
    /// A file that a user made too large to be copied.
    Large,
    /// Something that no step touches.
    Other,
}

/// Copies what is at the paths of a way back, and reaches the disk with it.
pub(super) fn copy(way: &UndoPlan, copies: &Path) -> Result<BTreeMap<String, Found>> {
    let copies = path::directory(copies)?;
    let mut found = BTreeMap::new();
    for path in &way.paths {
        // Directories that are made on the way to a file go with it.
        for ancestor in Path::new(path).ancestors() {
            let text = ancestor.to_string_lossy().into_owned();
            if found.contains_key(&text) {
                break;
            }
            let n_found = found.len();
            let what = match look(ancestor, &copies, n_found) {
                // A user's own doing does not keep changes of others from being kept.
                Err(fault) if fault.by_user => Found::Other,
                looked => looked?,
            };
            let is_there = !matches!(what, Found::Nothing);
            if text == *path || !is_there {
                found.insert(text, what);
            }
            if is_there {
                break;
            }
        }
    }
    rustix::fs::syncfs(&copies)?;
    Ok(found)
}

fn look(path: &Path, copies: &Directory, nth: usize) -> std::result::Result<Found, Fault> {
    if path.parent().is_none() {
        return Ok(Found::Other);
    }
    let Some((directory, name)) = path::existing_parent(path)? else {
        return Ok(Found::Nothing);
    };
    let looked = directory.look(&name).and_then(|found| {
        Ok(match found {
            path::Found::Nothing => Found::Nothing,
            path::Found::Other => Found::Other,
            path::Found::Link(target) => Found::Link {
                target: target.to_string_lossy().into_owned(),
            },
            path::Found::Directory(stat) => Found::Directory {
                mode: path::mode(&stat),
                owner: (stat.st_uid, stat.st_gid),
            },
            path::Found::File(file, stat) => {
                // What a user makes of a file may be as large as a disk.
                let largest = match directory.keeper() {
                    Keeper::Root => u64::MAX - 1,
                    Keeper::User(_) | Keeper::Shared => LARGEST_FILE,
                };
                let Some(content) = path::read(&file, largest)? else {
                    return Ok(Found::Large);
                };
                let copy = nth.to_string();
                copies.write(copy.as_ref(), &content, Access::PRIVATE)?;
                Found::File {
                    copy,
                    mode: path::mode(&stat),
                    owner: (stat.st_uid, stat.st_gid),
                }
            }
        })
    });
    looked.map_err(|source| directory.fault(source))
}

/// What could not be put back.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    pub(super) words: BTreeSet<String>,
    /// Whether any of it is not a user's own doing, so that it may work later.
    pub(super) may_pass: bool,
}

impl Stuck {
    pub(super) fn add(&mut self, words: String, by_user: bool) {
        self.words.insert(words);
        self.may_pass |= !by_user;
    }
}

/// The way back, gone until nothing is left of it.
pub(super) struct Reversal<'a> {
    kept: &'a Kept,
    copies: &'a Path,
    pub(super) same_boot: bool,
    /// Steps that are still to do.
    steps: Vec<&'a Step>,
    /// Paths that were not put back by the last try.
    left: BTreeSet<&'a str>,
}

impl<'a> Reversal<'a> {
    pub(super) fn new(kept: &'a Kept, copies: &'a Path) -> Self {
        Self {
            kept,
            copies,
            same_boot: kept.boot == clock::boot(),
            steps: kept.way.steps.iter().collect(),
            left: BTreeSet::new(),
        }
    }

    /// Returns steps that are still to do so that what was put back is read.
    pub(super) fn pending(&self) -> impl Iterator<Item = Step> {
        let follow = self.steps.iter().filter(|step| step.follows_files());
        follow.map(|step| (*step).clone())
    }

    /// Goes back as far as no earlier try did, and returns what could not be put back.
    pub(super) fn go(&mut self) -> Stuck {
        let kept = self.kept;
        let mut stuck = Stuck::default();
        let users = made(&kept.way);
        // They could write into what is removed.
        for (user, group) in &users {
            processes::end(*user);
            // Whatever of theirs is left anywhere belongs to nobody else.
            if let Err(error) = state::retire([*user, *group]) {
                stuck.add(error.message(), false);
            }
        }
        let mut left = BTreeSet::new();
        // What is inside comes before what it is in.
        for (path, found) in kept.found.iter().rev() {
            if let Err(error) = put(path, found, &kept.way, self.copies) {
                // Users can keep what is theirs from being put back.
                let by_user = path::is_users(Path::new(path));
                stuck.add(format!("`{path}`: {error}"), by_user);
                left.insert(path.as_str());
            }
        }
        if left != self.left {
            // Files that were put back later are read later.
            self.steps = kept.way.steps.iter().collect();
            self.left = left;
        }
        // Nobody logs in as a user who is not there.
        for (user, _) in users {
            if !processes::end(user) {
                stuck.add(format!("processes of user {user} did not end"), true);
            }
        }
        let same_boot = self.same_boot;
        self.steps.retain(|step| {
            let done = if same_boot {
                act(step, &mut Staged::default())
            } else {
                at_boot(step)
            };
            done.map_err(|error| stuck.add(error.message(), false))
                .is_err()
        });
        if let Some(network) = &kept.way.network {
            let done = if same_boot {
                set_network(network)
            } else {
                clear_network(network)
            };
            if let Err(error) = done {
                stuck.add(error.message(), false);
            }
        }
        stuck
    }
}

/// Returns the numbers of the users that the steps made, and of their groups.
fn made(way: &UndoPlan) -> Vec<(u32, u32)> {
    let Ok(accounts) = Accounts::read() else {
        return Vec::new();
    };
    let homes = way.homes.iter();
    let names = homes.filter_map(|home| Path::new(home).file_name()?.to_str());
    let numbers = names.filter_map(|name| accounts.ids(name, ""));
    numbers.filter(|(user, _)| *user != 0).collect()
}

fn put(path: &str, found: &Found, way: &UndoPlan, copies: &Path) -> Result<()> {
    let place = Path::new(path);
    match found {
        Found::Nothing => remove(place, way.homes.contains(path)),
        Found::File { copy, mode, owner } => {
            let content = fs_err::read(copies.join(copy))?;
            if let Ok(path::Found::File(file, stat)) = path::look(place)
                && path::mode(&stat) == *mode
                && (stat.st_uid, stat.st_gid) == *owner
            {
                let length = u64::try_from(content.len()).unwrap_or_default();
                if path::read(&file, length)?.as_deref() == Some(content.as_slice()) {
                    return Ok(());
                }
            }
            files::put(place, &content, *mode, *owner)
        }
        Found::Directory { mode, owner } => {
            let (directory, name) = path::make_parent(place)?;
            directory.set_directory(&name, *mode, *owner)
        }
        Found::Link { target } => files::link(path, target),
        Found::Large => match path::look(place)? {
            // It was not replaced.
            path::Found::File(file, _) if path::read(&file, LARGEST_FILE)?.is_none() => Ok(()),
            _ => Err(std::io::Error::other("it was too large to be kept")),
        },
        Found::Other => Ok(()),
    }
}

fn remove(path: &Path, with_everything: bool) -> Result<()> {
    let Some((directory, name)) = path::existing_parent(path)? else {
        return Ok(());
    };
    match directory.look(&name)? {
        path::Found::Nothing => Ok(()),
        path::Found::Directory(_) if with_everything => directory.remove_all(&name),
        path::Found::Directory(_) => match directory.remove_empty(&name) {
            // Someone else put something there.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            done => done,
        },
        path::Found::File(..) | path::Found::Link(_) | path::Found::Other => {
            directory.remove(&name)
        }
    }
}

/// While the machine boots, what reads files has not begun, and waiting for it would not end.
fn at_boot(step: &Step) -> std::result::Result<(), AgentError> {
    match step {
        Step::Start { unit } => without_waiting("start", unit),
        Step::Stop { unit } => without_waiting("stop", unit),
        Step::DaemonReload => act(step, &mut Staged::default()),
        step if step.follows_files() => Ok(()),
        step => act(step, &mut Staged::default()),
    }
}

fn without_waiting(verb: &str, unit: &str) -> std::result::Result<(), AgentError> {
    process::must(&["systemctl", verb, "--no-block", "--", unit])?;
    Ok(())
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

#[cfg(test)]
mod tests {
    use homestak_core::converge::UndoPlan;

    use super::{BTreeSet, copy, put};

    #[test]
    fn a_file_that_was_too_large_to_be_kept_does_not_count_as_put_back() {
        // Everyone may write above it, so that it is in the hands of users.
        let all = tempfile::tempdir().unwrap();
        let shared = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs_err::set_permissions(all.path(), shared).unwrap();
        let copies = tempfile::tempdir().unwrap();
        let path = all.path().join("large");
        let file = fs_err::File::create(&path).unwrap();
        file.set_len((4 << 20) + 1).unwrap();
        let name = path.to_str().unwrap().to_owned();
        let way = UndoPlan {
            paths: BTreeSet::from([name.clone()]),
            ..UndoPlan::default()
        };
        let found = copy(&way, copies.path()).unwrap();
        put(&name, &found[&name], &way, copies.path()).unwrap();
        fs_err::write(&path, "of the spec").unwrap();
        let stuck = put(&name, &found[&name], &way, copies.path()).unwrap_err();
        assert_eq!(stuck.to_string(), "it was too large to be kept");
    }
}
