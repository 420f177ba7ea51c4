//! The persistent simulator: separate commands share one World, and its server may be killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use homestak_api::runtime::WallClock;
use homestak_api::trust::{Fingerprint, Trust};
use homestak_api::v1::Program;
use homestak_core::doc::scalar::SiteId;
use homestak_engine::ports::{
    DiskSource, Gib, GuestKind, GuestPlan, GuestRef, GuestUuid, Inventory, Mib, NewGuest, Nic,
    Provider as _, StopMode,
};
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveSettings};
use homestak_test_support::output;
use serde_json::Value;

use crate::support::{Run, TestEnv, mode};

/// A persistent simulator whose server is stopped when the test ends.
struct PersistentSim {
    env: TestEnv,
}

impl PersistentSim {
    fn new() -> Self {
        Self {
            env: TestEnv::without_site(),
        }
    }

    fn directory(&self) -> PathBuf {
        self.env.home().join(".local/state/homestak/sim")
    }

    fn start(&self) -> Value {
        let run = self
            .env
            .run(&["sim", "start", "--speed", "200", "--json-output"]);
        run.json()
    }

    fn endpoint(&self) -> Value {
        let text = std::fs::read_to_string(self.directory().join("endpoint.json")).unwrap();
        let endpoint = serde_json::from_str(&text).unwrap();
        output::check_untagged(Program::Homestak, "sim-endpoint", &endpoint);
        endpoint
    }

