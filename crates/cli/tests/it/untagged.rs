//! Guests that remain are reported: those whose tags were removed, unrecorded ones without a site
//! tag, and those that a rollback keeps.

use serde_json::Value;

use crate::support::Run;
use crate::test_pve::TestPve;

fn node(host: &TestPve, vmid: &str) {
    let nodes = format!(
        "  - {{name: fb, cores: 1, memory: 1024, disk: 10, image: debian-12{vmid}}}\n  - {{name: fd, preset: vm-small, image: debian-12, vmid: 5104}}\n"
    );
    host.manifest("f", "", &nodes);
}

fn run(host: &TestPve, command: &str) -> Run {
    host.run(&command.split(' ').collect::<Vec<_>>())
}

/// Two machines, 5102 and 5104.
fn two_guests() -> TestPve {
    let host = TestPve::quick();
    node(&host, ", vmid: 5102");
    run(&host, "manifest apply -M f -H father").good();
    host
}

fn change(host: &TestPve, vmid: u32, what: &[(&str, &str)]) {
    host.pve.change_guest(vmid, what).unwrap();
}

fn config(host: &TestPve, vmid: u32, key: &str) -> String {
    let guests = host.pve.guests();
    let guest = guests.iter().find(|guest| guest.vmid == vmid).unwrap();
    guest.config[key].clone()
}

fn ids(host: &TestPve) -> Vec<u32> {
    host.pve.guests().iter().map(|guest| guest.vmid).collect()
}

fn status<'j>(json: &'j Value, name: &str) -> &'j str {
    let mut nodes = json["nodes"].as_array().unwrap().iter();
    let node = nodes.find(|node| node["name"] == name).unwrap();
    node["status"].as_str().unwrap()
}

#[test]
fn a_guest_without_tags_is_not_reported_destroyed_and_its_identity_is_not_reused() {
    let host = two_guests();
    change(&host, 5102, &[("protection", "1")]);
    let failed = run(&host, "manifest destroy -M f -H father --yes");
    assert_eq!(failed.code, 1, "{}", failed.err);
    change(&host, 5102, &[("delete", "tags,protection")]);
    let resumed = run(&host, "manifest resume -M f -H father --json-output");
    assert_eq!(resumed.code, 1, "{}", resumed.err);
    assert!(
        resumed.err.contains("guest 5102") && resumed.err.contains("its tags were removed"),
        "{}",
        resumed.err
    );
    let json: Value = serde_json::from_str(&resumed.out).unwrap();
    assert_eq!(status(&json, "fb"), "failed");
    assert_eq!(ids(&host), [5102]);
    // Marked as resolved, it is not reported as destroyed either.
    let resolved = run(&host, "manifest resume -M f -H father --from fb");
    let row = resolved.out.lines().find(|line| line.starts_with("fb "));
    assert!(!row.unwrap().contains("destroyed"), "{}", resolved.out);
    resolved.good();
    let shown = run(&host, "manifest status -M f --offline --json-output").json();
    assert_eq!(status(&shown["runs"][0], "fb"), "settled", "{shown}");
    // The new guest of the node has another identity and MAC address.
    node(&host, ", vmid: 5199");
    run(&host, "manifest apply -M f -H father").good();
    assert_eq!(ids(&host), [5102, 5104, 5199]);
    for key in ["smbios1", "net0"] {
        assert_ne!(config(&host, 5102, key), config(&host, 5199, key));
    }
}

#[test]
fn a_rollback_does_not_report_a_guest_without_tags_as_reverted() {
    let host = two_guests();
    change(&host, 5104, &[("delete", "tags")]);
    let preview = run(&host, "manifest rollback -M f --dry-run").good();
    assert!(
        preview.contains("cannot be reverted: fd: guest 5104")
            && preview.contains("its tags were removed"),
        "{preview}"
    );
    assert!(preview.contains("\n  fb: destroy guest 5102"), "{preview}");
    let rollback = run(&host, "manifest rollback -M f --yes --json-output");
    assert_eq!(rollback.code, 5, "{}", rollback.err);
    assert!(!rollback.err.contains("All changes"), "{}", rollback.err);
    assert!(rollback.err.contains("guest 5104"), "{}", rollback.err);
    let json: Value = serde_json::from_str(&rollback.out).unwrap();
    assert_eq!(
        (status(&json, "fb"), status(&json, "fd"), &json["success"]),
        ("destroyed", "stuck", &false.into())
    );
    assert_eq!(json["not_undone"][0]["name"], "fd", "{json}");
    assert_eq!(host.guests(), ["fd"]);
    // Marked as resolved, it is not reported as reverted either.
    let resolved = run(&host, "manifest resume -M f --mark-resolved fd");
    assert_eq!(resolved.code, 1, "{}", resolved.err);
    assert!(!resolved.err.contains("All changes"), "{}", resolved.err);
    assert!(
        resolved.err.contains("marked as resolved"),
        "{}",
        resolved.err
    );
    assert_eq!(host.guests(), ["fd"]);
}

