//! Serves the hypervisors that run inside a kept World, and those inside them.
//!
//! In: a World. Out: one server for each hypervisor that has booted, none for the others.
//! Never: an address that answers while its machine is off.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::stock::stock;
use crate::serve::{Handle, Identity, serve_inside};
use crate::world::{Boots, World};

/// A hypervisor inside, and where its API really is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// The address it has in the World, which is where a client thinks it goes.
    pub address: Option<String>,
    /// Its name, which is that of its host too.
    pub name: String,
    /// The ids of the guests it is in, outermost first, its own last.
    pub guests: Vec<u32>,
    /// Where it is served.
    pub url: String,
    /// The fingerprint of the certificate there.
    pub fingerprint: String,
    /// The certificate there.
    pub certificate: String,
    /// A token that may do everything there.
    pub token: String,
}

/// A hypervisor that has booted.
struct Up {
    outer: World,
    vmid: u32,
    name: String,
    address: Option<String>,
}

/// The servers of the hypervisors inside, by the ids of the guests they are in.
pub(super) struct Servers {
    identity: Identity,
    token: String,
    running: BTreeMap<Vec<u32>, (Handle, Inside)>,
}

impl Servers {
    pub(super) fn new(identity: Identity, token: String) -> Self {
        Self {
            identity,
            token,
            running: BTreeMap::new(),
        }
    }

    pub(super) fn list(&self) -> Vec<Inside> {
        let all = self.running.values();
        all.map(|(_, inside)| inside.clone()).collect()
    }

    pub(super) fn stop(&mut self) {
        for (handle, _) in std::mem::take(&mut self.running).into_values() {
            handle.stop();
        }
    }

    /// Starts and stops servers until they are those of the hypervisors that are up. Returns
    /// whether anything changed.
    pub(super) async fn tend(&mut self, world: &World) -> bool {
        let mut up = BTreeMap::new();
        find(world, &[], &self.token, &mut up);
        let before = self.running.len();
        self.running.retain(|path, (handle, inside)| {
            let stays = up
                .get(path)
                .is_some_and(|up| up.name == inside.name && up.address == inside.address);
            if !stays {
                handle.stop();
            }
            stays
        });
        let mut changed = self.running.len() != before;
        for (path, up) in up {
            if self.running.contains_key(&path) {
                continue;
            }
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            match serve_inside(up.outer, up.vmid, at, &self.identity).await {
                Ok(handle) => {
                    let inside = Inside {
                        address: up.address,
                        name: up.name,
                        guests: path.clone(),
                        url: handle.url(),
                        fingerprint: handle.fingerprint.clone(),
                        certificate: handle.certificate_pem.clone(),
                        token: self.token.clone(),
                    };
                    self.running.insert(path, (handle, inside));
                    changed = true;
                }
                Err(error) => tracing::warn!(%error, "a hypervisor inside is not served"),
            }
        }
        changed
    }
}

/// Finds the hypervisors that are up, at any depth. A World that is new gets what a kept one has.
fn find(world: &World, path: &[u32], token: &str, up: &mut BTreeMap<Vec<u32>, Up>) {
    let candidates: Vec<(u32, String, Option<String>)> = {
        let state = world.state();
        let guests = state.guests.values();
        guests
            .filter(|guest| guest.boots == Boots::Hypervisor && guest.running.is_some())
            .map(|guest| (guest.vmid, guest.name(), guest.address_of()))
            .collect()
    };
    for (vmid, name, address) in candidates {
        let Some(inner) = world.inside(vmid, stock) else {
            continue;
        };
        inner.admit(token);
        let mut path = path.to_vec();
        path.push(vmid);
        find(&inner, &path, token, up);
        let outer = world.clone();
        let found = Up {
            outer,
            vmid,
            name,
            address,
        };
        up.insert(path, found);
    }
}
