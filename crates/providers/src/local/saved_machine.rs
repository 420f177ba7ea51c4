//! Machines that were saved after their first boot, so that new machines start from that state.
//!
//! A saved machine has no identity: no name, user, key or address.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_api::durable;
use homestak_api::runtime::pause;
use homestak_engine::ports::{Mib, PortError};
use serde_json::{Value as Json, json};

use super::emulator::{Accel, DISK, Machine, overlay, version};
use super::error;
use super::lock::Lock;
use super::node::remove_tree;
use super::qmp::{GuestAgent, Qmp};
use crate::image::process::IsolatedProcess;

/// Start of the names, beside the images.
const SAVED: &str = ".saved-";
const HALF: &str = ".half-saved-";
/// The state of the machine, beside its disk. It is written last.
const STATE: &str = "state";

/// How long a machine may take to boot. An emulated one on a busy machine takes minutes.
const BOOT: Duration = Duration::from_secs(600);
const SAVE: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Waits until the boot is complete, and runs the programs of the identity script once, so that they
/// are cached: reading them takes an emulated machine seconds. Services that fail without an
/// identity, such as SSH without a key, are ignored.
const SETTLE: &str = "systemctl is-system-running --wait
networkctl reload
ssh-keygen -q -t ed25519 -N '' -f /run/once && /usr/sbin/sshd -t -h /run/once
rm -f /run/once /run/once.pub
for program in useradd usermod getent cut chown ip date sudo mv; do $program --help; done
/usr/lib/systemd/systemd-growfs /
sync
exit 0
";

/// A machine that has booted once.
pub(super) struct SavedMachine {
    pub(super) disk: PathBuf,
    pub(super) state: PathBuf,
}

/// The properties that identify a saved machine.
pub(super) struct SavedMachineSpec<'k> {
    /// Directory of the disk image.
    pub(super) image: &'k Path,
    pub(super) accel: Accel,
    pub(super) cores: u32,
    /// Memory.
    pub(super) memory: Mib,
}

impl SavedMachineSpec<'_> {
    /// Returns the part of the name that does not depend on QEMU.
    fn stem(&self) -> String {
        let image = self.image.file_name().unwrap_or_default().to_string_lossy();
        let (cores, memory, accel) = (self.cores, self.memory.0, self.accel.name());
        format!("{SAVED}{image}-{cores}c-{memory}m-{accel}-")
    }

    /// Returns the name. A state can only be restored by the version that saved it.
    fn name(&self, version: &str) -> String {
        let version: String = version
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .collect();
        format!("{}{version}", self.stem())
    }

    fn machine(&self) -> Machine {
        Machine {
            image: self.image.to_owned(),
            accel: self.accel,
            cores: self.cores,
            memory: self.memory,
            uuid: "00000000-0000-4000-8000-000000000000".to_owned(),
            mac: "52:54:00:00:00:00".to_owned(),
            link: None,
            seed: false,
            state: None,
            // It must not get an identity.
            kernel: "cloud-init=disabled",
        }
    }
}

/// Returns a saved machine, and boots and saves one when there is none. `used` returns whether a
/// node uses the disk of one.
pub(super) fn ensure(
    images: &Path,
    kind: &SavedMachineSpec<'_>,
    used: impl Fn(&Path) -> bool,
    report: impl Fn(&str),
) -> Result<SavedMachine, PortError> {
    let doing = "save a machine that has booted";
    let io = |error: std::io::Error| error::io(doing, &error);
    let version = version().ok_or_else(|| missing(doing))?;
    let name = kind.name(&version);
    let directory = images.join(&name);
    let found = || SavedMachine {
        disk: directory.join(DISK),
        state: directory.join(STATE),
    };
    if directory.join(STATE).exists() {
        return Ok(found());
    }
    report("waiting for its first boot, which is saved for later nodes");
    // The holder boots and saves one.
    let patience = BOOT + BOOT + SAVE;
    let _turn = Lock::take(&images.join(format!(".lock-{name}")), patience).map_err(io)?;
    if directory.join(STATE).exists() {
        return Ok(found());
    }
    // Leftovers of killed processes and of other versions of QEMU.
    let half = images.join(format!("{HALF}{name}"));
    remove_tree(&half).map_err(io)?;
    for old in names(images, &kind.stem()) {
        if !used(&old) {
            remove_tree(&old).map_err(io)?;
        }
    }
    fs_err::create_dir(&half).map_err(io)?;
    let made =
        make(kind, &half, report).and_then(|()| durable::rename(&half, &directory).map_err(io));
    if made.is_err() {
        let _ = remove_tree(&half);
    }
    made.map(|()| found())
}

/// Returns the error for a missing QEMU.
pub(super) fn missing(doing: &str) -> PortError {
    PortError::refused(
        doing,
        "QEMU is not installed",
        "apt-get install --no-install-recommends qemu-system-x86 qemu-utils, or --vm-engine container",
    )
}

/// Removes saved machines that no node uses and whose image was deleted, and leftovers.
pub(super) fn sweep(images: &Path, used: impl Fn(&Path) -> bool) -> std::io::Result<()> {
    for half in names(images, HALF) {
        let name = half.file_name().unwrap_or_default().to_string_lossy();
        let name = name.strip_prefix(HALF).unwrap_or_default();
        let lock = fs_err::File::open(images.join(format!(".lock-{name}")));
        // A process that saves one holds its lock.
        if lock.map_or(true, |lock| lock.file().try_lock().is_ok()) {
            remove_tree(&half)?;
        }
    }
    for directory in names(images, SAVED) {
        let name = directory
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let image = image_of(&name).map(|image| images.join(image));
        if !image.is_some_and(|image| image.exists()) && !used(&directory) {
            remove_tree(&directory)?;
        }
    }
    Ok(())
}

