//! Recorded nodes, selected by name or pattern, and SSH connections to them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use homestak_core::doc::timeouts::Limit;
use homestak_core::observed::GuestKind;
use homestak_core::plan::{DEFAULT_USER, NodeRecord};
use homestak_engine::journal::{Journal, Scope};
use homestak_engine::ports::PortError;
use homestak_providers::ssh::{INSTALL, Ssh, SshError};

use crate::error::DriverError;
use crate::hosts::HostTraits;
use crate::runs::{RunSelector, other_site_hint, runs_of_other_sites};
use crate::seed_source::keyring;
use crate::session::Session;
use crate::settings::DriverSettings;

pub use homestak_providers::ssh::{HostKeyPolicy, MAX_OUTPUT, Stream, shell_line};

/// How often a connection is tried, and the pause in between: cloud-init restarts the SSH server of
/// a new node, which takes about a second.
const TRIES: u32 = 7;
const BETWEEN: Duration = Duration::from_millis(500);

/// A recorded node.
#[derive(Clone, Debug)]
pub struct RecordedNode {
    /// Its manifest and host.
    pub scope: Scope,
    /// Its record.
    pub record: NodeRecord,
    /// Properties of its kind of host.
    pub traits: HostTraits,
}

impl RecordedNode {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Returns the command-line options that select this node.
    pub fn options(&self) -> String {
        format!("-M {} -H {}", self.scope.manifest, self.scope.host)
    }

    /// Returns whether it is a container without first-boot data, which gets only root's keys.
    fn is_foreign_container(&self) -> bool {
        self.record.guest.kind == GuestKind::Ct && !self.traits.seeds_containers
    }
}

/// Recorded nodes.
pub struct Nodes {
    /// The nodes, by manifest, host and name.
    pub list: Vec<RecordedNode>,
    /// Hints for when there are none.
    hints: Vec<String>,
}

/// Returns the recorded nodes of the site, sorted by manifest, host and name.
pub async fn all(
    journal: &dyn Journal,
    session: &Session,
    which: &RunSelector,
) -> Result<Nodes, DriverError> {
    let (manifest, host) = (which.manifest.as_deref(), which.host.as_deref());
    let mut scopes: BTreeSet<Scope> = BTreeSet::new();
    let site = session.id()?;
    let runs = journal.runs(manifest).await?;
    for head in runs.into_iter().filter(|run| run.is_of(site)) {
        scopes.extend(head.scopes());
    }
    scopes.retain(|scope| host.is_none_or(|host| host == scope.host));
    let mut list = Vec::new();
    for scope in scopes {
        for record in journal.records(&scope).await? {
            list.push(RecordedNode {
                traits: session.catalog.traits_of(&scope.host),
                scope: scope.clone(),
                record,
            });
        }
    }
    let mut hints = Vec::new();
    if list.is_empty() {
        let others = runs_of_other_sites(manifest, host.as_slice(), journal, Some(site)).await?;
        hints.extend(others.iter().map(other_site_hint));
        hints.push(format!(
            "{} records no such node of this site; a user's commands and those under sudo have \
             state directories of their own",
            session.state.display()
        ));
        hints.push("homestak manifest apply -M NAME -H HOST creates nodes".to_owned());
    }
    Ok(Nodes { list, hints })
}

/// Returns the selected node.
pub async fn one(
    journal: &dyn Journal,
    session: &Session,
    node: &str,
    which: &RunSelector,
) -> Result<RecordedNode, DriverError> {
    named(&all(journal, session, which).await?, node).cloned()
}

/// Returns the nodes that match names and patterns, each once, in the order of `nodes`.
pub fn select(nodes: &Nodes, wanted: &[String]) -> Result<Vec<RecordedNode>, DriverError> {
    let known = &nodes.list;
    let mut chosen: BTreeSet<usize> = BTreeSet::new();
    let patterns = wanted.iter().flat_map(|pattern| pattern.split(','));
    for pattern in patterns
        .map(str::trim)
        .filter(|pattern| !pattern.is_empty())
    {
        if !pattern.contains(['*', '?']) {
            let one = named(nodes, pattern)?;
            chosen.extend(known.iter().position(|node| std::ptr::eq(node, one)));
            continue;
        }
        let fits = |node: &RecordedNode| fits(pattern, node.name());
        let fitting = known.iter().enumerate().filter(|(_, node)| fits(node));
        let fitting: Vec<usize> = fitting.map(|(at, _)| at).collect();
        if fitting.is_empty() {
            return Err(none(nodes, format!("No node matches `{pattern}`.")));
        }
        chosen.extend(fitting);
    }
    if chosen.is_empty() {
        return Err(none(nodes, "No node is named.".to_owned()));
    }
    Ok(chosen.into_iter().map(|at| known[at].clone()).collect())
}

