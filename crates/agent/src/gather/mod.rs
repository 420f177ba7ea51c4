//! What this machine is like, gathered once.
//!
//! In: a [`Scope`]. Out: [`Facts`].
//! Never: a change; a program started more often than once.

mod network;
mod system;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use homestak_core::converge::{Facts, FileFact, NetworkManager, Scope, UnitFact};

pub(crate) use self::network::network;
pub(crate) use self::system::sysctl_path;
use crate::error::AgentError;
use crate::process;

/// Larger files are none of ours.
const LARGEST_FILE: u64 = 4 << 20;
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
            let directory = format!("{}/.ssh", user.home);
            paths.insert(format!("{directory}/authorized_keys"));
            paths.insert(directory);
            facts.users.insert(name.clone(), user);
        }
    }
    for directory in &scope.directories {
        paths.extend(inside(directory));
    }
    for path in paths {
        if let Some(found) = file(&path, &accounts)? {
            facts.files.insert(path, found);
        }
    }
    for key in &scope.sysctl {
        if let Some(value) = system::sysctl(key) {
            facts.sysctl.insert(key.clone(), value);
        }
    }
    Ok(facts)
}

fn inside(directory: &str) -> Vec<String> {
    let entries = fs_err::read_dir(directory);
    let names = entries.into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.path().to_str().map(str::to_owned))
        .collect()
}

/// Looks at a path. `None` when nothing is there.
fn file(path: &str, accounts: &system::Accounts) -> Result<Option<FileFact>, AgentError> {
    let failed = |source: std::io::Error| AgentError::Look {
        what: format!("`{path}`"),
        source: source.into(),
    };
    let meta = match fs_err::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let mode = meta.permissions().mode() & 0o7777;
    let owner = accounts.user_name(meta.uid());
    let group = accounts.group_name(meta.gid());
    let kind = meta.file_type();
    Ok(Some(if kind.is_symlink() {
        let target = fs_err::read_link(path).map_err(failed)?;
        FileFact::Link {
            target: target.to_string_lossy().into_owned(),
        }
    } else if kind.is_dir() {
        FileFact::Directory { mode, owner, group }
    } else if kind.is_file() {
        let content = if meta.len() > LARGEST_FILE {
            None
        } else {
            String::from_utf8(fs_err::read(path).map_err(failed)?).ok()
        };
        FileFact::Regular {
            content,
            mode,
            owner,
            group,
        }
    } else {
        FileFact::Other
    }))
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
