//! Waiting for tasks and locks.

mod support;

use std::time::Duration;

use homestak_engine::ports::{ErrorClass, Gib, Provider as _};
use homestak_providers::pve::PveLimits;
use support::add;
use support::server::Server;
use support::world::{Effect, Fault, World};

#[tokio::test]
async fn a_task_with_warnings_is_a_success() {
    let mut world = World::new();
    world.warnings = true;
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let guest = pve.create(&support::ct(1)).await.expect("a container");
    pve.start(&guest).await.expect("started");
    assert!(server.world().guests[&guest.vmid.and_then(|id| id.number()).expect("an id")].running);
}

#[tokio::test]
async fn an_unknown_task_is_polled_again() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |_| {});
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let unknown = Fault::Answer(400, "Parameter verification failed.");
    for _ in 0..3 {
        server.world().faults_on.push(("GET /status", unknown));
    }
    pve.start(&guest).await.expect("started");
}

#[tokio::test]
async fn a_failed_task_is_reported_with_log_and_class() {
    let server = Server::start(World::new()).await;
    let mut guest = support::vm(1);
    guest.vmid = Some(100.into());
    let pve = support::client(&server);
    let making = pve.create(&guest);
    let failing = async {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut world = server.world();
            if let Some(task) = world
                .tasks
                .iter_mut()
                .find(|task| task.upid.contains("qmcreate"))
            {
                let words = "unable to create VM 100 - volume 'local:iso/x.iso' does not exist";
                if task.effect.is_some() {
                    task.effect = Some(Effect::Fail(words));
                    world.guests.remove(&100);
                }
                return;
            }
        }
    };
    server.world().task_length = 40;
    let (result, ()) = tokio::join!(making, failing);
    let error = result.expect_err("a failure");
    assert_eq!(error.class, ErrorClass::Missing);
    assert_eq!(error.log, ["WARN: a line of the log"]);
    assert!(
        error
            .to_string()
            .starts_with("create VM 100 on pve1 `node1`: unable"),
        "{error}"
    );
}

#[tokio::test]
async fn a_foreign_lock_is_waited_for() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |guest| {
        guest.config.insert("lock".to_owned(), "backup".to_owned());
    });
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let release = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        server
            .world()
            .guests
            .get_mut(&100)
            .expect("a guest")
            .config
            .remove("lock");
    };
    let (result, ()) = tokio::join!(pve.start(&guest), release);
    result.expect("started");
}

#[tokio::test]
async fn a_permanent_lock_is_reported_with_its_task_and_not_broken() {
    let mut world = World::new();
    world.task_length = 1_000_000;
    world.task("vzdump", "100", Effect::Fail("never"));
    let guest = add(&mut world, 100, 1, |guest| {
        guest.config.insert("lock".to_owned(), "backup".to_owned());
    });
    let server = Server::start(world).await;
    let limits = PveLimits {
        lock: Duration::from_secs(10),
        ..support::limits()
    };
    let pve = support::client_with(&server, limits);
    let error = pve.destroy(&guest).await.expect_err("busy");
    assert_eq!(error.class, ErrorClass::Busy);
    assert!(
        error.detail.contains("`backup`") && error.detail.contains("vzdump"),
        "{error:?}"
    );
    let world = server.world();
    assert!(
        world.log.iter().all(|line| line.starts_with("GET")),
        "{:?}",
        world.log
    );
}

#[tokio::test]
async fn a_lock_timeout_is_retried() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |_| {});
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let timeout = Fault::Answer(
        500,
        "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout",
    );
    server.world().faults_on.push(("PUT /resize", timeout));
    pve.grow_disk(&guest, Gib(12)).await.expect("grown");
    server.world().finish();
    assert!(server.world().guests[&100].config["scsi0"].ends_with("size=12G"));
}
