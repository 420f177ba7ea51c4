//! What a command reports is what happened: nothing that cannot be done is called done.

use homestak_sim::{Call, Fault, FaultKind};
use serde_json::Value;

use crate::father::Father;
use crate::support::{Run, World};

/// Runs the program on the simulator, whose time goes quickly.
fn on_sim(world: &World, line: &str) -> Run {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    world
        .command(&arguments)
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_SIM_SPEED", "200")
        .output()
        .map(Run::from)
        .unwrap()
}

fn lab(world: &World, nodes: &str) {
    world.write(
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
fn a_node_that_would_have_to_pull_is_refused_and_pushed_on_request() {
    let world = World::new();
    for verb in ["plan", "apply", "test"] {
        let refused = on_sim(&world, &format!("manifest {verb} -M n1-pull -H sim"));
        assert_eq!(refused.code, 3, "{}{}", refused.out, refused.err);
        let text = format!("{}{}", refused.out, refused.err);
        assert!(text.contains("pull is not implemented"), "{text}");
        assert!(text.contains("hint: --mode push"), "{text}");
    }
    on_sim(&world, "manifest test -M n1-pull -H sim --mode push").good();
    lab(
        &world,
        "  - {name: web, spec: base, image: debian-12, preset: vm-small, execution: {mode: hybrid}}\n",
    );
    let hybrid = on_sim(&world, "manifest apply -M lab -H sim");
    assert_eq!(hybrid.code, 3);
    assert!(
        hybrid.err.contains("hybrid is not implemented"),
        "{}",
        hybrid.err
    );
    // What is there can be removed whatever its mode.
    on_sim(&world, "manifest destroy -M lab -H sim --yes").good();
    on_sim(&world, "sim stop").good();
}

#[test]
fn a_plan_made_with_another_mode_is_applied_with_it() {
    let world = World::new();
    on_sim(
        &world,
        "manifest plan -M n1-pull -H sim --mode push --out plan.json",
    )
    .good();
    on_sim(&world, "manifest apply plan.json").good();
    on_sim(&world, "sim stop").good();
}

#[test]
fn containers_with_a_spec_and_kubernetes_nodes_are_refused() {
    let world = World::new();
    lab(
        &world,
        "  - {name: box, type: ct, spec: base, preset: vm-small, template: debian-12-standard}\n  - {name: kube, type: k3s, spec: base, preset: vm-small, image: debian-12}\n  - {name: plain, type: ct, preset: vm-small, template: debian-12-standard}\n",
    );
    let refused = on_sim(&world, "manifest plan -M lab -H sim --json-output");
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
    on_sim(&world, "sim stop").good();
}

/// A machine of `father`, applied.
fn made(nodes: usize) -> Father {
    let father = Father::quick();
    father.workers(nodes, "");
    run(&father, "manifest apply -M workers -H father").good();
    father
}

fn run(father: &Father, line: &str) -> Run {
    father.run(&line.split_whitespace().collect::<Vec<_>>())
}

/// Gives the machines another preset.
fn resize(father: &Father, preset: &str) {
    let path = "site/manifests/workers.yaml";
    let path = father.site.work().join(path);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("vm-small", preset)).unwrap();
}

#[test]
fn rolling_back_a_finished_destroy_is_refused() {
    let father = made(1);
    run(&father, "manifest destroy -M workers -H father --yes").good();
    for flags in ["--yes", "--dry-run"] {
        let refused = run(&father, &format!("manifest rollback -M workers {flags}"));
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
fn a_rollback_shows_its_plan_and_asks() {
    let father = made(2);
    let plan = run(&father, "manifest rollback -M workers --dry-run").good();
    for node in ["worker-1: destroy guest", "worker-2: destroy guest"] {
        assert!(plan.contains(node), "{plan}");
    }
    let json = run(
        &father,
        "manifest rollback -M workers --dry-run --json-output",
    )
    .json();
    assert_eq!(json["undo"][0]["effect"], "undo");
    let asked = run(&father, "manifest rollback -M workers");
    assert_eq!(asked.code, 3, "{}", asked.err);
    assert!(
        asked.err.contains("destroy guest") && asked.err.contains("--yes"),
        "{}",
        asked.err
    );
    assert_eq!(father.guests(), ["worker-1", "worker-2"]);
    let done = run(&father, "manifest rollback -M workers --yes --json-output").json();
    assert_eq!(
        (&done["success"], &done["not_undone"]),
        (&true.into(), &Value::Array(vec![]))
    );
    assert_eq!(status(&done, "worker-1"), "destroyed");
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn a_rollback_reports_neither_the_old_error_nor_a_destroyed_node_that_never_was() {
    let father = Father::quick();
    father.site.write("images/nowhere.yaml", "name: nowhere\n");
    let nodes = "  - {name: good, spec: base, preset: vm-small, image: debian-12}\n  - {name: bad, spec: base, preset: vm-small, image: nowhere}\n";
    father.manifest("half", "on_error: continue", nodes);
    let failed = run(&father, "manifest apply -M half -H father --skip-preflight");
    assert_eq!(failed.code, 1, "{}", failed.err);
    let back = run(&father, "manifest rollback -M half --yes --json-output");
    assert!(!back.err.contains("error:"), "{}", back.err);
    assert!(
        back.err.contains("All changes of this run are reverted."),
        "{}",
        back.err
    );
    let json = back.json();
    assert_eq!(
        (status(&json, "good"), status(&json, "bad")),
        ("destroyed", "pending")
    );
    assert_eq!(father.guests(), [""; 0]);
    let destroyed = run(
        &father,
        "manifest destroy -M half -H father --yes --json-output",
    )
    .json();
    assert_eq!(status(&destroyed, "bad"), "absent");
}

#[test]
fn what_a_rollback_cannot_undo_is_listed_and_counts() {
    let father = made(1);
    resize(&father, "vm-medium");
    let changed = run(&father, "manifest apply -M workers -H father");
    assert!(changed.err.contains("it is restarted"), "{}", changed.err);
    changed.good();
    let plan = run(&father, "manifest rollback -M workers --dry-run").good();
    assert!(
        plan.contains("worker-1: give it 2 CPUs and 2048 MiB again"),
        "{plan}"
    );
    assert!(
        plan.contains("cannot be reverted: worker-1: its disk stays"),
        "{plan}"
    );
    let back = run(&father, "manifest rollback -M workers --yes --json-output");
    assert_eq!(back.code, 1, "{}", back.err);
    assert!(back.err.contains("Reverted, except"), "{}", back.err);
    let json: Value = serde_json::from_str(&back.out).unwrap();
    assert_eq!(
        (&json["success"], &json["not_undone"][0]["name"]),
        (&false.into(), &"worker-1".into())
    );
    let guests = father.pve.guests();
    assert_eq!(
        (guests[0].config["memory"].as_str(), guests[0].running),
        ("2048", true)
    );
    // The disk that stays larger is a difference, so that the node is not called right.
    father.workers(1, "");
    let plan = run(&father, "manifest plan -M workers -H father").good();
    assert!(plan.contains("is unchanged"), "{plan}");
    assert!(!plan.contains("is up to date"), "{plan}");
}

#[test]
fn status_asks_the_hosts() {
    let father = made(2);
    let asked = |flags: &str| {
        let json = run(
            &father,
            &format!("manifest status -M workers --json-output {flags}"),
        )
        .json();
        json["runs"][0].clone()
    };
    let now = asked("");
    let node = |json: &Value, at: usize| json["nodes"][at].clone();
    // Nobody looks inside: the manifest says `verify_ssh: false`.
    assert_eq!(
        (&node(&now, 0)["power"], &node(&now, 0)["differs"]),
        (&"running".into(), &Value::Null)
    );
    assert!(node(&now, 0)["last_contact"].is_string(), "{now}");
    let vmid = node(&now, 0)["vm_id"].as_u64().unwrap();
    father.pve.switch_off(u32::try_from(vmid).unwrap());
    let stopped = asked("");
    assert_eq!(
        (&node(&stopped, 0)["power"], &node(&stopped, 0)["differs"]),
        (&"stopped".into(), &true.into())
    );
    assert_eq!(node(&stopped, 1)["power"], "running");
    let text = run(&father, "manifest status -M workers").good();
    assert!(
        text.contains("stopped") && text.contains("differs"),
        "{text}"
    );
    let offline = asked("--offline");
    assert_eq!(
        (&node(&offline, 0)["power"], &offline["offline"]),
        (&Value::Null, &true.into())
    );
    assert_eq!(node(&offline, 0)["status"], "completed");
    father
        .pve
        .add_fault(Fault::new(Call::any(), FaultKind::Status(403)));
    let away = asked("");
    assert_eq!(
        (&node(&away, 0)["power"], &node(&away, 0)["differs"]),
        (&"unknown".into(), &Value::Null)
    );
    assert!(away["unknown"].is_string(), "{away}");
}

#[test]
fn a_machine_that_only_drives_others_has_no_status_of_its_own() {
    let world = World::new();
    let status = world.run(&["status"]);
    // Where tests run as a user, the state of the machine may be unreadable, which is another answer.
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
fn a_failed_image_leaves_its_cause_in_the_result() {
    let father = Father::quick();
    father.site.write("images/nowhere.yaml", "name: nowhere\n");
    father.manifest(
        "half",
        "",
        "  - {name: bad, spec: base, preset: vm-small, image: nowhere}\n",
    );
    let failed = run(
        &father,
        "manifest apply -M half -H father --skip-preflight --json-output",
    );
    assert_eq!(failed.code, 1, "{}", failed.err);
    let json: Value = serde_json::from_str(&failed.out).unwrap();
    let error = json["images"][0]["error"].as_str().unwrap();
    assert!(error.contains("has no `source`"), "{error}");
}

#[test]
fn a_manifest_given_as_a_file_is_known_by_its_own_name() {
    let father = made(1);
    let manifest = father.site.site().join("manifests/workers.yaml");
    std::fs::copy(manifest, father.site.work().join("copy.yaml")).unwrap();
    let plan = run(
        &father,
        "manifest plan --manifest-file copy.yaml -H father --json-output",
    )
    .json();
    assert_eq!(
        (&plan["manifest"], &plan["nodes"][0]["action"]),
        (&"workers".into(), &"nothing".into())
    );
}

#[test]
fn a_plan_of_a_file_is_applied_afterwards() {
    let father = Father::quick();
    father.workers(1, "");
    let manifests = father.site.site().join("manifests");
    std::fs::rename(
        manifests.join("workers.yaml"),
        father.site.work().join("mine.yaml"),
    )
    .unwrap();
    run(
        &father,
        "manifest plan --manifest-file mine.yaml -H father --out plan.json",
    )
    .good();
    run(&father, "manifest apply plan.json").good();
    assert_eq!(father.guests(), ["worker-1"]);
}

#[test]
fn an_id_of_another_manifest_is_refused_with_its_name() {
    let father = Father::quick();
    let node = "  - {name: mine, spec: base, preset: vm-small, image: debian-12, vmid: 700}\n";
    father.manifest("first", "", node);
    father.manifest("second", "", node);
    run(&father, "manifest apply -M first -H father").good();
    let refused = run(&father, "manifest plan -M second -H father");
    assert_eq!(refused.code, 3);
    assert!(
        refused.out.contains("`mine` of the manifest `first`"),
        "{}",
        refused.out
    );
}

#[test]
fn an_estimate_comes_from_what_was_measured_on_the_host() {
    let father = Father::quick();
    father.workers(1, "");
    let plan = || run(&father, "plan -M workers -H father");
    assert!(
        plan().out.contains("was not measured yet"),
        "{}",
        plan().out
    );
    run(&father, "apply -M workers -H father").good();
    run(&father, "manifest destroy -M workers -H father --yes").good();
    let json = run(&father, "plan -M workers -H father --json-output").json();
    assert_eq!(json["measured"], true);
    assert!(plan().out.contains("1 to create; about "), "{}", plan().out);
}

#[test]
fn small_things_are_told_correctly() {
    let world = World::new();
    world.secrets("api_tokens: {}\n");
    lab(
        &world,
        "  - {name: web, image: debian-12, preset: vm-small, cores: 1}\n",
    );
    let shown = world.on_site(&["manifest", "show", "lab"]);
    assert!(shown.out.contains("1 core,"), "{}", shown.out);
    assert!(!shown.err.contains("SK0909"), "{}", shown.err);
    let validated = world.on_site(&["manifest", "validate", "-M", "lab"]);
    assert!(validated.err.contains("SK0909"), "{}", validated.err);
    let nowhere = world.on_site(&["manifest", "plan", "-M", "lab"]);
    assert!(nowhere.out.starts_with("apply `lab`\n"), "{}", nowhere.out);
    let origins = world.on_site(&["manifest", "show", "n1-push", "--node", "edge", "--origin"]);
    let widest = origins.out.lines().map(|line| line.chars().count()).max();
    assert!(widest.unwrap() <= 200, "{widest:?}");
}

#[test]
fn a_test_whose_removal_failed_offers_no_rollback_that_undoes_nothing() {
    let father = Father::quick();
    let nodes = "  - {name: web, preset: vm-small, image: debian-12, vmid: 5001}\n";
    father.manifest("one", "", nodes);
    let on = ["-M", "one", "-H", "father", "--yes"];
    father
        .run(&[&["manifest", "apply"], &on[..]].concat())
        .good();
    father
        .pve
        .change_guest(5001, &[("protection", "1")])
        .unwrap();
    let run = father.run(&[&["test"], &on[..]].concat());
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("homestak manifest resume"), "{}", run.err);
    assert!(!run.err.contains("rollback"), "{}", run.err);
}
