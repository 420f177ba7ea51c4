//! The client against a small Proxmox VE server in this process.

mod support;

use std::sync::Arc;
use std::time::Duration;

use homestak_engine::ports::{
    GuestKind, ImageRequest, ImageSource, PowerState, Provider as _, StopMode,
};
use support::add;
use support::server::Server;
use support::world::{Fault, World};

#[tokio::test]
async fn a_whole_life() {
    let server = Server::start(World::new()).await;
    let pve = support::client(&server);
    let abilities = pve.capabilities().await.expect("abilities");
    assert_eq!(abilities.product, "Proxmox VE 9.1.7");
    assert!(abilities.writable);
    for guest in [support::vm(1), support::ct(2)] {
        let at = pve.create(&guest).await.expect("a guest");
        assert_eq!(pve.create(&guest).await.expect("the same"), at);
        pve.start(&at).await.expect("started");
        pve.start(&at).await.expect("started twice");
        let seen = pve.inspect(&at).await.expect("a look").expect("a guest");
        assert_eq!(
            (seen.power, seen.name.as_str()),
            (PowerState::Running, guest.name.as_str())
        );
        assert_eq!(seen.manifest.as_deref(), Some("N1 test"));
        let found = pve.address(&at).await.ok();
        assert_eq!(found.and_then(|found| found.address()), None);
        pve.discard_seed(&at).await.expect("discarded");
        pve.discard_seed(&at).await.expect("discarded twice");
        pve.stop(&at, StopMode::Graceful(Duration::from_secs(30)))
            .await
            .expect("stopped");
        pve.stop(&at, StopMode::Now).await.expect("stopped twice");
        pve.destroy(&at).await.expect("destroyed");
        pve.destroy(&at).await.expect("destroyed twice");
        assert_eq!(pve.inspect(&at).await.expect("a look"), None);
    }
    assert!(server.world().guests.is_empty());
}

#[tokio::test]
async fn ten_thousand_guests_are_one_request() {
    let mut world = World::new();
    for nth in 0..10_000 {
        add(&mut world, 100_000 + nth, nth, |_| {});
    }
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let observed = pve.observe().await.expect("a look");
    assert_eq!(observed.guests.len(), 10_000);
    assert_eq!(observed.requests, 1);
    assert_eq!(server.world().requests, 1);
    assert!(observed.guests.iter().all(|guest| guest.uuid.is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_guests_at_once() {
    let server = Server::start(World::new()).await;
    let pve = Arc::new(support::client(&server));
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 1..=50 {
        let pve = Arc::clone(&pve);
        // Cancel safety: all are waited for.
        tasks.spawn(async move { pve.create(&support::vm(nth)).await });
    }
    let mut vmids = std::collections::BTreeSet::new();
    while let Some(result) = tasks.join_next().await {
        vmids.insert(result.expect("no panic").expect("a guest").vmid);
    }
    assert_eq!(vmids.len(), 50);
    let mut world = server.world();
    world.finish();
    assert_eq!(world.guests.len(), 50);
    for nth in 1..=50 {
        assert_eq!(world.tagged_with(support::uuid(nth).as_str()).len(), 1);
    }
}

#[tokio::test]
async fn repeated_calls_at_once_make_one_guest() {
    let server = Server::start(World::new()).await;
    let (one, two) = (support::client(&server), support::client(&server));
    let guest = support::vm(1);
    let (first, second) = tokio::join!(one.create(&guest), two.create(&guest));
    assert_eq!(first.expect("a guest"), second.expect("the same guest"));
    assert_eq!(server.world().guests.len(), 1);
}

#[tokio::test]
async fn images_are_transferred_once() {
    let server = Server::start(World::new()).await;
    let pve = support::client(&server);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.qcow2");
    fs_err::write(&path, vec![7; 3 << 20]).expect("written");
    let image = ImageRequest {
        file: "x.qcow2".to_owned(),
        kind: GuestKind::Vm,
        host: "pve1".to_owned(),
        storage: Some("local".to_owned()),
        source: ImageSource::File(path),
        checksum: Some(format!("sha256:{}", "a".repeat(64))),
    };
    assert!(!pve.has_image(&image).await.expect("a look"));
    pve.ensure_image(&image).await.expect("sent");
    pve.ensure_image(&image).await.expect("there");
    assert!(pve.has_image(&image).await.expect("a look"));
    let uploads = server
        .world()
        .log
        .iter()
        .filter(|line| line.ends_with("/upload"))
        .count();
    assert_eq!(uploads, 1);
    let fetched = ImageRequest {
        file: "y.qcow2".to_owned(),
        source: ImageSource::Url("https://example.org/y.qcow2".to_owned()),
        ..image
    };
    server
        .world()
        .faults_on
        .push(("POST /download-url", Fault::CutAfter));
    pve.ensure_image(&fetched).await.expect("fetched once");
    let downloads = server
        .world()
        .log
        .iter()
        .filter(|line| line.ends_with("/download-url"))
        .count();
    assert_eq!(downloads, 1);
}
