//! Guests that are incomplete because their host crashed while they were created.

mod support;

use std::time::Duration;

use homestak_engine::ports::{ErrorClass, GuestRef, NewGuest, PortError, Provider as _};
use homestak_providers::pve::vmid::choose;
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveLimits, PveSettings};
use homestak_sim::{Kind, World};
use support::simulated::{SimulatedHost, simulated_host};

/// A reference to a guest without an id.
fn unlocated(guest: &NewGuest) -> GuestRef {
    GuestRef {
        uuid: guest.uuid.clone(),
        kind: guest.kind,
        vmid: None,
        host: guest.host.clone(),
    }
}

fn locked(world: &World) -> Vec<(u32, String)> {
    let guests = world.guests().into_iter();
    guests
        .filter_map(|guest| Some((guest.vmid, guest.config.get("lock")?.clone())))
        .collect()
}

/// Crashes the host while a guest is being created; returns the guest's id.
async fn crash_during_create(sim: &SimulatedHost, guest: &NewGuest) -> u32 {
    // The seed is uploaded in seconds; the disk takes days, so the crash always interrupts it.
    sim.world.set_copy_speed(10_000);
    let pve = sim.client();
    let crash = async {
        while locked(&sim.world).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        sim.world.crash("pve1");
    };
    // Cancel safety: the driver crashes with the host, which is tested here.
    tokio::select! {
        result = pve.create(guest) => panic!("it ended: {result:?}"),
        () = crash => {}
    }
    sim.wait_until_idle().await;
    sim.world.set_copy_speed(2_600_000_000);
    let left = locked(&sim.world);
    assert_eq!(left.len(), 1, "{left:?}");
    left[0].0
}

/// Limits that are short enough for a test.
fn limits() -> PveLimits {
    PveLimits {
        answer: Duration::from_millis(1500),
        grace: Duration::from_secs(10),
        upload_stall: Duration::from_secs(3600),
        task_stall: Duration::from_secs(3600),
        lock: Duration::from_secs(300),
        settle: Duration::from_secs(300),
        ..PveLimits::default()
    }
}

/// Checks an error with a token that cannot see tasks of other users.
fn check(error: &PortError, vmid: u32, lock: &str, tool: &str) {
    assert_eq!(error.class, ErrorClass::Busy, "{error:?}");
    assert!(error.detail.contains("visible to this token"), "{error:?}");
    check_hint(error, vmid, lock, tool);
}

