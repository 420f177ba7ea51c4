//! Only guests that homestak created are changed, wherever they moved.

mod support;

use homestak_engine::ports::{ErrorClass, Gib, GuestId, GuestKind, Provider as _, StopMode};
use homestak_providers::local::{Instance, Local, LocalSettings};
use homestak_providers::pve::vmid::choose;
use support::add;
use support::server::Server;
use support::world::World;

#[tokio::test]
async fn a_guest_that_only_has_our_vmid_is_not_changed() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |guest| {
        guest.config.remove("tags");
        guest.config.insert(
            "smbios1".to_owned(),
            "uuid=11111111-0000-4000-8000-000000000000".to_owned(),
        );
        guest.running = true;
    });
    let server = Server::start(world).await;
    let pve = support::client(&server);
    assert_eq!(pve.inspect(&guest).await.expect("observed"), None);
    assert_eq!(
        pve.start(&guest).await.expect_err("missing").class,
        ErrorClass::Missing
    );
    assert_eq!(
        pve.stop(&guest, StopMode::Now)
            .await
            .expect_err("missing")
            .class,
        ErrorClass::Missing
    );
    assert_eq!(
        pve.grow_disk(&guest, Gib(99))
            .await
            .expect_err("missing")
            .class,
        ErrorClass::Missing
    );
    pve.destroy(&guest).await.expect("ours is gone");
    let world = server.world();
    assert!(world.guests[&100].running);
    assert!(
        world.log.iter().all(|line| line.starts_with("GET")),
        "{:?}",
        world.log
    );
}

#[tokio::test]
async fn a_copy_with_our_tag_is_not_changed() {
    let mut world = World::new();
    let mut guest = add(&mut world, 150, 1, |guest| {
        guest.config.insert(
            "smbios1".to_owned(),
            "uuid=11111111-0000-4000-8000-000000000000".to_owned(),
        );
    });
    let server = Server::start(world).await;
    let pve = support::client(&server);
    for result in [
        pve.start(&guest).await,
        pve.destroy(&guest).await,
        pve.discard_seed(&guest).await,
        pve.create(&support::vm(1)).await.map(|_| ()),
    ] {
        let error = result.expect_err("refused");
        assert_eq!(error.class, ErrorClass::Refused);
        assert!(error.detail.contains("VM 150"), "{error:?}");
    }
    // There is no guest with the id of the original, so nothing is done.
    guest.vmid = Some(100.into());
    assert_eq!(pve.inspect(&guest).await.expect("observed"), None);
    pve.destroy(&guest).await.expect("nothing is there");
    let world = server.world();
    assert!(
        world.log.iter().all(|line| line.starts_with("GET")),
        "{:?}",
        world.log
    );
}

#[tokio::test]
async fn a_migrated_guest_is_found() {
    let mut world = World::new();
    let guest = add(&mut world, 321, 1, |guest| guest.node = "pve2".to_owned());
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let seen = pve
        .inspect(&guest)
        .await
        .expect("observed")
        .expect("a guest");
    assert_eq!((seen.host.as_str(), seen.vmid), ("pve2", 321.into()));
    pve.start(&guest).await.expect("started");
    assert!(server.world().guests[&321].running);
    assert!(
        server
            .world()
            .log
            .contains(&"POST /nodes/pve2/qemu/321/status/start".to_owned())
    );
}

#[tokio::test]
async fn a_copy_is_recognised_in_the_list() {
    let mut world = World::new();
    add(&mut world, 100, 1, |_| {});
    let tags = world.guests[&100].config["tags"].clone();
    add(&mut world, 101, 1, |guest| {
        guest.config.insert("tags".to_owned(), tags);
    });
    let server = Server::start(world).await;
    let observed = support::client(&server).observe().await.expect("observed");
    let copies: Vec<(GuestId, bool)> = observed
        .guests
        .iter()
        .filter(|guest| guest.uuid.is_some())
        .map(|guest| (guest.vmid, guest.is_copy()))
        .collect();
    assert_eq!(copies, [(100.into(), false), (101.into(), true)]);
    assert_eq!(observed.requests, 1);
}

#[tokio::test]
async fn deletion_does_not_affect_a_restored_backup() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |_| {});
    let config = world.guests[&100].config.clone();
    add(&mut world, 101, 1, |copy| copy.config = config);
    let server = Server::start(world).await;
    let pve = support::client(&server);
    pve.destroy(&guest).await.expect("destroyed");
    pve.destroy(&guest).await.expect("gone already");
    server.world().finish();
    let left: Vec<u32> = server.world().guests.keys().copied().collect();
    assert_eq!(left, [101]);
}

#[tokio::test]
async fn an_id_in_use_is_skipped_or_refused_if_given() {
    let server = Server::start(World::new()).await;
    let pve = support::client(&server);
    let first = pve.create(&support::vm(1)).await.expect("a guest");
    // A foreign guest has the id, and our token cannot see it in the list.
    let mut other = support::vm(2);
    other.vmid = first.vmid;
    let error = pve.create(&other).await.expect_err("refused");
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(error.hint.contains("vmid"), "{error:?}");
    other.vmid = None;
    let second = pve.create(&other).await.expect("a guest");
    assert_ne!(first.vmid, second.vmid);
    assert_eq!(server.world().guests.len(), 2);
}

#[tokio::test]
async fn a_protected_guest_is_not_deleted() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |guest| {
        guest.config.insert("protection".to_owned(), "1".to_owned());
        guest.running = true;
    });
    let server = Server::start(world).await;
    let error = support::client(&server)
        .destroy(&guest)
        .await
        .expect_err("refused");
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(
        server.world().guests[&100].running,
        "it was not even stopped"
    );
}

