//! Deletes a guest, its disks and its seed files after verifying its identity, id and host.
//!
//! Protected guests, disks that the guest's configuration does not name, and other guests with the
//! same identity are not deleted.

use std::collections::BTreeSet;
use std::time::Duration;

use homestak_engine::ports::{ErrorClass, GuestKind, GuestRef, GuestUuid, PowerState};

use super::client::{Pve, by_kind, name_of};
use super::error::{PveError, Reason};
use super::finish::{SEED_SLOT, boot_order_call, change_of, is_seed_in_boot_order};
use super::identity::Ownership;
use super::image::StorageContent;
use super::incomplete::incomplete_error;
use super::locate::{Located, SearchResult, conflict_error, disowned_error, duplicates_error};
use super::requests::{CT_DELETE, CT_STOP, VM_DELETE, VM_STOP};
use super::seed;

/// How often deletion is tried.
const TRIES: u32 = 4;
/// The first pause between.
const PAUSE: Duration = Duration::from_secs(2);

impl Pve {
    /// Removes a guest.
    pub(super) async fn destroy_guest(&self, guest: &GuestRef) -> Result<(), PveError> {
        let _permit = self.lock_guest(guest).await;
        if guest.vmid.is_none() {
            return self.remove_leftovers(guest).await;
        }
        let mut tried = 0;
        let mut seeds = BTreeSet::new();
        while let Some(located) = self.removable(guest).await? {
            tried += 1;
            seeds.extend(seeds_of(&located, &guest.uuid));
            match self.remove_once(&located).await {
                // The check at the top of the loop decides, not the response.
                Ok(()) if tried <= TRIES + 1 => {}
                Err(error)
                    if tried < TRIES
                        && (error.may_have_acted()
                            || matches!(
                                error.reason,
                                Reason::NoConfig | Reason::StillRunning | Reason::Locked
                            )) =>
                {
                    self.clock.sleep(PAUSE * tried).await;
                }
                Ok(()) => {
                    let name = name_of(located.kind, located.vmid, &located.node);
                    let detail = format!("{name} still exists after it was deleted");
                    return Err(PveError::new(ErrorClass::Broken, Reason::Other, detail));
                }
                Err(error) => return Err(error),
            }
        }
        for (node, volume) in seeds {
            self.remove_file(&node, &volume).await?;
        }
        self.remove_seeds(guest).await
    }

    /// Removes the first-boot data of a guest that was not created. A guest that is being created may be
    /// this one, which is known only when it is complete.
    async fn remove_leftovers(&self, guest: &GuestRef) -> Result<(), PveError> {
        let mut found = self.search(&guest.uuid).await?;
        if let SearchResult::Unidentified(located) | SearchResult::Ours(located) = found {
            self.wait_for_unlock(located).await?;
            found = self.search(&guest.uuid).await?;
        }
        match found {
            SearchResult::Disowned(_) | SearchResult::NotFound => self.remove_seeds(guest).await,
            SearchResult::Unidentified(located) => {
                Err(incomplete_error(&located, self.sees_all_tasks().await?))
            }
            SearchResult::Ours(located) => {
                let name = name_of(located.kind, located.vmid, &located.node);
                let detail = format!("{name} was created meanwhile");
                Err(PveError::new(
                    ErrorClass::Busy,
                    Reason::AlreadyExists,
                    detail,
                ))
            }
            // The first-boot data may be in use by one of them.
            SearchResult::Duplicates(_) | SearchResult::Conflicting(_) => Ok(()),
        }
    }