/// Returns the image of a saved machine, from its name.
fn image_of(name: &str) -> Option<&str> {
    let rest = name.strip_prefix(SAVED)?;
    // Version, accelerator, memory and CPUs are behind the image's own name.
    rest.rsplitn(5, '-').nth(4)
}

fn names(images: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(images).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start));
    named.map(|entry| entry.path()).collect()
}

fn make(kind: &SavedMachineSpec<'_>, half: &Path, report: impl Fn(&str)) -> Result<(), PortError> {
    let doing = "boot a machine to be saved";
    let io = |error: std::io::Error| error::io(doing, &error);
    overlay(&kind.image.join("disk.qcow2"), &half.join(DISK))
        .map_err(|error| error::program(doing, &error))?;
    // In the directory: sockets are created there by their short names.
    let mut command: Vec<OsString> = ["sh", "-c", "cd \"$0\" && exec \"$@\""]
        .map(Into::into)
        .into();
    command.push(half.into());
    command.extend(kind.machine().command().into_iter().map(OsString::from));
    let mut running = IsolatedProcess::start(command, &[]);
    let mut output: Vec<String> = Vec::new();
    let mut agent = None;
    let attempts = BOOT.as_millis() / POLL_INTERVAL.as_millis();
    for attempt in 0..attempts {
        let (lines, ended) = running.read_lines();
        output.extend(lines);
        if ended {
            let log = output.split_off(output.len().saturating_sub(8));
            return Err(PortError {
                log: log.into_iter().map(Into::into).collect(),
                ..PortError::refused(doing, "QEMU exited immediately", "")
            });
        }
        agent = GuestAgent::open(half).ok();
        if agent.is_some() {
            break;
        }
        // Every ten seconds.
        if attempt % 50 == 49 {
            report(&format!("first boot, {} s", (attempt + 1) / 5));
        }
        pause(POLL_INTERVAL).map_err(io)?;
    }
    let Some(mut agent) = agent else {
        return Err(PortError::refused(
            doing,
            format!("it did not answer within {} s", BOOT.as_secs()),
            "the machine may be overloaded; run apply again",
        ));
    };
    report("booted, saving");
    agent.run(SETTLE, BOOT).map_err(io)?;
    let mut qmp = Qmp::open(half).map_err(io)?;
    qmp.execute("stop", &Json::Null).map_err(io)?;
    let beside = half.join("state.new");
    let uri = format!("exec:cat > {}", beside.display());
    qmp.execute("migrate", &json!({ "uri": uri })).map_err(io)?;
    let attempts = SAVE.as_millis() / POLL_INTERVAL.as_millis();
    for _ in 0..attempts {
        let state = qmp.execute("query-migrate", &Json::Null).map_err(io)?;
        match state["status"].as_str() {
            Some("completed") => {
                let _ = qmp.execute("quit", &Json::Null);
                drop(running);
                return clear_up(half)
                    .and_then(|()| durable::rename(&beside, &half.join(STATE)))
                    .map_err(io);
            }
            Some("failed" | "cancelled") => {
                let detail = format!("QEMU failed to write its state: {state}");
                return Err(PortError::refused(doing, detail, "is the disk full?"));
            }
            _ => pause(POLL_INTERVAL).map_err(io)?,
        }
    }
    Err(PortError::refused(doing, "timed out writing its state", ""))
}

/// Removes what belonged to the machine while it ran.
fn clear_up(half: &Path) -> std::io::Result<()> {
    for entry in fs_err::read_dir(half)?.flatten() {
        let name = entry.file_name();
        if name != DISK && name != "state.new" {
            fs_err::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(image: &Path) -> SavedMachineSpec<'_> {
        SavedMachineSpec {
            image,
            accel: Accel::Tcg,
            cores: 2,
            memory: Mib(512),
        }
    }

    #[test]
    fn the_name_of_a_saved_machine_has_all_its_properties() {
        let image = Path::new("/images/debian-13-disk-0123456789ab");
        let name = kind(image).name("QEMU emulator version 10.0.2 (Debian 1:10)");
        assert_eq!(image_of(&name), Some("debian-13-disk-0123456789ab"));
        assert!(
            name.contains("-2c-512m-tcg-QEMUemulatorversion1002"),
            "{name}"
        );
        let other = SavedMachineSpec {
            memory: Mib(1024),
            ..kind(image)
        };
        assert_ne!(other.name("1"), kind(image).name("1"));
        assert_ne!(kind(image).name("2"), kind(image).name("1"));
    }

    #[test]
    fn saved_machines_are_removed_with_their_image_unless_in_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let made = |image: &str| {
            let image = dir.path().join(image);
            let directory = dir.path().join(kind(&image).name("1"));
            fs_err::create_dir(&directory).expect("created");
            directory
        };
        fs_err::create_dir(dir.path().join("debian-12-disk-aa")).expect("created");
        let (there, unused, used) = (
            made("debian-12-disk-aa"),
            made("debian-12-disk-bb"),
            made("debian-12-disk-cc"),
        );
        let half = |name: &str| {
            let half = dir.path().join(format!("{HALF}{name}"));
            fs_err::create_dir(&half).expect("created");
            half
        };
        let (left, making) = (half("left"), half("making"));
        let turn = Lock::take(&dir.path().join(".lock-making"), BOOT).expect("a lock");
        sweep(dir.path(), |directory| directory == used).expect("swept");
        assert!(there.exists() && !unused.exists() && used.exists());
        assert!(!left.exists() && making.exists());
        drop(turn);
    }
}
