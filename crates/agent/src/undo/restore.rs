//! Saves and restores paths, services and the network. Failures are collected, and everything else is
//! still restored.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Result};
use std::path::Path;

use homestak_api::durable::Access;
use homestak_core::converge::{ConvergeStep, NetworkFact, UndoPlan};
use serde::{Deserialize, Serialize};

use super::{UndoRecord, processes};
use crate::error::AgentError;
use crate::facts::{Accounts, LARGEST_FILE, network};
use crate::files::{self, Staged};
use crate::path::{self, Directory, PathError, WritableBy};
use crate::step;
use crate::{clock, process, state, systemctl};

/// What was at a path before.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum SavedPath {
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
    /// A file of a user that is too large to be copied.
    Large,
    /// Something that no step changes.
    Other,
}

/// Saves what is at the paths that are to be restored, and syncs the copies.
pub(super) fn save(plan: &UndoPlan, copies: &Path) -> Result<BTreeMap<String, SavedPath>> {
    let copies = path::directory(copies)?;
    let mut found = BTreeMap::new();
    for path in &plan.paths {
        // Parent directories that are created are removed again.
        for ancestor in Path::new(path).ancestors() {
            let text = ancestor.to_string_lossy().into_owned();
            if found.contains_key(&text) {
                break;
            }
            let n_found = found.len();
            let what = match save_path(ancestor, &copies, n_found) {
                // An error that a user caused must not prevent the others.
                Err(error) if error.by_user => SavedPath::Other,
                saved => saved?,
            };
            let is_there = !matches!(what, SavedPath::Nothing);
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

fn save_path(
    path: &Path,
    copies: &Directory,
    nth: usize,
) -> std::result::Result<SavedPath, PathError> {
    if path.parent().is_none() {
        return Ok(SavedPath::Other);
    }
    let Some((directory, name)) = path::existing_parent(path)? else {
        return Ok(SavedPath::Nothing);
    };
    let saved = directory.lookup(&name).and_then(|found| {
        Ok(match found {
            path::Entry::Nothing => SavedPath::Nothing,
            path::Entry::Other => SavedPath::Other,
            path::Entry::Link(target) => SavedPath::Link {
                target: target.to_string_lossy().into_owned(),
            },
            path::Entry::Directory(stat) => SavedPath::Directory {
                mode: path::mode(&stat),
                owner: (stat.st_uid, stat.st_gid),
            },
            path::Entry::File(file, stat) => {
                // A user can make a file as large as the disk.
                let largest = match directory.writable_by() {
                    WritableBy::Root => u64::MAX - 1,
                    WritableBy::User(_) | WritableBy::Shared => LARGEST_FILE,
                };
                let Some(content) = path::read(&file, largest)? else {
                    return Ok(SavedPath::Large);
                };
                let copy = nth.to_string();
                copies.write(copy.as_ref(), &content, Access::PRIVATE)?;
                SavedPath::File {
                    copy,
                    mode: path::mode(&stat),
                    owner: (stat.st_uid, stat.st_gid),
                }
            }
        })
    });
    saved.map_err(|source| directory.error(source))
}

/// What could not be restored.
#[derive(Debug, Default)]
pub(super) struct RevertFailures {
    pub(super) messages: BTreeSet<String>,
    /// Whether any of it was not caused by a user, so that it may succeed later.
    pub(super) transient: bool,
}

impl RevertFailures {
    pub(super) fn add(&mut self, message: String, by_user: bool) {
        self.messages.insert(message);
        self.transient |= !by_user;
    }
}

/// A restoration, which is tried until nothing is left to do.
pub(super) struct Restore<'a> {
    record: &'a UndoRecord,
    copies: &'a Path,
    pub(super) same_boot: bool,
    /// Steps that remain.
    steps: Vec<&'a ConvergeStep>,
    /// Paths that the last attempt could not restore.
    left: BTreeSet<&'a str>,
}

impl<'a> Restore<'a> {
    pub(super) fn new(record: &'a UndoRecord, copies: &'a Path) -> Self {
        Self {
            record,
            copies,
            same_boot: record.boot == clock::boot(),
            steps: record.plan.steps.iter().collect(),
            left: BTreeSet::new(),
        }
    }

    /// Returns the remaining steps that reload restored files.
    pub(super) fn pending(&self) -> impl Iterator<Item = ConvergeStep> {
        let follow = self.steps.iter().filter(|step| step.follows_files());
        follow.map(|step| (*step).clone())
    }

    /// Restores what earlier attempts did not, and returns what failed.
    pub(super) fn attempt(&mut self) -> RevertFailures {
        let record = self.record;
        let mut failures = RevertFailures::default();
        let users = created_users(&record.plan);
        // They could write into directories that are removed.
        for (user, group) in &users {
            processes::end(*user);
            // Files of theirs that are left must not belong to another user.
            if let Err(error) = state::retire([*user, *group]) {
                failures.add(error.message(), false);
            }
        }
        let mut left = BTreeSet::new();
        // Entries before their directories.
        for (path, saved) in record.paths.iter().rev() {
            if let Err(error) = restore_path(path, saved, &record.plan, self.copies) {
                // Users can prevent their own files from being restored.
                let by_user = path::is_users(Path::new(path));
                failures.add(format!("`{path}`: {error}"), by_user);
                left.insert(path.as_str());
            }
        }
        if left != self.left {
            // Files were restored since, so they must be reloaded.
            self.steps = record.plan.steps.iter().collect();
            self.left = left;
        }
        // The account is deleted: no new processes can start.
        for (user, _) in users {
            if !processes::end(user) {
                failures.add(format!("processes of user {user} did not end"), true);
            }
        }
        let same_boot = self.same_boot;
        self.steps.retain(|step| {
            let done = if same_boot {
                step::execute(step, &mut Staged::default())
            } else {
                at_boot(step)
            };
            done.map_err(|error| failures.add(error.message(), false))
                .is_err()
        });
        if let Some(network) = &record.plan.network {
            let done = if same_boot {
                set_network(network)
            } else {
                clear_network(network)
            };
            if let Err(error) = done {
                failures.add(error.message(), false);
            }
        }
        failures
    }
}

/// Returns the ids of the users that the steps created, and of their groups.
fn created_users(plan: &UndoPlan) -> Vec<(u32, u32)> {
    let Ok(accounts) = Accounts::read() else {
        return Vec::new();
    };
    let homes = plan.homes.iter();
    let names = homes.filter_map(|home| Path::new(home).file_name()?.to_str());
    let ids = names.filter_map(|name| accounts.ids(name, ""));
    ids.filter(|(user, _)| *user != 0).collect()
}

fn restore_path(path: &str, saved: &SavedPath, plan: &UndoPlan, copies: &Path) -> Result<()> {
    let target = Path::new(path);
    match saved {
        SavedPath::Nothing => remove(target, plan.homes.contains(path)),
        SavedPath::File { copy, mode, owner } => {
            let content = fs_err::read(copies.join(copy))?;
            if let Ok(path::Entry::File(file, stat)) = path::lookup(target)
                && path::mode(&stat) == *mode
                && (stat.st_uid, stat.st_gid) == *owner
            {
                let length = u64::try_from(content.len()).unwrap_or_default();
                if path::read(&file, length)?.as_deref() == Some(content.as_slice()) {
                    return Ok(());
                }
            }
            files::put(target, &content, *mode, *owner)
        }
        SavedPath::Directory { mode, owner } => {
            let (directory, name) = path::make_parent(target)?;
            directory.set_directory(&name, *mode, *owner)
        }
        SavedPath::Link { target } => files::link(path, target),
        SavedPath::Large => match path::lookup(target)? {
            // It was not changed.
            path::Entry::File(file, _) if path::read(&file, LARGEST_FILE)?.is_none() => Ok(()),
            _ => Err(std::io::Error::other("it was too large to be saved")),
        },
        SavedPath::Other => Ok(()),
    }
}

fn remove(path: &Path, with_content: bool) -> Result<()> {
    let Some((directory, name)) = path::existing_parent(path)? else {
        return Ok(());
    };
    match directory.lookup(&name)? {
        path::Entry::Nothing => Ok(()),
        path::Entry::Directory(_) if with_content => directory.remove_all(&name),
        path::Entry::Directory(_) => match directory.remove_empty(&name) {
            // Someone else created files there.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            done => done,
        },
        path::Entry::File(..) | path::Entry::Link(_) | path::Entry::Other => {
            directory.remove(&name)
        }
    }
}

/// During boot, units have not read their files yet, and waiting for them would deadlock.
fn at_boot(step: &ConvergeStep) -> std::result::Result<(), AgentError> {
    match step {
        ConvergeStep::Start { unit } => without_waiting("start", unit),
        ConvergeStep::Stop { unit } => without_waiting("stop", unit),
        ConvergeStep::DaemonReload => step::execute(step, &mut Staged::default()),
        step if step.follows_files() => Ok(()),
        step => step::execute(step, &mut Staged::default()),
    }
}

fn without_waiting(verb: &str, unit: &str) -> std::result::Result<(), AgentError> {
    systemctl::run_ok(&[verb, "--no-block", "--", unit])?;
    Ok(())
}

/// Removes addresses that the interface kept over a reboot, as in containers. The network manager sets
/// the right ones later.
fn clear_network(was: &NetworkFact) -> std::result::Result<(), AgentError> {
    let is = network()?;
    for address in is
        .addresses
        .iter()
        .filter(|one| !was.addresses.contains(one))
    {
        process::run_ok(&["ip", "address", "delete", address, "dev", &was.interface])?;
    }
    if is.gateway.is_some() && is.gateway != was.gateway {
        process::run(&["ip", "route", "delete", "default"])?;
    }
    Ok(())
}

/// Waits until the network is restored. What its configuration does not restore, such as an address that
/// was added manually, is added again.
fn set_network(was: &NetworkFact) -> std::result::Result<(), AgentError> {
    for n_checks in 0..50 {
        let is = network()?;
        let same = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
        let (addresses, wanted) = (same(&is.addresses), same(&was.addresses));
        if addresses == wanted && is.gateway == was.gateway {
            return Ok(());
        }
        clock::sleep(200);
        if n_checks < 20 {
            continue;
        }
        let interface = &was.interface;
        for address in wanted.difference(&addresses) {
            process::run_ok(&["ip", "address", "replace", address, "dev", interface])?;
        }
        for address in addresses.difference(&wanted) {
            process::run_ok(&["ip", "address", "delete", address, "dev", interface])?;
        }
        match &was.gateway {
            Some(gateway) => {
                process::run_ok(&[
                    "ip", "route", "replace", "default", "via", gateway, "dev", interface,
                ])?;
            }
            None => {
                process::run(&["ip", "route", "delete", "default"])?;
            }
        }
    }
    Err(AgentError::Step {
        step: format!("set up {}", was.interface),
        reason: "its addresses could not be restored".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use homestak_core::converge::UndoPlan;

    use super::{BTreeSet, restore_path, save};

    #[test]
    fn a_file_that_was_too_large_to_be_saved_is_not_restored() {
        // Everyone may write to its directory.
        let all = tempfile::tempdir().unwrap();
        let shared = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs_err::set_permissions(all.path(), shared).unwrap();
        let copies = tempfile::tempdir().unwrap();
        let path = all.path().join("large");
        let file = fs_err::File::create(&path).unwrap();
        file.set_len((4 << 20) + 1).unwrap();
        let name = path.to_str().unwrap().to_owned();
        let plan = UndoPlan {
            paths: BTreeSet::from([name.clone()]),
            ..UndoPlan::default()
        };
        let saved = save(&plan, copies.path()).unwrap();
        restore_path(&name, &saved[&name], &plan, copies.path()).unwrap();
        fs_err::write(&path, "of the spec").unwrap();
        let error = restore_path(&name, &saved[&name], &plan, copies.path()).unwrap_err();
        assert_eq!(error.to_string(), "it was too large to be saved");
    }
}
