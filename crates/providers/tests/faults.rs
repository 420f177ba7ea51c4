//! Every kind of fault at every request of every operation, over TLS, against the simulator.
//!
//! Expects at most one guest, no leftovers and the right class of error. Runs a sample unless
//! `HOMESTAK_TEST_FULL` is set.

#![expect(clippy::print_stdout, reason = "a failing test shows its case")]

mod support;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use homestak_engine::ports::{
    ErrorClass, Gib, GuestKind, GuestRef, ImageRequest, ImageSource, NewGuest, PortError,
    Provider as _, StopMode,
};
use homestak_providers::pve::{Pve, PveLimits};
use homestak_sim::{Call, Fault, FaultKind, GuestFacts};
use support::sample::{is_full, random};
use support::simulated::{SimulatedHost, simulated_host};

/// The input of an operation.
struct TestInput {
    guest: NewGuest,
    at: GuestRef,
    sent: ImageRequest,
    fetched: ImageRequest,
}

type Step<'a> = Pin<Box<dyn Future<Output = Result<(), PortError>> + Send + 'a>>;
type Act = for<'a> fn(&'a Pve, &'a TestInput) -> Step<'a>;
type Check = fn(&SimulatedHost, &TestInput);

/// Every operation of the port, in lifecycle order.
const OPERATIONS: [(&str, Act, Check); 13] = [
    (
        "capabilities",
        |pve, _| Box::pin(async { pve.capabilities().await.map(|_| ()) }),
        none,
    ),
    (
        "observe",
        |pve, _| Box::pin(async { pve.observe().await.map(|_| ()) }),
        none,
    ),
    (
        "ensure_image by sending",
        |pve, input| Box::pin(pve.ensure_image(&input.sent)),
        |sim, input| one_file(sim, &input.sent),
    ),
    (
        "ensure_image by fetching",
        |pve, input| Box::pin(pve.ensure_image(&input.fetched)),
        |sim, input| one_file(sim, &input.fetched),
    ),
    (
        "has_image",
        |pve, input| {
            Box::pin(async {
                let there = pve.has_image(&input.sent).await?;
                assert!(there, "the image is there");
                Ok(())
            })
        },
        none,
    ),
    (
        "create",
        |pve, input| Box::pin(async { pve.create(&input.guest).await.map(|_| ()) }),
        complete,
    ),
    (
        "inspect",
        |pve, input| {
            Box::pin(async {
                let seen = pve.inspect(&input.at).await?;
                assert!(seen.is_some(), "the guest is there");
                Ok(())
            })
        },
        complete,
    ),
    (
        "start",
        |pve, input| Box::pin(pve.start(&input.at)),
        |sim, _| assert!(only(sim).running),
    ),
    (
        "address",
        |pve, input| Box::pin(async { pve.address(&input.at).await.map(|_| ()) }),
        |sim, _| assert!(only(sim).running),
    ),
    (
        "discard_seed",
        |pve, input| Box::pin(pve.discard_seed(&input.at)),
        |sim, _| assert!(seeds(sim).is_empty(), "{:?}", seeds(sim)),
    ),
    (
        "grow_disk",
        |pve, input| Box::pin(pve.grow_disk(&input.at, Gib(12))),
        |sim, _| assert!(disk(&only(sim)).ends_with("size=12G")),
    ),
    (
        "stop",
        |pve, input| Box::pin(pve.stop(&input.at, StopMode::Graceful(Duration::from_secs(5)))),
        |sim, _| assert!(!only(sim).running),
    ),
    (
        "destroy",
        |pve, input| Box::pin(pve.destroy(&input.at)),
        |sim, _| {
            let left = sim.world.guests();
            assert_eq!(left, []);
        },
    ),
];

fn none(_: &SimulatedHost, _: &TestInput) {}

/// Returns the only guest.
fn only(sim: &SimulatedHost) -> GuestFacts {
    let mut ours: Vec<GuestFacts> = sim.world.guests();
    assert_eq!(ours.len(), 1, "one guest: {ours:?}");
    ours.remove(0)
}

fn disk(guest: &GuestFacts) -> String {
    let disk = guest.config.get("scsi0").or(guest.config.get("rootfs"));
    disk.cloned().unwrap_or_default()
}

