//! First-boot data of a node: [`FirstBootConfig`] and the three files of cloud-init's NoCloud data
//! source. They are the same on every kind of host.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use zeroize::Zeroize as _;

use crate::observed::GuestUuid;
use crate::plan::DesiredGuest;

pub use self::enrolment::{
    ENROLMENT, ENROLMENT_DIRECTORY, Enrolment, NodeFile, PULL_FILES, PULL_UNIT, PULL_UNIT_LINK,
};

mod enrolment;

/// The id of the network interface in the network configuration. The interface itself keeps the name
/// that the system gives it.
const INTERFACE_ID: &str = "eth0";

/// What a node needs to know on first boot. No `Debug`: it may contain a private key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstBootConfig {
    /// The identity of its guest.
    pub uuid: GuestUuid,
    /// Its host name, which is the node's name.
    pub hostname: String,
    /// The user to create.
    pub user: String,
    /// The user's authorized SSH keys.
    pub keys: Vec<String>,
    /// The SSH host key; the node generates its own if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<HostKey>,
    /// Its MAC address.
    pub mac: String,
    /// Static address with prefix; `None` for DHCP.
    pub address: Option<(IpAddr, u8)>,
    /// Gateway.
    pub gateway: Option<IpAddr>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Packages to install.
    pub packages: Vec<String>,
    /// How the node obtains its spec from a server; `None` when the driver applies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrolment: Option<Enrolment>,
}

/// An SSH host key pair of type ed25519. No `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostKey {
    /// The private part, as `ssh-keygen` writes it.
    pub private: String,
    /// The public part: type, key and comment in one line.
    pub public: String,
}

impl Drop for HostKey {
    fn drop(&mut self) {
        self.private.zeroize();
    }
}

/// Path and content of the file that disables password authentication in sshd, with mode 0600.
pub const SSHD_NO_PASSWORDS: (&str, &str) = (
    "/etc/ssh/sshd_config.d/50-cloud-init.conf",
    "PasswordAuthentication no\n",
);

/// The three files of NoCloud. No `Debug`: user-data may contain secrets.
pub struct NoCloudFiles {
    /// Users, keys, packages.
    pub user_data: String,
    /// Instance id and host name.
    pub meta_data: String,
    /// Network configuration.
    pub network_config: String,
}

impl FirstBootConfig {
    /// Makes the first-boot configuration of a node.
    pub fn new(
        name: &str,
        wanted: &DesiredGuest,
        keys: Vec<String>,
        host_key: Option<HostKey>,
    ) -> Self {
        Self {
            uuid: wanted.uuid.clone(),
            hostname: name.to_owned(),
            user: wanted.user.clone(),
            keys,
            host_key,
            mac: wanted.nic.mac.clone(),
            address: wanted.nic.address,
            gateway: wanted.nic.gateway,
            dns: wanted.dns.clone(),
            packages: wanted.packages.clone(),
            enrolment: None,
        }
    }

    /// Renders the files.
    pub fn nocloud_files(&self) -> NoCloudFiles {
        NoCloudFiles {
            user_data: format!("#cloud-config\n{}", text(&self.user_data())),
            meta_data: text(&json!({
                // cloud-init runs its first-boot modules whenever this changes.
                "instance-id": self.uuid.as_str(),
                "local-hostname": self.hostname,
            })),
            network_config: text(&self.network_config()),
        }
    }

    fn user_data(&self) -> Json {
        let mut data = json!({
            "hostname": self.hostname,
            "manage_etc_hosts": true,
            "users": [{
                "name": self.user,
                "groups": "sudo",
                "shell": "/bin/bash",
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "lock_passwd": true,
                "ssh_authorized_keys": self.keys,
            }],
            // Written before sshd starts. `ssh_pwauth` would restart sshd after it has answered, and
            // connections made in between would fail.
            "write_files": [{
                "path": SSHD_NO_PASSWORDS.0,
                "permissions": "0600",
                "content": SSHD_NO_PASSWORDS.1,
            }],
            "package_update": true,
            "packages": self.packages,
            "runcmd": [
                "systemctl enable --now qemu-guest-agent || true",
                // The first-boot data is removed once the node is reached. Without it, cloud-init
                // would treat the next boot as a new instance and generate new host keys.
                ["touch", "/etc/cloud/cloud-init.disabled"],
            ],
        });
        if let Some(enrolment) = &self.enrolment {
            add_enrolment(&mut data, enrolment);
        }
        if let Some(key) = &self.host_key {
            // Host keys of the image are deleted: they are not private. With `ssh_keys` cloud-init
            // generates none, so this is the only one.
            data["ssh_deletekeys"] = true.into();
            data["ssh_genkeytypes"] = json!(["ed25519"]);
            data["ssh_keys"] = json!({
                "ed25519_private": key.private,
                "ed25519_public": key.public,
            });
        }
        data
    }

