//! Collects the facts that decisions are made from. Changes nothing.

mod network;
mod system;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::thread::{Builder, ScopedJoinHandle};

use homestak_core::converge::{
    Danger, FactScope, Facts, FileFact, KEY_FILES, NetworkManager, UnitFact,
};

pub(crate) use self::network::network;
pub(crate) use self::system::{Accounts, hostname, parse_account_rows, sysctl_path};
use crate::error::AgentError;
use crate::path::{self, Entry, PathError, WritableBy};
use crate::systemctl;

/// Larger files are not managed.
pub(crate) const LARGEST_FILE: u64 = 4 << 20;
/// Larger key files are refused.
const LARGEST_KEYS: u64 = 256 << 10;
/// The network manager that the agent configures.
const NETWORKD: &str = "systemd-networkd.service";

/// Observes the machine. Programs run in parallel.
pub(crate) fn collect(scope: &FactScope) -> Result<Facts, AgentError> {
    let mut names = scope.units.clone();
    if scope.network {
        names.insert(NETWORKD.to_owned());
    }
    let names: Vec<String> = names.into_iter().collect();
    let units = || all_units(&names);
    let interfaces = || match scope.network {
        true => network::network().map(Some),
        false => Ok(None),
    };
    std::thread::scope(|threads| {
        let units = in_thread(threads, Builder::new(), &units);
        let sshd = in_thread(threads, Builder::new(), &system::sshd);
        let interfaces = in_thread(threads, Builder::new(), &interfaces);
        let mut facts = files_and_accounts(scope)?;
        facts.units = units.joined()?;
        (facts.sshd, facts.sshd_error) = sshd.joined()?;
        if let Some(network) = interfaces.joined()? {
            facts.network = network;
            let networkd = facts.units.get(NETWORKD);
            if networkd.is_some_and(|unit| unit.active_state == "active") {
                facts.network.manager = NetworkManager::Networkd;
            }
        }
        Ok(facts)
    })
}

/// Work in a thread, or its result.
enum Task<'scope, T> {
    Thread(ScopedJoinHandle<'scope, Result<T, AgentError>>),
    Done(Result<T, AgentError>),
}

/// Does work in a thread; synchronously if none can be created, which a user can cause.
fn in_thread<'scope, T: Send + 'scope>(
    threads: &'scope std::thread::Scope<'scope, '_>,
    builder: Builder,
    work: &'scope (impl Fn() -> Result<T, AgentError> + Sync),
) -> Task<'scope, T> {
    match builder.spawn_scoped(threads, work) {
        Ok(thread) => Task::Thread(thread),
        Err(_) => Task::Done(work()),
    }
}

impl<T> Task<'_, T> {
    fn joined(self) -> Result<T, AgentError> {
        let failed = AgentError::observe("this machine");
        match self {
            Self::Thread(thread) => thread
                .join()
                .map_err(|_| failed("a thread of the agent panicked"))?,
            Self::Done(done) => done,
        }
    }
}

/// Observes everything that needs no program.
fn files_and_accounts(scope: &FactScope) -> Result<Facts, AgentError> {
    let accounts = system::Accounts::read()?;
    let mut facts = Facts {
        system: system::release(),
        hostname: system::hostname(),
        ..Facts::default()
    };
    let (packages, errors) = system::packages(&scope.packages)?;
    facts.packages = packages;
    facts.dpkg_errors = errors;
    let mut paths = scope.files.clone();
    for name in &scope.users {
        if let Some(user) = accounts.user(name) {
            paths.extend(key_paths(&user.home));
            facts.users.insert(name.clone(), user);
        }
    }
    for directory in &scope.directories {
        let (inside, unnamed) = inside(directory);
        paths.extend(inside);
        let why = || "its name is not UTF-8".to_owned();
        facts
            .refused_paths
            .extend(unnamed.into_iter().map(|path| (path, why())));
    }
    for (owner, group) in &scope.owners {
        facts.missing_owners.extend(accounts.missing(owner, group));
    }
    for path in paths {
        match file(&path, &accounts) {
            Ok(observed) => {
                if !observed.open {
                    facts.private_paths.insert(path.clone());
                }
                if observed.has_access_list {
                    facts.acl_paths.insert(path.clone());
                }
                facts
                    .files
                    .extend(observed.found.map(|found| (path, found)));
            }
            // One unreadable path does not fail the run.
            Err(error) => {
                facts.refused_paths.insert(path, error.source.to_string());
            }
        }
    }
    for key in &scope.sysctl {
        if let Some(value) = system::sysctl(key) {
            facts.sysctl.insert(key.clone(), value);
        }
        if let Some(why) = system::readonly_sysctl(key) {
            facts.readonly_sysctl.insert(key.clone(), why);
        }
    }
    Ok(facts)
}

