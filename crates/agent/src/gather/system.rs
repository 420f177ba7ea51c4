//! Release, packages, accounts, SSH server, kernel.
//!
//! In: files and programs of this machine. Out: parts of the facts.
//! Never: the name service: users of a directory are not ours.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use homestak_core::converge::{PackageFact, SystemFact, UserFact};

use crate::error::AgentError;
use crate::process;

pub(super) fn release() -> SystemFact {
    let text = fs_err::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default().trim_matches('"').to_owned()
    };
    SystemFact {
        id: value("ID"),
        version: value("VERSION_ID"),
        systemd: Path::new("/run/systemd/system").is_dir(),
    }
}

pub(super) fn hostname() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

type Packages = (BTreeMap<String, PackageFact>, String);

/// Returns which of the packages are installed, and what is wrong with any package.
pub(super) fn packages(wanted: &BTreeSet<String>) -> Result<Packages, AgentError> {
    let form = "--showformat=${Package}\t${Architecture}\t${db:Status-Abbrev}\t${Version}\n";
    let text = process::must(&["dpkg-query", "--show", form])?;
    let mut known = BTreeMap::new();
    let mut faults = Vec::new();
    for line in text.lines() {
        let mut parts = line.split('\t');
        let mut part = || parts.next().unwrap_or_default();
        let (name, architecture, status, version) = (part(), part(), part(), part());
        let mut marks = status.chars().skip(1);
        match marks.next() {
            Some('i') => {
                let version = version.to_owned();
                for name in [name.to_owned(), format!("{name}:{architecture}")] {
                    if wanted.contains(&name) {
                        let version = version.clone();
                        known.insert(name, PackageFact { version });
                    }
                }
            }
            Some('H' | 'U' | 'F' | 'W' | 't') => faults.push(format!("{name} is half installed")),
            _ => {}
        }
        if marks.next() == Some('R') {
            faults.push(format!("{name} must be installed again"));
        }
    }
    let interrupted = fs_err::read_dir("/var/lib/dpkg/updates")
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().bytes().all(|b| b.is_ascii_digit())
        });
    if interrupted {
        faults.push("dpkg was interrupted".to_owned());
    }
    Ok((known, faults.join("\n")))
}

/// Users and groups of this machine.
pub(super) struct Accounts {
    users: Vec<Vec<String>>,
    groups: Vec<Vec<String>>,
    ends: BTreeMap<String, i64>,
}

impl Accounts {
    pub(super) fn read() -> Result<Self, AgentError> {
        let table = |path: &str| -> Result<Vec<Vec<String>>, AgentError> {
            let text = fs_err::read_to_string(path).map_err(|source| AgentError::Look {
                what: format!("`{path}`"),
                source: source.into(),
            })?;
            let lines = text.lines();
            Ok(lines
                .map(|line| line.split(':').map(str::to_owned).collect())
                .collect())
        };
        let ends = table("/etc/shadow")?
            .iter()
            .filter_map(|row| Some((row.first()?.clone(), row.get(7)?.parse().ok()?)))
            .collect();
        Ok(Self {
            users: table("/etc/passwd")?,
            groups: table("/etc/group")?,
            ends,
        })
    }

    pub(super) fn user(&self, name: &str) -> Option<UserFact> {
        let row = self
            .users
            .iter()
            .find(|row| row.first().is_some_and(|first| first == name))?;
        let groups = self.groups.iter().filter(|row| {
            let members = row.get(3).map_or("", String::as_str);
            members.split(',').any(|member| member == name)
        });
        let today = crate::clock::now().as_second() / 86_400;
        Some(UserFact {
            group: self.group_name(row.get(3)?.parse().ok()?),
            home: row.get(5)?.clone(),
            shell: row.get(6)?.clone(),
            groups: groups.filter_map(|row| row.first().cloned()).collect(),
            expired: self.ends.get(name).is_some_and(|end| *end <= today),
        })
    }

    pub(super) fn user_name(&self, id: u32) -> String {
        name_of(&self.users, id)
    }

    pub(super) fn group_name(&self, id: u32) -> String {
        name_of(&self.groups, id)
    }
}

fn name_of(rows: &[Vec<String>], id: u32) -> String {
    let text = id.to_string();
    let found = rows.iter().find(|row| row.get(2) == Some(&text));
    found
        .and_then(|row| row.first().cloned())
        .unwrap_or_else(|| format!("#{id}"))
}

type Sshd = (Option<BTreeMap<String, Vec<String>>>, String);

/// Returns the settings of the SSH server that are in effect, or what it says against them.
pub(super) fn sshd() -> Result<Sshd, AgentError> {
    if !Path::new("/usr/sbin/sshd").exists() {
        return Ok((None, String::new()));
    }
    let ended = process::run(&["/usr/sbin/sshd", "-T"])?;
    let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    if ended.code != Some(0) {
        return Ok((Some(settings), ended.said()));
    }
    for line in ended.out.lines() {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        let values = settings.entry(name.to_owned()).or_default();
        values.push(value.to_owned());
    }
    Ok((Some(settings), String::new()))
}

/// Returns where a kernel setting is. `None` for names that are none.
pub(crate) fn sysctl_path(key: &str) -> Option<String> {
    let good = key.split('.').all(|part| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    });
    good.then(|| format!("/proc/sys/{}", key.replace('.', "/")))
}

pub(super) fn sysctl(key: &str) -> Option<String> {
    let text = fs_err::read_to_string(sysctl_path(key)?).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}
