//! One node, created, configured and destroyed with the earlier verbs, in each of the three modes:
//! pull, push and hybrid end in the same state.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use crate::node_state::{NodeTree, differences};
use crate::test_host::{Run, TestHost, text};

/// A spec with every kind of setting.
pub const BASE: &str = "\
schema_version: 1
access:
  posture: dev
  users:
    - {name: ops, sudo: true}
    - {name: alice, sudo: true, ssh_keys: [alice@desk]}
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

/// Writes the documents that the manifests refer to. Returns the file with the private
/// key of `alice`.
pub fn write_site(host: &TestHost) -> PathBuf {
    host.write(
        "postures/dev.yaml",
        "auth: {method: network}\n\
         ssh: {port: 22, permit_root_login: \"yes\", password_authentication: \"no\"}\n\
         sudo: {nopasswd: true}\n",
    );
    host.write("presets/vm-small.yaml", "cores: 1\nmemory: 512\ndisk: 4\n");
    host.write("specs/base.yaml", BASE);
    let key = host.state().with_file_name("alice");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "alice@desk", "-f"])
        .arg(&key)
        .output()
        .map(Run::from);
    made.unwrap().good();
    let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
    host.write(
        "secrets.yaml",
        &format!("ssh_keys:\n  alice@desk: {public}"),
    );
    let secrets = host.root().with_file_name("site").join("secrets.yaml");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(secrets, private).unwrap();
    key
}

/// Writes a manifest of one node.
fn write_manifest(host: &TestHost, name: &str, mode: &str) {
    host.manifest(
        name,
        &format!(
            "  - name: test-vm\n    type: vm\n    spec: base\n    preset: vm-small\n    \
             execution:\n      mode: {mode}\n"
        ),
    );
}

fn older(host: &TestHost, verb: &str, manifest: &str, more: &[&str]) -> String {
    let mut words = vec![verb, "-M", manifest, "-H", "local", "--yes"];
    words.extend(more);
    let run = host.run(&words);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    run.out + &run.err
}

/// Returns whether a server runs, by the exit code of `server status`.
pub fn server_runs(host: &TestHost) -> bool {
    let status = host.run(&["server", "status"]);
    assert!(status.code < 2, "{}{}", status.out, status.err);
    status.code == 0
}

/// Asserts that the node is ready, however it was configured.
fn assert_ready(host: &TestHost, manifest: &str, key: &PathBuf) {
    let lines = "sudo test -s /usr/local/etc/homestak/state/spec.yaml\n\
                 sudo test -s /usr/local/etc/homestak/state/config-complete.json\n\
                 sudo test ! -e /usr/local/etc/homestak/state/config-failed.json\n\
                 sudo homestak status | grep -qx complete\n\
                 command -v tree\ngrep -qx 'made by homestak' /etc/motd";
    host.inside("test-vm", &format!("set -e\n{lines}")).good();
    // With the key that the spec names, which no first-boot data has.
    let node = &host.nodes()[0];
    let known = host.state().join("ssh/known_hosts");
    let login = Command::new("ssh")
        .args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o"])
        .arg(format!("UserKnownHostsFile={}", known.display()))
        .arg("-o")
        .arg(format!("HostKeyAlias={}", text(&node["uuid"])))
        .args(["-o", "IdentitiesOnly=yes", "-i"])
        .arg(key)
        .arg(format!("alice@{}", text(&node["address"])))
        .arg("sudo -n id -un")
        .output()
        .map(Run::from);
    assert_eq!(login.unwrap().good().trim(), "root");
    let status = ["manifest", "status", "-M", manifest, "--json-output"];
    let status = host.run(&status).json();
    let node = &status["runs"][0]["nodes"][0];
    assert_eq!(node["config"], "configured", "{status}");
    assert_eq!(node["differs"], false, "{status}");
}

/// Creates the same machine again, which changes nothing, and destroys it twice.
fn repeat_and_destroy(host: &TestHost, manifest: &str, more: &[&str]) {
    let nodes = host.nodes();
    let again = older(host, "create", manifest, more);
    assert!(again.contains("Nothing to do."), "{again}");
    assert_eq!(host.nodes(), nodes);
    older(host, "destroy", manifest, &[]);
    assert!(host.nodes().is_empty());
    older(host, "destroy", manifest, &[]);
}

#[test]
fn st_1_and_st_2_pull_push_and_hybrid_end_in_the_same_state() {
    let Some(host) = crate::host() else { return };
    let key = write_site(&host);
    write_manifest(&host, "single-node", "pull");
    write_manifest(&host, "single-node-push", "push");
    let mut trees: BTreeMap<&str, NodeTree> = BTreeMap::new();

    // Pull, from a server that was started before.
    host.run(&["server", "start"]).good();
    assert!(server_runs(&host));
    older(&host, "create", "single-node", &[]);
    assert_ready(&host, "single-node", &key);
    let variables = host.inside("test-vm", "cat /etc/profile.d/homestak.sh");
    let variables = variables.good();
    for line in [
        "export HOMESTAK_SERVER='https://",
        "export HOMESTAK_IDENTITY='test-vm'",
    ] {
        assert!(variables.contains(line), "{variables}");
    }
    let fetched = host.inside("test-vm", "sudo homestak spec get --output -");
    let applied = "sudo cat /usr/local/etc/homestak/state/spec.yaml";
    let applied = host.inside("test-vm", applied).good();
    assert_eq!(fetched.good().trim_end(), applied.trim_end());
    let shown = ["node", "show", "test-vm", "--json-output"];
    let shown = host.run(&shown).json();
    let last = shown["reports"].as_array().unwrap().last().unwrap();
    assert_eq!(last["state"], "converged", "{shown}");
    assert_eq!(last["generation"], shown["generation"], "{shown}");
    trees.insert("pull", NodeTree::of(&host, "test-vm"));
    repeat_and_destroy(&host, "single-node", &[]);
    host.run(&["server", "stop"]).good();

    // Push.
    older(&host, "create", "single-node-push", &[]);
    assert!(!server_runs(&host));
    assert_ready(&host, "single-node-push", &key);
    let lines = "sudo test ! -e /usr/local/etc/homestak/state/registration.json\n\
                 test ! -e /etc/profile.d/homestak.sh";
    host.inside("test-vm", &format!("set -e\n{lines}")).good();
    trees.insert("push", NodeTree::of(&host, "test-vm"));
    repeat_and_destroy(&host, "single-node-push", &[]);

    let hybrid = ["--mode", "hybrid"];
    older(&host, "create", "single-node", &hybrid);
    trees.insert("hybrid", NodeTree::of(&host, "test-vm"));
    repeat_and_destroy(&host, "single-node", &hybrid);

    for mode in ["hybrid", "pull"] {
        let found = differences(&trees["push"], &trees[mode]);
        assert!(found.is_empty(), "push and {mode}: {found:#?}");
    }
    crate::pull::server_has_ended(&host);
    host.assert_unchanged();
}