    /// Finds the unlocked guest to delete; `None` if it does not exist. Refuses one that is not on the
    /// planned host.
    async fn removable(&self, guest: &GuestRef) -> Result<Option<Located>, PveError> {
        let mut found = self.find(guest).await?;
        // It may be ours, which is known only when it is complete.
        if let SearchResult::Unidentified(located) = found {
            if located.kind != guest.kind {
                return Ok(None);
            }
            self.wait_for_unlock(located).await?;
            found = self.find(guest).await?;
        }
        let located = match found {
            SearchResult::Ours(located) => located,
            SearchResult::Duplicates(guests) => return Err(duplicates_error(&guests)),
            SearchResult::Conflicting(located) => {
                return Err(conflict_error(&located, &guest.uuid));
            }
            SearchResult::Unidentified(located) => {
                return Err(incomplete_error(&located, self.sees_all_tasks().await?));
            }
            SearchResult::Disowned(located) => return Err(disowned_error(&located, &guest.uuid)),
            SearchResult::NotFound => return Ok(None),
        };
        if located.node != guest.host {
            let name = name_of(located.kind, located.vmid, &located.node);
            let detail = format!("{name} was on {} when its deletion was planned", guest.host);
            return Err(PveError::new(ErrorClass::Refused, Reason::Other, detail)
                .with_hint("create a new plan"));
        }
        let Some(located) = self.wait_for_unlock(located).await? else {
            return Ok(None);
        };
        match located.ownership(&guest.uuid) {
            Ownership::Ours => {}
            Ownership::Conflicting => return Err(conflict_error(&located, &guest.uuid)),
            Ownership::Other if located.is_disowned(&guest.uuid) => {
                return Err(disowned_error(&located, &guest.uuid));
            }
            Ownership::Other => return Ok(None),
        }
        if located.config.flag("protection") {
            let name = name_of(located.kind, located.vmid, &located.node);
            let detail = format!("{name} is protected from deletion");
            return Err(
                PveError::new(ErrorClass::Refused, Reason::Protected, detail).with_hint(
                    "remove its protection first (`--protection 0`) if it is to be deleted",
                ),
            );
        }
        Ok(Some(located))
    }

    /// Stops the guest if it is running; deletes it otherwise.
    async fn remove_once(&self, located: &Located) -> Result<(), PveError> {
        match self.fetch_power(located).await? {
            PowerState::Stopped => {}
            // This takes a while, so the identity is verified again before deletion.
            PowerState::Running => return self.switch_off(located).await,
            PowerState::Unknown => {
                let name = name_of(located.kind, located.vmid, &located.node);
                let detail = format!("the power state of {name} is unknown");
                return Err(PveError::new(ErrorClass::Broken, Reason::Other, detail));
            }
        }
        let storage = located
            .config
            .first_disk(located.kind)
            .and_then(|disk| disk.volume.split(':').next().map(str::to_owned))
            .unwrap_or_default();
        let _permit = self.limiter.storage(&located.node, &storage).await;
        let call = by_kind(located.kind, &VM_DELETE, &CT_DELETE)
            .at("node", &located.node)
            .at("vmid", located.vmid)
            .param("purge", 1);
        self.run(&call).await
    }

    async fn switch_off(&self, located: &Located) -> Result<(), PveError> {
        let overrule = self.version().await?.number >= (8, 2);
        let call = by_kind(located.kind, &VM_STOP, &CT_STOP)
            .at("node", &located.node)
            .at("vmid", located.vmid)
            .optional_param("overrule-shutdown", overrule.then_some(1));
        match self.run(&call).await {
            Err(error) if error.reason == Reason::NotRunning => Ok(()),
            result => result,
        }
    }

    /// Removes the guest's seed from the ISO storages of its host.
    async fn remove_seeds(&self, guest: &GuestRef) -> Result<(), PveError> {
        if guest.kind == GuestKind::Ct {
            return Ok(());
        }
        let file = seed::file_name(&guest.uuid);
        for (node, volume) in
            self.seeds().await?.into_iter().filter_map(|seed| {
                (seed.file.name == file).then_some((seed.node, seed.file.volume))
            })
        {
            self.remove_file(&node, &volume).await?;
        }
        Ok(())
    }

