//! Completes a guest that exists: its seed, disk size and identity. Its hardware is not changed:
//! that is decided by a plan.

use std::collections::BTreeSet;

use homestak_engine::ports::{ErrorClass, GuestKind, GuestRef, NewGuest, NewIdentity};

use super::client::{Pve, by_kind, name_of, named};
use super::create::check_site;
use super::error::{PveError, Reason};
use super::identity::{self, GuestMetadata, Ownership};
use super::image::StorageContent;
use super::locate::Located;
use super::property::Property;
use super::quirks;
use super::requests::{ApiCall, CT_CHANGE, VM_CHANGE};
use super::seed;
use super::upload::Upload;

impl Pve {
    /// Completes a guest: waits for its lock, verifies its identity, and resizes the disk.
    pub(super) async fn complete(
        &self,
        guest: &NewGuest,
        located: Located,
    ) -> Result<GuestRef, PveError> {
        let name = name_of(located.kind, located.vmid, &located.node);
        let located = check_site(located, guest)?;
        let located = self.wait_for_unlock(located).await?;
        let located = located
            .filter(|located| located.ownership(&guest.uuid) == Ownership::Ours)
            .ok_or_else(|| {
                let detail = format!("{name} was deleted while it was being completed");
                PveError::new(ErrorClass::Missing, Reason::NoConfig, detail)
            })?;
        let located = check_site(located, guest)?;
        self.grow_disk_to(&located, &guest.uuid, guest.disk).await?;
        Ok(GuestRef {
            uuid: guest.uuid.clone(),
            kind: located.kind,
            vmid: Some(located.vmid.into()),
            host: located.node,
        })
    }

    /// Reads a guest's configuration again.
    pub(super) async fn refetch(&self, located: Located) -> Result<Located, PveError> {
        let Located {
            kind, vmid, node, ..
        } = located;
        let config = self.config_at(kind, &node, vmid).await?;
        let name = name_of(kind, vmid, &node);
        config
            .map(|config| Located {
                kind,
                vmid,
                node,
                config,
            })
            .ok_or_else(|| {
                PveError::new(
                    ErrorClass::Missing,
                    Reason::NoConfig,
                    format!("{name} no longer exists"),
                )
            })
    }

    /// Uploads the first-boot data. The name and content are the same each time, so that it can be
    /// repeated.
    pub(super) async fn upload_seed(&self, guest: &NewGuest) -> Result<(), PveError> {
        let Some(seed) = guest.seed.as_ref().filter(|_| guest.kind == GuestKind::Vm) else {
            return Ok(());
        };
        let bytes = seed::image(seed);
        let file = seed::file_name(&guest.uuid);
        let content = StorageContent {
            node: &guest.host,
            storage: named(guest.image_storage.as_deref())?,
            kind: "iso",
        };
        self.upload_file(&content, &file, None, || Upload::Bytes(bytes.clone()))
            .await
    }
}

/// Returns the digest of the configuration to be changed.
pub(super) fn digest_of(located: &Located) -> Result<String, PveError> {
    let digest = located.config.digest();
    digest.ok_or_else(|| PveError::invalid_response("the configuration has no digest"))
}

/// Starts a change of a configuration as it was read.
pub(super) fn change_of(located: &Located) -> Result<ApiCall, PveError> {
    let digest = digest_of(located)?;
    Ok(by_kind(located.kind, &VM_CHANGE, &CT_CHANGE)
        .at("node", &located.node)
        .at("vmid", located.vmid)
        .param("digest", digest))
}

/// Where the seed is.
pub(super) const SEED_SLOT: &str = "ide2";

/// Returns whether the drive of the seed is in the boot order. A change of the drive adds it, and the
/// order cannot be set in the same call: its keys are processed in no particular order.
pub(super) fn is_seed_in_boot_order(located: &Located) -> bool {
    let order = located.config.boot_order();
    located.kind == GuestKind::Vm && order.iter().any(|slot| slot == SEED_SLOT)
}

/// The boot order without the drive of the seed.
pub(super) fn boot_order_call(located: &Located) -> Result<ApiCall, PveError> {
    let config = &located.config;
    let mut order = config.boot_order();
    order.retain(|slot| slot != SEED_SLOT);
    if order.is_empty() {
        order.extend(config.first_disk(GuestKind::Vm).map(|disk| disk.slot));
    }
    Ok(change_of(located)?.param("boot", format!("order={}", order.join(";"))))
}

/// Returns the metadata of a new guest.
pub(super) fn metadata(guest: &NewGuest) -> GuestMetadata<'_> {
    GuestMetadata {
        uuid: &guest.uuid,
        site: &guest.site,
        manifest: &guest.manifest,
        run: Some(&guest.run),
    }
}

/// Returns the tags of a guest with our tags replaced; others are kept.
fn merged_tags(located: &Located, metadata: &GuestMetadata<'_>) -> String {
    let mut tags: BTreeSet<String> = located
        .config
        .tags()
        .into_iter()
        .filter(|tag| !identity::is_ours(tag))
        .collect();
    tags.extend(metadata.tags(located.vmid));
    quirks::render_tags(&tags)
}

impl Pve {
    /// Changes the identity of a guest in one call: tags, notes, and the SMBIOS of a VM, which takes
    /// effect at its next start.
    pub(super) async fn reidentify_guest(
        &self,
        guest: &GuestRef,
        to: &NewIdentity,
    ) -> Result<(), PveError> {
        let _permit = self.lock_guest(guest).await;
        let metadata = GuestMetadata {
            uuid: &to.uuid,
            site: &to.site,
            manifest: &to.manifest,
            run: None,
        };
        let renamed = GuestRef {
            uuid: to.uuid.clone(),
            ..guest.clone()
        };
        let mut tries = 0;
        loop {
            if self.find_for_change(&renamed).await?.is_some() {
                return Ok(());
            }
            let located = self.require_for_change(guest).await?;
            let mut call = change_of(&located)?
                .param("tags", merged_tags(&located, &metadata))
                .param("description", metadata.merge_notes(located.config.notes()));
            if located.kind == GuestKind::Vm {
                let smbios = located.config.text("smbios1").unwrap_or_default();
                let smbios = Property::parse(&smbios).with("uuid", to.uuid.as_str());
                call = call.param("smbios1", smbios.render());
            }
            let result = match located.kind {
                GuestKind::Vm => self.run(&call).await,
                GuestKind::Ct => self.change(&call).await.map(|_| ()),
            };
            tries += 1;
            match result {
                // The check at the top of the loop decides, not the response.
                Ok(()) if tries < 4 => {}
                Err(error) if error.may_have_acted() && tries < 4 => {
                    self.clock.sleep(self.settings.limits.connect).await;
                }
                result => return result,
            }
        }
    }
}
