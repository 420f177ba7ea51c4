//! Resizes disks to an absolute size, so that a repeated call has no further effect. Never shrinks.

use homestak_engine::ports::{Bytes, ErrorClass, Gib, GuestKind, GuestUuid};

use super::client::{Pve, by_kind, name_of, upid};
use super::error::{PveError, Reason};
use super::finish::digest_of;
use super::identity::Ownership;
use super::locate::{Located, conflict_error};
use super::requests::{ApiCall, CT_RESIZE, VM_RESIZE};

impl Pve {
    /// Resizes the first disk to a size, where it is smaller.
    pub(super) async fn grow_disk_to(
        &self,
        located: &Located,
        uuid: &GuestUuid,
        size: Gib,
    ) -> Result<(), PveError> {
        let wanted = Bytes::from(size).0;
        if has_no_size(located) {
            let name = name_of(located.kind, located.vmid, &located.node);
            self.notifier.warning(format!(
                "the disk of {name} has no size limit and was not resized to {size}"
            ));
            return Ok(());
        }
        if is_large_enough(located, wanted) {
            return Ok(());
        }
        let turn = self
            .limiter
            .disk_growth(&located.node, &storage_of(located))
            .await;
        let result = self
            .retry_while_locked(&located.node, located.vmid, || async {
                let mut tries = 0;
                loop {
                    // Read again each time: the request may have taken effect although its response was lost.
                    let located = self.refetch(located.clone()).await?;
                    if located.ownership(uuid) != Ownership::Ours {
                        return Err(conflict_error(&located, uuid));
                    }
                    let Some(disk) = located.config.first_disk(located.kind) else {
                        let name = name_of(located.kind, located.vmid, &located.node);
                        return Err(PveError::invalid_response(format!(
                            "{name} has no disk to grow"
                        )));
                    };
                    if is_large_enough(&located, wanted) {
                        return Ok(());
                    }
                    let call = by_kind(located.kind, &VM_RESIZE, &CT_RESIZE)
                        .at("node", &located.node)
                        .at("vmid", located.vmid)
                        .param("disk", &disk.slot)
                        .param("size", format!("{}G", size.0))
                        .param("digest", digest_of(&located)?);
                    tries += 1;
                    match self.resize_disk(&call, &located).await {
                        Err(error) if error.may_have_acted() && tries < 4 => {
                            self.clock.sleep(self.settings.limits.connect).await;
                        }
                        result => return result,
                    }
                }
            })
            .await;
        drop(turn);
        result
    }

    /// Resizes a disk and verifies the result. The task of a container succeeds even if only the
    /// volume and not its file system was resized; only its log shows that.
    async fn resize_disk(&self, call: &ApiCall, located: &Located) -> Result<(), PveError> {
        let upid = upid(&self.change(call).await?)?;
        self.follow(&upid).await?;
        if located.kind == GuestKind::Vm {
            return Ok(());
        }
        let log = self.log_tail(&upid).await;
        let Some(line) = log.iter().find(|line| line.contains(NOT_GROWN)) else {
            return Ok(());
        };
        let name = name_of(located.kind, located.vmid, &located.node);
        let detail =
            format!("the volume of {name} was resized, but its file system was not: {line}");
        let hint = format!(
            "resize it as root on {}: stop the container, then run `e2fsck -f` and `resize2fs` on its volume",
            located.node
        );
        Err(PveError::new(ErrorClass::Refused, Reason::Other, detail)
            .with_log(log.clone())
            .with_hint(hint))
    }
}

/// Log message of a task that resized a volume but not its file system.
const NOT_GROWN: &str = "Failed to update the container's filesystem";

/// Returns whether a container's disk is a directory, which has no size (`size=0T`) and cannot be
/// resized.
fn has_no_size(located: &Located) -> bool {
    let disk = located.config.first_disk(located.kind);
    located.kind == GuestKind::Ct && disk.is_some_and(|disk| disk.size.unwrap_or(0) == 0)
}

/// Returns whether the first disk is as large as wanted.
fn is_large_enough(located: &Located, wanted: u64) -> bool {
    let disk = located.config.first_disk(located.kind);
    disk.is_some_and(|disk| disk.size.is_some_and(|size| size >= wanted))
}

fn storage_of(located: &Located) -> String {
    let disk = located.config.first_disk(located.kind);
    let volume = disk.map(|disk| disk.volume).unwrap_or_default();
    volume.split(':').next().unwrap_or_default().to_owned()
}
