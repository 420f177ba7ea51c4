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

#[tokio::test]
async fn linked_clones_stand_on_templates_and_are_refused_elsewhere() {
    let world = world();
    make_vm(&world).await;
    make_ct(&world).await;
    let say = |kind: &str, from: u32| clone(kind, from, 499);
    assert_eq!(
        outcome(&world, say("qemu", 411).with("full", 0)).await,
        "500 Linked clone feature is not supported for 'local:411/vm-411-disk-0.qcow2' (scsi1)"
    );
    assert_eq!(
        outcome(&world, say("lxc", 421).with("full", 0)).await,
        "500 Linked clone feature for 'local:421/vm-421-disk-0.raw' is not available"
    );
    assert_eq!(
        outcome(&world, say("qemu", 411).with("snapname", "none")).await,
        "500 snapshot 'none' does not exist"
    );
    let template = |path: &str| Request::post(&format!("/nodes/pve1/{path}/template"));
    assert_eq!(outcome(&world, template("qemu/411")).await, "task OK");
    let source = config(&world, "pve1/qemu/411").await;
    let base = "local:411/base-411-disk-0.qcow2";
    check(
        "template",
        &source,
        &source,
        &[("scsi1.volume", Is(base)), ("template", Is("1"))],
    );
    assert_eq!(
        outcome(&world, template("qemu/411")).await,
        "500 you can't convert a template to a template"
    );
    // The answer for a container names no task, and the task is not done yet.
    let answer = call(&world, template("lxc/421")).await;
    assert!(answer.is_ok() && answer.data().is_null());
    let before = config(&world, "pve1/lxc/421").await;
    assert_eq!(part(&before, "template"), None);
    pass(&world, 10).await;
    let after = config(&world, "pve1/lxc/421").await;
    assert_eq!(part(&after, "template").as_deref(), Some("1"));
    assert_eq!(
        outcome(&world, say("lxc", 421)).await,
        "500 Linked clone feature for 'local:421/base-421-disk-0.raw' is not available"
    );
    for name in ["storage", "format"] {
        let value = if name == "storage" { "small" } else { "raw" };
        assert_eq!(
            outcome(&world, say("qemu", 411).with(name, value)).await,
            format!("500 parameter '{name}' not allowed for linked clones")
        );
    }
    assert_eq!(outcome(&world, clone("qemu", 411, 415)).await, "task OK");
    let mut linked = config(&world, "pve1/qemu/415").await;
    assert_eq!(linked.insert("template".to_owned(), 1.into()), None);
    check("linked", &source, &linked, VM_KEPT);
    check(
        "linked",
        &source,
        &linked,
        &[
            (
                "scsi1.volume",
                Is("local:411/base-411-disk-0.qcow2/415/vm-415-disk-0.qcow2"),
            ),
            ("smbios1.uuid", New),
            ("description", Kept),
        ],
    );
    assert_eq!(
        outcome(&world, Request::post("/nodes/pve1/qemu/411/status/start")).await,
        "task you can't start a vm if it's a template"
    );
    let destroy = || Request::delete("/nodes/pve1/qemu/411");
    assert_eq!(
        outcome(&world, destroy()).await,
        "500 can't remove VM 411 - protection mode enabled"
    );
    world.change_guest(411, &[("protection", "0")]).unwrap();
    assert_eq!(
        outcome(&world, destroy()).await,
        format!("task base volume '{base}' is still in use by linked cloned")
    );
    config(&world, "pve1/qemu/411").await;
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

#[tokio::test]
async fn a_restored_vm_is_the_same_machine_again_unless_it_is_unique() {
    let world = world();
    make_vm(&world).await;
    let source = config(&world, "pve1/qemu/411").await;
    let archive = back_up(&world, 411).await;
    assert!(archive.starts_with("local:backup/vzdump-qemu-411-2026_01_01-00_"));
    assert!(archive.ends_with(".vma.zst"));
    let cases: &[(Request, &[(&str, Fate)])] = &[
        (
            restore_vm(&archive, 417),
            &[
                ("smbios1.uuid", Kept),
                ("vmgenid", New),
                ("net0.virtio", Kept),
                ("net1.virtio", Kept),
                ("name", Kept),
                ("scsi1.volume", Is("local:417/vm-417-disk-0.qcow2")),
            ],
        ),
        (
            restore_vm(&archive, 418).with("unique", 1),
            &[
                ("smbios1.uuid", New),
                ("vmgenid", New),
                ("net0.virtio", New),
                ("net1.virtio", New),
                ("name", Kept),
                ("scsi1.volume", Is("local:418/vm-418-disk-0.qcow2")),
            ],
        ),
    ];
    for (request, table) in cases {
        let target = request.parameters["vmid"].clone();
        assert_eq!(outcome(&world, request.clone()).await, "task OK");
        let copy = config(&world, &format!("pve1/qemu/{target}")).await;
        check(&target, &source, &copy, VM_KEPT);
        check(&target, &source, &copy, &[("description", Kept)]);
        check(&target, &source, &copy, table);
    }
    let own = restore_vm(&archive, 419)
        .with("name", "third")
        .with("tags", "new")
        .with("description", "new notes")
        .with("memory", 96)
        .with("protection", 0)
        .with("smbios1", "uuid=99999999-2222-4333-8444-555555550411");
    assert_eq!(outcome(&world, own).await, "task OK");
    let copy = config(&world, "pve1/qemu/419").await;
    check(
        "values of the call win",
        &source,
        &copy,
        &[
            ("name", Is("third")),
            ("tags", Is("new")),
            ("description", Is("new notes")),
            ("memory", Is("96")),
            ("protection", Is("0")),
            ("smbios1", Is("uuid=99999999-2222-4333-8444-555555550411")),
            ("net0.virtio", Kept),
            ("onboot", Kept),
        ],
    );
}

#[tokio::test]
async fn a_restored_container_keeps_everything_and_unique_renews_its_address() {
    let world = world();
    make_ct(&world).await;
    let source = config(&world, "pve1/lxc/421").await;
    let archive = back_up(&world, 421).await;
    assert!(archive.ends_with(".tar.zst"));
    for (unique, fate, target) in [(0, Kept, 426), (1, New, 427)] {
        let request = restore_ct(&archive, target).with("unique", unique);
        assert_eq!(outcome(&world, request).await, "task OK");
        let copy = config(&world, &format!("pve1/lxc/{target}")).await;
        check("restored", &source, &copy, CT_KEPT);
        check(
            "restored",
            &source,
            &copy,
            &[
                ("description", Kept),
                ("hostname", Kept),
                ("net0.hwaddr", fate),
            ],
        );
    }
    let own = restore_ct(&archive, 428)
        .with("hostname", "third")
        .with("tags", "new")
        .with("description", "new notes")
        .with("memory", 96)
        .with("protection", 0);
    assert_eq!(outcome(&world, own).await, "task OK");
    let copy = config(&world, "pve1/lxc/428").await;
    check(
        "values of the call win",
        &source,
        &copy,
        &[
            ("hostname", Is("third")),
            ("tags", Is("new")),
            ("description", Is("new notes\n")),
            ("memory", Is("96")),
            ("protection", Is("0")),
            ("net0.hwaddr", Kept),
            ("rootfs.volume", Is("local:428/vm-428-disk-0.raw")),
        ],
    );
}

#[tokio::test]
async fn restoring_over_a_guest_needs_force_and_one_that_is_off_and_not_protected() {
    let world = world();
    make_vm(&world).await;
    make_ct(&world).await;
    let (vm, ct) = (back_up(&world, 411).await, back_up(&world, 421).await);
    let over = |vmid: u32| match vmid {
        411 => restore_vm(&vm, 411),
        _ => restore_ct(&ct, 421),
    };
    let (running, off) = ("status/start", "status/stop");
    for (vmid, kind, without, protected, runs) in [
        (
            411,
            "qemu",
            "500 unable to restore VM 411 - VM 411 already exists on node 'pve1'",
            "task unable to restore VM 411 - - protection mode enabled",
            "task unable to restore VM 411 - vm is running",
        ),
        (
            421,
            "lxc",
            "500 CT 421 already exists on node 'pve1'",
            "500 unable to restore CT 421 - protection mode enabled",
            "500 can't overwrite running container",
        ),
    ] {
        let path = format!("pve1/{kind}/{vmid}");
        let before = config(&world, &path).await;
        assert_eq!(outcome(&world, over(vmid)).await, without);
        assert_eq!(
            outcome(&world, over(vmid).with("force", 1)).await,
            protected
        );
        assert_eq!(config(&world, &path).await, before, "nothing has changed");
        world
            .change_guest(
                vmid,
                &[
                    ("protection", "0"),
                    ("tags", "other"),
                    ("description", "other"),
                ],
            )
            .unwrap();
        assert_eq!(
            outcome(&world, over(vmid).with("force", 1)).await,
            "task OK"
        );
        let after = config(&world, &path).await;
        let kept: &[(&str, Fate)] = &[("tags", Kept), ("description", Kept), ("protection", Kept)];
        check("restored over itself", &before, &after, kept);
        world.change_guest(vmid, &[("protection", "0")]).unwrap();
        let power = |what: &str| Request::post(&format!("/nodes/{path}/{what}"));
        assert_eq!(outcome(&world, power(running)).await, "task OK");
        assert_eq!(outcome(&world, over(vmid).with("force", 1)).await, runs);
        assert_eq!(outcome(&world, power(off)).await, "task OK");
    }
    // A VM's disk is made again under its name, a container's gets the next number.
    let disk = |path: &'static str, key: &'static str| {
        let world = world.clone();
        async move { part(&config(&world, path).await, key) }
    };
    assert_eq!(
        disk("pve1/qemu/411", "scsi1.volume").await.as_deref(),
        Some("local:411/vm-411-disk-0.qcow2")
    );
    assert_eq!(
        disk("pve1/lxc/421", "rootfs.volume").await.as_deref(),
        Some("local:421/vm-421-disk-1.raw")
    );
    let volumes = world.volumes();
    let disks = volumes
        .iter()
        .filter(|(_, volume)| volume.contains("-disk-"));
    assert_eq!(disks.count(), 2, "no disk is left behind: {volumes:?}");
}

#[tokio::test]
async fn a_backup_has_notes_and_a_protected_one_stays_when_it_is_deleted() {
    let world = world();
    make_ct(&world).await;
    let archive = back_up(&world, 421).await;
    let path = format!("/nodes/pve1/storage/local/content/{archive}");
    let shown = call(&world, Request::get(&path)).await;
    assert_eq!(shown.data()["notes"], "src-ct 421");
    assert_eq!(shown.data()["protected"], 0);
    let inside = Request::get("/nodes/pve1/vzdump/extractconfig").with("volume", &archive);
    let inside = call(&world, inside).await;
    let text = inside.data().as_str().expect("a text");
    assert!(text.starts_with("#marker%3A uuid 2222\n#second line\narch: amd64\n"));
    let protect = Request::put(&path)
        .with("protected", 1)
        .with("notes", "kept");
    assert_eq!(outcome(&world, protect).await, "200");
    let name = archive.split_once(':').expect("a volume").1;
    assert_eq!(
        outcome(&world, Request::delete(&path)).await,
        format!("task cannot remove protected volume '{name}' on 'local'")
    );
    // The backups of a guest outlive it.
    world.change_guest(421, &[("protection", "0")]).unwrap();
    world.delete_guest(421).unwrap();
    let list = Request::get("/nodes/pve1/storage/local/content").with("content", "backup");
    let list = call(&world, list).await;
    assert_eq!(list.data()[0]["notes"], "kept");
    assert_eq!(list.data()[0]["protected"], 1);
    assert_eq!(
        outcome(&world, Request::put(&path).with("protected", 0)).await,
        "200"
    );
    assert_eq!(outcome(&world, Request::delete(&path)).await, "task OK");
    assert_eq!(
        outcome(&world, restore_ct(&archive, 421)).await,
        format!("500 volume '{archive}' does not exist")
    );
}

#[tokio::test]
async fn a_guest_is_locked_while_it_is_backed_up() {
    let world = world();
    make_vm(&world).await;
    world.set_copy_speed(10_000);
    let request = Request::post("/nodes/pve1/vzdump").with("vmid", 411);
    assert!(call(&world, request).await.is_ok());
    pass(&world, 2).await;
    let during = config(&world, "pve1/qemu/411").await;
    assert_eq!(part(&during, "lock").as_deref(), Some("backup"));
    assert_eq!(
        outcome(&world, clone("qemu", 411, 412)).await,
        "500 VM is locked (backup)"
    );
    pass(&world, 60).await;
    let after = config(&world, "pve1/qemu/411").await;
    assert_eq!(part(&after, "lock"), None);
    world.change_guest(411, &[("lock", "snapshot")]).unwrap();
    let request = Request::post("/nodes/pve1/vzdump").with("vmid", 411);
    assert_eq!(outcome(&world, request).await, "task job errors");
}

#[tokio::test]
async fn migration_moves_the_configuration_unchanged() {
    let world = world();
    make_vm(&world).await;
    make_ct(&world).await;
    for (vmid, kind, start, how) in [
        (411, "qemu", false, &[][..]),
        (411, "qemu", true, &["online", "with-local-disks"][..]),
        (421, "lxc", false, &[][..]),
        (421, "lxc", true, &["restart"][..]),
    ] {
        let from = world.guests().into_iter().find(|guest| guest.vmid == vmid);
        let from = from.expect("the guest").host;
        let to = if from == "pve1" { "pve2" } else { "pve1" };
        let before = config(&world, &format!("{from}/{kind}/{vmid}")).await;
        if start {
            let start = Request::post(&format!("/nodes/{from}/{kind}/{vmid}/status/start"));
            assert_eq!(outcome(&world, start).await, "task OK");
        }
        let mut request =
            Request::post(&format!("/nodes/{from}/{kind}/{vmid}/migrate")).with("target", to);
        for name in how {
            request = request.with(name, 1);
        }
        assert_eq!(outcome(&world, request).await, "task OK");
        let after = config(&world, &format!("{to}/{kind}/{vmid}")).await;
        assert_eq!(after, before, "{vmid}");
        assert_eq!(world.is_running(vmid), start);
        let gone = Request::get(&format!("/nodes/{from}/{kind}/{vmid}/config"));
        assert!(call(&world, gone).await.reason.ends_with("does not exist"));
        let list = Request::get("/cluster/resources").with("type", "vm");
        let list = call(&world, list).await;
        let mut rows = list.data().as_array().expect("a list").iter();
        let row = rows.find(|row| row["vmid"] == vmid).expect("a row");
        assert_eq!(row["node"], to);
        let disk = format!(":{vmid}/");
        let mut volumes = world.volumes().into_iter();
        let (place, _) = volumes
            .find(|(_, name)| name.contains(&disk))
            .expect("a disk");
        assert_eq!(place, to);
    }
}

#[tokio::test]
async fn a_migration_that_cannot_be_made_changes_nothing() {
    let world = world();
    make_vm(&world).await;
    make_ct(&world).await;
    let vm = |target: &str| Request::post("/nodes/pve1/qemu/411/migrate").with("target", target);
    let ct = |target: &str| Request::post("/nodes/pve1/lxc/421/migrate").with("target", target);
    let answer = call(&world, vm("pve1")).await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.body().expect("a body")["errors"]["target"],
        "target is local node."
    );
    assert_eq!(
        outcome(&world, ct("pve9")).await,
        "500 no such cluster node 'pve9'"
    );
    world.change_guest(411, &[("lock", "backup")]).unwrap();
    world.change_guest(421, &[("lock", "backup")]).unwrap();
    assert_eq!(
        outcome(&world, vm("pve2")).await,
        "500 VM is locked (backup)"
    );
    assert_eq!(outcome(&world, ct("pve2")).await, "task migration aborted");
    for vmid in [411, 421] {
        world.unlock_guest(vmid);
    }
    for path in ["qemu/411", "lxc/421"] {
        let start = Request::post(&format!("/nodes/pve1/{path}/status/start"));
        assert_eq!(outcome(&world, start).await, "task OK");
    }
    assert_eq!(
        outcome(&world, vm("pve2")).await,
        "500 can't migrate running VM without --online"
    );
    assert_eq!(
        outcome(&world, vm("pve2").with("online", 1)).await,
        "task migration aborted",
        "a local disk"
    );
    assert_eq!(
        outcome(&world, ct("pve2")).await,
        "500 can't migrate running container without --online or --restart"
    );
    assert_eq!(
        outcome(&world, ct("pve2").with("online", 1)).await,
        "task migration aborted",
        "containers do not move while they run"
    );
    let stop = Request::post("/nodes/pve1/qemu/411/status/stop");
    assert_eq!(outcome(&world, stop).await, "task OK");
    world
        .change_guest(411, &[("ide2", "local:iso/seed.iso,media=cdrom")])
        .unwrap();
    assert_eq!(
        outcome(&world, vm("pve2")).await,
        "task migration aborted",
        "a local image in the drive"
    );
    world
        .change_guest(411, &[("ide2", "none,media=cdrom")])
        .unwrap();
    world.set_online("pve2", false);
    assert_eq!(outcome(&world, vm("pve2")).await, "task migration aborted");
    assert!(world.guests().iter().all(|guest| guest.host == "pve1"));
    assert!(
        world
            .guests()
            .iter()
            .all(|guest| !guest.config.contains_key("lock"))
    );
}

