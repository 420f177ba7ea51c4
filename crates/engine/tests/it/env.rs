//! A simulated World, the documents of a small site, and an operator for both.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::{Clock, SharedClock};
use homestak_api::trust::{Fingerprint, Trust};
use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::DocumentKind;
use homestak_core::doc::scalar::SiteId;
use homestak_core::doc::timeouts::Timeouts;
use homestak_core::firstboot::FirstBootConfig;
use homestak_core::plan::{Plan, PlanOptions, Verb};
use homestak_core::resolve::{ResolveOptions, ResolvedManifest, manifest};
use homestak_engine::events::{Event, EventHub, Observer};
use homestak_engine::journal::{Run, RunOutcome};
use homestak_engine::operate::{Interrupt, Limits, Operator, StepPoint, StepPointObserver};
use homestak_engine::planning::{PlanError, PlanRequest};
use homestak_engine::ports::{
    GuestUuid, HostConnector, PortError, Provider, Seed, SeedRequest, SeedSource,
};
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveSettings};
use homestak_sim::{Boots, Builder, Timing, World};
use jiff::Timestamp;
use tokio::sync::Notify;

use crate::configurer::TestConfigurer;
use crate::memory_journal::MemoryJournal;

pub const TOKEN: &str = "root@pam!lab=00000000-0000-4000-8000-000000000001";
/// How much faster than real time the clock of the World runs.
const FACTOR: u32 = 400;

pub struct FastClock(tokio::time::Instant);

#[async_trait]
impl Clock for FastClock {
    fn now(&self) -> Timestamp {
        let passed = self.0.elapsed() * FACTOR;
        let origin = Timestamp::from_second(1_800_000_000).unwrap();
        origin + jiff::SignedDuration::try_from(passed).unwrap()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration / FACTOR).await;
    }
}

/// Collects events.
#[derive(Default)]
pub struct EventLog(pub Mutex<Vec<Event>>);

impl Observer for EventLog {
    fn on_event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

/// Opens the World and the Worlds inside it.
pub struct WorldConnector {
    world: World,
    clock: SharedClock,
    open: tokio::sync::OnceCell<Arc<Pve>>,
}

impl WorldConnector {
    async fn client(&self, world: &World) -> Arc<Pve> {
        let address = "127.0.0.1:0".parse().unwrap();
        let handle = homestak_sim::serve(world.clone(), address).await.unwrap();
        let endpoint = Endpoint {
            url: handle.url(),
            trust: Trust::Pinned(Fingerprint::parse(&handle.fingerprint).unwrap()),
        };
        let token = ApiToken::parse(TOKEN).unwrap();
        let mut settings = PveSettings::new(endpoint, Credential::Token(token));
        settings.limits.answer = Duration::from_millis(1500);
        settings.limits.upload_stall = Duration::from_secs(3600);
        Arc::new(Pve::new(settings, self.clock.clone()).unwrap())
    }
}

/// Finds the World in a node, at any depth.
pub fn world_in(world: &World, node: &str) -> Option<World> {
    for guest in world.guests() {
        let name = guest.config.get("name").cloned().unwrap_or_default();
        let inner = world.inside(guest.vmid, add_images);
        match inner {
            Some(inner) if name == node => return Some(inner),
            Some(inner) => {
                if let Some(found) = world_in(&inner, node) {
                    return Some(found);
                }
            }
            None => {}
        }
    }
    None
}

fn add_images(builder: Builder) -> Builder {
    builder
        .token(TOKEN)
        .image(
            "local",
            "import/debian-12.qcow2",
            800_000_000,
            Boots::System,
        )
        .image(
            "local",
            "import/pve-9.qcow2",
            1_200_000_000,
            Boots::Hypervisor,
        )
        .file("local", "vztmpl/debian-12-standard.tar.zst", 30_000_000)
}

#[async_trait]
impl HostConnector for WorldConnector {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        assert!(name.starts_with("pve"), "no host {name}");
        let open = self.open.get_or_init(|| self.client(&self.world)).await;
        Ok(open.clone())
    }

