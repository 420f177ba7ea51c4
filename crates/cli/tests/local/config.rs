//! Nodes of this machine are configured from specs by the real program over real SSH.

use crate::test_host::TestHost;

/// A spec with every kind of setting.
const SPEC: &str = "\
schema_version: 1
access:
  posture: free
  users:
    - {name: ops, sudo: true}
    - {name: alice, sudo: true}
platform:
  packages: [tree]
  services: {disable: [nftables]}
config:
  timezone: Europe/Berlin
  files:
    - {path: /etc/motd, content: \"made by homestak\\n\"}
  sysctl: {net.ipv4.ip_forward: 1}
";

fn write(host: &TestHost, spec: &str) {
    for (name, root, nopasswd) in [("free", "yes", true), ("strict", "no", false)] {
        host.write(
            &format!("postures/{name}.yaml"),
            &format!(
                "auth: {{method: network}}\n\
                 ssh: {{port: 22, permit_root_login: \"{root}\", password_authentication: \"no\"}}\n\
                 sudo: {{nopasswd: {nopasswd}}}\n"
            ),
        );
    }
    host.write("specs/web.yaml", spec);
    host.manifest("lab", "  - {name: web, spec: web}\n");
}

/// Runs lines on the node, which must all succeed.
fn assert_on_node(host: &TestHost, lines: &str) {
    host.inside("web", &format!("set -e\n{lines}")).good();
}

/// Returns the plan as text.
fn plan(host: &TestHost) -> String {
    host.manifest_run("plan", "lab", &[]).good()
}

fn assert_nothing_to_do(host: &TestHost) {
    let shown = plan(host);
    assert!(shown.contains("Nothing to do."), "{shown}");
}

#[test]
fn st_2_one_machine_is_created_configured_verified_and_destroyed() {
    let Some(host) = crate::host() else { return };
    write(&host, SPEC);
    let run = host.manifest_run("test", "lab", &["--yes"]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let output = format!("{}{}", run.out, run.err);
    assert!(output.contains("web: configured"), "{output}");
    assert!(output.contains("and matches its spec `web`"), "{output}");
    host.assert_unchanged();
}

#[test]
fn drift_in_a_node_is_planned_and_corrected() {
    let Some(host) = crate::host() else { return };
    write(&host, SPEC);
    host.apply("lab");
    assert_on_node(
        &host,
        "command -v tree\nid alice\ngrep -qx 'made by homestak' /etc/motd\n\
         grep -qx 1 /proc/sys/net/ipv4/ip_forward\n\
         sudo test -s /usr/local/etc/homestak/state/config-complete.json\n\
         sudo homestak status | grep -q '^complete'",
    );
    assert_nothing_to_do(&host);
    assert_on_node(&host, "echo theirs | sudo tee /etc/motd");
    let shown = plan(&host);
    for words in [
        "configure",
        "/etc/motd",
        "- theirs",
        "+ made by homestak",
        "changed on the node",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let diff = host.run(&["spec", "diff", "web"]);
    assert_eq!(diff.code, 3, "{}", diff.err);
    assert!(diff.out.contains("- theirs"), "{}", diff.out);
    host.apply("lab");
    assert_nothing_to_do(&host);
    host.run(&["spec", "diff", "web"]).good();
    assert_on_node(&host, "grep -qx 'made by homestak' /etc/motd");
    // With another spec, what only the old one had is removed, and the driver can still log in.
    let strict = SPEC.replace("[tree]", "[cron]").replace("free", "strict");
    let strict = strict.replace("{name: alice, sudo: true}", "{name: alice}");
    write(&host, &strict);
    // What would be removed on a stopped node is unknown, so the command asks for confirmation.
    host.inside("web", "sudo systemctl poweroff");
    while host.nodes()[0]["running"] == true {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let unconfirmed = host.manifest_run("apply", "lab", &[]);
    assert_eq!(
        unconfirmed.code, 3,
        "{}{}",
        unconfirmed.out, unconfirmed.err
    );
    for words in ["start vm", "may be removed", "This needs confirmation"] {
        assert!(
            unconfirmed.err.contains(words),
            "{words}: {}",
            unconfirmed.err
        );
    }
    assert_eq!(host.nodes()[0]["running"], false);
    host.apply("lab");
    assert_on_node(
        &host,
        "! command -v tree\ncommand -v crontab\nsudo -n true\n\
         ! sudo -u alice sudo -n true\n\
         sudo sshd -T | grep -qx 'permitrootlogin no'",
    );
    assert_nothing_to_do(&host);
    host.destroy("lab");
    host.assert_unchanged();
}

#[test]
fn an_unavailable_package_fails_the_run_and_the_next_apply_continues() {
    let Some(host) = crate::host() else { return };
    write(&host, &SPEC.replace("tree", "no-such-package-anywhere"));
    let run = host.manifest_run("apply", "lab", &["--yes"]);
    assert_ne!(run.code, 0);
    for words in ["no-such-package-anywhere", "configure `web`"] {
        assert!(run.err.contains(words), "{words}: {}", run.err);
    }
    for (words, n_times) in [("creates a new plan", 1), ("continues this run", 0)] {
        assert_eq!(run.err.matches(words).count(), n_times, "{}", run.err);
    }
    write(&host, SPEC);
    // The run was planned with the other spec, so only a new plan is suggested.
    let run = host.manifest_run("resume", "lab", &[]);
    assert_ne!(run.code, 0);
    for (words, n_times) in [("creates a new plan", 1), ("continues this run", 0)] {
        assert_eq!(run.err.matches(words).count(), n_times, "{}", run.err);
    }
    host.apply("lab");
    assert_on_node(&host, "command -v tree");
    host.destroy("lab");
    host.assert_unchanged();
}

#[test]
fn nodes_configured_at_once_end_in_the_same_state() {
    let Some(host) = crate::host() else { return };
    write(&host, SPEC);
    let nodes: String = (1..=3)
        .map(|n| format!("  - {{name: web-{n}, spec: web}}\n"))
        .collect();
    host.manifest("lab", &nodes);
    host.apply("lab");
    let shown = |node: &str| {
        let output = host.inside(node, "sudo homestak config show").good();
        let same = output.lines().filter(|line| !line.starts_with("hostname/"));
        same.collect::<Vec<_>>().join("\n").replace(node, "NODE")
    };
    assert_eq!(shown("web-1"), shown("web-2"));
    assert_eq!(shown("web-1"), shown("web-3"));
    host.destroy("lab");
    host.assert_unchanged();
}

#[test]
fn a_change_that_would_lock_the_driver_out_is_reverted_and_reported() {
    let Some(mut host) = crate::host() else {
        return;
    };
    host.set("HOMESTAK_CONFIRM", "8");
    write(&host, SPEC);
    host.apply("lab");
    // Blocks the SSH port of the next posture.
    assert_on_node(
        &host,
        "sudo nft add table inet wall\n\
         sudo nft 'add chain inet wall in { type filter hook input priority 0; }'\n\
         sudo nft add rule inet wall in tcp dport 2222 drop",
    );
    host.write(
        "postures/free.yaml",
        "auth: {method: network}\n\
         ssh: {port: 2222, permit_root_login: \"no\", password_authentication: \"no\"}\n\
         sudo: {nopasswd: true}\n",
    );
    let run = host.manifest_run("apply", "lab", &["--yes"]);
    assert_ne!(run.code, 0);
    for words in ["changes were reverted", "SSH server", "correct the spec"] {
        assert!(run.err.contains(words), "{words}: {}", run.err);
    }
    assert_on_node(
        &host,
        "sudo sshd -T | grep -qx 'port 22'\nsudo sshd -T | grep -qx 'permitrootlogin yes'\n\
         sudo homestak status | grep -qx failed",
    );
    assert_on_node(&host, "sudo nft delete table inet wall");
    host.apply("lab");
    host.run(&["ssh", "web", "--", "sudo sshd -T | grep -x 'port 2222'"])
        .good();
    host.destroy("lab");
    host.assert_unchanged();
}

#[test]
fn resume_obtains_the_result_of_a_node_that_converged_without_its_driver() {
    let Some(host) = crate::host() else { return };
    write(&host, SPEC);
    host.manifest("lab", "  - {name: web}\n");
    host.apply("lab");
    host.manifest("lab", "  - {name: web, spec: web}\n");
    let mut driver = host
        .command(&["manifest", "apply", "-M", "lab", "-H", "local", "--yes"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(driver.stderr.take().unwrap());
    let mut progress = std::io::BufRead::lines(lines).map_while(Result::ok);
    let mut seen = Vec::new();
    let is_installing = progress.any(|line| {
        let found = line.contains("web: install");
        seen.push(line);
        found
    });
    assert!(is_installing, "{seen:#?}");
    driver.kill().unwrap();
    driver.wait().unwrap();
    // The connection ends with the driver; the node continues.
    host.run(&["manifest", "resume", "-M", "lab"]).good();
    assert_nothing_to_do(&host);
    assert_on_node(
        &host,
        "command -v tree\nsudo homestak status | grep -q '^complete'",
    );
    host.destroy("lab");
    host.assert_unchanged();
}