    /// Starts a server as a child of the test.
    fn serve(&self, arguments: &[&str]) -> Child {
        let directory = self.directory().display().to_string();
        let mut all = vec!["sim", "serve", "--state", &directory];
        all.extend(arguments);
        let mut command = self.env.command(&all);
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

impl Drop for PersistentSim {
    fn drop(&mut self) {
        self.env.run(&["sim", "stop"]);
    }
}

/// Polls until the condition holds; the limit of a minute is generous for slow machines.
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..2_400 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("{what}: timeout");
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
        manifest: "persistent".to_owned(),
        run: "persistent".to_owned(),
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
fn separate_commands_share_one_simulator_and_its_state_survives_a_stop() {
    let sim = PersistentSim::new();
    sim.start();
    let before = sim.endpoint();
    create(&before, &vm("pve1", "alpha", 1, "debian-12.qcow2"));
    assert_eq!(sim.start()["pid"], before["pid"], "one server serves all");
    sim.env.run(&["sim", "stop"]).good();
    assert!(!sim.directory().join("endpoint.json").exists());
    let status = sim.env.run(&["sim", "status", "--json-output"]).json();
    assert_eq!(
        (&status["running"], &status["guests"]),
        (&false.into(), &1.into())
    );
    sim.start();
    let after = sim.endpoint();
    assert_ne!(after["pid"], before["pid"]);
    for same in ["token", "fingerprint"] {
        assert_eq!(after[same], before[same], "{same}");
    }
    let guests = observe(&after).guests;
    assert_eq!((guests.len(), guests[0].name.as_str()), (1, "alpha"));
}

#[test]
fn simulator_files_are_private_and_tokens_are_unique() {
    let (one, other) = (PersistentSim::new(), PersistentSim::new());
    one.start();
    other.start();
    assert!(is_private(&one.directory()));
    for name in ["world.json", "endpoint.json", "secrets.json", "serve.log"] {
        assert!(is_private(&one.directory().join(name)), "{name}");
    }
    assert_ne!(one.endpoint()["token"], other.endpoint()["token"]);
    let shown = one.env.run(&["sim", "status"]).good();
    let token = one.endpoint()["token"].as_str().unwrap().to_owned();
    assert!(!shown.contains(&token), "the token is not shown");
}

#[test]
fn concurrent_starts_share_one_server() {
    let sim = PersistentSim::new();
    let starts: Vec<(Command, Child)> = (0..4)
        .map(|_| {
            let mut command = sim.env.command(&["sim", "start", "--json-output"]);
            command.stdout(Stdio::piped()).stderr(Stdio::null());
            let child = command.spawn().unwrap();
            (command, child)
        })
        .collect();
    let pids: Vec<Value> = starts
        .into_iter()
        .map(|(command, child)| {
            let output = child.wait_with_output().unwrap();
            Run::of_output(&command, output).json()["pid"].clone()
        })
        .collect();
    assert!(
        pids.iter().all(|pid| pid.is_u64() && *pid == pids[0]),
        "{pids:?}"
    );
}

#[test]
fn a_second_server_of_one_directory_is_refused() {
    let sim = PersistentSim::new();
    sim.start();
    let directory = sim.directory().display().to_string();
    let run = sim.env.run(&["sim", "serve", "--state", &directory]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("homestak sim stop"), "{}", run.err);
}

#[test]
fn a_server_killed_during_a_task_leaves_a_locked_guest() {
    let sim = PersistentSim::new();
    // Ten times slower than the wall clock, so that copying an image takes seconds.
    let mut server = sim.serve(&["--speed", "0.1"]);
    let endpoint = sim.endpoint();
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
    let saved = sim.directory().join("world.json");
    wait_for("a guest that is being created", || {
        std::fs::read_to_string(&saved).is_ok_and(|text| text.contains("\"lock\":\"create\""))
    });
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(
        !matches!(creating.join().unwrap(), Ok(Ok(_))),
        "it was not created"
    );
    assert!(
        sim.directory().join("endpoint.json").exists(),
        "the killed server cannot delete it"
    );

    sim.start();
    let endpoint = sim.endpoint();
    let guests = observe(&endpoint).guests;
    assert_eq!(guests.len(), 1, "no guest is duplicated: {guests:?}");
    assert_eq!(
        (guests[0].vmid, guests[0].lock.as_deref()),
        (99_001.into(), Some("create"))
    );
    create(&endpoint, &vm("pve1", "beta", 2, "debian-12.qcow2"));
    assert_eq!(observe(&endpoint).guests.len(), 2, "other tasks work");
}

#[test]
fn an_idle_server_exits() {
    let sim = PersistentSim::new();
    let mut server = sim.serve(&["--idle", "1"]);
    assert!(server.wait().unwrap().success());
    assert!(!sim.directory().join("endpoint.json").exists());
    assert!(sim.directory().join("world.json").exists());
}

#[test]
fn a_server_exits_on_sigterm_and_when_its_directory_is_deleted() {
    let sim = PersistentSim::new();
    let mut server = sim.serve(&[]);
    kill("-TERM", &server.id().into());
    assert!(server.wait().unwrap().success());
    assert!(!sim.directory().join("endpoint.json").exists());
    let mut server = sim.serve(&[]);
    std::fs::remove_dir_all(sim.directory()).unwrap();
    assert!(server.wait().unwrap().success());
    assert!(!sim.directory().exists(), "it is not created again");
}

#[test]
fn a_reset_deletes_the_simulated_state() {
    let sim = PersistentSim::new();
    sim.start();
    let before = sim.endpoint();
    create(&before, &vm("pve1", "alpha", 1, "debian-12.qcow2"));
    sim.env.run(&["sim", "reset"]).good();
    sim.start();
    assert!(observe(&sim.endpoint()).guests.is_empty());
}

#[test]
fn an_invalid_world_file_is_an_error() {
    let sim = PersistentSim::new();
    std::fs::create_dir_all(sim.directory()).unwrap();
    std::fs::write(sim.directory().join("world.json"), "not a world").unwrap();
    let run = sim.env.run(&["sim", "start"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("homestak sim reset"), "{}", run.err);
}

#[test]
fn a_nested_hypervisor_is_reachable_while_it_runs_and_survives_a_restart() {
    let sim = PersistentSim::new();
    sim.start();
    let outer = sim.endpoint();
    let machine = create(&outer, &vm("pve1", "deep", 1, "pve-9.qcow2"));
    block_on(client(&outer).start(&machine)).unwrap();
    let inside = || sim.endpoint()["inside"][0].clone();
    wait_for("an API inside", || inside().is_object());
    let first = inside();
    let observed = block_on(client(&outer).address(&machine)).unwrap();
    assert_eq!(
        first["address"],
        observed.address().unwrap().to_string(),
        "found by its address"
    );
    let child = create(&first, &vm("deep", "leaf", 2, "debian-12.qcow2"));
    assert_eq!(child.host, "deep");
    assert_eq!(
        observe(&outer).guests.len(),
        1,
        "the outer host does not see it"
    );

    sim.env.run(&["sim", "stop"]).good();
    sim.start();
    wait_for("the API inside, again", || inside().is_object());
    let guests = observe(&inside()).guests;
    assert_eq!((guests.len(), guests[0].name.as_str()), (1, "leaf"));

    let again = inside();
    block_on(client(&sim.endpoint()).stop(&machine, StopMode::Now)).unwrap();
    wait_for("the end of the API inside", || inside().is_null());
    assert!(
        block_on(client(&again).observe()).is_err(),
        "its machine is off"
    );
}
