//! A job goes on when its connection is lost, and whoever comes back learns how it ended.

use serde_json::{Value, json};

use crate::bed::Way;
use crate::lab::{AGENT, Lab, STATE, result};

fn numbers(events: &[Value]) -> Vec<u64> {
    let numbers = events.iter().map(|event| event["n"].as_u64().unwrap());
    numbers.collect()
}

#[test]
fn a_job_goes_on_without_its_connection_and_is_done_once() {
    let Some(lab) = Lab::new() else { return };
    let spec = lab.spec("dev");
    let mut job = lab.begin("--id first", &spec, Way::Anew);
    job.until("step");
    let before = job.lose();
    let last = before.last().unwrap()["n"].as_u64().unwrap();
    let (code, after) = lab.follow(&format!("--id first --after {last}"));
    assert_eq!(code, 0, "{after:#?}");
    let whole: Vec<Value> = before.iter().chain(&after).cloned().collect();
    let count = u64::try_from(whole.len()).unwrap();
    assert_eq!(numbers(&whole), (1..=count).collect::<Vec<_>>());
    assert_eq!(result(&whole)["success"], true);
    assert_eq!(result(&whole)["users"], 2);
    assert_eq!(lab.status()["status"], "complete");
    let mode = lab.root(&format!("stat -c %a {STATE} {STATE}/jobs"));
    assert_eq!(mode.good(), "700\n700\n");

    // Asked for again, it is told again and not done again.
    let (code, again) = lab.job("--id first", &spec);
    assert_eq!((code, again), (0, whole));

    // When nothing differs, nothing is started.
    let (code, events) = lab.job("--id second --confirm 60", &spec);
    assert_eq!((code, events.len()), (0, 2), "{events:#?}");
    assert_eq!(events[0]["changes"], json!([]));
    assert_eq!(result(&events)["steps"], json!([]));
    lab.root(&format!("test ! -e {STATE}/jobs/second/alive"))
        .good();
    assert_eq!(lab.follow("--id second --after 1").1, events[1..]);
    let run = lab.root(&format!("{AGENT} job confirm --id second"));
    assert_eq!(run.code, 1);
    assert!(run.err.contains("did not ask for that"), "{}", run.err);

    // What cannot be done is told the same way, and whoever is second is told so.
    let (code, events) = lab.job("--id wrong", &json!({ "schema_version": 1 }));
    assert_eq!((code, text_of(&events)), (1, "wrong_spec".to_owned()));
    let under = |words: &str| {
        let command = format!("sudo flock {STATE}/lock {AGENT} job run {words}");
        let input = spec.to_string();
        let run = lab.bed.feed("web", &command, input.as_bytes());
        (run.code, crate::lab::events(&run.out))
    };
    let (code, events) = under("--id busy");
    assert_eq!((code, text_of(&events)), (2, "busy".to_owned()));
    // It was not begun, so that name can still be used.
    assert_eq!(lab.job("--id busy", &spec).0, 0);
    for (words, code) in [
        ("follow --id no-such", 1),
        ("confirm --id no-such", 1),
        ("follow --id a/b", 2),
    ] {
        let run = lab.root(&format!("{AGENT} job {words}"));
        assert_eq!(run.code, code, "{words}: {}", run.err);
    }

    // A worker that is killed is missed, and the next job goes on.
    let mut other = spec.clone();
    other["config"]["files"][0]["content"] = json!("other\n");
    let command = format!("sudo env HOMESTAK_CRASH_AFTER=0 {AGENT} job run --id killed");
    let input = other.to_string();
    let run = lab.bed.feed("web", &command, input.as_bytes());
    let events = crate::lab::events(&run.out);
    assert_eq!((run.code, text_of(&events)), (2, "killed".to_owned()));
    assert_eq!(lab.status()["failed"]["error"], "killed");
    assert_eq!(lab.job("--id next", &other).0, 0);
    assert_eq!(lab.check(&other), [""; 0]);

    // The last few are kept, for root only.
    for n in 0..10 {
        assert_eq!(lab.job(&format!("--id many-{n}"), &other).0, 0);
    }
    let kept = lab.root(&format!("ls {STATE}/jobs | wc -l; stat -c %a {STATE}/jobs {STATE}/jobs/*; ls {STATE}/jobs/many-9/events"));
    let kept = kept.good();
    let lines: Vec<_> = kept.lines().collect();
    assert_eq!(lines[0], "8", "{kept}");
    assert!(lines[1..10].iter().all(|mode| *mode == "700"), "{kept}");
    lab.bed.destroy("lab");
}

/// The word for what went wrong.
fn text_of(events: &[Value]) -> String {
    crate::bed::text(&result(events)["error"])
}
