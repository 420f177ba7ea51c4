//! The simulator, served over TLS on a fast clock, and clients of it with the minimal role.

use std::sync::Arc;
use std::time::Duration;

use homestak_api::runtime::SharedClock;
use homestak_api::trust::{Fingerprint, Trust};
use homestak_providers::pve::role::{self, Abilities};
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveLimits, PveSettings};
use homestak_sim::{Builder, World};

/// How much faster than real time the World's clock runs.
pub const FACTOR: u32 = 250;

pub struct SimulatedHost {
    pub world: World,
    pub url: String,
    pub trust: Trust,
    pub clock: SharedClock,
    pub handle: homestak_sim::Handle,
}

/// Serves a World that starts with an image and a template.
pub async fn bare_simulated_host(prepare: impl FnOnce(Builder) -> Builder) -> SimulatedHost {
    let clock: SharedClock = Arc::new(super::clock::FastClock::new(FACTOR));
    let builder = World::builder()
        .clock(clock.clone())
        .host("pve1")
        .storage("local")
        .file("local", "import/debian-12.qcow2", 1_572_864_000)
        .file("local", "vztmpl/debian-12.tar.zst", 80_000_000);
    serve(prepare(builder).build(), clock).await
}

async fn serve(world: World, clock: SharedClock) -> SimulatedHost {
    let address = "127.0.0.1:0".parse().expect("an address");
    let handle = homestak_sim::serve(world.clone(), address)
        .await
        .expect("a server");
    let fingerprint = Fingerprint::parse(&handle.fingerprint).expect("a fingerprint");
    SimulatedHost {
        world,
        url: handle.url(),
        trust: Trust::Pinned(fingerprint),
        clock,
        handle,
    }
}

/// Grants privileges like the printed commands: to user and token, with a role for each path.
pub fn granted(mut builder: Builder, grants: &[role::Grant]) -> Builder {
    for (at, grant) in grants.iter().enumerate() {
        let privileges: Vec<&str> = grant.privileges.iter().copied().collect();
        let name = format!("{}{at}", grant.role);
        builder = builder.role(&name, &privileges);
        for subject in ["homestak@pve", "homestak@pve!driver"] {
            builder = builder.grant(subject, &grant.path, &name);
        }
    }
    builder
}

/// A World with a token that has the minimal role.
pub async fn simulated_host(prepare: impl FnOnce(Builder) -> Builder) -> SimulatedHost {
    bare_simulated_host(|mut builder| {
        builder = builder.separated_token(super::TOKEN);
        prepare(granted(builder, &role::grants(9, &abilities())))
    })
    .await
}

/// A cluster with many guests.
pub async fn fleet(hosts: u32, guests: u32) -> SimulatedHost {
    let clock: SharedClock = Arc::new(super::clock::FastClock::new(FACTOR));
    let builder = World::builder()
        .clock(clock.clone())
        .storage("local")
        .token(super::TOKEN)
        .grant("homestak@pve", "/", "Administrator");
    serve(World::fleet(builder, hosts, guests), clock).await
}

pub fn abilities() -> Abilities {
    Abilities {
        vms: true,
        containers: true,
        downloads: vec!["pve1".to_owned()],
        storages: vec!["local".to_owned()],
        images: vec!["local".to_owned()],
    }
}

impl SimulatedHost {
    pub fn client(&self) -> Pve {
        self.client_with(PveLimits {
            // Real time, unlike the rest: long enough for locks, which use the fast clock.
            answer: Duration::from_millis(1500),
            grace: Duration::from_secs(10),
            // A pause of seconds on a loaded machine is many minutes on the fast clock.
            upload_stall: Duration::from_secs(3600),
            lock: Duration::from_secs(3600),
            task_stall: Duration::from_secs(3600),
            task_unreachable: Duration::from_secs(3600),
            settle: Duration::from_secs(3600),
            ..PveLimits::default()
        })
    }

    pub fn client_with(&self, limits: PveLimits) -> Pve {
        let endpoint = Endpoint {
            url: self.url.clone(),
            trust: self.trust.clone(),
        };
        let token = ApiToken::parse(super::TOKEN).expect("a token");
        let mut settings = PveSettings::new(endpoint, Credential::Token(token));
        settings.limits = limits;
        Pve::new(settings, self.clock.clone()).expect("a client")
    }

    pub async fn wait_until_idle(&self) {
        while !self.world.is_idle() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
