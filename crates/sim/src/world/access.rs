//! Permissions: users, tokens, groups, roles, access lists and privilege separation.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::serde_helpers::Keyword;
use super::state::State;

/// All privileges of the simulated version.
pub(crate) const PRIVILEGES: [&str; 47] = [
    "Datastore.Allocate",
    "Datastore.AllocateSpace",
    "Datastore.AllocateTemplate",
    "Datastore.Audit",
    "Group.Allocate",
    "Mapping.Audit",
    "Mapping.Modify",
    "Mapping.Use",
    "Permissions.Modify",
    "Pool.Allocate",
    "Pool.Audit",
    "Realm.Allocate",
    "Realm.AllocateUser",
    "SDN.Allocate",
    "SDN.Audit",
    "SDN.Use",
    "Sys.AccessNetwork",
    "Sys.Audit",
    "Sys.Console",
    "Sys.Incoming",
    "Sys.Modify",
    "Sys.PowerMgmt",
    "Sys.Syslog",
    "User.Modify",
    "VM.Allocate",
    "VM.Audit",
    "VM.Backup",
    "VM.Clone",
    "VM.Config.CDROM",
    "VM.Config.CPU",
    "VM.Config.Cloudinit",
    "VM.Config.Disk",
    "VM.Config.HWType",
    "VM.Config.Memory",
    "VM.Config.Network",
    "VM.Config.Options",
    "VM.Console",
    "VM.GuestAgent.Audit",
    "VM.GuestAgent.FileRead",
    "VM.GuestAgent.FileSystemMgmt",
    "VM.GuestAgent.FileWrite",
    "VM.GuestAgent.Unrestricted",
    "VM.Migrate",
    "VM.PowerMgmt",
    "VM.Replicate",
    "VM.Snapshot",
    "VM.Snapshot.Rollback",
];

/// Whether a privilege exists.
pub(crate) fn is_privilege(name: &str) -> bool {
    PRIVILEGES.contains(&name)
}

/// Returns the built-in roles, derived from the names of the privileges.
fn special_roles() -> BTreeMap<String, BTreeSet<String>> {
    let select = |wanted: &dyn Fn(&str) -> bool| -> BTreeSet<String> {
        PRIVILEGES
            .iter()
            .filter(|p| wanted(p))
            .map(|p| (*p).to_owned())
            .collect()
    };
    let under = |prefixes: &'static [&'static str]| {
        select(&move |p: &str| prefixes.iter().any(|prefix| p.starts_with(prefix)))
    };
    let named = |names: &'static [&'static str]| select(&move |p: &str| names.contains(&p));
    let not_admin = [
        "Permissions.Modify",
        "Realm.Allocate",
        "Sys.AccessNetwork",
        "Sys.Incoming",
        "Sys.Modify",
        "Sys.PowerMgmt",
        "Mapping.Modify",
    ];
    let user = [
        "VM.Audit",
        "VM.Backup",
        "VM.Config.CDROM",
        "VM.Config.Cloudinit",
        "VM.Console",
        "VM.GuestAgent.Audit",
        "VM.GuestAgent.FileRead",
        "VM.GuestAgent.FileSystemMgmt",
        "VM.GuestAgent.FileWrite",
        "VM.PowerMgmt",
    ];
    [
        ("Administrator", select(&|_| true)),
        ("NoAccess", BTreeSet::new()),
        ("PVEAdmin", select(&|p| !not_admin.contains(&p))),
        ("PVEAuditor", select(&|p| p.ends_with(".Audit"))),
        ("PVEVMAdmin", under(&["VM."])),
        ("PVEVMUser", select(&|p| user.contains(&p))),
        ("PVETemplateUser", named(&["VM.Audit", "VM.Clone"])),
        ("PVEPoolAdmin", under(&["Pool."])),
        ("PVEPoolUser", named(&["Pool.Audit"])),
        ("PVEDatastoreAdmin", under(&["Datastore."])),
        (
            "PVEDatastoreUser",
            named(&["Datastore.AllocateSpace", "Datastore.Audit"]),
        ),
        ("PVESDNAdmin", under(&["SDN."])),
        ("PVESDNUser", named(&["SDN.Audit", "SDN.Use"])),
        (
            "PVESysAdmin",
            named(&["Sys.Audit", "Sys.Console", "Sys.Syslog"]),
        ),
        (
            "PVEUserAdmin",
            named(&["Group.Allocate", "Realm.AllocateUser", "User.Modify"]),
        ),
        ("PVEMappingAdmin", under(&["Mapping."])),
        ("PVEMappingUser", named(&["Mapping.Audit", "Mapping.Use"])),
    ]
    .into_iter()
    .map(|(name, privileges)| (name.to_owned(), privileges))
    .collect()
}