/// Returns the key files of a user.
fn key_paths(home: &str) -> Vec<String> {
    let files = KEY_FILES.iter().map(|name| format!("{home}/{name}"));
    files.collect()
}

/// Returns the entries of a directory, and separately those whose names are not UTF-8.
fn inside(directory: &str) -> (Vec<String>, Vec<String>) {
    let opened = path::directory(Path::new(directory));
    let names = opened.ok().and_then(|directory| directory.names().ok());
    let (named, unnamed): (Vec<_>, Vec<_>) = names
        .into_iter()
        .flatten()
        .partition(|name| name.to_str().is_some());
    let path = |name: OsString| format!("{directory}/{}", name.to_string_lossy());
    (
        named.into_iter().map(path).collect(),
        unnamed.into_iter().map(path).collect(),
    )
}

/// An observed path.
struct ObservedFile {
    /// `None` if nothing is there.
    found: Option<FileFact>,
    /// Whether everyone may enter its directory.
    open: bool,
    /// Whether an access control list grants more than its mode.
    has_access_list: bool,
}

/// Observes a path.
fn file(path: &str, accounts: &Accounts) -> Result<ObservedFile, PathError> {
    let mut has_access_list = false;
    let Some((directory, name)) = path::existing_parent(Path::new(path))? else {
        return Ok(ObservedFile {
            found: None,
            open: true,
            has_access_list,
        });
    };
    let observed = directory.lookup(&name).and_then(|found| {
        Ok(Some(match found {
            Entry::Nothing => return Ok(None),
            Entry::Link(target) => FileFact::Link {
                target: target.to_string_lossy().into_owned(),
            },
            Entry::Directory(stat) => FileFact::Directory {
                mode: path::mode(&stat),
                owner: accounts.user_name(stat.st_uid),
                group: accounts.group_name(stat.st_gid),
            },
            Entry::File(file, stat) => {
                has_access_list = directory.has_access_list(&file, &stat);
                FileFact::Regular {
                    content: match directory.is_readable(&stat) {
                        true => text(path, &file, directory.writable_by())?,
                        false => None,
                    },
                    mode: path::mode(&stat),
                    owner: accounts.user_name(stat.st_uid),
                    group: accounts.group_name(stat.st_gid),
                }
            }
            Entry::Other => FileFact::Other,
        }))
    });
    let found = observed.map_err(|source| PathError {
        source,
        by_user: true,
    })?;
    Ok(ObservedFile {
        found,
        open: directory.is_open(),
        has_access_list,
    })
}

/// Reads a file, if it is text. A file that a user makes too large to be saved before a change is
/// refused.
fn text(path: &str, file: &File, writable_by: WritableBy) -> std::io::Result<Option<String>> {
    let danger = Danger::of_path(path);
    let keys = danger == Some(Danger::Users);
    let largest = if keys { LARGEST_KEYS } else { LARGEST_FILE };
    match path::read(file, largest)? {
        // The SSH server and sudo accept valid lines beside invalid ones.
        Some(bytes) if danger.is_some_and(Danger::is_protected) => {
            Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
        }
        Some(bytes) => Ok(String::from_utf8(bytes).ok()),
        None if keys || writable_by != WritableBy::Root => Err(std::io::Error::other(format!(
            "`{path}` is larger than {} KiB",
            largest >> 10
        ))),
        None => Ok(None),
    }
}

