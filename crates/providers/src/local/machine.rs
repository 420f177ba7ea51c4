//! Nodes as virtual machines: Debian in QEMU, on a disk over its image.
//!
//! Identity data that a machine has yet to receive is kept in a file, so that it is applied exactly once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_api::durable::{self, Access};
use homestak_api::runtime::{Clock as _, WallClock};
use homestak_core::foreign::ForeignText;
use homestak_engine::ports::{Bytes, Gib, Mib, NextAction, PortError, Seed, StopMode};
use serde_json::{Value as Json, json};

use super::cgroup::{Cgroup, ResourceLimits};
use super::emulator::{Accel, DISK, Machine, OVERHEAD, SEED, grow, overlay};
use super::launch::{Supervisor, launch};
use super::node::{FirstBoot, Node};
use super::qmp::{GuestAgent, Qmp};
use super::saved_machine::SavedMachine;
use super::{container, error, identity};

/// The supervisor script of a machine: joins its groups and becomes QEMU.
const SUPERVISOR: &str = include_str!("machine.sh");
/// Identity script that a restored machine has yet to run.
const IDENTITY_SCRIPT: &str = "first-boot";

/// The file that names the base of a machine's disk.
pub(super) const BASE: &str = "base";

/// Time limits of restoring a machine and of running a script in it.
const RESTORE: Duration = Duration::from_secs(120);
const TELL: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of shutdown requests. A machine that is still booting ignores them.
const PRESS: Duration = Duration::from_secs(3);

/// Grows the file system to the size of the disk.
const GROW: &str = "/usr/lib/systemd/systemd-growfs /\n";

/// Starts a virtual machine.
pub(super) struct MachineStarter<'s> {
    /// The node's directory.
    pub(super) directory: PathBuf,
    /// The name of its parts.
    pub(super) part: String,
    pub(super) group: Cgroup,
    pub(super) systemd: bool,
    /// Network namespace of the bridge; none where the bridge is the machine's own.
    pub(super) netns: Option<String>,
    /// Its link on the bridge.
    pub(super) link: String,
    pub(super) accel: Accel,
    pub(super) node: &'s Node,
}

/// Writes the identity data that a machine receives on its first start.
pub(super) fn prepare(directory: &Path, node: &Node, seed: &Seed) -> std::io::Result<()> {
    match node.first_boot {
        FirstBoot::CloudInit => durable::write(
            &directory.join(SEED),
            &crate::seed::image(seed),
            Access::PRIVATE,
        ),
        FirstBoot::Direct => {
            let script = identity::script(&node.identity, node.hosts, true);
            let number = node.uuid.as_str().replace('-', "");
            let mac = &node.identity.mac;
            // It was saved with another machine id and MAC address.
            let before = format!(
                "set -eu\nrm -f /etc/machine-id\necho {number} >/etc/machine-id\n\
                 if [ \"$(cat /sys/class/net/eth0/address)\" != {mac} ]; then\n\
                 ip link set eth0 down\nip link set eth0 address {mac}\nfi\n\
                 systemctl reset-failed\n"
            );
            durable::write(
                &directory.join(IDENTITY_SCRIPT),
                (before + &script).as_bytes(),
                Access::PRIVATE,
            )
        }
    }
}

/// Returns whether a machine has yet to receive its identity data from us.
pub(super) fn awaits_identity(directory: &Path) -> bool {
    directory.join(IDENTITY_SCRIPT).exists()
}

