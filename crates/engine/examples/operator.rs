//! Performance figures of the operator as JSON:
//! `cargo run --release -p homestak-engine --example operator`.
//!
//! Plans and applies on the simulator, and measures what the operator needs for very many nodes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::{Clock as _, SharedClock, WallClock};
use homestak_api::trust::{Fingerprint, Trust};
use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::DocumentKind;
use homestak_core::doc::scalar::SiteId;
use homestak_core::firstboot::FirstBootConfig;
use homestak_core::plan::{
    AppliedSpec, ConfigPlan, NodePlan, OtherRecords, Plan, PlanOptions, Verb,
};
use homestak_core::resolve::{ResolveOptions, ResolvedManifest, manifest};
use homestak_engine::events::{Event, EventHub, EventKind, Observer};
use homestak_engine::operate::{Interrupt, Limits, Operator};
use homestak_engine::planning::{PlanContext, PlanRequest};
use homestak_engine::ports::{
    AddressLease, Capabilities, ConfigTarget, Configurer, Gib, GuestAddress, GuestRef, GuestUuid,
    HostConnector, ImageRequest, Inventory, Mib, NewGuest, NewIdentity, ObservedGuest,
    ObservedHost, ObservedStorage, PortError, PowerState, Provider, ProviderEvent, Seed,
    SeedRequest, SeedSource, SpecComparison, StopMode,
};
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveSettings};
use homestak_sim::{Boots, Timing, World};
use homestak_store::Sqlite;
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

const TOKEN: &str = "root@pam!figures=00000000-0000-4000-8000-000000000001";
/// Size of the image every guest is made from.
const IMAGE: u64 = 1_572_864_000;

/// The total duration of each kind of step.
#[derive(Default)]
struct Times(Mutex<BTreeMap<&'static str, (u32, f64, f64)>>);

impl Observer for Times {
    fn on_event(&self, event: &Event) {
        if let EventKind::StepDone { step, seconds, .. } = &event.kind {
            let mut times = self.0.lock().unwrap_or_else(|lock| lock.into_inner());
            let time = times.entry(step.name()).or_default();
            *time = (time.0 + 1, time.1 + seconds, time.2.max(*seconds));
        }
    }
}

struct Plain;

fn site() -> SiteId {
    SiteId::from_random([7; 16])
}

#[async_trait]
impl SeedSource for Plain {
    async fn seed(&self, request: &SeedRequest<'_>) -> Result<Seed, PortError> {
        let keys = vec!["ssh-ed25519 AAAA ops@desk".to_owned()];
        let name = &request.node.name;
        Ok(FirstBootConfig::new(name, request.wanted, keys, None).into())
    }

    async fn rename(&self, _: &GuestUuid, _: &GuestUuid) -> Result<(), PortError> {
        Ok(())
    }

    async fn forget(&self, _: &GuestUuid) -> Result<(), PortError> {
        Ok(())
    }
}

/// No node has a spec here.
#[async_trait]
impl PlanContext for Plain {
    type Error = Infallible;

    fn observing(&self, _: &ResolvedManifest, _: &[&str], _: &OtherRecords) {}

    async fn configs(
        &self,
        _: &ResolvedManifest,
        _: &Plan,
    ) -> Result<BTreeMap<String, ConfigPlan>, Infallible> {
        Ok(BTreeMap::new())
    }

    fn not_applied(&self, _: &ResolvedManifest, _: &NodePlan) -> Option<String> {
        None
    }

    fn is_simulated(&self, _: &ResolvedManifest, _: &NodePlan) -> bool {
        false
    }
}

#[async_trait]
impl Configurer for Plain {
    async fn check(&self, _: &ConfigTarget) -> Result<SpecComparison, PortError> {
        Ok(SpecComparison::default())
    }

    async fn converge(
        &self,
        _: &ConfigTarget,
        _: Arc<dyn Fn(ProviderEvent) + Send + Sync>,
    ) -> Result<bool, PortError> {
        Ok(false)
    }

    async fn revert(
        &self,
        _: &ConfigTarget,
        _: &AppliedSpec,
        _: Arc<dyn Fn(ProviderEvent) + Send + Sync>,
    ) -> Result<bool, PortError> {
        Ok(false)
    }
}

/// One client for each host of a cluster.
struct Cluster {
    url: String,
    trust: Trust,
    open: Mutex<BTreeMap<String, Arc<Pve>>>,
    lookups: AtomicUsize,
}

#[async_trait]
impl HostConnector for Cluster {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.lock().unwrap_or_else(|lock| lock.into_inner());
        if let Some(known) = open.get(name) {
            return Ok(known.clone());
        }
        let token = ApiToken::parse(TOKEN).map_err(|error| PortError::bug("open", &error))?;
        let endpoint = Endpoint {
            url: self.url.clone(),
            trust: self.trust.clone(),
        };
        let settings = PveSettings::new(endpoint, Credential::Token(token));
        let client = Arc::new(Pve::new(settings, Arc::new(WallClock))?);
        open.insert(name.to_owned(), client.clone());
        Ok(client)
    }

    fn endpoint(&self, _: &str) -> String {
        self.url.clone()
    }

    async fn inside(&self, _: &str, _: &str, _: IpAddr) -> Result<Arc<dyn Provider>, PortError> {
        Err(PortError::refused("open", "nothing is inside", ""))
    }

    async fn ssh_answers(&self, _: &str, _: IpAddr, _: &[u16]) -> Result<bool, PortError> {
        Ok(true)
    }
}

