//! The network of a guest as cloud-init's network-config, version 2.
//!
//! In: a MAC address and how it gets its address. Out: YAML text.
//! Never: an interface's name to match by; it depends on the machine, the MAC does not.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::property::is_mac;

/// The name the card gets in the guest. It must be set: one of cloud-init's renderers matches by
/// name as well as by MAC, and the name it takes is the entry's own.
const CARD: &str = "eth0";

/// How a guest gets its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// From a DHCP server.
    Dhcp,
    /// It is given.
    Static {
        /// The address.
        address: IpAddr,
        /// Bits of the network.
        prefix: u8,
        /// The way out.
        gateway: Option<IpAddr>,
        /// Name servers.
        nameservers: Vec<IpAddr>,
        /// Domains that short names are looked up in.
        search: Vec<String>,
    },
}

/// Why a network cannot be written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The MAC address has another form.
    #[error("`{mac}` is not a MAC address")]
    BadMac {
        /// The text.
        mac: String,
    },
    /// A domain has characters that a domain does not have.
    #[error("`{domain}` is not a domain")]
    BadDomain {
        /// The text.
        domain: String,
    },
}

/// Writes the network-config. The default route is `0.0.0.0/0`: one of cloud-init's renderers
/// refuses `default`, and the guest then has no network at all.
pub fn render(mac: &str, addressing: &Addressing) -> Result<String, NetworkError> {
    if !is_mac(mac) {
        return Err(NetworkError::BadMac {
            mac: mac.to_owned(),
        });
    }
    let mut text = format!(
        "version: 2\nethernets:\n  {CARD}:\n    match:\n      macaddress: \"{}\"\n    set-name: {CARD}\n",
        mac.to_ascii_lowercase()
    );
    match addressing {
        Addressing::Dhcp => text.push_str("    dhcp4: true\n"),
        Addressing::Static {
            address,
            prefix,
            gateway,
            nameservers,
            search,
        } => {
            let _ = writeln!(
                text,
                "    dhcp4: false\n    addresses:\n      - \"{address}/{prefix}\""
            );
            if let Some(gateway) = gateway {
                let all = if gateway.is_ipv4() {
                    "0.0.0.0/0"
                } else {
                    "::/0"
                };
                let _ = writeln!(
                    text,
                    "    routes:\n      - to: \"{all}\"\n        via: \"{gateway}\""
                );
            }
            render_names(&mut text, nameservers, search)?;
        }
    }
    Ok(text)
}

fn render_names(
    text: &mut String,
    nameservers: &[IpAddr],
    search: &[String],
) -> Result<(), NetworkError> {
    if nameservers.is_empty() && search.is_empty() {
        return Ok(());
    }
    text.push_str("    nameservers:\n");
    if !nameservers.is_empty() {
        text.push_str("      addresses:\n");
        for server in nameservers {
            let _ = writeln!(text, "        - \"{server}\"");
        }
    }
    if !search.is_empty() {
        text.push_str("      search:\n");
        for domain in search {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
            if domain.is_empty() || !domain.bytes().all(plain) {
                return Err(NetworkError::BadDomain {
                    domain: domain.clone(),
                });
            }
            let _ = writeln!(text, "        - \"{domain}\"");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_address_never_says_default() {
        let addressing = Addressing::Static {
            address: "10.0.12.5".parse().expect("an address"),
            prefix: 24,
            gateway: Some("10.0.12.1".parse().expect("an address")),
            nameservers: vec!["10.0.12.1".parse().expect("an address")],
            search: vec!["home.arpa".to_owned()],
        };
        let text = render("BC:24:11:00:00:01", &addressing).expect("a network");
        assert_eq!(
            text,
            "version: 2\nethernets:\n  eth0:\n    match:\n      macaddress: \"bc:24:11:00:00:01\"\n    set-name: eth0\n    \
             dhcp4: false\n    addresses:\n      - \"10.0.12.5/24\"\n    routes:\n      - to: \"0.0.0.0/0\"\n        \
             via: \"10.0.12.1\"\n    nameservers:\n      addresses:\n        - \"10.0.12.1\"\n      search:\n        \
             - \"home.arpa\"\n"
        );
        assert!(!text.contains("default"));
    }

    #[test]
    fn dhcp_is_two_words() {
        let text = render("bc:24:11:00:00:01", &Addressing::Dhcp).expect("a network");
        assert!(text.ends_with("    dhcp4: true\n"), "{text}");
    }

    #[test]
    fn what_would_break_the_yaml_is_refused() {
        assert!(render("eth0", &Addressing::Dhcp).is_err());
        let addressing = Addressing::Static {
            address: "10.0.12.5".parse().expect("an address"),
            prefix: 24,
            gateway: None,
            nameservers: Vec::new(),
            search: vec!["a\n  b".to_owned()],
        };
        assert!(render("bc:24:11:00:00:01", &addressing).is_err());
    }
}
