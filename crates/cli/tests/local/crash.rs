//! The program is killed during a run, and nothing is lost, duplicated or left behind.

use crate::test_host::TestHost;

/// Crash points to try: all in a full run, otherwise a sample by a seed that is printed.
fn crash_points() -> Vec<u64> {
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

/// Applies until a crash point; returns whether the program was killed there.
fn apply_until(host: &TestHost, name: &str, crash_point: u64) -> bool {
    let run = host
        .command(&["manifest", "apply", "-M", name, "-H", "local", "--yes"])
        .env("HOMESTAK_CRASH_AT", crash_point.to_string())
        .output()
        .unwrap();
    run.status.code().is_none()
}

#[test]
fn a_killed_run_on_real_nodes_can_be_resumed_or_rolled_back() {
    let Some(host) = crate::host() else { return };
    host.peers("pair", 2);
    let mut killed = 0;
    for (n, crash_point) in crash_points().into_iter().enumerate() {
        if !apply_until(&host, "pair", crash_point) {
            host.destroy("pair");
            continue;
        }
        killed += 1;
        if n % 2 == 0 {
            host.run(&["manifest", "resume", "-M", "pair", "--yes"]);
            host.apply("pair");
            assert_eq!(
                host.names(),
                ["peer-1", "peer-2"],
                "crash point {crash_point}"
            );
            for node in ["peer-1", "peer-2"] {
                host.inside(node, "true").good();
            }
        } else {
            host.run(&["manifest", "rollback", "-M", "pair", "--yes"]);
            assert_eq!(host.names(), [""; 0], "crash point {crash_point}");
        }
        host.destroy("pair");
        host.assert_unchanged();
    }
    assert!(killed > 2, "only {killed} were killed");
}

#[test]
fn clean_removes_leftovers_of_a_killed_program() {
    let Some(host) = crate::host() else { return };
    host.peers("pair", 2);
    for crash_point in crash_points() {
        apply_until(&host, "pair", crash_point);
        // Like a program that is killed while writing.
        let half = host.root().join(".network.json.1-0.homestak-new");
        if half.parent().is_some_and(|root| root.is_dir()) {
            std::fs::write(half, "{").unwrap();
        }
        host.run(&["local", "clean", "--all", "--yes"]).good();
        host.assert_unchanged();
        // The state of the driver still records the deleted nodes; destroying them succeeds.
        host.destroy("pair");
    }
}
