//! The client against a small Proxmox VE: transport, tasks, identity, locks, many at once.
//!
//! In: a world in some state. Out: what the port answers, and what became of the world.
//! Never: waiting for real; the clock is fast.

mod support;

use std::sync::Arc;
use std::time::Duration;

use homestak_api::trust::{Fingerprint, Trust};
use homestak_engine::ports::{
    Class, GuestKind, GuestRef, Halt, ImageSource, ImageWanted, PortError, Power, Provider as _,
    Sent,
};
use homestak_providers::pve::{
    ApiToken, Credential, Endpoint, Limits, Password, Pve, PveSettings, identity,
};
use support::server::Server;
use support::world::{Effect, Fault, Guest, World};

fn settings(server: &Server) -> PveSettings {
    let token = ApiToken::parse(support::TOKEN).expect("a token");
    let endpoint = Endpoint {
        url: server.url.clone(),
        trust: server.trust.clone(),
    };
    let mut settings = PveSettings::new(endpoint, Credential::Token(token));
    settings.limits = support::limits();
    settings
}

fn connect(settings: PveSettings) -> Pve {
    Pve::new(settings, Arc::new(support::clock::FastClock::new(200))).expect("a client")
}

fn check_secret(error: &PortError) {
    let text = format!("{error} {error:?}");
    assert!(!text.contains("0f0e0d0c"), "{text}");
}

/// A guest of ours that someone else may have changed.
fn add(world: &mut World, vmid: u32, nth: u32, change: impl FnOnce(&mut Guest)) -> GuestRef {
    let uuid = support::uuid(nth);
    let tags: Vec<String> = identity::tags(&uuid, "n1").into_iter().collect();
    let config = [
        ("name", "node".to_owned()),
        ("tags", tags.join(";")),
        ("smbios1", format!("uuid={uuid}")),
        ("scsi0", "local:1,size=8G".to_owned()),
        ("boot", "order=scsi0".to_owned()),
    ];
    let mut guest = Guest {
        kind: GuestKind::Vm,
        node: "pve1".to_owned(),
        config: config.map(|(key, value)| (key.to_owned(), value)).into(),
        running: false,
    };
    change(&mut guest);
    world.guests.insert(vmid, guest);
    GuestRef {
        uuid,
        kind: GuestKind::Vm,
        vmid,
        host: "pve1".to_owned(),
    }
}

