//! Promises of the World: the same seed is the same run, faults hit what they name, hosts inside hosts.

use std::time::Duration;

use homestak_sim::{
    Answer, Boots, Call, Delivery, Fault, FaultKind, Kind, Pace, Request, Script, SteppedClock,
    World,
};
use serde_json::json;

const TOKEN: &str = "root@pam!t=secret";

fn world(seed: u64) -> World {
    World::builder()
        .seed(seed)
        .pace(Pace::Stepped)
        .host("pve1")
        .storage("local")
        .file("local", "import/small.raw", 1 << 30)
        .token(TOKEN)
        .build()
}

/// Calls and steps the clock until the answer is there.
async fn call(world: &World, request: Request) -> Answer {
    let clock: SteppedClock = world.stepped().expect("time is stepped").clone();
    let request = request.token(TOKEN);
    tokio::select! {
        biased;
        // Cancel safety: the call is the point of the race; the clock can be dropped.
        answer = world.call(request) => answer,
        // Cancel safety: as above.
        () = async { loop { clock.advance(Duration::from_millis(5)).await } } => unreachable!(),
    }
}

async fn pass(world: &World, seconds: u64) {
    world
        .stepped()
        .expect("time is stepped")
        .advance(Duration::from_secs(seconds))
        .await;
}

fn create(vmid: u32) -> Request {
    Request::post("/nodes/pve1/qemu")
        .with("vmid", vmid)
        .with("name", "a")
        .with("agent", 1)
        .with(
            "scsi0",
            "local:0,import-from=local:import/small.raw,format=qcow2",
        )
}

#[tokio::test]
async fn the_same_seed_is_the_same_run() {
    let mut runs = Vec::new();
    for seed in [7, 7, 8] {
        let world = world(seed);
        let mut seen = Vec::new();
        for vmid in 100..104 {
            seen.push(call(&world, create(vmid)).await.into_text());
        }
        pass(&world, 30).await;
        seen.push(
            call(&world, Request::get("/cluster/resources"))
                .await
                .into_text(),
        );
        seen.push(
            call(&world, Request::get("/nodes/pve1/qemu/101/config"))
                .await
                .into_text(),
        );
        runs.push(format!("{seen:?}"));
    }
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0], runs[2]);
}

#[tokio::test]
async fn a_lost_answer_is_acted_on_and_a_reset_before_is_not() {
    let world = world(1);
    let on = |nth| Call::nth(nth).method("POST").path("/qemu");
    world.add_fault(Fault::new(on(1), FaultKind::ResetBefore));
    world.add_fault(Fault::new(on(2), FaultKind::LostAnswer));
    let first = call(&world, create(100)).await;
    assert_eq!(first.delivery, Delivery::Reset);
    assert!(world.guests().is_empty());
    let second = call(&world, create(100)).await;
    assert_eq!(second.delivery, Delivery::Silence);
    pass(&world, 30).await;
    assert_eq!(world.guests().len(), 1);
    let third = call(&world, create(100)).await;
    assert_eq!(
        third.reason,
        "unable to create VM 100 - VM 100 already exists on node 'pve1'"
    );
}

#[tokio::test]
async fn a_repeated_call_is_made_twice() {
    let world = world(1);
    world.add_fault(Fault::new(
        Call::nth(1).path("/qemu"),
        FaultKind::RepeatedAnswer,
    ));
    let answer = call(&world, create(100)).await;
    assert_eq!(answer.status, 500);
    assert_eq!(world.guests().len(), 1);
}

#[tokio::test]
async fn proxy_failures_are_scripted() {
    let world = world(1);
    let script = json!([{"on": {"count": 2, "path": "/version"}, "kind": {"status": 596}}]);
    world.play(Script::parse(&script).expect("a script"));
    let statuses: Vec<u16> = [
        call(&world, Request::get("/version")).await.status,
        call(&world, Request::get("/version")).await.status,
        call(&world, Request::get("/version")).await.status,
    ]
    .to_vec();
    assert_eq!(statuses, [596, 596, 200]);
}

#[tokio::test]
async fn events_happen_when_they_are_due_and_not_before() {
    let world = world(1);
    let script = json!([
        { "at": 20, "event": { "storage-full": "local" } },
        { "at": 10, "event": "quorum-lost" },
        { "at": 15, "event": "quorum-back" },
        { "at": 40, "event": { "host-offline": "pve1" } },
    ]);
    world.play(Script::parse(&script).expect("a script"));
    assert_eq!(call(&world, create(100)).await.status, 200);
    pass(&world, 11).await;
    assert_eq!(call(&world, create(101)).await.status, 500);
    pass(&world, 5).await;
    assert_eq!(call(&world, create(101)).await.status, 200);
    pass(&world, 10).await;
    assert_eq!(call(&world, create(102)).await.status, 200);
    pass(&world, 5).await;
    assert_eq!(world.guests().len(), 2, "the third found no space");
    pass(&world, 10).await;
    let last = call(&world, Request::get("/nodes/pve1/status")).await;
    assert_eq!(last.status, 595);
}

#[tokio::test]
async fn a_script_replaces_the_one_before() {
    let world = world(1);
    let broken = json!([{ "on": {}, "kind": "garbage" }, { "at": 0, "event": "quorum-lost" }]);
    world.play(Script::parse(&broken).expect("a script"));
    world.play(Script::default());
    assert_eq!(call(&world, create(100)).await.status, 200);
}

