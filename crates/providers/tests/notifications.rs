//! Waits and warnings that the client reports to its listener.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use homestak_engine::ports::{
    Gib, GuestKind, GuestUuid, ImageRequest, ImageSource, ProgressListener, Provider as _,
    ProviderEvent,
};
use homestak_providers::pve::PveLimits;
use homestak_sim::{Call, Fault, FaultKind, Kind};
use support::simulated::{SimulatedHost, simulated_host};

#[derive(Default)]
struct RecordingListener(Mutex<Vec<(Option<GuestUuid>, ProviderEvent)>>);

impl ProgressListener for RecordingListener {
    fn report(&self, guest: Option<&GuestUuid>, remark: ProviderEvent) {
        let mut recorded = self.0.lock().expect("ears");
        recorded.push((guest.cloned(), remark));
    }
}

impl RecordingListener {
    fn waits(&self) -> Vec<(Option<GuestUuid>, String)> {
        let recorded = self.0.lock().expect("ears");
        let waits = recorded.iter().filter_map(|(guest, remark)| match remark {
            ProviderEvent::Waiting(text) => Some((guest.clone(), text.clone())),
            ProviderEvent::Warning(_)
            | ProviderEvent::Doing(_)
            | ProviderEvent::Began
            | ProviderEvent::Image { .. } => None,
        });
        waits.collect()
    }

    fn warnings(&self) -> Vec<(Option<GuestUuid>, String)> {
        let recorded = self.0.lock().expect("ears");
        let warnings = recorded.iter().filter_map(|(guest, remark)| match remark {
            ProviderEvent::Warning(text) => Some((guest.clone(), text.clone())),
            ProviderEvent::Waiting(_)
            | ProviderEvent::Doing(_)
            | ProviderEvent::Began
            | ProviderEvent::Image { .. } => None,
        });
        warnings.collect()
    }
}

fn client_with_listener(
    sim: &SimulatedHost,
) -> (homestak_providers::pve::Pve, Arc<RecordingListener>) {
    let listener = Arc::new(RecordingListener::default());
    (sim.client().listening(listener.clone()), listener)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_task_is_reported_once_with_its_guest() {
    let sim = simulated_host(|builder| builder).await;
    sim.world.set_copy_speed(50_000_000);
    let (pve, listener) = client_with_listener(&sim);
    pve.create(&support::vm(1)).await.expect("a guest");
    let waits = listener.waits();
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
    assert!(listener.warnings().is_empty(), "{:?}", listener.warnings());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warnings_of_a_task_are_reported() {
    let sim = simulated_host(|builder| builder).await;
    let (pve, listener) = client_with_listener(&sim);
    let at = pve.create(&support::ct(1)).await.expect("a container");
    let mut config = sim.world.guests().remove(0).config;
    config.remove("features");
    let config = config.into_iter().collect();
    sim.world.put_guest(
        "pve1",
        Kind::Lxc,
        at.vmid.and_then(|id| id.number()).expect("an id"),
        config,
    );
    pve.start(&at).await.expect("started");
    assert_eq!(
        listener.warnings(),
        [(
            Some(support::uuid(1)),
            "task vzstart on pve1: WARN: Systemd 252 detected. You may need to enable nesting."
                .to_owned()
        )]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_lock_is_reported() {
    let sim = simulated_host(|builder| builder).await;
    let (pve, listener) = client_with_listener(&sim);
    let at = pve.create(&support::vm(1)).await.expect("a guest");
    let mut facts = sim.world.guests().remove(0);
    let free: Vec<(String, String)> = facts.config.clone().into_iter().collect();
    facts.config.insert("lock".to_owned(), "backup".to_owned());
    let held = facts.config.into_iter().collect();
    sim.world.put_guest(
        "pve1",
        Kind::Qemu,
        at.vmid.and_then(|id| id.number()).expect("an id"),
        held,
    );
    let release = async {
        while !listener
            .waits()
            .iter()
            .any(|(_, text)| text.contains("backup"))
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        sim.world.put_guest(
            "pve1",
            Kind::Qemu,
            at.vmid.and_then(|id| id.number()).expect("an id"),
            free,
        );
    };
    let (result, ()) = tokio::join!(pve.grow_disk(&at, Gib(9)), release);
    result.expect("grown");
    let expected = (
        Some(support::uuid(1)),
        "lock \"backup\" held by no visible task".to_owned(),
    );
    assert!(
        listener.waits().contains(&expected),
        "{:?}",
        listener.waits()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_storage_is_reported() {
    let sim = simulated_host(|builder| builder).await;
    sim.world.set_copy_speed(100_000_000);
    let listener = Arc::new(RecordingListener::default());
    let limits = PveLimits {
        per_storage: 1,
        ..PveLimits::default()
    };
    let pve = sim.client_with(limits).listening(listener.clone());
    let (one, two) = (support::vm(1), support::vm(2));
    let (first, second) = tokio::join!(pve.create(&one), pve.create(&two));
    first.expect("a copy");
    second.expect("a copy");
    let turn = "other changes on storage local of pve1";
    assert!(
        listener.waits().iter().any(|(_, text)| text == turn),
        "{:?}",
        listener.waits()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_are_reported_without_their_url() {
    let sim = simulated_host(|builder| builder).await;
    let (pve, listener) = client_with_listener(&sim);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.raw");
    fs_err::write(&path, vec![7; 1 << 20]).expect("written");
    let sent = ImageRequest {
        file: "x.raw".to_owned(),
        kind: GuestKind::Vm,
        host: "pve1".to_owned(),
        storage: Some("local".to_owned()),
        source: ImageSource::File(path),
        checksum: None,
    };
    pve.ensure_image(&sent).await.expect("sent");
    let fetched = ImageRequest {
        file: "y.raw".to_owned(),
        source: ImageSource::Url("https://user:hush@example.org/y.raw".to_owned()),
        ..sent
    };
    let lost = Fault::new(Call::times(1).path("/download-url"), FaultKind::ResetAfter);
    sim.world.add_fault(lost);
    // Whether the download succeeds is not tested here.
    let _ = pve.ensure_image(&fetched).await;
    let waits = listener.waits();
    for expected in [
        "upload of `x.raw` into local on pve1",
        "download of `y.raw` into local on pve1",
    ] {
        assert!(
            waits.contains(&(None, expected.to_owned())),
            "{expected}: {waits:?}"
        );
    }
    assert!(!format!("{waits:?}").contains("hush"), "{waits:?}");
    // An unverified download causes a warning.
    let unverified = "`y.raw`: the image has no checksum: it is not verified";
    assert_eq!(listener.warnings(), [(None, unverified.to_owned())]);
}
