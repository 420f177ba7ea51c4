//! Hypervisors that go with guests in them, and names of guests that were removed, on the simulator.

use homestak_engine::ports::{GuestRef, Provider as _, StopMode};
use serde_json::Value;

use crate::father::Father;
use crate::kept::{block_on, client, create, observe, vm};
use crate::support::{Run, World};

const HYPER: &str = "  - {name: hyper, type: pve, preset: vm-large, image: pve-9, vmid: 7000}\n";
const OTHER: &str = "  - {name: other, preset: vm-small, image: debian-12, vmid: 7100}\n";
const KID: &str =
    "  - {name: kid, preset: vm-small, image: debian-12, vmid: 7002, parent: hyper}\n";

/// A site on the host `sim`, which ends with the test.
struct Sim(World);

impl Drop for Sim {
    fn drop(&mut self) {
        self.run("sim stop");
    }
}

impl Sim {
    fn with(nodes: &[&str]) -> Self {
        let sim = Self(World::new());
        sim.manifest(nodes);
        sim.run("manifest apply -M u -H sim").good();
        sim
    }

    fn manifest(&self, nodes: &[&str]) {
        let text = format!("schema_version: 2\nname: u\nnodes:\n{}", nodes.concat());
        self.0.write("manifests/u.yaml", &text);
    }

    fn run(&self, line: &str) -> Run {
        let arguments: Vec<&str> = line.split(' ').collect();
        let mut command = self.0.command(&arguments);
        command
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_SIM_SPEED", "200");
        command.output().map(Run::from).unwrap()
    }

    fn endpoint(&self) -> Value {
        let file = ".local/state/homestak/sim/endpoint.json";
        let text = std::fs::read_to_string(self.0.home().join(file)).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Switches `hyper` off, or starts it.
    fn power(&self, on: bool) {
        let endpoint = self.endpoint();
        let guests = observe(&endpoint).guests;
        let hyper = guests
            .into_iter()
            .find(|guest| guest.vmid == 7000.into())
            .unwrap();
        let hyper = GuestRef {
            uuid: hyper.uuid.unwrap(),
            kind: hyper.kind,
            vmid: Some(hyper.vmid),
            host: hyper.host,
        };
        let pve = client(&endpoint);
        let done = match on {
            true => block_on(pve.start(&hyper)),
            false => block_on(pve.stop(&hyper, StopMode::Now)),
        };
        done.unwrap();
    }

    /// Removes everything that is remembered but the simulator.
    fn lose_state(&self) {
        let state = self.0.home().join(".local/state/homestak");
        for entry in std::fs::read_dir(state).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() == "sim" {
                continue;
            }
            match entry.file_type().unwrap().is_dir() {
                true => std::fs::remove_dir_all(entry.path()).unwrap(),
                false => std::fs::remove_file(entry.path()).unwrap(),
            }
        }
    }

    /// Creates a guest of someone else in `hyper`.
    fn tenant(&self) {
        let inside = &self.endpoint()["inside"][0];
        create(inside, &vm("hyper", "tenant", 1, "debian-12.qcow2"));
    }

    /// Runs a command that must be refused, and returns what it printed.
    fn refused(&self, line: &str) -> String {
        let run = self.run(line);
        assert_eq!(run.code, 3, "{line}\n{}{}", run.out, run.err);
        run.out + &run.err
    }
}

#[test]
fn a_hypervisor_with_a_guest_of_someone_else_in_it_is_not_removed_by_any_command() {
    let sim = Sim::with(&[HYPER, OTHER]);
    sim.tenant();
    let said = sim.refused("manifest destroy -M u -H sim --yes");
    assert!(said.contains("99001 (tenant)"), "{said}");
    sim.manifest(&[OTHER]);
    for verb in ["destroy", "apply --prune"] {
        let said = sim.refused(&format!("manifest {verb} -M u -H sim --yes"));
        assert!(said.contains("99001 (tenant)"), "{said}");
    }
}

