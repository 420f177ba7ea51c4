//! Saving and restoring a World.

use std::time::Duration;

use homestak_sim::{Answer, Boots, Pace, Request, RestoreError, SteppedClock, World};
use serde_json::Value;

const TOKEN: &str = "root@pam!t=secret";

fn world() -> World {
    World::builder()
        .pace(Pace::Stepped)
        .storage("local")
        .image("local", "import/small.raw", 1 << 30, Boots::System)
        .image("local", "import/pve.raw", 1 << 30, Boots::Hypervisor)
        .token(TOKEN)
        .build()
}

fn restore(world: &World) -> World {
    World::restore(&world.save(), Pace::Stepped).expect("a saved World")
}

/// Makes a call and advances the clock until it is answered.
async fn call(world: &World, request: Request) -> Answer {
    let clock: SteppedClock = world.stepped().expect("time is stepped").clone();
    tokio::select! {
        biased;
        // Cancel safety: the call completes; only the clock is dropped.
        answer = world.call(request.token(TOKEN)) => answer,
        // Cancel safety: as above.
        () = async { loop { clock.advance(Duration::from_millis(5)).await } } => unreachable!(),
    }
}

async fn advance(world: &World, seconds: u64) {
    let clock = world.stepped().expect("time is stepped");
    clock.advance(Duration::from_secs(seconds)).await;
}

fn create(vmid: u32, image: &str) -> Request {
    Request::post("/nodes/pve1/qemu")
        .with("vmid", vmid)
        .with("name", "inner")
        .with("agent", 1)
        .with("net0", "virtio,bridge=vmbr0")
        .with(
            "scsi0",
            format!("local:0,import-from=local:import/{image},format=qcow2"),
        )
}

async fn create_and_start(world: &World, vmid: u32, image: &str) {
    assert_eq!(call(world, create(vmid, image)).await.status, 200);
    advance(world, 30).await;
    let start = Request::post(&format!("/nodes/pve1/qemu/{vmid}/status/start"));
    assert_eq!(call(world, start).await.status, 200);
    advance(world, 90).await;
}

async fn get(world: &World, path: &str) -> Value {
    call(world, Request::get(path)).await.data().clone()
}

async fn address(world: &World, vmid: u32) -> Value {
    let path = format!("/nodes/pve1/qemu/{vmid}/agent/network-get-interfaces");
    let shown = get(world, &path).await;
    shown["result"][1]["ip-addresses"][0]["ip-address"].clone()
}

#[tokio::test]
async fn a_restored_world_has_the_same_guests_volumes_and_tasks() {
    let before = world();
    create_and_start(&before, 100, "small.raw").await;
    let after = restore(&before);
    assert_eq!(before.guests(), after.guests());
    assert!(after.is_running(100));
    assert_eq!(before.volumes(), after.volumes());
    for path in [
        "/nodes/pve1/qemu/100/config",
        "/nodes/pve1/tasks",
        "/access/users",
        "/storage",
    ] {
        assert_eq!(get(&before, path).await, get(&after, path).await, "{path}");
    }
    assert_eq!(address(&before, 100).await, address(&after, 100).await);
}

#[tokio::test]
async fn a_running_task_ends_with_an_unknown_status_and_its_lock_remains() {
    let before = world();
    let upid = call(&before, create(100, "small.raw")).await;
    let upid = upid.data().as_str().expect("a task").to_owned();
    before
        .stepped()
        .expect("time is stepped")
        .advance(Duration::from_millis(200))
        .await;
    assert!(!before.is_idle());
    let after = restore(&before);
    assert!(after.is_idle());
    let status = get(&after, &format!("/nodes/pve1/tasks/{upid}/status")).await;
    assert_eq!(status["status"], "stopped");
    assert_eq!(status["exitstatus"], "unexpected status");
    let config = get(&after, "/nodes/pve1/qemu/100/config").await;
    assert_eq!(config["lock"], "create");
    advance(&after, 60).await;
    assert_eq!(after.guests().len(), 1, "the task does not continue");
    assert_eq!(after.guests()[0].config["lock"], "create");
}

#[tokio::test]
async fn addresses_are_unique_across_nested_worlds() {
    let world = world();
    create_and_start(&world, 100, "pve.raw").await;
    create_and_start(&world, 62_600, "small.raw").await;
    let (one, other) = (address(&world, 100).await, address(&world, 62_600).await);
    assert!(
        one.is_string() && other.is_string() && one != other,
        "{one} {other}"
    );
    let inner = world
        .inside(100, |builder| builder.token(TOKEN))
        .expect("it has booted");
    let hosts = call(&inner, Request::get("/cluster/status")).await;
    let host = hosts.data()[0]["ip"].clone();
    assert!(host != one && host != other, "{host}");
}

#[tokio::test]
async fn a_nested_world_is_saved_and_its_guests_stop_with_the_outer_guest() {
    let before = world();
    create_and_start(&before, 100, "pve.raw").await;
    let inner = before
        .inside(100, |builder| builder.token(TOKEN))
        .expect("it has booted");
    let made = Request::post("/nodes/inner/qemu").with("vmid", 200);
    assert_eq!(call(&inner, made).await.status, 200);
    advance(&inner, 10).await;
    let start = Request::post("/nodes/inner/qemu/200/status/start");
    assert_eq!(call(&inner, start).await.status, 200);
    advance(&inner, 10).await;

    let after = restore(&before);
    let inner = after.inside(100, |builder| builder).expect("it still runs");
    assert!(inner.is_running(200));
    let stop = Request::post("/nodes/pve1/qemu/100/status/stop");
    assert_eq!(call(&after, stop).await.status, 200);
    advance(&after, 10).await;
    assert!(after.inside(100, |builder| builder).is_none());
    let start = Request::post("/nodes/pve1/qemu/100/status/start");
    assert_eq!(call(&after, start).await.status, 200);
    advance(&after, 90).await;
    let inner = after
        .inside(100, |builder| builder)
        .expect("it is up again");
    assert_eq!(inner.guests().len(), 1);
    assert!(!inner.is_running(200));
}

#[tokio::test]
async fn reading_does_not_change_the_generation() {
    let world = world();
    create_and_start(&world, 100, "small.raw").await;
    let before = world.generation();
    for path in [
        "/cluster/resources",
        "/nodes/pve1/qemu/100/status/current",
        "/nodes/pve1/qemu/100/agent/network-get-interfaces",
        "/nodes/pve1/storage",
    ] {
        get(&world, path).await;
    }
    assert_eq!(before, world.generation());
    call(&world, create(101, "small.raw")).await;
    assert_ne!(before, world.generation());
}

#[test]
fn malformed_and_unsupported_text_is_refused() {
    let broken = World::restore(b"{\"version\":1}", Pace::Real).map(|_| ());
    assert!(matches!(broken, Err(RestoreError::Malformed(_))));
    let other = World::restore(b"{\"version\":99}", Pace::Real).map(|_| ());
    assert!(matches!(other, Err(RestoreError::Version { found: 99 })));
}