fn documents(guests: usize, hosts: usize) -> Result<(Catalog, ResolvedManifest), Failure> {
    let input = |kind, name: &str, text: String| InputDocument {
        kind,
        name: name.to_owned(),
        path: format!("{name}.yaml"),
        text: Ok(text),
    };
    let mut text = "nodes:\n".to_owned();
    for guest in 0..guests {
        let host = guest % hosts + 1;
        text += &format!(
            "  - {{name: n{guest:05}, preset: small, image: debian-12, host: pve{host}}}\n"
        );
    }
    let mut inputs = vec![
        input(DocumentKind::Manifest, "m", text),
        input(
            DocumentKind::Preset,
            "small",
            "cores: 1\nmemory: 1024\ndisk: 10\n".to_owned(),
        ),
        input(
            DocumentKind::Image,
            "debian-12",
            "source: https://example.org/d.qcow2\n".to_owned(),
        ),
    ];
    for host in 1..=hosts {
        let node = "api_endpoint: https://127.0.0.1:8006\n".to_owned();
        inputs.push(input(DocumentKind::Node, &format!("pve{host}"), node));
    }
    let catalog = Catalog::read(inputs);
    let (resolved, faults) = manifest(&catalog, "m", &ResolveOptions::default());
    let resolved = resolved.filter(|_| faults.errors() == 0);
    Ok((catalog, resolved.ok_or("the manifest has faults")?))
}

async fn make_plan(
    operator: &Operator,
    documents: &(Catalog, ResolvedManifest),
) -> Result<Plan, Failure> {
    let options = PlanOptions {
        parallelism: Some(1024),
        ..PlanOptions::new(Verb::Apply)
    };
    let wanted = PlanRequest {
        site: &site(),
        catalog: &documents.0,
        resolved: &documents.1,
        request: &ResolveOptions::default(),
        options: &options,
    };
    let plan = operator.plan(&wanted, &Plain).await;
    plan.map_err(|error| format!("no plan: {error:?}").into())
}

fn operator(
    connector: &Arc<dyn HostConnector>,
    journal: &Arc<Sqlite>,
    times: &Arc<Times>,
) -> Operator {
    let clock: SharedClock = Arc::new(WallClock);
    Operator {
        connector: connector.clone(),
        seeds: Arc::new(Plain),
        configurer: Arc::new(Plain),
        journal: journal.clone(),
        hub: EventHub::new(times.clone(), clock.clone()),
        clock,
        limits: Limits::default(),
        point_observer: None,
        mark: || "figures".to_owned(),
    }
}