    /// The interface is matched by MAC address, because its name depends on the machine. It is not
    /// renamed: only cloud-init would do so, and it is disabled from the second boot on. Renderers that
    /// need a name look it up by the MAC address.
    fn network_config(&self) -> Json {
        let mut interface = json!({ "match": { "macaddress": self.mac } });
        match self.address {
            Some((address, prefix)) => {
                interface["addresses"] = json!([format!("{address}/{prefix}")]);
                if let Some(gateway) = self.gateway {
                    // The renderer of Debian 12 rejects `default`, and the machine has no network
                    // then.
                    let to = if gateway.is_ipv4() {
                        "0.0.0.0/0"
                    } else {
                        "::/0"
                    };
                    interface["routes"] = json!([{ "to": to, "via": gateway.to_string() }]);
                }
            }
            None => interface["dhcp4"] = true.into(),
        }
        if !self.dns.is_empty() {
            let dns: Vec<String> = self.dns.iter().map(ToString::to_string).collect();
            interface["nameservers"] = json!({ "addresses": dns });
        }
        json!({ "version": 2, "ethernets": { INTERFACE_ID: interface } })
    }
}

/// Adds the files and the unit with which a node that pulls obtains its spec.
fn add_enrolment(data: &mut Json, enrolment: &Enrolment) {
    // Runs before the files are written, so that only root can ever enter the directory.
    data["bootcmd"] = json!([["install", "-d", "-m", "0700", ENROLMENT_DIRECTORY]]);
    let files = enrolment.files().into_iter().map(|file| {
        json!({
            "path": file.path,
            "permissions": format!("{:04o}", file.mode),
            "content": file.content,
        })
    });
    if let Some(all) = data["write_files"].as_array_mut() {
        all.extend(files);
    }
    if let Some(commands) = data["runcmd"].as_array_mut() {
        commands.push(json!(["systemctl", "enable", "--now", PULL_UNIT]));
    }
}

