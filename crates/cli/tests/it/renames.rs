//! Several host entries, changed names and a lost id: messages are correct, and printed commands
//! work.

use std::fs;

use serde_json::Value;

use crate::owner::{APPLY, DESTROY, id_of, without_id};
use crate::support::Run;
use crate::test_pve::TestPve;

fn lose_state(host: &TestPve) {
    fs::remove_dir_all(host.state()).unwrap();
}

/// Writes a manifest of one machine with a fixed vmid.
fn fixed(host: &TestPve, manifest: &str, vmid: u32) {
    let node = format!("  - {{name: a, preset: vm-small, image: debian-12, vmid: {vmid}}}\n");
    host.manifest(manifest, "", &node);
}

fn rebuild(host: &TestPve) -> (i32, Value) {
    let run = host.run(&["state", "rebuild", "--json-output"]);
    let json = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("{}", run.err));
    (run.code, json)
}

fn rename(host: &TestPve, from: &str, to: &str) {
    let site = host.env.site();
    fs::rename(site.join(from), site.join(to)).unwrap();
}

/// Makes a `destroy` of the manifest `w`, on two hosts, fail at its second node.
fn failed_destroy(host: &TestPve) -> Run {
    let node = |name: &str, host: &str| {
        format!("  - {{name: {name}, preset: vm-small, image: debian-12, host: {host}}}\n")
    };
    let nodes = node("wa", "father") + &node("wb", "mother");
    host.manifest("w", "", &nodes);
    host.run(&["manifest", "apply", "-M", "w"]).good();
    protect(host, "1");
    let run = host.run(&["manifest", "destroy", "-M", "w", "--yes"]);
    assert_eq!(run.code, 1, "{}", run.err);
    run
}

fn protect(host: &TestPve, value: &str) {
    let mut guests = host.pve.guests().into_iter();
    let guest = guests.find(|guest| guest.config["name"] == "wb").unwrap();
    let change = host.pve.change_guest(guest.vmid, &[("protection", value)]);
    change.unwrap();
}

/// Returns the arguments of the first printed `command` in a text.
fn printed<'t>(text: &'t str, command: &str) -> Vec<&'t str> {
    let at = text.find(command).unwrap_or_else(|| panic!("{text}"));
    let words = text[at..].split([' ', '\n', ';']).skip(1);
    words.take(6).collect()
}