#[test]
fn an_unrecorded_guest_without_a_site_tag_is_not_adopted() {
    let host = TestPve::quick();
    node(&host, "");
    run(&host, "manifest apply -M f -H father").good();
    let id = ids(&host).into_iter().find(|id| *id != 5104).unwrap();
    let tags = config(&host, id, "tags");
    let tag = tags.split(';').find(|tag| tag.starts_with("homestak-id-"));
    change(&host, id, &[("tags", tag.unwrap())]);
    std::fs::remove_dir_all(host.state()).unwrap();
    let before = host.pve.guests();
    // Larger than it is: if adopted, its disk would grow.
    let nodes = "  - {name: fb, cores: 1, memory: 1024, disk: 20, image: debian-12}\n".to_owned();
    host.manifest("f", "", &nodes);
    let refused = run(&host, "manifest apply -M f -H father");
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(
        refused.err.contains(&format!("VM {id}")) && refused.err.contains("not the site"),
        "{}",
        refused.err
    );
    assert_eq!(host.pve.guests(), before);
    let preview = run(&host, "manifest rollback -M f --dry-run").good();
    assert!(
        !preview.contains(&format!("destroy guest {id}")),
        "{preview}"
    );
}

#[test]
fn a_rollback_does_what_its_preview_shows_and_reports_kept_guests() {
    let host = two_guests();
    let notes = config(&host, 5104, "description");
    let others: String = notes
        .lines()
        .filter(|line| !line.starts_with("homestak-run"))
        .chain(["homestak-run: of-another-driver"])
        .map(|line| format!("{line}\n"))
        .collect();
    change(&host, 5104, &[("description", &others)]);
    let preview = run(&host, "manifest rollback -M f --dry-run --json-output").json();
    let effects: Vec<(&str, &str)> = preview["undo"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            (
                item["name"].as_str().unwrap(),
                item["effect"].as_str().unwrap(),
            )
        })
        .collect();
    assert!(effects.contains(&("fb", "undo")), "{effects:?}");
    assert!(effects.contains(&("fd", "stays")), "{effects:?}");
    let text = run(&host, "manifest rollback -M f --dry-run").good();
    assert!(!text.contains("destroy guest 5104"), "{text}");
    assert!(text.contains("kept: fd: guest 5104"), "{text}");
    let rollback = run(&host, "manifest rollback -M f --yes --json-output");
    assert!(!rollback.err.contains("All changes"), "{}", rollback.err);
    assert!(rollback.err.contains("are kept: `fd`"), "{}", rollback.err);
    let json: Value = serde_json::from_str(&rollback.out).unwrap();
    assert_eq!(
        (status(&json, "fb"), status(&json, "fd")),
        ("destroyed", "kept")
    );
    assert_eq!(ids(&host), [5104]);
    // The same from the journal.
    let shown = run(&host, "manifest status -M f --offline --json-output").json();
    assert_eq!(status(&shown["runs"][0], "fd"), "kept", "{shown}");
}

#[test]
fn a_guest_without_tags_is_not_reported_absent_when_a_copy_exists() {
    let host = two_guests();
    host.pve.clone_guest(5102, 9102, &[]).unwrap();
    change(&host, 5102, &[("delete", "tags")]);
    change(&host, 5104, &[("delete", "tags")]);
    let plan = run(&host, "manifest destroy -M f -H father --dry-run").good();
    for vmid in [5102, 5104] {
        let stays = format!("its recorded guest {vmid} on pve1 were removed");
        assert!(plan.contains(&stays), "{plan}");
    }
    assert!(plan.contains("9102"), "{plan}");
    assert!(!plan.contains("does not exist"), "{plan}");
    let shown = run(&host, "manifest status -M f --json-output").json();
    for node in shown["runs"][0]["nodes"].as_array().unwrap() {
        assert_eq!(node["power"], "unknown", "{shown:#}");
    }
}

#[test]
fn plans_name_a_recorded_guest_without_tags_that_left_the_manifest() {
    let host = two_guests();
    change(&host, 5104, &[("delete", "tags")]);
    let nodes = "  - {name: fb, cores: 1, memory: 1024, disk: 10, image: debian-12, vmid: 5102}\n";
    host.manifest("f", "", nodes);
    let stays = "its recorded guest 5104 on pve1 were removed";
    for verb in [
        "plan",
        "apply",
        "apply --prune --dry-run",
        "destroy --dry-run",
    ] {
        let run = run(&host, &format!("manifest {verb} -M f -H father"));
        assert_eq!(run.code, 0, "{verb}: {}", run.err);
        let output = run.out + &run.err;
        assert!(output.contains(stays), "{verb}: {output}");
    }
    assert_eq!(ids(&host), [5102, 5104]);
}
