//! What the client says while it works, heard over the simulator.
//!
//! In: operations that wait or warn. Out: remarks, with the guest they are about.
//! Never: a remark that changes what is done.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use homestak_engine::ports::{
    Gib, GuestKind, GuestUuid, ImageSource, ImageWanted, Listener, Provider as _, Remark,
};
use homestak_providers::pve::Limits;
use homestak_sim::{Call, Fault, FaultKind, Kind};
use support::place::{Place, place};

#[derive(Default)]
struct Ears(Mutex<Vec<(Option<GuestUuid>, Remark)>>);

impl Listener for Ears {
    fn hear(&self, guest: Option<&GuestUuid>, remark: Remark) {
        let mut heard = self.0.lock().expect("ears");
        heard.push((guest.cloned(), remark));
    }
}

impl Ears {
    fn waits(&self) -> Vec<(Option<GuestUuid>, String)> {
        let heard = self.0.lock().expect("ears");
        let waits = heard.iter().filter_map(|(guest, remark)| match remark {
            Remark::Waiting(text) => Some((guest.clone(), text.clone())),
            Remark::Warning(_) | Remark::Doing(_) | Remark::Began | Remark::Image { .. } => None,
        });
        waits.collect()
    }

    fn warnings(&self) -> Vec<(Option<GuestUuid>, String)> {
        let heard = self.0.lock().expect("ears");
        let warnings = heard.iter().filter_map(|(guest, remark)| match remark {
            Remark::Warning(text) => Some((guest.clone(), text.clone())),
            Remark::Waiting(_) | Remark::Doing(_) | Remark::Began | Remark::Image { .. } => None,
        });
        warnings.collect()
    }
}

fn listen(place: &Place) -> (homestak_providers::pve::Pve, Arc<Ears>) {
    let ears = Arc::new(Ears::default());
    (place.client().listening(ears.clone()), ears)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_waited_for_is_named_once_with_its_guest() {
    let place = place(|builder| builder).await;
    place.world.set_copy_speed(50_000_000);
    let (pve, ears) = listen(&place);
    pve.create(&support::vm(1)).await.expect("a guest");
    let waits = ears.waits();
    let named: Vec<_> = waits
        .iter()
        .filter(|(_, text)| text == "task qmcreate on pve1")
        .collect();
    assert_eq!(named.len(), 1, "{waits:?}");
    assert!(
        waits
            .iter()
            .all(|(guest, _)| *guest == Some(support::uuid(1))),
        "{waits:?}"
    );
    assert!(ears.warnings().is_empty(), "{:?}", ears.warnings());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warnings_of_a_task_are_passed_on_with_their_lines() {
    let place = place(|builder| builder).await;
    let (pve, ears) = listen(&place);
    let at = pve.create(&support::ct(1)).await.expect("a container");
    let mut config = place.world.guests().remove(0).config;
    config.remove("features");
    let config = config.into_iter().collect();
    place.world.put_guest(
        "pve1",
        Kind::Lxc,
        at.vmid.and_then(|id| id.number()).expect("an id"),
        config,
    );
    pve.start(&at).await.expect("started");
    assert_eq!(
        ears.warnings(),
        [(
            Some(support::uuid(1)),
            "task vzstart on pve1: WARN: Systemd 252 detected. You may need to enable nesting."
                .to_owned()
        )]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_waited_for_is_named() {
    let place = place(|builder| builder).await;
    let (pve, ears) = listen(&place);
    let at = pve.create(&support::vm(1)).await.expect("a guest");
    let mut facts = place.world.guests().remove(0);
    let free: Vec<(String, String)> = facts.config.clone().into_iter().collect();
    facts.config.insert("lock".to_owned(), "backup".to_owned());
    let held = facts.config.into_iter().collect();
    place.world.put_guest(
        "pve1",
        Kind::Qemu,
        at.vmid.and_then(|id| id.number()).expect("an id"),
        held,
    );
    let release = async {
        while !ears.waits().iter().any(|(_, text)| text.contains("backup")) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        place.world.put_guest(
            "pve1",
            Kind::Qemu,
            at.vmid.and_then(|id| id.number()).expect("an id"),
            free,
        );
    };
    let (result, ()) = tokio::join!(pve.grow_disk(&at, Gib(9)), release);
    result.expect("grown");
    let said = (
        Some(support::uuid(1)),
        "lock \"backup\" held by a task we do not see, or by none".to_owned(),
    );
    assert!(ears.waits().contains(&said), "{:?}", ears.waits());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_is_waited_for_is_named() {
    let place = place(|builder| builder).await;
    place.world.set_copy_speed(100_000_000);
    let ears = Arc::new(Ears::default());
    let limits = Limits {
        per_storage: 1,
        ..Limits::default()
    };
    let pve = place.client_with(limits).listening(ears.clone());
    let (one, two) = (support::vm(1), support::vm(2));
    let (first, second) = tokio::join!(pve.create(&one), pve.create(&two));
    first.expect("a copy");
    second.expect("a copy");
    let turn = "a turn on storage local of pve1";
    assert!(
        ears.waits().iter().any(|(_, text)| text == turn),
        "{:?}",
        ears.waits()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_on_their_way_are_named_and_their_address_is_not() {
    let place = place(|builder| builder).await;
    let (pve, ears) = listen(&place);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.raw");
    fs_err::write(&path, vec![7; 1 << 20]).expect("written");
    let sent = ImageWanted {
        file: "x.raw".to_owned(),
        kind: GuestKind::Vm,
        host: "pve1".to_owned(),
        storage: Some("local".to_owned()),
        source: ImageSource::File(path),
        checksum: None,
    };
    pve.ensure_image(&sent).await.expect("sent");
    let fetched = ImageWanted {
        file: "y.raw".to_owned(),
        source: ImageSource::Url("https://user:hush@example.org/y.raw".to_owned()),
        ..sent
    };
    let lost = Fault::new(Call::times(1).path("/download-url"), FaultKind::ResetAfter);
    place.world.add_fault(lost);
    // Whether that address has anything is not what is tested.
    let _ = pve.ensure_image(&fetched).await;
    let waits = ears.waits();
    for said in [
        "upload of `x.raw` into local on pve1",
        "download of `y.raw` into local on pve1",
    ] {
        assert!(
            waits.contains(&(None, said.to_owned())),
            "{said}: {waits:?}"
        );
    }
    assert!(!format!("{waits:?}").contains("hush"), "{waits:?}");
    // What is fetched over the network and not verified is worth a warning.
    let unverified = "`y.raw`: the image has no checksum: it is not verified";
    assert_eq!(ears.warnings(), [(None, unverified.to_owned())]);
}
