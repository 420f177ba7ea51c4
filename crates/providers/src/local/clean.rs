//! Finds and removes leftovers of interrupted runs.
//!
//! Nodes are kept unless all nodes are to be removed. Only resources with our name prefix are
//! touched.

use std::collections::BTreeSet;
use std::fmt;

use homestak_api::durable::TEMPORARY;
use homestak_engine::ports::{GuestUuid, PortError, StopMode};

use super::lifecycle::link;
use super::{Local, cgroup, container, error, lease, net, node, saved_machine};

/// Something that belongs to no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// A directory of a node that was being created or removed.
    Directory(std::path::PathBuf),
    /// Processes and control groups, by the part's name.
    Cgroup(String),
    /// A network namespace.
    Namespace(String),
    /// An assigned address.
    Address(String, String),
    /// The bridge, the pair that leads there, rules and settings.
    Network,
    /// Directories of nspawn.
    NspawnDirectories(String),
    /// The link of a virtual machine on the bridge.
    Link(String),
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "incomplete node in {}", path.display()),
            Self::Cgroup(part) => write!(f, "processes and control groups of {part}"),
            Self::Namespace(name) => write!(f, "network namespace {name}"),
            Self::Address(address, _) => write!(f, "address {address}"),
            Self::Network => write!(f, "bridge, links and rules"),
            Self::Link(name) => write!(f, "link {name} on the bridge"),
            Self::NspawnDirectories(part) => write!(f, "directories of systemd-nspawn for {part}"),
        }
    }
}

impl Local {
    /// Finds leftovers that belong to no node.
    pub fn leftovers(&self) -> Result<Vec<Leftover>, PortError> {
        // Refuses a directory that is not ours.
        self.instance.check_marker()?;
        let nodes = node::all(&self.instance)?;
        let parts: BTreeSet<String> = nodes
            .iter()
            .map(|node| self.instance.part(node.vmid))
            .collect();
        let alone = |name: &String| !parts.contains(name);
        let mut found: Vec<Leftover> = node::incomplete(&self.instance)
            .into_iter()
            .map(Leftover::Directory)
            .collect();
        let groups = cgroup::parts(&self.hierarchies, self.instance.name());
        found.extend(groups.into_iter().filter(alone).map(Leftover::Cgroup));
        let prefix = format!("hs-{}-", self.instance.name());
        let namespaces = net::namespaces(&prefix).into_iter();
        found.extend(namespaces.filter(alone).map(Leftover::Namespace));
        found.extend(
            container::leftover_names(&prefix)
                .into_iter()
                .filter(alone)
                .map(Leftover::NspawnDirectories),
        );
        let own: BTreeSet<String> = nodes.iter().map(|node| link(node.vmid)).collect();
        let links = net::taps(self.bridge().as_deref()).into_iter();
        found.extend(links.filter(|name| !own.contains(name)).map(Leftover::Link));
        // Guests inside of nodes have addresses too; only their own host knows them.
        if !nodes.iter().any(|node| node.hosts) {
            let known: BTreeSet<&str> = nodes.iter().map(|node| node.uuid.as_str()).collect();
            let leases = lease::all(&self.instance).into_iter();
            let leases = leases.filter(|(_, holder)| !known.contains(holder.as_str()));
            found.extend(
                leases.map(|(address, holder)| Leftover::Address(address.to_string(), holder)),
            );
        }
        if nodes.is_empty() && !self.is_attached() && net::is_there(&self.instance) {
            found.push(Leftover::Network);
        }
        Ok(found)
    }

    /// Removes leftovers. An error does not stop the others from being removed.
    pub fn clean(&self) -> Result<Vec<Leftover>, PortError> {
        let found = self.leftovers()?;
        let tried = found.iter().map(|leftover| {
            let removed = self.remove_leftover(leftover);
            removed.map_err(|error| PortError {
                detail: format!("{leftover}: {}", error.detail).into(),
                ..error
            })
        });
        let mut failed: Vec<PortError> = tried.filter_map(Result::err).collect();
        failed.extend(self.clean_shared().err());
        match failed.is_empty() {
            true => Ok(found),
            false => {
                let mut first = failed.remove(0);
                first.log.extend(failed.into_iter().map(|one| one.detail));
                Err(first)
            }
        }
    }

    fn remove_leftover(&self, leftover: &Leftover) -> Result<(), PortError> {
        match leftover {
            Leftover::Directory(path) => {
                node::remove_tree(path).map_err(|error| error::io("clean up", &error))
            }
            Leftover::Cgroup(part) => {
                let group =
                    cgroup::Cgroup::new(self.hierarchies.clone(), self.instance.name(), part);
                container::stop(&group, StopMode::Now)?;
                group.remove();
                Ok(())
            }
            Leftover::Namespace(name) => net::unplug(name),
            Leftover::NspawnDirectories(part) => {
                container::remove_leftovers(part);
                Ok(())
            }
            Leftover::Link(name) => net::untap(self.bridge().as_deref(), name),
            Leftover::Address(_, holder) => match GuestUuid::new(holder) {
                Some(uuid) => lease::release(&self.instance, &uuid),
                None => Ok(()),
            },
            // Removed at the end, if nothing uses it.
            Leftover::Network => Ok(()),
        }
    }

    /// Removes shared resources that are not in use.
    fn clean_shared(&self) -> Result<(), PortError> {
        let io = |error: std::io::Error| error::io("clean up", &error);
        if !self.is_attached() {
            let swept = self.images.sweep();
            swept.map_err(|error| error.into_port_error("clean up images"))?;
            // Saved machines of deleted images.
            saved_machine::sweep(&self.instance.images(), |directory| self.is_base(directory))
                .map_err(io)?;
        }
        let turn = self.instance.lock()?;
        self.remove_half_written().map_err(io)?;
        if node::all(&self.instance)?.is_empty() {
            for (_, holder) in lease::all(&self.instance) {
                if let Some(uuid) = GuestUuid::new(&holder) {
                    lease::release(&self.instance, &uuid)?;
                }
            }
            self.remove_shared_state(turn)?;
        }
        Ok(())
    }

    /// Removes temporary files of killed processes. The caller holds the lock.
    fn remove_half_written(&self) -> std::io::Result<()> {
        for entry in fs_err::read_dir(self.instance.root())? {
            let path = entry?.path();
            if path.to_string_lossy().ends_with(TEMPORARY) {
                fs_err::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Stops and deletes a node of any manifest.
    pub fn remove(&self, node: &super::Node) -> Result<(), PortError> {
        let guest = node.reference(super::HOST);
        self.stop_node(
            &guest,
            StopMode::Graceful(std::time::Duration::from_secs(10)),
        )?;
        self.destroy_node(&guest)
    }
}
