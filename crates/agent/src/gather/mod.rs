//! What this machine is like, gathered once.
//!
//! In: a [`Scope`]. Out: [`Facts`].
//! Never: a change; a program started more often than once.

mod network;
mod system;

use std::collections::BTreeMap;
use std::path::Path;

use homestak_core::converge::{Facts, FileFact, KEY_FILES, NetworkManager, Scope, UnitFact};

pub(crate) use self::network::network;
pub(crate) use self::system::{Accounts, sysctl_path};
use crate::error::AgentError;
use crate::path::{self, Fault, Found};
use crate::process;

/// Larger files are none of ours.
pub(crate) const LARGEST_FILE: u64 = 4 << 20;
/// Who sets the network up.
const NETWORKD: &str = "systemd-networkd.service";

/// Looks at the machine. Programs run beside each other: most of their time is waiting.
pub(crate) fn gather(scope: &Scope) -> Result<Facts, AgentError> {
    std::thread::scope(|threads| {
        let mut names = scope.units.clone();
        if scope.network {
            names.insert(NETWORKD.to_owned());
        }
        let units = threads.spawn(|| all_units(names.into_iter().collect()));
        let sshd = threads.spawn(system::sshd);
        let cards = threads.spawn(|| match scope.network {
            true => network::network().map(Some),
            false => Ok(None),
        });
        let mut facts = files_and_accounts(scope)?;
        facts.units = joined(units)?;
        (facts.sshd, facts.sshd_fault) = joined(sshd)?;
        if let Some(network) = joined(cards)? {
            facts.network = network;
            let networkd = facts.units.get(NETWORKD);
            if networkd.is_some_and(|unit| unit.active_state == "active") {
                facts.network.manager = NetworkManager::Networkd;
            }
        }
        Ok(facts)
    })
}

fn joined<T>(
    thread: std::thread::ScopedJoinHandle<'_, Result<T, AgentError>>,
) -> Result<T, AgentError> {
    let failed = |_| AgentError::Look {
        what: "this machine".to_owned(),
        source: "a thread of the agent died".into(),
    };
    thread.join().map_err(failed)?
}

/// Looks at what no program is needed for.
fn files_and_accounts(scope: &Scope) -> Result<Facts, AgentError> {
    let accounts = system::Accounts::read()?;
    let mut facts = Facts {
        system: system::release(),
        hostname: system::hostname(),
        ..Facts::default()
    };
    let (packages, faults) = system::packages(&scope.packages)?;
    facts.packages = packages;
    facts.dpkg_faults = faults;
    let mut paths = scope.files.clone();
    for name in &scope.users {
        if let Some(user) = accounts.user(name) {
            paths.extend(key_paths(&user.home));
            facts.users.insert(name.clone(), user);
        }
    }
    for directory in &scope.directories {
        paths.extend(inside(directory));
    }
    for path in paths {
        match file(&path, &accounts) {
            Ok(Some(found)) => {
                facts.files.insert(path, found);
            }
            Ok(None) => {}
            // One path that cannot be looked at does not keep us from all others.
            Err(fault) => {
                facts.refused.insert(path, fault.source.to_string());
            }
        }
    }
    for key in &scope.sysctl {
        if let Some(value) = system::sysctl(key) {
            facts.sysctl.insert(key.clone(), value);
        }
    }
    Ok(facts)
}

/// Returns what is looked at in the home of a user.
fn key_paths(home: &str) -> Vec<String> {
    let files = KEY_FILES.iter().map(|name| format!("{home}/{name}"));
    files.collect()
}

fn inside(directory: &str) -> Vec<String> {
    let held = path::directory(Path::new(directory));
    let names = held.ok().and_then(|held| held.names().ok());
    let names = names.into_iter().flatten();
    names
        .filter_map(|name| Some(format!("{directory}/{}", name.to_str()?)))
        .collect()
}

/// Looks at a path. `None` when nothing is there.
fn file(path: &str, accounts: &Accounts) -> Result<Option<FileFact>, Fault> {
    let (directory, name) = match path::parent(Path::new(path)) {
        Err(fault) if path::is_missing(&fault.source) => return Ok(None),
        opened => opened?,
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
            Found::File(file, stat) => FileFact::Regular {
                content: match directory.is_readable(&stat) {
                    true => path::read(&file, LARGEST_FILE)?
                        .and_then(|bytes| String::from_utf8(bytes).ok()),
                    false => None,
                },
                mode: path::mode(&stat),
                owner: accounts.user_name(stat.st_uid),
                group: accounts.group_name(stat.st_gid),
            },
            Found::Other => FileFact::Other,
        }))
    });
    looked.map_err(|source| Fault {
        source,
        by_user: true,
    })
}

/// Looks at units, and at what starts them.
fn all_units(wanted: Vec<String>) -> Result<BTreeMap<String, UnitFact>, AgentError> {
    let mut known = units(&wanted)?;
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
        let value = |key: &str| {
            let mut lines = block.lines();
            let line = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().to_owned()
        };
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