#[tokio::test]
async fn a_guest_is_locked_while_it_migrates_and_a_host_that_stops_it_unlocks_it() {
    let world = world();
    make_vm(&world).await;
    world.set_copy_speed(10_000);
    let migrate = Request::post("/nodes/pve1/qemu/411/migrate").with("target", "pve2");
    let started = call(&world, migrate).await;
    pass(&world, 2).await;
    let during = config(&world, "pve1/qemu/411").await;
    assert_eq!(part(&during, "lock").as_deref(), Some("migrate"));
    let upid = started.data().as_str().expect("a task");
    let stop = Request::delete(&format!("/nodes/pve1/tasks/{upid}"));
    assert!(call(&world, stop).await.is_ok());
    pass(&world, 2).await;
    let after = config(&world, "pve1/qemu/411").await;
    assert_eq!(part(&after, "lock"), None);
}

/// Privileges, and what lacks without the one that is left out.
#[tokio::test]
async fn copies_need_the_privileges_that_the_description_names() {
    const OPS: &str = "ops@pve!t=secret";
    let all = [
        "VM.Clone",
        "VM.Allocate",
        "VM.Backup",
        "VM.Migrate",
        "VM.Audit",
        "VM.Config.Options",
        "Datastore.AllocateSpace",
        "SDN.Use",
    ];
    let archive = "local:backup/vzdump-qemu-411-2026_01_01-00_00_00.vma";
    let clone_vm = || clone("qemu", 411, 412).with("full", 1);
    let dump = || {
        Request::post("/nodes/pve1/vzdump")
            .with("vmid", 411)
            .with("storage", "local")
    };
    let restore = || restore_vm(archive, 417);
    let over = || restore_vm(archive, 411).with("force", 1);
    let migrate = || Request::post("/nodes/pve1/qemu/411/migrate").with("target", "pve2");
    let cases: &[(&str, Request, &str)] = &[
        ("", clone_vm(), "task OK"),
        ("VM.Clone", clone_vm(), "403 Permission check failed"),
        ("VM.Allocate", clone_vm(), "403 Permission check failed"),
        (
            "Datastore.AllocateSpace",
            clone_vm(),
            "403 Permission check failed (/storage/local, Datastore.AllocateSpace)",
        ),
        (
            "SDN.Use",
            clone_vm(),
            "403 Permission check failed (/sdn/zones/localnetwork/vmbr0, SDN.Use)",
        ),
        ("", dump(), "task OK"),
        (
            "Datastore.AllocateSpace",
            dump(),
            "403 Permission check failed (/storage/local, Datastore.AllocateSpace)",
        ),
        (
            "VM.Backup",
            dump(),
            "task 403 Permission check failed (/vms/411, VM.Backup)",
        ),
        ("", restore(), "task OK"),
        ("VM.Allocate", restore(), "403 Permission check failed"),
        (
            "VM.Backup",
            restore(),
            "403 Permission check failed (/vms/411, VM.Backup)",
        ),
        (
            "Datastore.AllocateSpace",
            restore(),
            "403 Permission check failed (/storage/local, Datastore.AllocateSpace)",
        ),
        // Whoever may back it up may restore over it.
        ("VM.Allocate", over(), "task OK"),
        ("", migrate(), "task OK"),
        (
            "VM.Migrate",
            migrate(),
            "403 Permission check failed (/vms/411, VM.Migrate)",
        ),
    ];
    for (missing, request, expected) in cases {
        let has: Vec<&str> = all
            .iter()
            .filter(|name| *name != missing)
            .copied()
            .collect();
        let world = World::builder()
            .pace(Pace::Stepped)
            .host("pve1")
            .host("pve2")
            .storage("local")
            .token(TOKEN)
            .token(OPS)
            .role("Ops", &has)
            .grant("ops@pve", "/", "Ops")
            .build();
        make_vm(&world).await;
        world.change_guest(411, &[("protection", "0")]).unwrap();
        let made = world.back_up(411, "local").unwrap();
        let mut request = request.clone();
        for value in request.parameters.values_mut() {
            *value = value.replace(archive, &made);
        }
        let what = format!("{} {} without `{missing}`", request.method, request.path);
        assert_eq!(outcome_as(&world, OPS, request).await, *expected, "{what}");
    }
}

