//! Hypervisors with guests in them, and records of renamed guests, on the simulator.

use homestak_engine::ports::{GuestRef, Provider as _, StopMode};
use serde_json::Value;

use crate::persistent_sim::{block_on, client, create, observe, vm};
use crate::support::{Run, TestEnv};
use crate::test_pve::TestPve;

const HYPER: &str = "  - {name: hyper, type: pve, preset: vm-large, image: pve-9, vmid: 7000}\n";
const OTHER: &str = "  - {name: other, preset: vm-small, image: debian-12, vmid: 7100}\n";
const KID: &str =
    "  - {name: kid, preset: vm-small, image: debian-12, vmid: 7002, parent: hyper}\n";

/// A site on the host `sim`, which is stopped when the test ends.
struct Sim(TestEnv);

impl Drop for Sim {
    fn drop(&mut self) {
        self.run("sim stop");
    }
}

impl Sim {
    fn with(nodes: &[&str]) -> Self {
        let sim = Self(TestEnv::new());
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
        Run::of(&mut command)
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

    /// Deletes the state directory except for the simulator's.
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

    /// Creates a foreign guest in `hyper`.
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
fn a_hypervisor_with_a_foreign_guest_is_not_destroyed_by_any_command() {
    let sim = Sim::with(&[HYPER, OTHER]);
    sim.tenant();
    let output = sim.refused("manifest destroy -M u -H sim --yes");
    assert!(output.contains("99001 (tenant)"), "{output}");
    sim.manifest(&[OTHER]);
    for verb in ["destroy", "apply --prune"] {
        let output = sim.refused(&format!("manifest {verb} -M u -H sim --yes"));
        assert!(output.contains("99001 (tenant)"), "{output}");
    }
}

#[test]
fn a_rollback_keeps_a_hypervisor_with_a_foreign_guest_and_destroys_the_rest() {
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
    let remaining = observe(&sim.endpoint()).guests;
    assert_eq!(
        remaining.iter().map(|guest| guest.vmid).collect::<Vec<_>>(),
        [7000.into()]
    );
    let remaining = observe(&sim.endpoint()["inside"][0]).guests;
    assert_eq!(
        remaining.iter().map(|guest| guest.vmid).collect::<Vec<_>>(),
        [99_001.into()]
    );
}

#[test]
fn a_hypervisor_that_was_off_during_rebuild_is_queried_once_it_runs() {
    let sim = Sim::with(&[HYPER, KID]);
    sim.tenant();
    sim.power(false);
    sim.lose_state();
    let rebuilt = sim.run("state rebuild -H sim");
    assert!(rebuilt.err.contains("1 node"), "{}", rebuilt.err);
    sim.power(true);
    // It takes some time until its API answers.
    let mut output = String::new();
    for _ in 0..600 {
        let plan = sim.run("manifest destroy -M u -H sim --dry-run");
        output = plan.out + &plan.err;
        if plan.code == 3 {
            break;
        }
        assert!(!output.contains("`hyper` is not running"), "{output}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(output.contains("99001 (tenant)"), "{output}");
    let rebuilt = sim.run("state rebuild -H sim");
    assert!(
        rebuilt.out.contains("kid"),
        "{}{}",
        rebuilt.out,
        rebuilt.err
    );
}

#[test]
fn replacing_a_hypervisor_names_the_guests_that_are_lost() {
    let sim = Sim::with(&[HYPER, KID]);
    let renumbered = HYPER.replace("7000", "7001");
    sim.manifest(&[&renumbered, KID]);
    let plan = sim.run("manifest plan -M u -H sim");
    let output = format!("{}{}", plan.out, plan.err);
    assert!(output.contains("guest 7002, with its disk"), "{output}");
    let output = sim.refused("manifest apply -M u -H sim --depth 1 --yes");
    assert!(output.contains("7002 (kid)"), "{output}");
    sim.tenant();
    let output = sim.refused("manifest apply -M u -H sim --yes");
    assert!(output.contains("99001 (tenant)"), "{output}");
    assert!(!output.contains("7002 (kid)"), "{output}");
}

#[test]
fn a_renamed_and_pruned_guest_is_no_longer_recorded() {
    let host = TestPve::quick();
    host.workers(2, "");
    let apply = [
        "manifest", "apply", "-M", "workers", "-H", "father", "--prune", "--yes",
    ];
    host.run(&apply).good();
    let guests = host.pve.guests();
    let named = |guest: &&homestak_sim::GuestFacts| guest.config["name"] == "worker-2";
    let vmid = guests.iter().find(named).unwrap().vmid;
    host.pve.rename_guest(vmid, "zzz").unwrap();
    host.workers(1, "");
    let run = host.run(&apply);
    assert!(run.err.contains("`zzz`"), "{}", run.err);
    run.good();
    assert_eq!(host.guests(), ["worker-1"]);
    let forget = host.run(&["manifest", "forget", "worker-2", "--yes"]);
    assert!(
        forget.err.contains("There is no node `worker-2`."),
        "{}",
        forget.err
    );
}
