//! A small Proxmox VE server in this process, over TLS, with faults to inject and a fast clock.
// tidy: each test binary uses another part, so an expectation would fail in some
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::print_stdout,
    reason = "each test binary uses a part"
)]

pub mod calls;
pub mod clock;
pub mod sample;
pub mod server;
pub mod simulated;
pub mod world;

use std::sync::Arc;
use std::time::Duration;

use homestak_core::doc::scalar::SiteId;
use homestak_engine::ports::{
    DiskSource, FirstBootConfig, Gib, GuestKind, GuestPlan, GuestRef, GuestUuid, Mib, NewGuest,
    Nic, PortError, Seed,
};
use homestak_providers::pve::identity::GuestMetadata;
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveLimits, PveSettings};

use server::Server;
use world::{Guest, World};

/// The token the server accepts.
pub const TOKEN: &str = "homestak@pve!driver=0f0e0d0c-0b0a-4908-8706-050403020100";

/// Limits with a short timeout for lost responses.
pub fn limits() -> PveLimits {
    PveLimits {
        grace: Duration::from_secs(4),
        settle: Duration::from_secs(300),
        task_unreachable: Duration::from_secs(120),
        ..PveLimits::default()
    }
}

/// A client of the server.
pub fn client(server: &Server) -> Pve {
    client_with(server, limits())
}

/// A client with its own limits.
pub fn client_with(server: &Server, limits: PveLimits) -> Pve {
    let token = ApiToken::parse(TOKEN).expect("a token");
    let endpoint = Endpoint {
        url: server.url.clone(),
        trust: server.trust.clone(),
    };
    let mut settings = PveSettings::new(endpoint, Credential::Token(token));
    settings.limits = limits;
    Pve::new(settings, Arc::new(clock::FastClock::new(200))).expect("a client")
}

/// The identity of the n-th guest.
pub fn uuid(nth: u32) -> GuestUuid {
    GuestUuid::new(&format!("5d1f2a3b-0000-4000-8000-{nth:012x}")).expect("a UUID")
}

/// The site that guests of ours belong to.
pub fn site() -> SiteId {
    SiteId::from_random([7; 16])
}

/// The metadata that identifies a guest of ours.
pub fn metadata<'a>(uuid: &'a GuestUuid, site: &'a SiteId) -> GuestMetadata<'a> {
    GuestMetadata {
        uuid,
        site,
        manifest: "n1",
        run: Some("run1"),
    }
}

/// A VM from an image.
pub fn vm(nth: u32) -> NewGuest {
    NewGuest {
        guest: GuestPlan {
            uuid: uuid(nth),
            kind: GuestKind::Vm,
            host: "pve1".to_owned(),
            vmid: None,
            cores: 2,
            memory: Mib(1024),
            disk: Gib(8),
            storage: Some("local".to_owned()),
            image_storage: Some("local".to_owned()),
            nic: Nic {
                mac: format!("bc:24:11:00:00:{nth:02x}"),
                bridge: Some("vmbr0".to_owned()),
                vlan: None,
                address: None,
                gateway: None,
            },
            unprivileged: true,
            hosts_guests: false,
        },
        name: format!("node{nth}"),
        site: site(),
        manifest: "N1 test".to_owned(),
        run: "run1".to_owned(),
        source: DiskSource::Image("debian-12.qcow2".to_owned()),
        seed: Some(Seed {
            user_data: "#cloud-config\n".to_owned(),
            meta_data: format!("instance-id: {}\n", uuid(nth)),
            network_config: "version: 2\n".to_owned(),
            identity: FirstBootConfig {
                uuid: uuid(nth),
                hostname: format!("node{nth}"),
                user: "ops".to_owned(),
                keys: Vec::new(),
                host_key: None,
                mac: "bc:24:11:00:00:01".to_owned(),
                address: None,
                gateway: None,
                dns: Vec::new(),
                packages: Vec::new(),
                enrolment: None,
            },
        }),
        ssh_keys: vec!["ssh-ed25519 AAAA test".to_owned()],
        first_form: false,
    }
}

/// A container.
pub fn ct(nth: u32) -> NewGuest {
    let mut guest = vm(nth);
    guest.kind = GuestKind::Ct;
    guest.source = DiskSource::Template("debian-12.tar.zst".to_owned());
    guest.seed = None;
    guest
}

/// Settings of a client of the server.
pub fn settings(server: &Server) -> PveSettings {
    let token = ApiToken::parse(TOKEN).expect("a token");
    let endpoint = Endpoint {
        url: server.url.clone(),
        trust: server.trust.clone(),
    };
    let mut settings = PveSettings::new(endpoint, Credential::Token(token));
    settings.limits = limits();
    settings
}

/// A client with its own settings.
pub fn connect(settings: PveSettings) -> Pve {
    Pve::new(settings, Arc::new(clock::FastClock::new(200))).expect("a client")
}

/// Checks that an error does not show the token.
pub fn check_secret(error: &PortError) {
    let text = format!("{error} {error:?}");
    assert!(!text.contains("0f0e0d0c"), "{text}");
}

/// Adds a guest of ours, with changes.
pub fn add(world: &mut World, vmid: u32, nth: u32, change: impl FnOnce(&mut Guest)) -> GuestRef {
    let uuid = uuid(nth);
    let site = site();
    let tags: Vec<String> = metadata(&uuid, &site).tags(vmid).into_iter().collect();
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
        vmid: Some(vmid.into()),
        host: "pve1".to_owned(),
    }
}
