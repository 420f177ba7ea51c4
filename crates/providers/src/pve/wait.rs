//! Waits for locks held by others, with a time limit. Never breaks a lock.

use std::time::Duration;

use homestak_engine::ports::ErrorClass;

use super::client::{Pve, name_of};
use super::error::{PveError, Reason};
use super::incomplete::{UnattendedSince, incomplete_error, is_being_created};
use super::locate::Located;
use super::task::elapsed;

/// The polling interval for locks.
const PAUSE: Duration = Duration::from_secs(2);

impl Pve {
    /// Waits until a guest is not locked. It may have been deleted or replaced then: the caller checks
    /// the configuration. A guest that is being created is waited for only while a task creates it,
    /// or may do so without being visible.
    pub(super) async fn wait_for_unlock(
        &self,
        located: Located,
    ) -> Result<Option<Located>, PveError> {
        let started = self.clock.now();
        let Located {
            kind,
            vmid,
            node,
            mut config,
        } = located;
        let mut reported = None;
        let mut unattended = UnattendedSince::default();
        loop {
            let Some(lock) = config.lock() else {
                return Ok(Some(Located {
                    kind,
                    vmid,
                    node,
                    config,
                }));
            };
            if elapsed(started, self.clock.now()) > self.settings.limits.lock {
                if is_being_created(&config) && !self.has_creating_task(kind, &node, vmid).await? {
                    let located = Located {
                        kind,
                        vmid,
                        node,
                        config,
                    };
                    return Err(incomplete_error(&located, false));
                }
                let detail = format!("{} is locked (`{lock}`)", name_of(kind, vmid, &node));
                let holder = self.lock_holder(&node, vmid).await;
                return Err(locked_error(detail, holder));
            }
            if reported.as_ref() != Some(&lock) {
                let holder = self.lock_holder(&node, vmid).await;
                self.notifier.waiting(waiting_for(&lock, holder.as_deref()));
                reported = Some(lock);
            }
            if is_being_created(&config) {
                let made = self.has_creating_task(kind, &node, vmid).await?;
                let grace = self.settings.limits.grace;
                if unattended.exceeds(grace, made, self.clock.now())
                    && self.sees_all_tasks().await?
                {
                    let located = Located {
                        kind,
                        vmid,
                        node,
                        config,
                    };
                    return Err(incomplete_error(&located, true));
                }
            }
            self.clock.sleep(PAUSE).await;
            match self.config_at(kind, &node, vmid).await? {
                Some(now) => config = now,
                None => return Ok(None),
            }
        }
    }

    /// Repeats a change while the guest is locked. `attempt` must check the state first.
    pub(super) async fn retry_while_locked<T, F>(
        &self,
        node: &str,
        vmid: u32,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, PveError>
    where
        F: Future<Output = Result<T, PveError>>,
    {
        let started = self.clock.now();
        let mut pause = PAUSE;
        let mut reported = false;
        loop {
            let error = match attempt().await {
                Err(error) if matches!(error.reason, Reason::Locked | Reason::DigestMismatch) => {
                    error
                }
                result => return result,
            };
            if elapsed(started, self.clock.now()) > self.settings.limits.lock {
                let holder = self.lock_holder(node, vmid).await;
                return Err(locked_error(error.detail.into(), holder).with_log(error.log));
            }
            if !reported {
                self.notifier.waiting(error.detail);
                reported = true;
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE * 8);
        }
    }

    /// Returns the task that holds the lock of a guest, if there is one.
    async fn lock_holder(&self, node: &str, vmid: u32) -> Option<String> {
        let tasks = self.running_tasks(node, Some(vmid)).await.ok()?;
        let task = tasks.into_iter().next()?;
        Some(format!(
            "{} of {} ({})",
            task.upid.kind, task.upid.user, task.upid
        ))
    }
}

/// Describes what is being waited for.
fn waiting_for(lock: &str, holder: Option<&str>) -> String {
    match holder {
        Some(holder) => format!("lock \"{lock}\" held by {holder}"),
        None => format!("lock \"{lock}\" held by no visible task"),
    }
}

fn locked_error(detail: String, holder: Option<String>) -> PveError {
    let (detail, hint) = match holder {
        Some(holder) => (
            format!("{detail}; running: {holder}"),
            "wait for this task, or stop it".to_owned(),
        ),
        None => (
            detail,
            "no task visible to this token is running for it; if it was left by a crash, \
             `qm unlock` or `pct unlock` on the host removes it"
                .to_owned(),
        ),
    };
    PveError::new(ErrorClass::Busy, Reason::Locked, detail).with_hint(hint)
}
