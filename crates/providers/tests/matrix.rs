//! Every fault at every request of every change: at most one guest, no leftovers, the right class.
//!
//! Requests are counted in a run without faults.

#![expect(clippy::print_stdout, reason = "a failing test shows its case")]

mod support;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use homestak_engine::ports::{
    ErrorClass, Gib, GuestRef, NewGuest, PortError, Provider as _, StopMode,
};
use homestak_providers::pve::Pve;
use support::sample::{is_full, random};
use support::server::Server;
use support::world::{Fault, World};

const FAULTS: [Fault; 7] = [
    // The process crashes after this request, and another one continues.
    Fault::Silence,
    Fault::CutBefore,
    Fault::CutAfter,
    Fault::StatusAfter(596),
    Fault::StatusBefore(595),
    // Another task holds a lock, with both messages for that.
    Fault::Answer(
        500,
        "can't lock file '/var/lock/qemu-server/lock-1.conf' - got timeout",
    ),
    Fault::Answer(500, "VM is locked (backup)"),
];
/// How many requests of each operation a sample takes for each fault.
const SAMPLED: u64 = 1;

type Step<'a> = Pin<Box<dyn Future<Output = Result<(), PortError>> + 'a>>;
type Operation = for<'a> fn(&'a Pve, &'a NewGuest, &'a GuestRef) -> Step<'a>;

/// Runs an operation like the engine: errors with an unknown result are retried.
async fn run_with_retries(pve: &Pve, guest: &NewGuest, at: &GuestRef, operation: Operation) -> u32 {
    for attempt in 1..=5 {
        match operation(pve, guest, at).await {
            Ok(()) => return attempt,
            Err(error) => assert!(
                matches!(
                    error.class,
                    ErrorClass::Unreachable { .. } | ErrorClass::Broken | ErrorClass::Busy
                ),
                "{error:?}"
            ),
        }
    }
    panic!("five attempts were not enough");
}

/// Runs an operation until a response does not arrive, and drops it there.
async fn run_until_killed(
    server: &Server,
    pve: &Pve,
    guest: &NewGuest,
    at: &GuestRef,
    operation: Operation,
) {
    let met = async {
        while !server.world().faults.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // Cancel safety: dropping it anywhere is tested here.
    tokio::select! {
        result = operation(pve, guest, at) => panic!("it went through the silence: {result:?}"),
        () = met => {}
    }
}

async fn created(server: &Server, pve: &Pve, guest: &NewGuest, before: &[Operation]) -> GuestRef {
    let at = pve.create(guest).await.expect("a guest");
    for operation in before {
        operation(pve, guest, &at).await.expect("prepared");
    }
    server.world().finish();
    at
}

/// Checks the world after each fault at each request.
async fn matrix(
    world: fn() -> World,
    guest: NewGuest,
    before: &[Operation],
    operation: Operation,
    check: fn(&World, &NewGuest),
) {
    let creates = before.is_empty();
    let unlocated = GuestRef {
        uuid: guest.uuid.clone(),
        kind: guest.kind,
        vmid: None,
        host: guest.host.clone(),
    };
    let mut sample = random();
    let case = async |fault: Option<(u64, Fault)>| {
        let server = Server::start(world()).await;
        let pve = support::client(&server);
        let at = if creates {
            unlocated.clone()
        } else {
            created(&server, &pve, &guest, &before[1..]).await
        };
        let start = server.world().requests;
        match fault {
            Some((nth, fault)) => {
                let nth = start + usize::try_from(nth).expect("a small number");
                server.world().faults.insert(nth, fault);
                if fault == Fault::Silence {
                    run_until_killed(&server, &pve, &guest, &at, operation).await;
                    let successor = support::client(&server);
                    run_with_retries(&successor, &guest, &at, operation).await;
                } else {
                    run_with_retries(&pve, &guest, &at, operation).await;
                }
            }
            None => _ = run_with_retries(&pve, &guest, &at, operation).await,
        }
        assert!(server.world().faults.is_empty(), "{fault:?} was not met");
        let count = server.world().requests - start;
        server.world().finish();
        check(&server.world(), &guest);
        count as u64
    };
    // The first round has no faults, to count the requests.
    let count = case(None).await;
    let mut cases = 0;
    for fault in FAULTS {
        let nths: Vec<u64> = if is_full() {
            (0..count).collect()
        } else {
            (0..SAMPLED).map(|_| sample.below(count)).collect()
        };
        for nth in nths {
            println!("{fault:?} at request {nth} of {count}");
            case(Some((nth, fault))).await;
            cases += 1;
        }
    }
    println!("matrix cases: {cases}");
    assert!(cases >= FAULTS.len(), "hardly anything was tried");
}

fn create<'a>(pve: &'a Pve, guest: &'a NewGuest, _: &'a GuestRef) -> Step<'a> {
    Box::pin(async { pve.create(guest).await.map(|_| ()) })
}