#[tokio::test]
async fn backups_are_listed_for_those_who_may_restore_them() {
    const OPS: &str = "ops@pve!t=secret";
    for (privileges, expected) in [
        (&["Datastore.Audit"][..], 0),
        (&["Datastore.AllocateSpace"][..], 0),
        (&["Datastore.Audit", "VM.Backup"][..], 0),
        (&["Datastore.AllocateSpace", "VM.Backup"][..], 1),
        (&["Datastore.Audit", "Datastore.Allocate"][..], 1),
    ] {
        let world = World::builder()
            .pace(Pace::Stepped)
            .token(OPS)
            .token(TOKEN)
            .role("Ops", privileges)
            .grant("ops@pve", "/", "Ops")
            .guest("pve1", homestak_sim::Kind::Qemu, 100, &[("name", "a")])
            .build();
        world.back_up(100, "local").unwrap();
        let list = Request::get("/nodes/pve1/storage/local/content");
        let list = call_as(&world, OPS, list).await;
        let count = list.data().as_array().map(Vec::len);
        assert_eq!(count, Some(expected), "{privileges:?}");
    }
}

#[tokio::test]
async fn an_id_used_again_is_listed_as_the_guest_before_it_until_the_next_sweep() {
    let world = world();
    make_vm(&world).await;
    pass(&world, 60).await;
    world.change_guest(411, &[("protection", "0")]).unwrap();
    world.delete_guest(411).unwrap();
    let create = Request::post("/nodes/pve1/qemu")
        .with("vmid", 411)
        .with("name", "another")
        .with("tags", "new");
    assert!(call(&world, create).await.is_ok());
    let row = || async {
        let list = Request::get("/cluster/resources").with("type", "vm");
        let list = call(&world, list).await;
        list.data()[0].clone()
    };
    let at_once = row().await;
    assert_eq!(at_once["name"], "src-vm");
    assert_eq!(at_once["status"], "stopped");
    assert_eq!(at_once["maxdisk"], 1_u64 << 30);
    pass(&world, 1).await;
    assert_eq!(row().await["tags"], "new", "tags are those of the new one");
    pass(&world, 12).await;
    let later = row().await;
    assert_eq!(later["name"], "another");
    assert_eq!(later["maxdisk"], 0);
}

