//! Failures are reported and leave nothing behind.

use crate::test_host::{TestHost, text};

/// Leaves a link of the stopped node on the bridge, as the kernel does for a while.
fn leave_link(host: &TestHost) {
    let link = format!("v{}", host.nodes()[0]["id"]);
    let spaces = std::fs::read_dir("/run/netns").unwrap();
    let names = spaces.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for space in names.filter(|name| name.starts_with("homestak-r")) {
        let ip = |arguments: &[&str]| {
            let all = [&["-n", space.as_str(), "link"], arguments].concat();
            std::process::Command::new("ip").args(all).status().unwrap()
        };
        ip(&["delete", &link]);
        assert!(ip(&["add", &link, "type", "veth", "peer", "name", "left"]).success());
    }
}

#[test]
fn an_unknown_image_is_reported_with_the_available_ones() {
    let Some(host) = crate::host() else { return };
    host.write(
        "images/debian-7.yaml",
        "source: https://192.0.2.1/debian-7.qcow2\n",
    );
    host.manifest("odd", "  - {name: a, image: debian-7}\n");
    let stderr = host.manifest_run("apply", "odd", &["--yes"]).bad();
    assert!(
        stderr.contains("debian-7") && stderr.contains("debian-12"),
        "{stderr}"
    );
    host.manifest_run("rollback", "odd", &["--yes"]);
    host.destroy("odd");
    host.assert_unchanged();
}

#[test]
fn an_address_outside_the_network_or_in_use_is_refused_and_nothing_is_left() {
    let Some(host) = crate::host() else { return };
    host.manifest("far", "  - {name: a, ip: 192.0.2.77/24}\n");
    let stderr = host
        .manifest_run("apply", "far", &["--yes", "--on-error", "rollback"])
        .bad();
    assert!(
        stderr.contains("the network of the local host is"),
        "{stderr}"
    );
    assert_eq!(host.names(), [""; 0]);
    host.peers("first", 1);
    host.apply("first");
    let taken = text(&host.nodes()[0]["address"]);
    host.manifest("second", &format!("  - {{name: b, ip: {taken}/20}}\n"));
    let stderr = host
        .manifest_run("apply", "second", &["--yes", "--on-error", "rollback"])
        .bad();
    assert!(
        stderr.contains("this address is in use by another node"),
        "{stderr}"
    );
    assert_eq!(host.names(), ["peer-1"]);
    host.destroy("first");
    host.destroy("second");
    host.assert_unchanged();
}

#[test]
fn a_node_that_rejects_the_driver_is_reported_with_the_reason() {
    let Some(host) = crate::host() else { return };
    let spec = "schema_version: 1\naccess:\n  users:\n    - {name: ops, sudo: true}\n";
    host.write("specs/web.yaml", spec);
    host.manifest("lab", "  - {name: web, spec: web}\n");
    host.apply("lab");
    // `spec diff` reports what the node refuses, without the content.
    let rule = "config:\n  files:\n    - {path: /etc/sudoers.d/own, content: \"nonsense rule here\\n\", mode: \"0440\"}\n";
    host.write("specs/web.yaml", &format!("{spec}{rule}"));
    let diff = host.run(&["spec", "diff", "web"]);
    assert_eq!(diff.code, 3, "{}{}", diff.out, diff.err);
    let why = "refused: `web`: `/etc/sudoers.d/own` would be invalid: /etc/sudoers.d/own:1:";
    for words in [why, "syntax error", "cannot be applied to `web`: 1 refusal"] {
        assert!(diff.err.contains(words), "{words}: {}", diff.err);
    }
    assert!(!diff.err.contains("nonsense"), "{}", diff.err);
    host.write("specs/web.yaml", spec);
    // An open connection would still work, so the node is restarted.
    host.inside(
        "web",
        "sudo mv ~/.ssh/authorized_keys /root/keys && sudo systemctl poweroff",
    );
    while host.nodes()[0]["running"] == true {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    leave_link(&host);
    let run = host.manifest_run("apply", "lab", &["--yes"]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    for words in ["Permission denied", "must accept the driver's SSH key"] {
        assert!(run.err.contains(words), "{words}: {}", run.err);
    }
    let waits = |line: &str| line.contains("an answer (") && line.contains("Permission denied");
    assert!(!run.err.lines().any(waits), "{}", run.err);
    // With a state directory without its host key, the plan prints the reason and a hint.
    std::fs::remove_file(host.state().join("ssh/known_hosts")).unwrap();
    let plan = host.manifest_run("plan", "lab", &[]).good();
    for words in ["its host key is not pinned", "homestak state rebuild"] {
        assert!(plan.contains(words), "{words}: {plan}");
    }
    let plan = host.manifest_run("plan", "lab", &["--json-output"]).json();
    let unseen = &plan["nodes"][0]["config"]["unseen"];
    assert_eq!(unseen["why"], "its host key is not pinned", "{plan}");
    let diff = host.run(&["spec", "diff", "web"]);
    assert!(
        diff.err.contains("its host key is not pinned"),
        "{}",
        diff.err
    );
    host.destroy("lab");
    host.assert_unchanged();
}

#[test]
fn a_foreign_link_with_the_name_of_our_bridge_is_unchanged() {
    let Some(host) = crate::host() else { return };
    let name = homestak_providers::local::Instance::at(&host.root()).unwrap();
    let link = format!("hs-{}", name.name());
    let ip = |arguments: &[&str]| {
        let done = std::process::Command::new("/usr/sbin/ip")
            .args(arguments)
            .status();
        done.is_ok_and(|status| status.success())
    };
    assert!(ip(&["link", "add", &link, "type", "bridge"]));
    host.peers("blocked", 1);
    let stderr = host
        .manifest_run("apply", "blocked", &["--yes", "--on-error", "rollback"])
        .bad();
    assert!(stderr.contains("that homestak did not create"), "{stderr}");
    assert!(ip(&["link", "show", &link]), "it was removed");
    host.destroy("blocked");
    host.run(&["local", "clean", "--yes"]);
    assert!(ip(&["link", "delete", &link]));
    host.assert_unchanged();
}

#[test]
fn a_node_whose_processes_were_killed_is_reported_stopped_and_can_be_started() {
    let Some(host) = crate::host() else { return };
    host.peers("killed", 1);
    host.apply("killed");
    let root = host.root();
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
        if host.nodes()[0]["running"] == false {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(host.nodes()[0]["running"], false);
    host.apply("killed");
    host.inside("peer-1", "true").good();
    host.destroy("killed");
    host.assert_unchanged();
}

#[test]
fn without_root_a_test_falls_back_to_the_simulator_and_reports_why() {
    use std::os::unix::fs::PermissionsExt as _;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: changing to the user `nobody` needs root");
        return;
    }
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(directory.path(), open).unwrap();
    // The user `nobody` may not read the directory of the program.
    let program = directory.path().join("homestak");
    std::fs::copy(crate::program(), &program).unwrap();
    let done = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["manifest", "test", "-M", "workers", "-H", "local"])
        .args(["--setup", "--yes"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", directory.path())
        .env("HOMESTAK_SIM_SPEED", "200")
        .current_dir(directory.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{stderr}");
    for words in [
        "cannot run real nodes",
        "needs root",
        "Using the simulator instead",
    ] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    let stop = std::process::Command::new(&program)
        .args(["sim", "stop"])
        .env("HOME", directory.path())
        .output()
        .unwrap();
    assert!(stop.status.success());
}