/// Makes guests on a simulated cluster in real time, then plans again.
async fn simulated(guests: usize, hosts: usize) -> Result<Value, Failure> {
    let mut builder = World::builder().cluster("figures").storage("local");
    for host in 1..=hosts {
        builder = builder.host(&format!("pve{host}"));
    }
    let world = builder
        .token(TOKEN)
        .image("local", "import/debian-12.qcow2", IMAGE, Boots::System)
        .build();
    let handle = homestak_sim::serve(world.clone(), "127.0.0.1:0".parse()?).await?;
    let fingerprint = Fingerprint::parse(&handle.fingerprint).ok_or("a fingerprint")?;
    let cluster = Arc::new(Cluster {
        url: handle.url(),
        trust: Trust::Pinned(fingerprint),
        open: Mutex::default(),
        lookups: AtomicUsize::new(0),
    });
    let connector: Arc<dyn HostConnector> = cluster.clone();
    let directory = tempfile::tempdir()?;
    let journal = Arc::new(Sqlite::open(directory.path())?);
    let documents = documents(guests, hosts)?;
    let times = Arc::new(Times::default());
    let operator = operator(&connector, &journal, &times);
    let plan = Arc::new(make_plan(&operator, &documents).await?);
    let begun = WallClock.now();
    let (_ask, interrupt) = Interrupt::new();
    let (_, ending) = operator.execute("apply", plan, interrupt).await?;
    let took = since(begun);
    let path = critical_path(&world);
    tokio::time::sleep(Duration::from_secs(11)).await;
    let begun = WallClock.now();
    cluster.lookups.store(0, Ordering::Relaxed);
    let again = make_plan(&operator, &documents).await?;
    let times = times.0.lock().unwrap_or_else(|lock| lock.into_inner());
    let steps: BTreeMap<_, _> = times
        .iter()
        .map(|(kind, (count, sum, most))| {
            let mean = sum / f64::from(*count);
            (
                *kind,
                json!({ "mean_seconds": mean, "longest_seconds": most }),
            )
        })
        .collect();
    Ok(json!({
        "guests": guests,
        "steps": steps,
        "hosts": hosts,
        "ending": ending.name(),
        "apply_seconds": took,
        "critical_path_seconds": path,
        "ratio": took / path,
        "plan_unchanged_seconds": since(begun),
        "plan_unchanged_is_empty": again.is_empty(),
        "plan_unchanged_looks": cluster.lookups.load(Ordering::Relaxed),
        "running": world.guests().iter().filter(|guest| guest.running).count(),
    }))
}

/// Returns how long the work takes at least: each host's storage copies one guest after the other,
/// or all at once at the same speed together, and each guest starts and boots once it is copied.
/// The simulator has no two guests boot equally long, so the boots of this very run count.
fn critical_path(world: &World) -> f64 {
    let timing = Timing::default();
    let copy = IMAGE as f64 / timing.copy_speed as f64;
    let start = (timing.fork + timing.allocate + timing.vm_start).as_secs_f64();
    let mut boots: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for guest in world.guests() {
        let on_host = boots.entry(guest.host).or_default();
        on_host.extend(world.boot_of(guest.vmid));
    }
    let mut longest: f64 = 0.0;
    for on_host in boots.values_mut() {
        on_host.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (nth, (_, boot)) in on_host.iter().enumerate() {
            longest = longest.max((nth + 1) as f64 * copy + start + boot);
        }
    }
    longest
}

/// A place where everything is done at once, so that only the operator's own needs are seen.
#[derive(Default)]
struct Instantly(Mutex<BTreeMap<String, bool>>);

impl Instantly {
    fn set(&self, guest: &GuestRef, running: Option<bool>) {
        let mut guests = self.0.lock().unwrap_or_else(|lock| lock.into_inner());
        match running {
            Some(running) => _ = guests.insert(guest.uuid.to_string(), running),
            None => _ = guests.remove(guest.uuid.as_str()),
        }
    }
}

#[async_trait]
impl Provider for Instantly {
    async fn capabilities(&self) -> Result<Capabilities, PortError> {
        Ok(Capabilities {
            product: "nothing".to_owned(),
            writable: true,
        })
    }
    async fn observe(&self) -> Result<Inventory, PortError> {
        Ok(Inventory {
            hosts: vec![ObservedHost {
                name: "pve1".to_owned(),
                online: true,
                cores: None,
                memory: None,
            }],
            storages: vec![ObservedStorage {
                name: "local".to_owned(),
                host: "pve1".to_owned(),
                active: true,
                content: ["images", "import", "iso"].map(str::to_owned).to_vec(),
                available: None,
                shared: false,
            }],
            ..Inventory::default()
        })
    }
    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError> {
        let guests = self.0.lock().unwrap_or_else(|lock| lock.into_inner());
        let running = guests.get(guest.uuid.as_str()).copied();
        Ok(running.map(|running| ObservedGuest {
            kind: guest.kind,
            vmid: guest.vmid.unwrap_or(100.into()),
            host: guest.host.clone(),
            name: String::new(),
            site: Some(site()),
            created_as: None,
            run: None,
            contested: None,
            is_unrelated: false,
            uuid: Some(guest.uuid.clone()),
            manifest: None,
            power: if running {
                PowerState::Running
            } else {
                PowerState::Stopped
            },
            template: false,
            lock: None,
            cores: None,
            memory: None,
            disk: None,
            tags: Vec::new(),
        }))
    }
    async fn lease(
        &self,
        _guest: &GuestUuid,
        _asked: Option<IpAddr>,
    ) -> Result<Option<AddressLease>, PortError> {
        Ok(None)
    }