#[test]
fn guests_visible_through_two_host_entries_are_recorded_for_the_right_one() {
    let host = TestPve::cluster();
    host.single();
    host.run(&APPLY).good();
    host.run(&["manifest", "apply", "-M", "single-node", "-H", "mother"])
        .good();
    lose_state(&host);
    let (code, json) = rebuild(&host);
    assert_eq!(json["refused"].as_array().unwrap().len(), 0, "{json:#}");
    assert_eq!(code, 0, "{json:#}");
    let hosts = json["restored"].as_array().unwrap().iter();
    let hosts: Vec<&str> = hosts.map(|node| node["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["father", "mother"], "{json:#}");
    // The same when only one of the two is queried.
    lose_state(&host);
    let one = host.run(&["state", "rebuild", "-H", "mother", "--json-output"]);
    let json = one.json();
    assert_eq!(json["restored"].as_array().unwrap().len(), 1, "{json:#}");
}

#[test]
fn a_guest_replaced_by_another_driver_is_reported_with_the_command_to_adopt_it() {
    let host = TestPve::quick();
    fixed(&host, "m", 5001);
    let apply = ["manifest", "apply", "-M", "m", "-H", "father", "--yes"];
    host.run(&apply).good();
    let other = |arguments: &[&str]| {
        let mut command = host.command(arguments);
        command.env("HOMESTAK_STATE", host.env.work().join("other-state"));
        Run::of(&mut command)
    };
    other(&["state", "rebuild"]).good();
    fixed(&host, "m", 5011);
    other(&apply).good();
    let (code, json) = rebuild(&host);
    assert_eq!(code, 3, "{json:#}");
    let refused = json["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 1, "{json:#}");
    assert_eq!(refused[0]["node"], "a", "{json:#}");
    let hint = refused[0]["hint"].as_str().unwrap();
    assert!(hint.contains("homestak manifest forget a"), "{hint}");
    host.run(&["manifest", "forget", "a", "-M", "m", "--yes"])
        .good();
    let (code, json) = rebuild(&host);
    assert_eq!((code, &json["restored"][0]["vmid"]), (0, &5011.into()));
}

#[test]
fn guests_of_an_unknown_manifest_are_listed() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    let vmid = host.pve.guests()[0].vmid;
    rename(&host, "manifests/single-node.yaml", "manifests/lonely.yaml");
    host.manifest(
        "lonely",
        "",
        "  - {name: test-vm, preset: vm-small, image: debian-12}\n",
    );
    lose_state(&host);
    let (code, json) = rebuild(&host);
    assert_eq!(code, 3, "{json:#}");
    let refused = json["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 1, "{json:#}");
    assert_eq!(refused[0]["manifest"], "single-node", "{json:#}");
    let reason = refused[0]["reason"].as_str().unwrap();
    assert!(reason.contains(&format!("guest {vmid}")), "{reason}");
    assert!(reason.contains("does not have"), "{reason}");
    // With `-M`, guests of other manifests are not listed.
    let named = host.run(&["state", "rebuild", "-M", "lonely"]);
    assert_eq!(named.code, 0, "{}", named.err);
}

#[test]
fn printed_commands_for_a_run_on_several_hosts_work() {
    let host = TestPve::cluster();
    failed_destroy(&host);
    let status = host.run(&["manifest", "status", "-M", "w"]);
    let command = printed(&status.err, "homestak manifest resume");
    protect(&host, "0");
    host.run(&command).good();
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn several_unfinished_runs_are_distinguished_by_flags_that_work() {
    let host = TestPve::cluster();
    failed_destroy(&host);
    fixed(&host, "m", 5001);
    host.run(&["manifest", "apply", "-M", "m", "-H", "father"])
        .good();
    host.pve.change_guest(5001, &[("protection", "1")]).unwrap();
    let destroy = ["manifest", "destroy", "-M", "m", "-H", "father", "--yes"];
    assert_eq!(host.run(&destroy).code, 1);
    let which = host.run(&["manifest", "resume"]);
    assert_eq!(which.code, 2, "{}", which.err);
    let mut hints = which.err.lines();
    let hint = hints.find(|line| line.contains("-M w"));
    let hint = hint.unwrap_or_else(|| panic!("{}", which.err));
    let flags = &hint[hint.find("-M").unwrap()..];
    protect(&host, "0");
    let words: Vec<&str> = ["manifest", "resume"]
        .into_iter()
        .chain(flags.split(' '))
        .collect();
    host.run(&words).good();
}

#[test]
fn a_failed_destroy_does_not_suggest_a_rollback() {
    let host = TestPve::cluster();
    let run = failed_destroy(&host);
    assert!(run.err.contains("homestak manifest resume"), "{}", run.err);
    assert!(!run.err.contains("rollback"), "{}", run.err);
}

#[test]
fn a_lost_id_is_named_by_plan_destroy_and_rebuild_of_a_site_directory() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    let id = id_of(&host).unwrap();
    let hint = format!("homestak site new-id --id {id}");
    lose_state(&host);
    let plan = ["manifest", "plan", "-M", "single-node", "-H", "father"];
    let dry = [&DESTROY[..], &["--dry-run"]].concat();
    let named = |what: &str| {
        for words in [&plan[..], &dry, &DESTROY, &["state", "rebuild"]] {
            let run = host.run(words);
            let count = run.err.matches(&hint).count();
            assert_eq!(count, 1, "{what}, {words:?}: {}", run.err);
        }
    };
    without_id(&host);
    named("without an id");
    host.run(&["site", "new-id"]).good();
    named("with another id");
    let json = rebuild(&host).1;
    assert_eq!(json["other_sites"][0]["site"], id.as_str(), "{json:#}");
    assert_eq!(host.guests(), ["test-vm"]);
    host.run(&["site", "new-id", "--id", &id, "--yes"]).good();
    for words in [&["state", "rebuild"][..], &plan, &DESTROY] {
        let run = host.run(words);
        assert!(!run.err.contains("new-id"), "{words:?}: {}", run.err);
    }
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn two_sites_with_the_same_manifest_name_get_no_new_id_hint_once_they_have_guests() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    lose_state(&host);
    host.run(&["site", "new-id", "--yes"]).good();
    host.run(&APPLY).good();
    for words in [&APPLY[..], &["state", "rebuild"], &DESTROY] {
        let run = host.run(words);
        assert!(!run.err.contains("new-id"), "{words:?}: {}", run.err);
    }
}

#[test]
fn a_renamed_host_entry_is_refused_with_its_old_name_which_can_still_destroy() {
    let host = TestPve::quick();
    fixed(&host, "m", 5001);
    host.run(&["manifest", "apply", "-M", "m", "-H", "father"])
        .good();
    host.host_entry("dad", "pve1");
    rename(&host, "nodes/father.yaml", "father.old");
    let plan = ["manifest", "plan", "-M", "m", "-H", "dad"];
    let run = host.run(&plan);
    assert_eq!(run.code, 3, "{}", run.out);
    assert!(run.out.contains("on the host `father`"), "{}", run.out);
    assert!(run.out.contains("nodes/father.yaml"), "{}", run.out);
    assert!(!run.out.contains("to have one assigned"), "{}", run.out);
    // Without the journal, the old name is unknown.
    let state = host.state().with_extension("old");
    fs::rename(host.state(), &state).unwrap();
    let run = host.run(&plan);
    assert_eq!(run.code, 3, "{}", run.out);
    assert!(run.out.contains("matches no host"), "{}", run.out);
    assert!(!run.out.contains("to have one assigned"), "{}", run.out);
    fs::remove_dir_all(host.state()).unwrap();
    fs::rename(&state, host.state()).unwrap();
    // As in the guide: the old name again, or both entries until the guests are destroyed.
    rename(&host, "father.old", "nodes/father.yaml");
    let again = host.run(&["manifest", "apply", "-M", "m", "-H", "father"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    host.run(&["manifest", "destroy", "-M", "m", "-H", "father", "--yes"])
        .good();
    host.run(&["manifest", "apply", "-M", "m", "-H", "dad"])
        .good();
    assert_eq!(host.guests(), ["a"]);
}

#[test]
fn a_renamed_manifest_is_refused_with_its_old_name_which_can_still_destroy() {
    let host = TestPve::quick();
    fixed(&host, "m", 5001);
    host.run(&["manifest", "apply", "-M", "m", "-H", "father"])
        .good();
    rename(&host, "manifests/m.yaml", "old.yaml");
    let free = "  - {name: a, preset: vm-small, image: debian-12}\n";
    host.manifest("mm", "", free);
    let run = host.run(&["manifest", "plan", "-M", "mm", "-H", "father"]);
    assert!(run.out.contains("1 to create"), "{}", run.out);
    fixed(&host, "mm", 5001);
    let run = host.run(&["manifest", "plan", "-M", "mm", "-H", "father"]);
    assert_eq!(run.code, 3, "{}", run.out);
    assert!(run.out.contains("of the manifest `m`"), "{}", run.out);
    assert!(run.out.contains("--manifest-file"), "{}", run.out);
    assert!(!run.out.contains("to have one assigned"), "{}", run.out);
    // As in the guide: the old name again, or a file with that name.
    rename(&host, "old.yaml", "manifests/m.yaml");
    let again = host.run(&["manifest", "apply", "-M", "m", "-H", "father"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    rename(&host, "manifests/m.yaml", "old.yaml");
    host.run(&[
        "manifest",
        "destroy",
        "--manifest-file",
        "site/old.yaml",
        "-H",
        "father",
        "--yes",
    ])
    .good();
    host.run(&["manifest", "apply", "-M", "mm", "-H", "father"])
        .good();
    assert_eq!(host.guests(), ["a"]);
}

#[test]
fn forget_reports_that_the_guest_was_not_queried() {
    let host = TestPve::quick();
    fixed(&host, "m", 5001);
    host.run(&["manifest", "apply", "-M", "m", "-H", "father"])
        .good();
    host.pve.remove_guest(5001);
    let run = host.run(&["manifest", "forget", "a", "-M", "m", "--yes"]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(!run.err.contains("is unchanged"), "{}", run.err);
    assert!(run.err.contains("was not queried"), "{}", run.err);
}

/// Runs of `w` on two hosts: a failed destroy of both, then one on `father` alone that keeps `wa`.
fn replaced(host: &TestPve) {
    failed_destroy(host);
    protect(host, "0");
    let node = "  - {name: wa, preset: vm-small, image: debian-12, host: father}\n";
    host.manifest("w", "", node);
    host.run(&["manifest", "apply", "-M", "w"]).good();
}

fn wa_runs(host: &TestPve) -> bool {
    host.guests().iter().any(|name| name == "wa")
}

#[test]
fn a_run_replaced_on_some_of_its_hosts_is_neither_resumed_nor_rolled_back() {
    let host = TestPve::cluster();
    replaced(&host);
    assert!(wa_runs(&host), "{:?}", host.guests());
    let before = host.guests();
    for words in [
        &["manifest", "resume", "-M", "w", "-H", "mother"][..],
        &["manifest", "rollback", "-M", "w", "-H", "mother", "--yes"],
        &["manifest", "resume", "-H", "mother"],
    ] {
        let run = host.run(words);
        assert_eq!(run.code, 3, "{words:?}: {}{}", run.out, run.err);
        assert!(run.err.contains("replaced"), "{words:?}: {}", run.err);
        assert_eq!(host.guests(), before, "{words:?}");
    }
    let status = host.run(&["manifest", "status", "-M", "w", "-H", "mother"]);
    assert!(!status.err.contains("resume"), "{}", status.err);
    assert!(status.err.contains("replaced"), "{}", status.err);
    status.good();
    let json = host
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
fn a_replaced_run_stays_replaced_when_its_replacement_is_replaced() {
    let host = TestPve::cluster();
    let node = |name: &str, host: &str| {
        format!("  - {{name: {name}, preset: vm-small, image: debian-12, host: {host}}}\n")
    };
    let (wa, wb) = (node("wa", "father"), node("wb", "mother"));
    let larger = wa.replace("host:", "memory: 3072, host:");
    // On mother alone, on both, on father alone.
    for nodes in [wb.clone(), wa + &wb, larger] {
        host.manifest("w", "", &nodes);
        host.run(&["manifest", "apply", "-M", "w"]).good();
    }
    assert_eq!(host.guests(), ["wa", "wb"]);
    let run = host.run(&["manifest", "rollback", "-M", "w", "-H", "mother", "--yes"]);
    assert_eq!(run.code, 3, "{}{}", run.out, run.err);
    assert_eq!(host.guests(), ["wa", "wb"]);
}

#[test]
fn no_new_id_hint_is_printed_when_only_copies_of_guests_are_left() {
    let host = TestPve::quick();
    fixed(&host, "m", 5001);
    host.run(&["manifest", "apply", "-M", "m", "-H", "father"])
        .good();
    host.pve.clone_guest(5001, 9001, &[]).unwrap();
    host.pve.remove_guest(5001);
    for words in ["plan", "destroy"] {
        let run = host.run(&["manifest", words, "-M", "m", "-H", "father"]);
        assert!(run.out.contains("9001") || run.err.contains("9001"));
        assert!(!run.err.contains("new-id"), "{words}: {}", run.err);
    }
}

#[test]
fn a_site_with_its_own_runs_gets_no_hint_to_use_another_id() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    // Another site has guests of a manifest of that name; this site had some and destroyed them.
    lose_state(&host);
    host.run(&["site", "new-id", "--yes"]).good();
    host.run(&APPLY).good();
    host.run(&DESTROY).good();
    for words in [
        &["manifest", "plan", "-M", "single-node", "-H", "father"][..],
        &DESTROY,
    ] {
        let run = host.run(words);
        assert!(!run.err.contains("new-id"), "{words:?}: {}", run.err);
    }
}
