//! Calls under `.../status`: start, stop, shut down and reboot guests.

use std::time::Duration;

use super::{Context, Outcome};
use crate::guest::drive::volumes;
use crate::guest::identity::is_network;
use crate::schema::property;
use crate::world::Kind;
use crate::world::World;
use crate::world::run::Job;
use crate::world::state::{Boots, Running};

/// How long a shutdown waits for an agent that does not answer, before `timeout` begins.
const AGENT_TIMEOUT: Duration = Duration::from_secs(3);

/// Seconds from the start of a container until it has addresses and SSH answers.
const NETWORK_UP: f64 = 1.5;

/// Returns the type of a task, such as `qmstart` or `vzstart`.
pub(crate) fn task_name(kind: Kind, what: &str) -> String {
    match kind {
        Kind::Qemu => format!("qm{what}"),
        Kind::Lxc => format!("vz{what}"),
    }
}

impl Context {
    fn is_running(&self, kind: Kind, vmid: u32) -> Result<bool, String> {
        let state = self.world.state();
        Ok(state.guest(&self.node, kind, vmid)?.running.is_some())
    }

    /// Fails for a container that is not running, or that does not exist.
    fn require_running(&self, kind: Kind, vmid: u32) -> Result<(), String> {
        if kind == Kind::Lxc && !self.is_running(kind, vmid).unwrap_or(false) {
            return Err(format!("CT {vmid} not running"));
        }
        Ok(())
    }
}

pub(crate) fn start(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    super::vm_config::check_skiplock(context)?;
    if kind == Kind::Lxc && context.is_running(kind, vmid)? {
        return Err(format!("CT {vmid} already running").into());
    }
    context.task(
        &task_name(kind, "start"),
        &vmid.to_string(),
        move |job| async move {
            let _lock = job.lock_guest(kind, vmid).await?;
            if is_running_for_backup(&job, kind, vmid) {
                return Ok(());
            }
            start_guest(&job, kind, vmid).await
        },
    )
}

/// Whether a VM runs because it is being backed up, which counts as started.
fn is_running_for_backup(job: &Job, kind: Kind, vmid: u32) -> bool {
    let state = job.world.state();
    let guest = state.guests.get(&vmid);
    kind == Kind::Qemu
        && guest.is_some_and(|guest| {
            guest.running.is_some() && guest.config.value("lock") == Some("backup")
        })
}

/// Starts a guest. The lock must be held.
pub(crate) async fn start_guest(job: &Job, kind: Kind, vmid: u32) -> Result<(), String> {
    let cloudinit = check_start(job, kind, vmid)?;
    if cloudinit {
        job.log("generating cloud-init ISO");
    }
    if needs_nesting(job, kind, vmid) {
        job.warn("WARN: Systemd 252 detected. You may need to enable nesting.");
    }
    let duration = {
        let state = job.world.state();
        match kind {
            Kind::Qemu => state.timing.vm_start,
            Kind::Lxc => state.timing.ct_start,
        }
    };
    // The process exists well before the task ends.
    job.sleep(duration.mul_f64(0.5)).await?;
    job.world.set_running(&job.node, kind, vmid)?;
    job.sleep(duration.mul_f64(0.5)).await
}

fn needs_nesting(job: &Job, kind: Kind, vmid: u32) -> bool {
    let state = job.world.state();
    kind == Kind::Lxc
        && state.guests.get(&vmid).is_some_and(|guest| {
            guest
                .config
                .value("features")
                .is_none_or(|text| !text.contains("nesting=1"))
        })
}

fn check_start(job: &Job, kind: Kind, vmid: u32) -> Result<bool, String> {
    let state = job.world.state();
    let guest = state.guest(&job.node, kind, vmid)?;
    // A mounted container can start.
    guest.check_unlocked(&["mounted"])?;
    if guest.running.is_some() {
        return Err(format!("{} {vmid} already running", kind.title()));
    }
    if kind == Kind::Lxc && guest.config.value("arch").is_none() {
        let place = "at /usr/share/perl5/PVE/LXC.pm line 729.";
        return Err(format!("missing 'arch' - internal error {place}"));
    }
    if guest.is_template() {
        return Err(match kind {
            Kind::Qemu => "you can't start a vm if it's a template".to_owned(),
            Kind::Lxc => "you can't start a CT if it's a template".to_owned(),
        });
    }
    for (_, volume) in volumes(kind, &guest.config) {
        if state.volume(&job.node, &volume).is_none() {
            return Err(format!("volume '{volume}' does not exist"));
        }
    }
    let host = state.hosts.get(&job.node);
    for (key, text) in guest.config.values() {
        if is_network(key) {
            let parts = property::split(text, "model");
            let bridge = property::part(&parts, "bridge");
            if let (Some(bridge), Some(host)) = (bridge, host)
                && !host.bridges.contains(bridge)
            {
                return Err(format!("bridge '{bridge}' does not exist"));
            }
        }
    }
    Ok(kind == Kind::Qemu
        && guest
            .config
            .values()
            .values()
            .any(|text| text.contains("-cloudinit")))
}

