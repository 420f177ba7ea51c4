//! Growing a disk: to a size, never by one.
//!
//! In: where the guest is and a size. Out: the first disk is at least as large.
//! Never: a relative size, which would grow twice when repeated; shrinking.

use homestak_engine::ports::{GuestKind, GuestUuid};

use super::client::{Pve, by_kind, name_of};
use super::fault::Fault;
use super::finish::digest_of;
use super::identity::Claim;
use super::locate::{Located, contested};
use super::requests::{CT_RESIZE, VM_RESIZE};

impl Pve {
    /// Grows the first disk to a size in GiB, where it is smaller.
    pub(super) async fn grow(
        &self,
        located: &Located,
        uuid: &GuestUuid,
        gib: u64,
    ) -> Result<(), Fault> {
        let wanted = gib << 30;
        if is_large(located, wanted) {
            return Ok(());
        }
        let turn = self.guard.growth(&located.node, &storage_of(located)).await;
        let result = self
            .past_locks(&located.node, located.vmid, || async {
                let mut tries = 0;
                loop {
                    // Read again each time: a lost answer may have grown it already.
                    let located = self.reread(located.clone()).await?;
                    if located.claim(uuid) != Claim::Ours {
                        return Err(contested(&located, uuid));
                    }
                    let Some(disk) = located.config.first_disk(located.kind) else {
                        let name = name_of(located.kind, located.vmid, &located.node);
                        return Err(Fault::garbage(format!("{name} has no disk to grow")));
                    };
                    if is_large(&located, wanted) {
                        return Ok(());
                    }
                    let call = by_kind(located.kind, &VM_RESIZE, &CT_RESIZE)
                        .at("node", &located.node)
                        .at("vmid", located.vmid)
                        .param("disk", &disk.slot)
                        .param("size", format!("{gib}G"))
                        .param("digest", digest_of(&located)?);
                    tries += 1;
                    match self.run(&call).await {
                        Err(fault) if fault.may_have_acted() && tries < 4 => {
                            self.clock.sleep(self.settings.limits.connect).await;
                        }
                        result => return result.map(|_| ()),
                    }
                }
            })
            .await;
        drop(turn);
        result
    }
}

/// Tells whether the first disk is as large as wanted. A container's on a directory has no size of
/// its own (`size=0T`), and cannot be grown either.
fn is_large(located: &Located, wanted: u64) -> bool {
    let Some(disk) = located.config.first_disk(located.kind) else {
        return false;
    };
    let boundless = located.kind == GuestKind::Ct && disk.size.unwrap_or(0) == 0;
    boundless || disk.size.is_some_and(|size| size >= wanted)
}

fn storage_of(located: &Located) -> String {
    let disk = located.config.first_disk(located.kind);
    let volume = disk.map(|disk| disk.volume).unwrap_or_default();
    volume.split(':').next().unwrap_or_default().to_owned()
}
