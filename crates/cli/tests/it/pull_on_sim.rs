//! Nodes that would fetch their specs, on the simulated host `sim`: nothing is configured, and no
//! output claims that it is.

use serde_json::Value;

use crate::support::{Run, TestEnv};

/// Runs the program with an accelerated simulator.
fn on_sim(env: &TestEnv, line: &str) -> Run {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let mut command = env.command(&arguments);
    command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_SIM_SPEED", "200");
    Run::of(&mut command)
}

/// Asserts that an output contains `simulated` and does not claim that something was configured.
fn assert_honest(run: Run) -> String {
    let shown = run.err.clone() + &run.good();
    assert!(shown.contains("simulated"), "{shown}");
    for claim in ["configured", "matches its spec", "converged"] {
        assert!(!shown.contains(claim), "{claim}: {shown}");
    }
    shown
}

#[test]
fn a_node_that_would_pull_is_reported_as_simulated_and_never_as_configured() {
    let env = TestEnv::new();
    let plan = assert_honest(on_sim(&env, "manifest plan -M n1-pull -H sim"));
    assert!(
        plan.contains("is not applied: the host is simulated"),
        "{plan}"
    );
    let plan = on_sim(&env, "manifest plan -M n1-pull -H sim --json-output").json();
    assert_eq!(plan["nodes"][0]["simulated"], true, "{plan}");
    assert_eq!(plan["nodes"][0]["config"], Value::Null, "{plan}");

    assert_honest(on_sim(&env, "manifest apply -M n1-pull -H sim"));
    let again = on_sim(&env, "manifest apply -M n1-pull -H sim --json-output").json();
    assert_eq!(again["success"], true, "{again}");
    assert_eq!(again["nodes"][0]["config"], "simulated", "{again}");
    let plan = assert_honest(on_sim(&env, "manifest plan -M n1-pull -H sim"));
    assert!(plan.contains("Nothing to do."), "{plan}");

    assert_honest(on_sim(&env, "manifest status -M n1-pull"));
    let status = on_sim(&env, "manifest status -M n1-pull --json-output").json();
    let node = &status["runs"][0]["nodes"][0];
    assert_eq!(node["config"], "simulated", "{status}");
    assert_eq!(node["differs"], Value::Null, "{status}");

    let refused = on_sim(&env, "config apply -M n1-pull -H sim edge --yes");
    assert_eq!(refused.code, 3, "{}{}", refused.out, refused.err);
    assert!(
        refused.err.contains("no spec that is applied"),
        "{}",
        refused.err
    );
    on_sim(&env, "manifest destroy -M n1-pull -H sim --yes").good();
    on_sim(&env, "sim stop").good();
}

#[test]
fn a_test_of_nodes_that_would_pull_does_not_verify_their_specs() {
    let env = TestEnv::new();
    env.write(
        "manifests/lab.yaml",
        "schema_version: 2\nname: lab\nnodes:\n  - {name: web, spec: base, image: debian-12, \
         preset: vm-small, execution: {mode: hybrid}}\n  - {name: db, spec: base, image: debian-12, \
         preset: vm-small, execution: {mode: pull}}\n",
    );
    assert_honest(on_sim(&env, "manifest test -M lab -H sim"));
    let tested = on_sim(&env, "manifest test -M lab -H sim --json-output").json();
    for node in tested["nodes"].as_array().unwrap() {
        assert_eq!(node["config"], "simulated", "{tested}");
    }
    let phases = tested["phases"].as_array().unwrap();
    let verify = phases.iter().find(|phase| phase["name"] == "verify");
    let message = verify.unwrap()["message"].as_str().unwrap();
    assert_eq!(message.matches("is not applied").count(), 2, "{tested}");
    // No server was started for them.
    assert!(!env.home().join(".local/state/homestak/server").exists());
    on_sim(&env, "sim stop").good();
}