impl World {
    /// Marks a guest as running. Its address, agent and SSH each become available later.
    pub(crate) fn set_running(&self, node: &str, kind: Kind, vmid: u32) -> Result<(), String> {
        let (now, last_update) = (self.now(), self.last_status_update());
        let mut state = self.state();
        let jitter = state.random.fraction() * 0.2 + 0.9;
        let pid = state.tasks.next_pid();
        let name = state.guest(node, kind, vmid)?.name();
        let (address, agent, ssh) = match kind {
            Kind::Qemu => state.timing.stages_of(&name, jitter),
            Kind::Lxc => (NETWORK_UP, 0.0, NETWORK_UP),
        };
        let guest = state.guest_mut(node, kind, vmid)?;
        guest.touch(now, last_update);
        guest.config.apply_pending();
        state.lease(vmid);
        let guest = state.guest_mut(node, kind, vmid)?;
        let has_system = kind == Kind::Lxc || guest.boots != Boots::Nothing;
        let has_agent = kind == Kind::Qemu && has_system && guest.agent_is_enabled();
        guest.running = Some(Running {
            pid,
            since: now,
            address_from: now + address,
            agent_from: has_agent.then_some(now + agent),
            ssh_from: has_system.then_some(now + ssh),
        });
        Ok(())
    }

    /// Marks a guest as stopped, which applies pending changes.
    pub(crate) fn set_stopped(&self, node: &str, kind: Kind, vmid: u32) -> Result<(), String> {
        let (now, last_update) = (self.now(), self.last_status_update());
        let mut state = self.state();
        let guest = state.guest_mut(node, kind, vmid)?;
        guest.touch(now, last_update);
        guest.running = None;
        guest.config.apply_pending();
        // A nested hypervisor loses power too.
        if let Some(inner) = guest.inner.take() {
            guest.inner = Some(inner.after_power_loss());
        }
        Ok(())
    }
}

fn not_found(job: &Job, kind: Kind, vmid: u32) -> String {
    match kind {
        Kind::Qemu => format!(
            "unable to find configuration file for VM {vmid} on node '{}'",
            job.node
        ),
        Kind::Lxc => crate::world::state::missing(&job.node, kind, vmid),
    }
}

pub(crate) async fn stop(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    super::vm_config::check_skiplock(context)?;
    context.require_running(kind, vmid)?;
    let overruled = if context.flag("overrule-shutdown") {
        cancel_shutdowns(context, kind, vmid).await
    } else {
        Vec::new()
    };
    context.task(
        &task_name(kind, "stop"),
        &vmid.to_string(),
        move |job| async move {
            if !overruled.is_empty() {
                let what = task_name(kind, "shutdown");
                job.log(format!("overruled {what} tasks: {}", overruled.join(", ")));
            }
            let running = {
                let state = job.world.state();
                let guest = state.guest(&job.node, kind, vmid);
                guest
                    .map_err(|_| not_found(&job, kind, vmid))?
                    .running
                    .is_some()
            };
            // Without anything to stop, the lock is not needed.
            if !running && !is_locked(&job, kind, vmid) {
                return Ok(());
            }
            let _lock = job.lock_guest(kind, vmid).await?;
            let running = {
                let state = job.world.state();
                let guest = state.guest(&job.node, kind, vmid);
                let guest = guest.map_err(|_| not_found(&job, kind, vmid))?;
                guest.check_unlocked(&["mounted"])?;
                guest.running.is_some()
            };
            if running {
                let wait = job.world.state().timing.vm_start;
                job.sleep(wait).await?;
                job.world.set_stopped(&job.node, kind, vmid)?;
            }
            Ok(())
        },
    )
}

fn is_locked(job: &Job, kind: Kind, vmid: u32) -> bool {
    use crate::world::lock::Mode;
    job.world
        .locks()
        .try_take(&kind.lock_file(vmid), Mode::Exclusive)
        .is_none()
}

/// Cancels the running shutdown tasks of a guest and returns them.
async fn cancel_shutdowns(context: &Context, kind: Kind, vmid: u32) -> Vec<String> {
    let what = task_name(kind, "shutdown");
    let id = vmid.to_string();
    let found: Vec<String> = {
        let state = context.world.state();
        state
            .tasks
            .by_upid
            .values()
            .filter(|task| task.ended.is_none() && task.kind == what && task.id == id)
            .map(|task| {
                task.cancel.cancel();
                task.upid.clone()
            })
            .collect()
    };
    if !found.is_empty() {
        context.world.sleep(Duration::from_secs(1)).await;
    }
    found
}

pub(crate) fn shutdown(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    super::vm_config::check_skiplock(context)?;
    context.require_running(kind, vmid)?;
    let timeout = Duration::from_secs(context.number("timeout").unwrap_or(match kind {
        Kind::Qemu => 180,
        Kind::Lxc => 60,
    }));
    let force = context.flag("forceStop");
    context.task(
        &task_name(kind, "shutdown"),
        &vmid.to_string(),
        move |job| async move {
            let _lock = job.lock_guest(kind, vmid).await?;
            check_lock(&job, kind, vmid)?;
            power_down(&job, kind, vmid, timeout, force).await
        },
    )
}

