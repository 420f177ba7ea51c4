//! Promises of a World that is saved and made again.

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

fn again(world: &World) -> World {
    World::restore(&world.save(), Pace::Stepped).expect("it was saved whole")
}

/// Calls a World and steps its clock until the answer is there.
async fn call(world: &World, request: Request) -> Answer {
    let clock: SteppedClock = world.stepped().expect("time is stepped").clone();
    tokio::select! {
        biased;
        // Cancel safety: the call is the point of the race; the clock can be dropped.
        answer = world.call(request.token(TOKEN)) => answer,
        // Cancel safety: as above.
        () = async { loop { clock.advance(Duration::from_millis(5)).await } } => unreachable!(),
    }
}

async fn pass(world: &World, seconds: u64) {
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

async fn started(world: &World, vmid: u32, image: &str) {
    assert_eq!(call(world, create(vmid, image)).await.status, 200);
    pass(world, 30).await;
    let start = Request::post(&format!("/nodes/pve1/qemu/{vmid}/status/start"));
    assert_eq!(call(world, start).await.status, 200);
    pass(world, 90).await;
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
async fn guests_volumes_and_tasks_are_the_same_afterwards() {
    let before = world();
    started(&before, 100, "small.raw").await;
    let after = again(&before);
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
async fn a_task_that_ran_has_ended_unknown_how_and_its_lock_stays() {
    let before = world();
    let upid = call(&before, create(100, "small.raw")).await;
    let upid = upid.data().as_str().expect("a task").to_owned();
    before
        .stepped()
        .expect("time is stepped")
        .advance(Duration::from_millis(200))
        .await;
    assert!(!before.is_quiet());
    let after = again(&before);
    assert!(after.is_quiet());
    let status = get(&after, &format!("/nodes/pve1/tasks/{upid}/status")).await;
    assert_eq!(status["status"], "stopped");
    assert_eq!(status["exitstatus"], "unexpected status");
    let config = get(&after, "/nodes/pve1/qemu/100/config").await;
    assert_eq!(config["lock"], "create");
    pass(&after, 60).await;
    assert_eq!(after.guests().len(), 1, "nothing goes on by itself");
    assert_eq!(after.guests()[0].config["lock"], "create");
}

#[tokio::test]
async fn two_guests_never_have_one_address_not_even_inside_each_other() {
    let world = world();
    started(&world, 100, "pve.raw").await;
    started(&world, 62_600, "small.raw").await;
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
async fn a_world_inside_is_kept_and_loses_its_power_with_its_guest() {
    let before = world();
    started(&before, 100, "pve.raw").await;
    let inner = before
        .inside(100, |builder| builder.token(TOKEN))
        .expect("it has booted");
    let made = Request::post("/nodes/inner/qemu").with("vmid", 200);
    assert_eq!(call(&inner, made).await.status, 200);
    pass(&inner, 10).await;
    let start = Request::post("/nodes/inner/qemu/200/status/start");
    assert_eq!(call(&inner, start).await.status, 200);
    pass(&inner, 10).await;

    let after = again(&before);
    let inner = after.inside(100, |builder| builder).expect("it still runs");
    assert!(inner.is_running(200));
    let stop = Request::post("/nodes/pve1/qemu/100/status/stop");
    assert_eq!(call(&after, stop).await.status, 200);
    pass(&after, 10).await;
    assert!(after.inside(100, |builder| builder).is_none());
    let start = Request::post("/nodes/pve1/qemu/100/status/start");
    assert_eq!(call(&after, start).await.status, 200);
    pass(&after, 90).await;
    let inner = after
        .inside(100, |builder| builder)
        .expect("it is up again");
    assert_eq!(inner.guests().len(), 1);
    assert!(!inner.is_running(200));
}

#[tokio::test]
async fn reading_changes_nothing_that_needs_to_be_saved() {
    let world = world();
    started(&world, 100, "small.raw").await;
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
fn what_is_not_a_world_is_refused() {
    let broken = World::restore(b"{\"version\":1}", Pace::Real).map(|_| ());
    assert!(matches!(broken, Err(RestoreError::Malformed(_))));
    let other = World::restore(b"{\"version\":99}", Pace::Real).map(|_| ());
    assert!(matches!(other, Err(RestoreError::Version { found: 99 })));
}
