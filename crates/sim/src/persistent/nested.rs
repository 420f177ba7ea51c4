//! Serves the APIs of nested hypervisors, at any depth: one server for each that has booted.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use homestak_api::v1::SimNestedEndpoint;

use super::stock::stock;
use crate::serve::{Handle, Identity, serve_inside};
use crate::world::{Boots, World};

/// A nested hypervisor that has booted.
struct RunningHypervisor {
    outer: World,
    vmid: u32,
    name: String,
    address: Option<String>,
}

/// The servers of nested hypervisors, by the ids of the guests that contain them.
pub(super) struct NestedServers {
    identity: Identity,
    token: String,
    running: BTreeMap<Vec<u32>, (Handle, SimNestedEndpoint)>,
}

impl NestedServers {
    pub(super) fn new(identity: Identity, token: String) -> Self {
        Self {
            identity,
            token,
            running: BTreeMap::new(),
        }
    }

    pub(super) fn list(&self) -> Vec<SimNestedEndpoint> {
        let all = self.running.values();
        all.map(|(_, host)| host.clone()).collect()
    }

    pub(super) fn stop(&mut self) {
        for (handle, _) in std::mem::take(&mut self.running).into_values() {
            handle.stop();
        }
    }

    /// Starts and stops servers so that each running hypervisor has one. Returns whether anything
    /// changed.
    pub(super) async fn reconcile(&mut self, world: &World) -> bool {
        let mut up = BTreeMap::new();
        find(world, &[], &self.token, &mut up);
        let before = self.running.len();
        self.running.retain(|path, (handle, host)| {
            let stays = up
                .get(path)
                .is_some_and(|up| up.name == host.name && up.address == host.address);
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
                    let host = SimNestedEndpoint {
                        address: up.address,
                        name: up.name,
                        guests: path.clone(),
                        url: handle.url(),
                        fingerprint: handle.fingerprint.clone(),
                        certificate: handle.certificate_pem.clone(),
                        token: self.token.clone(),
                    };
                    self.running.insert(path, (handle, host));
                    changed = true;
                }
                Err(error) => tracing::warn!(%error, "cannot serve a nested hypervisor"),
            }
        }
        changed
    }
}

/// Finds the running hypervisors at any depth. New ones get the stock images and the token.
fn find(world: &World, path: &[u32], token: &str, up: &mut BTreeMap<Vec<u32>, RunningHypervisor>) {
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
        inner.allow_token(token);
        let mut path = path.to_vec();
        path.push(vmid);
        find(&inner, &path, token, up);
        let outer = world.clone();
        let found = RunningHypervisor {
            outer,
            vmid,
            name,
            address,
        };
        up.insert(path, found);
    }
}