#[tokio::test]
async fn notes_alone_do_not_make_a_guest_ours() {
    let new = support::vm(1);
    let vmid = choose(&new.uuid, &(10_000..=89_999), &[].into()).expect("an id");
    let mut world = World::new();
    let tenant = add(&mut world, vmid, 1, |guest| {
        let notes = format!("homestak-making: {}\nhomestak-run: run1\n", new.uuid);
        for (key, value) in [
            ("tags", "theirs"),
            ("smbios1", "uuid=11111111-0000-4000-8000-000000000000"),
            ("description", &notes),
        ] {
            guest.config.insert(key.to_owned(), value.to_owned());
        }
    });
    let before = world.guests[&vmid].config.clone();
    let server = Server::start(world).await;
    let pve = support::client(&server);
    assert_eq!(pve.inspect(&tenant).await.expect("observed"), None);
    pve.destroy(&tenant).await.expect("ours is not there");
    let created = pve.create(&new).await.expect("beside it");
    assert_ne!(created.vmid, Some(vmid.into()));
    pve.destroy(&created).await.expect("destroyed");
    let mut world = server.world();
    world.finish();
    assert_eq!(world.guests.keys().copied().collect::<Vec<_>>(), [vmid]);
    assert_eq!(world.guests[&vmid].config, before);
}

#[tokio::test]
async fn a_guest_with_tags_of_two_sites_is_not_changed() {
    let mut world = World::new();
    let guest = add(&mut world, 150, 1, |guest| {
        if let Some(tags) = guest.config.get_mut("tags") {
            tags.push_str(";homestak-s-otherssite");
        }
    });
    let server = Server::start(world).await;
    let pve = support::client(&server);
    for result in [
        pve.inspect(&guest).await.map(|_| ()),
        pve.start(&guest).await,
        pve.destroy(&guest).await,
        pve.grow_disk(&guest, Gib(99)).await,
        pve.create(&support::vm(1)).await.map(|_| ()),
    ] {
        let error = result.expect_err("refused");
        assert_eq!(error.class, ErrorClass::Refused);
        assert!(error.detail.contains("several sites"), "{error:?}");
    }
    let world = server.world();
    assert!(
        world.log.iter().all(|line| line.starts_with("GET")),
        "{:?}",
        world.log
    );
}

#[tokio::test]
async fn a_guest_whose_tags_were_removed_is_listed_without_identity() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |guest| {
        guest.config.remove("tags");
        guest.running = true;
    });
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let seen = pve
        .inspect(&guest)
        .await
        .expect("observed")
        .expect("a guest");
    assert_eq!((seen.vmid, seen.uuid, seen.site), (100.into(), None, None));
    for result in [
        pve.destroy(&guest).await,
        pve.start(&guest).await,
        pve.stop(&guest, StopMode::Now).await,
    ] {
        let error = result.expect_err("it is there");
        assert_eq!(error.class, ErrorClass::Refused, "{error:?}");
        assert!(error.detail.contains("VM 100"), "{error:?}");
        assert!(error.detail.contains("its tags were removed"), "{error:?}");
    }
    let world = server.world();
    assert!(world.guests[&100].running);
    assert!(
        world.log.iter().all(|line| line.starts_with("GET")),
        "{:?}",
        world.log
    );
}

#[tokio::test]
async fn a_guest_without_site_is_completed_only_if_planned() {
    let mut new = support::vm(1);
    let mut world = World::new();
    add(&mut world, 150, 1, |guest| {
        let tag = format!("homestak-id-{}", new.uuid);
        guest.config.insert("tags".to_owned(), tag);
    });
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let error = pve.create(&new).await.expect_err("refused");
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(error.detail.contains("VM 150"), "{error:?}");
    let only_read = |log: &[String]| log.iter().all(|line| line.starts_with("GET"));
    assert!(only_read(&server.world().log), "{:?}", server.world().log);
    new.first_form = true;
    let guest = pve.create(&new).await.expect("completed");
    assert_eq!(guest.vmid, Some(150.into()));
}

#[tokio::test]
async fn a_local_node_without_site_is_completed_only_if_planned() {
    let mut new = support::vm(1);
    let temporary = tempfile::tempdir().expect("a directory");
    let root = temporary.path().join("local");
    let directory = root.join("nodes").join(new.uuid.as_str());
    fs_err::create_dir_all(&directory).expect("created");
    let node = serde_json::json!({
        "uuid": new.uuid, "name": "node1", "manifest": "n1", "vmid": 100,
        "kind": GuestKind::Vm, "engine": "container", "first_boot": "direct",
        "cores": 1, "memory": 512, "disk": 8, "address": ["10.77.0.5", 24],
        "image": "debian-12", "tree": "/", "hosts": false,
        "identity": new.seed.as_ref().map(|seed| &seed.identity),
    });
    fs_err::write(directory.join("node.json"), node.to_string()).expect("written");
    fs_err::write(directory.join("told"), "").expect("written");
    let instance = Instance::at(&root).expect("an instance");
    let local = Local::open(instance, LocalSettings::default());
    let error = local.create(&new).await.expect_err("refused");
    assert_eq!(error.class, ErrorClass::Refused, "{error:?}");
    assert!(error.detail.contains("not the site"), "{error:?}");
    new.first_form = true;
    let guest = local.create(&new).await.expect("it is there");
    assert_eq!(guest.vmid, Some(100.into()));
}
