//! Implements the provider port by delegating to the operations of this module.

use std::net::IpAddr;

use async_trait::async_trait;
use homestak_engine::ports::{
    AddressLease, Capabilities, Gib, GuestAddress, GuestRef, GuestUuid, ImageRequest, Inventory,
    Mib, NewGuest, NewIdentity, ObservedGuest, PortError, Provider, StopMode,
};
use serde_json::Value;

use super::client::{Pve, name_of};
use super::error::{PveError, Reason};
use super::notifier::with_guest;
use super::quirks::{parse_bool, text_of};
use super::requests::{ApiCall, CLUSTER_STATUS};

fn guest_name(guest: &GuestRef) -> String {
    match guest.vmid {
        Some(id) => name_of(guest.kind, id, &guest.host),
        None => format!("the guest {} on {}", guest.uuid, guest.host),
    }
}

fn storage(image: &ImageRequest) -> &str {
    image.storage.as_deref().unwrap_or_default()
}

fn describe<T>(
    result: Result<T, PveError>,
    doing: impl FnOnce() -> String,
) -> Result<T, PortError> {
    result.map_err(|error| error.into_port_error(doing()))
}

impl Pve {
    fn url(&self) -> &str {
        &self.settings.endpoint.url
    }

    async fn fetch_capabilities(&self) -> Result<Capabilities, PveError> {
        let version = self.version().await?;
        let writable = match self.ask(&ApiCall::to(&CLUSTER_STATUS)).await {
            Ok(status) => has_quorum(&status),
            // Without the privilege to query it, the changes themselves fail.
            Err(error) if error.reason == Reason::Permission => true,
            Err(error) => return Err(error),
        };
        Ok(Capabilities {
            product: format!("Proxmox VE {}", version.text),
            writable,
        })
    }
}

/// Reads whether the cluster has quorum; a single host always can.
pub(super) fn has_quorum(status: &Value) -> bool {
    let rows = status.as_array().map(Vec::as_slice).unwrap_or_default();
    rows.iter()
        .find(|row| text_of(row, "type") == "cluster")
        .is_none_or(|row| row.get("quorate").and_then(parse_bool).unwrap_or(false))
}

#[async_trait]
impl Provider for Pve {
    async fn capabilities(&self) -> Result<Capabilities, PortError> {
        describe(self.fetch_capabilities().await, || {
            format!("query the capabilities of {}", self.url())
        })
    }

    async fn observe(&self) -> Result<Inventory, PortError> {
        describe(self.observe_all().await, || {
            format!("list resources of {}", self.url())
        })
    }

    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError> {
        describe(
            with_guest(&guest.uuid, self.inspect_guest(guest)).await,
            || format!("inspect {}", guest_name(guest)),
        )
    }

    async fn lease(
        &self,
        _guest: &GuestUuid,
        _asked: Option<IpAddr>,
    ) -> Result<Option<AddressLease>, PortError> {
        // Addresses come from a DHCP server, or are written in the manifest.
        Ok(None)
    }

    async fn create(&self, guest: &NewGuest) -> Result<GuestRef, PortError> {
        describe(
            with_guest(&guest.uuid, self.create_guest(guest)).await,
            || match guest.vmid {
                Some(id) => format!(
                    "create {} `{}`",
                    name_of(guest.kind, id, &guest.host),
                    guest.name
                ),
                None => format!("create guest `{}` on {}", guest.name, guest.host),
            },
        )
    }

    async fn start(&self, guest: &GuestRef) -> Result<(), PortError> {
        describe(with_guest(&guest.uuid, self.power_on(guest)).await, || {
            format!("start {}", guest_name(guest))
        })
    }

    async fn address(&self, guest: &GuestRef) -> Result<GuestAddress, PortError> {
        describe(
            with_guest(&guest.uuid, self.find_address(guest)).await,
            || format!("query the address of {}", guest_name(guest)),
        )
    }

    async fn discard_seed(&self, guest: &GuestRef) -> Result<(), PortError> {
        describe(
            with_guest(&guest.uuid, self.eject_seed(guest)).await,
            || format!("remove the first-boot data of {}", guest_name(guest)),
        )
    }

    async fn grow_disk(&self, guest: &GuestRef, size: Gib) -> Result<(), PortError> {
        let grown = async {
            let _permit = self.lock_guest(guest).await;
            let located = self.require_for_change(guest).await?;
            self.grow_disk_to(&located, &guest.uuid, size).await
        };
        describe(with_guest(&guest.uuid, grown).await, || {
            format!("resize the disk of {} to {size}", guest_name(guest))
        })
    }

    async fn reshape(&self, guest: &GuestRef, cores: u32, memory: Mib) -> Result<(), PortError> {
        describe(
            self.set_cores_and_memory(guest, cores, memory).await,
            || format!("change CPUs and memory of {}", guest_name(guest)),
        )
    }

    async fn stop(&self, guest: &GuestRef, halt: StopMode) -> Result<(), PortError> {
        describe(
            with_guest(&guest.uuid, self.power_off(guest, halt)).await,
            || format!("stop {}", guest_name(guest)),
        )
    }

    async fn destroy(&self, guest: &GuestRef) -> Result<(), PortError> {
        describe(
            with_guest(&guest.uuid, self.destroy_guest(guest)).await,
            || format!("destroy {}", guest_name(guest)),
        )
    }

    async fn reidentify(&self, guest: &GuestRef, to: &NewIdentity) -> Result<(), PortError> {
        describe(
            with_guest(&guest.uuid, self.reidentify_guest(guest, to)).await,
            || format!("change the identity of {}", guest_name(guest)),
        )
    }

    async fn has_image(&self, image: &ImageRequest) -> Result<bool, PortError> {
        describe(self.has_image_file(image).await, || {
            let (file, storage) = (&image.file, storage(image));
            format!("check for `{file}` in {storage} on {}", image.host)
        })
    }

    async fn ensure_image(&self, image: &ImageRequest) -> Result<(), PortError> {
        describe(self.ensure_file(image).await, || {
            let (file, storage) = (&image.file, storage(image));
            format!("transfer `{file}` to {storage} on {}", image.host)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_single_host_has_quorum_and_a_cluster_reports_it() {
        assert!(has_quorum(
            &json!([{"type": "node", "name": "pve1", "online": 1}])
        ));
        assert!(has_quorum(&json!([{"type": "cluster", "quorate": 1}])));
        assert!(!has_quorum(&json!([{"type": "cluster", "quorate": "0"}])));
    }
}
