//! The simulator that is kept: separate commands see one World, and its server may die.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use homestak_api::runtime::WallClock;
use homestak_api::trust::{Fingerprint, Trust};
use homestak_core::doc::scalar::SiteId;
use homestak_engine::ports::{
    DiskSource, Gib, GuestKind, GuestPlan, GuestRef, GuestUuid, Inventory, Mib, NewGuest, Nic,
    Provider as _, StopMode,
};
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveSettings};
use serde_json::Value;

use crate::support::{World, mode};

/// A private place for a kept World, whose server ends with the test.
struct Place {
    world: World,
}

impl Place {
    fn new() -> Self {
        Self {
            world: World::bare(),
        }
    }

    fn directory(&self) -> PathBuf {
        self.world.home().join(".local/state/homestak/sim")
    }

    fn start(&self) -> Value {
        let run = self
            .world
            .run(&["sim", "start", "--speed", "200", "--json-output"]);
        run.json()
    }

    fn endpoint(&self) -> Value {
        let text = std::fs::read_to_string(self.directory().join("endpoint.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// A server in the hands of the test.
    fn serve(&self, arguments: &[&str]) -> Child {
        let directory = self.directory().display().to_string();
        let mut all = vec!["sim", "serve", "--state", &directory];
        all.extend(arguments);
        let mut command = self.world.command(&all);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("a server", || {
            self.directory().join("endpoint.json").exists()
        });
        child
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.world.run(&["sim", "stop"]);
    }
}

/// Looks until it is so. There is no deadline that a slow machine could miss by a little.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2_400 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("{what} never came");
}

pub(crate) fn client(endpoint: &Value) -> Pve {
    let field = |key: &str| endpoint[key].as_str().unwrap().to_owned();
    let fingerprint = Fingerprint::parse(&field("fingerprint")).unwrap();
    let settings = PveSettings::new(
        Endpoint {
            url: field("url"),
            trust: Trust::Pinned(fingerprint),
        },
        Credential::Token(ApiToken::parse(&field("token")).unwrap()),
    );
    Pve::new(settings, Arc::new(WallClock)).unwrap()
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

pub(crate) fn observe(endpoint: &Value) -> Inventory {
    block_on(client(endpoint).observe()).unwrap()
}

pub(crate) fn vm(host: &str, name: &str, nth: u32, image: &str) -> NewGuest {
    NewGuest {
        guest: GuestPlan {
            uuid: GuestUuid::new(&format!("5d1f2a3b-0000-4000-8000-{nth:012x}")).unwrap(),
            kind: GuestKind::Vm,
            host: host.to_owned(),
            vmid: Some((99_000 + nth).into()),
            cores: 1,
            memory: Mib(512),
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
        name: name.to_owned(),
        site: SiteId::from_random([7; 16]),
        manifest: "kept".to_owned(),
        run: "kept".to_owned(),
        source: DiskSource::Image(image.to_owned()),
        seed: None,
        ssh_keys: Vec::new(),
        first_form: false,
    }
}

pub(crate) fn create(endpoint: &Value, guest: &NewGuest) -> GuestRef {
    block_on(client(endpoint).create(guest)).unwrap()
}

fn kill(signal: &str, pid: &Value) {
    let done = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status()
        .unwrap();
    assert!(done.success());
}

fn is_private(path: &Path) -> bool {
    mode(path) & 0o077 == 0
}

#[test]
fn separate_commands_see_one_world_and_a_stop_keeps_it() {
    let place = Place::new();
    place.start();
    let before = place.endpoint();
    create(&before, &vm("pve1", "alpha", 1, "debian-12.qcow2"));
    assert_eq!(place.start()["pid"], before["pid"], "one server serves all");
    place.world.run(&["sim", "stop"]).good();
    assert!(!place.directory().join("endpoint.json").exists());
    let status = place.world.run(&["sim", "status", "--json-output"]).json();
    assert_eq!(
        (&status["running"], &status["guests"]),
        (&false.into(), &1.into())
    );
    place.start();
    let after = place.endpoint();
    assert_ne!(after["pid"], before["pid"]);
    for same in ["token", "fingerprint"] {
        assert_eq!(after[same], before[same], "{same}");
    }
    let guests = observe(&after).guests;
    assert_eq!((guests.len(), guests[0].name.as_str()), (1, "alpha"));
}

#[test]
fn only_its_owner_reads_what_is_kept_and_its_token_is_its_own() {
    let (one, other) = (Place::new(), Place::new());
    one.start();
    other.start();
    assert!(is_private(&one.directory()));
    for name in ["world.json", "endpoint.json", "secrets.json", "serve.log"] {
        assert!(is_private(&one.directory().join(name)), "{name}");
    }
    assert_ne!(one.endpoint()["token"], other.endpoint()["token"]);
    let shown = one.world.run(&["sim", "status"]).good();
    let token = one.endpoint()["token"].as_str().unwrap().to_owned();
    assert!(!shown.contains(&token), "a token is not shown unasked");
}

#[test]
fn those_who_start_at_once_end_up_with_one_server() {
    let place = Place::new();
    let starts: Vec<Child> = (0..4)
        .map(|_| {
            let mut command = place.world.command(&["sim", "start", "--json-output"]);
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let pids: Vec<Value> = starts
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let json: Value = serde_json::from_slice(&output.stdout).unwrap();
            json["pid"].clone()
        })
        .collect();
    assert!(
        pids.iter().all(|pid| pid.is_u64() && *pid == pids[0]),
        "{pids:?}"
    );
}

#[test]
fn a_second_server_of_one_directory_is_refused() {
    let place = Place::new();
    place.start();
    let directory = place.directory().display().to_string();
    let run = place.world.run(&["sim", "serve", "--state", &directory]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("homestak sim stop"), "{}", run.err);
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_a_task_leaves_what_a_loss_of_power_leaves() {
    let place = Place::new();
    // Ten times slower than the wall clock, so that copying an image takes seconds.
    let mut server = place.serve(&["--speed", "0.1"]);
    let endpoint = place.endpoint();
    let guest = vm("pve1", "alpha", 1, "debian-12.qcow2");
    let creating = std::thread::spawn({
        let (endpoint, guest) = (endpoint.clone(), guest.clone());
        move || {
            block_on(async {
                let client = client(&endpoint);
                tokio::time::timeout(Duration::from_secs(5), client.create(&guest)).await
            })
        }
    });
    let saved = place.directory().join("world.json");
    wait_for("a guest that is being made", || {
        std::fs::read_to_string(&saved).is_ok_and(|text| text.contains("\"lock\":\"create\""))
    });
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(
        !matches!(creating.join().unwrap(), Ok(Ok(_))),
        "it was not made"
    );
    assert!(
        place.directory().join("endpoint.json").exists(),
        "nobody cleared up"
    );

    place.start();
    let endpoint = place.endpoint();
    let guests = observe(&endpoint).guests;
    assert_eq!(guests.len(), 1, "nothing is doubled: {guests:?}");
    assert_eq!(
        (guests[0].vmid, guests[0].lock.as_deref()),
        (99_001.into(), Some("create"))
    );
    create(&endpoint, &vm("pve1", "beta", 2, "debian-12.qcow2"));
    assert_eq!(observe(&endpoint).guests.len(), 2, "the rest goes on");
}

#[test]
fn a_server_without_calls_ends_by_itself() {
    let place = Place::new();
    let mut server = place.serve(&["--idle", "1"]);
    assert!(server.wait().unwrap().success());
    assert!(!place.directory().join("endpoint.json").exists());
    assert!(place.directory().join("world.json").exists());
}

#[test]
fn a_server_ends_when_it_is_asked_to_and_when_its_directory_is_gone() {
    let place = Place::new();
    let mut server = place.serve(&[]);
    kill("-TERM", &server.id().into());
    assert!(server.wait().unwrap().success());
    assert!(!place.directory().join("endpoint.json").exists());
    let mut server = place.serve(&[]);
    std::fs::remove_dir_all(place.directory()).unwrap();
    assert!(server.wait().unwrap().success());
    assert!(!place.directory().exists(), "it does not come back");
}

#[test]
fn a_reset_forgets_everything() {
    let place = Place::new();
    place.start();
    let before = place.endpoint();
    create(&before, &vm("pve1", "alpha", 1, "debian-12.qcow2"));
    place.world.run(&["sim", "reset"]).good();
    place.start();
    assert!(observe(&place.endpoint()).guests.is_empty());
}

#[test]
fn something_else_in_the_directory_is_not_taken_for_a_world() {
    let place = Place::new();
    std::fs::create_dir_all(place.directory()).unwrap();
    std::fs::write(place.directory().join("world.json"), "not a world").unwrap();
    let run = place.world.run(&["sim", "start"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("homestak sim reset"), "{}", run.err);
}

#[test]
fn a_hypervisor_inside_is_reached_while_it_runs_and_is_kept() {
    let place = Place::new();
    place.start();
    let outer = place.endpoint();
    let machine = create(&outer, &vm("pve1", "deep", 1, "pve-9.qcow2"));
    block_on(client(&outer).start(&machine)).unwrap();
    let inside = || place.endpoint()["inside"][0].clone();
    wait_for("an API inside", || inside().is_object());
    let first = inside();
    let seen = block_on(client(&outer).address(&machine)).unwrap();
    assert_eq!(
        first["address"],
        seen.address().unwrap().to_string(),
        "found by its address"
    );
    let child = create(&first, &vm("deep", "leaf", 2, "debian-12.qcow2"));
    assert_eq!(child.host, "deep");
    assert_eq!(
        observe(&outer).guests.len(),
        1,
        "the outer host does not see it"
    );

    place.world.run(&["sim", "stop"]).good();
    place.start();
    wait_for("the API inside, again", || inside().is_object());
    let guests = observe(&inside()).guests;
    assert_eq!((guests.len(), guests[0].name.as_str()), (1, "leaf"));

    let again = inside();
    block_on(client(&place.endpoint()).stop(&machine, StopMode::Now)).unwrap();
    wait_for("the end of the API inside", || inside().is_null());
    assert!(
        block_on(client(&again).observe()).is_err(),
        "its machine is off"
    );
}
