//! The program is killed in the middle, and nothing is lost, doubled or left.

use crate::bed::Bed;

/// Whether a moment is tried: all in a full run, otherwise some, by a seed that is said.
fn moments() -> Vec<u64> {
    let full = std::env::var_os("HOMESTAK_TEST_FULL").is_some();
    if full {
        return (1..=60).collect();
    }
    let seed = std::env::var("HOMESTAK_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0u64);
    println!("HOMESTAK_TEST_SEED={seed} repeats it");
    (0..5).map(|n| 1 + (seed * 7 + n * 6) % 30).collect()
}

/// Applies until a moment; returns whether the program died there.
fn until(bed: &Bed, name: &str, moment: u64) -> bool {
    let run = bed
        .command(&["manifest", "apply", "-M", name, "-H", "local", "--yes"])
        .env("HOMESTAK_CRASH_AT", moment.to_string())
        .output()
        .unwrap();
    run.status.code().is_none()
}

#[test]
fn a_run_that_was_killed_is_finished_or_undone_with_real_nodes() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("pair", 2);
    let mut died = 0;
    for (n, moment) in moments().into_iter().enumerate() {
        if !until(&bed, "pair", moment) {
            bed.destroy("pair");
            continue;
        }
        died += 1;
        if n % 2 == 0 {
            bed.run(&["manifest", "resume", "-M", "pair", "--yes"]);
            bed.apply("pair");
            assert_eq!(bed.names(), ["peer-1", "peer-2"], "moment {moment}");
            for node in ["peer-1", "peer-2"] {
                bed.inside(node, "true").good();
            }
        } else {
            bed.run(&["manifest", "rollback", "-M", "pair", "--yes"]);
            assert_eq!(bed.names(), [""; 0], "moment {moment}");
        }
        bed.destroy("pair");
        bed.is_as_before();
    }
    assert!(died > 2, "only {died} died");
}

#[test]
fn what_a_killed_program_left_is_cleaned_away() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("pair", 2);
    for moment in moments() {
        until(&bed, "pair", moment);
        // As one that is killed while it writes.
        let half = bed.root().join(".network.json.1-0.homestak-new");
        if half.parent().is_some_and(|root| root.is_dir()) {
            std::fs::write(half, "{").unwrap();
        }
        bed.run(&["local", "clean", "--all", "--yes"]).good();
        bed.is_as_before();
        // The driver's own state still speaks of nodes that are gone; that is no obstacle.
        bed.destroy("pair");
    }
}