/// Whether a guest reacts to a shutdown request: containers always, VMs if a system has booted.
fn accepts_shutdown(job: &Job, kind: Kind, vmid: u32) -> bool {
    let now = job.world.now();
    let state = job.world.state();
    let Some(guest) = state.guests.get(&vmid) else {
        return false;
    };
    match kind {
        Kind::Lxc => true,
        Kind::Qemu => {
            guest.agent_answers(now) || {
                // Without an agent, a booted system still reacts to the ACPI power button.
                let boot = state.timing.boot.as_secs_f64();
                let up = guest
                    .running
                    .as_ref()
                    .is_some_and(|running| now - running.since >= boot);
                guest.boots != Boots::Nothing && up
            }
        }
    }
}

/// Fails if the guest runs and is locked.
fn check_lock(job: &Job, kind: Kind, vmid: u32) -> Result<(), String> {
    let state = job.world.state();
    let guest = state.guest(&job.node, kind, vmid)?;
    match guest.running {
        Some(_) => guest.check_unlocked(&[]),
        None => Ok(()),
    }
}

async fn power_down(
    job: &Job,
    kind: Kind,
    vmid: u32,
    timeout: Duration,
    force: bool,
) -> Result<(), String> {
    let (running, has_agent) = {
        let state = job.world.state();
        let guest = state.guest(&job.node, kind, vmid)?;
        (guest.running.is_some(), guest.agent_is_enabled())
    };
    if !running {
        return Ok(());
    }
    if accepts_shutdown(job, kind, vmid) {
        let mut wait = job.world.state().timing.shutdown;
        // A container has no kernel to shut down.
        if kind == Kind::Lxc {
            wait /= 2;
        }
        if wait <= timeout {
            job.sleep(wait).await?;
            return job.world.set_stopped(&job.node, kind, vmid);
        }
    } else if has_agent {
        job.sleep(AGENT_TIMEOUT).await?;
        job.log(format!(
            "QEMU Guest Agent is not running - VM {vmid} qga command 'guest-ping' failed - got timeout"
        ));
    }
    job.sleep(timeout + Duration::from_secs(1)).await?;
    if force {
        job.log(format!(
            "{} still running - terminating now with SIGTERM",
            kind.title()
        ));
        return job.world.set_stopped(&job.node, kind, vmid);
    }
    Err(match kind {
        Kind::Qemu => "VM quit/powerdown failed - got timeout".to_owned(),
        Kind::Lxc => format!(
            "command 'lxc-stop -n {vmid} --nokill --timeout {}' failed: exit code 1",
            timeout.as_secs()
        ),
    })
}

pub(crate) fn reboot(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    if !context.is_running(kind, vmid)? {
        // PVE reports "VM" for containers too.
        return Err(format!("VM {vmid} not running").into());
    }
    let timeout = Duration::from_secs(context.number("timeout").unwrap_or(180));
    context.task(
        &task_name(kind, "reboot"),
        &vmid.to_string(),
        move |job| async move {
            {
                let _lock = job.lock_guest(kind, vmid).await?;
                let locked = check_lock(&job, kind, vmid);
                // A container is shut down before its lock is checked.
                if kind == Kind::Qemu {
                    locked.clone()?;
                }
                power_down(&job, kind, vmid, timeout, false).await?;
                if locked.is_err() {
                    return Err(format!("startup for container '{vmid}' failed"));
                }
            }
            // A task of the host starts the guest again.
            let world = job.world.clone();
            let origin = crate::world::run::Origin {
                node: job.node.clone(),
                identity: "root@pam".to_owned(),
                worker: None,
            };
            let again = world.clone();
            world.spawner().spawn("start after reboot", async move {
                again.sleep(Duration::from_secs(2)).await;
                let id = vmid.to_string();
                again.start_task(
                    &origin,
                    &task_name(kind, "start"),
                    &id,
                    move |job| async move {
                        let _lock = job.lock_guest(kind, vmid).await?;
                        start_guest(&job, kind, vmid).await
                    },
                );
            });
            Ok(())
        },
    )
}

/// Resets, suspends or resumes a VM, which remains running.
pub(crate) fn send_command(context: &Context, what: &'static str) -> Outcome {
    let vmid = context.vmid()?;
    context.task(
        &format!("qm{what}"),
        &vmid.to_string(),
        move |job| async move {
            let _lock = job.lock_guest(Kind::Qemu, vmid).await?;
            let wait = job.world.state().timing.allocate;
            job.sleep(wait).await?;
            let state = job.world.state();
            let guest = state.guest(&job.node, Kind::Qemu, vmid)?;
            if guest.running.is_none() {
                return Err(format!("VM {vmid} not running"));
            }
            Ok(())
        },
    )
}
