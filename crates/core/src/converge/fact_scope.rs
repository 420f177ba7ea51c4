//! Which facts of a node are gathered for a decision: those of the desired and of the managed
//! resources. Home directories are found while gathering.

use std::collections::BTreeSet;

use super::resource::Resource;
use super::state::State;
use super::system::{HOSTNAME, HOSTS, LOCALTIME, NETWORK, NOTICE, RESOLV, TIMEZONE, ZONES};
use super::{access, platform, sshd};

/// The facts to gather, besides those of every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactScope {
    /// Packages.
    pub packages: BTreeSet<String>,
    /// Users, with their key files.
    pub users: BTreeSet<String>,
    /// Units.
    pub units: BTreeSet<String>,
    /// Files.
    pub files: BTreeSet<String>,
    /// Directories whose files are read.
    pub directories: BTreeSet<String>,
    /// Kernel settings.
    pub sysctl: BTreeSet<String>,
    /// Owners and groups of desired files.
    pub owners: BTreeSet<(String, String)>,
    /// Whether network facts are gathered.
    pub network: bool,
}

impl FactScope {
    /// Collects the scope of the desired resources and of what is managed.
    pub fn of(desired: &[Resource], last: &State) -> Self {
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
        for resource in desired {
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
