//! The client against the simulator: its schemas, locks, workers and tasks are those of the real
//! thing.
//!
//! In: a World. Out: guests made, started, stopped and gone; also with every fault at every call.
//! Never: a real host.

mod support;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use homestak_engine::ports::{
    Class, GuestKind, GuestRef, Halt, ImageSource, ImageWanted, NewGuest, PortError, Power,
    Provider as _,
};
use homestak_providers::pve::facts::Fetched;
use homestak_providers::pve::preflight::{
    self, FileWanted, Severity, SiteWanted, StorageWanted, Wanted,
};
use homestak_providers::pve::{Limits, Pve};
use homestak_sim::{Call, Fault, FaultKind};
use sha2::Digest as _;
use support::place::{abilities, fleet, place, place_of, with_template};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_and_a_container_live_and_die_under_the_smallest_role() {
    let place = place(|builder| builder).await;
    let pve = place.client();
    let before = place.world.volumes();
    for guest in [support::vm(1), support::ct(2)] {
        let at = pve.create(&guest).await.expect("a guest");
        assert_eq!(pve.create(&guest).await.expect("the same"), at);
        pve.start(&at).await.expect("started");
        pve.start(&at).await.expect("started twice");
        assert!(place.world.is_running(at.vmid));
        let seen = pve.inspect(&at).await.expect("a look").expect("a guest");
        assert_eq!(
            (seen.power, seen.name.as_str()),
            (Power::Running, guest.name.as_str())
        );
        assert_eq!(seen.disk, Some(8 << 30));
        pve.discard_seed(&at).await.expect("discarded");
        pve.discard_seed(&at).await.expect("discarded twice");
        pve.grow_disk(&at, 12).await.expect("grown");
        pve.grow_disk(&at, 12).await.expect("grown twice");
        pve.stop(&at, Halt::Graceful(Duration::from_secs(30)))
            .await
            .expect("stopped");
        pve.stop(&at, Halt::Now).await.expect("stopped twice");
        pve.start(&at).await.expect("started again");
        pve.destroy(&at).await.expect("destroyed, although it ran");
        pve.destroy(&at).await.expect("destroyed twice");
        assert_eq!(pve.inspect(&at).await.expect("a look"), None);
    }
    place.settle().await;
    assert!(place.world.guests().is_empty());
    assert_eq!(place.world.volumes(), before, "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_sent_with_its_checksum() {
    let place = place(|builder| builder).await;
    let pve = place.client();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.raw");
    let bytes = vec![7; 2 << 20];
    fs_err::write(&path, &bytes).expect("written");
    let digits: String = sha2::Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut image = ImageWanted {
        file: "x.raw".to_owned(),
        kind: GuestKind::Vm,
        host: "pve1".to_owned(),
        storage: "local".to_owned(),
        source: ImageSource::File(path),
        checksum: Some(format!("sha256:{}", "0".repeat(64))),
    };
    let error = pve
        .ensure_image(&image)
        .await
        .expect_err("another checksum");
    assert_eq!(error.class, Class::Refused);
    assert!(!error.log.is_empty(), "{error:?}");
    image.checksum = Some(format!("sha256:{digits}"));
    pve.ensure_image(&image).await.expect("sent");
    assert!(pve.has_image(&image).await.expect("a look"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_copies_at_once_make_fifty_guests() {
    let place = with_template().await;
    let pve = Arc::new(place.client());
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
    place.settle().await;
    assert_eq!(vmids.len(), 50);
    assert_eq!(place.world.guests().len(), 51);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_guests_on_twenty_hosts_are_a_few_requests() {
    let place = fleet(20, 10_000).await;
    let pve = place.client_with(Limits::default());
    let observed = pve.observe().await.expect("a look");
    assert_eq!((observed.guests.len(), observed.hosts.len()), (10_000, 20));
    assert!(pve.requests() <= 5, "{}", pve.requests());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checks_pass_with_the_smallest_role_and_name_what_is_missing() {
    let wanted = Wanted {
        hosts: vec!["pve1".to_owned()],
        abilities: abilities(),
        storages: vec![StorageWanted {
            host: "pve1".to_owned(),
            storage: "local".to_owned(),
            content: ["images", "import", "iso", "vztmpl", "rootdir"]
                .map(str::to_owned)
                .to_vec(),
            bytes: 1 << 30,
        }],
        images: vec![FileWanted {
            host: "pve1".to_owned(),
            storage: "local".to_owned(),
            content: "import".to_owned(),
            file: "debian-12.qcow2".to_owned(),
        }],
        site: SiteWanted {
            gateway: "192.0.2.1".parse().ok(),
            dns: vec!["192.0.2.1".parse().expect("an address")],
            domain: Some("home.arpa".to_owned()),
            ssh_keys: 1,
            fixed_addresses: true,
        },
        ..Wanted::default()
    };
    let good = place(|builder| builder).await;
    let facts = good.client().facts(&wanted).await;
    let findings = preflight::check(&facts, &wanted);
    let bad: Vec<_> = findings
        .iter()
        .filter(|finding| finding.severity > Severity::Unknown)
        .collect();
    assert!(bad.is_empty(), "{bad:?}");

    let poor = place_of(|builder| builder.separated_token(support::TOKEN)).await;
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

type Step<'a> = Pin<Box<dyn Future<Output = Result<(), PortError>> + Send + 'a>>;
type Operation = for<'a> fn(&'a Pve, &'a NewGuest, &'a GuestRef) -> Step<'a>;

fn create<'a>(pve: &'a Pve, guest: &'a NewGuest, _: &'a GuestRef) -> Step<'a> {
    Box::pin(async { pve.create(guest).await.map(|_| ()) })
}

fn start<'a>(pve: &'a Pve, _: &'a NewGuest, at: &'a GuestRef) -> Step<'a> {
    Box::pin(pve.start(at))
}

fn stop<'a>(pve: &'a Pve, _: &'a NewGuest, at: &'a GuestRef) -> Step<'a> {
    Box::pin(pve.stop(at, Halt::Now))
}

