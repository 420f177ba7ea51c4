//! Which fields clones, restored backups and migrated guests keep, and how locked, incomplete and
//! running guests behave. The expected values were observed on Proxmox VE 9.2.

mod backup;
mod clone;
mod listing;
mod locked;
mod migrate;

use std::collections::BTreeMap;
use std::time::Duration;

use homestak_sim::{Answer, Pace, Request, World};
use serde_json::Value;

const TOKEN: &str = "root@pam!t=secret";
const UUID: &str = "11111111-2222-4333-8444-555555550411";

fn world() -> World {
    World::builder()
        .pace(Pace::Stepped)
        .host("pve1")
        .host("pve2")
        .storage("local")
        .storage("small")
        .shared_storage("shared")
        .file("local", "vztmpl/debian-12.tar.zst", 80 << 20)
        .file("local", "iso/seed.iso", 1 << 20)
        .token(TOKEN)
        .build()
}

async fn call_as(world: &World, token: &str, request: Request) -> Answer {
    let clock = world.stepped().expect("time is stepped").clone();
    let request = request.token(token);
    tokio::select! {
        biased;
        // Cancel safety: the call completes; only the clock is dropped.
        answer = world.call(request) => answer,
        // Cancel safety: as above.
        () = async { loop { clock.advance(Duration::from_millis(5)).await } } => unreachable!(),
    }
}

async fn call(world: &World, request: Request) -> Answer {
    call_as(world, TOKEN, request).await
}

async fn advance(world: &World, seconds: u64) {
    let clock = world.stepped().expect("time is stepped");
    clock.advance(Duration::from_secs(seconds)).await;
}

/// Makes a call and returns the exit status of its task, or the error.
async fn outcome(world: &World, request: Request) -> String {
    outcome_as(world, TOKEN, request).await
}

async fn outcome_as(world: &World, token: &str, request: Request) -> String {
    let answer = call_as(world, token, request).await;
    if answer.status != 200 {
        return format!("{} {}", answer.status, answer.reason);
    }
    let Some(upid) = answer.data().as_str().map(ToOwned::to_owned) else {
        return "200".to_owned();
    };
    advance(world, 120).await;
    let node = upid.split(':').nth(1).expect("a UPID").to_owned();
    let status = call(
        world,
        Request::get(&format!("/nodes/{node}/tasks/{upid}/status")),
    )
    .await;
    let exit = status.data()["exitstatus"].as_str();
    format!("task {}", exit.unwrap_or("runs"))
}

type Config = BTreeMap<String, Value>;

async fn config(world: &World, path: &str) -> Config {
    let answer = call(world, Request::get(&format!("/nodes/{path}/config"))).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.reason);
    let shown = answer.data().as_object().expect("an object").clone();
    shown.into_iter().collect()
}

async fn make_vm(world: &World) {
    let create = Request::post("/nodes/pve1/qemu")
        .with("vmid", 411)
        .with("name", "src-vm")
        .with("memory", 64)
        .with("cores", 1)
        .with("scsi1", "local:1,format=qcow2,serial=DISK411")
        .with("ide2", "none,media=cdrom")
        .with("boot", "order=scsi1")
        .with("net0", "virtio=BC:24:11:00:04:11,bridge=vmbr0,firewall=1")
        .with("net1", "virtio=BC:24:11:00:14:11,bridge=vmbr0,link_down=1")
        .with("tags", "lab;owner-a")
        .with("description", "marker: uuid 1111\nsecond line äöü")
        .with("smbios1", format!("uuid={UUID},serial=SN411"))
        .with("protection", 1)
        .with("onboot", 1)
        .with("startup", "order=3,up=5")
        .with("agent", 1);
    assert_eq!(outcome(world, create).await, "task OK");
}

async fn make_ct(world: &World) {
    let create = Request::post("/nodes/pve1/lxc")
        .with("vmid", 421)
        .with("hostname", "src-ct")
        .with("ostemplate", "local:vztmpl/debian-12.tar.zst")
        .with("memory", 128)
        .with("swap", 0)
        .with("cores", 1)
        .with("unprivileged", 1)
        .with("features", "nesting=1")
        .with("tags", "lab;owner-a")
        .with("description", "marker: uuid 2222\nsecond line")
        .with("onboot", 1)
        .with("startup", "order=4")
        .with("protection", 1)
        .with("rootfs", "local:1")
        .with(
            "net0",
            "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:04:21,ip=10.88.0.121/24,gw=10.88.0.2",
        );
    assert_eq!(outcome(world, create).await, "task OK");
}