fn start<'a>(pve: &'a Pve, _: &'a NewGuest, at: &'a GuestRef) -> Step<'a> {
    Box::pin(pve.start(at))
}

fn stop<'a>(pve: &'a Pve, _: &'a NewGuest, at: &'a GuestRef) -> Step<'a> {
    Box::pin(pve.stop(at, StopMode::Now))
}

fn grow<'a>(pve: &'a Pve, _: &'a NewGuest, at: &'a GuestRef) -> Step<'a> {
    Box::pin(pve.grow_disk(at, Gib(20)))
}

fn discard<'a>(pve: &'a Pve, _: &'a NewGuest, at: &'a GuestRef) -> Step<'a> {
    Box::pin(pve.discard_seed(at))
}

fn destroy<'a>(pve: &'a Pve, _: &'a NewGuest, at: &'a GuestRef) -> Step<'a> {
    Box::pin(pve.destroy(at))
}

fn plain() -> World {
    World::new()
}

fn one_complete_guest(world: &World, guest: &NewGuest) {
    let ours = world.tagged_with(guest.uuid.as_str());
    assert_eq!(ours.len(), 1, "{:?}", world.guests);
    let others = world.guests.len();
    assert_eq!(others, 1, "an orphan is left: {:?}", world.guests);
    let config = &world.guests[&ours[0]].config;
    assert!(!config.contains_key("lock"), "{config:?}");
    let disk = config
        .get("scsi0")
        .or(config.get("rootfs"))
        .expect("a disk");
    assert!(disk.ends_with("size=8G"), "{config:?}");
    let seeds = world
        .files
        .iter()
        .filter(|volume| volume.contains(":iso/"))
        .count();
    assert_eq!(
        seeds,
        usize::from(guest.seed.is_some()),
        "{:?}",
        world.files
    );
    assert_eq!(
        config.contains_key("ide2"),
        guest.seed.is_some(),
        "{config:?}"
    );
}

fn nothing_left(world: &World, _: &NewGuest) {
    let left: Vec<_> = world.guests.keys().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(
        !world.files.iter().any(|volume| volume.contains(":iso/")),
        "{:?}",
        world.files
    );
}

fn running(world: &World, _: &NewGuest) {
    assert!(world.guests.values().all(|guest| guest.running));
}

fn stopped(world: &World, _: &NewGuest) {
    assert!(world.guests.values().all(|guest| !guest.running));
}

fn large(world: &World, _: &NewGuest) {
    let disks = world
        .guests
        .values()
        .map(|guest| guest.config.get("scsi0").or(guest.config.get("rootfs")));
    assert!(
        disks
            .into_iter()
            .all(|disk| disk.is_some_and(|disk| disk.ends_with("size=20G")))
    );
}

fn seedless(world: &World, _: &NewGuest) {
    let config = &world.guests.values().next().expect("a guest").config;
    assert_eq!(config["ide2"], "none,media=cdrom");
    assert_eq!(config["boot"], "order=scsi0");
    assert!(
        !world.files.iter().any(|volume| volume.contains(":iso/")),
        "{:?}",
        world.files
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_a_vm_survives_every_fault() {
    matrix(plain, support::vm(1), &[], create, one_complete_guest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_a_vm_at_a_given_id_survives_every_fault() {
    let mut guest = support::vm(1);
    guest.vmid = Some(99_011.into());
    matrix(plain, guest, &[], create, one_complete_guest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_a_container_survives_every_fault() {
    matrix(plain, support::ct(1), &[], create, one_complete_guest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starting_and_stopping_survive_every_fault() {
    matrix(plain, support::vm(1), &[create], start, running).await;
    matrix(plain, support::ct(1), &[create], start, running).await;
    matrix(plain, support::vm(1), &[create, start], stop, stopped).await;
    matrix(plain, support::ct(1), &[create, start], stop, stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_survives_every_fault() {
    matrix(plain, support::vm(1), &[create], grow, large).await;
    matrix(plain, support::ct(1), &[create], grow, large).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discarding_the_seed_survives_every_fault() {
    matrix(plain, support::vm(1), &[create, start], discard, seedless).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destroying_survives_every_fault() {
    matrix(
        plain,
        support::vm(1),
        &[create, start],
        destroy,
        nothing_left,
    )
    .await;
    matrix(
        plain,
        support::ct(1),
        &[create, start],
        destroy,
        nothing_left,
    )
    .await;
}
