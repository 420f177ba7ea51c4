//! Commands report what happened, and refuse what is not implemented.

use homestak_sim::{Call, Fault, FaultKind};
use serde_json::Value;

use crate::support::{Run, TestEnv};
use crate::test_pve::TestPve;

/// Runs the program with an accelerated simulator.
fn on_sim(env: &TestEnv, line: &str) -> Run {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let mut command = env.command(&arguments);
    command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_SIM_SPEED", "200");
    Run::of(&mut command)
}

fn write_manifest(env: &TestEnv, nodes: &str) {
    env.write(
        "manifests/lab.yaml",
        &format!("schema_version: 2\nname: lab\nnodes:\n{nodes}"),
    );
}

fn status<'j>(json: &'j Value, node: &str) -> &'j str {
    let nodes = json["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|one| one["name"] == node).unwrap();
    node["status"].as_str().unwrap()
}

#[test]
fn a_plan_created_with_another_mode_is_applied_with_it() {
    let env = TestEnv::new();
    on_sim(
        &env,
        "manifest plan -M n1-pull -H sim --mode push --out plan.json",
    )
    .good();
    on_sim(&env, "manifest apply plan.json").good();
    on_sim(&env, "sim stop").good();
}

#[test]
fn containers_with_a_spec_and_kubernetes_nodes_are_refused() {
    let env = TestEnv::new();
    write_manifest(
        &env,
        "  - {name: box, type: ct, spec: base, preset: vm-small, template: debian-12-standard}\n  - {name: kube, type: k3s, spec: base, preset: vm-small, image: debian-12}\n  - {name: plain, type: ct, preset: vm-small, template: debian-12-standard}\n",
    );
    let refused = on_sim(&env, "manifest plan -M lab -H sim --json-output");
    assert_eq!(refused.code, 3);
    let json: Value = serde_json::from_str(&refused.out).unwrap();
    let refusals = json["refusals"].as_array().unwrap();
    let about: Vec<&str> = refusals
        .iter()
        .map(|refusal| refusal["node"].as_str().unwrap())
        .collect();
    assert_eq!(about, ["box", "kube"]);
    let reasons = json["refusals"].to_string();
    assert!(reasons.contains("cannot log in to containers"), "{reasons}");
    assert!(reasons.contains("`k3s` are not implemented"), "{reasons}");
    on_sim(&env, "sim stop").good();
}

/// A host with applied workers.
fn applied(nodes: usize) -> TestPve {
    let host = TestPve::quick();
    host.workers(nodes, "");
    run(&host, "manifest apply -M workers -H father").good();
    host
}

fn run(host: &TestPve, line: &str) -> Run {
    host.run(&line.split_whitespace().collect::<Vec<_>>())
}

/// Gives the machines another preset.
fn resize(host: &TestPve, preset: &str) {
    let path = "site/manifests/workers.yaml";
    let path = host.env.work().join(path);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("vm-small", preset)).unwrap();
}

#[test]
fn rolling_back_a_finished_destroy_is_refused() {
    let host = applied(1);
    run(&host, "manifest destroy -M workers -H father --yes").good();
    for flags in ["--yes", "--dry-run"] {
        let refused = run(&host, &format!("manifest rollback -M workers {flags}"));
        assert_eq!(refused.code, 3, "{}{}", refused.out, refused.err);
        assert!(refused.err.contains("can be undone"), "{}", refused.err);
        assert!(
            refused.err.contains("was destroyed with its disk"),
            "{}",
            refused.err
        );
    }
}