/// A token of a user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Token {
    pub(crate) secret: String,
    pub(crate) privilege_separation: bool,
    pub(crate) expire: i64,
    pub(crate) comment: Option<String>,
}

/// A user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) password: Option<String>,
    pub(crate) enabled: bool,
    pub(crate) expire: i64,
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) groups: BTreeSet<String>,
    pub(crate) tokens: BTreeMap<String, Token>,
}

/// One entry of the access list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) path: String,
    /// `user`, `group` or `token`, as PVE prints it.
    #[serde(deserialize_with = "super::serde_helpers::keyword")]
    pub(crate) kind: Keyword,
    pub(crate) subject: String,
    pub(crate) role: String,
    pub(crate) propagate: bool,
}

/// Users, groups, roles and the access list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Access {
    pub(crate) users: BTreeMap<String, User>,
    pub(crate) groups: BTreeMap<String, String>,
    pub(crate) roles: BTreeMap<String, BTreeSet<String>>,
    pub(crate) special: BTreeSet<String>,
    pub(crate) grants: Vec<Grant>,
}

impl Default for Access {
    fn default() -> Self {
        let roles = special_roles();
        let root = User {
            enabled: true,
            ..User::default()
        };
        Self {
            users: BTreeMap::from([("root@pam".to_owned(), root)]),
            groups: BTreeMap::new(),
            special: roles.keys().cloned().collect(),
            roles,
            grants: Vec::new(),
        }
    }
}

/// Privileges, each with whether it propagates.
pub(crate) type Privileges = BTreeMap<String, bool>;

impl Access {
    /// Adds a token, and its user if it does not exist.
    pub(crate) fn add_token(&mut self, user: &str, name: &str, secret: &str, separated: bool) {
        let user = self.users.entry(user.to_owned()).or_insert_with(|| User {
            enabled: true,
            ..User::default()
        });
        let token = Token {
            secret: secret.to_owned(),
            privilege_separation: separated,
            expire: 0,
            comment: None,
        };
        user.tokens.insert(name.to_owned(), token);
    }

    /// Returns the privileges of an identity on a path. `pools` are the pools of the guest or
    /// storage that the path refers to.
    pub(crate) fn privileges<'a>(
        &self,
        identity: &str,
        path: &str,
        pools: impl IntoIterator<Item = &'a str>,
    ) -> Privileges {
        let mut all = self.direct(identity, path);
        for pool in pools {
            for (name, passed) in self.direct(identity, &format!("/pool/{pool}")) {
                all.entry(name).or_insert(passed);
            }
        }
        all
    }

    /// Whether an identity has a privilege on a path.
    pub(crate) fn has<'a>(
        &self,
        identity: &str,
        path: &str,
        pools: impl IntoIterator<Item = &'a str>,
        name: &str,
    ) -> bool {
        // Fast path: this is checked for every call, mostly for root, who has all privileges.
        let (user, token) = identity.split_once('!').unwrap_or((identity, ""));
        let separated = || {
            let owner = self.users.get(user);
            let token = owner.and_then(|owner| owner.tokens.get(token));
            token.is_none_or(|token| token.privilege_separation)
        };
        if user == "root@pam" && is_privilege(name) && (token.is_empty() || !separated()) {
            return true;
        }
        self.privileges(identity, path, pools).contains_key(name)
    }

    fn direct(&self, identity: &str, path: &str) -> Privileges {
        let Some((user, token)) = identity.split_once('!') else {
            return self.of_user(identity, path);
        };
        let owner = self.of_user(user, path);
        let separated = self
            .users
            .get(user)
            .and_then(|owner| owner.tokens.get(token))
            .is_none_or(|token| token.privilege_separation);
        if !separated {
            return owner;
        }
        let own = self.along(
            path,
            |grant| grant.kind == "token" && grant.subject == identity,
            |_| false,
        );
        owner
            .into_iter()
            .filter(|(name, _)| own.contains_key(name))
            .collect()
    }

    fn of_user(&self, user: &str, path: &str) -> Privileges {
        if user == "root@pam" {
            return PRIVILEGES.iter().map(|p| ((*p).to_owned(), true)).collect();
        }
        let Some(known) = self.users.get(user).filter(|user| user.enabled) else {
            return Privileges::new();
        };
        self.along(
            path,
            |grant| grant.kind == "user" && grant.subject == user,
            |grant| grant.kind == "group" && known.groups.contains(&grant.subject),
        )
    }

    /// Walks down the path. At each level, the entries there replace the inherited privileges.
    fn along(
        &self,
        path: &str,
        own: impl Fn(&Grant) -> bool,
        group: impl Fn(&Grant) -> bool,
    ) -> Privileges {
        let mut current = Privileges::new();
        let mut levels = vec!["/".to_owned()];
        let mut prefix = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            prefix = format!("{prefix}/{part}");
            levels.push(prefix.clone());
        }
        let last = levels.len() - 1;
        for (at, level) in levels.iter().enumerate() {
            let here = |wanted: &dyn Fn(&Grant) -> bool| -> Vec<&Grant> {
                self.grants
                    .iter()
                    .filter(|grant| grant.path == *level && (at == last || grant.propagate))
                    .filter(|grant| wanted(grant))
                    .collect()
            };
            let mut found = here(&own);
            if found.is_empty() {
                found = here(&group);
            }
            if found.is_empty() {
                continue;
            }
            current.clear();
            if found.iter().any(|grant| grant.role == "NoAccess") {
                continue;
            }
            for grant in found {
                for name in self.roles.get(&grant.role).into_iter().flatten() {
                    let passed = current.entry(name.clone()).or_insert(grant.propagate);
                    *passed |= grant.propagate;
                }
            }
        }
        current
    }
}

