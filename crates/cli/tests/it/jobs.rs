//! Commands on jobs, as far as they need no real node: arguments, refusals, and the output of a server
//! without jobs.

use std::time::Duration;

use homestak_sim::{Pace, Timing};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::runs::{APPLY, Running};
use crate::server::Site;
use crate::support::{Run, TestEnv};
use crate::test_pve::TestPve;

const ID: &str = "0123456789abcdef0123456789abcdef";

fn on_sim(env: &TestEnv, line: &str) -> Run {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let mut command = env.command(&arguments);
    command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_SIM_SPEED", "200");
    Run::of(&mut command)
}

/// Asserts an exit code, and that stderr contains words.
fn fails(run: &Run, code: i32, words: &str) {
    assert_eq!(run.code, code, "{}{}", run.out, run.err);
    assert!(run.err.contains(words), "{words}: {}", run.err);
}

#[test]
fn options_without_effect_and_unknown_words_are_usage_errors() {
    let env = TestEnv::new();
    for (line, words) in [
        ("node job web chek", "check"),
        ("node job web", "KIND"),
        ("node job web check --dry-run", "`--dry-run` has no effect"),
        ("node job web reboot --no-reboot", "`--no-reboot` has no"),
        ("node job web collect --updates all", "`--updates` has no"),
        ("node job web check --force", "`--force` has no effect"),
        ("node job web update --updates some", "security"),
        ("node job web update --updates none", "security"),
        ("node update -M lab --updates none", "security"),
        ("node job web check --time-limit 0", "--time-limit"),
        ("node job web check --time-limit 86401", "--time-limit"),
        ("node job web check --expires 604801", "--expires"),
        ("node job web check --ssh --detach", "--detach"),
        ("node job web check --id 00", "--ssh"),
        ("node job web check --ssh --id ../../x", "32 hexadecimal"),
        ("node update", "--manifest"),
        ("node update -M lab --at-once 0", "--at-once"),
        ("job show", "ID"),
        ("job show web", "32 hexadecimal"),
        ("job cancel ../nodes", "32 hexadecimal"),
        ("job list -M lab", "NODE"),
    ] {
        fails(&on_sim(&env, line), 2, words);
    }
}

#[test]
fn nodes_that_do_not_exist_are_named_with_what_is_close() {
    let env = TestEnv::new();
    fails(&on_sim(&env, "node job web check"), 1, "no node `web`");
    fails(
        &on_sim(&env, "node update -M no-such"),
        1,
        "no manifest `no-such`",
    );
    let near = on_sim(&env, "node update egde -M n1-pull -H sim --dry-run");
    fails(&near, 1, "did you mean `edge`");
    let skipped = on_sim(
        &env,
        "node update -M n1-pull -H sim --dry-run --json-output",
    );
    let plan = skipped.json();
    assert_eq!(plan["kind"], "node.update");
    assert_eq!(plan["nodes"][0]["state"], "skipped", "{plan}");
    assert_eq!(plan["nodes"][0]["message"], "it does not exist", "{plan}");
}

#[test]
fn simulated_nodes_run_no_jobs_and_are_not_updated() {
    let env = TestEnv::new();
    on_sim(&env, "manifest apply -M n1-pull -H sim").good();
    for line in [
        "node job edge check",
        "node job edge update --ssh",
        "node job edge collect --detach",
    ] {
        fails(&on_sim(&env, line), 3, "is simulated");
    }
    // It is asked before anything else.
    fails(&on_sim(&env, "node job edge reboot"), 3, "--yes");
    fails(
        &on_sim(&env, "node job edge reboot --yes"),
        3,
        "is simulated",
    );
    fails(
        &on_sim(&env, "node job egde check"),
        1,
        "did you mean `edge`",
    );

    let done = on_sim(&env, "node update -M n1-pull -H sim --json-output").json();
    assert_eq!(done["dry_run"], false);
    assert_eq!(done["nodes"][0]["state"], "skipped", "{done}");
    assert_eq!(done["nodes"][0]["message"], "it is simulated", "{done}");
    let shown = on_sim(&env, "node update -M n1-pull -H sim --dry-run").good();
    assert!(shown.contains("it is simulated"), "{shown}");
    on_sim(&env, "manifest destroy -M n1-pull -H sim --yes").good();
    on_sim(&env, "sim stop").good();
}

#[test]
fn an_update_without_a_host_is_refused_while_a_run_works_on_its_recorded_nodes() {
    let timing = Timing {
        boot: Duration::from_secs(600_000),
        ..Timing::default()
    };
    let host = TestPve::new(Pace::Accelerated(200.0), timing);
    host.workers(1, "");
    let mut running = Running::start(&host, &APPLY);
    running.until("step-started", "ready");
    let update = ["node", "update", "-M", "workers", "--yes", "--json-output"];
    let refused = host.run(&update);
    fails(&refused, 3, "`workers` on `father` is locked by process ");
    // A plan changes nothing and locks nothing.
    host.run(&["node", "update", "-M", "workers", "--dry-run"])
        .good();
    running.send(Signal::KILL);
    running.end();
    // The lock of a process that has ended keeps nobody away.
    let done = host.run(&update).json();
    assert_eq!(done["nodes"][0]["state"], "skipped", "{done}");
}

#[test]
fn a_server_without_jobs_lists_none_and_knows_no_id() {
    let site = Site::new();
    let listed = site.run("job list --json-output").json();
    assert_eq!(
        listed,
        json!({"kind": "job.list", "version": 1, "jobs": []})
    );
    let none = site.run("job list");
    fails(&none, 0, "has no jobs");
    assert_eq!(none.out, "");
    for line in ["job show", "job cancel"] {
        fails(&site.run(&format!("{line} {ID}")), 1, "has no job");
    }
    let unknown = site.run("job list web");
    fails(&unknown, 1, "no enrolled node `web`");
    fails(&unknown, 1, "homestak node list");
    let env = TestEnv::new();
    for (noun, verb) in [
        ("job", "list"),
        ("node", "show"),
        ("node", "enrol"),
        ("token", "revoke"),
    ] {
        assert_eq!(env.run(&[noun, verb, ""]).code, 2, "{noun} {verb}");
    }
    let failed = site.run(&format!("job show {ID} --json-output"));
    let failed: Value = serde_json::from_str(&failed.out).unwrap();
    assert_eq!(failed["kind"], "error", "{failed}");
}