#[tokio::test]
async fn an_old_list_is_the_answer_to_the_same_question() {
    let world = world(1);
    let all = || Request::get("/cluster/resources");
    let guests = || all().with("type", "vm");
    let before = call(&world, all()).await;
    call(&world, guests()).await;
    call(&world, create(100)).await;
    pass(&world, 30).await;
    let fault = Fault::new(
        Call::any().path("/cluster/resources"),
        FaultKind::StaleList(20.0),
    );
    world.add_fault(fault);
    assert_eq!(call(&world, guests()).await.data(), &json!([]));
    assert_eq!(call(&world, all()).await.data(), before.data());
    world.clear_faults();
    assert_eq!(
        call(&world, guests()).await.data().as_array().map(Vec::len),
        Some(1)
    );
}

#[tokio::test]
async fn without_quorum_reads_go_on_and_changes_do_not() {
    let world = world(1);
    world.set_quorate(false);
    assert_eq!(
        call(&world, Request::get("/cluster/resources"))
            .await
            .status,
        200
    );
    assert_eq!(call(&world, create(100)).await.status, 500);
    world.set_quorate(true);
    assert_eq!(call(&world, create(100)).await.status, 200);
}

#[tokio::test]
async fn a_host_that_is_off_is_not_reached_and_the_others_are() {
    let world = World::builder()
        .pace(Pace::Stepped)
        .host("pve1")
        .host("pve2")
        .storage("local")
        .token(TOKEN)
        .build();
    world.set_online("pve2", false);
    assert_eq!(
        call(&world, Request::get("/nodes/pve2/status"))
            .await
            .status,
        595
    );
    assert_eq!(
        call(&world, Request::get("/nodes/pve1/status"))
            .await
            .status,
        200
    );
    let nodes = call(&world, Request::get("/nodes")).await;
    assert_eq!(nodes.data()[1]["status"], "offline");
}

#[tokio::test]
async fn a_full_storage_fails_the_task_and_leaves_nothing() {
    let world = world(1);
    world.set_full("local", true);
    let answer = call(&world, create(100)).await;
    assert_eq!(answer.status, 200);
    pass(&world, 30).await;
    assert!(world.guests().is_empty());
    let upid = answer.data().as_str().expect("a task").to_owned();
    let status = call(
        &world,
        Request::get(&format!("/nodes/pve1/tasks/{upid}/status")),
    )
    .await;
    let exit = status.data()["exitstatus"]
        .as_str()
        .expect("it ended")
        .to_owned();
    assert!(exit.contains("No space left on device"), "{exit}");
}

#[tokio::test]
async fn a_change_waits_ten_seconds_for_the_lock_and_gives_up() {
    let world = world(1);
    call(&world, create(100)).await;
    pass(&world, 30).await;
    call(&world, Request::post("/nodes/pve1/qemu/100/status/start")).await;
    pass(&world, 5).await;
    world.set_boots(100, Boots::Nothing);
    let shutdown = Request::post("/nodes/pve1/qemu/100/status/shutdown").with("timeout", 60);
    assert_eq!(call(&world, shutdown).await.status, 200);
    pass(&world, 1).await;
    let before = world.clock().now();
    let change = Request::put("/nodes/pve1/qemu/100/config").with("description", "x");
    let answer = call(&world, change).await;
    assert_eq!(
        answer.reason,
        "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout"
    );
    let waited = world.clock().now().duration_since(before).as_secs();
    assert_eq!(waited, 10);
}

#[tokio::test]
async fn a_guest_that_is_a_hypervisor_has_an_api_of_its_own_while_it_runs() {
    let outer = World::builder()
        .pace(Pace::Stepped)
        .image("local", "import/pve.raw", 1 << 30, Boots::Hypervisor)
        .token(TOKEN)
        .build();
    let create = Request::post("/nodes/pve1/qemu")
        .with("vmid", 100)
        .with("name", "inner")
        .with(
            "scsi0",
            "local:0,import-from=local:import/pve.raw,format=qcow2",
        );
    call(&outer, create).await;
    pass(&outer, 30).await;
    assert!(outer.inside(100, |builder| builder).is_none(), "it is off");
    call(&outer, Request::post("/nodes/pve1/qemu/100/status/start")).await;
    pass(&outer, 90).await;
    let inner = outer
        .inside(100, |builder| builder.token(TOKEN))
        .expect("it has booted");
    let request = Request::post("/nodes/inner/qemu")
        .with("vmid", 200)
        .token(TOKEN);
    let clock = outer.stepped().expect("time is stepped").clone();
    let (answer, ()) = tokio::join!(inner.call(request), clock.advance(Duration::from_secs(5)));
    assert_eq!(answer.status, 200, "{}", answer.reason);
    assert_eq!(inner.guests().len(), 1);
    assert_eq!(outer.guests().len(), 1);
    call(&outer, Request::post("/nodes/pve1/qemu/100/status/stop")).await;
    pass(&outer, 5).await;
    assert!(
        outer.inside(100, |builder| builder).is_none(),
        "it is off again"
    );
}

#[tokio::test]
async fn a_large_fleet_is_listed_in_one_call() {
    let builder = World::builder().pace(Pace::Stepped).token(TOKEN);
    let world = World::fleet(builder, 20, 2_000);
    let answer = call(
        &world,
        Request::get("/cluster/resources").with("type", "vm"),
    )
    .await;
    assert_eq!(answer.data().as_array().map(Vec::len), Some(2_000));
    assert!(world.guests().iter().all(|guest| guest.kind == Kind::Qemu));
}