/// Observes units, and the units that trigger them.
fn all_units(wanted: &[String]) -> Result<BTreeMap<String, UnitFact>, AgentError> {
    let mut known = units(wanted)?;
    let more: Vec<String> = known
        .iter()
        // The network manager is only observed.
        .filter(|(name, _)| *name != NETWORKD)
        .flat_map(|(_, unit)| &unit.triggered_by)
        .filter(|unit| !known.contains_key(*unit))
        .cloned()
        .collect();
    if !more.is_empty() {
        known.extend(units(&more)?);
    }
    Ok(known)
}

fn units(wanted: &[String]) -> Result<BTreeMap<String, UnitFact>, AgentError> {
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut words = vec![
        "show",
        "--no-pager",
        "--property=LoadState,UnitFileState,ActiveState,TriggeredBy",
        "--",
    ];
    words.extend(wanted.iter().map(String::as_str));
    let text = systemctl::run_ok(&words)?;
    // One block per unit, in the order of the arguments.
    let blocks = text.split("\n\n");
    let mut known = BTreeMap::new();
    for (unit, block) in wanted.iter().zip(blocks) {
        let value = |key: &str| system::value(block, key).to_owned();
        if value("LoadState") == "not-found" {
            continue;
        }
        let triggers = value("TriggeredBy");
        known.insert(
            unit.clone(),
            UnitFact {
                file_state: value("UnitFileState"),
                active_state: value("ActiveState"),
                triggered_by: triggers.split_whitespace().map(str::to_owned).collect(),
            },
        );
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::{Builder, WritableBy, in_thread, text};

    const KEYS: &str = "/home/alice/.ssh/authorized_keys";

    fn read(
        path: &str,
        content: &[u8],
        size: u64,
        writable_by: WritableBy,
    ) -> Result<Option<String>, String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.set_len(size.max(content.len() as u64)).unwrap();
        file.rewind().unwrap();
        text(path, &file, writable_by).map_err(|error| error.to_string())
    }

    #[test]
    fn work_is_done_synchronously_if_no_thread_can_be_created() {
        for (stack, is_thread) in [(1 << 20, true), (1 << 60, false)] {
            let work = || Ok(std::thread::current().id());
            let by = std::thread::scope(|threads| {
                let builder = Builder::new().stack_size(stack);
                in_thread(threads, builder, &work).joined()
            });
            assert_eq!(by.unwrap() != std::thread::current().id(), is_thread);
        }
    }

    #[test]
    fn invalid_utf8_hides_no_key() {
        let content = b"ssh-ed25519 AAAA \xff\nssh-ed25519 BBBB\n";
        let found = read(KEYS, content, 0, WritableBy::User(1))
            .unwrap()
            .unwrap();
        assert_eq!(found.lines().count(), 2);
        assert!(found.contains("ssh-ed25519 AAAA "));
        assert_eq!(read("/etc/motd", content, 0, WritableBy::Root), Ok(None));
        let rules = read("/etc/sudoers.d/zz", content, 0, WritableBy::Root).unwrap();
        assert_eq!(rules.unwrap().lines().count(), 2);
    }

    #[test]
    fn a_file_that_a_user_made_too_large_is_refused() {
        for writable_by in [WritableBy::User(1), WritableBy::Root] {
            let refused = read(KEYS, b"", (256 << 10) + 1, writable_by).unwrap_err();
            assert!(refused.ends_with("is larger than 256 KiB"), "{refused}");
        }
        let size = (4 << 20) + 1;
        assert!(read("/home/alice/x", b"", size, WritableBy::User(1)).is_err());
        assert!(read("/srv/x", b"", size, WritableBy::Shared).is_err());
        assert_eq!(read("/etc/x", b"", size, WritableBy::Root), Ok(None));
    }
}
