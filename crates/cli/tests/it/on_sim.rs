//! Manifests with nested machines on the host `sim`, which needs no setup.

use serde_json::Value;

use crate::support::{Run, TestEnv};
use crate::test_pve::order;

fn run(env: &TestEnv, arguments: &[&str]) -> Run {
    let mut command = env.command(arguments);
    command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_SIM_SPEED", "200");
    Run::of(&mut command)
}

/// Applies and destroys a manifest of the stock site; returns the nodes in order of both.
fn apply_and_destroy(manifest: &str) -> (Vec<String>, Vec<String>) {
    let env = TestEnv::new();
    let created = run(
        &env,
        &["manifest", "apply", "-M", manifest, "-H", "sim", "--events"],
    )
    .good();
    let again = run(&env, &["manifest", "apply", "-M", manifest, "-H", "sim"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    let destroyed = run(
        &env,
        &[
            "manifest", "destroy", "-M", manifest, "-H", "sim", "--yes", "--events",
        ],
    )
    .good();
    let again = run(&env, &["manifest", "destroy", "-M", manifest, "-H", "sim"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    run(&env, &["sim", "stop"]).good();
    // A child is created when its parent is ready, not just created.
    for (at, node) in order(&created, "create").iter().enumerate().skip(1) {
        let above = &order(&created, "ready")[at - 1];
        assert_ne!(above, node);
    }
    (order(&created, "create"), order(&destroyed, "destroy"))
}

#[test]
fn st_3_a_hypervisor_is_created_before_its_guests_and_destroyed_after_them() {
    let (created, destroyed) = apply_and_destroy("n2-tiered");
    assert_eq!(created, ["root-pve", "edge"]);
    assert_eq!(destroyed, ["edge", "root-pve"]);
}

#[test]
fn st_4_three_levels_are_created_top_down_and_destroyed_bottom_up() {
    let (created, destroyed) = apply_and_destroy("n3-deep");
    assert_eq!(created, ["root-pve", "leaf-pve", "edge"]);
    assert_eq!(destroyed, ["edge", "leaf-pve", "root-pve"]);
}

#[test]
fn depth_limits_the_levels_that_are_planned() {
    let env = TestEnv::new();
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
    let two = run(&env, &[&plan[..], &["--depth", "2"]].concat()).json();
    assert_eq!(names(&two), ["root-pve", "leaf-pve"]);
    run(&env, &["sim", "stop"]).good();
}

#[test]
fn a_test_on_the_simulator_passes_and_leaves_no_guests() {
    let env = TestEnv::new();
    let json = run(
        &env,
        &["test", "-M", "n2-tiered", "-H", "sim", "--json-output"],
    )
    .json();
    assert_eq!(
        (&json["success"], &json["nodes"][1]["status"]),
        (&true.into(), &"completed".into())
    );
    let destroy = run(
        &env,
        &["manifest", "destroy", "-M", "n2-tiered", "-H", "sim"],
    );
    assert!(destroy.err.contains("Nothing to do."), "{}", destroy.err);
    let reports = env.home().join(".local/state/homestak/reports");
    assert_eq!(std::fs::read_dir(reports).unwrap().count(), 2);
    run(&env, &["sim", "stop"]).good();
}

#[test]
fn the_simulator_does_not_inherit_secrets_from_the_environment() {
    let env = TestEnv::new();
    let secret = format!("AGE-SECRET-KEY-1SIM{}", std::process::id());
    let plan = ["manifest", "plan", "-M", "n2-tiered", "-H", "sim"];
    let planned = env
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
    run(&env, &["sim", "stop"]).good();
}