    /// Ejects the CD with the first-boot data from a guest, then removes it.
    pub(super) async fn eject_seed(&self, guest: &GuestRef) -> Result<(), PveError> {
        if guest.kind == GuestKind::Ct {
            return Ok(());
        }
        let _permit = self.lock_guest(guest).await;
        let Some(found) = self.find_for_change(guest).await? else {
            return self.remove_seeds(guest).await;
        };
        let ending = format!("/{}", seed::file_name(&guest.uuid));
        // Recorded before it is ejected.
        let seeds = seeds_of(&found, &guest.uuid);
        self.retry_while_locked(&found.node, found.vmid, || async {
            let mut tries = 0;
            loop {
                let located = self.require_for_change(guest).await?;
                let drives = located.config.cd_drives();
                let seed = drives.iter().find(|(_, volume)| volume.ends_with(&ending));
                let result = match seed {
                    Some((slot, _)) => self.eject(&located, slot).await,
                    // Ejecting added the empty drive to the boot order.
                    None if is_seed_in_boot_order(&located) && is_empty(&drives) => {
                        self.run(&boot_order_call(&located)?).await
                    }
                    None => return Ok(()),
                };
                tries += 1;
                match result {
                    // The check at the top of the loop decides what remains to be done.
                    Ok(()) if tries < 2 * TRIES => {}
                    Err(error) if error.may_have_acted() && tries < TRIES => {
                        self.clock.sleep(PAUSE).await;
                    }
                    result => return result,
                }
            }
        })
        .await?;
        for (node, volume) in seeds {
            self.remove_file(&node, &volume).await?;
        }
        self.remove_seeds(guest).await
    }

    async fn eject(&self, located: &Located, slot: &str) -> Result<(), PveError> {
        if slot != SEED_SLOT {
            let name = name_of(located.kind, located.vmid, &located.node);
            let detail = format!("the first-boot CD of {name} was moved to {slot}");
            return Err(PveError::new(ErrorClass::Refused, Reason::Other, detail)
                .with_hint(format!("eject {slot} manually")));
        }
        let call = change_of(located)?.param(SEED_SLOT, "none,media=cdrom");
        self.run(&call).await
    }

    /// Lists our seeds in every reachable storage with ISO content.
    pub(super) async fn seeds(&self) -> Result<Vec<SeedFile>, PveError> {
        let observed = self.observe_all().await?;
        let mut seeds = Vec::new();
        let mut shared = BTreeSet::new();
        for storage in &observed.storages {
            let online = observed
                .hosts
                .iter()
                .any(|host| host.name == storage.host && host.online);
            let cds = storage.content.iter().any(|kind| kind == "iso");
            if !storage.active || !cds || !online {
                continue;
            }
            if storage.shared && !shared.insert(storage.name.clone()) {
                continue;
            }
            let content = StorageContent {
                node: &storage.host,
                storage: &storage.name,
                kind: "iso",
            };
            let files = match self.files(&content).await {
                Ok(files) => files,
                // A storage that we may not list contains none of our files.
                Err(error) if error.reason == Reason::Permission => continue,
                Err(error) => return Err(error),
            };
            seeds.extend(files.into_iter().filter_map(|file| {
                seed::owner(&file.name)?;
                Some(SeedFile {
                    node: storage.host.clone(),
                    file,
                })
            }));
        }
        Ok(seeds)
    }
}

/// Returns whether the drive of the seed is there and empty.
fn is_empty(drives: &[(String, String)]) -> bool {
    let mut drives = drives.iter();
    drives.any(|(slot, volume)| slot == SEED_SLOT && volume == "none")
}

/// Returns the seeds a guest's drives hold, with the host that has them.
fn seeds_of(located: &Located, uuid: &GuestUuid) -> Vec<(String, String)> {
    let ending = format!("/{}", seed::file_name(uuid));
    let drives = located.config.cd_drives().into_iter();
    drives
        .filter(|(_, volume)| volume.ends_with(&ending))
        .map(|(_, volume)| (located.node.clone(), volume))
        .collect()
}

/// A seed in a storage.
pub(super) struct SeedFile {
    pub(super) node: String,
    pub(super) file: super::image::StorageFile,
}
