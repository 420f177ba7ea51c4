//! Copies of guests keep exactly the fields that Proxmox VE keeps: clones, restored backups, migrations.
//!
//! The tables are what was seen on Proxmox VE 9.2.

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
        // Cancel safety: the call is the point of the race; the clock can be dropped.
        answer = world.call(request) => answer,
        // Cancel safety: as above.
        () = async { loop { clock.advance(Duration::from_millis(5)).await } } => unreachable!(),
    }
}

async fn call(world: &World, request: Request) -> Answer {
    call_as(world, TOKEN, request).await
}

async fn pass(world: &World, seconds: u64) {
    let clock = world.stepped().expect("time is stepped");
    clock.advance(Duration::from_secs(seconds)).await;
}

/// Makes a call and returns how its task ended, or the reason of the refusal.
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
    pass(world, 120).await;
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

/// What becomes of a part of a configuration in a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Kept,
    /// Another value of the same form.
    New,
    Is(&'static str),
}
use Fate::{Is, Kept, New};

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

fn check(what: &str, source: &Config, copy: &Config, table: &[(&str, Fate)]) {
    for (name, fate) in table {
        let (old, new) = (part(source, name), part(copy, name));
        match fate {
            Kept => assert_eq!(new, old, "{what}: {name} is kept"),
            New => {
                assert!(new.is_some(), "{what}: {name} is there");
                assert_ne!(new, old, "{what}: {name} is new");
                let length = |text: &Option<String>| text.as_ref().map(String::len);
                assert_eq!(length(&new), length(&old), "{what}: {name} has its form");
            }
            Is(text) => assert_eq!(new.as_deref(), Some(*text), "{what}: {name}"),
        }
    }
    let keys = |config: &Config| config.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(copy), keys(source), "{what}: the same keys");
}

/// What every copy of the VM keeps.
const VM_KEPT: &[(&str, Fate)] = &[
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

/// What every copy of the container keeps.
const CT_KEPT: &[(&str, Fate)] = &[
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

#[tokio::test]
async fn a_clone_of_a_vm_keeps_tags_and_notes_and_gets_an_identity_of_its_own() {
    let world = world();
    make_vm(&world).await;
    let source = config(&world, "pve1/qemu/411").await;
    let snapshot = Request::post("/nodes/pve1/qemu/411/snapshot")
        .with("snapname", "s1")
        .with("description", "before");
    assert_eq!(outcome(&world, snapshot).await, "task OK");
    let identity: &[(&str, Fate)] = &[
        ("smbios1.uuid", New),
        ("vmgenid", New),
        ("net0.virtio", New),
        ("net1.virtio", New),
    ];
    let cases: &[(Request, &[(&str, Fate)])] = &[
        (
            clone("qemu", 411, 412).with("full", 1),
            &[
                ("description", Kept),
                ("name", Is("Copy-of-VM-src-vm")),
                ("scsi1.volume", Is("local:412/vm-412-disk-0.qcow2")),
            ],
        ),
        (
            clone("qemu", 411, 413)
                .with("full", 1)
                .with("name", "copy-vm")
                .with("description", "my own notes")
                .with("storage", "small")
                .with("format", "raw"),
            &[
                ("description", Is("my own notes")),
                ("name", Is("copy-vm")),
                ("scsi1.volume", Is("small:413/vm-413-disk-0.raw")),
            ],
        ),
        (
            clone("qemu", 411, 414)
                .with("full", 1)
                .with("snapname", "s1"),
            &[
                ("description", Is("before")),
                ("name", Is("Copy-of-VM-src-vm")),
                ("scsi1.volume", Is("local:414/vm-414-disk-0.qcow2")),
            ],
        ),
    ];
    for (request, table) in cases {
        let target = request.parameters["newid"].clone();
        assert_eq!(outcome(&world, request.clone()).await, "task OK");
        let copy = config(&world, &format!("pve1/qemu/{target}")).await;
        check(&target, &source, &copy, VM_KEPT);
        check(&target, &source, &copy, identity);
        check(&target, &source, &copy, table);
    }
}

#[tokio::test]
async fn a_clone_of_a_container_keeps_its_host_name_tags_and_notes() {
    let world = world();
    make_ct(&world).await;
    let source = config(&world, "pve1/lxc/421").await;
    assert_eq!(
        part(&source, "description").as_deref(),
        Some("marker: uuid 2222\nsecond line\n"),
        "notes of a container end in a newline"
    );
    let cases: &[(Request, &[(&str, Fate)])] = &[
        (
            clone("lxc", 421, 422).with("full", 1),
            &[
                ("description", Kept),
                ("hostname", Is("src-ct")),
                ("rootfs.volume", Is("local:422/vm-422-disk-0.raw")),
            ],
        ),
        (
            clone("lxc", 421, 423)
                .with("full", 1)
                .with("hostname", "copy-ct")
                .with("description", "own notes"),
            &[
                ("description", Is("own notes\n")),
                ("hostname", Is("copy-ct")),
                ("rootfs.volume", Is("local:423/vm-423-disk-0.raw")),
            ],
        ),
    ];
    for (request, table) in cases {
        let target = request.parameters["newid"].clone();
        assert_eq!(outcome(&world, request.clone()).await, "task OK");
        let copy = config(&world, &format!("pve1/lxc/{target}")).await;
        check(&target, &source, &copy, CT_KEPT);
        check(&target, &source, &copy, &[("net0.hwaddr", New)]);
        check(&target, &source, &copy, table);
    }
}
