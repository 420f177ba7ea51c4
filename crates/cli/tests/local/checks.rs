//! What is found before the first change on real nodes, and records that come back from them.

use crate::bed::Bed;

const SPEC: &str = "schema_version: 1\naccess: {posture: free, users: [{name: ops, sudo: true}]}\n";

fn lab() -> Option<Bed> {
    let bed = crate::new_bed()?;
    bed.write(
        "postures/free.yaml",
        "ssh: {permit_root_login: \"no\", password_authentication: \"no\"}\nsudo: {nopasswd: true}\n",
    );
    bed.write("specs/web.yaml", SPEC);
    bed.manifest("lab", "  - {name: web, spec: web}\n");
    Some(bed)
}

#[test]
fn a_plan_reports_what_a_node_cannot_become_and_records_come_back_from_the_machine() {
    let Some(bed) = lab() else { return };
    bed.apply("lab");
    bed.write(
        "specs/web.yaml",
        &format!(
            "{SPEC}config:\n  timezone: Europe/Nowhere\n  sysctl: {{vm.swappines: 1, kernel.panic: 77}}\n  files:\n    - {{path: /etc/app, content: x, owner: nobody-here}}\n"
        ),
    );
    let plan = bed.manifest_run("plan", "lab", &[]);
    assert_eq!(plan.code, 3, "{}{}", plan.out, plan.err);
    let said = format!("{}{}", plan.out, plan.err);
    for part in [
        "time zone `Europe/Nowhere` does not exist",
        "kernel setting `vm.swappines` does not exist",
        "`kernel.panic` cannot be changed on this node",
        "user `nobody-here` does not exist (owner of `/etc/app`)",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("could not be compared"), "{said}");
    bed.write("specs/web.yaml", SPEC);

    // Without its journal the driver knows no node; with its keys it can still log in.
    for file in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        _ = std::fs::remove_file(bed.state().join(file));
    }
    let rebuild = ["state", "rebuild", "-H", "local", "--json-output"];
    let json = bed.run(&rebuild).json();
    assert_eq!(json["restored"][0]["node"], "web", "{json:#}");
    assert_eq!(
        json["without_keys"].as_array().unwrap().len(),
        0,
        "{json:#}"
    );
    bed.run(&["exec", "web", "--", "true"]).good();
    // Another driver has no keys for it, and the output says what to do.
    let other = bed.state().with_file_name("other");
    let mut second = bed.command(&rebuild);
    let second = second.env("HOMESTAK_STATE", &other).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&second.stdout).unwrap();
    let commands = json["without_keys"][0]["commands"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(commands.len(), 2, "{json:#}");
    for command in &commands {
        let line = command.as_str().unwrap();
        let line = line.split(" # ").next().unwrap().replace('\'', "'\\''");
        let done = bed.inside("web", &format!("sudo bash -c '{line}'"));
        assert_eq!(done.code, 0, "{line}: {}", done.err);
        if line.starts_with("sed") {
            let mut known =
                std::fs::read_to_string(other.join("ssh/known_hosts")).unwrap_or_default();
            known += &done.out;
            std::fs::write(other.join("ssh/known_hosts"), known).unwrap();
        }
    }
    let mut exec = bed.command(&["exec", "web", "--", "true"]);
    let exec = exec.env("HOMESTAK_STATE", &other).output().unwrap();
    assert!(
        exec.status.success(),
        "{}",
        String::from_utf8_lossy(&exec.stderr)
    );
    bed.destroy("lab");
    bed.is_as_before();
}

#[test]
fn a_fixed_address_outside_the_local_network_creates_nothing() {
    let Some(bed) = lab() else { return };
    bed.manifest(
        "fixed",
        "  - {name: good}\n  - {name: bad, ip: 198.51.100.7}\n",
    );
    let run = bed.manifest_run("apply", "fixed", &["--yes"]);
    assert_eq!(run.code, 3, "{}{}", run.out, run.err);
    assert!(
        run.err.contains("`bad` cannot have 198.51.100.7"),
        "{}",
        run.err
    );
    assert!(bed.nodes().is_empty());
    bed.is_as_before();
}
