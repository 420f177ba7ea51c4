//! How many requests an apply sends.

use homestak_sim::{Pace, Timing};

use crate::father::Father;

/// Requests of the same apply before waits were bounded, and how many of them were polls.
const BEFORE: (u64, u64) = (136, 69);
/// At most so many are sent however long guests take.
const FIXED: u64 = 33;

#[test]
fn an_apply_of_two_containers_sends_half_as_many_requests_as_it_once_did() {
    let father = Father::new(Pace::Real, Timing::default());
    father.manifest(
        "boxes",
        "",
        "  - {name: box-1, type: ct, preset: vm-small, template: debian-12-standard}
  - {name: box-2, type: ct, preset: vm-small, template: debian-12-standard}\n",
    );
    let run = father.run(&["manifest", "apply", "-M", "boxes", "-H", "father", "--yes"]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let calls = father.pve.calls();
    let of = |call: &str| calls.get(call).copied().unwrap_or_default();
    let sent: u64 = calls.values().sum();
    let polls = of("GET /nodes/pve1/tasks/*/status");
    // Each look for an address reads first whether the guest is still ours.
    let looks = 2 * of("GET /nodes/pve1/lxc/*/interfaces");
    let counted =
        format!("{sent} requests, {polls} polls, {looks} to look for addresses: {calls:#?}");
    println!("{counted}");
    // How often a wait looks depends on how busy this machine is: it may take half as much again.
    assert!(sent <= BEFORE.0 / 2, "{counted}");
    assert!(polls <= BEFORE.1 / 2, "{counted}");
    assert!(sent - polls - looks <= FIXED, "{counted}");
}
