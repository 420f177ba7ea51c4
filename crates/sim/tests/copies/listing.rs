//! Privileges for copies, lists of copies, and the methods that act like an operator.

use super::*;

#[tokio::test]
async fn copies_need_the_documented_privileges() {
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
        // `VM.Backup` suffices to restore over an existing guest.
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
async fn backups_are_listed_only_with_the_privileges_to_restore_them() {
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
async fn a_reused_id_is_listed_with_the_old_name_until_the_next_status_update() {
    let world = world();
    make_vm(&world).await;
    advance(&world, 60).await;
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
    let first = row().await;
    assert_eq!(first["name"], "src-vm");
    assert_eq!(first["status"], "stopped");
    assert_eq!(first["maxdisk"], 1_u64 << 30);
    advance(&world, 1).await;
    assert_eq!(
        row().await["tags"],
        "new",
        "tags are those of the new guest"
    );
    advance(&world, 12).await;
    let later = row().await;
    assert_eq!(later["name"], "another");
    assert_eq!(later["maxdisk"], 0);
}

#[tokio::test]
async fn a_guest_being_created_is_listed_without_its_name() {
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
fn operator_actions_complete_immediately_without_a_runtime() {
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
    assert!(world.is_idle(), "all tasks have ended");
}
