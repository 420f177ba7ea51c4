//! Finding out what became of a create call: the answer was lost, or the id was taken.
//!
//! In: the guest, the id, the host. Out: [`Outcome`], once it is certain.
//! Never: a second guest; the same id is used until it is known to belong to someone else.

use std::time::Duration;

use homestak_engine::ports::{Class, NewGuest};

use super::client::{Pve, name_of};
use super::fault::{Fault, Reason};
use super::half::{Alone, being_made, half_made};
use super::identity::Claim;
use super::locate::Located;
use super::task::elapsed;

/// The pause between looks.
const PAUSE: Duration = Duration::from_secs(1);

/// What is at an id.
pub(super) enum Outcome {
    /// The guest.
    Made(Located),
    /// Someone else's guest.
    Taken,
    /// Nothing, and nothing is under way.
    Nothing,
}

impl Pve {
    /// Looks until it is certain what is at an id. `lost` says whether a request may still be on
    /// its way.
    pub(super) async fn settle(
        &self,
        guest: &NewGuest,
        vmid: u32,
        lost: Option<&Fault>,
    ) -> Result<Outcome, Fault> {
        let started = self.clock.now();
        let limits = &self.settings.limits;
        let mut said = false;
        let mut alone = Alone::default();
        loop {
            let passed = elapsed(started, self.clock.now());
            match self.at_id(guest, vmid).await? {
                Some(located) => match located.claim(&guest.uuid) {
                    Claim::Ours => return Ok(Outcome::Made(located)),
                    // A guest being made says nothing about itself until it is done.
                    Claim::Other | Claim::Impostor if being_made(&located.config) => {
                        let made = self.has_maker(guest.kind, &guest.host, vmid).await?;
                        let all = alone.for_longer_than(limits.grace, made, self.clock.now())
                            && self.sees_all_tasks().await?;
                        if all || !made && passed > limits.settle {
                            return Err(half_made(&located, all));
                        }
                    }
                    Claim::Other | Claim::Impostor => return Ok(Outcome::Taken),
                },
                None if self.is_being_made(guest, vmid).await? => {}
                None => {
                    let waits = lost.is_some() && passed < limits.grace;
                    if !waits && self.other_kind(guest, vmid).await? {
                        return Ok(Outcome::Taken);
                    }
                    if !waits {
                        return Ok(Outcome::Nothing);
                    }
                }
            }
            if passed > limits.settle {
                let name = name_of(guest.kind, vmid, &guest.host);
                let detail = format!("{name} is being made since {} s", passed.as_secs());
                return Err(Fault::new(Class::Busy, Reason::Stalled, detail)
                    .with_hint("repeat later: what is there by then is completed, not doubled"));
            }
            if !said {
                let name = name_of(guest.kind, vmid, &guest.host);
                self.voice.waiting(match lost {
                    Some(_) => format!("what became of the request for {name}"),
                    None => format!("{name}, which is being made"),
                });
                said = true;
            }
            self.clock.sleep(PAUSE).await;
        }
    }

    /// Reads what is at an id, on the host the guest is made on or wherever the list has it.
    pub(super) async fn at_id(
        &self,
        guest: &NewGuest,
        vmid: u32,
    ) -> Result<Option<Located>, Fault> {
        let config = self.config_at(guest.kind, &guest.host, vmid).await?;
        Ok(config.map(|config| Located {
            kind: guest.kind,
            vmid,
            node: guest.host.clone(),
            config,
        }))
    }

    /// Tells whether the id belongs to a guest elsewhere, or of the other kind.
    async fn other_kind(&self, guest: &NewGuest, vmid: u32) -> Result<bool, Fault> {
        let rows = self.guests().await?;
        Ok(rows.iter().any(|row| {
            row.vmid == vmid.into() && (row.kind != guest.kind || row.host != guest.host)
        }))
    }

    /// Tells whether a task of ours that may be making the guest still runs.
    async fn is_being_made(&self, guest: &NewGuest, vmid: u32) -> Result<bool, Fault> {
        let user = self.settings.credential.user();
        let tasks = self.running_tasks(&guest.host, None).await?;
        Ok(tasks.iter().any(|task| {
            task.upid.user == user
                && matches!(task.upid.kind.as_str(), "qmcreate" | "vzcreate")
                && task.upid.vmid() == Some(vmid)
        }))
    }
}