impl State {
    /// Returns the pools of the guest or storage that a path refers to.
    fn pools_of(&self, path: &str) -> Vec<&str> {
        if let Some(vmid) = path.strip_prefix("/vms/") {
            let pool = vmid.parse().ok().and_then(|vmid| self.pool_of.get(&vmid));
            return pool.map(String::as_str).into_iter().collect();
        }
        let Some(name) = path.strip_prefix("/storage/") else {
            return Vec::new();
        };
        let holds = |storages: &BTreeSet<String>| storages.contains(name);
        let pools = self.pool_storages.iter();
        pools
            .filter(|(_, storages)| holds(storages))
            .map(|(pool, _)| pool.as_str())
            .collect()
    }

    /// Returns the privileges of an identity on a path, including those through pools.
    pub(crate) fn privileges(&self, identity: &str, path: &str) -> Privileges {
        self.access.privileges(identity, path, self.pools_of(path))
    }

    /// Whether an identity has a privilege on a path, directly or through a pool.
    pub(crate) fn allows(&self, identity: &str, path: &str, name: &str) -> bool {
        self.access.has(identity, path, self.pools_of(path), name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        let mut access = Access::default();
        let token = |separated| Token {
            secret: "s".into(),
            privilege_separation: separated,
            expire: 0,
            comment: None,
        };
        let mut user = User {
            enabled: true,
            ..User::default()
        };
        user.tokens.insert("sep".into(), token(true));
        user.tokens.insert("full".into(), token(false));
        access.users.insert("ops@pve".into(), user);
        access.grants.push(Grant {
            path: "/vms".into(),
            kind: "user",
            subject: "ops@pve".into(),
            role: "PVEVMAdmin".into(),
            propagate: true,
        });
        access
    }

    #[test]
    fn a_separated_token_has_no_privileges_of_its_own_until_granted() {
        let mut access = access();
        assert!(
            access
                .privileges("ops@pve!sep", "/vms/100", None)
                .is_empty()
        );
        assert!(
            access
                .privileges("ops@pve!full", "/vms/100", None)
                .contains_key("VM.Allocate")
        );
        access.grants.push(Grant {
            path: "/vms".into(),
            kind: "token",
            subject: "ops@pve!sep".into(),
            role: "PVETemplateUser".into(),
            propagate: true,
        });
        let both = access.privileges("ops@pve!sep", "/vms/100", None);
        assert!(both.contains_key("VM.Clone") && !both.contains_key("VM.Allocate"));
    }

    #[test]
    fn an_entry_on_a_longer_path_replaces_inherited_privileges() {
        let mut access = access();
        access.grants.push(Grant {
            path: "/vms/100".into(),
            kind: "user",
            subject: "ops@pve".into(),
            role: "NoAccess".into(),
            propagate: true,
        });
        assert!(access.privileges("ops@pve", "/vms/100", None).is_empty());
        assert!(!access.privileges("ops@pve", "/vms/101", None).is_empty());
    }

    #[test]
    fn the_auditor_role_has_only_audit_privileges() {
        let roles = special_roles();
        assert_eq!(roles["PVEAuditor"].len(), 7);
        assert_eq!(roles["Administrator"].len(), 47);
    }
}