/// Returns the only node of a name.
pub fn named<'k>(nodes: &'k Nodes, name: &str) -> Result<&'k RecordedNode, DriverError> {
    let known = &nodes.list;
    let found: Vec<&RecordedNode> = known.iter().filter(|node| node.name() == name).collect();
    match found.as_slice() {
        [] if known.is_empty() => Err(none(nodes, format!("There is no node `{name}`."))),
        [] => {
            let names: BTreeSet<&str> = known.iter().map(RecordedNode::name).collect();
            Err(DriverError::unknown("node", name, names.into_iter()))
        }
        [one] => Ok(one),
        several => {
            let error =
                DriverError::usage(format!("There are several nodes `{name}`; choose one."));
            Err(several
                .iter()
                .fold(error, |error, node| error.hint(node.options())))
        }
    }
}

fn none(nodes: &Nodes, message: String) -> DriverError {
    let error = DriverError::failed(message);
    if nodes.list.is_empty() {
        return nodes.hints.iter().fold(error, DriverError::hint);
    }
    let names: BTreeSet<&str> = nodes.list.iter().map(RecordedNode::name).collect();
    let names: Vec<&str> = names.into_iter().collect();
    error.hint(format!("available: {}", names.join(", ")))
}

/// Returns whether a name matches a pattern with `*` and `?`.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut in_name) = (0, 0);
    // Where to continue when the part after the last star does not match.
    let mut again: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some('*') => {
                again = Some((at + 1, in_name));
                at += 1;
            }
            Some(one) if *one == '?' || *one == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => {
                let Some((after, taken)) = again else {
                    return false;
                };
                again = Some((after, taken + 1));
                (at, in_name) = (after, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|one| *one == '*')
}

/// Returns unambiguous labels: the name alone where that is enough.
pub fn labels(nodes: &[RecordedNode]) -> Vec<String> {
    let count =
        |same: &dyn Fn(&RecordedNode) -> bool| nodes.iter().filter(|node| same(node)).count();
    let label = |node: &RecordedNode| {
        let (scope, name) = (&node.scope, node.name());
        if count(&|other| other.name() == name) == 1 {
            return name.to_owned();
        }
        let manifest = &scope.manifest;
        if count(&|other| other.name() == name && other.scope.manifest == *manifest) == 1 {
            return format!("{manifest}/{name}");
        }
        format!("{manifest}/{}/{name}", scope.host)
    };
    nodes.iter().map(label).collect()
}

/// An SSH connection to a node.
#[derive(Clone, Debug)]
pub struct NodeConnection {
    /// The SSH client.
    pub ssh: Ssh,
    /// How its host key is verified.
    pub trust: HostKeyPolicy,
    node: RecordedNode,
    address: IpAddr,
    user: String,
    known_hosts: String,
    key: String,
}

/// Prepares the connection to a node.
pub fn connection(
    node: &RecordedNode,
    session: &Session,
    settings: &DriverSettings,
) -> Result<NodeConnection, DriverError> {
    let name = node.name();
    if node.traits.is_simulated {
        return Err(
            DriverError::refused(format!("`{name}` is simulated, and has no SSH."))
                .hint("nodes on this machine do: homestak manifest apply -M NAME -H local"),
        );
    }
    let Some(address) = node.record.address else {
        return Err(
            DriverError::failed(format!("The address of `{name}` is not known yet.")).hint(
                format!(
                    "homestak manifest status {} shows its progress",
                    node.options()
                ),
            ),
        );
    };
    let keyring = keyring(settings);
    let failed = |error: PortError| {
        let made = DriverError::failed(format!("Cannot {}: {}.", error.doing, error.detail));
        if error.hint.is_empty() {
            made
        } else {
            made.hint(error.hint)
        }
    };
    keyring.driver_key().map_err(failed)?;
    let uuid = &node.record.guest.uuid;
    let (trust, user) = if node.is_foreign_container() {
        (HostKeyPolicy::Ask, "root".to_owned())
    } else {
        (HostKeyPolicy::Pinned, user(node, session))
    };
    let port = node.record.configured.as_ref().map_or(22, |was| was.port);
    let ssh = Ssh::to(&keyring, address, &user, uuid.as_str())
        .with_port(port)
        .with_host_key_policy(trust)
        .with_connect_timeout(settings.timeouts.of(Limit::Ssh))
        .with_config_file(settings.ssh_config.clone());
    let connection = NodeConnection {
        ssh,
        trust,
        node: node.clone(),
        address,
        user,
        known_hosts: keyring.known_hosts().display().to_string(),
        key: format!("{}.pub", keyring.driver_key_file().display()),
    };
    if trust == HostKeyPolicy::Pinned && !keyring.is_pinned(uuid).map_err(failed)? {
        return Err(connection.driver_error(&SshError::HostKeyUnknown));
    }
    Ok(connection)
}