fn complete(sim: &SimulatedHost, input: &TestInput) {
    let guest = only(sim);
    let config = &guest.config;
    assert!(!config.contains_key("lock"), "{config:?}");
    let tag = format!("homestak-id-{}", input.guest.uuid);
    assert!(config["tags"].contains(&tag), "{config:?}");
    assert!(disk(&guest).ends_with("size=8G"), "{config:?}");
    let wanted = usize::from(input.guest.seed.is_some());
    assert_eq!(seeds(sim).len(), wanted, "{:?}", seeds(sim));
}

fn seeds(sim: &SimulatedHost) -> Vec<String> {
    let volumes = sim.world.volumes().into_iter().map(|(_, volume)| volume);
    volumes
        .filter(|volume| volume.contains(":iso/homestak-"))
        .collect()
}

fn one_file(sim: &SimulatedHost, image: &ImageRequest) {
    let ending = format!("/{}", image.file);
    let volumes = sim.world.volumes();
    let found = volumes
        .iter()
        .filter(|(_, volume)| volume.ends_with(&ending));
    assert_eq!(found.count(), 1, "{volumes:?}");
}

/// Returns whether an error may have this class after a fault. An operation that can determine the
/// result from the state reports no error.
fn allowed(kind: &FaultKind, class: ErrorClass) -> bool {
    let unreachable = matches!(class, ErrorClass::Unreachable { .. });
    match kind {
        FaultKind::ResetBefore
        | FaultKind::ResetAfter
        | FaultKind::Timeout
        | FaultKind::LostAnswer
        | FaultKind::Status(_) => unreachable || class == ErrorClass::Busy,
        FaultKind::Garbage | FaultKind::Truncated => {
            unreachable || matches!(class, ErrorClass::Broken | ErrorClass::Busy)
        }
        // Another task or a late response may hold the lock; that is transient.
        FaultKind::RepeatedAnswer
        | FaultKind::Slow(_)
        | FaultKind::StaleList(_)
        | FaultKind::TaskDies => class == ErrorClass::Busy,
    }
}

struct FaultRun {
    sim: SimulatedHost,
    kind: FaultKind,
    directory: tempfile::TempDir,
    guest: NewGuest,
    n_runs: u32,
}

impl FaultRun {
    async fn new(kind: &FaultKind, subject: u64) -> Self {
        let sim = simulated_host(|builder| builder).await;
        let guest = match subject {
            0 => support::vm(1),
            _ => support::ct(2),
        };
        let directory = tempfile::tempdir().expect("a directory");
        fs_err::write(directory.path().join("x.raw"), vec![7; 64 << 10]).expect("written");
        Self {
            sim,
            kind: kind.clone(),
            directory,
            guest,
            n_runs: 0,
        }
    }

    fn client(&self) -> Pve {
        let silent = matches!(self.kind, FaultKind::Timeout | FaultKind::LostAnswer);
        let limits = PveLimits {
            // Real time, unlike the rest: a lost response is not waited for long.
            answer: Duration::from_millis(if silent { 500 } else { 1500 }),
            grace: Duration::from_secs(10),
            upload_stall: Duration::from_secs(if silent { 150 } else { 3600 }),
            ..PveLimits::default()
        };
        self.sim.client_with(limits)
    }

    fn input(&mut self) -> TestInput {
        self.n_runs += 1;
        let name = format!("walk{}.raw", self.n_runs);
        let url = format!("https://example.org/{name}");
        self.sim
            .world
            .offer_download(&url, 1 << 20, &"0".repeat(64));
        let sent = ImageRequest {
            file: format!("sent-{name}"),
            kind: GuestKind::Vm,
            host: "pve1".to_owned(),
            storage: Some("local".to_owned()),
            source: ImageSource::File(self.directory.path().join("x.raw")),
            checksum: None,
        };
        let fetched = ImageRequest {
            file: format!("fetched-{name}"),
            source: ImageSource::Url(url),
            checksum: Some(format!("sha256:{}", "0".repeat(64))),
            ..sent.clone()
        };
        TestInput {
            guest: self.guest.clone(),
            at: GuestRef {
                uuid: self.guest.uuid.clone(),
                kind: self.guest.kind,
                vmid: None,
                host: self.guest.host.clone(),
            },
            sent,
            fetched,
        }
    }

