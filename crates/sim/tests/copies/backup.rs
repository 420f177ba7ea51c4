//! Backup and restore.

use super::*;

#[tokio::test]
async fn a_restored_vm_keeps_its_identity_unless_unique_is_set() {
    let world = world();
    make_vm(&world).await;
    let source = config(&world, "pve1/qemu/411").await;
    let archive = back_up(&world, 411).await;
    assert!(archive.starts_with("local:backup/vzdump-qemu-411-2026_01_01-00_"));
    assert!(archive.ends_with(".vma.zst"));
    let cases: &[(Request, &[(&str, Expected)])] = &[
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
async fn a_restored_container_keeps_its_mac_address_unless_unique_is_set() {
    let world = world();
    make_ct(&world).await;
    let source = config(&world, "pve1/lxc/421").await;
    let archive = back_up(&world, 421).await;
    assert!(archive.ends_with(".tar.zst"));
    for (unique, expected, target) in [(0, Kept, 426), (1, New, 427)] {
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
                ("net0.hwaddr", expected),
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
async fn restoring_over_a_guest_needs_force_and_a_stopped_unprotected_guest() {
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
        let kept: &[(&str, Expected)] =
            &[("tags", Kept), ("description", Kept), ("protection", Kept)];
        check("restored over itself", &before, &after, kept);
        world.change_guest(vmid, &[("protection", "0")]).unwrap();
        let power = |what: &str| Request::post(&format!("/nodes/{path}/{what}"));
        assert_eq!(outcome(&world, power(running)).await, "task OK");
        assert_eq!(outcome(&world, over(vmid).with("force", 1)).await, runs);
        assert_eq!(outcome(&world, power(off)).await, "task OK");
    }
    // The disk of a VM keeps its name, that of a container gets the next number.
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
    assert_eq!(disks.count(), 2, "no disk is left over: {volumes:?}");
}

#[tokio::test]
async fn a_backup_has_notes_and_a_protected_one_cannot_be_deleted() {
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
    // Deleting a guest keeps its backups.
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
async fn a_guest_is_locked_during_its_backup() {
    let world = world();
    make_vm(&world).await;
    world.set_copy_speed(10_000);
    let request = Request::post("/nodes/pve1/vzdump").with("vmid", 411);
    assert!(call(&world, request).await.is_ok());
    advance(&world, 2).await;
    let during = config(&world, "pve1/qemu/411").await;
    assert_eq!(part(&during, "lock").as_deref(), Some("backup"));
    assert_eq!(
        outcome(&world, clone("qemu", 411, 412)).await,
        "500 VM is locked (backup)"
    );
    advance(&world, 60).await;
    let after = config(&world, "pve1/qemu/411").await;
    assert_eq!(part(&after, "lock"), None);
    world.change_guest(411, &[("lock", "snapshot")]).unwrap();
    let request = Request::post("/nodes/pve1/vzdump").with("vmid", 411);
    assert_eq!(outcome(&world, request).await, "task job errors");
}