    async fn create(&self, guest: &NewGuest) -> Result<GuestRef, PortError> {
        let made = GuestRef {
            uuid: guest.uuid.clone(),
            kind: guest.kind,
            vmid: Some(100.into()),
            host: guest.host.clone(),
        };
        self.set(&made, Some(false));
        Ok(made)
    }
    async fn start(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.set(guest, Some(true));
        Ok(())
    }
    async fn address(&self, _: &GuestRef) -> Result<GuestAddress, PortError> {
        Ok(GuestAddress::At(IpAddr::from([10, 0, 0, 1])))
    }
    async fn discard_seed(&self, _: &GuestRef) -> Result<(), PortError> {
        Ok(())
    }
    async fn grow_disk(&self, _: &GuestRef, _: Gib) -> Result<(), PortError> {
        Ok(())
    }
    async fn reshape(&self, _: &GuestRef, _: u32, _: Mib) -> Result<(), PortError> {
        Ok(())
    }
    async fn stop(&self, guest: &GuestRef, _: StopMode) -> Result<(), PortError> {
        self.set(guest, Some(false));
        Ok(())
    }
    async fn destroy(&self, guest: &GuestRef) -> Result<(), PortError> {
        self.set(guest, None);
        Ok(())
    }
    async fn has_image(&self, _: &ImageRequest) -> Result<bool, PortError> {
        Ok(true)
    }
    async fn ensure_image(&self, _: &ImageRequest) -> Result<(), PortError> {
        Ok(())
    }
    async fn reidentify(&self, _: &GuestRef, _: &NewIdentity) -> Result<(), PortError> {
        Ok(())
    }
}

struct There(Arc<Instantly>);

#[async_trait]
impl HostConnector for There {
    async fn host(&self, _: &str) -> Result<Arc<dyn Provider>, PortError> {
        Ok(self.0.clone())
    }
    fn endpoint(&self, name: &str) -> String {
        name.to_owned()
    }
    async fn inside(&self, _: &str, _: &str, _: IpAddr) -> Result<Arc<dyn Provider>, PortError> {
        Ok(self.0.clone())
    }
    async fn ssh_answers(&self, _: &str, _: IpAddr, _: &[u16]) -> Result<bool, PortError> {
        Ok(true)
    }
}

/// What the operator itself needs for many nodes.
async fn alone(nodes: usize) -> Result<Value, Failure> {
    let before = resident("VmRSS")?;
    let connector: Arc<dyn HostConnector> = Arc::new(There(Arc::default()));
    let directory = tempfile::tempdir()?;
    let journal = Arc::new(Sqlite::open(directory.path())?);
    let documents = documents(nodes, 1)?;
    let operator = operator(&connector, &journal, &Arc::default());
    let plan = Arc::new(make_plan(&operator, &documents).await?);
    let n_steps = plan.steps.len();
    let begun = WallClock.now();
    let (_ask, interrupt) = Interrupt::new();
    let (_, ending) = operator.execute("apply", plan.clone(), interrupt).await?;
    let took = since(begun);
    let after = resident("VmHWM")?;
    let plan_bytes = serde_json::to_vec(&*plan)?.len();
    drop((operator, journal));
    let mut bytes = 0;
    for file in fs_err::read_dir(directory.path())? {
        bytes += usize::try_from(file?.metadata()?.len())?;
    }
    Ok(json!({
        "nodes": nodes,
        "steps": n_steps,
        "ending": ending.name(),
        "seconds": took,
        "kilobytes_per_node": (after.saturating_sub(before)) as f64 / nodes as f64,
        "journal_bytes_per_step": (bytes.saturating_sub(plan_bytes)) as f64 / n_steps as f64,
        "plan_bytes_per_node": plan_bytes as f64 / nodes as f64,
    }))
}

fn since(begun: jiff::Timestamp) -> f64 {
    WallClock.now().duration_since(begun).as_secs_f64()
}

/// Reads a figure of this process, in kilobytes.
fn resident(key: &str) -> Result<u64, Failure> {
    let status = fs_err::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with(key));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(number.ok_or("no figure")?.parse()?)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: usize| {
        let given = arguments.get(at).map(|text| text.parse::<usize>());
        given.transpose().map(|given| given.unwrap_or(usual))
    };
    // Memory first: the other part leaves its own behind.
    let alone = alone(number(2, 10_000)?).await?;
    let simulated = simulated(number(0, 1_000)?, number(1, 20)?).await?;
    let result = json!({ "alone": alone, "simulated": simulated });
    writeln!(std::io::stdout(), "{result}")?;
    Ok(())
}