fn destroy<'a>(pve: &'a Pve, _: &'a NewGuest, at: &'a GuestRef) -> Step<'a> {
    Box::pin(pve.destroy(at))
}

/// Runs each operation with a fault at its n-th call, until it has fewer calls than that.
async fn life(kind: FaultKind, guest: NewGuest, clone: bool) {
    let operations: [(&str, Operation); 4] = [
        ("create", create),
        ("start", start),
        ("stop", stop),
        ("destroy", destroy),
    ];
    let place = if clone {
        with_template().await
    } else {
        place(|builder| builder).await
    };
    let sources = usize::from(clone);
    for nth in 1..=60 {
        let pve = place.client();
        let mut calls = 0;
        let mut at = GuestRef {
            uuid: guest.uuid.clone(),
            kind: guest.kind,
            vmid: 0,
            host: guest.host.clone(),
        };
        for (name, operation) in operations {
            let before = pve.requests();
            place
                .world
                .add_fault(Fault::new(Call::nth(nth), kind.clone()));
            let mut attempts = 0;
            while let Err(error) = operation(&pve, &guest, &at).await {
                attempts += 1;
                let again = matches!(
                    error.class,
                    Class::Unreachable { .. } | Class::Broken | Class::Busy
                );
                assert!(
                    again && attempts < 5,
                    "{kind:?} at call {nth} of {name}: {error:?}"
                );
            }
            place.world.clear_faults();
            calls = calls.max(pve.requests() - before);
            place.settle().await;
            let left = place.world.guests().len() - sources;
            assert_eq!(
                left,
                usize::from(name != "destroy"),
                "{kind:?} at call {nth} of {name}"
            );
            if name == "create" {
                at = pve.create(&guest).await.expect("it is there");
            }
        }
        let seeds = place
            .world
            .volumes()
            .iter()
            .filter(|(_, volume)| volume.contains(":iso/"))
            .count();
        assert_eq!(
            seeds,
            0,
            "{kind:?} at call {nth} of {} left a seed: {:?}",
            guest.name,
            place.world.volumes()
        );
        if nth > calls {
            return;
        }
    }
}

macro_rules! lives {
    ($($name:ident = $kind:expr, $guests:ident;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $guests($kind).await;
        })*
    };
}

async fn vm(kind: FaultKind) {
    life(kind, support::vm(1), false).await;
}

async fn all(kind: FaultKind) {
    life(kind.clone(), support::vm(1), false).await;
    life(kind.clone(), support::ct(2), false).await;
    life(kind, support::clone_of(9000, 3), true).await;
}

// Those that leave open what happened are tried on everything, the others on one kind of guest.
lives! {
    lives_survive_cuts_before = FaultKind::ResetBefore, vm;
    lives_survive_cuts_after = FaultKind::ResetAfter, all;
    lives_survive_repetition = FaultKind::RepeatedAnswer, all;
    lives_survive_the_proxy = FaultKind::Status(596), vm;
    lives_survive_garbage = FaultKind::Garbage, all;
    lives_survive_half_answers = FaultKind::Truncated, vm;
    lives_survive_slowness = FaultKind::Slow(20.0), vm;
    lives_survive_old_lists = FaultKind::StaleList(15.0), all;
}
