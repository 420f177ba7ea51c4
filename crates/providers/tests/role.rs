//! The printed role is sufficient for all operations, and each privilege is required.
//!
//! The simulator checks every call as a real Proxmox VE does, with disks on one storage, images on
//! another, and a token that has exactly what the commands grant to it and to its user.

mod support;

use std::time::Duration;

use homestak_engine::ports::{
    Gib, GuestKind, GuestRef, ImageRequest, ImageSource, Mib, NewGuest, NewIdentity, PortError,
    Provider as _, StopMode,
};
use homestak_providers::pve::Pve;
use homestak_providers::pve::preflight::{
    self, FileRequirement, FindingSeverity, Requirements, SiteRequirements, StorageRequirement,
};
use homestak_providers::pve::role::{self, Abilities, Grant};
use support::simulated::{SimulatedHost, bare_simulated_host, granted};

const URL: &str = "https://example.org";

fn abilities() -> Abilities {
    Abilities {
        vms: true,
        containers: true,
        downloads: vec!["pve1".to_owned()],
        storages: vec!["disks".to_owned()],
        images: vec!["local".to_owned()],
    }
}

async fn simulated_host(grants: &[Grant]) -> SimulatedHost {
    let sim = bare_simulated_host(|builder| {
        let builder = builder.storage("disks").separated_token(support::TOKEN);
        granted(builder, grants)
    })
    .await;
    for file in ["fetched.qcow2", "fetched.tar.zst"] {
        sim.world
            .offer_download(&format!("{URL}/{file}"), 1 << 20, "");
    }
    sim
}

/// Runs the preflight checks for a manifest.
async fn checks(pve: &Pve) -> Result<(), String> {
    let storage = |storage: &str, content: &[&str]| StorageRequirement {
        host: "pve1".to_owned(),
        storage: storage.to_owned(),
        content: content.iter().map(|kind| (*kind).to_owned()).collect(),
        size: Gib(1).into(),
        largest: Gib(1).into(),
    };
    let wanted = Requirements {
        hosts: vec!["pve1".to_owned()],
        abilities: Abilities {
            downloads: Vec::new(),
            ..abilities()
        },
        storages: vec![
            storage("disks", &["images", "rootdir"]),
            storage("local", &["iso", "import", "vztmpl"]),
        ],
        images: vec![FileRequirement {
            host: "pve1".to_owned(),
            storage: "local".to_owned(),
            content: "import".to_owned(),
            file: "fetched.qcow2".to_owned(),
            source: Some(format!("{URL}/fetched.qcow2")),
        }],
        bridges: vec![("pve1".to_owned(), "vmbr0".to_owned())],
        site: Some(SiteRequirements {
            gateway: "192.0.2.1".parse().ok(),
            dns: vec!["192.0.2.1".parse().expect("an address")],
            domain: Some("home.arpa".to_owned()),
            ssh_keys: 1,
            fixed_addresses: true,
        }),
        ..Requirements::default()
    };
    let findings = preflight::check(&pve.facts(&wanted).await, &wanted);
    let bad: Vec<String> = findings
        .iter()
        .filter(|finding| finding.severity == FindingSeverity::Failure)
        .map(|finding| finding.detail.to_string())
        .collect();
    if bad.is_empty() {
        Ok(())
    } else {
        Err(bad.join("\n"))
    }
}

fn image(file: &str, kind: GuestKind) -> ImageRequest {
    ImageRequest {
        file: file.to_owned(),
        kind,
        host: "pve1".to_owned(),
        storage: Some("local".to_owned()),
        source: ImageSource::Url(format!("{URL}/{file}")),
        checksum: None,
    }
}

fn on_disks(mut guest: NewGuest) -> NewGuest {
    guest.storage = Some("disks".to_owned());
    guest
}

async fn address(pve: &Pve, sim: &SimulatedHost, guest: &GuestRef) -> Result<(), PortError> {
    while pve.address(guest).await?.address().is_none() {
        sim.clock.sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Runs all operations on guests and images.
async fn work(pve: &Pve, sim: &SimulatedHost) -> Result<(), PortError> {
    pve.capabilities().await?;
    let seen = pve.observe().await?;
    for storage in ["disks", "local"] {
        // Plans are refused for storages that are not listed.
        if !seen.storages.iter().any(|row| row.name == storage) {
            return Err(PortError::refused("plan", format!("no {storage}"), ""));
        }
    }
    for (file, kind) in [
        ("fetched.qcow2", GuestKind::Vm),
        ("fetched.tar.zst", GuestKind::Ct),
    ] {
        let image = image(file, kind);
        pve.ensure_image(&image).await?;
        assert!(pve.has_image(&image).await?);
    }
    for (nth, guest) in [support::vm(1), support::ct(2)].into_iter().enumerate() {
        let at = pve.create(&on_disks(guest)).await?;
        pve.start(&at).await?;
        address(pve, sim, &at).await?;
        pve.discard_seed(&at).await?;
        pve.grow_disk(&at, Gib(12)).await?;
        pve.stop(&at, StopMode::Graceful(Duration::from_secs(60)))
            .await?;
        pve.reshape(&at, 1, Mib(512)).await?;
        let to = NewIdentity {
            uuid: support::uuid(40 + u32::try_from(nth).expect("small")),
            site: support::site(),
            manifest: "other".to_owned(),
        };
        pve.reidentify(&at, &to).await?;
        let renamed = GuestRef {
            uuid: to.uuid,
            ..at
        };
        let seen = pve.inspect(&renamed).await?;
        assert!(seen.is_some(), "it is there under its new identity");
        pve.start(&renamed).await?;
        pve.stop(&renamed, StopMode::Now).await?;
        pve.destroy(&renamed).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_printed_role_is_sufficient() {
    let sim = simulated_host(&role::grants(9, &abilities())).await;
    let pve = sim.client();
    checks(&pve).await.expect("the checks pass");
    work(&pve, &sim).await.expect("all of it is done");
    sim.wait_until_idle().await;
    assert!(sim.world.guests().is_empty());
    let left: Vec<String> = sim
        .world
        .volumes()
        .into_iter()
        .map(|(_, name)| name)
        .collect();
    let files = ["debian-12", "fetched"];
    let known = |name: &String| files.iter().any(|file| name.contains(file));
    assert!(
        left.iter().all(known),
        "no disk and no seed is left: {left:?}"
    );
    assert_eq!(left.len(), 4, "the images stay: {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_privilege_of_the_printed_role_is_required() {
    let all = role::grants(9, &abilities());
    let mut tried = 0;
    for (at, grant) in all.iter().enumerate() {
        for privilege in &grant.privileges {
            let mut fewer = all.clone();
            fewer[at].privileges.remove(privilege);
            let sim = simulated_host(&fewer).await;
            let pve = sim.client();
            let error = checks(&pve).await.expect_err(privilege);
            assert!(
                error.contains(privilege) && error.contains(&grant.path),
                "{privilege} on {}: {error}",
                grant.path
            );
            let Err(error) = work(&pve, &sim).await else {
                panic!("{privilege} on {} is not needed", grant.path);
            };
            let text = format!("{error} {}", error.hint);
            assert!(
                text.contains(privilege) || error.doing == "plan",
                "{privilege} on {}: {text}",
                grant.path
            );
            tried += 1;
        }
    }
    assert!(tried >= 18, "{tried}");
}
