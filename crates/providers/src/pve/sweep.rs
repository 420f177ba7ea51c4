//! Removing first-boot data whose guest is gone.
//!
//! In: seeds and guests. Out: how many were removed.
//! Never: a seed of a guest that may exist; one that was just put there for a guest to come.

use std::collections::BTreeSet;

use homestak_engine::ports::{Class, GuestUuid};

use super::client::Pve;
use super::fault::{Fault, Reason};
use super::quirks::parse_bool;
use super::requests::{Call, PERMISSIONS};

/// Seconds a seed is left alone: it is put there before its guest is made.
const YOUNG: u64 = 3600;

impl Pve {
    /// Removes seeds without a guest.
    pub(super) async fn sweep_seeds(&self) -> Result<usize, Fault> {
        let seeds = self.seeds().await?;
        if seeds.is_empty() {
            return Ok(0);
        }
        self.check_sight().await?;
        let guests: BTreeSet<GuestUuid> = self
            .guests()
            .await?
            .into_iter()
            .filter_map(|guest| guest.uuid)
            .collect();
        let now = u64::try_from(self.clock.now().as_second()).unwrap_or(0);
        let mut removed = 0;
        for seed in seeds {
            let old = seed
                .file
                .changed
                .is_some_and(|changed| changed + YOUNG < now);
            if old && !guests.contains(&seed.uuid) {
                self.remove_file(&seed.node, &seed.file.volume).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Makes sure that we see all guests: without the privilege the list is empty, not refused.
    async fn check_sight(&self) -> Result<(), Fault> {
        let call = Call::to(&PERMISSIONS).param("path", "/vms");
        let data = self.ask(&call).await?;
        let sees = data
            .get("/vms")
            .and_then(|held| held.get("VM.Audit"))
            .and_then(parse_bool)
            .is_some();
        if sees {
            return Ok(());
        }
        let detail = "without VM.Audit on /vms guests may exist that we do not see";
        Err(Fault::new(Class::Refused, Reason::Permission, detail)
            .with_hint("grant the role on /vms to the token and its user"))
    }
}
