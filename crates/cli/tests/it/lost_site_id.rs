//! A site id that was lost or belongs to another site is not replaced or used without confirmation.

use std::fs;

use crate::owner::{APPLY, id_of, old_guest, without_id};
use crate::support::TestEnv;
use crate::test_pve::TestPve;

const WORKERS: [&str; 6] = ["manifest", "apply", "-M", "workers", "-H", "father"];

#[test]
fn a_plan_does_not_give_its_site_id_to_another_site() {
    let host = TestPve::quick();
    host.single();
    let id = id_of(&host).unwrap();
    let plan = ["manifest", "plan", "-M", "single-node", "-H", "father"];
    host.run(&[&plan[..], &["--out", "plan.json"]].concat())
        .good();
    // Like a copy of the site from before it had an id, with its own state directory.
    let text = without_id(&host);
    let run = host.run(&["manifest", "apply", "plan.json"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains(&id), "{}", run.err);
    assert!(run.err.contains("this site has no id"), "{}", run.err);
    let file = host.env.site().join("site.yaml");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn an_applied_plan_does_not_give_its_site_id_to_a_second_site() {
    let host = TestPve::quick();
    host.single();
    without_id(&host);
    let plan = ["manifest", "plan", "-M", "single-node", "-H", "father"];
    host.run(&[&plan[..], &["--out", "plan.json"]].concat())
        .good();
    host.run(&["manifest", "apply", "plan.json"]).good();
    // Like a copy of the site from before it had an id, with its own state directory.
    without_id(&host);
    fs::remove_dir_all(host.state()).unwrap();
    let run = host.run(&["manifest", "apply", "plan.json"]);
    assert_eq!(run.code, 3, "{}", run.err);
    let file = host.env.site().join("site.yaml");
    assert!(!fs::read_to_string(&file).unwrap().contains("\nid:"));
    assert_eq!(host.guests(), ["test-vm"]);
}

#[test]
fn a_site_without_its_id_is_refused_for_any_manifest_while_the_journal_has_one() {
    let host = TestPve::quick();
    host.single();
    let id = id_of(&host).unwrap();
    host.run(&APPLY).good();
    let text = without_id(&host);
    host.workers(1, "");
    let run = host.run(&WORKERS);
    assert_eq!(run.code, 3, "{}", run.err);
    for part in [
        &format!("homestak site new-id --id {id}"),
        "homestak site new-id gives",
    ] {
        assert!(run.err.contains(part), "{part}: {}", run.err);
    }
    let file = host.env.site().join("site.yaml");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(host.guests(), ["test-vm"]);
    host.run(&["site", "new-id"]).good();
    host.run(&WORKERS).good();
    assert_eq!(host.guests(), ["test-vm", "worker-1"]);
}

#[test]
fn a_site_of_an_older_release_gets_an_id_even_if_the_journal_has_other_sites() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    old_guest(&host);
    without_id(&host);
    host.workers(1, "");
    host.run(&WORKERS).good();
}

#[test]
fn new_id_prints_what_to_replace_when_it_cannot_edit_site_yaml() {
    let host = TestPve::quick();
    let id = "kq7f2mzx4vbt3npw";
    for text in [
        format!("schema_version: 2\nid:\n  {id}\n"),
        format!("schema_version: 2\nid: >-\n  {id}\n"),
        format!("schema_version: 2\n\"id\": {id}\n"),
        format!("{{schema_version: 2, id: {id}}}\n"),
    ] {
        host.env.write("site.yaml", &text);
        assert_eq!(id_of(&host).as_deref(), Some(id), "{text}");
        let new = "aq7f2mzx4vbt3npw";
        let run = host.run(&["site", "new-id", "--id", new, "--yes"]);
        assert_eq!(run.code, 1, "{text}: {}", run.err);
        let hint = format!("replace the value of `id` with {new}");
        assert!(run.err.contains(&hint), "{text}: {}", run.err);
        assert!(!run.err.contains("add both"), "{text}: {}", run.err);
        let file = host.env.site().join("site.yaml");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

#[test]
fn forget_names_the_site_id_of_recorded_runs() {
    let host = TestPve::quick();
    host.single();
    let id = id_of(&host).unwrap();
    host.run(&APPLY).good();
    host.run(&["site", "new-id", "--yes"]).good();
    let run = host.run(&["manifest", "forget", "test-vm", "--yes"]);
    assert_eq!(run.code, 1, "{}", run.err);
    let hint = format!("homestak site new-id --id {id}");
    assert!(run.err.contains(&hint), "{}", run.err);
}

#[test]
fn the_built_in_site_names_the_site_id_of_guests_from_before_its_state_was_lost() {
    let env = TestEnv::without_site();
    env.run(&[
        "manifest", "apply", "-M", "n1-push", "-H", "sim", "--mode", "push",
    ]);
    let state = env.home().join(".local/state/homestak");
    let id = fs::read_to_string(state.join("site-id")).unwrap();
    for entry in fs::read_dir(&state).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("journal") || name == "site-id" {
            fs::remove_file(path).unwrap();
        }
    }
    let destroy = ["manifest", "destroy", "-M", "n1-push", "-H", "sim", "--yes"];
    let run = env.run(&destroy);
    assert_eq!(run.code, 0, "{}", run.err);
    let hint = format!("homestak site new-id --id {}", id.trim());
    assert!(run.err.contains(&hint), "{}", run.err);
    env.run(&["site", "new-id", "--id", id.trim()]).good();
    env.run(&destroy).good();
    let run = env.run(&destroy);
    assert!(!run.err.contains("new-id"), "{}", run.err);
    env.run(&["sim", "stop"]).good();
}
