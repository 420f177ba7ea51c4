//! The named formats of the API description, with the error messages of Proxmox VE. An unknown
//! format accepts every value.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Checks a value. Errors end with a newline, as in PVE.
pub(crate) fn check(format: &str, value: &str) -> Result<(), String> {
    if let Some(single) = format.strip_suffix("-list") {
        return split_list(value).try_for_each(|item| check(single, item));
    }
    let fault = match format {
        "pve-vmid" => (!is_vmid(value)).then(|| "value does not look like a valid VM ID".into()),
        "pve-node" => {
            (!is_label(value)).then(|| "value does not look like a valid node name".into())
        }
        "pve-configid" => {
            (!is_config_id(value)).then(|| format!("invalid configuration ID '{value}'"))
        }
        "pve-storage-id" => (!is_storage_id(value))
            .then(|| format!("storage ID '{value}' contains illegal characters")),
        "dns-name" => {
            (!is_dns_name(value)).then(|| "value does not look like a valid DNS name".to_owned())
        }
        "pve-tag" => (!is_tag(value)).then(|| "invalid characters in tag".into()),
        "mac-addr" => (!is_unicast_mac(value))
            .then(|| "value does not look like a valid unicast MAC address".into()),
        "ipv4" => value
            .parse::<Ipv4Addr>()
            .is_err()
            .then(|| "value does not look like a valid ipv4 address".into()),
        "ipv6" => value
            .parse::<Ipv6Addr>()
            .is_err()
            .then(|| "value does not look like a valid ipv6 address".into()),
        "ip" => value
            .parse::<std::net::IpAddr>()
            .is_err()
            .then(|| "value does not look like a valid IP address".into()),
        "pve-ipv4-config" => (!matches!(value, "dhcp" | "manual") && !is_cidr4(value))
            .then(|| "value does not look like a valid ipv4 network configuration".into()),
        "pve-ipv6-config" => (!matches!(value, "auto" | "dhcp" | "manual") && !is_cidr6(value))
            .then(|| "value does not look like a valid ipv6 network configuration".into()),
        "disk-size" => (!is_disk_size(value))
            .then(|| format!("value does not look like a valid disk size: {value}")),
        "pve-volume-id" => {
            (!is_volume_id(value)).then(|| format!("unable to parse volume ID '{value}'"))
        }
        "pve-volume-id-or-qm-path" => {
            (!matches!(value, "none" | "cdrom") && !value.starts_with('/') && !is_volume_id(value))
                .then(|| format!("unable to parse volume ID '{value}'"))
        }
        "pve-volume-id-or-absolute-path" => (!value.starts_with('/') && !is_volume_id(value))
            .then(|| format!("unable to parse volume ID '{value}'")),
        "pve-userid" => (!is_user_id(value))
            .then(|| format!("value '{value}' does not look like a valid user name")),
        "pve-tokenid" => value
            .split_once('!')
            .is_none_or(|(user, token)| !is_user_id(user) || !is_token_name(token))
            .then(|| format!("value '{value}' does not look like a valid token ID")),
        "pve-roleid" => {
            (!is_plain(value)).then(|| format!("role name '{value}' contains invalid characters"))
        }
        "pve-poolid" => (!value.split('/').all(is_plain))
            .then(|| format!("pool name '{value}' contains invalid characters")),
        "pve-groupid" => {
            (!is_plain(value)).then(|| format!("group name '{value}' contains invalid characters"))
        }
        "pve-priv" => (!crate::world::access::is_privilege(value))
            .then(|| format!("invalid privilege '{value}'")),
        "pve-storage-content" => {
            (!CONTENTS.contains(&value)).then(|| format!("invalid content type '{value}'"))
        }
        "pve-bridge-id" => (!is_bridge(value)).then(|| format!("invalid bridge name '{value}'")),
        _ => None,
    };
    match fault {
        Some(fault) => Err(fault + "\n"),
        None => Ok(()),
    }
}

/// Content types of a storage.
const CONTENTS: [&str; 8] = [
    "images", "rootdir", "vztmpl", "iso", "backup", "snippets", "import", "none",
];

/// Splits a list as PVE does: comma, semicolon, space and NUL all separate.
pub(crate) fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ';', ' ', '\0', '\n', '\t'])
        .filter(|item| !item.is_empty())
}

fn is_vmid(value: &str) -> bool {
    (3..=9).contains(&value.len())
        && value.bytes().all(|b| b.is_ascii_digit())
        && !value.starts_with('0')
}

fn is_label(value: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    !value.is_empty()
        && value.len() <= 63
        && value.bytes().all(inner)
        && !value.starts_with('-')
        && !value.ends_with('-')
}

fn is_dns_name(value: &str) -> bool {
    // PVE checks the characters of a label, not its length.
    let label = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    value.split('.').all(label)
}

fn is_config_id(value: &str) -> bool {
    value.len() >= 2
        && value.starts_with(|c: char| c.is_ascii_alphabetic())
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

fn is_storage_id(value: &str) -> bool {
    value.len() >= 2
        && value.starts_with(|c: char| c.is_ascii_alphabetic())
        && value.ends_with(|c: char| c.is_ascii_alphanumeric())
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn is_tag(value: &str) -> bool {
    value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-+.".contains(&b))
}

fn is_unicast_mac(value: &str) -> bool {
    let parts: Vec<&str> = value.split(':').collect();
    parts.len() == 6
        && parts
            .iter()
            .all(|part| part.len() == 2 && u8::from_str_radix(part, 16).is_ok())
        && u8::from_str_radix(parts[0], 16).is_ok_and(|first| first & 1 == 0)
}

fn is_cidr4(value: &str) -> bool {
    value.split_once('/').is_some_and(|(address, bits)| {
        address.parse::<Ipv4Addr>().is_ok() && bits.parse::<u8>().is_ok_and(|bits| bits <= 32)
    })
}

fn is_cidr6(value: &str) -> bool {
    value.split_once('/').is_some_and(|(address, bits)| {
        address.parse::<Ipv6Addr>().is_ok() && bits.parse::<u8>().is_ok_and(|bits| bits <= 128)
    })
}

fn is_disk_size(value: &str) -> bool {
    let number = value.strip_suffix(['K', 'M', 'G', 'T']).unwrap_or(value);
    let mut parts = number.splitn(2, '.');
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    parts.next().is_some_and(digits) && parts.next().is_none_or(digits)
}

fn is_volume_id(value: &str) -> bool {
    value
        .split_once(':')
        .is_some_and(|(storage, rest)| is_storage_id(storage) && !rest.is_empty())
}

fn is_user_id(value: &str) -> bool {
    value.len() <= 64
        && value.rsplit_once('@').is_some_and(|(name, realm)| {
            !name.is_empty()
                && !name.contains(|c: char| c.is_whitespace() || c == ':' || c == '/')
                && realm.len() >= 2
                && realm.starts_with(|c: char| c.is_ascii_alphabetic())
                && realm
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b))
        })
}

fn is_token_name(value: &str) -> bool {
    value.len() >= 2
        && value.starts_with(|c: char| c.is_ascii_alphabetic())
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b))
}

fn is_plain(value: &str) -> bool {
    !value.is_empty()
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b))
}

fn is_bridge(value: &str) -> bool {
    !value.is_empty()
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}
