//! Other CPUs and memory for a guest that is there.
//!
//! In: a guest and sizes. Out: its configuration says so; a guest that runs has them from its next
//! start on.
//! Never: a restart; that is a plan's decision.

use homestak_engine::ports::{GuestKind, GuestRef, Mib};

use super::client::{Pve, by_kind};
use super::fault::Fault;
use super::finish::digest_of;
use super::identity::Claim;
use super::locate::{Located, contested};
use super::requests::{CT_CHANGE, VM_CHANGE};

impl Pve {
    /// Gives a guest CPUs and memory, where it has others.
    pub(super) async fn resize_guest(
        &self,
        guest: &GuestRef,
        cores: u32,
        memory: Mib,
    ) -> Result<(), Fault> {
        let _turn = self.turn(guest).await;
        let located = self.require(guest).await?;
        self.past_locks(&located.node, located.vmid, || async {
            let mut tries = 0;
            loop {
                // Read again each time: a lost answer may have changed it already.
                let located = self.reread(located.clone()).await?;
                if located.claim(&guest.uuid) != Claim::Ours {
                    return Err(contested(&located, &guest.uuid));
                }
                if has(&located, cores, memory) {
                    return Ok(());
                }
                let call = by_kind(located.kind, &VM_CHANGE, &CT_CHANGE)
                    .at("node", &located.node)
                    .at("vmid", located.vmid)
                    .param("cores", cores)
                    .param("memory", memory.0)
                    .param("digest", digest_of(&located)?);
                let result = match located.kind {
                    GuestKind::Vm => self.run(&call).await.map(|_| ()),
                    GuestKind::Ct => self.change(&call).await.map(|_| ()),
                };
                tries += 1;
                match result {
                    Err(fault) if fault.may_have_acted() && tries < 4 => {
                        self.clock.sleep(self.settings.limits.connect).await;
                    }
                    result => return result,
                }
            }
        })
        .await
    }
}

/// Tells whether the configuration has the sizes already.
fn has(located: &Located, cores: u32, memory: Mib) -> bool {
    let config = &located.config;
    config.number("cores") == Some(cores.into()) && config.number("memory") == Some(memory.0)
}
