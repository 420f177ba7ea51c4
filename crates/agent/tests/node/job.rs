//! A job continues when its connection is lost, and can be followed later.

use serde_json::{Value, json};

use crate::test_host::SshConnection;
use crate::test_node::{AGENT, STATE, TestNode, result};

fn numbers(events: &[Value]) -> Vec<u64> {
    let numbers = events.iter().map(|event| event["n"].as_u64().unwrap());
    numbers.collect()
}

#[test]
fn a_job_continues_without_its_connection_and_runs_once() {
    let Some(node) = TestNode::new() else { return };
    let spec = node.spec("dev");
    let mut job = node.begin("--id first", &spec, SshConnection::New);
    job.until("step");
    let before = job.disconnect();
    let last = before.last().unwrap()["n"].as_u64().unwrap();
    let (code, after) = node.follow(&format!("--id first --after {last}"));
    assert_eq!(code, 0, "{after:#?}");
    let whole: Vec<Value> = before.iter().chain(&after).cloned().collect();
    let count = u64::try_from(whole.len()).unwrap();
    assert_eq!(numbers(&whole), (1..=count).collect::<Vec<_>>());
    assert_eq!(result(&whole)["success"], true);
    assert_eq!(result(&whole)["users"], 2);
    assert_eq!(node.status()["status"], "complete");
    let mode = node.root(&format!("stat -c %a {STATE} {STATE}/jobs"));
    assert_eq!(mode.good(), "700\n700\n");

    // Requested again, its events are repeated, and it does not run again.
    let (code, again) = node.job("--id first", &spec);
    assert_eq!((code, again), (0, whole));

    // Without differences, no worker is started.
    let (code, events) = node.job("--id second --confirm 60", &spec);
    assert_eq!((code, events.len()), (0, 2), "{events:#?}");
    assert_eq!(events[0]["changes"], json!([]));
    assert_eq!(result(&events)["steps"], json!([]));
    node.root(&format!("test ! -e {STATE}/jobs/second/alive"))
        .good();
    assert_eq!(node.follow("--id second --after 1").1, events[1..]);
    let run = node.root(&format!("{AGENT} job confirm --id second"));
    assert_eq!(run.code, 1);
    assert!(
        run.err.contains("did not request confirmation"),
        "{}",
        run.err
    );

    // Errors are reported as events, also when another run is in progress.
    let (code, events) = node.job("--id wrong", &json!({ "schema_version": 1 }));
    assert_eq!((code, text_of(&events)), (1, "wrong_spec".to_owned()));
    let under = |words: &str| {
        let command = format!("sudo flock {STATE}/lock {AGENT} job run {words}");
        let input = spec.to_string();
        let run = node.host.run_with_input("web", &command, input.as_bytes());
        (run.code, crate::test_node::events(&run.out))
    };
    let (code, events) = under("--id busy");
    assert_eq!((code, text_of(&events)), (2, "busy".to_owned()));
    // It was not created, so its name can be used again.
    assert_eq!(node.job("--id busy", &spec).0, 0);
    for (words, code) in [
        ("follow --id no-such", 1),
        ("confirm --id no-such", 1),
        ("follow --id a/b", 2),
    ] {
        let run = node.root(&format!("{AGENT} job {words}"));
        assert_eq!(run.code, code, "{words}: {}", run.err);
    }

    // A killed worker is detected, and the next job succeeds.
    let mut other = spec.clone();
    other["config"]["files"][0]["content"] = json!("other\n");
    let command = format!("sudo env HOMESTAK_CRASH_AFTER=0 {AGENT} job run --id killed");
    let input = other.to_string();
    let run = node.host.run_with_input("web", &command, input.as_bytes());
    let events = crate::test_node::events(&run.out);
    assert_eq!((run.code, text_of(&events)), (2, "killed".to_owned()));
    assert_eq!(node.status()["failed"]["error"], "killed");
    assert_eq!(node.job("--id next", &other).0, 0);
    assert_eq!(node.check(&other), [""; 0]);

    // Only the last jobs are kept, readable by root alone.
    for n in 0..10 {
        assert_eq!(node.job(&format!("--id many-{n}"), &other).0, 0);
    }
    let listing = node.root(&format!("ls {STATE}/jobs | wc -l; stat -c %a {STATE}/jobs {STATE}/jobs/*; ls {STATE}/jobs/many-9/events"));
    let listing = listing.good();
    let lines: Vec<_> = listing.lines().collect();
    assert_eq!(lines[0], "8", "{listing}");
    assert!(lines[1..10].iter().all(|mode| *mode == "700"), "{listing}");
    node.host.destroy("lab");
}

/// The error code.
fn text_of(events: &[Value]) -> String {
    crate::test_host::text(&result(events)["error"])
}
