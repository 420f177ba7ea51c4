//! Nodes that are virtual machines in QEMU, emulated without hardware virtualization.
//!
//! They take minutes, so they run in `make test-full` only.

use std::time::Duration;

use crate::first_boot::{FACTS, without_key};
use crate::spent_token;
use crate::test_host::{TestHost, text};

/// Creates a local host whose `vm` nodes are virtual machines, or prints why not.
fn qemu_host() -> Option<TestHost> {
    std::env::var_os("HOMESTAK_TEST_FULL")?;
    let installed = std::path::Path::new("/usr/bin/qemu-system-x86_64").exists();
    if !installed {
        let line = "skipped: virtual machines need QEMU (tests/prepare installs it)";
        assert!(
            std::env::var_os("HOMESTAK_TEST_REQUIRE").is_none(),
            "{line}"
        );
        println!("{line}");
        return None;
    }
    let mut host = crate::host()?;
    host.set("HOMESTAK_VM_ENGINE", "qemu");
    host.write("presets/two.yaml", "cores: 2\nmemory: 512\ndisk: 4\n");
    host.manifest("machine", "  - {name: m1, type: vm, preset: two}\n");
    host.run(&["image", "build", "--disk", "debian-12"]).good();
    Some(host)
}

/// Returns the process id of the QEMU of the only node.
fn qemu_pid(host: &TestHost) -> rustix::process::Pid {
    let uuid = text(&host.nodes()[0]["uuid"]);
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
fn a_machine_restored_from_a_saved_state_equals_one_booted_from_its_seed() {
    let Some(mut host) = qemu_host() else { return };
    host.apply("machine");
    assert_eq!(host.nodes()[0]["engine"], "machine");
    let restored = host.inside("m1", FACTS).good();
    // It has the planned disk, a name server, and the correct time.
    let size = host
        .inside("m1", "df --output=size -BG / | tail -n 1")
        .good();
    assert_eq!(size.trim(), "4G");
    let lookup = "getent hosts \"$(sed -n 's#^URIs: *https*://\\([^/]*\\).*#\\1#p' \
                  /etc/apt/sources.list.d/debian.sources | head -1)\"";
    host.inside("m1", lookup).good();
    let now = host.inside("m1", "date +%s").good();
    let now: i64 = now.trim().parse().unwrap();
    let host_time = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    assert!(
        now.abs_diff(host_time.try_into().unwrap()) < 60,
        "{now} {host_time}"
    );
    host.reboot("m1");
    assert_eq!(host.inside("m1", FACTS).good(), restored);
    host.destroy("machine");
    host.set("HOMESTAK_FIRST_BOOT", "cloud-init");
    host.apply("machine");
    host.inside("m1", "cloud-init status --wait >/dev/null; true")
        .good();
    let booted = host.inside("m1", FACTS).good();
    assert_eq!(without_key(&restored), without_key(&booted));
    // The seed is deleted, and the configuration survives a reboot.
    let uuid = text(&host.nodes()[0]["uuid"]);
    assert!(
        !host
            .root()
            .join("nodes")
            .join(uuid)
            .join("seed.iso")
            .exists()
    );
    host.reboot("m1");
    assert_eq!(host.inside("m1", FACTS).good(), booted);
    host.destroy("machine");
    host.assert_unchanged();
}

#[test]
fn a_machine_that_pulls_is_left_without_its_seed_and_its_token() {
    let Some(mut host) = qemu_host() else { return };
    host.set("HOMESTAK_FIRST_BOOT", "cloud-init");
    // It reports when cloud-init has ended, which an emulated machine takes minutes for.
    host.set("HOMESTAK_TIMEOUTS", "boot=1200");
    spent_token::write_spec(&host);
    let node = "  - {name: m1, type: vm, preset: two, spec: web, execution: {mode: pull}}\n";
    host.manifest("machine", node);
    let token = spent_token::apply(&host, "machine");
    host.inside("m1", "grep -qx pulled /etc/motd").good();
    // Also what cloud-init writes at its end.
    host.inside("m1", "cloud-init status --wait >/dev/null; true")
        .good();
    spent_token::assert_forgotten(&host, "m1", &token);
    host.destroy("machine");
    host.assert_unchanged();
}

#[test]
fn a_killed_machine_restarts_from_its_own_disk() {
    let Some(host) = qemu_host() else { return };
    host.apply("machine");
    host.inside("m1", "echo kept >note; sync").good();
    let facts = host.inside("m1", FACTS).good();
    rustix::process::kill_process(qemu_pid(&host), rustix::process::Signal::KILL).unwrap();
    while host.nodes()[0]["running"] == true {
        std::thread::sleep(Duration::from_millis(100));
    }
    host.apply("machine");
    assert_eq!(host.inside("m1", "cat note").good(), "kept\n");
    assert_eq!(host.inside("m1", FACTS).good(), facts);
    host.destroy("machine");
    host.assert_unchanged();
}

#[test]
fn resume_gives_a_machine_its_identity_after_the_driver_was_killed() {
    let Some(host) = qemu_host() else { return };
    // The first apply saves a machine state, which takes most of the time.
    host.apply("machine");
    host.destroy("machine");
    let mut driver = host
        .command(&["manifest", "apply", "-M", "machine", "-H", "local", "--yes"])
        .spawn()
        .unwrap();
    let nodes = host.root().join("nodes");
    let begun = || {
        let entries = std::fs::read_dir(&nodes).into_iter().flatten().flatten();
        let mut places = entries.map(|entry| entry.path());
        places.any(|place| place.join("qmp.sock").exists() && place.join("first-boot").exists())
    };
    while !begun() {
        assert!(
            driver.try_wait().unwrap().is_none(),
            "the driver finished too early"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    driver.kill().unwrap();
    driver.wait().unwrap();
    host.manifest_run("resume", "machine", &[]).good();
    assert_eq!(host.inside("m1", "hostname").good(), "m1\n");
    host.destroy("machine");
    host.assert_unchanged();
}
