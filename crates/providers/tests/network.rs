//! Machines keep their network on every boot with each renderer: real Debian in QEMU, with the
//! network card in the same slot as on Proxmox VE.
//!
//! Without KVM they are emulated, which takes minutes: in `make test-full` only.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests start programs, read the environment, and say what they skip"
)]

use std::path::Path;
use std::process::Command;

use homestak_engine::ports::{FirstBootConfig, GuestUuid, Seed};
use homestak_providers::pve::seed;
use homestak_test_support::images;

const MAC: &str = "02:00:00:00:00:0a";
/// The interface name for the slot of the network card.
const CARD: &str = "ens18";

/// Returns first-boot data with a fixed address of QEMU's own network.
fn first_boot() -> Vec<u8> {
    let identity = FirstBootConfig {
        uuid: GuestUuid::new("5d1f2a3b-0000-4000-8000-00000000000a").unwrap(),
        hostname: "web".to_owned(),
        user: "ops".to_owned(),
        keys: vec!["ssh-ed25519 AAAA ops@desk".to_owned()],
        host_key: None,
        mac: MAC.to_owned(),
        address: Some(([10, 0, 2, 15].into(), 24)),
        gateway: Some([10, 0, 2, 2].into()),
        dns: vec![[10, 0, 2, 3].into()],
        packages: Vec::new(),
        enrolment: None,
    };
    seed::image(&Seed::from(identity))
}

/// Boots the disk in a directory and returns the console output.
fn boot(directory: &Path, with_seed: bool) -> String {
    let console = directory.join("console.log");
    let file = |name: &str| directory.join(name).display().to_string();
    let drive = |name: &str, id: &str, more: &str| {
        let file = file(name);
        format!("file={file},format=raw,if=none,id={id}{more}")
    };
    let mut qemu = Command::new("timeout");
    qemu.args(["1800", "qemu-system-x86_64"])
        .args("-nodefaults -no-user-config -display none -no-reboot -smp 2 -m 768".split(' '))
        // Emulated: an existing KVM device may not work.
        .args("-machine pc -accel tcg,thread=multi -cpu max".split(' '))
        .args(["-kernel", &file("vmlinuz"), "-initrd", &file("initrd.img")])
        .args(["-append", "root=/dev/vda rw console=ttyS0 quiet"])
        .args([
            "-device",
            "pci-bridge,id=pci.1,chassis_nr=1,bus=pci.0,addr=0x1e",
        ])
        .args(["-drive", &drive("disk.raw", "root", ",cache=unsafe")])
        .args(["-device", "virtio-blk-pci,drive=root,bus=pci.0,addr=0xa"])
        .args(["-netdev", "user,id=net0,restrict=on", "-device"])
        .arg(format!(
            "virtio-net-pci,mac={MAC},netdev=net0,bus=pci.0,addr=0x12,romfile="
        ))
        .arg("-serial")
        .arg(format!("file:{}", console.display()));
    if with_seed {
        qemu.args(["-drive", &drive("seed.iso", "seed", ",readonly=on")])
            .args(["-device", "virtio-blk-pci,drive=seed,bus=pci.0,addr=0xb"]);
    }
    let output = qemu.output().unwrap();
    let console_text = String::from_utf8_lossy(&fs_err::read(console).unwrap()).into_owned();
    assert!(output.status.success(), "{output:?}\n{console_text}");
    console_text
}

/// Boots a machine three times, the first time with its first-boot data.
fn keeps_its_network(packages: &[&str]) {
    if std::env::var_os("HOMESTAK_TEST_FULL").is_none() || !images::possible() {
        return;
    }
    let tree = images::tree("debian-12");
    let dir = tempfile::tempdir().unwrap();
    let built = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-euc", include_str!("data/network.sh"), "sh"])
        .args([&tree.path, dir.path()])
        .args(packages)
        .output()
        .unwrap();
    assert!(built.status.success(), "{built:?}");
    fs_err::write(dir.path().join("seed.iso"), first_boot()).unwrap();
    for nth in 1..=3 {
        let console_text = boot(dir.path(), nth == 1);
        let found = console_text.lines().find(|line| line.contains("NETWORK"));
        let expected = format!("NETWORK up {CARD}");
        println!("{packages:?}, boot {nth}: {found:?}");
        assert!(
            found.is_some_and(|line| line.contains(&expected)),
            "boot {nth}:\n{console_text}"
        );
    }
}

#[test]
fn a_machine_whose_network_is_rendered_by_networkd_keeps_it() {
    keeps_its_network(&[]);
}

#[test]
fn a_machine_whose_network_is_rendered_by_netplan_keeps_it() {
    keeps_its_network(&["netplan.io"]);
}

#[test]
fn a_machine_whose_network_is_rendered_by_ifupdown_keeps_it() {
    keeps_its_network(&["ifupdown"]);
}