#[test]
fn a_rollback_shows_its_plan_and_asks_for_confirmation() {
    let host = applied(2);
    let plan = run(&host, "manifest rollback -M workers --dry-run").good();
    for node in ["worker-1: destroy guest", "worker-2: destroy guest"] {
        assert!(plan.contains(node), "{plan}");
    }
    let json = run(
        &host,
        "manifest rollback -M workers --dry-run --json-output",
    )
    .json();
    assert_eq!(json["undo"][0]["effect"], "undo");
    let unconfirmed = run(&host, "manifest rollback -M workers");
    assert_eq!(unconfirmed.code, 3, "{}", unconfirmed.err);
    assert!(
        unconfirmed.err.contains("destroy guest") && unconfirmed.err.contains("--yes"),
        "{}",
        unconfirmed.err
    );
    assert_eq!(host.guests(), ["worker-1", "worker-2"]);
    let done = run(&host, "manifest rollback -M workers --yes --json-output").json();
    assert_eq!(
        (&done["success"], &done["not_undone"]),
        (&true.into(), &Value::Array(vec![]))
    );
    assert_eq!(status(&done, "worker-1"), "destroyed");
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn a_rollback_does_not_report_the_old_error_or_nodes_that_never_existed() {
    let host = TestPve::quick();
    host.env.write("images/nowhere.yaml", "name: nowhere\n");
    let nodes = "  - {name: good, spec: base, preset: vm-small, image: debian-12}\n  - {name: bad, spec: base, preset: vm-small, image: nowhere}\n";
    host.manifest("half", "on_error: continue", nodes);
    let failed = run(&host, "manifest apply -M half -H father --skip-preflight");
    assert_eq!(failed.code, 1, "{}", failed.err);
    let rollback = run(&host, "manifest rollback -M half --yes --json-output");
    assert!(!rollback.err.contains("error:"), "{}", rollback.err);
    assert!(
        rollback
            .err
            .contains("All changes of this run are reverted."),
        "{}",
        rollback.err
    );
    let json = rollback.json();
    assert_eq!(
        (status(&json, "good"), status(&json, "bad")),
        ("destroyed", "pending")
    );
    assert_eq!(host.guests(), [""; 0]);
    let destroyed = run(
        &host,
        "manifest destroy -M half -H father --yes --json-output",
    )
    .json();
    assert_eq!(status(&destroyed, "bad"), "absent");
}

#[test]
fn changes_that_a_rollback_cannot_revert_are_listed_and_fail_it() {
    let host = applied(1);
    resize(&host, "vm-medium");
    let changed = run(&host, "manifest apply -M workers -H father");
    assert!(changed.err.contains("it is restarted"), "{}", changed.err);
    changed.good();
    let plan = run(&host, "manifest rollback -M workers --dry-run").good();
    assert!(
        plan.contains("worker-1: restore 2 CPUs and 2048 MiB"),
        "{plan}"
    );
    assert!(
        plan.contains("cannot be reverted: worker-1: its disk keeps"),
        "{plan}"
    );
    let rollback = run(&host, "manifest rollback -M workers --yes --json-output");
    assert_eq!(rollback.code, 1, "{}", rollback.err);
    assert!(
        rollback.err.contains("Reverted, except"),
        "{}",
        rollback.err
    );
    let json: Value = serde_json::from_str(&rollback.out).unwrap();
    assert_eq!(
        (&json["success"], &json["not_undone"][0]["name"]),
        (&false.into(), &"worker-1".into())
    );
    let guests = host.pve.guests();
    assert_eq!(
        (guests[0].config["memory"].as_str(), guests[0].running),
        ("2048", true)
    );
    // The larger disk is a difference, so the node is not reported as up to date.
    host.workers(1, "");
    let plan = run(&host, "manifest plan -M workers -H father").good();
    assert!(plan.contains("is unchanged"), "{plan}");
    assert!(!plan.contains("is up to date"), "{plan}");
}

#[test]
fn status_queries_the_hosts() {
    let host = applied(2);
    let status_of_run = |flags: &str| {
        let json = run(
            &host,
            &format!("manifest status -M workers --json-output {flags}"),
        )
        .json();
        json["runs"][0].clone()
    };
    let now = status_of_run("");
    let node = |json: &Value, at: usize| json["nodes"][at].clone();
    // Configuration is not compared because of `verify_ssh: false`.
    assert_eq!(
        (&node(&now, 0)["power"], &node(&now, 0)["differs"]),
        (&"running".into(), &Value::Null)
    );
    assert!(node(&now, 0)["last_contact"].is_string(), "{now}");
    let vmid = node(&now, 0)["vm_id"].as_u64().unwrap();
    host.pve.switch_off(u32::try_from(vmid).unwrap());
    let stopped = status_of_run("");
    assert_eq!(
        (&node(&stopped, 0)["power"], &node(&stopped, 0)["differs"]),
        (&"stopped".into(), &true.into())
    );
    assert_eq!(node(&stopped, 1)["power"], "running");
    let text = run(&host, "manifest status -M workers").good();
    assert!(
        text.contains("stopped") && text.contains("differs"),
        "{text}"
    );
    let offline = status_of_run("--offline");
    assert_eq!(
        (&node(&offline, 0)["power"], &offline["offline"]),
        (&Value::Null, &true.into())
    );
    assert_eq!(node(&offline, 0)["status"], "completed");
    host.pve
        .add_fault(Fault::new(Call::any(), FaultKind::Status(403)));
    let away = status_of_run("");
    assert_eq!(
        (&node(&away, 0)["power"], &node(&away, 0)["differs"]),
        (&"unknown".into(), &Value::Null)
    );
    assert!(away["unknown"].is_string(), "{away}");
}

#[test]
fn status_on_an_unconfigured_machine_exits_1() {
    let env = TestEnv::new();
    let status = env.run(&["status"]);
    // Without root, the state of the machine may be unreadable, with another exit code.
    if rustix::process::geteuid().is_root() {
        assert_eq!(status.code, 1, "{}{}", status.out, status.err);
        assert!(
            status.out.contains("no spec has been applied"),
            "{}",
            status.out
        );
    }
}

#[test]
fn a_failed_image_is_reported_with_its_cause() {
    let host = TestPve::quick();
    host.env.write("images/nowhere.yaml", "name: nowhere\n");
    host.manifest(
        "half",
        "",
        "  - {name: bad, spec: base, preset: vm-small, image: nowhere}\n",
    );
    let failed = run(
        &host,
        "manifest apply -M half -H father --skip-preflight --json-output",
    );
    assert_eq!(failed.code, 1, "{}", failed.err);
    let json: Value = serde_json::from_str(&failed.out).unwrap();
    let error = json["images"][0]["error"].as_str().unwrap();
    assert!(error.contains("has no `source`"), "{error}");
}

#[test]
fn a_manifest_file_is_identified_by_its_name_field() {
    let host = applied(1);
    let manifest = host.env.site().join("manifests/workers.yaml");
    std::fs::copy(manifest, host.env.work().join("copy.yaml")).unwrap();
    let plan = run(
        &host,
        "manifest plan --manifest-file copy.yaml -H father --json-output",
    )
    .json();
    assert_eq!(
        (&plan["manifest"], &plan["nodes"][0]["action"]),
        (&"workers".into(), &"nothing".into())
    );
}

#[test]
fn a_plan_of_a_manifest_file_can_be_applied() {
    let host = TestPve::quick();
    host.workers(1, "");
    let manifests = host.env.site().join("manifests");
    std::fs::rename(
        manifests.join("workers.yaml"),
        host.env.work().join("mine.yaml"),
    )
    .unwrap();
    run(
        &host,
        "manifest plan --manifest-file mine.yaml -H father --out plan.json",
    )
    .good();
    run(&host, "manifest apply plan.json").good();
    assert_eq!(host.guests(), ["worker-1"]);
}

#[test]
fn a_vmid_of_another_manifest_is_refused_with_its_name() {
    let host = TestPve::quick();
    let node = "  - {name: mine, spec: base, preset: vm-small, image: debian-12, vmid: 700}\n";
    host.manifest("first", "", node);
    host.manifest("second", "", node);
    run(&host, "manifest apply -M first -H father").good();
    let refused = run(&host, "manifest plan -M second -H father");
    assert_eq!(refused.code, 3);
    assert!(
        refused.out.contains("`mine` of the manifest `first`"),
        "{}",
        refused.out
    );
}

#[test]
fn estimates_use_durations_measured_on_the_host() {
    let host = TestPve::quick();
    host.workers(1, "");
    let plan = || run(&host, "plan -M workers -H father");
    assert!(
        plan().out.contains("was not measured yet"),
        "{}",
        plan().out
    );
    run(&host, "apply -M workers -H father").good();
    run(&host, "manifest destroy -M workers -H father --yes").good();
    let json = run(&host, "plan -M workers -H father --json-output").json();
    assert_eq!(json["measured"], true);
    assert!(plan().out.contains("1 to create; about "), "{}", plan().out);
}

#[test]
fn show_validate_and_plan_print_correct_details() {
    let env = TestEnv::new();
    env.secrets("api_tokens: {}\n");
    write_manifest(
        &env,
        "  - {name: web, image: debian-12, preset: vm-small, cores: 1}\n",
    );
    let shown = env.on_site(&["manifest", "show", "lab"]);
    assert!(shown.out.contains("1 core,"), "{}", shown.out);
    assert!(!shown.err.contains("SK0909"), "{}", shown.err);
    let validated = env.on_site(&["manifest", "validate", "-M", "lab"]);
    assert!(validated.err.contains("SK0909"), "{}", validated.err);
    let nowhere = env.on_site(&["manifest", "plan", "-M", "lab"]);
    assert!(nowhere.out.starts_with("apply `lab`\n"), "{}", nowhere.out);
    let origins = env.on_site(&["manifest", "show", "n1-push", "--node", "edge", "--origin"]);
    let widest = origins.out.lines().map(|line| line.chars().count()).max();
    assert!(widest.unwrap() <= 200, "{widest:?}");
}

#[test]
fn a_test_whose_destroy_failed_does_not_suggest_a_rollback() {
    let host = TestPve::quick();
    let nodes = "  - {name: web, preset: vm-small, image: debian-12, vmid: 5001}\n";
    host.manifest("one", "", nodes);
    let on = ["-M", "one", "-H", "father", "--yes"];
    host.run(&[&["manifest", "apply"], &on[..]].concat()).good();
    host.pve.change_guest(5001, &[("protection", "1")]).unwrap();
    let run = host.run(&[&["test"], &on[..]].concat());
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("homestak manifest resume"), "{}", run.err);
    assert!(!run.err.contains("rollback"), "{}", run.err);
}
