//! Changes CPUs and memory of an existing guest. Takes effect at its next start; never restarts it.

use homestak_engine::ports::{GuestKind, GuestRef, Mib};

use super::client::{Pve, by_kind};
use super::error::PveError;
use super::finish::digest_of;
use super::identity::Ownership;
use super::locate::{Located, conflict_error};
use super::requests::{CT_CHANGE, VM_CHANGE};

impl Pve {
    /// Sets CPUs and memory of a guest if they differ.
    pub(super) async fn set_cores_and_memory(
        &self,
        guest: &GuestRef,
        cores: u32,
        memory: Mib,
    ) -> Result<(), PveError> {
        let _permit = self.lock_guest(guest).await;
        let located = self.require_for_change(guest).await?;
        self.retry_while_locked(&located.node, located.vmid, || async {
            let mut tries = 0;
            loop {
                // Read again each time: the request may have taken effect although its response was lost.
                let located = self.refetch(located.clone()).await?;
                if located.ownership(&guest.uuid) != Ownership::Ours {
                    return Err(conflict_error(&located, &guest.uuid));
                }
                if has_sizes(&located, cores, memory) {
                    return Ok(());
                }
                let call = by_kind(located.kind, &VM_CHANGE, &CT_CHANGE)
                    .at("node", &located.node)
                    .at("vmid", located.vmid)
                    .param("cores", cores)
                    .param("memory", memory.0)
                    .param("digest", digest_of(&located)?);
                let result = match located.kind {
                    GuestKind::Vm => self.run(&call).await,
                    GuestKind::Ct => self.change(&call).await.map(|_| ()),
                };
                tries += 1;
                match result {
                    Err(error) if error.may_have_acted() && tries < 4 => {
                        self.clock.sleep(self.settings.limits.connect).await;
                    }
                    result => return result,
                }
            }
        })
        .await
    }
}

/// Returns whether the configuration has the sizes already.
fn has_sizes(located: &Located, cores: u32, memory: Mib) -> bool {
    let config = &located.config;
    config.number("cores") == Some(cores.into()) && config.number("memory") == Some(memory.0)
}
