//! Release, packages, accounts, SSH server and kernel settings. Users of a directory service are not
//! managed, so only local files are read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use homestak_core::converge::{PackageFact, SystemFact, UserFact};

use crate::error::AgentError;
use crate::process;

pub(super) fn release() -> SystemFact {
    let text = fs_err::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| value(&text, key).trim_matches('"').to_owned();
    SystemFact {
        id: value("ID"),
        version: value("VERSION_ID"),
        systemd: Path::new("/run/systemd/system").is_dir(),
    }
}

/// Returns the value of a `KEY=VALUE` line, or an empty string.
pub(super) fn value<'t>(text: &'t str, key: &str) -> &'t str {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_default()
}

/// Returns the host name of this machine.
pub(crate) fn hostname() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

/// The installed packages, and the errors in the package database, one per line.
type Packages = (BTreeMap<String, PackageFact>, String);

/// Returns which of the packages are installed, and the errors in the package database. It is read
/// directly, since `dpkg-query` takes longer than everything else.
pub(super) fn packages(wanted: &BTreeSet<String>) -> Result<Packages, AgentError> {
    let path = "/var/lib/dpkg/status";
    let bytes = fs_err::read(path).map_err(AgentError::observe("packages"))?;
    let (installed, mut errors) = read_packages(&String::from_utf8_lossy(&bytes), wanted);
    let interrupted = fs_err::read_dir("/var/lib/dpkg/updates")
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().bytes().all(|b| b.is_ascii_digit())
        });
    if interrupted {
        errors.push("dpkg was interrupted".to_owned());
    }
    Ok((installed, errors.join("\n")))
}

fn read_packages(
    text: &str,
    wanted: &BTreeSet<String>,
) -> (BTreeMap<String, PackageFact>, Vec<String>) {
    let mut installed = BTreeMap::new();
    let mut errors = Vec::new();
    for block in text.split("\n\n") {
        let [mut name, mut status, mut architecture, mut version] = [""; 4];
        for line in block.lines() {
            let Some((field, value)) = line.split_once(": ") else {
                continue;
            };
            match field {
                "Package" => name = value,
                "Status" => status = value,
                "Architecture" => architecture = value,
                "Version" => version = value,
                _ => {}
            }
        }
        let mut words = status.split_whitespace().skip(1);
        let (error, state) = (words.next(), words.next());
        match state {
            Some("installed") => {
                for name in [name.to_owned(), format!("{name}:{architecture}")] {
                    if wanted.contains(&name) {
                        let version = version.to_owned();
                        installed.insert(name, PackageFact { version });
                    }
                }
            }
            Some("not-installed" | "config-files") | None => {}
            Some(_) => errors.push(format!("{name} is half installed")),
        }
        if error == Some("reinstreq") {
            errors.push(format!("{name} must be installed again"));
        }
    }
    (installed, errors)
}

/// Parses `passwd`, `group` or `shadow` into rows of columns. Users can set some columns (`chfn`),
/// even to invalid UTF-8.
pub(crate) fn parse_account_rows(bytes: &[u8]) -> Vec<Vec<String>> {
    let text = String::from_utf8_lossy(bytes);
    text.split('\n')
        .map(|line| line.split(':').map(str::to_owned).collect())
        .collect()
}

/// Users and groups of this machine.
pub(crate) struct Accounts {
    users: Vec<Vec<String>>,
    groups: Vec<Vec<String>>,
    /// The day on which each account expires, in days since 1970.
    expiry_days: BTreeMap<String, i64>,
}

impl Accounts {
    pub(crate) fn read() -> Result<Self, AgentError> {
        let table = |path: &str| {
            let bytes = fs_err::read(path).map_err(AgentError::observe(&format!("`{path}`")));
            bytes.map(|bytes| parse_account_rows(&bytes))
        };
        let expiry_days = table("/etc/shadow")?
            .iter()
            .filter_map(|row| Some((row.first()?.clone(), row.get(7)?.parse().ok()?)))
            .collect();
        Ok(Self {
            users: table("/etc/passwd")?,
            groups: table("/etc/group")?,
            expiry_days,
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
            id: row.get(2)?.parse().ok(),
            group: self.group_name(row.get(3)?.parse().ok()?),
            group_id: row.get(3)?.parse().ok(),
            home: row.get(5)?.clone(),
            shell: row.get(6)?.clone(),
            groups: groups.filter_map(|row| row.first().cloned()).collect(),
            expired: self.expiry_days.get(name).is_some_and(|day| *day <= today),
        })
    }