/// The expected value of a part of the configuration in a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    Kept,
    /// Another value of the same length.
    New,
    Is(&'static str),
}
use Expected::{Is, Kept, New};

/// Returns one part of a configuration: `net0`, or `smbios1.uuid` for a part of a property string.
fn part(config: &Config, name: &str) -> Option<String> {
    let (key, wanted) = name.split_once('.').unwrap_or((name, ""));
    let text = match config.get(key)? {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if wanted.is_empty() {
        return Some(text);
    }
    text.split(',').find_map(|piece| {
        let (name, value) = piece.split_once('=').unwrap_or(("volume", piece));
        (name == wanted).then(|| value.to_owned())
    })
}

fn check(what: &str, source: &Config, copy: &Config, table: &[(&str, Expected)]) {
    for (name, expected) in table {
        let (old, new) = (part(source, name), part(copy, name));
        match expected {
            Kept => assert_eq!(new, old, "{what}: {name} is kept"),
            New => {
                assert!(new.is_some(), "{what}: {name} exists");
                assert_ne!(new, old, "{what}: {name} is new");
                let length = |text: &Option<String>| text.as_ref().map(String::len);
                assert_eq!(
                    length(&new),
                    length(&old),
                    "{what}: {name} has the same length"
                );
            }
            Is(text) => assert_eq!(new.as_deref(), Some(*text), "{what}: {name}"),
        }
    }
    let keys = |config: &Config| config.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(copy), keys(source), "{what}: the same keys");
}

/// Fields that every copy of the VM keeps.
const VM_KEPT: &[(&str, Expected)] = &[
    ("tags", Kept),
    ("protection", Kept),
    ("onboot", Kept),
    ("startup", Kept),
    ("agent", Kept),
    ("scsi1.serial", Kept),
    ("scsi1.size", Kept),
    ("smbios1.serial", Kept),
    ("meta", Kept),
    ("memory", Kept),
    ("cores", Kept),
    ("boot", Kept),
    ("ide2", Kept),
    ("net0.bridge", Kept),
    ("net0.firewall", Kept),
    ("net1.link_down", Kept),
];

/// Fields that every copy of the container keeps.
const CT_KEPT: &[(&str, Expected)] = &[
    ("tags", Kept),
    ("protection", Kept),
    ("onboot", Kept),
    ("startup", Kept),
    ("features", Kept),
    ("unprivileged", Kept),
    ("memory", Kept),
    ("swap", Kept),
    ("ostype", Kept),
    ("arch", Kept),
    ("rootfs.size", Kept),
    ("net0.ip", Kept),
    ("net0.gw", Kept),
];

fn clone(kind: &str, from: u32, to: u32) -> Request {
    Request::post(&format!("/nodes/pve1/{kind}/{from}/clone")).with("newid", to)
}

/// Backs a guest up and returns the volume of the archive.
async fn back_up(world: &World, vmid: u32) -> String {
    let request = Request::post("/nodes/pve1/vzdump")
        .with("vmid", vmid)
        .with("storage", "local")
        .with("mode", "stop")
        .with("compress", "zstd")
        .with("notes-template", "{{guestname}} {{vmid}}");
    assert_eq!(outcome(world, request).await, "task OK");
    let list = Request::get("/nodes/pve1/storage/local/content").with("content", "backup");
    let list = call(world, list).await;
    let entries = list.data().as_array().expect("a list");
    let entry = entries.iter().find(|entry| entry["vmid"] == vmid);
    let entry = entry.expect("an archive").as_object().expect("an object");
    let mut keys: Vec<&str> = entry.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "content", "ctime", "format", "notes", "size", "subtype", "vmid", "volid"
        ]
    );
    entry["volid"].as_str().expect("a volume").to_owned()
}

fn restore_vm(archive: &str, vmid: u32) -> Request {
    Request::post("/nodes/pve1/qemu")
        .with("vmid", vmid)
        .with("archive", archive)
        .with("storage", "local")
}

fn restore_ct(archive: &str, vmid: u32) -> Request {
    Request::post("/nodes/pve1/lxc")
        .with("vmid", vmid)
        .with("ostemplate", archive)
        .with("restore", 1)
        .with("storage", "local")
}
