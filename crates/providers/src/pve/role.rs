//! The minimal roles for a version of Proxmox VE, as `pveum` commands.

use std::collections::BTreeSet;

/// What the token must be allowed to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Virtual machines.
    pub vms: bool,
    /// Containers.
    pub containers: bool,
    /// Images that the host fetches itself, on these hosts.
    pub downloads: Vec<String>,
    /// Storages of disks.
    pub storages: Vec<String>,
    /// Storages of images and first-boot data.
    pub images: Vec<String>,
}

/// Privileges on a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Such as `/vms`.
    pub path: String,
    /// The role's name.
    pub role: &'static str,
    /// The privileges, sorted.
    pub privileges: BTreeSet<&'static str>,
}

/// Returns whether the privileges were tested: those for version 9 on the simulator, where each one
/// is required. Those for version 8 are from the documentation.
pub fn is_verified(major: u32) -> bool {
    major == 9
}

/// Returns the name of the role a privilege belongs to.
pub fn role_of(privilege: &str) -> &'static str {
    match privilege.split('.').next() {
        Some("VM") => "HomestakGuests",
        Some("Datastore") => match privilege {
            "Datastore.Allocate" | "Datastore.AllocateTemplate" => "HomestakImages",
            _ => "HomestakStorage",
        },
        Some("SDN") => "HomestakNetwork",
        _ => "HomestakHosts",
    }
}

/// Returns what has to be granted.
pub fn grants(major: u32, abilities: &Abilities) -> Vec<Grant> {
    let mut guests = BTreeSet::from([
        "VM.Allocate",
        "VM.Audit",
        "VM.Config.CPU",
        "VM.Config.Disk",
        "VM.Config.Memory",
        "VM.Config.Network",
        "VM.Config.Options",
        "VM.PowerMgmt",
    ]);
    if abilities.vms {
        guests.extend(["VM.Config.CDROM", "VM.Config.HWType"]);
        // Version 9 split the one privilege for the agent into several.
        guests.insert(if major >= 9 {
            "VM.GuestAgent.Audit"
        } else {
            "VM.Monitor"
        });
    }
    let mut grants = vec![Grant {
        path: "/vms".to_owned(),
        role: "HomestakGuests",
        privileges: guests,
    }];
    for storage in &abilities.storages {
        grants.push(Grant {
            path: format!("/storage/{storage}"),
            role: "HomestakStorage",
            // Without Audit, a storage is missing from the resource list that plans are made from.
            privileges: BTreeSet::from(["Datastore.AllocateSpace", "Datastore.Audit"]),
        });
    }
    for storage in &abilities.images {
        grants.push(Grant {
            path: format!("/storage/{storage}"),
            role: "HomestakImages",
            // Allocate is what removing the seed needs.
            privileges: BTreeSet::from([
                "Datastore.Allocate",
                "Datastore.AllocateTemplate",
                "Datastore.Audit",
            ]),
        });
    }
    grants.push(Grant {
        path: "/sdn/zones/localnetwork".to_owned(),
        role: "HomestakNetwork",
        privileges: BTreeSet::from(["SDN.Use"]),
    });
    for host in &abilities.downloads {
        grants.push(Grant {
            path: format!("/nodes/{host}"),
            role: "HomestakHosts",
            privileges: BTreeSet::from(["Sys.AccessNetwork"]),
        });
    }
    grants
}

/// Renders the commands that create the roles, the user, the token and the grants. The grants name
/// both user and token: a token has at most the privileges of its user, and none by default.
pub fn render(grants: &[Grant], user: &str, token: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut made = BTreeSet::new();
    for grant in grants {
        if made.insert(grant.role) {
            let privileges: Vec<&str> = grant.privileges.iter().copied().collect();
            commands.push(format!(
                "pveum role add {} --privs {}",
                grant.role,
                privileges.join(",")
            ));
        }
    }
    commands.push(format!("pveum user add {user}"));
    commands.push(format!("pveum user token add {user} {token} --privsep 1"));
    for grant in grants {
        commands.push(render_grant(grant, user, token));
    }
    commands
}

/// Renders the command for one grant.
pub fn render_grant(grant: &Grant, user: &str, token: &str) -> String {
    format!(
        "pveum acl modify {} --roles {} --users {user} --tokens '{user}!{token}'",
        grant.path, grant.role
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Abilities {
        Abilities {
            vms: true,
            containers: true,
            downloads: vec!["pve1".to_owned()],
            storages: vec!["local".to_owned(), "local-zfs".to_owned()],
            images: vec!["local".to_owned()],
        }
    }

    #[test]
    fn versions_differ_in_the_agents_privilege() {
        let nine = grants(9, &all());
        let eight = grants(8, &all());
        assert!(nine[0].privileges.contains("VM.GuestAgent.Audit"));
        assert!(!nine[0].privileges.contains("VM.Monitor"));
        assert!(eight[0].privileges.contains("VM.Monitor"));
        assert!(
            !eight[0]
                .privileges
                .iter()
                .any(|name| name.starts_with("VM.GuestAgent"))
        );
    }

    #[test]
    fn containers_alone_need_less() {
        let abilities = Abilities {
            containers: true,
            storages: vec!["local".to_owned()],
            ..Abilities::default()
        };
        let grants = grants(9, &abilities);
        assert_eq!(grants.len(), 3);
        assert!(!grants[0].privileges.contains("VM.Config.CDROM"));
    }

    #[test]
    fn the_commands_name_user_and_token() {
        let commands = render(&grants(9, &all()), "homestak@pve", "driver");
        assert_eq!(
            commands.first().map(String::as_str),
            Some(
                "pveum role add HomestakGuests --privs VM.Allocate,VM.Audit,VM.Config.CDROM,\
                 VM.Config.CPU,VM.Config.Disk,VM.Config.HWType,VM.Config.Memory,VM.Config.Network,\
                 VM.Config.Options,VM.GuestAgent.Audit,VM.PowerMgmt"
            )
        );
        assert!(commands.contains(
            &"pveum acl modify /storage/local-zfs --roles HomestakStorage --users homestak@pve \
              --tokens 'homestak@pve!driver'"
                .to_owned()
        ));
        let added = |role: &str| {
            let start = format!("pveum role add {role} ");
            commands
                .iter()
                .filter(|line| line.starts_with(&start))
                .count()
        };
        assert_eq!((added("HomestakStorage"), added("HomestakImages")), (1, 1));
        let granted = commands
            .iter()
            .filter(|line| line.contains("/storage/local "));
        assert_eq!(granted.count(), 2, "the roles of one path add up");
    }
}
