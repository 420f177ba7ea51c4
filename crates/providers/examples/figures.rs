//! Benchmarks the Proxmox VE client on the simulator: observing a large cluster, and many creates
//! at once. Arguments: number of observations, number of guests. Prints one JSON document.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use homestak_api::runtime::{Clock as _, WallClock};
use homestak_api::trust::{Fingerprint, Trust};
use homestak_core::doc::scalar::SiteId;
use homestak_engine::ports::{
    DiskSource, ErrorClass, FirstBootConfig, Gib, GuestKind, GuestPlan, GuestUuid, Mib, NewGuest,
    Nic, PortError, Provider as _, Seed,
};
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveLimits, PveSettings};
use homestak_sim::{Pace, World};
use serde_json::json;

const TOKEN: &str = "homestak@pve!driver=0f0e0d0c-0b0a-4908-8706-050403020100";
/// How much faster than real time the clock of the copies runs. More would count the time of our
/// own processor as time of the host.
const FACTOR: f64 = 8.0;
/// Sizes of the image in MiB: as that of the recordings, and a small one. The guests share the
/// storage's speed, so the larger the image, the less there is to win.
const SOURCES: [u64; 2] = [1500, 512];
const HOSTS: u32 = 20;
const GUESTS: u32 = 10_000;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse::<u32>().ok());
    let n_observations = numbers.next().unwrap_or(11).max(1);
    let copies = numbers.next().unwrap_or(50).max(1);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let figures = runtime.block_on(async {
        let observe = observe(n_observations).await?;
        let mut creates = Vec::new();
        for mebibytes in SOURCES {
            creates.push(measure(copies, mebibytes).await?);
        }
        Ok::<_, Failure>(json!({"observe": observe, "creates": creates}))
    })?;
    writeln!(std::io::stdout(), "{figures:#}")?;
    Ok(())
}

/// Measures several observations. The first one opens the connection and does not count.
async fn observe(n_observations: u32) -> Result<serde_json::Value, Failure> {
    let builder = World::builder()
        .pace(Pace::Real)
        .storage("local")
        .token(TOKEN)
        .grant("homestak@pve", "/", "Administrator");
    let world = World::fleet(builder, HOSTS, GUESTS);
    let pve = connect(&world, PveLimits::default()).await?;
    pve.observe().await?;
    let before = pve.requests();
    let mut taken = Vec::new();
    for _ in 0..n_observations {
        let started = WallClock.now();
        let seen = pve.observe().await?;
        taken.push(WallClock.now().duration_since(started).as_secs_f64());
        if seen.guests.len() != GUESTS as usize {
            return Err("not every guest was observed".into());
        }
    }
    taken.sort_by(f64::total_cmp);
    let requests = (pve.requests() - before) / u64::from(n_observations);
    Ok(json!({
        "hosts": HOSTS,
        "guests": GUESTS,
        "looks": n_observations,
        "requests": requests,
        "seconds": taken[taken.len() / 2],
    }))
}

/// Creates guests from one image on one storage: one after the other, then all at once, each in a
/// World of its own.
async fn measure(copies: u32, mebibytes: u64) -> Result<serde_json::Value, Failure> {
    let (alone, failed_alone) = timed(copies, mebibytes, false).await?;
    let (together, failed_together) = timed(copies, mebibytes, true).await?;
    let speed = homestak_sim::Timing::default().copy_speed as f64;
    let least = f64::from(copies) * (mebibytes << 20) as f64 / speed;
    let locks = |errors: &[PortError]| {
        let locked = |error: &&PortError| error.class == ErrorClass::Busy;
        errors.iter().filter(locked).count()
    };
    Ok(json!({
        "copies": copies,
        "source_mib": mebibytes,
        "one_at_a_time_seconds": alone,
        "at_once_seconds": together,
        "ratio": alone / together,
        // What the storage needs to write them, whoever asks for them.
        "storage_seconds": least,
        "best_ratio": alone / least,
        "lock_errors": locks(&failed_alone) + locks(&failed_together),
        "errors": failed_alone.len() + failed_together.len(),
    }))
}

async fn timed(
    copies: u32,
    mebibytes: u64,
    at_once: bool,
) -> Result<(f64, Vec<PortError>), Failure> {
    let world = World::builder()
        .pace(Pace::Accelerated(FACTOR))
        .host("pve1")
        .storage("local")
        .file("local", "import/debian-12.raw", mebibytes << 20)
        .token(TOKEN)
        .grant("homestak@pve", "/", "Administrator")
        .build();
    let limits = PveLimits {
        // Wall time, unlike the rest: as long as the default is on the World's clock.
        answer: Duration::from_secs(60).div_f64(FACTOR),
        ..PveLimits::default()
    };
    let pve = Arc::new(connect(&world, limits).await?);
    let started = world.clock().now();
    let mut errors = Vec::new();
    if at_once {
        let mut tasks = tokio::task::JoinSet::new();
        for nth in 1..=copies {
            let (pve, copy) = (Arc::clone(&pve), guest(nth)?);
            // Cancel safety: all are waited for.
            tasks.spawn(async move { pve.create(&copy).await });
        }
        while let Some(result) = tasks.join_next().await {
            errors.extend(result?.err());
        }
    } else {
        for nth in 1..=copies {
            errors.extend(pve.create(&guest(nth)?).await.err());
        }
    }
    let seconds = world.clock().now().duration_since(started).as_secs_f64();
    let made = world.guests().len() + errors.len();
    if made != copies as usize {
        return Err(format!("{made} guests instead of {copies}").into());
    }
    Ok((seconds, errors))
}

fn guest(nth: u32) -> Result<NewGuest, Failure> {
    let uuid = GuestUuid::new(&format!("5d1f2a3b-0000-4000-8000-{nth:012x}"))
        .ok_or("that is not a UUID")?;
    Ok(NewGuest {
        guest: GuestPlan {
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
            uuid: uuid.clone(),
        },
        name: format!("node{nth}"),
        site: SiteId::from_random([7; 16]),
        manifest: "figures".to_owned(),
        run: "figures".to_owned(),
        source: DiskSource::Image("debian-12.raw".to_owned()),
        seed: Some(Seed {
            user_data: "#cloud-config\n".to_owned(),
            meta_data: format!("instance-id: {uuid}\n"),
            network_config: "version: 2\n".to_owned(),
            identity: FirstBootConfig {
                uuid: uuid.clone(),
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
        ssh_keys: Vec::new(),
        first_form: false,
    })
}

async fn connect(world: &World, limits: PveLimits) -> Result<Pve, Failure> {
    let handle = homestak_sim::serve(world.clone(), "127.0.0.1:0".parse()?).await?;
    let fingerprint = Fingerprint::parse(&handle.fingerprint).ok_or("no fingerprint")?;
    let endpoint = Endpoint {
        url: handle.url(),
        trust: Trust::Pinned(fingerprint),
    };
    let token = ApiToken::parse(TOKEN)?;
    let mut settings = PveSettings::new(endpoint, Credential::Token(token));
    settings.limits = limits;
    Ok(Pve::new(settings, world.clock().clone())?)
}