#[test]
fn rolling_back_names_the_guest_that_keeps_a_hypervisor_and_removes_the_rest() {
    let sim = Sim::with(&[HYPER, OTHER, KID]);
    sim.tenant();
    let dry = sim.run("manifest rollback -M u -H sim --dry-run");
    assert!(
        dry.out.contains("cannot be reverted: hyper: guests in it that this run does not delete would be destroyed with it: 99001 (tenant)"),
        "{}",
        dry.out
    );
    let run = sim.run("manifest rollback -M u -H sim --yes");
    assert_eq!(run.code, 5, "{}{}", run.out, run.err);
    assert!(run.err.contains("99001 (tenant)"), "{}", run.err);
    let left = observe(&sim.endpoint()).guests;
    assert_eq!(
        left.iter().map(|guest| guest.vmid).collect::<Vec<_>>(),
        [7000.into()]
    );
    let left = observe(&sim.endpoint()["inside"][0]).guests;
    assert_eq!(
        left.iter().map(|guest| guest.vmid).collect::<Vec<_>>(),
        [99_001.into()]
    );
}

#[test]
fn a_hypervisor_that_was_off_when_records_came_back_is_asked_once_it_runs() {
    let sim = Sim::with(&[HYPER, KID]);
    sim.tenant();
    sim.power(false);
    sim.lose_state();
    let rebuilt = sim.run("state rebuild -H sim");
    assert!(rebuilt.err.contains("1 node"), "{}", rebuilt.err);
    sim.power(true);
    // It answers after a while.
    let mut said = String::new();
    for _ in 0..600 {
        let plan = sim.run("manifest destroy -M u -H sim --dry-run");
        said = plan.out + &plan.err;
        if plan.code == 3 {
            break;
        }
        assert!(!said.contains("`hyper` is not running"), "{said}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(said.contains("99001 (tenant)"), "{said}");
    let rebuilt = sim.run("state rebuild -H sim");
    assert!(
        rebuilt.out.contains("kid"),
        "{}{}",
        rebuilt.out,
        rebuilt.err
    );
}

#[test]
fn replacing_a_hypervisor_names_the_guests_that_it_loses() {
    let sim = Sim::with(&[HYPER, KID]);
    let moved = HYPER.replace("7000", "7001");
    sim.manifest(&[&moved, KID]);
    let plan = sim.run("manifest plan -M u -H sim");
    let said = format!("{}{}", plan.out, plan.err);
    assert!(said.contains("guest 7002, with its disk"), "{said}");
    let said = sim.refused("manifest apply -M u -H sim --depth 1 --yes");
    assert!(said.contains("7002 (kid)"), "{said}");
    sim.tenant();
    let said = sim.refused("manifest apply -M u -H sim --yes");
    assert!(said.contains("99001 (tenant)"), "{said}");
    assert!(!said.contains("7002 (kid)"), "{said}");
}

#[test]
fn a_guest_that_was_renamed_and_pruned_is_known_under_no_name() {
    let father = Father::quick();
    father.workers(2, "");
    let apply = [
        "manifest", "apply", "-M", "workers", "-H", "father", "--prune", "--yes",
    ];
    father.run(&apply).good();
    let guests = father.pve.guests();
    let named = |guest: &&homestak_sim::GuestFacts| guest.config["name"] == "worker-2";
    let vmid = guests.iter().find(named).unwrap().vmid;
    father.pve.rename_guest(vmid, "zzz").unwrap();
    father.workers(1, "");
    let run = father.run(&apply);
    assert!(run.err.contains("`zzz`"), "{}", run.err);
    run.good();
    assert_eq!(father.guests(), ["worker-1"]);
    let forget = father.run(&["manifest", "forget", "worker-2", "--yes"]);
    assert!(
        forget.err.contains("There is no node `worker-2`."),
        "{}",
        forget.err
    );
}