    /// Runs a lifecycle with a fault at one call of each operation. Returns the number of calls of
    /// each operation.
    async fn run_all(&mut self, at: &BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, u64> {
        let pve = self.client();
        let mut input = self.input();
        let mut calls = BTreeMap::new();
        for (name, act, check) in OPERATIONS {
            let nth = at.get(name).copied();
            let case = format!(
                "{:?} at call {nth:?} of {name}, {:?}",
                self.kind, input.guest.kind
            );
            if let Some(nth) = nth {
                let on = match self.kind {
                    // Only a list can be outdated.
                    FaultKind::StaleList(_) => Call::nth(nth).path("/cluster/resources"),
                    _ => Call::nth(nth),
                };
                self.sim.world.add_fault(Fault::new(on, self.kind.clone()));
            }
            let before = pve.requests();
            let mut attempts = 0;
            while let Err(error) = act(&pve, &input).await {
                attempts += 1;
                assert!(nth.is_some(), "without a fault: {name}: {error:?}");
                assert!(allowed(&self.kind, error.class), "{case}: {error:?}");
                assert!(attempts < 4, "{case}: {error:?}");
            }
            let n_calls = pve.requests() - before;
            calls.insert(name, n_calls);
            self.sim.world.clear_faults();
            self.sim.wait_until_idle().await;
            println!("{case}: {n_calls} calls, {attempts} errors");
            check(&self.sim, &input);
            if name == "create" {
                input.at = pve.create(&input.guest).await.expect("it is there");
            }
        }
        calls
    }
}

/// Returns the operations that reached their fault: the number of calls varies a little.
fn faults_hit(
    at: &BTreeMap<&'static str, u64>,
    calls: &BTreeMap<&'static str, u64>,
) -> Vec<&'static str> {
    let faults_hit = at.iter().filter(|(name, nth)| calls[*name] >= **nth);
    faults_hit.map(|(name, _)| *name).collect()
}

/// Tests a kind of fault: on every kind of guest at every call, or, as a sample, once for each
/// operation on one kind of guest, which alternates.
async fn test_kind(round: u64, kind: FaultKind) {
    let mut sample = random();
    let mut cases = 0;
    let subjects = if is_full() {
        vec![0, 1]
    } else {
        vec![(round + sample.below(2)) % 2]
    };
    for subject in subjects {
        let mut runs = FaultRun::new(&kind, subject).await;
        let mut open = runs.run_all(&BTreeMap::new()).await;
        open.retain(|_, calls| *calls > 0);
        if is_full() {
            let most = open.values().copied().max().unwrap_or(0);
            for nth in 1..=most {
                let reached = open.iter().filter(|(_, calls)| **calls >= nth);
                let at: BTreeMap<_, _> = reached.map(|(name, _)| (*name, nth)).collect();
                cases += faults_hit(&at, &runs.run_all(&at).await).len();
            }
            continue;
        }
        while !open.is_empty() {
            // Only few of the calls are lists.
            let listed = matches!(kind, FaultKind::StaleList(_));
            let chosen = open.iter().map(|(name, calls)| {
                let nth = if listed { 1 } else { 1 + sample.below(*calls) };
                (*name, nth)
            });
            let at: BTreeMap<_, _> = chosen.collect();
            let calls = runs.run_all(&at).await;
            for name in faults_hit(&at, &calls) {
                open.remove(name);
                cases += 1;
            }
            // Not reached: use an earlier call next time.
            for (name, calls) in &mut open {
                *calls = at[name].max(2) - 1;
            }
        }
    }
    println!("fault cases: {cases}");
    let without_calls = 1;
    assert!(cases + without_calls >= OPERATIONS.len(), "{cases}");
}

macro_rules! kinds {
    ($($round:literal $name:ident = $kind:expr;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            test_kind($round, $kind).await;
        })*
    };
}

kinds! {
    0 survives_resets_before_a_request = FaultKind::ResetBefore;
    1 survives_resets_after_a_request = FaultKind::ResetAfter;
    2 survives_timeouts = FaultKind::Timeout;
    3 survives_lost_responses = FaultKind::LostAnswer;
    4 survives_repeated_requests = FaultKind::RepeatedAnswer;
    5 survives_an_unreachable_host = FaultKind::Status(595);
    6 survives_a_broken_pipe = FaultKind::Status(596);
    7 survives_an_overlong_response = FaultKind::Status(599);
    8 survives_garbage = FaultKind::Garbage;
    9 survives_truncated_responses = FaultKind::Truncated;
    10 survives_slow_responses = FaultKind::Slow(20.0);
    11 survives_stale_lists = FaultKind::StaleList(15.0);
}
