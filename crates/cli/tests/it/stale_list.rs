//! A host whose list of guests is stale, and changes that are pending until a restart.

use homestak_sim::{Call, Fault, FaultKind};

use crate::test_pve::TestPve;

#[test]
fn a_stale_guest_list_does_not_override_the_state_of_the_guest() {
    let host = TestPve::quick();
    host.single();
    let start = Call::any().method("POST").path("/status/start");
    let refused = Fault::new(start, FaultKind::Status(501));
    host.pve.add_fault(refused);
    let on = ["-M", "single-node", "-H", "father"];
    let apply: Vec<&str> = ["manifest", "apply"].iter().chain(&on).copied().collect();
    let plan: Vec<&str> = ["manifest", "plan"].iter().chain(&on).copied().collect();
    assert_eq!(host.run(&apply).code, 1);
    assert_eq!(host.guests(), ["test-vm (off)"]);
    host.pve.clear_faults();
    // Fills the 64 lists that the simulator stores, so that the oldest lists the guest as stopped.
    for _ in 0..64 {
        assert!(host.run(&plan).out.contains("start"));
    }
    let run = host.run(&apply);
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(host.guests(), ["test-vm"]);
    let list = Call::any().method("GET").path("cluster/resources");
    host.pve
        .add_fault(Fault::new(list, FaultKind::StaleList(1e9)));
    let output = host.run(&plan);
    let output = format!("{}{}", output.out, output.err);
    assert!(output.contains("Nothing to do."), "{output}");
}

#[test]
fn a_pending_change_stays_in_the_plan_until_the_machine_restarts() {
    let host = TestPve::quick();
    host.single();
    let on = ["-M", "single-node", "-H", "father"];
    let run = |verb: &str| host.run(&[&["manifest", verb], &on[..]].concat());
    let applied = run("apply");
    assert_eq!(applied.code, 0, "{}", applied.err);
    // The new size is set manually while the machine runs, so that it is pending until a restart.
    let vmid = host.pve.guests()[0].vmid;
    host.pve.change_guest(vmid, &[("memory", "3072")]).unwrap();
    host.env.write(
        "presets/vm-small.yaml",
        "description: more\ncores: 2\nmemory: 3072\ndisk: 10\n",
    );
    let plan = run("plan");
    assert!(plan.out.contains("change"), "{}{}", plan.out, plan.err);
    assert!(!plan.out.contains("Nothing to do"), "{}", plan.out);
    let applied = run("apply");
    assert_eq!(applied.code, 0, "{}", applied.err);
    let plan = run("plan");
    let shown = format!("{}{}", plan.out, plan.err);
    assert!(shown.contains("Nothing to do."), "{shown}");
}