    async fn inside(
        &self,
        _: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError> {
        let world = world_in(&self.world, node).ok_or_else(|| {
            PortError::unreachable(
                &format!("open `{node}`"),
                format!("nothing listens at {address}"),
                "",
            )
        })?;
        // Not cached: a recreated node has another World in it.
        Ok(self.client(&world).await)
    }

    fn endpoint(&self, _: &str) -> String {
        "the World".to_owned()
    }

    async fn ssh_answers(&self, _: &str, address: IpAddr, _: &[u16]) -> Result<bool, PortError> {
        Ok(self.world.ssh_answers(&address.to_string()))
    }
}

/// Records the guests for which seeds were created.
#[derive(Default)]
pub struct RecordingSeeds(Mutex<BTreeSet<GuestUuid>>);

impl RecordingSeeds {
    /// Returns how many guests are recorded.
    pub fn n_recorded(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[async_trait]
impl SeedSource for RecordingSeeds {
    async fn seed(&self, request: &SeedRequest<'_>) -> Result<Seed, PortError> {
        let wanted = request.wanted;
        self.0.lock().unwrap().insert(wanted.uuid.clone());
        let keys = vec!["ssh-ed25519 AAAA ops@desk".to_owned()];
        Ok(FirstBootConfig::new(&request.node.name, wanted, keys, None).into())
    }

    async fn rename(&self, from: &GuestUuid, to: &GuestUuid) -> Result<(), PortError> {
        let mut guests = self.0.lock().unwrap();
        if guests.contains(from) {
            guests.insert(to.clone());
        }
        Ok(())
    }

    async fn forget(&self, guest: &GuestUuid) -> Result<(), PortError> {
        self.0.lock().unwrap().remove(guest);
        Ok(())
    }
}

/// Returns a new id for each run.
fn mark() -> String {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    format!("run{}", RUNS.fetch_add(1, Ordering::Relaxed))
}

/// Everything a test needs.
pub struct TestEnv {
    pub world: World,
    pub clock: SharedClock,
    pub connector: Arc<dyn HostConnector>,
    pub journal: MemoryJournal,
    pub seeds: Arc<RecordingSeeds>,
    pub configurer: Arc<TestConfigurer>,
    pub events: Arc<EventLog>,
    pub options: PlanOptions,
    /// Name of its manifest.
    pub manifest: &'static str,
    pub site: SiteId,
    pub point_observer: Option<Arc<dyn StepPointObserver>>,
    pub timeouts: Timeouts,
}

impl TestEnv {
    pub fn new() -> Self {
        Self::with(|builder| builder.host("pve1"))
    }

    pub fn with(prepare: impl FnOnce(Builder) -> Builder) -> Self {
        let clock: SharedClock = Arc::new(FastClock(tokio::time::Instant::now()));
        let timing = Timing {
            boot: Duration::from_secs(6),
            ct_start: Duration::from_millis(500),
            shutdown: Duration::from_secs(1),
            unpack_speed: 300_000_000,
            ..Timing::default()
        };
        let builder = World::builder()
            .clock(clock.clone())
            .timing(timing)
            .storage("local");
        let world = add_images(prepare(builder)).build();
        let connector = WorldConnector {
            world: world.clone(),
            clock: clock.clone(),
            open: tokio::sync::OnceCell::new(),
        };
        Self {
            world,
            clock,
            connector: Arc::new(connector),
            journal: MemoryJournal::default(),
            seeds: Arc::default(),
            configurer: Arc::default(),
            events: Arc::new(EventLog::default()),
            options: PlanOptions::new(Verb::Apply),
            manifest: "m",
            site: SiteId::from_random([7; 16]),
            point_observer: None,
            timeouts: Timeouts::default(),
        }
    }

    pub fn operator(&self) -> Operator {
        Operator {
            connector: self.connector.clone(),
            seeds: self.seeds.clone(),
            configurer: self.configurer.clone(),
            journal: Arc::new(self.journal.clone()),
            hub: EventHub::new(self.events.clone(), self.clock.clone()),
            clock: self.clock.clone(),
            limits: Limits {
                tries: 4,
                pause: Duration::from_secs(2),
                timeouts: self.timeouts,
            },
            point_observer: self.point_observer.clone(),
            mark,
        }
    }

    pub async fn plan(&self, manifest: &str) -> Plan {
        self.plan_with(manifest, &self.options).await
    }

    pub async fn plan_with(&self, manifest: &str, options: &PlanOptions) -> Plan {
        self.try_plan(manifest, options).await.unwrap()
    }

    pub async fn try_plan(
        &self,
        manifest: &str,
        options: &PlanOptions,
    ) -> Result<Plan, PlanError<Infallible>> {
        let (catalog, resolved) = documents_of(self.manifest, manifest);
        let wanted = PlanRequest {
            site: &self.site,
            catalog: &catalog,
            resolved: &resolved,
            request: &on_pve1(),
            options,
        };
        let operator = self.operator();
        operator.plan(&wanted, &*self.configurer).await
    }

    /// Plans and executes.
    pub async fn apply(&self, manifest: &str) -> RunOutcome {
        let plan = self.plan(manifest).await;
        assert_eq!(plan.refusals, [], "nothing is refused");
        self.execute(&plan).await
    }

    pub async fn destroy(&self, manifest: &str) -> RunOutcome {
        let plan = self
            .plan_with(manifest, &PlanOptions::new(Verb::Destroy))
            .await;
        self.execute(&plan).await
    }

    pub async fn execute(&self, plan: &Plan) -> RunOutcome {
        let (_ask, interrupt) = Interrupt::new();
        let operator = self.operator();
        let verb = plan.verb.name();
        operator.execute(verb, plan, interrupt).await.unwrap().1
    }

    /// Executes a plan, and crashes at the n-th step point; `None` if it did.
    pub async fn execute_until(&mut self, plan: &Plan, point: u64) -> Option<RunOutcome> {
        let trigger = Arc::new(CrashTrigger(
            AtomicUsize::new(usize::try_from(point).unwrap()),
            Notify::new(),
        ));
        self.point_observer = Some(trigger.clone());
        let operator = self.operator();
        self.point_observer = None;
        let (_ask, interrupt) = Interrupt::new();
        tokio::select! {
            biased;
            () = trigger.1.notified() => None,
            ended = operator.execute(plan.verb.name(), plan, interrupt) => Some(ended.unwrap().1),
        }
    }

    /// Returns another driver of the same World, with its own journal, for a site.
    pub fn driver_of(&self, site: SiteId) -> Self {
        Self {
            world: self.world.clone(),
            clock: self.clock.clone(),
            connector: self.connector.clone(),
            journal: MemoryJournal::default(),
            seeds: Arc::default(),
            configurer: Arc::default(),
            events: Arc::default(),
            options: self.options.clone(),
            manifest: self.manifest,
            site,
            point_observer: None,
            timeouts: self.timeouts,
        }
    }

    pub fn last_run(&self) -> Run {
        self.journal.runs.lock().unwrap().last().unwrap().clone()
    }

    /// Returns name and power of each guest of the outer World.
    pub fn guests(&self) -> Vec<(String, bool)> {
        let mut guests: Vec<(String, bool)> = guests(&self.world);
        guests.sort();
        guests
    }

    /// Waits until all tasks have ended and the list of guests is current.
    pub async fn wait_until_idle(&self) {
        self.wait_for_tasks().await;
        let sweep = Duration::from_secs(11);
        self.clock.sleep(sweep).await;
    }

    /// Waits until all tasks of the World have ended.
    pub async fn wait_for_tasks(&self) {
        while !self.world.is_idle() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

struct CrashTrigger(AtomicUsize, Notify);

impl StepPointObserver for CrashTrigger {
    fn reached(&self, _: StepPoint) {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.1.notify_one();
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub fn guests(world: &World) -> Vec<(String, bool)> {
    let name = |config: &BTreeMap<String, String>| {
        let name = config.get("name").or_else(|| config.get("hostname"));
        name.cloned().unwrap_or_default()
    };
    world
        .guests()
        .iter()
        .map(|guest| (name(&guest.config), guest.running))
        .collect()
}

/// The settings for resolving manifests.
fn on_pve1() -> ResolveOptions {
    ResolveOptions {
        host: Some("pve1".to_owned()),
        ..ResolveOptions::default()
    }
}

/// Reads the documents of a small site with one manifest, `m`.
pub fn documents(text: &str) -> (Catalog, ResolvedManifest) {
    documents_of("m", text)
}

/// Reads the documents of a small site with one manifest.
fn documents_of(name: &str, text: &str) -> (Catalog, ResolvedManifest) {
    let input = |kind, name: &str, text: &str| InputDocument {
        kind,
        name: name.to_owned(),
        path: format!("{name}.yaml"),
        text: Ok(text.to_owned()),
    };
    let node = "api_endpoint: https://127.0.0.1:8006\n";
    let catalog = Catalog::read(vec![
        input(DocumentKind::Manifest, name, text),
        input(
            DocumentKind::Preset,
            "vm-small",
            "cores: 1\nmemory: 1024\ndisk: 10\n",
        ),
        input(
            DocumentKind::Preset,
            "vm-large",
            "cores: 4\nmemory: 8192\ndisk: 40\n",
        ),
        input(
            DocumentKind::Image,
            "debian-12",
            "source: https://example.org/d.qcow2\n",
        ),
        input(DocumentKind::Image, "pve-9", "recipe: {suite: trixie}\n"),
        input(
            DocumentKind::Image,
            "debian-12-standard",
            "type: template\nrecipe: {suite: bookworm}\n",
        ),
        input(DocumentKind::Node, "pve1", node),
        input(DocumentKind::Node, "pve2", node),
    ]);
    let (resolved, faults) = manifest(&catalog, name, &on_pve1());
    assert_eq!(faults.errors(), 0, "{faults:?}");
    (catalog, resolved.unwrap())
}
