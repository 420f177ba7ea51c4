//! Every kind of fault at every call of every operation, over TLS, against the simulator.
//!
//! In: kinds, kinds of guests, operations; all of them, or a sample. Out: at most one guest, no
//! orphan, the right class of error, and the world as if nothing had gone wrong.
//! Never: a hand-picked list of calls; they are counted in a clean run.

#![expect(clippy::print_stdout, reason = "a failing test shows its case")]

mod support;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use homestak_engine::ports::{
    Class, Gib, GuestKind, GuestRef, Halt, ImageSource, ImageWanted, NewGuest, PortError,
    Provider as _,
};
use homestak_providers::pve::{Limits, Pve};
use homestak_sim::{Boots, Call, Fault, FaultKind, GuestFacts};
use support::clock::LateClock;
use support::place::{Place, place};
use support::sample::{Sample, is_full};

/// What an operation is done with.
struct Scene {
    guest: NewGuest,
    at: GuestRef,
    sent: ImageWanted,
    fetched: ImageWanted,
}

type Step<'a> = Pin<Box<dyn Future<Output = Result<(), PortError>> + Send + 'a>>;
type Act = for<'a> fn(&'a Pve, &'a Scene) -> Step<'a>;
type Check = fn(&Place, &Scene);

/// Every operation of the port, in the order of a life.
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
        |pve, scene| Box::pin(pve.ensure_image(&scene.sent)),
        |place, scene| one_file(place, &scene.sent),
    ),
    (
        "ensure_image by fetching",
        |pve, scene| Box::pin(pve.ensure_image(&scene.fetched)),
        |place, scene| one_file(place, &scene.fetched),
    ),
    (
        "has_image",
        |pve, scene| {
            Box::pin(async {
                let there = pve.has_image(&scene.sent).await?;
                assert!(there, "the image is there");
                Ok(())
            })
        },
        none,
    ),
    (
        "create",
        |pve, scene| Box::pin(async { pve.create(&scene.guest).await.map(|_| ()) }),
        complete,
    ),
    (
        "inspect",
        |pve, scene| {
            Box::pin(async {
                let seen = pve.inspect(&scene.at).await?;
                assert!(seen.is_some(), "the guest is there");
                Ok(())
            })
        },
        complete,
    ),
    (
        "start",
        |pve, scene| Box::pin(pve.start(&scene.at)),
        |place, _| assert!(only(place).running),
    ),
    (
        "address",
        |pve, scene| Box::pin(async { pve.address(&scene.at).await.map(|_| ()) }),
        |place, _| assert!(only(place).running),
    ),
    (
        "discard_seed",
        |pve, scene| Box::pin(pve.discard_seed(&scene.at)),
        |place, _| assert!(seeds(place).is_empty(), "{:?}", seeds(place)),
    ),
    (
        "grow_disk",
        |pve, scene| Box::pin(pve.grow_disk(&scene.at, Gib(12))),
        |place, _| assert!(disk(&only(place)).ends_with("size=12G")),
    ),
    (
        "stop",
        |pve, scene| Box::pin(pve.stop(&scene.at, Halt::Graceful(Duration::from_secs(5)))),
        |place, _| assert!(!only(place).running),
    ),
    (
        "destroy",
        |pve, scene| Box::pin(pve.destroy(&scene.at)),
        |place, _| {
            let left = place.world.guests();
            assert_eq!(left, []);
        },
    ),
];

fn none(_: &Place, _: &Scene) {}

/// The guest, which is the only one.
fn only(place: &Place) -> GuestFacts {
    let mut ours: Vec<GuestFacts> = place.world.guests();
    assert_eq!(ours.len(), 1, "one guest: {ours:?}");
    ours.remove(0)
}

fn disk(guest: &GuestFacts) -> String {
    let disk = guest.config.get("scsi0").or(guest.config.get("rootfs"));
    disk.cloned().unwrap_or_default()
}

fn complete(place: &Place, scene: &Scene) {
    let guest = only(place);
    let config = &guest.config;
    assert!(!config.contains_key("lock"), "{config:?}");
    let tag = format!("homestak-id-{}", scene.guest.uuid);
    assert!(config["tags"].contains(&tag), "{config:?}");
    assert!(disk(&guest).ends_with("size=8G"), "{config:?}");
    let wanted = usize::from(scene.guest.seed.is_some());
    assert_eq!(seeds(place).len(), wanted, "{:?}", seeds(place));
}

