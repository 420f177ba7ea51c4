//! Locked and incomplete guests, and changes that need a restart.

use super::*;

fn at(path: &str) -> String {
    format!("/nodes/pve1/{path}")
}

fn put(path: &str) -> Request {
    Request::put(&at(path))
}

fn post(path: &str) -> Request {
    Request::post(&at(path))
}

async fn unprotect(world: &World, path: &str) {
    let change = put(&format!("{path}/config")).with("protection", 0);
    assert_eq!(outcome(world, change).await, "200");
}

#[tokio::test]
async fn changes_of_a_locked_guest_fail_in_the_call_or_in_its_task() {
    let world = world();
    make_vm(&world).await;
    make_ct(&world).await;
    unprotect(&world, "qemu/411").await;
    unprotect(&world, "lxc/421").await;
    world.lock_guest(411, "backup");
    world.lock_guest(421, "backup");
    let resize = |path: &str, disk: &str| put(path).with("disk", disk).with("size", "+1G");
    let cases = [
        (
            put("qemu/411/config").with("memory", 99),
            "500 VM is locked (backup)",
        ),
        (
            post("qemu/411/config").with("memory", 99),
            "500 VM is locked (backup)",
        ),
        (
            resize("qemu/411/resize", "scsi1"),
            "task VM is locked (backup)",
        ),
        (post("qemu/411/status/start"), "task VM is locked (backup)"),
        (post("qemu/411/status/stop"), "task OK"),
        (post("qemu/411/status/reboot"), "500 VM 411 not running"),
        (
            Request::delete(&at("qemu/411")),
            "task VM is locked (backup)",
        ),
        (
            put("lxc/421/config").with("memory", 99),
            "500 CT is locked (backup)",
        ),
        (
            resize("lxc/421/resize", "rootfs"),
            "500 CT is locked (backup)",
        ),
        (post("lxc/421/status/start"), "task CT is locked (backup)"),
        (post("lxc/421/status/stop"), "500 CT 421 not running"),
        (post("lxc/421/status/reboot"), "500 VM 421 not running"),
        (Request::delete(&at("lxc/421")), "500 CT is locked (backup)"),
    ];
    for (request, expected) in cases {
        let what = format!("{} {}", request.method, request.path);
        assert_eq!(outcome(&world, request).await, expected, "{what}");
    }
    world.lock_guest(421, "mounted");
    assert_eq!(
        outcome(&world, post("lxc/421/status/start")).await,
        "task OK"
    );
    world.lock_guest(421, "backup");
    let stop = outcome(&world, post("lxc/421/status/stop")).await;
    assert_eq!(stop, "task CT is locked (backup)");
    // The reboot stops the container and does not start it again.
    let reboot = outcome(&world, post("lxc/421/status/reboot")).await;
    assert_eq!(reboot, "task startup for container '421' failed");
    let start = outcome(&world, post("lxc/421/status/start")).await;
    assert_eq!(start, "task CT is locked (backup)");
    world.lock_guest(411, "suspended");
    assert_eq!(
        outcome(&world, Request::delete(&at("qemu/411"))).await,
        "task OK"
    );
}

/// Starts the creation of a container and returns its running task.
async fn begin_creation(world: &World, vmid: u32) -> String {
    let create = post("lxc")
        .with("vmid", vmid)
        .with("ostemplate", "local:vztmpl/debian-12.tar.zst")
        .with("hostname", "half")
        .with("rootfs", "local:1")
        .with("unprivileged", 1)
        .with("tags", "mine");
    let answer = call(world, create).await;
    let clock = world.stepped().expect("time is stepped");
    clock.advance(Duration::from_millis(500)).await;
    answer.data().as_str().expect("a task").to_owned()
}

