//! What this machine is like, gathered once. Nothing is changed, and no program is started twice.

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
pub(crate) use self::system::{Accounts, hostname, rows, sysctl_path};
use crate::error::AgentError;
use crate::path::{self, Fault, Found, Keeper};
use crate::process;

/// Larger files are none of ours.
pub(crate) const LARGEST_FILE: u64 = 4 << 20;
/// Larger files of keys are refused.
const LARGEST_KEYS: u64 = 256 << 10;
/// Who sets the network up.
const NETWORKD: &str = "systemd-networkd.service";

/// Looks at the machine. Programs run beside each other: most of their time is waiting.
pub(crate) fn gather(scope: &FactScope) -> Result<Facts, AgentError> {
    let mut names = scope.units.clone();
    if scope.network {
        names.insert(NETWORKD.to_owned());
    }
    let names: Vec<String> = names.into_iter().collect();
    let units = || all_units(&names);
    let cards = || match scope.network {
        true => network::network().map(Some),
        false => Ok(None),
    };
    std::thread::scope(|threads| {
        let units = beside(threads, Builder::new(), &units);
        let sshd = beside(threads, Builder::new(), &system::sshd);
        let cards = beside(threads, Builder::new(), &cards);
        let mut facts = files_and_accounts(scope)?;
        facts.units = units.joined()?;
        (facts.sshd, facts.sshd_error) = sshd.joined()?;
        if let Some(network) = cards.joined()? {
            facts.network = network;
            let networkd = facts.units.get(NETWORKD);
            if networkd.is_some_and(|unit| unit.active_state == "active") {
                facts.network.manager = NetworkManager::Networkd;
            }
        }
        Ok(facts)
    })
}

/// Work that is done beside other work, or was done at once.
enum Beside<'scope, T> {
    Thread(ScopedJoinHandle<'scope, Result<T, AgentError>>),
    Done(Result<T, AgentError>),
}

/// Does work in a thread; at once where there is no room for one, which a user can bring about.
fn beside<'scope, T: Send + 'scope>(
    threads: &'scope std::thread::Scope<'scope, '_>,
    builder: Builder,
    work: &'scope (impl Fn() -> Result<T, AgentError> + Sync),
) -> Beside<'scope, T> {
    match builder.spawn_scoped(threads, work) {
        Ok(thread) => Beside::Thread(thread),
        Err(_) => Beside::Done(work()),
    }
}

impl<T> Beside<'_, T> {
    fn joined(self) -> Result<T, AgentError> {
        let failed = AgentError::look("this machine");
        match self {
            Self::Thread(thread) => thread
                .join()
                .map_err(|_| failed("a thread of the agent died"))?,
            Self::Done(done) => done,
        }
    }
}

