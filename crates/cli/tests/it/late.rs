//! A host whose list of guests is seconds late.

use homestak_sim::{Call, Fault, FaultKind};

use crate::father::Father;

#[test]
fn a_list_that_is_late_is_not_believed_against_a_closer_look() {
    let father = Father::quick();
    father.single();
    let start = Call::any().method("POST").path("/status/start");
    let refused = Fault::new(start, FaultKind::Status(501));
    father.pve.add_fault(refused);
    let on = ["-M", "single-node", "-H", "father"];
    let apply: Vec<&str> = ["manifest", "apply"].iter().chain(&on).copied().collect();
    let plan: Vec<&str> = ["manifest", "plan"].iter().chain(&on).copied().collect();
    assert_eq!(father.run(&apply).code, 1);
    assert_eq!(father.guests(), ["test-vm (off)"]);
    father.pve.clear_faults();
    // As many as are remembered, so that the oldest shows it switched off.
    for _ in 0..64 {
        assert!(father.run(&plan).out.contains("start"));
    }
    let run = father.run(&apply);
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(father.guests(), ["test-vm"]);
    let list = Call::any().method("GET").path("cluster/resources");
    father
        .pve
        .add_fault(Fault::new(list, FaultKind::StaleList(1e9)));
    let seen = father.run(&plan);
    let seen = format!("{}{}", seen.out, seen.err);
    assert!(seen.contains("Nothing to do."), "{seen}");
}

#[test]
fn a_change_that_waits_for_a_restart_is_in_the_plan_until_the_machine_restarts() {
    let father = Father::quick();
    father.single();
    let on = ["-M", "single-node", "-H", "father"];
    let run = |verb: &str| father.run(&[&["manifest", verb], &on[..]].concat());
    let applied = run("apply");
    assert_eq!(applied.code, 0, "{}", applied.err);
    // Someone gives it what the manifest will ask for, while it runs.
    let vmid = father.pve.guests()[0].vmid;
    father
        .pve
        .change_guest(vmid, &[("memory", "3072")])
        .unwrap();
    father.site.write(
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
