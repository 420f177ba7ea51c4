//! Assigns addresses to nodes. The same node gets the same address; the gateway is never assigned.

use std::net::{IpAddr, Ipv4Addr};

use homestak_api::durable::{self, Access};
use homestak_engine::ports::{GuestUuid, PortError};
use sha2::{Digest as _, Sha256};

use super::error;
use super::instance::Instance;
use super::net::Network;

/// Returns the address of a node, the requested one if given. The caller holds the instance lock.
pub(super) fn take(
    instance: &Instance,
    network: &Network,
    uuid: &GuestUuid,
    asked: Option<IpAddr>,
) -> Result<Ipv4Addr, PortError> {
    let doing = "assign an address";
    let io = |error: std::io::Error| error::io(doing, &error);
    fs_err::create_dir_all(instance.leases()).map_err(io)?;
    if let Some(asked) = asked {
        return fixed(instance, network, uuid, asked);
    }
    if let Some(known) = of(instance, uuid) {
        return Ok(known);
    }
    let first = preferred(network, uuid);
    for step in 0..network.capacity() {
        let address = network.address_at((first + step) % network.capacity());
        if claim(instance, address, uuid).map_err(io)? {
            return Ok(address);
        }
    }
    Err(PortError::refused(
        doing,
        format!("all addresses of {network} are in use"),
        "destroy nodes that are not needed (list them with homestak local show)",
    ))
}

/// Returns the address a node has, if it has one.
pub(super) fn of(instance: &Instance, uuid: &GuestUuid) -> Option<Ipv4Addr> {
    let entries = fs_err::read_dir(instance.leases()).ok()?;
    let mut held = entries.filter_map(Result::ok).filter(|entry| {
        fs_err::read_to_string(entry.path()).is_ok_and(|holder| holder.trim() == uuid.as_str())
    });
    held.find_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Moves the address of a node to another identity.
pub(super) fn rename(
    instance: &Instance,
    from: &GuestUuid,
    to: &GuestUuid,
) -> Result<(), PortError> {
    let io = |error: std::io::Error| error::io("keep an address", &error);
    if let Some(address) = of(instance, from) {
        let path = instance.leases().join(address.to_string());
        let text = format!("{to}\n");
        durable::write(&path, text.as_bytes(), Access::PRIVATE).map_err(io)?;
    }
    Ok(())
}

/// Releases the address of a node.
pub(super) fn release(instance: &Instance, uuid: &GuestUuid) -> Result<(), PortError> {
    while let Some(address) = of(instance, uuid) {
        let path = instance.leases().join(address.to_string());
        fs_err::remove_file(&path).map_err(|error| error::io("release an address", &error))?;
    }
    Ok(())
}

/// Returns every lease.
pub(super) fn all(instance: &Instance) -> Vec<(Ipv4Addr, String)> {
    let Ok(entries) = fs_err::read_dir(instance.leases()) else {
        return Vec::new();
    };
    let entries = entries.filter_map(Result::ok);
    let read = |entry: fs_err::DirEntry| {
        let holder = fs_err::read_to_string(entry.path()).ok()?;
        Some((
            entry.file_name().to_str()?.parse().ok()?,
            holder.trim().to_owned(),
        ))
    };
    entries.filter_map(read).collect()
}

fn fixed(
    instance: &Instance,
    network: &Network,
    uuid: &GuestUuid,
    asked: IpAddr,
) -> Result<Ipv4Addr, PortError> {
    let doing = format!("assign {asked}");
    let IpAddr::V4(address) = asked else {
        return Err(PortError::refused(
            &doing,
            "the local host has IPv4 only",
            format!("use an address of {network}, or omit it to have one chosen"),
        ));
    };
    if !network.is_assignable(address) {
        return Err(PortError::refused(
            &doing,
            format!(
                "the network of the local host is {network}, with {} as gateway",
                network.gateway()
            ),
            "use another address, or omit it to have one chosen",
        ));
    }
    let held = of(instance, uuid);
    if held == Some(address) {
        return Ok(address);
    }
    if !claim(instance, address, uuid).map_err(|error| error::io(&doing, &error))? {
        return Err(PortError::refused(
            &doing,
            "this address is in use by another node",
            "use another address, or omit it; homestak local show lists the addresses in use",
        ));
    }
    Ok(address)
}

/// Claims an address; `false` if another node has it.
fn claim(instance: &Instance, address: Ipv4Addr, uuid: &GuestUuid) -> std::io::Result<bool> {
    let path = instance.leases().join(address.to_string());
    if fs_err::read_to_string(&path).is_ok_and(|holder| !holder.trim().is_empty()) {
        return Ok(false);
    }
    // An empty file was left by a killed process.
    durable::write(&path, uuid.as_str().as_bytes(), Access::PUBLIC)?;
    Ok(true)
}

/// Returns the preferred address of a node.
fn preferred(network: &Network, uuid: &GuestUuid) -> u32 {
    let hash = Sha256::digest(uuid.as_str().as_bytes());
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]) % network.capacity()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(last: u32) -> GuestUuid {
        GuestUuid::new(&format!("5d1f2a3b-0000-4000-8000-{last:012}")).expect("a UUID")
    }

    fn with_realm(test: impl FnOnce(&Instance, &Network)) {
        let root = tempfile::tempdir().expect("a directory");
        let plain = root.path().join("realm");
        let instance = Instance::at(&plain).expect("a realm");
        test(&instance, &Network::new(Ipv4Addr::new(10, 77, 0, 0)));
    }

    #[test]
    fn a_node_keeps_its_own_address() {
        with_realm(|instance, network| {
            let mut seen = std::collections::BTreeSet::new();
            for n in 0..200 {
                let address = take(instance, network, &uuid(n), None).expect("an address");
                assert!(seen.insert(address), "{address} twice");
                assert_eq!(
                    take(instance, network, &uuid(n), None).expect("again"),
                    address
                );
            }
            let first = take(instance, network, &uuid(7), None).expect("an address");
            release(instance, &uuid(7)).expect("released");
            assert_eq!(
                take(instance, network, &uuid(7), None).expect("an address"),
                first
            );
        });
    }

    #[test]
    fn an_address_in_use_or_outside_the_network_is_refused() {
        with_realm(|instance, network| {
            let asked = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 9));
            take(instance, network, &uuid(1), Some(asked)).expect("it is free");
            take(instance, network, &uuid(1), Some(asked)).expect("it is its own");
            let error = take(instance, network, &uuid(2), Some(asked)).expect_err("it is taken");
            assert!(error.detail.contains("another node"), "{error}");
            for foreign in [
                "192.0.2.9",
                "10.77.0.1",
                "10.77.0.0",
                "10.77.15.255",
                "fd00::1",
            ] {
                let asked = foreign.parse().expect("an address");
                assert!(
                    take(instance, network, &uuid(3), Some(asked)).is_err(),
                    "{foreign}"
                );
            }
        });
    }
}