/// Returns the login user of a node. Older versions did not record it.
fn user(node: &RecordedNode, session: &Session) -> String {
    if let Some(user) = &node.record.user {
        return user.clone();
    }
    let defaults = session.catalog.defaults();
    let user = defaults.and_then(|defaults| defaults.vm_user.as_ref());
    user.map_or_else(|| DEFAULT_USER.to_owned(), ToString::to_string)
}

impl NodeConnection {
    /// Runs work over SSH, and retries it while the node may be starting.
    pub fn with_retries<T>(
        &self,
        mut work: impl FnMut(&Ssh) -> Result<T, SshError>,
    ) -> Result<T, DriverError> {
        let mut left = TRIES;
        loop {
            left -= 1;
            match work(&self.ssh) {
                Err(error) if left > 0 && error.is_transient() => std::thread::sleep(BETWEEN),
                ended => return ended.map_err(|error| self.driver_error(&error)),
            }
        }
    }

    /// Converts an SSH error, with hints for this node.
    pub fn driver_error(&self, error: &SshError) -> DriverError {
        let (name, address, user) = (self.node.name(), self.address, &self.user);
        let uuid = &self.node.record.guest.uuid;
        let (file, key) = (&self.known_hosts, &self.key);
        match error {
            SshError::NotInstalled => DriverError::failed("ssh is not installed.").hint(INSTALL),
            SshError::Unreachable { message, .. } => {
                let status = self.node.options();
                DriverError::failed(format!("`{name}` is not reachable at {address}: {message}."))
                    .hint(format!("homestak manifest status {status} shows its state"))
                    .hint(format!("homestak console {name} works without SSH"))
            }
            SshError::HostKeyDiffers => DriverError::refused(format!(
                "The host key at {address} is not that of `{name}`."
            ))
            .hint("another machine may have this address now; nothing was sent to it")
            .hint(format!(
                "if `{name}` was given a new host key on purpose, write it after `{uuid}` in {file}"
            )),
            SshError::HostKeyUnknown if self.trust == HostKeyPolicy::Ask => DriverError::refused(
                format!("The host key of `{name}` is not confirmed yet."),
            )
            .hint(format!("homestak ssh {name} {} asks for confirmation", self.node.options())),
            SshError::HostKeyUnknown => {
                DriverError::refused(format!("The host key of `{name}` is not known to this driver."))
                    .hint(format!("another driver created the node, or {file} was deleted"))
                    .hint(format!(
                        "read /etc/ssh/ssh_host_ed25519_key.pub at its console, and write it after `{uuid}` in {file}"
                    ))
            }
            SshError::Denied { message } => {
                DriverError::failed(format!("`{name}` denies access to `{user}`: {message}.")).hint(
                    format!("it must accept the key {key}; a node created by another driver has another key"),
                )
            }
            SshError::OutputTooLarge { .. } => {
                DriverError::failed(format!("The output of `{name}` is too large: {error}."))
            }
            SshError::TimedOut { .. } => {
                DriverError::failed(format!("`{name}` did not answer in time: {error}."))
            }
            SshError::Failed { message } => {
                DriverError::failed(format!("Cannot run anything on `{name}`: {message}."))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let yes = [
            ("*", ""),
            ("*", "web"),
            ("w*", "web"),
            ("*-1", "worker-1"),
            ("w*r-?", "worker-1"),
            ("**b", "web"),
            ("*a*b*c*", "xaxbxbxc"),
        ];
        for (pattern, name) in yes {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        let no = [
            ("w*", "db"),
            ("?", ""),
            ("?", "ab"),
            ("*a", "ab"),
            ("a*b", "a"),
        ];
        for (pattern, name) in no {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
