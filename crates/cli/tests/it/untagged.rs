//! Guests that stay are reported as there: those whose tags were removed, those that carry no site
//! and are not recorded, and those that a rollback keeps.

use serde_json::Value;

use crate::father::Father;
use crate::support::Run;

fn node(father: &Father, vmid: &str) {
    let nodes = format!(
        "  - {{name: fb, cores: 1, memory: 1024, disk: 10, image: debian-12{vmid}}}\n  - {{name: fd, preset: vm-small, image: debian-12, vmid: 5104}}\n"
    );
    father.manifest("f", "", &nodes);
}

fn run(father: &Father, command: &str) -> Run {
    father.run(&command.split(' ').collect::<Vec<_>>())
}

/// Two machines, 5102 and 5104.
fn made() -> Father {
    let father = Father::quick();
    node(&father, ", vmid: 5102");
    run(&father, "manifest apply -M f -H father").good();
    father
}

fn change(father: &Father, vmid: u32, what: &[(&str, &str)]) {
    father.pve.change_guest(vmid, what).unwrap();
}

fn config(father: &Father, vmid: u32, key: &str) -> String {
    let guests = father.pve.guests();
    let guest = guests.iter().find(|guest| guest.vmid == vmid).unwrap();
    guest.config[key].clone()
}

fn ids(father: &Father) -> Vec<u32> {
    father.pve.guests().iter().map(|guest| guest.vmid).collect()
}

fn status<'j>(json: &'j Value, name: &str) -> &'j str {
    let mut nodes = json["nodes"].as_array().unwrap().iter();
    let node = nodes.find(|node| node["name"] == name).unwrap();
    node["status"].as_str().unwrap()
}

#[test]
fn a_guest_without_its_tags_is_not_called_destroyed_and_its_identity_is_not_given_again() {
    let father = made();
    change(&father, 5102, &[("protection", "1")]);
    let failed = run(&father, "manifest destroy -M f -H father --yes");
    assert_eq!(failed.code, 1, "{}", failed.err);
    change(&father, 5102, &[("delete", "tags,protection")]);
    let resumed = run(&father, "manifest resume -M f -H father --json-output");
    assert_eq!(resumed.code, 1, "{}", resumed.err);
    assert!(
        resumed.err.contains("guest 5102") && resumed.err.contains("its tags were removed"),
        "{}",
        resumed.err
    );
    let json: Value = serde_json::from_str(&resumed.out).unwrap();
    assert_eq!(status(&json, "fb"), "failed");
    assert_eq!(ids(&father), [5102]);
    // A person who keeps it is not told that it was destroyed either.
    let settled = run(&father, "manifest resume -M f -H father --from fb");
    let row = settled.out.lines().find(|line| line.starts_with("fb "));
    assert!(!row.unwrap().contains("destroyed"), "{}", settled.out);
    settled.good();
    let shown = run(&father, "manifest status -M f --offline --json-output").json();
    assert_eq!(status(&shown["runs"][0], "fb"), "settled", "{shown}");
    // The new guest of the node is another one in all that it carries.
    node(&father, ", vmid: 5199");
    run(&father, "manifest apply -M f -H father").good();
    assert_eq!(ids(&father), [5102, 5104, 5199]);
    for key in ["smbios1", "net0"] {
        assert_ne!(config(&father, 5102, key), config(&father, 5199, key));
    }
}

#[test]
fn a_rollback_does_not_call_a_guest_without_its_tags_undone() {
    let father = made();
    change(&father, 5104, &[("delete", "tags")]);
    let preview = run(&father, "manifest rollback -M f --dry-run").good();
    assert!(
        preview.contains("cannot be reverted: fd: guest 5104")
            && preview.contains("its tags were removed"),
        "{preview}"
    );
    assert!(preview.contains("\n  fb: destroy guest 5102"), "{preview}");
    let back = run(&father, "manifest rollback -M f --yes --json-output");
    assert_eq!(back.code, 5, "{}", back.err);
    assert!(!back.err.contains("All changes"), "{}", back.err);
    assert!(back.err.contains("guest 5104"), "{}", back.err);
    let json: Value = serde_json::from_str(&back.out).unwrap();
    assert_eq!(
        (status(&json, "fb"), status(&json, "fd"), &json["success"]),
        ("destroyed", "stuck", &false.into())
    );
    assert_eq!(json["not_undone"][0]["name"], "fd", "{json}");
    assert_eq!(father.guests(), ["fd"]);
    // A person takes it as it is, and it is not called undone then either.
    let settled = run(&father, "manifest resume -M f --mark-resolved fd");
    assert_eq!(settled.code, 1, "{}", settled.err);
    assert!(!settled.err.contains("All changes"), "{}", settled.err);
    assert!(
        settled.err.contains("marked as resolved"),
        "{}",
        settled.err
    );
    assert_eq!(father.guests(), ["fd"]);
}

