//! Repeatable runs, faults, scripts, nested hosts and other behaviour of the World.

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

/// Makes a call and advances the clock until it is answered.
async fn call(world: &World, request: Request) -> Answer {
    let clock: SteppedClock = world.stepped().expect("time is stepped").clone();
    let request = request.token(TOKEN);
    tokio::select! {
        biased;
        // Cancel safety: the call completes; only the clock is dropped.
        answer = world.call(request) => answer,
        // Cancel safety: as above.
        () = async { loop { clock.advance(Duration::from_millis(5)).await } } => unreachable!(),
    }
}

async fn advance(world: &World, seconds: u64) {
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
async fn runs_with_the_same_seed_are_identical() {
    let mut runs = Vec::new();
    for seed in [7, 7, 8] {
        let world = world(seed);
        let mut seen = Vec::new();
        for vmid in 100..104 {
            seen.push(call(&world, create(vmid)).await.into_text());
        }
        advance(&world, 30).await;
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
async fn lost_answer_executes_the_call_and_reset_before_does_not() {
    let world = world(1);
    let on = |nth| Call::nth(nth).method("POST").path("/qemu");
    world.add_fault(Fault::new(on(1), FaultKind::ResetBefore));
    world.add_fault(Fault::new(on(2), FaultKind::LostAnswer));
    let first = call(&world, create(100)).await;
    assert_eq!(first.delivery, Delivery::Reset);
    assert!(world.guests().is_empty());
    let second = call(&world, create(100)).await;
    assert_eq!(second.delivery, Delivery::Silence);
    advance(&world, 30).await;
    assert_eq!(world.guests().len(), 1);
    let third = call(&world, create(100)).await;
    assert_eq!(
        third.reason,
        "unable to create VM 100 - VM 100 already exists on node 'pve1'"
    );
}

#[tokio::test]
async fn a_repeated_call_is_executed_twice() {
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
async fn proxy_errors_can_be_scripted() {
    let world = world(1);
    let script = json!([{"on": {"count": 2, "path": "/version"}, "kind": {"status": 596}}]);
    world.set_script(Script::parse(&script).expect("a script"));
    let statuses: Vec<u16> = [
        call(&world, Request::get("/version")).await.status,
        call(&world, Request::get("/version")).await.status,
        call(&world, Request::get("/version")).await.status,
    ]
    .to_vec();
    assert_eq!(statuses, [596, 596, 200]);
}

#[tokio::test]
async fn events_happen_at_their_time() {
    let world = world(1);
    let script = json!([
        { "at": 20, "event": { "storage-full": "local" } },
        { "at": 10, "event": "quorum-lost" },
        { "at": 15, "event": "quorum-back" },
        { "at": 40, "event": { "host-offline": "pve1" } },
    ]);
    world.set_script(Script::parse(&script).expect("a script"));
    assert_eq!(call(&world, create(100)).await.status, 200);
    advance(&world, 11).await;
    assert_eq!(call(&world, create(101)).await.status, 500);
    advance(&world, 5).await;
    assert_eq!(call(&world, create(101)).await.status, 200);
    advance(&world, 10).await;
    assert_eq!(call(&world, create(102)).await.status, 200);
    advance(&world, 5).await;
    assert_eq!(world.guests().len(), 2, "no space for the third");
    advance(&world, 10).await;
    let last = call(&world, Request::get("/nodes/pve1/status")).await;
    assert_eq!(last.status, 595);
}

#[tokio::test]
async fn a_script_replaces_the_previous_one() {
    let world = world(1);
    let broken = json!([{ "on": {}, "kind": "garbage" }, { "at": 0, "event": "quorum-lost" }]);
    world.set_script(Script::parse(&broken).expect("a script"));
    world.set_script(Script::default());
    assert_eq!(call(&world, create(100)).await.status, 200);
}

#[tokio::test]
async fn a_stale_list_answers_the_same_request() {
    let world = world(1);
    let all = || Request::get("/cluster/resources");
    let guests = || all().with("type", "vm");
    let before = call(&world, all()).await;
    call(&world, guests()).await;
    call(&world, create(100)).await;
    advance(&world, 30).await;
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
async fn without_quorum_only_changes_are_refused() {
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
async fn only_the_offline_host_is_unreachable() {
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
async fn a_full_storage_fails_the_task_without_leftovers() {
    let world = world(1);
    world.set_full("local", true);
    let answer = call(&world, create(100)).await;
    assert_eq!(answer.status, 200);
    advance(&world, 30).await;
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
async fn a_change_waits_ten_seconds_for_the_lock() {
    let world = world(1);
    call(&world, create(100)).await;
    advance(&world, 30).await;
    call(&world, Request::post("/nodes/pve1/qemu/100/status/start")).await;
    advance(&world, 5).await;
    world.set_boots(100, Boots::Nothing);
    let shutdown = Request::post("/nodes/pve1/qemu/100/status/shutdown").with("timeout", 60);
    assert_eq!(call(&world, shutdown).await.status, 200);
    advance(&world, 1).await;
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
async fn a_hypervisor_guest_has_its_own_api_while_it_runs() {
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
    advance(&outer, 30).await;
    assert!(outer.inside(100, |builder| builder).is_none(), "it is off");
    call(&outer, Request::post("/nodes/pve1/qemu/100/status/start")).await;
    advance(&outer, 90).await;
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
    advance(&outer, 5).await;
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

fn cluster() -> World {
    World::builder()
        .pace(Pace::Stepped)
        .host("pve1")
        .host("pve2")
        .storage("local")
        .file("local", "import/small.raw", 1 << 30)
        .token(TOKEN)
        .build()
}

#[tokio::test]
async fn a_stopped_guest_migrates_with_its_disks() {
    let world = cluster();
    call(&world, create(100)).await;
    advance(&world, 30).await;
    let migrate =
        |target: &str| Request::post("/nodes/pve1/qemu/100/migrate").with("target", target);
    assert_eq!(call(&world, migrate("pve1")).await.status, 400);
    assert_eq!(
        call(&world, migrate("pve9")).await.reason,
        "no such cluster node 'pve9'"
    );
    let feature = Request::get("/nodes/pve1/qemu/100/feature").with("feature", "snapshot");
    let shown = call(&world, feature).await;
    assert_eq!(shown.data(), &json!({ "hasFeature": 1, "nodes": ["pve1"] }));
    assert_eq!(call(&world, migrate("pve2")).await.status, 200);
    advance(&world, 30).await;
    assert_eq!(world.guests()[0].host, "pve2");
    let disks: Vec<_> = world
        .volumes()
        .into_iter()
        .filter(|(_, volume)| volume.contains("vm-100-disk"))
        .collect();
    assert_eq!(disks.len(), 1);
    assert_eq!(disks[0].0, "pve2");
    let start = Request::post("/nodes/pve2/qemu/100/status/start");
    assert_eq!(call(&world, start).await.status, 200);
    advance(&world, 30).await;
    assert!(world.is_running(100));
    let back = Request::post("/nodes/pve2/qemu/100/migrate").with("target", "pve1");
    assert_eq!(
        call(&world, back).await.reason,
        "can't migrate running VM without --online"
    );
}

#[tokio::test]
async fn storages_can_be_added_once_and_removed() {
    let world = world(1);
    let define = || {
        Request::post("/storage")
            .with("storage", "extra")
            .with("type", "dir")
    };
    assert_eq!(
        call(&world, define()).await.reason,
        "missing value for required option 'path'"
    );
    let whole = || {
        define()
            .with("path", "/srv/extra")
            .with("content", "images,iso")
    };
    let made = call(&world, whole()).await;
    assert_eq!(made.data(), &json!({ "storage": "extra", "type": "dir" }));
    assert_eq!(
        call(&world, whole()).await.reason,
        "storage ID 'extra' already defined"
    );
    let shown = call(&world, Request::get("/storage/extra")).await;
    assert_eq!(shown.data()["content"], "images,iso");
    assert_eq!(
        call(&world, Request::delete("/storage/extra")).await.status,
        200
    );
    assert_eq!(
        call(&world, Request::get("/storage/extra")).await.status,
        500
    );
}

#[tokio::test]
async fn tasks_can_be_filtered_by_status_and_time() {
    let world = world(1);
    call(&world, create(100)).await;
    advance(&world, 30).await;
    world.set_full("local", true);
    call(&world, create(101)).await;
    advance(&world, 30).await;
    let list = |filter: &str, value: &str| Request::get("/nodes/pve1/tasks").with(filter, value);
    let ids = |answer: &Answer| -> Vec<String> {
        let list = answer.data().as_array().expect("a list");
        list.iter()
            .map(|task| task["id"].as_str().expect("an id").to_owned())
            .collect()
    };
    assert_eq!(
        ids(&call(&world, list("statusfilter", "ok")).await),
        ["100"]
    );
    assert_eq!(
        ids(&call(&world, list("statusfilter", "error")).await),
        ["101"]
    );
    let all = call(&world, list("source", "all")).await;
    let first = all.data()[1]["starttime"].as_i64().expect("a time");
    assert_eq!(
        ids(&call(&world, list("since", &(first + 1).to_string())).await),
        ["101"]
    );
    assert_eq!(
        ids(&call(&world, list("until", &first.to_string())).await),
        ["100"]
    );
}