fn seeds(place: &Place) -> Vec<String> {
    let volumes = place.world.volumes().into_iter().map(|(_, volume)| volume);
    volumes
        .filter(|volume| volume.contains(":iso/homestak-"))
        .collect()
}

fn one_file(place: &Place, image: &ImageWanted) {
    let ending = format!("/{}", image.file);
    let volumes = place.world.volumes();
    let found = volumes
        .iter()
        .filter(|(_, volume)| volume.ends_with(&ending));
    assert_eq!(found.count(), 1, "{volumes:?}");
}

/// The classes an error may have when this went wrong. What an operation can settle by looking is
/// no error at all.
fn allowed(kind: &FaultKind, class: Class) -> bool {
    let unreachable = matches!(class, Class::Unreachable { .. });
    match kind {
        FaultKind::ResetBefore
        | FaultKind::ResetAfter
        | FaultKind::Timeout
        | FaultKind::LostAnswer
        | FaultKind::Status(_) => unreachable || class == Class::Busy,
        FaultKind::Garbage | FaultKind::Truncated => {
            unreachable || matches!(class, Class::Broken | Class::Busy)
        }
        // A rival or a late answer may hold it, and that passes.
        FaultKind::RepeatedAnswer
        | FaultKind::Slow(_)
        | FaultKind::StaleList(_)
        | FaultKind::TaskDies => class == Class::Busy,
    }
}

struct Walks {
    place: Place,
    kind: FaultKind,
    directory: tempfile::TempDir,
    guest: NewGuest,
    walked: u32,
}

impl Walks {
    async fn new(kind: &FaultKind, subject: u64) -> Self {
        let place = place(|builder| builder).await;
        let guest = match subject {
            0 => support::vm(1),
            _ => support::ct(2),
        };
        let directory = tempfile::tempdir().expect("a directory");
        fs_err::write(directory.path().join("x.raw"), vec![7; 64 << 10]).expect("written");
        Self {
            place,
            kind: kind.clone(),
            directory,
            guest,
            walked: 0,
        }
    }

    fn client(&self) -> Pve {
        let silent = matches!(self.kind, FaultKind::Timeout | FaultKind::LostAnswer);
        let limits = Limits {
            // Real time, unlike the rest. What never comes is not waited for long.
            answer: Duration::from_millis(if silent { 500 } else { 1500 }),
            grace: Duration::from_secs(10),
            upload_stall: Duration::from_secs(if silent { 150 } else { 3600 }),
            ..Limits::default()
        };
        // Two hours late, so that seeds without a guest are old.
        let clock = LateClock::new(&self.place.clock, Duration::from_secs(7200));
        self.place.client_by(limits, Arc::new(clock))
    }

