//! What a node uses too much of is its own loss.

use crate::bed::Bed;

#[test]
fn memory_beyond_the_limit_ends_a_process_inside_and_nothing_outside() {
    let Some(bed) = Bed::new() else { return };
    bed.peers("greedy", 1);
    bed.apply("greedy");
    // Half of the limit is fine, twice as much is not.
    let eat = |mib: u32| {
        format!("head -c {mib}M /dev/zero | tail -c {mib}M >/dev/null; echo ${{PIPESTATUS[1]}}")
    };
    assert_eq!(bed.inside("peer-1", &eat(200)).good().trim(), "0");
    let said = bed.inside("peer-1", &eat(1_024));
    assert_ne!(said.out.trim(), "0", "{}", said.err);
    // The node goes on.
    bed.inside("peer-1", "true").good();
    bed.destroy("greedy");
    bed.is_as_before();
}

#[test]
fn a_burst_of_processes_is_stopped_at_the_nodes_own_limit() {
    let Some(bed) = Bed::new() else { return };
    bed.peers("burst", 1);
    bed.apply("burst");
    let burst = "for n in $(seq 6000); do sleep 20 & done 2>&1 | grep -c -i -m1 'fork'";
    let said = bed.inside(
        "peer-1",
        &format!("timeout 60 bash -c \"{}\"", burst.replace('$', "\\$")),
    );
    assert!(
        said.out.trim() == "1" || said.code != 0,
        "{} {}",
        said.out,
        said.err
    );
    assert_eq!(bed.run(&["local", "show"]).code, 0);
    bed.destroy("burst");
    bed.is_as_before();
}
