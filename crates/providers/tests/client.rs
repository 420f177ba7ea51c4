//! The client against a small Proxmox VE server in this process.

mod support;

use homestak_engine::ports::{GuestKind, ImageRequest, ImageSource, Provider as _};
use support::server::Server;
use support::world::{Fault, World};

#[tokio::test]
async fn concurrent_calls_create_one_guest() {
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
    assert!(!pve.has_image(&image).await.expect("checked"));
    pve.ensure_image(&image).await.expect("sent");
    pve.ensure_image(&image).await.expect("there");
    assert!(pve.has_image(&image).await.expect("checked"));
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