    fn scene(&mut self) -> Scene {
        self.walked += 1;
        let name = format!("walk{}.raw", self.walked);
        let url = format!("https://example.org/{name}");
        self.place
            .world
            .offer_download(&url, 1 << 20, &"0".repeat(64));
        let sent = ImageWanted {
            file: format!("sent-{name}"),
            kind: GuestKind::Vm,
            host: "pve1".to_owned(),
            storage: Some("local".to_owned()),
            source: ImageSource::File(self.directory.path().join("x.raw")),
            checksum: None,
        };
        let fetched = ImageWanted {
            file: format!("fetched-{name}"),
            source: ImageSource::Url(url),
            checksum: Some(format!("sha256:{}", "0".repeat(64))),
            ..sent.clone()
        };
        Scene {
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

    /// Goes through a life with a fault at one call of each operation. Returns how many calls each
    /// operation made.
    async fn walk(&mut self, at: &BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, u64> {
        let pve = self.client();
        let mut scene = self.scene();
        let mut calls = BTreeMap::new();
        for (name, act, check) in OPERATIONS {
            if name == "sweep" {
                let orphan = format!("iso/homestak-{}.iso", support::uuid(77));
                let world = &self.place.world;
                world.put_file("pve1", "local", &orphan, 4096, Boots::Nothing);
            }
            let nth = at.get(name).copied();
            let case = format!(
                "{:?} at call {nth:?} of {name}, {:?}",
                self.kind, scene.guest.kind
            );
            if let Some(nth) = nth {
                let on = match self.kind {
                    // Only a list can be old.
                    FaultKind::StaleList(_) => Call::nth(nth).path("/cluster/resources"),
                    _ => Call::nth(nth),
                };
                self.place
                    .world
                    .add_fault(Fault::new(on, self.kind.clone()));
            }
            let before = pve.requests();
            let mut attempts = 0;
            while let Err(error) = act(&pve, &scene).await {
                attempts += 1;
                assert!(nth.is_some(), "without a fault: {name}: {error:?}");
                assert!(allowed(&self.kind, error.class), "{case}: {error:?}");
                assert!(attempts < 4, "{case}: {error:?}");
            }
            let made = pve.requests() - before;
            calls.insert(name, made);
            self.place.world.clear_faults();
            if name == "sweep" && matches!(self.kind, FaultKind::StaleList(_)) {
                // What an old list does not show is left for the next sweep.
                act(&pve, &scene).await.expect("swept");
            }
            self.place.settle().await;
            println!("{case}: {made} calls, {attempts} errors");
            check(&self.place, &scene);
            if name == "create" {
                scene.at = pve.create(&scene.guest).await.expect("it is there");
            }
        }
        calls
    }
}

/// Returns those that met their fault: how many calls an operation makes differs a little.
fn met(at: &BTreeMap<&'static str, u64>, calls: &BTreeMap<&'static str, u64>) -> Vec<&'static str> {
    let met = at.iter().filter(|(name, nth)| calls[*name] >= **nth);
    met.map(|(name, _)| *name).collect()
}

/// Tries a kind of fault: on every kind of guest at every call, or, as a sample, once for each
/// operation on one kind of guest. The kinds of guests take turns.
async fn try_kind(turn: u64, kind: FaultKind) {
    let mut sample = Sample::new();
    let mut cases = 0;
    let subjects = if is_full() {
        vec![0, 1]
    } else {
        vec![(turn + sample.below(2)) % 2]
    };
    for subject in subjects {
        let mut walks = Walks::new(&kind, subject).await;
        let mut open = walks.walk(&BTreeMap::new()).await;
        open.retain(|_, calls| *calls > 0);
        if is_full() {
            let most = open.values().copied().max().unwrap_or(0);
            for nth in 1..=most {
                let reached = open.iter().filter(|(_, calls)| **calls >= nth);
                let at: BTreeMap<_, _> = reached.map(|(name, _)| (*name, nth)).collect();
                cases += met(&at, &walks.walk(&at).await).len();
            }
            continue;
        }
        while !open.is_empty() {
            // Lists are few among the calls.
            let listed = matches!(kind, FaultKind::StaleList(_));
            let chosen = open.iter().map(|(name, calls)| {
                let nth = if listed { 1 } else { 1 + sample.below(*calls) };
                (*name, nth)
            });
            let at: BTreeMap<_, _> = chosen.collect();
            let calls = walks.walk(&at).await;
            for name in met(&at, &calls) {
                open.remove(name);
                cases += 1;
            }
            // Not met: sooner the next time.
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
    ($($turn:literal $name:ident = $kind:expr;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            try_kind($turn, $kind).await;
        })*
    };
}

kinds! {
    0 lives_survive_cuts_before = FaultKind::ResetBefore;
    1 lives_survive_cuts_after = FaultKind::ResetAfter;
    2 lives_survive_silence_before = FaultKind::Timeout;
    3 lives_survive_lost_answers = FaultKind::LostAnswer;
    4 lives_survive_repetition = FaultKind::RepeatedAnswer;
    5 lives_survive_a_host_that_is_not_reached = FaultKind::Status(595);
    6 lives_survive_a_broken_pipe = FaultKind::Status(596);
    7 lives_survive_an_overlong_answer = FaultKind::Status(599);
    8 lives_survive_garbage = FaultKind::Garbage;
    9 lives_survive_half_answers = FaultKind::Truncated;
    10 lives_survive_slowness = FaultKind::Slow(20.0);
    11 lives_survive_old_lists = FaultKind::StaleList(15.0);
}