/// Renders JSON, which is valid YAML.
fn text(value: &Json) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(host_key: Option<HostKey>) -> FirstBootConfig {
        FirstBootConfig {
            uuid: GuestUuid::new("5d1f2a3b-0000-4000-8000-00000000000a").expect("a UUID"),
            hostname: "web".to_owned(),
            user: "ops".to_owned(),
            keys: vec!["ssh-ed25519 AAAA ops@desk".to_owned()],
            host_key,
            mac: "02:00:00:00:00:0a".to_owned(),
            address: Some(([10, 0, 0, 7].into(), 24)),
            gateway: Some([10, 0, 0, 1].into()),
            dns: vec![[10, 0, 0, 2].into()],
            packages: vec!["nginx".to_owned()],
            enrolment: None,
        }
    }

    fn key() -> HostKey {
        HostKey {
            private: "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n".to_owned(),
            public: "ssh-ed25519 BBBB web".to_owned(),
        }
    }

    fn user_data(identity: &FirstBootConfig) -> Json {
        let text = identity.nocloud_files().user_data;
        let text = text.strip_prefix("#cloud-config\n").expect("the header");
        serde_json::from_str(text).expect("JSON, which is YAML")
    }

    #[test]
    fn passwords_are_off_before_sshd_starts_and_nothing_restarts_it_later() {
        let data = user_data(&identity(None));
        assert!(data.get("ssh_pwauth").is_none());
        let expected = json!([{
            "path": "/etc/ssh/sshd_config.d/50-cloud-init.conf",
            "permissions": "0600",
            "content": "PasswordAuthentication no\n",
        }]);
        assert_eq!(data["write_files"], expected);
    }

    #[test]
    fn a_given_host_key_is_the_only_one() {
        let data = user_data(&identity(Some(key())));
        assert_eq!(data["ssh_keys"]["ed25519_private"], key().private);
        assert_eq!(data["ssh_keys"]["ed25519_public"], key().public);
        assert_eq!(
            data["ssh_keys"].as_object().map(serde_json::Map::len),
            Some(2)
        );
        assert_eq!(data["ssh_deletekeys"], true);
    }

    #[test]
    fn without_a_host_key_cloud_init_generates_one() {
        let data = user_data(&identity(None));
        assert_eq!(data.get("ssh_keys"), None);
        assert_eq!(data.get("ssh_deletekeys"), None);
        assert_eq!(data["users"][0]["name"], "ops");
        assert_eq!(data["packages"], json!(["nginx"]));
    }

    #[test]
    fn a_node_that_pulls_has_its_files_and_starts_its_unit() {
        let pulls = FirstBootConfig {
            enrolment: Some(enrolment::tests::enrolment()),
            ..identity(None)
        };
        let data = user_data(&pulls);
        let files = data["write_files"].as_array().expect("files");
        let file = |path: &str| files.iter().find(|file| file["path"] == path);
        let enrolment = file(ENROLMENT).expect("the enrolment");
        assert_eq!(enrolment["permissions"], "0600");
        let content = enrolment["content"].as_str().expect("text");
        assert!(content.contains(enrolment::tests::TOKEN));
        let script = file("/usr/local/lib/homestak/first-boot").expect("the script");
        assert_eq!(script["permissions"], "0755");
        assert_eq!(file(SSHD_NO_PASSWORDS.0), Some(&files[0]));
        let directory = json!([["install", "-d", "-m", "0700", ENROLMENT_DIRECTORY]]);
        assert_eq!(data["bootcmd"], directory);
        let commands = data["runcmd"].as_array().expect("commands");
        let start = json!(["systemctl", "enable", "--now", "homestak-pull.service"]);
        assert_eq!(commands.last(), Some(&start));
        let data = user_data(&identity(None));
        assert_eq!(data.get("bootcmd"), None);
        assert!(!data.to_string().contains("homestak"));
    }

    #[test]
    fn a_deserialized_config_gives_the_same_files() {
        for (host_key, enrolment) in [
            (None, None),
            (Some(key()), Some(enrolment::tests::enrolment())),
        ] {
            let here = FirstBootConfig {
                enrolment,
                ..identity(host_key)
            };
            let json = serde_json::to_string(&here).expect("JSON");
            let there: FirstBootConfig = serde_json::from_str(&json).expect("an identity");
            assert!(here == there);
            let (here, there) = (here.nocloud_files(), there.nocloud_files());
            assert_eq!(here.user_data, there.user_data);
            assert_eq!(here.meta_data, there.meta_data);
            assert_eq!(here.network_config, there.network_config);
        }
    }

    #[test]
    fn a_static_address_has_its_gateway_and_none_means_dhcp() {
        let network = |identity: &FirstBootConfig| -> Json {
            serde_json::from_str(&identity.nocloud_files().network_config).expect("JSON")
        };
        let fixed = network(&identity(None));
        let interface = &fixed["ethernets"][INTERFACE_ID];
        assert_eq!(interface["addresses"], json!(["10.0.0.7/24"]));
        let route = json!([{ "to": "0.0.0.0/0", "via": "10.0.0.1" }]);
        assert_eq!(interface["routes"], route);
        assert_eq!(
            interface["match"],
            json!({ "macaddress": "02:00:00:00:00:0a" })
        );
        // Nothing would rename it at the next boot.
        assert_eq!(interface.get("set-name"), None);
        let floating = network(&FirstBootConfig {
            address: None,
            ..identity(None)
        });
        assert_eq!(floating["ethernets"][INTERFACE_ID]["dhcp4"], true);
        assert_eq!(floating["ethernets"][INTERFACE_ID].get("routes"), None);
    }
}
