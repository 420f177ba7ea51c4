//! Nodes that are virtual machines in QEMU, emulated where the processor cannot.
//!
//! They take minutes, so they are tried in `make test-full` only.

use std::time::Duration;

use crate::bed::{Bed, text};
use crate::equal::{FACTS, without_key};

/// Makes a local host whose `vm` nodes are virtual machines, or says why not.
fn bed() -> Option<Bed> {
    std::env::var_os("HOMESTAK_TEST_FULL")?;
    let there = std::path::Path::new("/usr/bin/qemu-system-x86_64").exists();
    if !there {
        let line = "skipped: virtual machines need QEMU (tests/prepare installs it)";
        assert!(
            std::env::var_os("HOMESTAK_TEST_REQUIRE").is_none(),
            "{line}"
        );
        println!("{line}");
        return None;
    }
    let mut bed = crate::new_bed()?;
    bed.set("HOMESTAK_VM_ENGINE", "qemu");
    bed.write("presets/two.yaml", "cores: 2\nmemory: 512\ndisk: 4\n");
    bed.manifest("machine", "  - {name: m1, type: vm, preset: two}\n");
    bed.run(&["image", "build", "--disk", "debian-12"]).good();
    Some(bed)
}

/// Returns the number of the QEMU of the only node.
fn qemu(bed: &Bed) -> rustix::process::Pid {
    let uuid = text(&bed.nodes()[0]["uuid"]);
    let found = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .find_map(|entry| {
            let words = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
            let ours = words.starts_with("qemu-system-x86_64\0") && words.contains(&uuid);
            ours.then(|| entry.file_name().to_str()?.parse().ok())?
        });
    rustix::process::Pid::from_raw(found.unwrap()).unwrap()
}

#[test]
fn a_machine_restored_from_a_saved_one_is_the_same_as_one_booted_from_its_seed() {
    let Some(mut bed) = bed() else { return };
    bed.apply("machine");
    assert_eq!(bed.nodes()[0]["engine"], "machine");
    let restored = bed.inside("m1", FACTS).good();
    // It has the disk it was promised, a name server, and a clock that did not stand still.
    let size = bed
        .inside("m1", "df --output=size -BG / | tail -n 1")
        .good();
    assert_eq!(size.trim(), "4G");
    let lookup = "getent hosts \"$(sed -n 's#^URIs: *https*://\\([^/]*\\).*#\\1#p' \
                  /etc/apt/sources.list.d/debian.sources | head -1)\"";
    bed.inside("m1", lookup).good();
    let now = bed.inside("m1", "date +%s").good();
    let now: i64 = now.trim().parse().unwrap();
    let here = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    assert!(now.abs_diff(here.try_into().unwrap()) < 60, "{now} {here}");
    bed.reboot("m1");
    assert_eq!(bed.inside("m1", FACTS).good(), restored);
    bed.destroy("machine");
    bed.set("HOMESTAK_FIRST_BOOT", "cloud-init");
    bed.apply("machine");
    bed.inside("m1", "cloud-init status --wait >/dev/null; true")
        .good();
    let booted = bed.inside("m1", FACTS).good();
    assert_eq!(without_key(&restored), without_key(&booted));
    // The seed is gone, and it still knows.
    let uuid = text(&bed.nodes()[0]["uuid"]);
    assert!(
        !bed.root()
            .join("nodes")
            .join(uuid)
            .join("seed.iso")
            .exists()
    );
    bed.reboot("m1");
    assert_eq!(bed.inside("m1", FACTS).good(), booted);
    bed.destroy("machine");
    bed.is_as_before();
}

#[test]
fn a_machine_that_is_killed_is_started_again_from_its_own_disk() {
    let Some(bed) = bed() else { return };
    bed.apply("machine");
    bed.inside("m1", "echo kept >note; sync").good();
    let facts = bed.inside("m1", FACTS).good();
    rustix::process::kill_process(qemu(&bed), rustix::process::Signal::KILL).unwrap();
    while bed.nodes()[0]["running"] == true {
        std::thread::sleep(Duration::from_millis(100));
    }
    bed.apply("machine");
    assert_eq!(bed.inside("m1", "cat note").good(), "kept\n");
    assert_eq!(bed.inside("m1", FACTS).good(), facts);
    bed.destroy("machine");
    bed.is_as_before();
}

#[test]
fn a_machine_whose_driver_was_killed_before_it_was_told_who_it_is_is_told_by_the_next() {
    let Some(bed) = bed() else { return };
    // The first one is saved on the way, which would take most of the time.
    bed.apply("machine");
    bed.destroy("machine");
    let mut driver = bed
        .command(&["manifest", "apply", "-M", "machine", "-H", "local", "--yes"])
        .spawn()
        .unwrap();
    let nodes = bed.root().join("nodes");
    let begun = || {
        let entries = std::fs::read_dir(&nodes).into_iter().flatten().flatten();
        let mut places = entries.map(|entry| entry.path());
        places.any(|place| place.join("qmp.sock").exists() && place.join("first-boot").exists())
    };
    while !begun() {
        assert!(driver.try_wait().unwrap().is_none(), "it came to its end");
        std::thread::sleep(Duration::from_millis(5));
    }
    driver.kill().unwrap();
    driver.wait().unwrap();
    bed.manifest_run("resume", "machine", &[]).good();
    assert_eq!(bed.inside("m1", "hostname").good(), "m1\n");
    bed.destroy("machine");
    bed.is_as_before();
}
