//! Checks whether KVM works by booting a kernel with it. The result is cached until the next boot of
//! the machine.
//!
//! An accessible `/dev/kvm` is not enough: on some machines it can be opened and then hangs.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::emulator::{Accel, QEMU, version};
use crate::image::process::IsolatedProcess;

/// Timeout of the kernel boot. With KVM it takes a second.
const PATIENCE: Duration = Duration::from_secs(15);
/// The panic message of a kernel without a disk.
const PANIC_MESSAGE: &str = "Unable to mount root fs";
/// The cache file, beside the images.
const PROBE_FILE: &str = ".kvm.json";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KvmProbe {
    /// The boot of the machine in which it was probed.
    boot: String,
    /// The version of QEMU that was probed.
    version: String,
    works: bool,
}

/// Returns whether there is a device and a processor with the required flag.
pub(super) fn is_plausible() -> bool {
    let flags = fs_err::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let can = flags
        .split_whitespace()
        .any(|word| matches!(word, "vmx" | "svm"));
    can && Path::new("/dev/kvm").exists() && version().is_some()
}

/// Returns whether KVM works, by booting this kernel unless the result is cached.
pub(super) fn works(images: &Path, kernel: &Path) -> bool {
    if !is_plausible() {
        return false;
    }
    cached_probe(images, || boots(Accel::Kvm, kernel, PATIENCE))
}

/// Returns the cached result of this boot, or probes.
fn cached_probe(images: &Path, find_out: impl FnOnce() -> bool) -> bool {
    let boot = fs_err::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let now = |works| KvmProbe {
        boot: boot.trim().to_owned(),
        version: version().unwrap_or_default(),
        works,
    };
    let path = images.join(PROBE_FILE);
    let known: Option<KvmProbe> = fs_err::read(&path)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    if let Some(known) = known
        && known == now(known.works)
    {
        return known.works;
    }
    let answer = now(find_out());
    // Without a cache it is probed again.
    let _ = serde_json::to_vec(&answer).map(|text| fs_err::write(&path, text));
    answer.works
}

/// Boots a kernel without a disk and waits for its panic message.
fn boots(accel: Accel, kernel: &Path, patience: Duration) -> bool {
    let cpu = match accel {
        Accel::Kvm => "host",
        Accel::Tcg => "max",
    };
    let words = [
        QEMU,
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-machine",
        "q35",
        "-m",
        "256",
        "-accel",
        accel.name(),
        "-cpu",
        cpu,
        "-serial",
        "stdio",
        "-append",
        "console=ttyS0 panic=-1",
        "-kernel",
    ];
    let mut command: Vec<OsString> = words.map(OsString::from).into();
    command.push(kernel.into());
    let mut running = IsolatedProcess::start(command, &[]);
    let between = Duration::from_millis(50);
    let n_attempts = patience.as_millis() / between.as_millis();
    for _ in 0..=n_attempts {
        let (lines, ended) = running.read_lines();
        if lines.iter().any(|line| line.contains(PANIC_MESSAGE)) {
            return true;
        }
        if ended {
            return false;
        }
        std::thread::sleep(between);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel of an image, if one exists: building one takes minutes.
    #[expect(clippy::disallowed_methods, reason = "tests are set up by environment")]
    fn kernel() -> Option<std::path::PathBuf> {
        std::env::var_os("HOMESTAK_TEST_FULL")?;
        version()?;
        let images = std::env::var_os("HOMESTAK_TEST_IMAGES")?;
        let disk = crate::image::Images::new(images.into()).current_disk("debian-12")?;
        Some(disk.kernel)
    }

    #[test]
    fn a_kernel_panic_is_recognised_and_its_absence_times_out() {
        let Some(kernel) = kernel() else { return };
        assert!(boots(Accel::Tcg, &kernel, Duration::from_secs(600)));
        assert!(!boots(Accel::Tcg, &kernel, Duration::from_millis(100)));
        let dir = tempfile::tempdir().expect("a directory");
        let garbage = dir.path().join("kernel");
        fs_err::write(&garbage, [0; 4096]).expect("written");
        assert!(!boots(Accel::Tcg, &garbage, Duration::from_secs(5)));
    }

    #[test]
    fn the_kvm_probe_is_cached_until_the_next_boot() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(cached_probe(dir.path(), || true));
        assert!(cached_probe(dir.path(), || panic!("it is known")));
        let path = dir.path().join(PROBE_FILE);
        let text = fs_err::read_to_string(&path).expect("an answer");
        let mut answer: KvmProbe = serde_json::from_str(&text).expect("an answer");
        answer.boot = "another".to_owned();
        let text = serde_json::to_string(&answer).expect("text");
        fs_err::write(&path, text).expect("written");
        assert!(!cached_probe(dir.path(), || false));
    }
}