#[test]
fn a_guest_without_a_site_that_nothing_records_is_not_taken_over() {
    let father = Father::quick();
    node(&father, "");
    run(&father, "manifest apply -M f -H father").good();
    let id = ids(&father).into_iter().find(|id| *id != 5104).unwrap();
    let tags = config(&father, id, "tags");
    let tag = tags.split(';').find(|tag| tag.starts_with("homestak-id-"));
    change(&father, id, &[("tags", tag.unwrap())]);
    std::fs::remove_dir_all(father.state()).unwrap();
    let before = father.pve.guests();
    // Larger than it is: taken over, it would be grown.
    let nodes = "  - {name: fb, cores: 1, memory: 1024, disk: 20, image: debian-12}\n".to_owned();
    father.manifest("f", "", &nodes);
    let refused = run(&father, "manifest apply -M f -H father");
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(
        refused.err.contains(&format!("VM {id}")) && refused.err.contains("not the site"),
        "{}",
        refused.err
    );
    assert_eq!(father.pve.guests(), before);
    let preview = run(&father, "manifest rollback -M f --dry-run").good();
    assert!(
        !preview.contains(&format!("destroy guest {id}")),
        "{preview}"
    );
}

#[test]
fn the_preview_of_a_rollback_is_what_it_does_and_guests_that_stay_are_kept() {
    let father = made();
    let notes = config(&father, 5104, "description");
    let others: String = notes
        .lines()
        .filter(|line| !line.starts_with("homestak-run"))
        .chain(["homestak-run: of-another-driver"])
        .map(|line| format!("{line}\n"))
        .collect();
    change(&father, 5104, &[("description", &others)]);
    let preview = run(&father, "manifest rollback -M f --dry-run --json-output").json();
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
    let text = run(&father, "manifest rollback -M f --dry-run").good();
    assert!(!text.contains("destroy guest 5104"), "{text}");
    assert!(text.contains("kept: fd: guest 5104"), "{text}");
    let back = run(&father, "manifest rollback -M f --yes --json-output");
    assert!(!back.err.contains("All changes"), "{}", back.err);
    assert!(back.err.contains("are kept: `fd`"), "{}", back.err);
    let json: Value = serde_json::from_str(&back.out).unwrap();
    assert_eq!(
        (status(&json, "fb"), status(&json, "fd")),
        ("destroyed", "kept")
    );
    assert_eq!(ids(&father), [5104]);
    // The same from the journal.
    let shown = run(&father, "manifest status -M f --offline --json-output").json();
    assert_eq!(status(&shown["runs"][0], "fd"), "kept", "{shown}");
}

#[test]
fn a_guest_without_its_tags_is_not_called_absent_when_a_copy_of_it_is_there() {
    let father = made();
    father.pve.clone_guest(5102, 9102, &[]).unwrap();
    change(&father, 5102, &[("delete", "tags")]);
    change(&father, 5104, &[("delete", "tags")]);
    let plan = run(&father, "manifest destroy -M f -H father --dry-run").good();
    for vmid in [5102, 5104] {
        let stays = format!("its recorded guest {vmid} on pve1 were removed");
        assert!(plan.contains(&stays), "{plan}");
    }
    assert!(plan.contains("9102"), "{plan}");
    assert!(!plan.contains("does not exist"), "{plan}");
    let shown = run(&father, "manifest status -M f --json-output").json();
    for node in shown["runs"][0]["nodes"].as_array().unwrap() {
        assert_eq!(node["power"], "unknown", "{shown:#}");
    }
}

#[test]
fn a_recorded_guest_without_tags_that_the_manifest_does_not_name_any_more_is_named_by_plans() {
    let father = made();
    change(&father, 5104, &[("delete", "tags")]);
    let nodes = "  - {name: fb, cores: 1, memory: 1024, disk: 10, image: debian-12, vmid: 5102}\n";
    father.manifest("f", "", nodes);
    let stays = "its recorded guest 5104 on pve1 were removed";
    for verb in [
        "plan",
        "apply",
        "apply --prune --dry-run",
        "destroy --dry-run",
    ] {
        let run = run(&father, &format!("manifest {verb} -M f -H father"));
        assert_eq!(run.code, 0, "{verb}: {}", run.err);
        let said = run.out + &run.err;
        assert!(said.contains(stays), "{verb}: {said}");
    }
    assert_eq!(ids(&father), [5102, 5104]);
}
