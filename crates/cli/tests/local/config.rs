//! Nodes of this machine become what their specs say, driven by the real program over real SSH.

use crate::bed::Bed;

/// A spec with something of every kind that a person writes.
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

fn write(bed: &Bed, spec: &str) {
    for (name, root, nopasswd) in [("free", "yes", true), ("strict", "no", false)] {
        bed.write(
            &format!("postures/{name}.yaml"),
            &format!(
                "auth: {{method: network}}\n\
                 ssh: {{port: 22, permit_root_login: \"{root}\", password_authentication: \"no\"}}\n\
                 sudo: {{nopasswd: {nopasswd}}}\n"
            ),
        );
    }
    bed.write("specs/web.yaml", spec);
    bed.manifest("lab", "  - {name: web, spec: web}\n");
}

/// Runs lines on the node that must all succeed.
fn holds(bed: &Bed, lines: &str) {
    bed.inside("web", &format!("set -e\n{lines}")).good();
}

/// Returns the plan as a person sees it.
fn plan(bed: &Bed) -> String {
    bed.manifest_run("plan", "lab", &[]).good()
}

fn is_settled(bed: &Bed) {
    let shown = plan(bed);
    assert!(shown.contains("Nothing to do."), "{shown}");
}

#[test]
fn st_2_one_machine_is_made_configured_verified_and_removed() {
    let Some(bed) = crate::new_bed() else { return };
    write(&bed, SPEC);
    let run = bed.manifest_run("test", "lab", &["--yes"]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let said = format!("{}{}", run.out, run.err);
    assert!(said.contains("web: configured"), "{said}");
    assert!(said.contains("and matches its spec `web`"), "{said}");
    bed.is_as_before();
}

#[test]
fn what_differs_inside_is_planned_and_mended_and_then_nothing_is_left_to_do() {
    let Some(bed) = crate::new_bed() else { return };
    write(&bed, SPEC);
    bed.apply("lab");
    holds(
        &bed,
        "command -v tree\nid alice\ngrep -qx 'made by homestak' /etc/motd\n\
         grep -qx 1 /proc/sys/net/ipv4/ip_forward\n\
         sudo test -s /usr/local/etc/homestak/state/config-complete.json\n\
         sudo homestak status | grep -qx complete",
    );
    is_settled(&bed);
    holds(&bed, "echo theirs | sudo tee /etc/motd");
    let shown = plan(&bed);
    for words in [
        "configure",
        "/etc/motd",
        "- theirs",
        "+ made by homestak",
        "changed on the node",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let diff = bed.run(&["spec", "diff", "web"]);
    assert_eq!(diff.code, 3, "{}", diff.err);
    assert!(diff.out.contains("- theirs"), "{}", diff.out);
    bed.apply("lab");
    is_settled(&bed);
    bed.run(&["spec", "diff", "web"]).good();
    holds(&bed, "grep -qx 'made by homestak' /etc/motd");
    // Another spec is a change too: what only the old one gave goes, and the driver still gets in.
    let strict = SPEC.replace("[tree]", "[cron]").replace("free", "strict");
    let strict = strict.replace("{name: alice, sudo: true}", "{name: alice}");
    write(&bed, &strict);
    // Nobody can see what goes in a node that does not run, so the command asks.
    bed.inside("web", "sudo systemctl poweroff");
    while bed.nodes()[0]["running"] == true {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let asked = bed.manifest_run("apply", "lab", &[]);
    assert_eq!(asked.code, 3, "{}{}", asked.out, asked.err);
    for words in ["start vm", "may be removed", "accounts and data"] {
        assert!(asked.err.contains(words), "{words}: {}", asked.err);
    }
    assert_eq!(bed.nodes()[0]["running"], false);
    bed.apply("lab");
    holds(
        &bed,
        "! command -v tree\ncommand -v crontab\nsudo -n true\n\
         ! sudo -u alice sudo -n true\n\
         sudo sshd -T | grep -qx 'permitrootlogin no'",
    );
    is_settled(&bed);
    bed.destroy("lab");
    bed.is_as_before();
}

#[test]
fn a_spec_that_cannot_be_had_fails_with_its_reason_and_the_next_apply_goes_on() {
    let Some(bed) = crate::new_bed() else { return };
    write(&bed, &SPEC.replace("tree", "no-such-package-anywhere"));
    let run = bed.manifest_run("apply", "lab", &["--yes"]);
    assert_ne!(run.code, 0);
    for words in ["no-such-package-anywhere", "configure `web`"] {
        assert!(run.err.contains(words), "{words}: {}", run.err);
    }
    for (words, n_times) in [("creates a new plan", 1), ("continues this run", 0)] {
        assert_eq!(run.err.matches(words).count(), n_times, "{}", run.err);
    }
    write(&bed, SPEC);
    // The run was planned with the other spec: a new plan is the one way on that is named.
    let run = bed.manifest_run("resume", "lab", &[]);
    assert_ne!(run.code, 0);
    for (words, n_times) in [("creates a new plan", 1), ("continues this run", 0)] {
        assert_eq!(run.err.matches(words).count(), n_times, "{}", run.err);
    }
    bed.apply("lab");
    holds(&bed, "command -v tree");
    bed.destroy("lab");
    bed.is_as_before();
}

#[test]
fn several_nodes_are_configured_at_once_and_end_the_same() {
    let Some(bed) = crate::new_bed() else { return };
    write(&bed, SPEC);
    let nodes: String = (1..=3)
        .map(|n| format!("  - {{name: web-{n}, spec: web}}\n"))
        .collect();
    bed.manifest("lab", &nodes);
    bed.apply("lab");
    let shown = |node: &str| {
        let said = bed.inside(node, "sudo homestak config show").good();
        let same = said.lines().filter(|line| !line.starts_with("hostname/"));
        same.collect::<Vec<_>>().join("\n").replace(node, "NODE")
    };
    assert_eq!(shown("web-1"), shown("web-2"));
    assert_eq!(shown("web-1"), shown("web-3"));
    bed.destroy("lab");
    bed.is_as_before();
}

#[test]
fn a_change_that_would_cut_the_node_off_is_taken_back_and_told() {
    let Some(mut bed) = crate::new_bed() else {
        return;
    };
    bed.set("HOMESTAK_CONFIRM", "8");
    write(&bed, SPEC);
    bed.apply("lab");
    // Nobody gets through to the port that the next posture wants.
    holds(
        &bed,
        "sudo nft add table inet wall\n\
         sudo nft 'add chain inet wall in { type filter hook input priority 0; }'\n\
         sudo nft add rule inet wall in tcp dport 2222 drop",
    );
    bed.write(
        "postures/free.yaml",
        "auth: {method: network}\n\
         ssh: {port: 2222, permit_root_login: \"no\", password_authentication: \"no\"}\n\
         sudo: {nopasswd: true}\n",
    );
    let run = bed.manifest_run("apply", "lab", &["--yes"]);
    assert_ne!(run.code, 0);
    for words in ["changes were reverted", "SSH server", "correct the spec"] {
        assert!(run.err.contains(words), "{words}: {}", run.err);
    }
    holds(
        &bed,
        "sudo sshd -T | grep -qx 'port 22'\nsudo sshd -T | grep -qx 'permitrootlogin yes'\n\
         sudo homestak status | grep -qx failed",
    );
    holds(&bed, "sudo nft delete table inet wall");
    bed.apply("lab");
    bed.run(&["ssh", "web", "--", "sudo sshd -T | grep -x 'port 2222'"])
        .good();
    bed.destroy("lab");
    bed.is_as_before();
}

#[test]
fn a_driver_that_was_killed_while_a_node_converges_learns_the_result_when_it_is_back() {
    let Some(bed) = crate::new_bed() else { return };
    write(&bed, SPEC);
    bed.manifest("lab", "  - {name: web}\n");
    bed.apply("lab");
    bed.manifest("lab", "  - {name: web, spec: web}\n");
    let mut driver = bed
        .command(&["manifest", "apply", "-M", "lab", "-H", "local", "--yes"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(driver.stderr.take().unwrap());
    let mut seen = std::io::BufRead::lines(lines).map_while(Result::ok);
    assert!(seen.any(|line| line.contains("web: install")));
    driver.kill().unwrap();
    driver.wait().unwrap();
    // The rest of the connection goes with it; the node does not.
    bed.run(&["manifest", "resume", "-M", "lab"]).good();
    is_settled(&bed);
    holds(
        &bed,
        "command -v tree\nsudo homestak status | grep -qx complete",
    );
    bed.destroy("lab");
    bed.is_as_before();
}