fn check_hint(error: &PortError, vmid: u32, lock: &str, tool: &str) {
    assert!(error.hint.contains("--source active"), "{error:?}");
    assert!(
        error.detail.contains(&vmid.to_string()) && error.detail.contains(&format!("`{lock}`")),
        "{error:?}"
    );
    for command in ["unlock", "destroy"] {
        let command = format!("`{tool} {command} {vmid}");
        assert!(error.hint.contains(&command), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incomplete_vm_is_reported_and_not_changed() {
    let sim = simulated_host(|builder| builder).await;
    let guest = support::vm(1);
    let vmid = crash_during_create(&sim, &guest).await;
    let before = sim.world.guests();
    let pve = sim.client_with(limits());
    check(
        &pve.create(&guest).await.expect_err("half-made"),
        vmid,
        "create",
        "qm",
    );
    check(
        &pve.destroy(&unlocated(&guest))
            .await
            .expect_err("half-made"),
        vmid,
        "create",
        "qm",
    );
    let seen = GuestRef {
        vmid: Some(vmid.into()),
        ..unlocated(&guest)
    };
    check(
        &pve.start(&seen).await.expect_err("half-made"),
        vmid,
        "create",
        "qm",
    );
    assert_eq!(sim.world.guests(), before, "nothing was touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_manual_unlock_the_guest_gets_another_id() {
    let sim = simulated_host(|builder| builder).await;
    let guest = support::vm(1);
    let vmid = crash_during_create(&sim, &guest).await;
    let pve = sim.client_with(limits());
    pve.create(&guest).await.expect_err("half-made");
    // As after `qm unlock` and a rename.
    let config = vec![("name".to_owned(), "left over".to_owned())];
    sim.world.put_guest("pve1", Kind::Qemu, vmid, config);
    let second = pve.create(&guest).await.expect("beside it");
    assert_ne!(
        second.vmid,
        Some(vmid.into()),
        "what is not ours is not touched"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incomplete_guest_with_our_tag_is_reported() {
    let sim = simulated_host(|builder| builder).await;
    let guest = support::ct(1);
    let vmid = choose(&guest.uuid, &(10_000..=89_999), &[].into()).expect("an id");
    let site = support::site();
    let metadata = support::metadata(&guest.uuid, &site);
    let tags: Vec<String> = metadata.tags(vmid).into_iter().collect();
    let config = [
        ("lock", "create".to_owned()),
        ("hostname", guest.name.clone()),
        ("tags", tags.join(";")),
        ("description", metadata.notes()),
    ];
    let config = config.map(|(key, value)| (key.to_owned(), value)).to_vec();
    sim.world.put_guest("pve1", Kind::Lxc, vmid, config);
    let pve = sim.client_with(limits());
    check(
        &pve.create(&guest).await.expect_err("half-made"),
        vmid,
        "create",
        "pct",
    );
    check(
        &pve.destroy(&unlocated(&guest))
            .await
            .expect_err("half-made"),
        vmid,
        "create",
        "pct",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destroying_waits_for_a_guest_being_created() {
    let sim = simulated_host(|builder| builder).await;
    sim.world.set_copy_speed(40_000_000);
    let guest = support::vm(1);
    let pve = sim.client();
    let begun = async {
        while locked(&sim.world).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // Cancel safety: the driver crashes, and the host continues.
    tokio::select! {
        result = pve.create(&guest) => panic!("it ended: {result:?}"),
        () = begun => {}
    }
    let successor = sim.client();
    // Without an id nothing is removed: the caller must prove the identity.
    let error = successor.destroy(&unlocated(&guest)).await;
    assert_eq!(error.expect_err("it is there now").class, ErrorClass::Busy);
    let seen = successor
        .inspect(&unlocated(&guest))
        .await
        .expect("observed");
    let seen = seen.expect("a guest");
    assert_eq!(seen.run.as_deref(), Some("run1"));
    let at = GuestRef {
        vmid: Some(seen.vmid),
        ..unlocated(&guest)
    };
    successor.destroy(&at).await.expect("destroyed");
    sim.wait_until_idle().await;
    assert_eq!(sim.world.guests().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_sees_all_tasks_reports_an_incomplete_guest_immediately() {
    let sim = simulated_host(|mut builder| {
        builder = builder.role("HostAudit", &["Sys.Audit"]);
        for subject in ["homestak@pve", "homestak@pve!driver"] {
            builder = builder.grant(subject, "/nodes/pve1", "HostAudit");
        }
        builder
    })
    .await;
    let guest = support::vm(1);
    let vmid = crash_during_create(&sim, &guest).await;
    let error = sim.client().destroy(&unlocated(&guest)).await;
    let error = error.expect_err("half-made");
    assert_eq!(error.class, ErrorClass::Refused, "{error:?}");
    assert!(
        error.detail.contains("no running task is creating it"),
        "{error:?}"
    );
    check_hint(&error, vmid, "create", "qm");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_another_user_creates_is_busy() {
    const ROOT: &str = "root@pam!other=00000000-0000-4000-8000-000000000009";
    let sim = simulated_host(|builder| builder.token(ROOT)).await;
    sim.world.set_copy_speed(10_000);
    let guest = support::vm(1);
    let endpoint = Endpoint {
        url: sim.url.clone(),
        trust: sim.trust.clone(),
    };
    let token = Credential::Token(ApiToken::parse(ROOT).expect("a token"));
    let mut settings = PveSettings::new(endpoint, token);
    settings.limits = limits();
    let other = Pve::new(settings, sim.clock.clone()).expect("a client");
    let begun = async {
        while locked(&sim.world).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // Cancel safety: the other driver stops, and its task continues.
    tokio::select! {
        result = other.create(&guest) => panic!("it ended: {result:?}"),
        () = begun => {}
    }
    let error = sim.client_with(limits()).destroy(&unlocated(&guest)).await;
    let error = error.expect_err("it is being created");
    assert_eq!(error.class, ErrorClass::Busy, "{error:?}");
    assert!(!error.detail.contains("any more"), "{error:?}");
}
