//! An id that a site lost, or that belongs to another site, is not replaced or taken without asking.

use std::fs;

use crate::father::Father;
use crate::owner::{APPLY, id_of, old_guest, without_id};
use crate::support::World;

const WORKERS: [&str; 6] = ["manifest", "apply", "-M", "workers", "-H", "father"];

#[test]
fn the_plan_of_a_site_with_an_id_gives_it_to_no_other_site() {
    let father = Father::quick();
    father.single();
    let id = id_of(&father).unwrap();
    let plan = ["manifest", "plan", "-M", "single-node", "-H", "father"];
    father
        .run(&[&plan[..], &["--out", "plan.json"]].concat())
        .good();
    // As a copy of the site from before it had an id, with a state directory of its own.
    let text = without_id(&father);
    let run = father.run(&["manifest", "apply", "plan.json"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains(&id), "{}", run.err);
    assert!(run.err.contains("this site has none"), "{}", run.err);
    let file = father.site.site().join("site.yaml");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn a_plan_that_gave_a_site_its_id_and_was_carried_out_gives_it_to_no_second_site() {
    let father = Father::quick();
    father.single();
    without_id(&father);
    let plan = ["manifest", "plan", "-M", "single-node", "-H", "father"];
    father
        .run(&[&plan[..], &["--out", "plan.json"]].concat())
        .good();
    father.run(&["manifest", "apply", "plan.json"]).good();
    // As a copy of the site from before it had an id, with a state directory of its own.
    without_id(&father);
    fs::remove_dir_all(father.state()).unwrap();
    let run = father.run(&["manifest", "apply", "plan.json"]);
    assert_eq!(run.code, 3, "{}", run.err);
    let file = father.site.site().join("site.yaml");
    assert!(!fs::read_to_string(&file).unwrap().contains("\nid:"));
    assert_eq!(father.guests(), ["test-vm"]);
}

#[test]
fn a_site_that_lost_its_id_is_refused_for_any_manifest_while_the_journal_knows_one() {
    let father = Father::quick();
    father.single();
    let id = id_of(&father).unwrap();
    father.run(&APPLY).good();
    let text = without_id(&father);
    father.workers(1, "");
    let run = father.run(&WORKERS);
    assert_eq!(run.code, 3, "{}", run.err);
    for part in [
        &format!("homestak site new-id --id {id}"),
        "homestak site new-id gives",
    ] {
        assert!(run.err.contains(part), "{part}: {}", run.err);
    }
    let file = father.site.site().join("site.yaml");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(father.guests(), ["test-vm"]);
    father.run(&["site", "new-id"]).good();
    father.run(&WORKERS).good();
    assert_eq!(father.guests(), ["test-vm", "worker-1"]);
}

#[test]
fn a_site_that_an_older_program_used_gets_its_id_whatever_other_sites_the_journal_knows() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    old_guest(&father);
    without_id(&father);
    father.workers(1, "");
    father.run(&WORKERS).good();
}

#[test]
fn the_hint_for_an_id_that_cannot_be_replaced_by_lines_names_its_value() {
    let father = Father::quick();
    let id = "kq7f2mzx4vbt3npw";
    for text in [
        format!("schema_version: 2\nid:\n  {id}\n"),
        format!("schema_version: 2\nid: >-\n  {id}\n"),
        format!("schema_version: 2\n\"id\": {id}\n"),
        format!("{{schema_version: 2, id: {id}}}\n"),
    ] {
        father.site.write("site.yaml", &text);
        assert_eq!(id_of(&father).as_deref(), Some(id), "{text}");
        let new = "aq7f2mzx4vbt3npw";
        let run = father.run(&["site", "new-id", "--id", new, "--yes"]);
        assert_eq!(run.code, 1, "{text}: {}", run.err);
        let hint = format!("replace the value of `id` with {new}");
        assert!(run.err.contains(&hint), "{text}: {}", run.err);
        assert!(!run.err.contains("add both"), "{text}: {}", run.err);
        let file = father.site.site().join("site.yaml");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

#[test]
fn forget_names_the_id_under_which_the_journal_knows_runs() {
    let father = Father::quick();
    father.single();
    let id = id_of(&father).unwrap();
    father.run(&APPLY).good();
    father.run(&["site", "new-id", "--yes"]).good();
    let run = father.run(&["manifest", "forget", "test-vm", "--yes"]);
    assert_eq!(run.code, 1, "{}", run.err);
    let hint = format!("homestak site new-id --id {id}");
    assert!(run.err.contains(&hint), "{}", run.err);
}

#[test]
fn the_built_in_site_names_the_id_of_guests_that_it_may_have_created_before_it_lost_its_state() {
    let world = World::bare();
    world.run(&[
        "manifest", "apply", "-M", "n1-push", "-H", "sim", "--mode", "push",
    ]);
    let state = world.home().join(".local/state/homestak");
    let id = fs::read_to_string(state.join("site-id")).unwrap();
    for entry in fs::read_dir(&state).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("journal") || name == "site-id" {
            fs::remove_file(path).unwrap();
        }
    }
    let destroy = ["manifest", "destroy", "-M", "n1-push", "-H", "sim", "--yes"];
    let run = world.run(&destroy);
    assert_eq!(run.code, 0, "{}", run.err);
    let hint = format!("homestak site new-id --id {}", id.trim());
    assert!(run.err.contains(&hint), "{}", run.err);
    world.run(&["site", "new-id", "--id", id.trim()]).good();
    world.run(&destroy).good();
    let run = world.run(&destroy);
    assert!(!run.err.contains("new-id"), "{}", run.err);
    world.run(&["sim", "stop"]).good();
}
