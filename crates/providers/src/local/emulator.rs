//! The QEMU command line. It is the same for a machine that is saved and for those restored from it.

use std::path::{Path, PathBuf};

use homestak_engine::ports::{Bytes, Gib, Mib};

use super::qmp::{AGENT, QMP, SERIAL};
use crate::process;

/// The program.
pub(super) const QEMU: &str = "qemu-system-x86_64";
/// Name of a node's disk, in its directory.
pub(super) const DISK: &str = "disk.qcow2";
/// Name of a node's first-boot data, in its directory.
pub(super) const SEED: &str = "seed.iso";
/// What QEMU needs beside the machine's memory; most of it is translated code.
pub(super) const OVERHEAD: Mib = Mib(512);
/// Options of the kernel. The card is `eth0`, as in containers.
const KERNEL: &str = "root=/dev/vda rw console=ttyS0 net.ifnames=0 panic=30 quiet";

/// The accelerator: what executes the code of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accel {
    /// The processor, through KVM.
    Kvm,
    /// QEMU, by translation.
    Tcg,
}

impl Accel {
    /// Returns its short name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"],
        }
    }
}

/// A machine.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// Directory of its disk image: disk, kernel, first file system.
    pub(super) image: PathBuf,
    pub(super) accel: Accel,
    pub(super) cores: u32,
    /// Memory.
    pub(super) memory: Mib,
    /// Its number in the firmware.
    pub(super) uuid: String,
    pub(super) mac: String,
    /// Link that it is on; none for one that is only booted to be saved.
    pub(super) link: Option<String>,
    /// Whether it has first-boot data on a CD.
    pub(super) seed: bool,
    /// A state to begin with.
    pub(super) state: Option<PathBuf>,
    /// More options of the kernel.
    pub(super) kernel: &'static str,
}

impl Machine {
    /// Returns the command; it is to be run in the machine's directory.
    pub(super) fn command(&self) -> Vec<String> {
        let mut words: Vec<String> = vec![QEMU.to_owned()];
        let mut add = |more: &[&str]| words.extend(more.iter().map(ToString::to_string));
        add(&["-nodefaults", "-no-user-config", "-display", "none"]);
        // The same machine type for both accelerators: it supports reboot, the power button, a UUID
        // in its firmware, and a VM generation id, which notifies a restored kernel.
        add(&["-machine", "q35,hpet=off,smm=off,vmport=off"]);
        add(&self.accel.arguments());
        add(&[
            "-smp",
            &self.cores.to_string(),
            "-m",
            &self.memory.0.to_string(),
        ]);
        add(&["-uuid", &self.uuid, "-device", "vmgenid,guid=auto"]);
        let file = |name: &str| self.image.join(name).display().to_string();
        add(&["-kernel", &file("vmlinuz"), "-initrd", &file("initrd.img")]);
        add(&["-append", format!("{KERNEL} {}", self.kernel).trim_end()]);
        let disk = format!("file={DISK},format=qcow2,if=none,id=root,cache=unsafe,discard=unmap");
        add(&["-drive", &disk, "-device", "virtio-blk-pci,drive=root"]);
        // The drive is there without a CD too, so that a saved machine is the same.
        let seed = if self.seed {
            format!("if=none,id=seed,media=cdrom,readonly=on,file={SEED},format=raw")
        } else {
            "if=none,id=seed,media=cdrom,readonly=on".to_owned()
        };
        add(&["-device", "virtio-scsi-pci", "-drive", &seed]);
        add(&["-device", "scsi-cd,drive=seed,id=cd"]);
        let net = match &self.link {
            Some(link) => format!("tap,id=lan,ifname={link},script=no,downscript=no"),
            None => "hubport,id=lan,hubid=0".to_owned(),
        };
        let card = format!("virtio-net-pci,netdev=lan,mac={},romfile=", self.mac);
        add(&["-netdev", &net, "-device", &card]);
        add(&["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
        let socket =
            |id: &str, path: &str| format!("socket,id={id},path={path},server=on,wait=off");
        let serial = format!(
            "{},logfile=console.log,logappend=on",
            socket("console", SERIAL)
        );
        add(&["-chardev", &serial, "-serial", "chardev:console"]);
        add(&["-chardev", &socket("agent", AGENT)]);
        add(&[
            "-device",
            "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
        ]);
        add(&[
            "-chardev",
            &socket("qmp", QMP),
            "-mon",
            "chardev=qmp,mode=control",
        ]);
        if let Some(state) = &self.state {
            // By a program: older versions cannot read a file themselves.
            add(&["-S", "-incoming", &format!("exec:cat {}", state.display())]);
        }
        words
    }
}

/// Returns the version of QEMU, or `None` when it is not installed. A state is only restored by the
/// version that saved it.
pub(super) fn version() -> Option<String> {
    let text = process::run(QEMU, &["--version"]).ok()?;
    text.lines().next().map(str::to_owned)
}

/// Creates an overlay disk on another.
pub(super) fn overlay(base: &Path, disk: &Path) -> Result<(), process::ProgramError> {
    // By its canonical path: links to it may be removed while the disk is in use.
    let base = fs_err::canonicalize(base).unwrap_or_else(|_| base.to_owned());
    let (base, disk) = (base.to_string_lossy(), disk.to_string_lossy());
    let words = [
        "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &base, &disk,
    ];
    process::run("qemu-img", &words).map(|_| ())
}

/// Resizes a disk that no machine uses, when it is smaller.
pub(super) fn grow(disk: &Path, wanted: Gib) -> Result<(), process::ProgramError> {
    let path = disk.to_string_lossy();
    let info = process::run("qemu-img", &["info", "--output=json", &path])?;
    let info: serde_json::Value = serde_json::from_str(&info).unwrap_or_default();
    let size = info["virtual-size"].as_u64().unwrap_or(u64::MAX);
    if size < Bytes::from(wanted).0 {
        process::run(
            "qemu-img",
            &["resize", "-q", &path, &format!("{}G", wanted.0)],
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            image: "/images/debian-13-disk-0123".into(),
            accel: Accel::Tcg,
            cores: 2,
            memory: Mib(512),
            uuid: "5d1f2a3b-0000-4000-8000-00000000000a".into(),
            mac: "52:54:00:00:00:01".into(),
            link: None,
            seed: false,
            state: None,
            kernel: "",
        }
    }

    #[test]
    fn a_restored_machine_has_the_devices_of_the_saved_one() {
        let devices = |machine: &Machine| -> Vec<String> {
            let words = machine.command();
            let after = |word: &str| {
                let pairs = words.windows(2).filter(|pair| pair[0] == word);
                pairs.map(|pair| pair[1].clone()).collect::<Vec<_>>()
            };
            [
                after("-device"),
                after("-machine"),
                after("-m"),
                after("-smp"),
            ]
            .concat()
        };
        let saved = machine();
        let restored = Machine {
            uuid: "5d1f2a3b-0000-4000-8000-00000000000b".into(),
            link: Some("v100".into()),
            state: Some("/images/.saved/state".into()),
            ..machine()
        };
        assert_eq!(devices(&saved), devices(&restored));
        let words = restored.command().join(" ");
        assert!(words.contains("-S -incoming exec:cat /images/.saved/state"));
        assert!(words.contains("ifname=v100,script=no"));
    }

    #[test]
    fn a_seed_is_a_disc_in_the_drive() {
        let with = Machine {
            seed: true,
            ..machine()
        };
        let words = with.command().join(" ");
        assert!(words.contains("media=cdrom,readonly=on,file=seed.iso,format=raw"));
        assert!(!machine().command().join(" ").contains("seed.iso"));
    }
}
