//! Who a machine is, and its first-boot data: what it is told before anyone can reach it.
//!
//! In: what a node should be, its keys. Out: [`Identity`], the three files of cloud-init's NoCloud.
//! Never: a first boot that differs between hosts; whoever hosts the node gives it the same.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use zeroize::Zeroize as _;

use crate::observed::GuestUuid;
use crate::plan::Wanted;

/// The name of the entry of a machine's network card. The card itself keeps the name that its
/// system gives it.
const CARD: &str = "eth0";

/// Who a node is. There is no `Debug`: it may hold a private key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Its identity.
    pub uuid: GuestUuid,
    /// Its host name, which is the node's name.
    pub hostname: String,
    /// The user that is made.
    pub user: String,
    /// Public SSH keys that open the user's account.
    pub keys: Vec<String>,
    /// The SSH key it proves itself with; it makes its own when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<HostKey>,
    /// Its MAC address.
    pub mac: String,
    /// Fixed address with prefix; `None` for DHCP.
    pub address: Option<(IpAddr, u8)>,
    /// Gateway.
    pub gateway: Option<IpAddr>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Packages that are installed.
    pub packages: Vec<String>,
}

/// An SSH key pair of type ed25519 that a machine proves itself with. There is no `Debug`.
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

/// The file that keeps passwords from being asked for over SSH, for root only, and what is in it.
pub const NO_PASSWORDS: (&str, &str) = (
    "/etc/ssh/sshd_config.d/50-cloud-init.conf",
    "PasswordAuthentication no\n",
);

/// The three files of NoCloud. There is no `Debug`: user-data may hold secrets.
pub struct FirstBoot {
    /// Users, keys, packages.
    pub user_data: String,
    /// Who the machine is.
    pub meta_data: String,
    /// Where it is on the network.
    pub network_config: String,
}

impl Identity {
    /// Puts together who a node is.
    pub fn new(name: &str, wanted: &Wanted, keys: Vec<String>, host_key: Option<HostKey>) -> Self {
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
        }
    }

    /// Makes the first-boot data.
    pub fn first_boot(&self) -> FirstBoot {
        FirstBoot {
            user_data: format!("#cloud-config\n{}", text(&self.user_data())),
            meta_data: text(&json!({
                // cloud-init boots for the first time whenever this is new.
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
            // Written before sshd starts. With `ssh_pwauth` cloud-init would restart sshd after it
            // has answered, and whoever took that for a sign of life would find the door shut.
            "write_files": [{
                "path": NO_PASSWORDS.0,
                "permissions": "0600",
                "content": NO_PASSWORDS.1,
            }],
            "package_update": true,
            "packages": self.packages,
            "runcmd": [
                "systemctl enable --now qemu-guest-agent || true",
                // The seed is taken away once the machine is reached. Without it, the next boot
                // would look like that of another machine, with new host keys.
                ["touch", "/etc/cloud/cloud-init.disabled"],
            ],
        });
        if let Some(key) = &self.host_key {
            // Keys of the image go first: whoever has the image has those too. While `ssh_keys` is
            // given, cloud-init makes none, so this is the only one.
            data["ssh_deletekeys"] = true.into();
            data["ssh_genkeytypes"] = json!(["ed25519"]);
            data["ssh_keys"] = json!({
                "ed25519_private": key.private,
                "ed25519_public": key.public,
            });
        }
        data
    }

    /// Matched by MAC, because names of network cards depend on the machine. The card is not
    /// renamed: only cloud-init would do so, and it is off from the second boot on. Renderers that
    /// need a name look up the one that the card with this MAC has.
    fn network_config(&self) -> Json {
        let mut card = json!({ "match": { "macaddress": self.mac } });
        match self.address {
            Some((address, prefix)) => {
                card["addresses"] = json!([format!("{address}/{prefix}")]);
                if let Some(gateway) = self.gateway {
                    // The renderer of Debian 12 refuses `default`, and the machine then has no
                    // network at all.
                    let to = if gateway.is_ipv4() {
                        "0.0.0.0/0"
                    } else {
                        "::/0"
                    };
                    card["routes"] = json!([{ "to": to, "via": gateway.to_string() }]);
                }
            }
            None => card["dhcp4"] = true.into(),
        }
        if !self.dns.is_empty() {
            let dns: Vec<String> = self.dns.iter().map(ToString::to_string).collect();
            card["nameservers"] = json!({ "addresses": dns });
        }
        json!({ "version": 2, "ethernets": { CARD: card } })
    }
}

/// JSON is YAML, and has one way to write each value.
fn text(value: &Json) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(host_key: Option<HostKey>) -> Identity {
        Identity {
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
        }
    }

    fn key() -> HostKey {
        HostKey {
            private: "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n".to_owned(),
            public: "ssh-ed25519 BBBB web".to_owned(),
        }
    }

    fn user_data(identity: &Identity) -> Json {
        let text = identity.first_boot().user_data;
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
    fn the_host_key_that_is_given_is_the_only_one() {
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
    fn without_a_host_key_the_machine_makes_its_own() {
        let data = user_data(&identity(None));
        assert_eq!(data.get("ssh_keys"), None);
        assert_eq!(data.get("ssh_deletekeys"), None);
        assert_eq!(data["users"][0]["name"], "ops");
        assert_eq!(data["packages"], json!(["nginx"]));
    }

    #[test]
    fn an_identity_that_was_carried_elsewhere_gives_the_same_first_boot() {
        for host_key in [None, Some(key())] {
            let here = identity(host_key);
            let carried = serde_json::to_string(&here).expect("JSON");
            let there: Identity = serde_json::from_str(&carried).expect("an identity");
            assert!(here == there);
            let (here, there) = (here.first_boot(), there.first_boot());
            assert_eq!(here.user_data, there.user_data);
            assert_eq!(here.meta_data, there.meta_data);
            assert_eq!(here.network_config, there.network_config);
        }
    }

    #[test]
    fn a_fixed_address_has_its_gateway_and_none_means_dhcp() {
        let network = |identity: &Identity| -> Json {
            serde_json::from_str(&identity.first_boot().network_config).expect("JSON")
        };
        let fixed = network(&identity(None));
        let card = &fixed["ethernets"][CARD];
        assert_eq!(card["addresses"], json!(["10.0.0.7/24"]));
        let route = json!([{ "to": "0.0.0.0/0", "via": "10.0.0.1" }]);
        assert_eq!(card["routes"], route);
        assert_eq!(card["match"], json!({ "macaddress": "02:00:00:00:00:0a" }));
        // Nobody would rename it at the next boot.
        assert_eq!(card.get("set-name"), None);
        let floating = network(&Identity {
            address: None,
            ..identity(None)
        });
        assert_eq!(floating["ethernets"][CARD]["dhcp4"], true);
        assert_eq!(floating["ethernets"][CARD].get("routes"), None);
    }
}
