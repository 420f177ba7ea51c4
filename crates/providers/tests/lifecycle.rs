//! The client against the simulator, which has the schemas, locks and tasks of Proxmox VE.

mod support;

use std::sync::Arc;
use std::time::Duration;

use homestak_engine::ports::{
    ErrorClass, Gib, GuestKind, GuestRef, ImageRequest, ImageSource, Mib, PowerState,
    Provider as _, StopMode,
};
use homestak_providers::pve::PveLimits;
use homestak_providers::pve::facts::Fetched;
use homestak_providers::pve::preflight::{
    self, FileRequirement, FindingSeverity, Requirements, SiteRequirements, StorageRequirement,
};
use homestak_sim::{GuestFacts, Kind};
use sha2::Digest as _;
use support::simulated::{abilities, bare_simulated_host, fleet, simulated_host};

/// The id of a guest that was created.
fn id(guest: &GuestRef) -> u32 {
    guest.vmid.and_then(|id| id.number()).expect("an id")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_and_a_container_are_managed_with_the_minimal_role() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client();
    assert!(pve.capabilities().await.expect("capabilities").writable);
    let before = sim.world.volumes();
    for guest in [support::vm(1), support::ct(2)] {
        let at = pve.create(&guest).await.expect("a guest");
        assert_eq!(pve.create(&guest).await.expect("the same"), at);
        pve.start(&at).await.expect("started");
        pve.start(&at).await.expect("started twice");
        assert!(sim.world.is_running(id(&at)));
        let seen = pve.inspect(&at).await.expect("observed").expect("a guest");
        assert_eq!(
            (seen.power, seen.name.as_str()),
            (PowerState::Running, guest.name.as_str())
        );
        assert_eq!(seen.disk, Some(Gib(8).into()));
        pve.discard_seed(&at).await.expect("discarded");
        pve.discard_seed(&at).await.expect("discarded twice");
        pve.grow_disk(&at, Gib(12)).await.expect("grown");
        pve.grow_disk(&at, Gib(12)).await.expect("grown twice");
        pve.stop(&at, StopMode::Graceful(Duration::from_secs(30)))
            .await
            .expect("stopped");
        pve.stop(&at, StopMode::Now).await.expect("stopped twice");
        pve.start(&at).await.expect("started again");
        pve.destroy(&at).await.expect("destroyed, although it ran");
        pve.destroy(&at).await.expect("destroyed twice");
        assert_eq!(pve.inspect(&at).await.expect("observed"), None);
    }
    sim.wait_until_idle().await;
    assert!(sim.world.guests().is_empty());
    assert_eq!(sim.world.volumes(), before, "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_uploaded_with_its_checksum() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.raw");
    let bytes = vec![7; 2 << 20];
    fs_err::write(&path, &bytes).expect("written");
    let digits: String = sha2::Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut image = ImageRequest {
        file: "x.raw".to_owned(),
        kind: GuestKind::Vm,
        host: "pve1".to_owned(),
        storage: Some("local".to_owned()),
        source: ImageSource::File(path),
        checksum: Some(format!("sha256:{}", "0".repeat(64))),
    };
    let error = pve
        .ensure_image(&image)
        .await
        .expect_err("another checksum");
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(!error.log.is_empty(), "{error:?}");
    image.checksum = Some(format!("sha256:{digits}"));
    pve.ensure_image(&image).await.expect("sent");
    assert!(pve.has_image(&image).await.expect("checked"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_concurrent_creates_give_fifty_guests() {
    let sim = simulated_host(|builder| builder).await;
    let pve = Arc::new(sim.client());
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
    sim.wait_until_idle().await;
    assert_eq!(vmids.len(), 50);
    assert_eq!(sim.world.guests().len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_guests_on_twenty_hosts_are_listed_with_one_request() {
    let sim = fleet(20, 10_000).await;
    let pve = sim.client_with(PveLimits::default());
    let observed = pve.observe().await.expect("observed");
    assert_eq!((observed.guests.len(), observed.hosts.len()), (10_000, 20));
    assert_eq!(observed.requests, 1);
    assert!(pve.requests() <= 5, "{}", pve.requests());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preflight_passes_with_the_minimal_role_and_names_missing_privileges() {
    let wanted = Requirements {
        hosts: vec!["pve1".to_owned()],
        abilities: abilities(),
        storages: vec![StorageRequirement {
            host: "pve1".to_owned(),
            storage: "local".to_owned(),
            content: ["images", "import", "iso", "vztmpl", "rootdir"]
                .map(str::to_owned)
                .to_vec(),
            size: Gib(1).into(),
            largest: Gib(1).into(),
        }],
        images: vec![FileRequirement {
            host: "pve1".to_owned(),
            storage: "local".to_owned(),
            content: "import".to_owned(),
            file: "debian-12.qcow2".to_owned(),
            source: None,
        }],
        site: Some(SiteRequirements {
            gateway: "192.0.2.1".parse().ok(),
            dns: vec!["192.0.2.1".parse().expect("an address")],
            domain: Some("home.arpa".to_owned()),
            ssh_keys: 1,
            fixed_addresses: true,
        }),
        ..Requirements::default()
    };
    let good = simulated_host(|builder| builder).await;
    let facts = good.client().facts(&wanted).await;
    let findings = preflight::check(&facts, &wanted);
    let bad: Vec<_> = findings
        .iter()
        .filter(|finding| finding.severity > FindingSeverity::Unknown)
        .collect();
    assert!(bad.is_empty(), "{bad:?}");

    let poor = bare_simulated_host(|builder| builder.separated_token(support::TOKEN)).await;
    let facts = poor.client().facts(&wanted).await;
    assert!(matches!(facts.version, Fetched::Known(_)));
    let findings = preflight::check(&facts, &wanted);
    let missing = findings
        .iter()
        .filter(|finding| finding.check == "privileges");
    assert!(missing.clone().count() >= 3);
    assert!(
        missing
            .clone()
            .all(|finding| finding.fix.contains("pveum acl modify")),
        "{findings:?}"
    );
}

/// A cluster of two hosts with a shared storage.
async fn cluster() -> support::simulated::SimulatedHost {
    let sim = bare_simulated_host(|builder| {
        builder
            .host("pve2")
            .shared_storage("nfs")
            .token(support::TOKEN)
            .grant("homestak@pve", "/", "Administrator")
    });
    sim.await
}

fn facts_of(sim: &support::simulated::SimulatedHost, vmid: u32) -> GuestFacts {
    let mut guests = sim.world.guests().into_iter();
    guests.find(|guest| guest.vmid == vmid).expect("a guest")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_migrates_before_a_change_is_found() {
    let sim = cluster().await;
    let pve = sim.client();
    let mut guest = support::vm(1);
    guest.storage = Some("nfs".to_owned());
    guest.seed = None;
    let at = pve.create(&guest).await.expect("a guest");
    let seen = pve.observe().await.expect("observed");
    assert!(seen.guests.iter().any(|guest| guest.host == "pve1"));
    let move_to = |host: &str| {
        let config = facts_of(&sim, id(&at)).config.into_iter().collect();
        sim.world.put_guest(host, Kind::Qemu, id(&at), config);
    };
    move_to("pve2");
    pve.start(&at).await.expect("started where it is now");
    assert!(sim.world.is_running(id(&at)));
    assert_eq!(facts_of(&sim, id(&at)).host, "pve2");
    pve.stop(&at, StopMode::Now).await.expect("stopped");
    move_to("pve1");
    pve.grow_disk(&at, Gib(9))
        .await
        .expect("grown where it is now");
    move_to("pve2");
    let error = pve.destroy(&at).await.expect_err("planned elsewhere");
    assert_eq!(error.class, ErrorClass::Refused, "{error:?}");
    assert_eq!(sim.world.guests().len(), 1);
    let moved = GuestRef {
        host: "pve2".to_owned(),
        ..at
    };
    pve.destroy(&moved).await.expect("destroyed where it is");
    assert!(sim.world.guests().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attached_disk_of_another_guest_is_not_deleted() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client();
    let ours = pve.create(&support::vm(1)).await.expect("a guest");
    let other = pve.create(&support::vm(2)).await.expect("another");
    let foreign = facts_of(&sim, id(&other)).config["scsi0"].clone();
    let volume = foreign.split(',').next().unwrap_or_default().to_owned();
    let mut config = facts_of(&sim, id(&ours)).config;
    config.insert("scsi1".to_owned(), foreign);
    config.insert("unused0".to_owned(), volume.clone());
    let config = config.into_iter().collect();
    sim.world.put_guest("pve1", Kind::Qemu, id(&ours), config);
    pve.destroy(&ours).await.expect("destroyed");
    sim.wait_until_idle().await;
    let volumes = sim.world.volumes();
    assert!(
        volumes.iter().any(|(_, known)| *known == volume),
        "{volumes:?}"
    );
    pve.start(&other).await.expect("the other has its disk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_downloaded_with_its_checksum() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client();
    let url = "https://example.org/y.qcow2";
    let digits = "5".repeat(64);
    sim.world.offer_download(url, 1 << 20, &digits);
    let mut image = ImageRequest {
        file: "y.qcow2".to_owned(),
        kind: GuestKind::Vm,
        host: "pve1".to_owned(),
        storage: Some("local".to_owned()),
        source: ImageSource::Url(url.to_owned()),
        checksum: Some(format!("sha256:{}", "0".repeat(64))),
    };
    let error = pve
        .ensure_image(&image)
        .await
        .expect_err("another checksum");
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(error.hint.contains("checksum"), "{error:?}");
    assert!(!pve.has_image(&image).await.expect("checked"));
    image.checksum = Some(format!("sha256:{digits}"));
    pve.ensure_image(&image).await.expect("fetched");
    assert!(pve.has_image(&image).await.expect("checked"));
    pve.ensure_image(&image).await.expect("there already");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_does_not_fit_is_refused_with_sizes() {
    // The memory of a host is reported only with the audit privilege.
    let sim = simulated_host(|builder| {
        let builder = builder
            .storage_size(40 << 30)
            .role("HostAudit", &["Sys.Audit"]);
        let builder = builder.grant("homestak@pve", "/nodes/pve1", "HostAudit");
        builder.grant("homestak@pve!driver", "/nodes/pve1", "HostAudit")
    })
    .await;
    let pve = sim.client();
    let before = sim.world.volumes();
    let mut large = support::vm(1);
    large.disk = Gib(500);
    let error = pve.create(&large).await.expect_err("no room");
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(error.detail.contains("500.0 GiB"), "{error:?}");
    assert!(error.detail.contains("GiB free"), "{error:?}");
    let mut heavy = support::vm(1);
    heavy.memory = Mib(128 << 10);
    let error = pve.create(&heavy).await.expect_err("no memory");
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(error.detail.contains("128.0 GiB"), "{error:?}");
    assert_eq!(sim.world.volumes(), before, "not even a seed");
    pve.create(&support::vm(1)).await.expect("one that fits");
}
