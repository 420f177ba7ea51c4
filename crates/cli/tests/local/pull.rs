//! Nodes of this machine that fetch their specs from the server, configure themselves and report.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use homestak_providers::local::Instance;

use crate::killed::processes;
use crate::test_host::{TestHost, text};

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
run: {trigger: schedule, interval: 10s}
";

fn write(host: &TestHost, spec: &str) {
    host.write(
        "postures/free.yaml",
        "auth: {method: network}\n\
         ssh: {port: 22, permit_root_login: \"yes\", password_authentication: \"no\"}\n\
         sudo: {nopasswd: true}\n",
    );
    host.write("specs/web.yaml", spec);
    host.manifest("lab", "  - {name: web, spec: web}\n");
}

fn apply(host: &TestHost, mode: &str) -> String {
    let run = host.manifest_run("apply", "lab", &["--yes", "--mode", mode]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    format!("{}{}", run.out, run.err)
}

/// Waits until no server of this test runs.
pub fn server_has_ended(host: &TestHost) {
    for _ in 0..100 {
        let status = host.run(&["server", "status", "--json"]);
        if status.code == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{}", host.run(&["server", "status"]).out);
}

/// Disconnects the first node once it exists, and connects it again once its first boot has failed to
/// reach the server and pauses.
fn connect_late(root: &Path) {
    let instance = Instance::at(root).unwrap();
    let instance = instance.name();
    // The first node has the first id.
    let node = serde_json::json!({ "id": 100 });
    let lines = || -> Vec<String> {
        let all = processes(instance, &node).into_iter();
        all.map(|(_, line)| line).collect()
    };
    let wait = |what: &str, is_so: &dyn Fn(&[String]) -> bool| {
        for _ in 0..3000 {
            if is_so(&lines()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{what}: {:?}", lines());
    };
    let set = |state: &str| {
        let done = Command::new("/usr/sbin/ip")
            .args(["-n", &format!("homestak-{instance}")])
            .args(["link", "set", "v100", state])
            .status();
        assert!(done.unwrap().success(), "{state}");
    };
    // Its supervisor starts when the link is there.
    wait("no node was started", &|all| !all.is_empty());
    set("down");
    wait("the first boot does not pause", &|all| {
        let is_there = |words: &str| all.iter().any(|line| line.contains(words));
        is_there("/homestak/first-boot") && is_there("sleep ")
    });
    set("up");
}

/// Returns the address of this machine towards others, which nodes reach too.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Nothing is sent.
    socket.connect("203.0.113.1:9").unwrap();
    socket.local_addr().unwrap().ip()
}

/// Publishes another text of `/etc/motd`, and waits until the node has fetched and applied it.
fn change(host: &TestHost, text: &str) {
    write(host, &SPEC.replace("made by homestak", text));
    host.run(&[
        "config", "apply", "-M", "lab", "-H", "local", "--mode", "pull", "--yes", "web",
    ])
    .good();
    host.inside("web", &format!("grep -qx '{text}' /etc/motd"))
        .good();
}

#[test]
fn a_node_that_pulls_needs_no_ssh_waits_for_its_network_and_follows_its_spec_and_its_server() {
    let Some(mut host) = crate::host() else {
        return;
    };
    // SSH connections are impossible: the driver must not need any.
    host.write("ssh_config", "Host *\n  ProxyCommand false\n");
    let config = host.root().with_file_name("site").join("ssh_config");
    host.set("HOMESTAK_SSH_CONFIG", &config.display().to_string());
    write(&host, SPEC);
    let (run, connected) = std::thread::scope(|scope| {
        let root = host.root();
        let connected = scope.spawn(move || connect_late(&root));
        let options = ["--yes", "--mode", "pull", "--json-output"];
        (
            host.manifest_run("apply", "lab", &options),
            connected.join(),
        )
    });
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    connected.unwrap();
    let made = run.json();
    assert_eq!(made["nodes"][0]["config"], "configured", "{made}");
    server_has_ended(&host);
    // Its token was used and deleted, and it has a certificate instead.
    host.inside(
        "web",
        "set -e\nsudo test ! -e /usr/local/etc/homestak/first-boot/enrolment.json\n\
         sudo test -s /usr/local/etc/homestak/state/registration.json\n\
         sudo journalctl -u homestak-pull | grep -q 'does not answer: '\n\
         grep -q HOMESTAK_SERVER /etc/profile.d/homestak.sh\n\
         ! grep -qi token /etc/profile.d/homestak.sh",
    )
    .good();
    // Without a server, it still corrects drift from its spec.
    host.inside(
        "web",
        "set -e\nsudo sh -c 'echo changed >/etc/motd'\nfor n in $(seq 300); do \
         grep -qx 'made by homestak' /etc/motd && exit 0; sleep 0.2; done; exit 1",
    )
    .good();
    let tokens = host.run(&["token", "list", "--json-output"]).json();
    assert!(tokens["tokens"][0]["used"].is_i64(), "{tokens}");
    let nodes = host.run(&["node", "list", "--json-output"]).json();
    assert_eq!(text(&nodes["nodes"][0]["name"]), "web");
    let shown = host.run(&["node", "show", "web"]).good();
    assert!(shown.contains("converged"), "{shown}");
    // A changed spec is published, fetched at the next interval, and reported. It has another address
    // of the server, which answers at both.
    write(&host, &SPEC.replace("made by", "changed by"));
    let plan = host.manifest_run("plan", "lab", &["--mode", "pull"]).good();
    assert!(plan.contains("has not reported"), "{plan}");
    let address = own_address().to_string();
    host.set("HOMESTAK_SERVER", &format!("https://{address}:44443"));
    change(&host, "changed by homestak");
    // From now on, it answers at the other address only.
    host.run(&["server", "start", "--bind", &address]).good();
    change(&host, "moved by homestak");
    host.run(&["server", "stop"]).good();
    host.destroy("lab");
    server_has_ended(&host);
    let published = host.run(&["server", "check", "--json-output"]).json();
    assert_eq!(published["nodes"], serde_json::json!([]), "{published}");
    let nodes = host.run(&["node", "list"]).good();
    assert!(nodes.contains("destroyed"), "{nodes}");
    server_has_ended(&host);
    host.assert_unchanged();
}

#[test]
fn a_node_that_cannot_configure_itself_fails_the_run_at_once_with_its_own_error() {
    let Some(host) = crate::host() else { return };
    write(&host, &SPEC.replace("tree", "no-such-package-anywhere"));
    let begun = std::time::Instant::now();
    let run = host.manifest_run("apply", "lab", &["--yes", "--mode", "pull"]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    for words in ["no-such-package-anywhere", "configure `web`"] {
        assert!(run.err.contains(words), "{words}: {}", run.err);
    }
    assert!(begun.elapsed() < Duration::from_secs(120));
    server_has_ended(&host);
    write(&host, SPEC);
    apply(&host, "pull");
    host.inside("web", "command -v tree").good();
    host.destroy("lab");
    host.assert_unchanged();
}

#[test]
fn a_spec_that_cuts_a_node_off_from_the_server_is_reverted_and_fails_the_run() {
    let Some(host) = crate::host() else { return };
    let rules = "flush ruleset\\ntable inet t {\\n chain c {\\n  type filter hook output priority 0\\n  \
                 tcp dport 44443 drop\\n }\\n}\\n";
    let firewall = format!("    - {{path: /etc/nftables.conf, content: \"{rules}\"}}\n  sysctl:");
    let cut = SPEC
        .replace("  sysctl:", &firewall)
        .replace("{disable: [nftables]}", "{enable: [nftables]}")
        .replace("made by", "cut off by");
    // Each takes more than a minute.
    let modes = match std::env::var_os("HOMESTAK_TEST_FULL") {
        Some(_) => &["pull", "hybrid"][..],
        None => &["pull"],
    };
    for mode in modes.iter().copied() {
        write(&host, SPEC);
        apply(&host, mode);
        write(&host, &cut);
        server_has_ended(&host);
        let run = host.manifest_run("apply", "lab", &["--yes", "--mode", mode]);
        assert_eq!(run.code, 1, "{}{}", run.out, run.err);
        for words in ["no server was reached for 60 s", "configure `web`"] {
            assert!(run.err.contains(words), "{words}: {}", run.err);
        }
        host.inside(
            "web",
            "set -e\ngrep -qx 'made by homestak' /etc/motd\n! systemctl is-active nftables\n\
             test -z \"$(sudo nft list ruleset)\"",
        )
        .good();
        // Corrected, it is applied.
        write(&host, &cut.replace("44443", "44444"));
        server_has_ended(&host);
        apply(&host, mode);
        host.inside("web", "grep -qx 'cut off by homestak' /etc/motd")
            .good();
        host.destroy("lab");
        server_has_ended(&host);
    }
    host.assert_unchanged();
}

#[test]
fn a_hybrid_node_that_cannot_enrol_fails_the_run_at_once_with_its_own_error() {
    let Some(host) = crate::host() else { return };
    write(&host, SPEC);
    apply(&host, "push");
    // Its token is not the one that the server has: the node cannot enrol, and so cannot report.
    let shim =
        "#!/bin/sh\nsed 's/\"token\": *\"[^\"]*\"/\"token\":\"no.token\"/' | exec REAL \"$@\"\n";
    let script = "set -e; link=$(readlink -f /usr/local/bin/homestak-agent); mv $link $link.real; \
                  sed s,REAL,$link.real, >$link; chmod 755 $link";
    let script = format!("sudo sh -c '{script}'");
    let done = host.run_with_input("web", &script, shim.as_bytes());
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    write(&host, &SPEC.replace("Europe/Berlin", "UTC"));
    let begun = std::time::Instant::now();
    let run = host.manifest_run("apply", "lab", &["--yes", "--mode", "hybrid"]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.err.contains("the token is malformed"), "{}", run.err);
    assert!(begun.elapsed() < Duration::from_secs(60));
    host.destroy("lab");
    server_has_ended(&host);
    host.assert_unchanged();
}
