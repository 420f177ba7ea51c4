//! Migration between the hosts of a cluster.

use super::*;

#[tokio::test]
async fn migration_keeps_the_configuration() {
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
        let old = Request::get(&format!("/nodes/{from}/{kind}/{vmid}/config"));
        assert!(call(&world, old).await.reason.ends_with("does not exist"));
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
async fn a_failed_migration_changes_nothing() {
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
        "no live migration of containers"
    );
    let stop = Request::post("/nodes/pve1/qemu/411/status/stop");
    assert_eq!(outcome(&world, stop).await, "task OK");
    world
        .change_guest(411, &[("ide2", "local:iso/seed.iso,media=cdrom")])
        .unwrap();
    assert_eq!(
        outcome(&world, vm("pve2")).await,
        "task migration aborted",
        "the drive contains a local image"
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
async fn a_guest_is_locked_during_migration_and_unlocked_when_it_is_stopped() {
    let world = world();
    make_vm(&world).await;
    world.set_copy_speed(10_000);
    let migrate = Request::post("/nodes/pve1/qemu/411/migrate").with("target", "pve2");
    let started = call(&world, migrate).await;
    advance(&world, 2).await;
    let during = config(&world, "pve1/qemu/411").await;
    assert_eq!(part(&during, "lock").as_deref(), Some("migrate"));
    let upid = started.data().as_str().expect("a task");
    let stop = Request::delete(&format!("/nodes/pve1/tasks/{upid}"));
    assert!(call(&world, stop).await.is_ok());
    advance(&world, 2).await;
    let after = config(&world, "pve1/qemu/411").await;
    assert_eq!(part(&after, "lock"), None);
}