#[tokio::test]
async fn a_killed_creation_stays_locked_until_root_unlocks_it_and_leaves_its_volume() {
    let world = world();
    let upid = begin_creation(&world, 431).await;
    world.kill_task(&upid);
    let status = Request::get(&at(&format!("tasks/{upid}/status")));
    let status = call(&world, status).await;
    assert_eq!(status.data()["exitstatus"], "unexpected status");
    advance(&world, 120).await;
    let shown = config(&world, "pve1/lxc/431").await;
    assert_eq!(shown.keys().collect::<Vec<_>>(), ["digest", "lock"]);
    let destroy = || Request::delete(&at("lxc/431"));
    assert_eq!(
        outcome(&world, destroy()).await,
        "500 CT is locked (create)"
    );
    world.unlock_guest(431);
    let start = outcome(&world, post("lxc/431/status/start")).await;
    assert!(start.starts_with("task missing 'arch'"), "{start}");
    assert_eq!(outcome(&world, destroy()).await, "task OK");
    let list = Request::get(&at("storage/local/content")).with("vmid", 431);
    let list = call(&world, list).await;
    let volumes: Vec<&Value> = list.data().as_array().expect("a list").iter().collect();
    assert!(
        volumes
            .iter()
            .any(|one| one["volid"] == "local:431/vm-431-disk-0.raw"),
        "{volumes:?}"
    );
}

#[tokio::test]
async fn a_stopped_creation_removes_the_guest() {
    let world = world();
    let upid = begin_creation(&world, 433).await;
    call(&world, Request::delete(&at(&format!("tasks/{upid}")))).await;
    advance(&world, 10).await;
    let shown = call(&world, Request::get(&at("lxc/433/config"))).await;
    assert_eq!(shown.status, 500);
}

#[tokio::test]
async fn changes_that_a_running_container_cannot_apply_are_pending_until_its_next_start() {
    let world = world();
    make_ct(&world).await;
    assert_eq!(
        outcome(&world, post("lxc/421/status/start")).await,
        "task OK"
    );
    let change = put("lxc/421/config")
        .with("nameserver", "10.0.0.1")
        .with("cores", 2);
    assert_eq!(outcome(&world, change).await, "200");
    let current = Request::get(&at("lxc/421/config")).with("current", 1);
    let current = call(&world, current).await;
    assert_eq!(current.data()["cores"], 2);
    assert!(current.data().get("nameserver").is_none());
    let list = call(&world, Request::get(&at("lxc/421/pending"))).await;
    let rows = list.data().as_array().expect("a list");
    let row = rows.iter().find(|row| row["key"] == "nameserver");
    assert_eq!(row.expect("a row")["pending"], "10.0.0.1");
    assert_eq!(
        outcome(&world, post("lxc/421/status/reboot")).await,
        "task OK"
    );
    let after = config(&world, "pve1/lxc/421").await;
    assert_eq!(after["nameserver"], "10.0.0.1");
}

#[tokio::test]
async fn drive_and_boot_order_are_only_reliable_in_two_separate_changes() {
    let world = world();
    make_vm(&world).await;
    let seed = "local:iso/seed.iso,media=cdrom";
    let mut wrong = 0;
    for _ in 0..40 {
        let both = put("qemu/411/config")
            .with("ide2", seed)
            .with("boot", "order=scsi1");
        assert_eq!(outcome(&world, both).await, "200");
        let order = config(&world, "pve1/qemu/411").await["boot"].clone();
        assert!(
            order == "order=scsi1" || order == "order=scsi1;ide2",
            "{order}"
        );
        wrong += usize::from(order != "order=scsi1");
        let drive = put("qemu/411/config").with("ide2", "none,media=cdrom");
        assert_eq!(outcome(&world, drive).await, "200");
        let boot = put("qemu/411/config").with("boot", "order=scsi1");
        assert_eq!(outcome(&world, boot).await, "200");
        assert_eq!(config(&world, "pve1/qemu/411").await["boot"], "order=scsi1");
    }
    assert!((1..40).contains(&wrong), "{wrong} of 40");
}

#[tokio::test]
async fn container_options_that_are_reserved_for_root_are_refused_to_a_token() {
    let world = world();
    make_ct(&world).await;
    let cases = [
        (
            "hookscript",
            "local:snippets/h.sh",
            "403 Permission check failed (changing the hookscript is only allowed for root@pam)",
        ),
        (
            "dev0",
            "/dev/fuse",
            "403 Permission check failed (configuring device passthrough is only allowed for root@pam)",
        ),
        (
            "mp0",
            "/srv,mp=/srv",
            "403 Permission check failed (mount point type bind is only allowed for root@pam)",
        ),
        (
            "unprivileged",
            "0",
            "500 unable to modify read-only option: 'unprivileged'",
        ),
    ];
    for (key, value, expected) in cases {
        let change = put("lxc/421/config").with(key, value);
        assert_eq!(outcome(&world, change).await, expected);
    }
}
