//! Several host entries, names that changed, an id that was lost: what is printed then is true, and
//! its commands work.

use std::fs;

use serde_json::Value;

use crate::father::Father;
use crate::owner::{APPLY, DESTROY, id_of, without_id};
use crate::support::Run;

fn lose_state(father: &Father) {
    fs::remove_dir_all(father.state()).unwrap();
}

/// A manifest of one machine with an id of its own.
fn fixed(father: &Father, manifest: &str, vmid: u32) {
    let node = format!("  - {{name: a, preset: vm-small, image: debian-12, vmid: {vmid}}}\n");
    father.manifest(manifest, "", &node);
}

fn rebuild(father: &Father) -> (i32, Value) {
    let run = father.run(&["state", "rebuild", "--json-output"]);
    let json = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("{}", run.err));
    (run.code, json)
}

fn rename(father: &Father, from: &str, to: &str) {
    let site = father.site.site();
    fs::rename(site.join(from), site.join(to)).unwrap();
}

/// Makes a `destroy` of the manifest `w`, on two hosts, fail at its second node.
fn failed_destroy(father: &Father) -> Run {
    let node = |name: &str, host: &str| {
        format!("  - {{name: {name}, preset: vm-small, image: debian-12, host: {host}}}\n")
    };
    let nodes = node("wa", "father") + &node("wb", "mother");
    father.manifest("w", "", &nodes);
    father.run(&["manifest", "apply", "-M", "w"]).good();
    protect(father, "1");
    let run = father.run(&["manifest", "destroy", "-M", "w", "--yes"]);
    assert_eq!(run.code, 1, "{}", run.err);
    run
}

fn protect(father: &Father, value: &str) {
    let mut guests = father.pve.guests().into_iter();
    let guest = guests.find(|guest| guest.config["name"] == "wb").unwrap();
    let change = father
        .pve
        .change_guest(guest.vmid, &[("protection", value)]);
    change.unwrap();
}

/// Returns the words of the first command of a subcommand in a text.
fn printed<'t>(text: &'t str, command: &str) -> Vec<&'t str> {
    let at = text.find(command).unwrap_or_else(|| panic!("{text}"));
    let words = text[at..].split([' ', '\n', ';']).skip(1);
    words.take(6).collect()
}

