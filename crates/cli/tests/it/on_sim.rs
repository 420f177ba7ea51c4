//! Manifests on the host `sim`, which needs no set-up: nested machines too.

use serde_json::Value;

use crate::father::order;
use crate::support::{Run, World};

fn run(world: &World, arguments: &[&str]) -> Run {
    world
        .command(arguments)
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_SIM_SPEED", "200")
        .output()
        .map(Run::from)
        .unwrap()
}

/// Applies and destroys a manifest of the stock site, and returns in which order.
fn there_and_back(manifest: &str) -> (Vec<String>, Vec<String>) {
    let world = World::new();
    let made = run(
        &world,
        &["manifest", "apply", "-M", manifest, "-H", "sim", "--events"],
    )
    .good();
    let again = run(&world, &["manifest", "apply", "-M", manifest, "-H", "sim"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    let gone = run(
        &world,
        &[
            "manifest", "destroy", "-M", manifest, "-H", "sim", "--yes", "--events",
        ],
    )
    .good();
    let again = run(
        &world,
        &["manifest", "destroy", "-M", manifest, "-H", "sim"],
    );
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    run(&world, &["sim", "stop"]).good();
    // A child begins when its parent is ready, not just made.
    for (at, node) in order(&made, "create").iter().enumerate().skip(1) {
        let above = &order(&made, "ready")[at - 1];
        assert_ne!(above, node);
    }
    (order(&made, "create"), order(&gone, "destroy"))
}

#[test]
fn st_3_a_hypervisor_comes_before_what_runs_on_it_and_goes_after_it() {
    let (made, gone) = there_and_back("n2-tiered");
    assert_eq!(made, ["root-pve", "edge"]);
    assert_eq!(gone, ["edge", "root-pve"]);
}

#[test]
fn st_4_three_levels_come_downwards_and_go_upwards() {
    let (made, gone) = there_and_back("n3-deep");
    assert_eq!(made, ["root-pve", "leaf-pve", "edge"]);
    assert_eq!(gone, ["edge", "leaf-pve", "root-pve"]);
}

#[test]
fn depth_makes_the_upper_levels_only() {
    let world = World::new();
    let plan = [
        "manifest",
        "plan",
        "-M",
        "n3-deep",
        "-H",
        "sim",
        "--json-output",
    ];
    let names = |json: &Value| -> Vec<String> {
        let nodes = json["nodes"].as_array().unwrap();
        nodes
            .iter()
            .map(|node| node["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let two = run(&world, &[&plan[..], &["--depth", "2"]].concat()).json();
    assert_eq!(names(&two), ["root-pve", "leaf-pve"]);
    run(&world, &["sim", "stop"]).good();
}

#[test]
fn a_test_on_the_simulator_passes_and_leaves_nothing() {
    let world = World::new();
    let json = run(
        &world,
        &["test", "-M", "n2-tiered", "-H", "sim", "--json-output"],
    )
    .json();
    assert_eq!(
        (&json["success"], &json["nodes"][1]["status"]),
        (&true.into(), &"completed".into())
    );
    let destroy = run(
        &world,
        &["manifest", "destroy", "-M", "n2-tiered", "-H", "sim"],
    );
    assert!(destroy.err.contains("Nothing to do."), "{}", destroy.err);
    let reports = world.home().join(".local/state/homestak/reports");
    assert_eq!(std::fs::read_dir(reports).unwrap().count(), 2);
    run(&world, &["sim", "stop"]).good();
}

#[test]
fn the_simulator_goes_on_without_the_keys_of_whoever_started_it() {
    let world = World::new();
    let secret = format!("AGE-SECRET-KEY-1SIM{}", std::process::id());
    let plan = ["manifest", "plan", "-M", "n2-tiered", "-H", "sim"];
    let planned = world
        .command(&plan)
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("SOPS_AGE_KEY", &secret)
        .env("HOMESTAK_TOKEN", &secret)
        .output()
        .map(Run::from)
        .unwrap();
    planned.good();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let known = processes.filter(|process| {
        let bytes = std::fs::read(process.path().join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).contains(&secret)
    });
    assert_eq!(known.count(), 0);
    run(&world, &["sim", "stop"]).good();
}
