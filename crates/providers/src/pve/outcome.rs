//! Determines the result of a create call whose response was lost, or whose id was in use.
//!
//! The same id is used until it is known to belong to another guest, so that no second guest is created.

use std::time::Duration;

use homestak_engine::ports::{ErrorClass, NewGuest};

use super::client::{Pve, name_of};
use super::error::{PveError, Reason};
use super::identity::Ownership;
use super::incomplete::{UnattendedSince, incomplete_error, is_being_created};
use super::locate::Located;
use super::task::elapsed;

/// The polling interval.
const PAUSE: Duration = Duration::from_secs(1);

/// What is at an id.
pub(super) enum CreateOutcome {
    /// The guest.
    Created(Located),
    /// Another guest.
    Taken,
    /// Nothing, and no request is in transit.
    Absent,
}

impl Pve {
    /// Polls until it is certain what is at an id. `lost` is whether a request may still be in
    /// transit.
    pub(super) async fn settle(
        &self,
        guest: &NewGuest,
        vmid: u32,
        lost: Option<&PveError>,
    ) -> Result<CreateOutcome, PveError> {
        let started = self.clock.now();
        let limits = &self.settings.limits;
        let mut reported = false;
        let mut unattended = UnattendedSince::default();
        loop {
            let passed = elapsed(started, self.clock.now());
            match self.fetch_at(guest, vmid).await? {
                Some(located) => match located.ownership(&guest.uuid) {
                    Ownership::Ours => return Ok(CreateOutcome::Created(located)),
                    // A guest that is being created has no identity until it is complete.
                    Ownership::Other | Ownership::Conflicting
                        if is_being_created(&located.config) =>
                    {
                        let made = self
                            .has_creating_task(guest.kind, &guest.host, vmid)
                            .await?;
                        let all = unattended.exceeds(limits.grace, made, self.clock.now())
                            && self.sees_all_tasks().await?;
                        if all || !made && passed > limits.settle {
                            return Err(incomplete_error(&located, all));
                        }
                    }
                    Ownership::Other | Ownership::Conflicting => return Ok(CreateOutcome::Taken),
                },
                None if self.is_creating(guest, vmid).await? => {}
                None => {
                    let waits = lost.is_some() && passed < limits.grace;
                    if !waits && self.is_id_used_elsewhere(guest, vmid).await? {
                        return Ok(CreateOutcome::Taken);
                    }
                    if !waits {
                        return Ok(CreateOutcome::Absent);
                    }
                }
            }
            if passed > limits.settle {
                let name = name_of(guest.kind, vmid, &guest.host);
                let detail = format!("{name} has been in creation for {} s", passed.as_secs());
                return Err(
                    PveError::new(ErrorClass::Busy, Reason::Stalled, detail).with_hint(
                        "try again later: an existing guest is completed, not created twice",
                    ),
                );
            }
            if !reported {
                let name = name_of(guest.kind, vmid, &guest.host);
                self.notifier.waiting(match lost {
                    Some(_) => format!("the result of the create request for {name}"),
                    None => format!("{name}, which is being created"),
                });
                reported = true;
            }
            self.clock.sleep(PAUSE).await;
        }
    }

    /// Reads what is at an id, on the host the guest is created on or wherever the list has it.
    pub(super) async fn fetch_at(
        &self,
        guest: &NewGuest,
        vmid: u32,
    ) -> Result<Option<Located>, PveError> {
        let config = self.config_at(guest.kind, &guest.host, vmid).await?;
        Ok(config.map(|config| Located {
            kind: guest.kind,
            vmid,
            node: guest.host.clone(),
            config,
        }))
    }

    /// Returns whether the id belongs to a guest elsewhere, or of the other kind.
    async fn is_id_used_elsewhere(&self, guest: &NewGuest, vmid: u32) -> Result<bool, PveError> {
        let rows = self.guests().await?;
        Ok(rows.iter().any(|row| {
            row.vmid == vmid.into() && (row.kind != guest.kind || row.host != guest.host)
        }))
    }

    /// Returns whether one of our tasks that may create the guest is running.
    async fn is_creating(&self, guest: &NewGuest, vmid: u32) -> Result<bool, PveError> {
        let user = self.settings.credential.user();
        let tasks = self.running_tasks(&guest.host, None).await?;
        Ok(tasks.iter().any(|task| {
            task.upid.user == user
                && matches!(task.upid.kind.as_str(), "qmcreate" | "vzcreate")
                && task.upid.vmid() == Some(vmid)
        }))
    }
}