#[test]
fn guests_that_two_host_entries_show_are_recorded_for_their_own() {
    let father = Father::cluster();
    father.single();
    father.run(&APPLY).good();
    father
        .run(&["manifest", "apply", "-M", "single-node", "-H", "mother"])
        .good();
    lose_state(&father);
    let (code, json) = rebuild(&father);
    assert_eq!(json["refused"].as_array().unwrap().len(), 0, "{json:#}");
    assert_eq!(code, 0, "{json:#}");
    let hosts = json["restored"].as_array().unwrap().iter();
    let hosts: Vec<&str> = hosts.map(|node| node["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["father", "mother"], "{json:#}");
    // The same when only one of the two is asked.
    lose_state(&father);
    let one = father.run(&["state", "rebuild", "-H", "mother", "--json-output"]);
    let json = one.json();
    assert_eq!(json["restored"].as_array().unwrap().len(), 1, "{json:#}");
}

#[test]
fn a_guest_that_another_driver_replaced_is_named_with_the_command_that_takes_it() {
    let father = Father::quick();
    fixed(&father, "m", 5001);
    let apply = ["manifest", "apply", "-M", "m", "-H", "father", "--yes"];
    father.run(&apply).good();
    let other = |arguments: &[&str]| {
        let mut command = father.command(arguments);
        command.env("HOMESTAK_STATE", father.site.work().join("other-state"));
        command.output().map(Run::from).unwrap()
    };
    other(&["state", "rebuild"]).good();
    fixed(&father, "m", 5011);
    other(&apply).good();
    let (code, json) = rebuild(&father);
    assert_eq!(code, 3, "{json:#}");
    let refused = json["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 1, "{json:#}");
    assert_eq!(refused[0]["node"], "a", "{json:#}");
    let hint = refused[0]["hint"].as_str().unwrap();
    assert!(hint.contains("homestak manifest forget a"), "{hint}");
    father
        .run(&["manifest", "forget", "a", "-M", "m", "--yes"])
        .good();
    let (code, json) = rebuild(&father);
    assert_eq!((code, &json["restored"][0]["vmid"]), (0, &5011.into()));
}

#[test]
fn guests_of_a_manifest_that_the_site_does_not_have_are_listed() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    let vmid = father.pve.guests()[0].vmid;
    rename(
        &father,
        "manifests/single-node.yaml",
        "manifests/lonely.yaml",
    );
    father.manifest(
        "lonely",
        "",
        "  - {name: test-vm, preset: vm-small, image: debian-12}\n",
    );
    lose_state(&father);
    let (code, json) = rebuild(&father);
    assert_eq!(code, 3, "{json:#}");
    let refused = json["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 1, "{json:#}");
    assert_eq!(refused[0]["manifest"], "single-node", "{json:#}");
    let reason = refused[0]["reason"].as_str().unwrap();
    assert!(reason.contains(&format!("guest {vmid}")), "{reason}");
    assert!(reason.contains("does not have"), "{reason}");
    // Of a manifest that is named, nothing is missing.
    let named = father.run(&["state", "rebuild", "-M", "lonely"]);
    assert_eq!(named.code, 0, "{}", named.err);
}

#[test]
fn commands_that_are_printed_for_a_run_on_several_hosts_work() {
    let father = Father::cluster();
    failed_destroy(&father);
    let status = father.run(&["manifest", "status", "-M", "w"]);
    let command = printed(&status.err, "homestak manifest resume");
    protect(&father, "0");
    father.run(&command).good();
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn several_unfinished_runs_are_told_apart_by_flags_that_work() {
    let father = Father::cluster();
    failed_destroy(&father);
    fixed(&father, "m", 5001);
    father
        .run(&["manifest", "apply", "-M", "m", "-H", "father"])
        .good();
    father
        .pve
        .change_guest(5001, &[("protection", "1")])
        .unwrap();
    let destroy = ["manifest", "destroy", "-M", "m", "-H", "father", "--yes"];
    assert_eq!(father.run(&destroy).code, 1);
    let which = father.run(&["manifest", "resume"]);
    assert_eq!(which.code, 2, "{}", which.err);
    let mut hints = which.err.lines();
    let hint = hints.find(|line| line.contains("-M w"));
    let hint = hint.unwrap_or_else(|| panic!("{}", which.err));
    let flags = &hint[hint.find("-M").unwrap()..];
    protect(&father, "0");
    let words: Vec<&str> = ["manifest", "resume"]
        .into_iter()
        .chain(flags.split(' '))
        .collect();
    father.run(&words).good();
}

#[test]
fn a_failed_destroy_offers_no_rollback_that_undoes_nothing() {
    let father = Father::cluster();
    let run = failed_destroy(&father);
    assert!(run.err.contains("homestak manifest resume"), "{}", run.err);
    assert!(!run.err.contains("rollback"), "{}", run.err);
}

#[test]
fn a_lost_id_is_named_by_plan_destroy_and_rebuild_of_a_site_directory() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    let id = id_of(&father).unwrap();
    let hint = format!("homestak site new-id --id {id}");
    lose_state(&father);
    let plan = ["manifest", "plan", "-M", "single-node", "-H", "father"];
    let dry = [&DESTROY[..], &["--dry-run"]].concat();
    let named = |what: &str| {
        for words in [&plan[..], &dry, &DESTROY, &["state", "rebuild"]] {
            let run = father.run(words);
            let count = run.err.matches(&hint).count();
            assert_eq!(count, 1, "{what}, {words:?}: {}", run.err);
        }
    };
    without_id(&father);
    named("without an id");
    father.run(&["site", "new-id"]).good();
    named("with another id");
    let json = rebuild(&father).1;
    assert_eq!(json["other_sites"][0]["site"], id.as_str(), "{json:#}");
    assert_eq!(father.guests(), ["test-vm"]);
    father.run(&["site", "new-id", "--id", &id, "--yes"]).good();
    for words in [&["state", "rebuild"][..], &plan, &DESTROY] {
        let run = father.run(words);
        assert!(!run.err.contains("new-id"), "{words:?}: {}", run.err);
    }
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn two_sites_with_one_manifest_name_are_not_told_to_change_their_id_once_they_have_guests() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    lose_state(&father);
    father.run(&["site", "new-id", "--yes"]).good();
    father.run(&APPLY).good();
    for words in [&APPLY[..], &["state", "rebuild"], &DESTROY] {
        let run = father.run(words);
        assert!(!run.err.contains("new-id"), "{words:?}: {}", run.err);
    }
}

#[test]
fn after_a_host_entry_was_renamed_the_refusal_names_the_old_one_and_destroying_through_it_works() {
    let father = Father::quick();
    fixed(&father, "m", 5001);
    father
        .run(&["manifest", "apply", "-M", "m", "-H", "father"])
        .good();
    father.host_entry("dad", "pve1");
    rename(&father, "nodes/father.yaml", "father.kept");
    let plan = ["manifest", "plan", "-M", "m", "-H", "dad"];
    let run = father.run(&plan);
    assert_eq!(run.code, 3, "{}", run.out);
    assert!(run.out.contains("on the host `father`"), "{}", run.out);
    assert!(run.out.contains("nodes/father.yaml"), "{}", run.out);
    assert!(!run.out.contains("to have one assigned"), "{}", run.out);
    // What the journal knew is all that named it.
    let state = father.state().with_extension("kept");
    fs::rename(father.state(), &state).unwrap();
    let run = father.run(&plan);
    assert_eq!(run.code, 3, "{}", run.out);
    assert!(run.out.contains("matches no host"), "{}", run.out);
    assert!(!run.out.contains("to have one assigned"), "{}", run.out);
    fs::remove_dir_all(father.state()).unwrap();
    fs::rename(&state, father.state()).unwrap();
    // What the guide names: the old name again, or both entries until the guests are removed.
    rename(&father, "father.kept", "nodes/father.yaml");
    let again = father.run(&["manifest", "apply", "-M", "m", "-H", "father"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    father
        .run(&["manifest", "destroy", "-M", "m", "-H", "father", "--yes"])
        .good();
    father
        .run(&["manifest", "apply", "-M", "m", "-H", "dad"])
        .good();
    assert_eq!(father.guests(), ["a"]);
}

#[test]
fn after_a_manifest_was_renamed_the_refusal_names_the_old_one_and_a_file_of_that_name_destroys() {
    let father = Father::quick();
    fixed(&father, "m", 5001);
    father
        .run(&["manifest", "apply", "-M", "m", "-H", "father"])
        .good();
    rename(&father, "manifests/m.yaml", "old.yaml");
    let free = "  - {name: a, preset: vm-small, image: debian-12}\n";
    father.manifest("mm", "", free);
    let run = father.run(&["manifest", "plan", "-M", "mm", "-H", "father"]);
    assert!(run.out.contains("1 to create"), "{}", run.out);
    fixed(&father, "mm", 5001);
    let run = father.run(&["manifest", "plan", "-M", "mm", "-H", "father"]);
    assert_eq!(run.code, 3, "{}", run.out);
    assert!(run.out.contains("of the manifest `m`"), "{}", run.out);
    assert!(run.out.contains("--manifest-file"), "{}", run.out);
    assert!(!run.out.contains("to have one assigned"), "{}", run.out);
    // What the guide names: the old name again, or a file of that name.
    rename(&father, "old.yaml", "manifests/m.yaml");
    let again = father.run(&["manifest", "apply", "-M", "m", "-H", "father"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    rename(&father, "manifests/m.yaml", "old.yaml");
    father
        .run(&[
            "manifest",
            "destroy",
            "--manifest-file",
            "site/old.yaml",
            "-H",
            "father",
            "--yes",
        ])
        .good();
    father
        .run(&["manifest", "apply", "-M", "mm", "-H", "father"])
        .good();
    assert_eq!(father.guests(), ["a"]);
}

#[test]
fn forget_says_nothing_of_a_guest_that_it_did_not_look_at() {
    let father = Father::quick();
    fixed(&father, "m", 5001);
    father
        .run(&["manifest", "apply", "-M", "m", "-H", "father"])
        .good();
    father.pve.remove_guest(5001);
    let run = father.run(&["manifest", "forget", "a", "-M", "m", "--yes"]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(!run.err.contains("is unchanged"), "{}", run.err);
    assert!(run.err.contains("was not queried"), "{}", run.err);
}

/// Runs of `w` on two hosts: a failed destroy of both, then one on `father` alone that keeps `wa`.
fn replaced(father: &Father) {
    failed_destroy(father);
    protect(father, "0");
    let node = "  - {name: wa, preset: vm-small, image: debian-12, host: father}\n";
    father.manifest("w", "", node);
    father.run(&["manifest", "apply", "-M", "w"]).good();
}

fn wa_runs(father: &Father) -> bool {
    father.guests().iter().any(|name| name == "wa")
}

#[test]
fn a_run_that_a_newer_one_on_some_of_its_hosts_replaced_is_neither_resumed_nor_undone() {
    let father = Father::cluster();
    replaced(&father);
    assert!(wa_runs(&father), "{:?}", father.guests());
    let before = father.guests();
    for words in [
        &["manifest", "resume", "-M", "w", "-H", "mother"][..],
        &["manifest", "rollback", "-M", "w", "-H", "mother", "--yes"],
        &["manifest", "resume", "-H", "mother"],
    ] {
        let run = father.run(words);
        assert_eq!(run.code, 3, "{words:?}: {}{}", run.out, run.err);
        assert!(run.err.contains("replaced"), "{words:?}: {}", run.err);
        assert_eq!(father.guests(), before, "{words:?}");
    }
    let status = father.run(&["manifest", "status", "-M", "w", "-H", "mother"]);
    assert!(!status.err.contains("resume"), "{}", status.err);
    assert!(status.err.contains("replaced"), "{}", status.err);
    status.good();
    let json = father
        .run(&[
            "manifest",
            "status",
            "-M",
            "w",
            "-H",
            "mother",
            "--json-output",
        ])
        .json();
    assert_eq!(json["runs"][0]["resumable"], false, "{json:#}");
}

#[test]
fn an_older_run_does_not_become_the_newest_when_the_one_that_replaced_it_is_replaced() {
    let father = Father::cluster();
    let node = |name: &str, host: &str| {
        format!("  - {{name: {name}, preset: vm-small, image: debian-12, host: {host}}}\n")
    };
    let (wa, wb) = (node("wa", "father"), node("wb", "mother"));
    let larger = wa.replace("host:", "memory: 3072, host:");
    // On mother alone, on both, on father alone.
    for nodes in [wb.clone(), wa + &wb, larger] {
        father.manifest("w", "", &nodes);
        father.run(&["manifest", "apply", "-M", "w"]).good();
    }
    assert_eq!(father.guests(), ["wa", "wb"]);
    let run = father.run(&["manifest", "rollback", "-M", "w", "-H", "mother", "--yes"]);
    assert_eq!(run.code, 3, "{}{}", run.out, run.err);
    assert_eq!(father.guests(), ["wa", "wb"]);
}

#[test]
fn a_site_is_not_told_to_take_its_own_id_when_only_copies_of_its_guests_are_left() {
    let father = Father::quick();
    fixed(&father, "m", 5001);
    father
        .run(&["manifest", "apply", "-M", "m", "-H", "father"])
        .good();
    father.pve.clone_guest(5001, 9001, &[]).unwrap();
    father.pve.remove_guest(5001);
    for words in ["plan", "destroy"] {
        let run = father.run(&["manifest", words, "-M", "m", "-H", "father"]);
        assert!(run.out.contains("9001") || run.err.contains("9001"));
        assert!(!run.err.contains("new-id"), "{words}: {}", run.err);
    }
}

#[test]
fn a_site_with_runs_of_its_own_is_not_told_to_take_the_id_of_another() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    // Another site has guests of a manifest of that name; this one had some and removed them.
    lose_state(&father);
    father.run(&["site", "new-id", "--yes"]).good();
    father.run(&APPLY).good();
    father.run(&DESTROY).good();
    for words in [
        &["manifest", "plan", "-M", "single-node", "-H", "father"][..],
        &DESTROY,
    ] {
        let run = father.run(words);
        assert!(!run.err.contains("new-id"), "{words:?}: {}", run.err);
    }
}