#[tokio::test]
async fn a_half_made_guest_is_listed_without_its_name() {
    let world = world();
    let create = Request::post("/nodes/pve1/lxc")
        .with("vmid", 431)
        .with("hostname", "half")
        .with("ostemplate", "local:vztmpl/debian-12.tar.zst")
        .with("unprivileged", 1)
        .with("rootfs", "local:1");
    assert!(call(&world, create).await.is_ok());
    let list = call(&world, Request::get("/nodes/pve1/lxc")).await;
    assert_eq!(list.data()[0]["name"], "CT431");
    assert_eq!(list.data()[0]["lock"], "create");
    let create = Request::post("/nodes/pve1/qemu")
        .with("vmid", 432)
        .with("name", "half")
        .with("scsi0", "local:1");
    assert!(call(&world, create).await.is_ok());
    let list = call(&world, Request::get("/nodes/pve1/qemu")).await;
    assert_eq!(list.data()[0]["name"], "VM 432");
}

#[test]
fn a_person_at_the_interface_acts_at_once_and_without_a_runtime() {
    let world = World::builder()
        .pace(Pace::Stepped)
        .host("pve1")
        .host("pve2")
        .shared_storage("shared")
        .guest(
            "pve1",
            homestak_sim::Kind::Qemu,
            100,
            &[("name", "a"), ("tags", "ours"), ("smbios1", "uuid=1")],
        )
        .build();
    let name = |vmid: u32| {
        let mut guests = world.guests().into_iter();
        let guest = guests.find(|guest| guest.vmid == vmid)?;
        Some((guest.host, guest.config["name"].clone()))
    };
    let found = |host: &str, name: &str| Some((host.to_owned(), name.to_owned()));
    world.clone_guest(100, 101, &[]).unwrap();
    assert_eq!(name(101), found("pve1", "Copy-of-VM-a"));
    world.rename_guest(101, "b").unwrap();
    world.migrate_guest(101, "pve2").unwrap();
    assert_eq!(name(101), found("pve2", "b"));
    let archive = world.back_up(100, "shared").unwrap();
    world.delete_guest(100).unwrap();
    assert_eq!(name(100), None);
    world.restore_backup(&archive, 100, &[]).unwrap();
    assert_eq!(name(100), found("pve1", "a"));
    assert_eq!(
        world.restore_backup(&archive, 101, &[]).unwrap_err(),
        "unable to restore VM 101 - VM 101 already exists on node 'pve2'"
    );
    world
        .change_guest(100, &[("tags", "theirs"), ("description", "theirs")])
        .unwrap();
    world.change_guest(100, &[("lock", "backup")]).unwrap();
    assert_eq!(
        world.delete_guest(100).unwrap_err(),
        "VM is locked (backup)"
    );
    world.unlock_guest(100);
    let snapshot = Request::post("/nodes/pve1/qemu/100/snapshot").with("snapname", "s1");
    world.perform(snapshot).unwrap();
    world.delete_guest(100).unwrap();
    assert!(world.is_quiet(), "what was done has ended");
}