    /// Returns the ids of a user and a group, by default the user's own group.
    pub(crate) fn ids(&self, user: &str, group: &str) -> Option<(u32, u32)> {
        let number = |rows: &[Vec<String>], name: &str, column: usize| {
            let row = rows
                .iter()
                .find(|row| row.first().is_some_and(|first| first == name));
            let known = row.and_then(|row| row.get(column)?.parse().ok());
            // `#ID` stands for an id without a name.
            known.or_else(|| name.strip_prefix('#')?.parse().ok())
        };
        let of_group = match group {
            "" => number(&self.users, user, 3),
            group => number(&self.groups, group, 2),
        };
        Some((number(&self.users, user, 2)?, of_group?))
    }

    /// Returns which of an owner and a group do not exist.
    pub(super) fn missing(&self, owner: &str, group: &str) -> Vec<String> {
        let mut missing = Vec::new();
        if self.ids(owner, "").is_none() && self.ids(owner, "root").is_none() {
            missing.push(format!("user {owner}"));
        }
        if !group.is_empty() && self.ids("root", group).is_none() {
            missing.push(format!("group {group}"));
        }
        missing
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

/// The settings of the SSH server (`None`: not installed), and its error or an empty string.
type SshdSettings = (Option<BTreeMap<String, Vec<String>>>, String);

/// Returns the effective settings of the SSH server.
pub(super) fn sshd() -> Result<SshdSettings, AgentError> {
    if !Path::new("/usr/sbin/sshd").exists() {
        return Ok((None, String::new()));
    }
    let output = process::run(&["/usr/sbin/sshd", "-T"])?;
    let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    if output.code != Some(0) {
        return Ok((Some(settings), output.reason()));
    }
    for line in output.out.lines() {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        let values = settings.entry(name.to_owned()).or_default();
        values.push(value.to_owned());
    }
    Ok((Some(settings), String::new()))
}

/// Returns the path of a kernel setting; `None` for an invalid name.
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

/// Returns why a kernel setting cannot be changed, if so. It is opened for writing, but not written.
pub(super) fn readonly_sysctl(key: &str) -> Option<String> {
    let path = sysctl_path(key)?;
    let opened = fs_err::OpenOptions::new().write(true).open(path);
    let why = match opened.err()?.kind() {
        std::io::ErrorKind::NotFound => return None,
        std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied => {
            "it belongs to the machine that this node runs on"
        }
        _ => "it cannot be written",
    };
    Some(why.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Accounts, BTreeMap, parse_account_rows, read_packages};

    #[test]
    fn invalid_utf8_in_one_account_hides_no_other() {
        let users = b"root:x:0:0::/root:/bin/bash\nalice:x:1001:1001:\xff:/home/alice:/bin/sh\nbob:x:1002:1002::/home/bob:/bin/sh\n";
        let accounts = Accounts {
            users: parse_account_rows(users),
            groups: parse_account_rows(b"root:x:0:\nalice:x:1001:\xe9\nbob:x:1002:\n"),
            expiry_days: BTreeMap::new(),
        };
        assert_eq!(accounts.user("alice").unwrap().home, "/home/alice");
        assert_eq!(accounts.ids("bob", ""), Some((1002, 1002)));
        assert_eq!(accounts.group_name(1001), "alice");
    }

    #[test]
    fn packages_are_read_with_their_errors() {
        let text = "Package: tree\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.1.0-1\nDescription: lists\n Package: not this\n\nPackage: cron\nStatus: deinstall ok config-files\nVersion: 3\n\nPackage: sudo\nStatus: install reinstreq half-installed\nVersion: 1\n";
        let wanted: BTreeSet<String> = ["tree", "tree:amd64", "cron", "sudo"]
            .map(str::to_owned)
            .into();
        let (installed, errors) = read_packages(text, &wanted);
        let names: Vec<_> = installed.keys().cloned().collect();
        assert_eq!(names, ["tree", "tree:amd64"]);
        assert_eq!(installed["tree"].version, "2.1.0-1");
        assert_eq!(
            errors,
            ["sudo is half installed", "sudo must be installed again"]
        );
    }
}
