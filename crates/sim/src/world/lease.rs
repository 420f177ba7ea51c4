//! The simulated DHCP server: assigns addresses to guests that have no static one. A guest keeps its
//! address until it is deleted; no address is assigned twice.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::state::State;

/// The second byte of the addresses in the outermost World.
const FIRST: u8 = 77;
/// Number of addresses in a network: 250 times 250.
const ADDRESSES: u64 = 62_500;

/// Assigns a network to each of a set of nested Worlds. Clones share the counter.
#[derive(Clone)]
pub(crate) struct Networks(Arc<AtomicU8>);

impl Default for Networks {
    fn default() -> Self {
        Self::from(FIRST)
    }
}

impl Networks {
    pub(crate) fn from(next: u8) -> Self {
        Self(Arc::new(AtomicU8::new(next)))
    }

    /// Assigns the next network. There are 256, then they repeat.
    pub(crate) fn take(&self) -> u8 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

impl State {
    /// Assigns addresses to the interfaces of a guest that use DHCP.
    pub(crate) fn lease(&mut self, vmid: u32) {
        let Some(guest) = self.guests.get(&vmid) else {
            return;
        };
        for number in guest.interfaces_without_address() {
            let address = self.free_address(vmid);
            if let Some(guest) = self.guests.get_mut(&vmid) {
                guest.leases.insert(number, address);
            }
        }
    }

    /// Takes the first free address, starting with the one derived from the guest id.
    fn free_address(&mut self, vmid: u32) -> Ipv4Addr {
        let at = |id: u64| {
            let byte = |number: u64| u8::try_from(number % 250).unwrap_or(0);
            Ipv4Addr::new(10, self.network, byte(id / 250), byte(id) + 2)
        };
        let first = u64::from(vmid);
        let free = (first..first + ADDRESSES)
            .map(at)
            .find(|address| !self.leased.contains(address));
        let address = free.unwrap_or(at(first));
        self.leased.insert(address);
        address
    }
}

#[cfg(test)]
mod tests {
    use crate::world::{Kind, World};

    fn network(vmid: u32) -> World {
        World::builder()
            .guest(
                "pve1",
                Kind::Qemu,
                vmid,
                &[("net0", "virtio=BC:24:11:00:00:01,bridge=vmbr0")],
            )
            .build()
    }

    #[test]
    fn guests_with_colliding_ids_get_different_addresses() {
        let world = network(62_600);
        let two = [("net0".to_owned(), "virtio=BC:24:11:00:00:02".to_owned())];
        world.put_guest("pve1", Kind::Qemu, 100, two.into());
        let mut state = world.state();
        state.lease(100);
        state.lease(62_600);
        assert_ne!(state.guests[&100].leases, state.guests[&62_600].leases);
        let held = state.guests[&100].leases.clone();
        state.remove_guest(100, 0.0);
        assert!(held.values().all(|address| !state.leased.contains(address)));
    }

    #[test]
    fn no_guest_gets_a_host_address() {
        let world = network(62_500);
        let mut state = world.state();
        state.lease(62_500);
        let address = state.guests[&62_500].leases[&0].to_string();
        assert_ne!(address, state.hosts["pve1"].address);
    }

    #[test]
    fn a_guest_keeps_its_address() {
        let world = network(300);
        let mut state = world.state();
        state.lease(300);
        let before = state.guests[&300].leases.clone();
        state.lease(300);
        assert_eq!(before, state.guests[&300].leases);
    }
}
