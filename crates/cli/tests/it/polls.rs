//! How many requests an apply sends.

use homestak_sim::{Pace, Timing};

use crate::father::Father;

/// Requests of an apply of two containers before waits were bounded, as measured on this simulator.
const BEFORE: u64 = 109;

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
    let sent: u64 = calls.values().sum();
    let polls = calls.get("GET /nodes/pve1/tasks/*/status").unwrap_or(&0);
    println!("{sent} requests, {polls} of them polls: {calls:#?}");
    assert!(sent <= BEFORE / 2, "{sent} requests: {calls:#?}");
}
