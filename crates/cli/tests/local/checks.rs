//! Checks before the first change on real nodes, and `state rebuild` from them.

use crate::test_host::TestHost;

const SPEC: &str = "schema_version: 1\naccess: {posture: free, users: [{name: ops, sudo: true}]}\n";

fn host_with_spec() -> Option<TestHost> {
    let host = crate::host()?;
    host.write(
        "postures/free.yaml",
        "ssh: {permit_root_login: \"no\", password_authentication: \"no\"}\nsudo: {nopasswd: true}\n",
    );
    host.write("specs/web.yaml", SPEC);
    host.manifest("lab", "  - {name: web, spec: web}\n");
    Some(host)
}

#[test]
fn a_plan_reports_impossible_settings_and_rebuild_restores_records() {
    let Some(host) = host_with_spec() else { return };
    host.apply("lab");
    host.write(
        "specs/web.yaml",
        &format!(
            "{SPEC}config:\n  timezone: Europe/Nowhere\n  sysctl: {{vm.swappines: 1, kernel.panic: 77}}\n  files:\n    - {{path: /etc/app, content: x, owner: nobody-here}}\n"
        ),
    );
    let plan = host.manifest_run("plan", "lab", &[]);
    assert_eq!(plan.code, 3, "{}{}", plan.out, plan.err);
    let output = format!("{}{}", plan.out, plan.err);
    for part in [
        "time zone `Europe/Nowhere` does not exist",
        "kernel setting `vm.swappines` does not exist",
        "`kernel.panic` cannot be changed on this node",
        "user `nobody-here` does not exist (owner of `/etc/app`)",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    assert!(!output.contains("could not be compared"), "{output}");
    host.write("specs/web.yaml", SPEC);

    // Without its journal the driver has no records; with its keys it can still log in.
    for file in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        _ = std::fs::remove_file(host.state().join(file));
    }
    let rebuild = ["state", "rebuild", "-H", "local", "--json-output"];
    let json = host.run(&rebuild).json();
    assert_eq!(json["restored"][0]["node"], "web", "{json:#}");
    assert_eq!(
        json["without_keys"].as_array().unwrap().len(),
        0,
        "{json:#}"
    );
    host.run(&["exec", "web", "--", "true"]).good();
    // Another driver has no keys, and the output has the commands to install them.
    let other = host.state().with_file_name("other");
    let mut second = host.command(&rebuild);
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
        let done = host.inside("web", &format!("sudo bash -c '{line}'"));
        assert_eq!(done.code, 0, "{line}: {}", done.err);
        if line.starts_with("sed") {
            let mut known =
                std::fs::read_to_string(other.join("ssh/known_hosts")).unwrap_or_default();
            known += &done.out;
            std::fs::write(other.join("ssh/known_hosts"), known).unwrap();
        }
    }
    let mut exec = host.command(&["exec", "web", "--", "true"]);
    let exec = exec.env("HOMESTAK_STATE", &other).output().unwrap();
    assert!(
        exec.status.success(),
        "{}",
        String::from_utf8_lossy(&exec.stderr)
    );
    host.destroy("lab");
    host.assert_unchanged();
}

#[test]
fn a_fixed_address_outside_the_local_network_creates_nothing() {
    let Some(host) = host_with_spec() else { return };
    host.manifest(
        "fixed",
        "  - {name: good}\n  - {name: bad, ip: 198.51.100.7}\n",
    );
    let run = host.manifest_run("apply", "fixed", &["--yes"]);
    assert_eq!(run.code, 3, "{}{}", run.out, run.err);
    assert!(
        run.err.contains("`bad` cannot have 198.51.100.7"),
        "{}",
        run.err
    );
    assert!(host.nodes().is_empty());
    host.assert_unchanged();
}