#[tokio::test]
async fn another_certificate_is_refused_before_anything_is_sent() {
    let server = Server::start(World::new()).await;
    let mut settings = settings(&server);
    settings.endpoint.trust = Trust::Pinned(Fingerprint([7; 32]));
    let error = connect(settings).observe().await.expect_err("refused");
    assert_eq!(error.class, Class::Refused);
    assert!(error.detail.contains("fingerprint"), "{error:?}");
    assert_eq!(server.world().requests, 0);
    check_secret(&error);
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_unreachable_and_nothing_was_sent() {
    let server = Server::start(World::new()).await;
    let mut settings = settings(&server);
    settings.endpoint.url = "https://127.0.0.1:9".to_owned();
    let error = connect(settings).observe().await.expect_err("unreachable");
    assert_eq!(error.class, Class::Unreachable { sent: Sent::No });
    check_secret(&error);
}

#[tokio::test]
async fn plain_http_is_not_spoken() {
    let server = Server::start(World::new()).await;
    let mut settings = settings(&server);
    settings.endpoint.url = "http://127.0.0.1:8006".to_owned();
    let clock = Arc::new(support::clock::FastClock::new(1));
    assert!(Pve::new(settings, clock).is_err());
}

#[tokio::test]
async fn a_token_that_is_not_known_is_refused_without_showing_it() {
    let server = Server::start(World::new()).await;
    let mut settings = settings(&server);
    let other = "root@pam!x1=0f0e0d0c-0b0a-4908-8706-0504030201ff";
    settings.credential = Credential::Token(ApiToken::parse(other).expect("a token"));
    let error = connect(settings).observe().await.expect_err("refused");
    assert_eq!(error.class, Class::Refused);
    assert!(error.hint.contains("token"), "{error:?}");
    check_secret(&error);
}

#[tokio::test]
async fn a_login_is_made_once_and_again_when_its_ticket_is_refused() {
    let server = Server::start(World::new()).await;
    let mut settings = settings(&server);
    settings.credential = Credential::Login {
        user: "root@pam".to_owned(),
        password: Password::new("secret"),
    };
    let pve = connect(settings);
    pve.observe().await.expect("a look");
    pve.observe().await.expect("a look");
    let logins = |server: &Server| {
        let world = server.world();
        world
            .log
            .iter()
            .filter(|line| line.ends_with("/access/ticket"))
            .count()
    };
    assert_eq!(logins(&server), 1);
    let refusal = Fault::Answer(401, "permission denied - invalid PVE ticket");
    server
        .world()
        .faults_on
        .push(("GET /cluster/resources", refusal));
    pve.observe().await.expect("a look");
    assert_eq!(logins(&server), 2);
}

#[tokio::test]
async fn the_reason_phrase_is_read_and_classified() {
    let server = Server::start(World::new()).await;
    let pve = support::client(&server);
    for (status, text, class) in [
        (500, "got timeout", Class::Busy),
        (500, "storage 'x' does not exist", Class::Missing),
        (
            403,
            "Permission check failed (/vms, VM.Audit)",
            Class::Refused,
        ),
        (
            501,
            "Method 'GET /cluster/resources' not implemented",
            Class::Refused,
        ),
        (302, "Found", Class::Broken),
    ] {
        server
            .world()
            .faults_on
            .push(("GET /cluster/resources", Fault::Answer(status, text)));
        let error = pve.observe().await.expect_err("an error");
        assert_eq!(error.class, class, "{error:?}");
        assert!(error.detail.contains(text), "{error:?}");
    }
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

#[tokio::test]
async fn a_silent_server_is_given_up_on_and_the_guest_is_found_again() {
    let server = Server::start(World::new()).await;
    let limits = Limits {
        answer: Duration::from_millis(400),
        ..support::limits()
    };
    let pve = support::client_with(&server, limits);
    server
        .world()
        .faults_on
        .push(("POST /nodes/pve1/qemu", Fault::Silence));
    let guest = pve.create(&support::vm(1)).await.expect("a guest");
    assert_eq!(server.world().carrying(guest.uuid.as_str()), [guest.vmid]);
    assert_eq!(server.world().guests.len(), 1);
}

#[tokio::test]
async fn a_task_that_warns_is_a_success() {
    let mut world = World::new();
    world.warnings = true;
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let guest = pve.create(&support::ct(1)).await.expect("a container");
    pve.start(&guest).await.expect("started");
    assert!(server.world().guests[&guest.vmid].running);
}

#[tokio::test]
async fn a_task_that_is_not_known_yet_is_waited_for() {
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
async fn a_failed_task_comes_with_its_log_and_class() {
    let server = Server::start(World::new()).await;
    let mut guest = support::vm(1);
    guest.vmid = Some(100);
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
    assert_eq!(error.class, Class::Missing);
    assert_eq!(error.log, ["WARN: a line of the log"]);
    assert!(
        error
            .to_string()
            .starts_with("create VM 100 on pve1 `node1`: unable"),
        "{error}"
    );
}

#[tokio::test]
async fn a_guest_that_only_has_our_vmid_is_never_touched() {
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
    assert_eq!(pve.inspect(&guest).await.expect("a look"), None);
    assert_eq!(
        pve.start(&guest).await.expect_err("missing").class,
        Class::Missing
    );
    assert_eq!(
        pve.stop(&guest, Halt::Now)
            .await
            .expect_err("missing")
            .class,
        Class::Missing
    );
    assert_eq!(
        pve.grow_disk(&guest, 99).await.expect_err("missing").class,
        Class::Missing
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
async fn a_copy_that_carries_our_tag_is_refused_and_stays() {
    let mut world = World::new();
    let mut guest = add(&mut world, 150, 1, |guest| {
        guest.config.insert(
            "smbios1".to_owned(),
            "uuid=11111111-0000-4000-8000-000000000000".to_owned(),
        );
    });
    guest.vmid = 100;
    let server = Server::start(world).await;
    let pve = support::client(&server);
    for result in [
        pve.start(&guest).await,
        pve.destroy(&guest).await,
        pve.discard_seed(&guest).await,
    ] {
        let error = result.expect_err("refused");
        assert_eq!(error.class, Class::Refused);
        assert!(error.detail.contains("VM 150"), "{error:?}");
    }
    let error = pve.create(&support::vm(1)).await.expect_err("refused");
    assert_eq!(error.class, Class::Refused);
    let world = server.world();
    assert!(
        world.log.iter().all(|line| line.starts_with("GET")),
        "{:?}",
        world.log
    );
}

#[tokio::test]
async fn a_guest_that_moved_is_found_where_it_went() {
    let mut world = World::new();
    let mut guest = add(&mut world, 321, 1, |guest| guest.node = "pve2".to_owned());
    guest.vmid = 100;
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let seen = pve.inspect(&guest).await.expect("a look").expect("a guest");
    assert_eq!((seen.host.as_str(), seen.vmid), ("pve2", 321));
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
async fn a_lock_of_someone_else_is_waited_for() {
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
async fn a_lock_that_stays_is_named_with_its_task_and_never_broken() {
    let mut world = World::new();
    world.task_length = 1_000_000;
    world.task("vzdump", "100", Effect::Fail("never"));
    let guest = add(&mut world, 100, 1, |guest| {
        guest.config.insert("lock".to_owned(), "backup".to_owned());
    });
    let server = Server::start(world).await;
    let limits = Limits {
        lock: Duration::from_secs(10),
        ..support::limits()
    };
    let pve = support::client_with(&server, limits);
    let error = pve.destroy(&guest).await.expect_err("busy");
    assert_eq!(error.class, Class::Busy);
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
async fn a_lock_timeout_is_tried_again() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |_| {});
    let server = Server::start(world).await;
    let pve = support::client(&server);
    let timeout = Fault::Answer(
        500,
        "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout",
    );
    server.world().faults_on.push(("PUT /resize", timeout));
    pve.grow_disk(&guest, 12).await.expect("grown");
    server.world().finish();
    assert!(server.world().guests[&100].config["scsi0"].ends_with("size=12G"));
}

#[tokio::test]
async fn an_id_that_is_taken_is_left_and_a_given_one_is_refused() {
    let server = Server::start(World::new()).await;
    let pve = support::client(&server);
    let first = pve.create(&support::vm(1)).await.expect("a guest");
    // Someone else's guest sits where ours would go, and our token does not see it in the list.
    let mut other = support::vm(2);
    other.vmid = Some(first.vmid);
    let error = pve.create(&other).await.expect_err("refused");
    assert_eq!(error.class, Class::Refused);
    assert!(error.hint.contains("vmid"), "{error:?}");
    other.vmid = None;
    let second = pve.create(&other).await.expect("a guest");
    assert_ne!(first.vmid, second.vmid);
    assert_eq!(server.world().guests.len(), 2);
}

#[tokio::test]
async fn a_protected_guest_stays() {
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
    assert_eq!(error.class, Class::Refused);
    assert!(
        server.world().guests[&100].running,
        "it was not even stopped"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_copies_at_once() {
    let server = Server::start(World::new().with_template(9000)).await;
    let pve = Arc::new(support::client(&server));
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 1..=50 {
        let pve = Arc::clone(&pve);
        // Cancel safety: all are waited for.
        tasks.spawn(async move { pve.create(&support::clone_of(9000, nth)).await });
    }
    let mut vmids = std::collections::BTreeSet::new();
    while let Some(result) = tasks.join_next().await {
        vmids.insert(result.expect("no panic").expect("a copy").vmid);
    }
    assert_eq!(vmids.len(), 50);
    let mut world = server.world();
    world.finish();
    assert_eq!(world.guests.len(), 51);
    for nth in 1..=50 {
        assert_eq!(world.carrying(support::uuid(nth).as_str()).len(), 1);
    }
    let tags = &world.guests[vmids.first().expect("one")].config["tags"];
    assert!(
        tags.contains("golden"),
        "tags of the template are kept: {tags}"
    );
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
async fn images_are_sent_in_the_right_order_and_only_once() {
    let server = Server::start(World::new()).await;
    let pve = support::client(&server);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.qcow2");
    fs_err::write(&path, vec![7; 3 << 20]).expect("written");
    let image = ImageWanted {
        file: "x.qcow2".to_owned(),
        kind: GuestKind::Vm,
        host: "pve1".to_owned(),
        storage: "local".to_owned(),
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
    let fetched = ImageWanted {
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

#[tokio::test]
async fn a_sweep_takes_seeds_without_a_guest_and_nothing_else() {
    let mut world = World::new();
    add(&mut world, 100, 1, |_| {});
    for nth in [1, 2] {
        world
            .files
            .insert(format!("local:iso/homestak-{}.iso", support::uuid(nth)));
    }
    world.files.insert("local:iso/debian.iso".to_owned());
    let server = Server::start(world).await;
    let pve = support::client(&server);
    assert_eq!(pve.sweep().await.expect("swept"), 1);
    server.world().finish();
    let left: Vec<String> = server
        .world()
        .files
        .iter()
        .filter(|volume| volume.contains(":iso/"))
        .cloned()
        .collect();
    let ours = format!("local:iso/homestak-{}.iso", support::uuid(1));
    assert_eq!(left, ["local:iso/debian.iso".to_owned(), ours]);
}

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
            (Power::Running, guest.name.as_str())
        );
        assert_eq!(seen.manifest.as_deref(), Some("N1 test"));
        assert_eq!(pve.address(&at, &guest.nic.mac).await.ok().flatten(), None);
        pve.discard_seed(&at).await.expect("discarded");
        pve.discard_seed(&at).await.expect("discarded twice");
        pve.stop(&at, Halt::Graceful(Duration::from_secs(30)))
            .await
            .expect("stopped");
        pve.stop(&at, Halt::Now).await.expect("stopped twice");
        pve.destroy(&at).await.expect("destroyed");
        pve.destroy(&at).await.expect("destroyed twice");
        assert_eq!(pve.inspect(&at).await.expect("a look"), None);
    }
    assert!(server.world().guests.is_empty());
}

#[tokio::test]
async fn a_guests_own_host_is_asked_and_the_entry_stands_in_for_it() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |_| {});
    let entry = Server::start(world).await;
    let mut world = World::new();
    add(&mut world, 100, 1, |_| {});
    let own = Server::start(world).await;
    let mut settings = settings(&entry);
    let endpoint = Endpoint {
        url: own.url.clone(),
        trust: own.trust.clone(),
    };
    settings.nodes.insert("pve1".to_owned(), endpoint);
    connect(settings.clone())
        .start(&guest)
        .await
        .expect("started");
    assert!(own.world().guests[&100].running);
    assert_eq!(entry.world().requests, 0);
    let unreachable = Endpoint {
        url: "https://127.0.0.1:9".to_owned(),
        trust: own.trust.clone(),
    };
    settings.nodes.insert("pve1".to_owned(), unreachable);
    connect(settings)
        .start(&guest)
        .await
        .expect("started through the entry");
    assert!(entry.world().guests[&100].running);
}

#[tokio::test]
async fn a_copy_with_our_tags_does_not_pass_for_our_guest_in_a_look() {
    let mut world = World::new();
    add(&mut world, 100, 1, |_| {});
    add(&mut world, 101, 1, |guest| {
        guest.config.insert(
            "smbios1".to_owned(),
            "uuid=11111111-0000-4000-8000-000000000000".to_owned(),
        );
    });
    let server = Server::start(world).await;
    let observed = support::client(&server).observe().await.expect("a look");
    let ours: Vec<u32> = observed
        .guests
        .iter()
        .filter(|guest| guest.uuid.is_some())
        .map(|guest| guest.vmid)
        .collect();
    assert_eq!(ours, [100]);
    assert_eq!(observed.requests, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_are_limited() {
    let server = Server::start(World::new()).await;
    let pve = Arc::new(support::client(&server));
    server.world().pause = Duration::from_millis(5);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let pve = Arc::clone(&pve);
        // Cancel safety: all are waited for.
        tasks.spawn(async move { pve.observe().await.map(|_| ()) });
    }
    while let Some(result) = tasks.join_next().await {
        result.expect("no panic").expect("a look");
    }
    let world = server.world();
    assert_eq!(world.requests, 40);
    assert!(
        (2..=4).contains(&world.most_in_flight),
        "{}",
        world.most_in_flight
    );
    assert!(
        world.connections <= 4,
        "connections are reused: {}",
        world.connections
    );
}

#[tokio::test]
async fn without_quorum_changes_stop_and_questions_go_on() {
    let mut world = World::new();
    let guest = add(&mut world, 100, 1, |_| {});
    let server = Server::start(world).await;
    // Slow enough for two calls within the ten seconds in which changes are held back.
    let clock = Arc::new(support::clock::FastClock::new(10));
    let pve = Pve::new(settings(&server), clock).expect("a client");
    let refusal = Fault::Answer(500, "cluster not ready - no quorum?");
    server
        .world()
        .faults_on
        .push(("POST /status/start", refusal));
    let error = pve.start(&guest).await.expect_err("no quorum");
    assert_eq!(error.class, Class::Busy);
    let posts = |server: &Server| {
        server
            .world()
            .log
            .iter()
            .filter(|line| line.starts_with("POST"))
            .count()
    };
    assert_eq!(posts(&server), 1);
    pve.start(&guest).await.expect_err("not even tried");
    assert_eq!(posts(&server), 1);
    pve.observe().await.expect("a look");
    tokio::time::sleep(Duration::from_millis(1200)).await;
    pve.start(&guest).await.expect("tried again later");
}
