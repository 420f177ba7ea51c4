//! Incomplete guests: locked with `create` or `clone`, but no task that creates them is running, as
//! after a crash of the host.
//!
//! The lock is not removed, because only root can do that. A guest whose owner is unknown is not
//! deleted: the initial configuration of a clone does not identify it.

use std::time::Duration;

use homestak_engine::ports::{ErrorClass, GuestKind};
use jiff::Timestamp;

use super::client::{Pve, name_of};
use super::config::GuestConfig;
use super::error::{PveError, Reason};
use super::facts::parse_privileges;
use super::locate::Located;
use super::preflight::holds;
use super::requests::{ApiCall, PERMISSIONS};
use super::task::{RunningTask, elapsed};

/// Returns whether a guest is being created, or was left incomplete. Its configuration does not
/// identify it until creation is complete.
pub(super) fn is_being_created(config: &GuestConfig) -> bool {
    let temporary = |notes: &str| notes.contains("clone temporary file");
    matches!(config.lock().as_deref(), Some("create" | "clone"))
        || config.notes().is_some_and(temporary)
}

/// The time since which a guest that is locked for creation has no task that creates it. One
/// observation is not enough: a task may end between two requests and leave its lock in the first
/// response.
#[derive(Default)]
pub(super) struct UnattendedSince(Option<Timestamp>);

impl UnattendedSince {
    /// Records an observation; returns whether no task has created the guest for longer than `time`.
    pub(super) fn exceeds(&mut self, time: Duration, made: bool, now: Timestamp) -> bool {
        if made {
            self.0 = None;
            return false;
        }
        let since = *self.0.get_or_insert(now);
        elapsed(since, now) > time
    }
}

impl Pve {
    /// Returns whether a task that creates the guest is running: on its host or, since a clone runs
    /// on the host of its source, on any other.
    pub(super) async fn has_creating_task(
        &self,
        kind: GuestKind,
        node: &str,
        vmid: u32,
    ) -> Result<bool, PveError> {
        let makes =
            |tasks: Vec<RunningTask>| tasks.iter().any(|task| is_creating_task(task, kind, vmid));
        if makes(self.running_tasks(node, None).await?) {
            return Ok(true);
        }
        for host in self.observe_all().await?.hosts {
            if host.online
                && host.name != node
                && makes(self.running_tasks(&host.name, None).await?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Pve {
    /// Returns whether the token sees the tasks of other users on every host.
    pub(super) async fn sees_all_tasks(&self) -> Result<bool, PveError> {
        let privileges = parse_privileges(&self.ask(&ApiCall::to(&PERMISSIONS)).await?);
        let hosts = self.observe_all().await?.hosts;
        Ok(hosts.iter().all(|host| {
            let path = format!("/nodes/{}", host.name);
            host.online && holds(&privileges, &path, "Sys.Audit")
        }))
    }
}

/// Returns whether a task may be creating a guest. The task of a clone names its source, so any clone may.
fn is_creating_task(task: &RunningTask, kind: GuestKind, vmid: u32) -> bool {
    let (makers, copier): (&[&str], &str) = match kind {
        GuestKind::Vm => (&["qmcreate", "qmrestore"], "qmclone"),
        GuestKind::Ct => (&["vzcreate", "vzrestore"], "vzclone"),
    };
    let upid = &task.upid;
    upid.kind == copier || (makers.contains(&upid.kind.as_str()) && upid.vmid() == Some(vmid))
}

/// Returns the error for an incomplete guest. If tasks of other users are not visible, one of them
/// may still be creating it, so that the call may be retried.
pub(super) fn incomplete_error(located: &Located, sees_all_tasks: bool) -> PveError {
    let Located {
        kind, vmid, node, ..
    } = located;
    let name = name_of(*kind, *vmid, node);
    let lock = located.config.lock().unwrap_or_default();
    let tool = match kind {
        GuestKind::Vm => "qm",
        GuestKind::Ct => "pct",
    };
    let (class, makers) = match sees_all_tasks {
        true => (ErrorClass::Refused, "no running task is creating it"),
        false => (
            ErrorClass::Busy,
            "no task visible to this token is creating it",
        ),
    };
    let detail = format!("{name} is incomplete: locked (`{lock}`), and {makers}");
    PveError::new(class, Reason::Incomplete, detail).with_hint(format!(
        "no API token may remove this lock; as root on {node}, once `pvesh get \
         /nodes/{node}/tasks --source active` (on each host of a cluster) lists no task that creates \
         it, run `{tool} unlock {vmid}` and `{tool} destroy {vmid} --destroy-unreferenced-disks 1`; \
         then try again"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pve::upid::Upid;

    #[test]
    fn a_guest_being_created_is_recognised_by_lock_or_notes() {
        let made = |config| is_being_created(&GuestConfig::new(config));
        assert!(made(json!({"lock": "create"})));
        assert!(made(json!({"description": " qmclone temporary file"})));
        assert!(made(json!({"description": " vzclone temporary file"})));
        assert!(!made(json!({"lock": "backup"})));
        assert!(!made(json!({"name": "n1"})));
    }

    #[test]
    fn a_guest_is_unattended_only_after_a_grace_period() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let grace = Duration::from_secs(5);
        let mut unattended = UnattendedSince::default();
        // However late the first observation is.
        assert!(!unattended.exceeds(grace, false, at(100)));
        assert!(!unattended.exceeds(grace, false, at(104)));
        assert!(unattended.exceeds(grace, false, at(106)));
        // A creating task resets the timer.
        assert!(!unattended.exceeds(grace, true, at(107)));
        assert!(!unattended.exceeds(grace, false, at(120)));
    }

    #[test]
    fn any_clone_task_may_create_a_guest_other_tasks_name_it() {
        let task = |kind: &str, id: u32| RunningTask {
            upid: Upid::parse(&format!("UPID:pve1:1:2:6AFA22C5:{kind}:{id}:root@pam:"))
                .expect("an id"),
        };
        assert!(is_creating_task(&task("qmclone", 9000), GuestKind::Vm, 100));
        assert!(is_creating_task(&task("qmcreate", 100), GuestKind::Vm, 100));
        assert!(!is_creating_task(
            &task("qmcreate", 101),
            GuestKind::Vm,
            100
        ));
        assert!(!is_creating_task(&task("qmclone", 100), GuestKind::Ct, 100));
        assert!(!is_creating_task(&task("vzdump", 100), GuestKind::Ct, 100));
    }
}
