//! What is wrong is said, and leaves nothing.

use crate::bed::text;

#[test]
fn an_image_that_is_unknown_is_named_with_those_there_are() {
    let Some(bed) = crate::new_bed() else { return };
    bed.write(
        "images/debian-7.yaml",
        "source: https://192.0.2.1/debian-7.qcow2\n",
    );
    bed.manifest("odd", "  - {name: a, image: debian-7}\n");
    let said = bed.manifest_run("apply", "odd", &["--yes"]).bad();
    assert!(
        said.contains("debian-7") && said.contains("debian-12"),
        "{said}"
    );
    bed.manifest_run("rollback", "odd", &["--yes"]);
    bed.destroy("odd");
    bed.is_as_before();
}

#[test]
fn an_address_outside_of_the_network_or_taken_is_refused_and_nothing_is_left() {
    let Some(bed) = crate::new_bed() else { return };
    bed.manifest("far", "  - {name: a, ip: 192.0.2.77/24}\n");
    let said = bed
        .manifest_run("apply", "far", &["--yes", "--on-error", "rollback"])
        .bad();
    assert!(said.contains("the network of the local host is"), "{said}");
    assert_eq!(bed.names(), [""; 0]);
    bed.peers("first", 1);
    bed.apply("first");
    let taken = text(&bed.nodes()[0]["address"]);
    bed.manifest("second", &format!("  - {{name: b, ip: {taken}/20}}\n"));
    let said = bed
        .manifest_run("apply", "second", &["--yes", "--on-error", "rollback"])
        .bad();
    assert!(
        said.contains("this address is in use by another node"),
        "{said}"
    );
    assert_eq!(bed.names(), ["peer-1"]);
    bed.destroy("first");
    bed.destroy("second");
    bed.is_as_before();
}

#[test]
fn a_node_that_does_not_let_the_driver_in_fails_with_its_reason() {
    let Some(bed) = crate::new_bed() else { return };
    let spec = "schema_version: 1\naccess:\n  users:\n    - {name: ops, sudo: true}\n";
    bed.write("specs/web.yaml", spec);
    bed.manifest("lab", "  - {name: web, spec: web}\n");
    bed.apply("lab");
    // What it refuses is named by `spec diff`, for it alone.
    let rule = "config:\n  files:\n    - {path: /etc/sudoers.d/own, content: \"nonsense rule here\\n\", mode: \"0440\"}\n";
    bed.write("specs/web.yaml", &format!("{spec}{rule}"));
    let diff = bed.run(&["spec", "diff", "web"]);
    assert_eq!(diff.code, 3, "{}{}", diff.out, diff.err);
    let why = "refused: `web`: `/etc/sudoers.d/own` would be invalid: /etc/sudoers.d/own:1:";
    for words in [why, "syntax error", "cannot be applied to `web`: 1 refusal"] {
        assert!(diff.err.contains(words), "{words}: {}", diff.err);
    }
    assert!(!diff.err.contains("nonsense"), "{}", diff.err);
    bed.write("specs/web.yaml", spec);
    // A connection that is open already would still let it in.
    bed.inside(
        "web",
        "sudo mv ~/.ssh/authorized_keys /root/keys && sudo systemctl poweroff",
    );
    while bed.nodes()[0]["running"] == true {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let run = bed.manifest_run("apply", "lab", &["--yes"]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    for words in ["Permission denied", "must accept the driver's SSH key"] {
        assert!(run.err.contains(words), "{words}: {}", run.err);
    }
    let waits = |line: &str| line.contains("an answer (") && line.contains("Permission denied");
    assert!(!run.err.lines().any(waits), "{}", run.err);
    // The same with a state directory that has lost its host key: the plan says why, and what helps.
    std::fs::remove_file(bed.state().join("ssh/known_hosts")).unwrap();
    let plan = bed.manifest_run("plan", "lab", &[]).good();
    for words in ["its host key is not pinned", "homestak state rebuild"] {
        assert!(plan.contains(words), "{words}: {plan}");
    }
    let plan = bed.manifest_run("plan", "lab", &["--json-output"]).json();
    let unseen = &plan["nodes"][0]["config"]["unseen"];
    assert_eq!(unseen["why"], "its host key is not pinned", "{plan}");
    let diff = bed.run(&["spec", "diff", "web"]);
    assert!(
        diff.err.contains("its host key is not pinned"),
        "{}",
        diff.err
    );
    bed.destroy("lab");
    bed.is_as_before();
}

#[test]
fn a_link_of_the_bridges_name_that_is_not_ours_is_left_alone() {
    let Some(bed) = crate::new_bed() else { return };
    let name = homestak_providers::local::Instance::at(&bed.root()).unwrap();
    let link = format!("hs-{}", name.name());
    let ip = |arguments: &[&str]| {
        let done = std::process::Command::new("/usr/sbin/ip")
            .args(arguments)
            .status();
        done.is_ok_and(|status| status.success())
    };
    assert!(ip(&["link", "add", &link, "type", "bridge"]));
    bed.peers("blocked", 1);
    let said = bed
        .manifest_run("apply", "blocked", &["--yes", "--on-error", "rollback"])
        .bad();
    assert!(said.contains("that homestak did not create"), "{said}");
    assert!(ip(&["link", "show", &link]), "it was removed");
    bed.destroy("blocked");
    bed.run(&["local", "clean", "--yes"]);
    assert!(ip(&["link", "delete", &link]));
    bed.is_as_before();
}

#[test]
fn a_node_whose_processes_were_killed_is_stopped_and_starts_again() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("killed", 1);
    bed.apply("killed");
    let root = bed.root();
    let mut ended = 0;
    for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.contains("systemd-nspawn") && line.contains(&*root.to_string_lossy()) {
            let pid: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            ended += u32::from(
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok(),
            );
        }
    }
    assert!(ended > 0, "nothing was killed");
    for _ in 0..100 {
        if bed.nodes()[0]["running"] == false {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(bed.nodes()[0]["running"], false);
    bed.apply("killed");
    bed.inside("peer-1", "true").good();
    bed.destroy("killed");
    bed.is_as_before();
}

#[test]
fn where_real_nodes_cannot_be_had_a_test_runs_on_the_simulator_and_says_why() {
    use std::os::unix::fs::PermissionsExt as _;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become nobody");
        return;
    }
    let place = tempfile::tempdir_in("/tmp").unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(place.path(), open).unwrap();
    // Where the program lies, nobody may not look.
    let program = place.path().join("homestak");
    std::fs::copy(crate::program(), &program).unwrap();
    let done = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["manifest", "test", "-M", "workers", "-H", "local"])
        .args(["--setup", "--yes"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", place.path())
        .env("HOMESTAK_SIM_SPEED", "200")
        .current_dir(place.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    for words in [
        "cannot run real nodes",
        "needs root",
        "Using the simulator instead",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let stop = std::process::Command::new(&program)
        .args(["sim", "stop"])
        .env("HOME", place.path())
        .output()
        .unwrap();
    assert!(stop.status.success());
}
