//! What must be known of a node to decide about it.
//!
//! In: what is wanted, what is remembered. Out: a [`Scope`]: names and paths to look at.
//! Never: paths that depend on the node; homes of users are found by whoever gathers.

use std::collections::BTreeSet;

use super::resource::Resource;
use super::state::State;
use super::system::{HOSTNAME, HOSTS, LOCALTIME, NETWORK, NOTICE, RESOLV, TIMEZONE, ZONES};
use super::{access, platform, sshd};

/// What to look at, besides what every node has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Packages.
    pub packages: BTreeSet<String>,
    /// Users, with their directories of keys.
    pub users: BTreeSet<String>,
    /// Units.
    pub units: BTreeSet<String>,
    /// Files.
    pub files: BTreeSet<String>,
    /// Directories, with the files that are in them.
    pub directories: BTreeSet<String>,
    /// Settings of the kernel.
    pub sysctl: BTreeSet<String>,
    /// Owners and groups of files.
    pub owners: BTreeSet<(String, String)>,
    /// Whether the network is looked at.
    pub network: bool,
}

impl Scope {
    /// Collects what to look at.
    pub fn of(wanted: &[Resource], last: &State) -> Self {
        let mut scope = Self::default();
        let files = [HOSTNAME, HOSTS, LOCALTIME, TIMEZONE, NETWORK, RESOLV];
        let more = [
            access::SUDOERS,
            sshd::SSHD,
            platform::JAIL,
            platform::SYSCTL,
        ];
        for path in files.iter().chain(&more) {
            scope.files.insert((*path).to_owned());
        }
        for path in [access::SUDOERS_D, sshd::SSHD_D] {
            scope.directories.insert(path.to_owned());
        }
        scope.units.insert(platform::FAIL2BAN.to_owned());
        for resource in wanted {
            scope.add(resource);
        }
        let managed = &last.managed;
        scope.network |= managed.files.contains(NETWORK);
        scope.packages.extend(managed.packages.iter().cloned());
        scope.users.extend(managed.users.keys().cloned());
        scope.users.extend(managed.keys.keys().cloned());
        scope.units.extend(managed.services.iter().cloned());
        scope.files.extend(managed.files.iter().cloned());
        scope
    }

    fn add(&mut self, resource: &Resource) {
        match resource {
            Resource::Package { name, .. } => {
                self.packages.insert(name.clone());
            }
            Resource::User { name } => {
                self.users.insert(name.clone());
            }
            Resource::Keys { user, .. } | Resource::Sudo { user, .. } => {
                self.users.insert(user.clone());
            }
            Resource::Service { unit, .. } => {
                self.units.insert(unit.clone());
            }
            Resource::File {
                path,
                restart,
                owner,
                group,
                ..
            } => {
                self.files.insert(path.clone());
                self.owners.insert((owner.clone(), group.clone()));
                self.units.extend(restart.iter().cloned());
            }
            Resource::Sysctl { settings } => self.sysctl.extend(settings.keys().cloned()),
            Resource::Timezone { zone } => {
                self.files.insert(format!("{ZONES}/{zone}"));
            }
            Resource::SubscriptionNotice { .. } => {
                self.files.insert(NOTICE.to_owned());
            }
            Resource::Network { .. } => self.network = true,
            Resource::Hostname { .. }
            | Resource::Hosts { .. }
            | Resource::SudoGroups { .. }
            | Resource::Sshd { .. }
            | Resource::Fail2ban { .. }
            | Resource::Drift { .. }
            | Resource::Data { .. } => {}
        }
    }
}
