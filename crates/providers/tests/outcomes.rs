//! The result of a change is read from the guest, not only from the task.

mod support;

use std::time::Duration;

use homestak_engine::ports::{
    ErrorClass, Gib, GuestKind, ImageRequest, ImageSource, Mib, PowerState, Provider as _, StopMode,
};
use homestak_providers::pve::PveLimits;
use homestak_sim::{Call, Fault, FaultKind, Kind, Timing};
use support::simulated::simulated_host;

fn dies(method: &str, path: &str) -> Fault {
    let call = Call::times(1).method(method).path(path);
    Fault::new(call, FaultKind::TaskDies)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_crashed_after_its_work_is_not_a_failure() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client();
    for (new, kind) in [(support::ct(1), "lxc"), (support::vm(2), "qemu")] {
        let collection = format!("/nodes/pve1/{kind}");
        for (method, path) in [
            ("POST", collection.clone()),
            ("PUT", format!("{collection}/*/resize")),
            ("POST", format!("{collection}/*/status/start")),
            ("POST", format!("{collection}/*/config")),
            ("POST", format!("{collection}/*/status/stop")),
            ("DELETE", format!("{collection}/")),
        ] {
            sim.world.add_fault(dies(method, &path));
        }
        let guest = pve.create(&new).await.expect("created");
        pve.start(&guest).await.expect("started");
        pve.discard_seed(&guest).await.expect("ejected");
        pve.stop(&guest, StopMode::Now).await.expect("stopped");
        pve.destroy(&guest).await.expect("removed");
        assert!(sim.world.guests().is_empty());
        sim.world.clear_faults();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_whose_create_task_was_killed_is_incomplete() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client_with(PveLimits {
        grace: Duration::from_secs(10),
        lock: Duration::from_secs(300),
        settle: Duration::from_secs(300),
        ..PveLimits::default()
    });
    let guest = support::ct(1);
    let killer = async {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let tasks = sim.world.running_tasks();
            if let Some(upid) = tasks.iter().find(|upid| upid.contains(":vzcreate:")) {
                sim.world.kill_task(upid);
                return;
            }
        }
    };
    let (created, ()) = tokio::join!(pve.create(&guest), killer);
    let error = created.expect_err("it is half-made");
    let vmid = sim.world.guests()[0].vmid;
    // Its token cannot see tasks of other users, which may be creating it.
    assert_eq!(error.class, ErrorClass::Busy, "{error:?}");
    assert!(error.detail.contains("`create`"), "{error:?}");
    assert!(
        error.hint.contains(&format!("`pct unlock {vmid}`")),
        "{error:?}"
    );
    assert!(error.hint.contains("as root on pve1"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_seed_is_never_in_the_boot_order() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client();
    for nth in 1..=8 {
        let guest = pve.create(&support::vm(nth)).await.expect("created");
        let vmid = guest.vmid.and_then(|id| id.number()).expect("an id");
        let boot = |what: &str| {
            let guests = sim.world.guests();
            let found = guests.iter().find(|guest| guest.vmid == vmid);
            let order = found.expect("the guest").config["boot"].clone();
            assert_eq!(order, "order=scsi0", "{what} {nth}");
        };
        boot("created");
        pve.discard_seed(&guest).await.expect("ejected");
        boot("ejected");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_whose_tags_were_removed_is_reported_and_not_changed() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client();
    for mut new in [support::ct(1), support::vm(2)] {
        let guest = pve.create(&new).await.expect("created");
        let vmid = guest.vmid.and_then(|id| id.number()).expect("an id");
        sim.world
            .change_guest(vmid, &[("delete", "tags")])
            .expect("changed");
        let before = sim.world.guests();
        new.vmid = Some(vmid.into());
        let error = pve.create(&new).await.expect_err("it was given up");
        assert_eq!(error.class, ErrorClass::Refused, "{error:?}");
        assert!(error.detail.contains("its tags were removed"), "{error:?}");
        assert!(
            error.hint.contains(&format!("homestak-id-{}", new.uuid)),
            "{error:?}"
        );
        assert_eq!(sim.world.guests(), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_guest_reports_its_current_sizes() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client();
    let guest = pve.create(&support::vm(1)).await.expect("created");
    pve.start(&guest).await.expect("started");
    let vmid = guest.vmid.and_then(|id| id.number()).expect("an id");
    sim.world
        .change_guest(vmid, &[("memory", "2048"), ("cores", "4")])
        .expect("changed");
    let seen = pve.inspect(&guest).await.expect("seen").expect("there");
    assert_eq!((seen.cores, seen.memory), (Some(2), Some(Mib(1024).into())));
    pve.stop(&guest, StopMode::Now).await.expect("stopped");
    let seen = pve.inspect(&guest).await.expect("seen").expect("there");
    assert_eq!((seen.cores, seen.memory), (Some(4), Some(Mib(2048).into())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_that_was_not_resized_is_an_error() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client();
    let guest = pve.create(&support::ct(1)).await.expect("created");
    let vmid = guest.vmid.and_then(|id| id.number()).expect("an id");
    sim.world.ignore_filesystem_resizes(vmid);
    let error = pve.grow_disk(&guest, Gib(20)).await.expect_err("not grown");
    assert!(
        error.detail.contains("its file system was not"),
        "{error:?}"
    );
    assert!(error.hint.contains("resize2fs"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_being_created_is_not_confused_with_the_previous_one() {
    // One second of real time, so that the list is outdated even on a slow machine.
    let sweep = Duration::from_secs(u64::from(support::simulated::FACTOR));
    let timing = Timing {
        sweep,
        ..Timing::default()
    };
    let sim = simulated_host(|builder| builder.timing(timing)).await;
    let pve = sim.client();
    let mut new = support::ct(1);
    new.vmid = Some(7000.into());
    let old = vec![
        ("hostname".to_owned(), "older".to_owned()),
        ("memory".to_owned(), "9999".to_owned()),
        ("arch".to_owned(), "amd64".to_owned()),
    ];
    sim.world.put_guest("pve1", Kind::Lxc, 7000, old);
    sim.world.start_guest(7000).expect("started");
    sim.wait_until_idle().await;
    // The list has it as running.
    while pve.observe().await.expect("observed").guests[0].power != PowerState::Running {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    sim.world.delete_guest(7000).expect("deleted");
    let watch = async {
        loop {
            let seen = pve.observe().await.expect("observed");
            let Some(row) = seen.guests.iter().find(|guest| guest.vmid == 7000.into()) else {
                continue;
            };
            if row.lock.is_none() {
                return;
            }
            assert_ne!(row.power, PowerState::Running, "{row:?}");
            assert_eq!((row.name.as_str(), row.memory), ("", None), "{row:?}");
        }
    };
    let (created, ()) = tokio::join!(pve.create(&new), watch);
    let guest = created.expect("created");
    pve.start(&guest).await.expect("started");
    assert!(sim.world.is_running(7000), "whatever the list said");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_download_continues_on_the_host() {
    let sim = simulated_host(|builder| builder).await;
    let url = "https://images.example/a.qcow2";
    sim.world.offer_download(url, 2_000_000_000, "");
    let image = ImageRequest {
        file: "a.qcow2".to_owned(),
        kind: GuestKind::Vm,
        host: "pve1".to_owned(),
        storage: Some("local".to_owned()),
        source: ImageSource::Url(url.to_owned()),
        checksum: None,
    };
    let begun = async {
        let fetches = |upid: &String| upid.contains(":download:");
        while !sim.world.running_tasks().iter().any(fetches) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // Cancel safety: interrupting the driver is tested here.
    tokio::select! {
        result = async { sim.client().ensure_image(&image).await } => panic!("it ended: {result:?}"),
        () = begun => {}
    }
    let pve = sim.client();
    pve.ensure_image(&image).await.expect("fetched");
    assert!(pve.has_image(&image).await.expect("checked"));
    let calls = sim.world.calls();
    assert_eq!(
        calls["POST /nodes/pve1/storage/local/download-url"], 1,
        "{calls:?}"
    );
}
