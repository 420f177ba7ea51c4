//! How many requests an apply sends.

use homestak_sim::{Pace, Timing};

use crate::test_pve::TestPve;

/// Requests of the same apply before polls were reduced, and how many of them were polls.
const BEFORE: (u64, u64) = (136, 69);
/// Maximum of requests that do not depend on how long guests take.
const FIXED: u64 = 33;

#[test]
fn applying_two_containers_sends_a_bounded_number_of_requests() {
    let host = TestPve::new(Pace::Real, Timing::default());
    host.manifest(
        "boxes",
        "",
        "  - {name: box-1, type: ct, preset: vm-small, template: debian-12-standard}
  - {name: box-2, type: ct, preset: vm-small, template: debian-12-standard}\n",
    );
    let run = host.run(&["manifest", "apply", "-M", "boxes", "-H", "father", "--yes"]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let calls = host.pve.calls();
    let of = |call: &str| calls.get(call).copied().unwrap_or_default();
    let sent: u64 = calls.values().sum();
    let polls = of("GET /nodes/pve1/tasks/*/status");
    // Each request for addresses is preceded by one that checks the identity of the guest.
    let address_reads = 2 * of("GET /nodes/pve1/lxc/*/interfaces");
    let counted = format!(
        "{sent} requests, {polls} polls, {address_reads} to look for addresses: {calls:#?}"
    );
    println!("{counted}");
    // The number of polls depends on the load of this machine, so the limits leave a margin.
    assert!(sent <= BEFORE.0 / 2, "{counted}");
    assert!(polls <= BEFORE.1 / 2, "{counted}");
    assert!(sent - polls - address_reads <= FIXED, "{counted}");
}