/// Looks at what no program is needed for.
fn files_and_accounts(scope: &FactScope) -> Result<Facts, AgentError> {
    let accounts = system::Accounts::read()?;
    let mut facts = Facts {
        system: system::release(),
        hostname: system::hostname(),
        ..Facts::default()
    };
    let (packages, faults) = system::packages(&scope.packages)?;
    facts.packages = packages;
    facts.dpkg_errors = faults;
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
        let why = || "its name is not a text".to_owned();
        facts
            .refused_paths
            .extend(unnamed.into_iter().map(|path| (path, why())));
    }
    for (owner, group) in &scope.owners {
        facts.missing_owners.extend(accounts.missing(owner, group));
    }
    for path in paths {
        match file(&path, &accounts) {
            Ok(looked) => {
                if !looked.open {
                    facts.private_paths.insert(path.clone());
                }
                if looked.listed {
                    facts.acl_paths.insert(path.clone());
                }
                facts.files.extend(looked.found.map(|found| (path, found)));
            }
            // One path that cannot be looked at does not keep us from all others.
            Err(fault) => {
                facts.refused_paths.insert(path, fault.source.to_string());
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

/// Returns what is looked at in the home of a user.
fn key_paths(home: &str) -> Vec<String> {
    let files = KEY_FILES.iter().map(|name| format!("{home}/{name}"));
    files.collect()
}

/// Returns what is in a directory, and apart from that what has names that are no text.
fn inside(directory: &str) -> (Vec<String>, Vec<String>) {
    let held = path::directory(Path::new(directory));
    let names = held.ok().and_then(|held| held.names().ok());
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

/// What is at a path.
struct Looked {
    /// `None` when nothing is there.
    found: Option<FileFact>,
    /// Whether everyone may get there.
    open: bool,
    /// Whether a list opens it to more than its mode names.
    listed: bool,
}

/// Looks at a path.
fn file(path: &str, accounts: &Accounts) -> Result<Looked, Fault> {
    let mut listed = false;
    let Some((directory, name)) = path::existing_parent(Path::new(path))? else {
        return Ok(Looked {
            found: None,
            open: true,
            listed,
        });
    };
    let looked = directory.look(&name).and_then(|found| {
        Ok(Some(match found {
            Found::Nothing => return Ok(None),
            Found::Link(target) => FileFact::Link {
                target: target.to_string_lossy().into_owned(),
            },
            Found::Directory(stat) => FileFact::Directory {
                mode: path::mode(&stat),
                owner: accounts.user_name(stat.st_uid),
                group: accounts.group_name(stat.st_gid),
            },
            Found::File(file, stat) => {
                listed = directory.is_listed(&file, &stat);
                FileFact::Regular {
                    content: match directory.is_readable(&stat) {
                        true => text(path, &file, directory.keeper())?,
                        false => None,
                    },
                    mode: path::mode(&stat),
                    owner: accounts.user_name(stat.st_uid),
                    group: accounts.group_name(stat.st_gid),
                }
            }
            Found::Other => FileFact::Other,
        }))
    });
    let found = looked.map_err(|source| Fault {
        source,
        by_user: true,
    })?;
    Ok(Looked {
        found,
        open: directory.is_open(),
        listed,
    })
}

/// Reads a file that is a text. What a user makes too large to be kept before it is changed is
/// refused.
fn text(path: &str, file: &File, keeper: Keeper) -> std::io::Result<Option<String>> {
    let danger = Danger::of_path(path);
    let keys = danger == Some(Danger::Users);
    let largest = if keys { LARGEST_KEYS } else { LARGEST_FILE };
    match path::read(file, largest)? {
        // The SSH server and sudo read every line by itself, whatever is in others.
        Some(bytes) if danger.is_some_and(Danger::is_protected) => {
            Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
        }
        Some(bytes) => Ok(String::from_utf8(bytes).ok()),
        None if keys || keeper != Keeper::Root => Err(std::io::Error::other(format!(
            "`{path}` is larger than {} KiB",
            largest >> 10
        ))),
        None => Ok(None),
    }
}

/// Looks at units, and at what starts them.
fn all_units(wanted: &[String]) -> Result<BTreeMap<String, UnitFact>, AgentError> {
    let mut known = units(wanted)?;
    let more: Vec<String> = known
        .iter()
        // Who sets the network up is only looked at.
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
        "systemctl",
        "show",
        "--no-pager",
        "--property=LoadState,UnitFileState,ActiveState,TriggeredBy",
        "--",
    ];
    words.extend(wanted.iter().map(String::as_str));
    let text = process::must(&words)?;
    // One block for each unit, in the order they were asked for.
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

    use super::{Builder, Keeper, beside, text};

    const KEYS: &str = "/home/alice/.ssh/authorized_keys";

    fn read(
        path: &str,
        content: &[u8],
        size: u64,
        keeper: Keeper,
    ) -> Result<Option<String>, String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.set_len(size.max(content.len() as u64)).unwrap();
        file.rewind().unwrap();
        text(path, &file, keeper).map_err(|error| error.to_string())
    }

    #[test]
    fn work_is_done_in_turn_where_there_is_no_room_for_a_thread() {
        for (stack, is_thread) in [(1 << 20, true), (1 << 60, false)] {
            let work = || Ok(std::thread::current().id());
            let by = std::thread::scope(|threads| {
                let builder = Builder::new().stack_size(stack);
                beside(threads, builder, &work).joined()
            });
            assert_eq!(by.unwrap() != std::thread::current().id(), is_thread);
        }
    }

    #[test]
    fn a_byte_that_is_no_text_hides_no_key() {
        let content = b"ssh-ed25519 AAAA \xff\nssh-ed25519 BBBB\n";
        let found = read(KEYS, content, 0, Keeper::User(1)).unwrap().unwrap();
        assert_eq!(found.lines().count(), 2);
        assert!(found.contains("ssh-ed25519 AAAA "));
        assert_eq!(read("/etc/motd", content, 0, Keeper::Root), Ok(None));
        let rules = read("/etc/sudoers.d/zz", content, 0, Keeper::Root).unwrap();
        assert_eq!(rules.unwrap().lines().count(), 2);
    }

    #[test]
    fn a_file_that_a_user_makes_too_large_is_refused() {
        for keeper in [Keeper::User(1), Keeper::Root] {
            let refused = read(KEYS, b"", (256 << 10) + 1, keeper).unwrap_err();
            assert!(refused.ends_with("is larger than 256 KiB"), "{refused}");
        }
        let size = (4 << 20) + 1;
        assert!(read("/home/alice/x", b"", size, Keeper::User(1)).is_err());
        assert!(read("/srv/x", b"", size, Keeper::Shared).is_err());
        assert_eq!(read("/etc/x", b"", size, Keeper::Root), Ok(None));
    }
}
