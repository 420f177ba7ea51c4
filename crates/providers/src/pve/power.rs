//! Starts and stops guests. Success is reported only after the power state was read back.

use std::time::Duration;

use homestak_engine::ports::{ErrorClass, GuestRef, PowerState, Sent, StopMode};

use super::client::{Pve, by_kind, name_of, upid};
use super::error::{PveError, Reason};
use super::locate::Located;
use super::requests::{ApiCall, CT_SHUTDOWN, CT_START, CT_STOP, VM_SHUTDOWN, VM_START, VM_STOP};
use super::task::elapsed;

/// How long the power state may lag behind a successful task (a reboot stops, then starts).
const LAG: Duration = Duration::from_secs(30);
/// The polling interval.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a change is sent when its answer is lost.
const TRIES: u32 = 4;

impl Pve {
    /// Starts a guest.
    pub(super) async fn power_on(&self, guest: &GuestRef) -> Result<(), PveError> {
        self.boots.started(&guest.host, &guest.uuid);
        self.set_power(guest, PowerState::Running, |located, _| {
            by_kind(located.kind, &VM_START, &CT_START)
        })
        .await
    }

    /// Stops a guest.
    pub(super) async fn power_off(&self, guest: &GuestRef, halt: StopMode) -> Result<(), PveError> {
        // Older versions do not know the parameter and refuse the whole call.
        let overrule = self.version().await?.number >= (8, 2);
        self.set_power(guest, PowerState::Stopped, |located, first| match halt {
            StopMode::Graceful(patience) if first => {
                by_kind(located.kind, &VM_SHUTDOWN, &CT_SHUTDOWN)
                    .param("timeout", patience.as_secs().max(1))
                    .param("forceStop", 1)
            }
            StopMode::Graceful(_) | StopMode::Now => by_kind(located.kind, &VM_STOP, &CT_STOP)
                .optional_param("overrule-shutdown", overrule.then_some(1)),
        })
        .await
    }

    /// Repeats the change until the guest has the power state. The second argument of `call` is whether it
    /// is the first attempt.
    async fn set_power(
        &self,
        guest: &GuestRef,
        wanted: PowerState,
        call: impl Fn(&Located, bool) -> ApiCall + Send + Sync,
    ) -> Result<(), PveError> {
        let _permit = self.lock_guest(guest).await;
        let mut tried = 0;
        loop {
            let located = self.require_for_change(guest).await?;
            if self.fetch_power(&located).await? == wanted {
                return Ok(());
            }
            tried += 1;
            let request = call(&located, tried == 1)
                .at("node", &located.node)
                .at("vmid", located.vmid);
            let error = match self.run_with_timeout(&request).await {
                Ok(()) => match self.wait_for_power(&located, wanted).await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let again = error.may_have_acted()
                || matches!(
                    error.reason,
                    Reason::AlreadyRunning
                        | Reason::NotRunning
                        | Reason::ShutdownTimeout
                        | Reason::Interrupted
                        | Reason::NoConfig
                        // Network storages show a new disk late.
                        | Reason::NoVolume
                        | Reason::Locked
                );
            if !again || tried >= TRIES {
                return Err(error);
            }
            self.clock.sleep(PAUSE * tried).await;
        }
    }

    /// Runs a call whose task may show no progress while the guest shuts down.
    async fn run_with_timeout(&self, call: &ApiCall) -> Result<(), PveError> {
        let patience = call
            .params()
            .iter()
            .find(|(name, _)| *name == "timeout")
            .and_then(|(_, value)| value.parse().ok())
            .map_or(Duration::ZERO, Duration::from_secs);
        let upid = upid(&self.change(call).await?)?;
        let stall = self.settings.limits.task_stall.max(patience + LAG * 2);
        self.follow_with(&upid, stall).await
    }

    /// Waits until the state is as wanted: with high availability the task only asks for it.
    async fn wait_for_power(&self, located: &Located, wanted: PowerState) -> Result<(), PveError> {
        let started = self.clock.now();
        let mut reported = false;
        loop {
            let power = self.fetch_power(located).await?;
            if power == wanted {
                return Ok(());
            }
            if !reported {
                let name = name_of(located.kind, located.vmid, &located.node);
                let state = match wanted {
                    PowerState::Running => "running",
                    PowerState::Stopped => "stopped",
                    PowerState::Unknown => "settled",
                };
                self.notifier.waiting(format!("{name} to be {state}"));
                reported = true;
            }
            if elapsed(started, self.clock.now()) > LAG {
                let name = name_of(located.kind, located.vmid, &located.node);
                let detail = format!("{name} is {power:?} although its task succeeded");
                let class = ErrorClass::Unreachable { sent: Sent::Maybe };
                return Err(PveError::new(class, Reason::Other, detail));
            }
            self.clock.sleep(PAUSE).await;
        }
    }
}