impl MachineStarter<'_> {
    fn doing(&self) -> String {
        format!("start `{}`", self.node.name)
    }

    fn io(&self, error: &std::io::Error) -> PortError {
        error::io(&self.doing(), error)
    }

    /// Boots a machine from its own disk, which is created when there is none.
    pub(super) fn boot(&self) -> Result<(), PortError> {
        let disk = self.directory.join(DISK);
        let program = |error| error::program(&self.doing(), &error);
        if !disk.exists() {
            self.create_overlay(&self.node.tree.join("disk.qcow2"))?;
        }
        grow(&disk, self.node.disk).map_err(program)?;
        self.launch(None)
    }

    /// Starts from a saved machine, with an overlay on its disk.
    pub(super) fn restore(&self, saved: &SavedMachine) -> Result<(), PortError> {
        // A restored machine without identity is discarded: it was never used.
        self.create_overlay(&saved.disk)?;
        self.launch(Some(&saved.state))
    }

    fn create_overlay(&self, base: &Path) -> Result<(), PortError> {
        let beside = self.directory.join("disk.new");
        let disk = self.directory.join(DISK);
        // Recorded, so that the base of this disk is not removed.
        let text = base.to_string_lossy();
        durable::write(&self.directory.join(BASE), text.as_bytes(), Access::PRIVATE)
            .map_err(|error| self.io(&error))?;
        overlay(base, &beside).map_err(|error| error::program(&self.doing(), &error))?;
        durable::rename(&beside, &disk).map_err(|error| self.io(&error))
    }

    fn launch(&self, state: Option<&Path>) -> Result<(), PortError> {
        let node = self.node;
        let machine = Machine {
            image: node.tree.clone(),
            accel: self.accel,
            cores: node.cores,
            memory: node.memory,
            uuid: node.uuid.as_str().to_owned(),
            mac: node.identity.mac.clone(),
            link: Some(self.link.clone()),
            seed: self.directory.join(SEED).exists(),
            state: state.map(Path::to_owned),
            kernel: "",
        };
        let supervisor = Supervisor {
            text: SUPERVISOR,
            image: &node.tree,
            limits: ResourceLimits {
                memory: Mib(node.memory.0 + OVERHEAD.0),
                cores: node.cores,
            },
            netns: self.netns.clone(),
            arguments: machine.command(),
        };
        let names = (&*node.name, &*self.part);
        launch(
            &supervisor,
            &self.directory,
            names,
            &self.group,
            self.systemd,
        )
    }

    /// Resumes a restored machine and applies its identity. It may have been started by a process that
    /// was killed.
    pub(super) fn apply_identity(&self) -> Result<(), PortError> {
        let still = self.directory.join(IDENTITY_SCRIPT);
        let script = fs_err::read_to_string(&still).map_err(|error| self.io(&error))?;
        let mut qmp = self.retry_until(RESTORE, "restored", || {
            let mut qmp = Qmp::open(&self.directory)?;
            match qmp.status()?.as_str() {
                "inmigrate" => Err(std::io::ErrorKind::WouldBlock.into()),
                _ => Ok(qmp),
            }
        })?;
        let io = |error: std::io::Error| self.io(&error);
        qmp.execute("cont", &Json::Null).map_err(io)?;
        resize(&mut qmp, self.node.disk).map_err(io)?;
        let mut agent =
            self.retry_until(RESTORE, "reachable", || GuestAgent::open(&self.directory))?;
        // Its clock has stopped since it was saved.
        let now = format!("date --set=@{} >/dev/null\n", WallClock.now().as_second());
        let script = now + &script + GROW;
        agent.run(&script, TELL).map_err(io)?;
        fs_err::remove_file(&still).map_err(io)
    }

    /// Retries until success, the end of QEMU, or a timeout.
    fn retry_until<T>(
        &self,
        patience: Duration,
        what: &str,
        mut attempt: impl FnMut() -> std::io::Result<T>,
    ) -> Result<T, PortError> {
        let n_attempts = patience.as_millis() / POLL_INTERVAL.as_millis();
        let mut last = String::new();
        for _ in 0..n_attempts {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(error) => last = error.to_string(),
            }
            if !self.group.is_alive() {
                last = "QEMU has exited".to_owned();
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let log = super::console_tail(&self.directory, 8);
        Err(PortError {
            log: log.iter().map(|line| ForeignText::line(line)).collect(),
            next: NextAction::NewPlan,
            ..PortError::refused(
                &self.doing(),
                format!("the virtual machine was not {what} ({last})"),
                "run apply again",
            )
        })
    }
}

/// Stops a machine: ACPI shutdown first, then power off.
pub(super) fn stop(directory: &Path, group: &Cgroup, halt: StopMode) -> Result<(), PortError> {
    if let StopMode::Graceful(patience) = halt {
        let mut left = patience;
        while !left.is_zero() {
            if let Ok(mut qmp) = Qmp::open(directory) {
                // Ignored by a machine that is not resumed.
                let _ = qmp.execute("system_powerdown", &Json::Null);
            }
            let turn = left.min(PRESS);
            if container::wait_until_ended(group, turn) {
                return Ok(());
            }
            left = left.saturating_sub(turn);
        }
    }
    // QEMU closes its disk properly, if it still can.
    if let Ok(mut qmp) = Qmp::open(directory) {
        let _ = qmp.execute("quit", &Json::Null);
        container::wait_until_ended(group, Duration::from_secs(1));
    }
    container::stop(group, StopMode::Now)
}

/// Removes the first-boot data: the CD is ejected and deleted.
pub(super) fn discard(directory: &Path, running: bool) -> std::io::Result<()> {
    let seed = directory.join(SEED);
    if !seed.exists() {
        return Ok(());
    }
    if running {
        let out = json!({ "id": "cd", "force": true });
        Qmp::open(directory)?.execute("eject", &out)?;
    }
    fs_err::remove_file(seed)
}

/// Resizes the disk of a machine that runs, and the file system on it.
pub(super) fn enlarge(directory: &Path, wanted: Gib) -> std::io::Result<()> {
    resize(&mut Qmp::open(directory)?, wanted)?;
    GuestAgent::open(directory)?.run(GROW, TELL).map(|_| ())
}

fn resize(qmp: &mut Qmp, wanted: Gib) -> std::io::Result<()> {
    let blocks = qmp.execute("query-block", &Json::Null)?;
    let root = blocks.as_array().into_iter().flatten();
    let size = root
        .filter(|block| block["device"] == "root")
        .find_map(|block| block["inserted"]["image"]["virtual-size"].as_u64());
    let wanted = Bytes::from(wanted).0;
    if size.is_some_and(|size| size < wanted) {
        qmp.execute("block_resize", &json!({ "device": "root", "size": wanted }))?;
    }
    Ok(())
}
