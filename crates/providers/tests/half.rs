//! Guests that were left half-made by a host that lost power.
//!
//! In: a World whose host crashed in the middle of a task. Out: an error that names lock and
//! command, and a world in which nothing was touched or doubled.
//! Never: a lock broken.

mod support;

use std::time::Duration;

use homestak_engine::ports::{Class, GuestRef, NewGuest, PortError, Provider as _};
use homestak_providers::pve::vmid::choose;
use homestak_sim::{Kind, World};
use support::place::{Place, place};

/// Where a guest is looked for that was never seen.
fn nowhere(guest: &NewGuest) -> GuestRef {
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

/// Crashes the host while a guest is being made; returns the guest's id.
async fn crash_while_making(place: &Place, guest: &NewGuest) -> u32 {
    // The seed goes up in seconds; the disk takes days, however late the crash is.
    place.world.set_copy_speed(10_000);
    let pve = place.client();
    let crash = async {
        while locked(&place.world).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        place.world.crash("pve1");
    };
    // Cancel safety: the driver dies with the host; that is what is tested.
    tokio::select! {
        result = pve.create(guest) => panic!("it ended: {result:?}"),
        () = crash => {}
    }
    place.settle().await;
    place.world.set_copy_speed(2_600_000_000);
    let left = locked(&place.world);
    assert_eq!(left.len(), 1, "{left:?}");
    left[0].0
}

fn check(error: &PortError, vmid: u32, lock: &str, tool: &str) {
    assert_eq!(error.class, Class::Refused, "{error:?}");
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
async fn a_vm_whose_host_crashed_is_named_by_create_destroy_and_start_and_left_alone() {
    let place = place(|builder| builder).await;
    let guest = support::vm(1);
    let vmid = crash_while_making(&place, &guest).await;
    let before = place.world.guests();
    let pve = place.client();
    check(
        &pve.create(&guest).await.expect_err("half-made"),
        vmid,
        "create",
        "qm",
    );
    check(
        &pve.destroy(&nowhere(&guest)).await.expect_err("half-made"),
        vmid,
        "create",
        "qm",
    );
    let seen = GuestRef {
        vmid: Some(vmid),
        ..nowhere(&guest)
    };
    check(
        &pve.start(&seen).await.expect_err("half-made"),
        vmid,
        "create",
        "qm",
    );
    assert_eq!(place.world.guests(), before, "nothing was touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_person_unlocked_it_the_same_call_makes_the_guest_beside_it() {
    let place = place(|builder| builder).await;
    let guest = support::vm(1);
    let vmid = crash_while_making(&place, &guest).await;
    let pve = place.client();
    pve.create(&guest).await.expect_err("half-made");
    // As `qm unlock` and a new name leave it.
    let config = vec![("name".to_owned(), "left over".to_owned())];
    place.world.put_guest("pve1", Kind::Qemu, vmid, config);
    let second = pve.create(&guest).await.expect("beside it");
    assert_ne!(second.vmid, Some(vmid), "what is not ours is not touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_of_ours_that_carries_its_tag_is_named_too() {
    let place = place(|builder| builder).await;
    let guest = support::ct(1);
    let vmid = choose(&guest.uuid, &(10_000..=89_999), &[].into()).expect("an id");
    let site = support::site();
    let marks = support::marks(&guest.uuid, &site);
    let tags: Vec<String> = marks.tags(vmid).into_iter().collect();
    let config = [
        ("lock", "create".to_owned()),
        ("hostname", guest.name.clone()),
        ("tags", tags.join(";")),
        ("description", marks.notes()),
    ];
    let config = config.map(|(key, value)| (key.to_owned(), value)).to_vec();
    place.world.put_guest("pve1", Kind::Lxc, vmid, config);
    let pve = place.client();
    check(
        &pve.create(&guest).await.expect_err("half-made"),
        vmid,
        "create",
        "pct",
    );
    check(
        &pve.destroy(&nowhere(&guest)).await.expect_err("half-made"),
        vmid,
        "create",
        "pct",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destroying_waits_for_a_guest_that_is_still_being_made_and_names_it() {
    let place = place(|builder| builder).await;
    place.world.set_copy_speed(40_000_000);
    let guest = support::vm(1);
    let pve = place.client();
    let begun = async {
        while locked(&place.world).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // Cancel safety: the driver dies, and the host goes on.
    tokio::select! {
        result = pve.create(&guest) => panic!("it ended: {result:?}"),
        () = begun => {}
    }
    let successor = place.client();
    // Without an id nothing is removed: whose it is, is the caller's to prove.
    let error = successor.destroy(&nowhere(&guest)).await;
    assert_eq!(error.expect_err("it is there now").class, Class::Busy);
    let seen = successor.inspect(&nowhere(&guest)).await.expect("a look");
    let seen = seen.expect("a guest");
    assert_eq!(seen.run.as_deref(), Some("run1"));
    let at = GuestRef {
        vmid: Some(seen.vmid),
        ..nowhere(&guest)
    };
    successor.destroy(&at).await.expect("destroyed");
    place.settle().await;
    assert_eq!(place.world.guests().len(), 0);
}
