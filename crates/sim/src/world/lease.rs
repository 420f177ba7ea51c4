//! The pretended network: which addresses guests get when their configuration names none.
//!
//! In: a guest that starts. Out: an address per interface, the same one for as long as it is there.
//! Never: one address for two guests, or for a guest and a host.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::state::State;

/// The second byte of the first World's addresses.
const FIRST: u8 = 77;
/// How many addresses a network gives away: 250 times 250.
const ADDRESSES: u64 = 62_500;

/// Hands a network to each of the Worlds that are inside each other; all clones are the same.
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

    /// Returns the next network. There are 256; then they come again.
    pub(crate) fn take(&self) -> u8 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

impl State {
    /// Gives the interfaces of a guest the addresses they ask for.
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

    /// Takes the first free address at or after the one that the id of a guest points to.
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
    fn guests_whose_ids_point_to_one_address_get_two() {
        let world = network(62_600);
        let two = [("net0".to_owned(), "virtio=BC:24:11:00:00:02".to_owned())];
        world.put_guest("pve1", Kind::Qemu, 100, two.into());
        let mut state = world.state();
        state.lease(100);
        state.lease(62_600);
        assert_ne!(state.guests[&100].leases, state.guests[&62_600].leases);
        let held = state.guests[&100].leases.clone();
        state.forget(100, 0.0);
        assert!(held.values().all(|address| !state.leased.contains(address)));
    }

    #[test]
    fn no_guest_gets_the_address_of_a_host() {
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
