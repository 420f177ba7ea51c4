//! Isolation of nodes from the machine, from each other, and from other users of the machine.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::test_host::{Run, TestHost};

/// Runs a line as root in a node, without SSH.
pub(crate) fn as_root(host: &TestHost, node: &str, line: &str) -> Run {
    use std::io::Write as _;
    let mut child = host
        .command(&["console", node])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(line.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().map(Run::from).unwrap()
}

/// Returns the command lines of processes whose environment contains a text.
fn with_environment(text: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let has = |path: &Path| {
        let bytes = std::fs::read(path.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).contains(text)
    };
    entries
        .filter(|entry| has(&entry.path()))
        .map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        })
        .collect()
}

#[test]
fn root_in_a_node_is_unprivileged_on_the_machine() {
    let Some(host) = crate::host() else { return };
    host.peers("two", 2);
    host.apply("two");
    let mut ranges = Vec::new();
    for node in host.nodes() {
        assert_eq!(node["isolated"], true, "{node}");
        let name = node["name"].as_str().unwrap();
        let map = as_root(&host, name, "cat /proc/self/uid_map").good();
        let words: Vec<u32> = map.split_whitespace().map(|w| w.parse().unwrap()).collect();
        assert_eq!((words[0], words[2]), (0, 65_536), "{map}");
        ranges.push(words[1]);
        // A file of root has an owner of this range on the machine.
        as_root(&host, name, "touch /root/mine").good();
        let uuid = node["uuid"].as_str().unwrap();
        let upper = host.root().join("nodes").join(uuid).join("upper");
        assert_eq!(upper.join("root/mine").metadata().unwrap().uid(), words[1]);
        assert_eq!(upper.metadata().unwrap().uid(), words[1]);
    }
    assert!(ranges[0].abs_diff(ranges[1]) >= 65_536, "{ranges:?}");
    let settings = ["kernel/core_pattern", "vm/swappiness", "kernel/panic"];
    let before = settings.map(|name| std::fs::read(format!("/proc/sys/{name}")).unwrap());
    let line = "mount -o remount,rw /proc/sys\n\
                for name in kernel/core_pattern vm/swappiness kernel/panic; do echo 7 >/proc/sys/$name; done\n\
                mknod /tmp/disk b 8 0 && echo a device\n\
                mount -t devtmpfs devtmpfs /mnt && echo devices\n\
                echo b >/proc/sysrq-trigger\n\
                grep CapBnd /proc/self/status /proc/1/status | cut -d: -f3 | sort -u | wc -l\n\
                ls /proc/self/fd | wc -l\n";
    let result = as_root(&host, "peer-1", line);
    let after = settings.map(|name| std::fs::read(format!("/proc/sys/{name}")).unwrap());
    assert_eq!(before, after, "{}\n{}", result.out, result.err);
    assert!(!result.out.contains("device"), "{}", result.out);
    // A console has the capabilities of the node and no open files but 0, 1, 2 and that of `ls`.
    let lines: Vec<&str> = result.out.lines().collect();
    assert_eq!(lines, ["1", "4"], "{}\n{}", result.out, result.err);
    // It is a complete system nevertheless, also after a reboot.
    host.reboot("peer-1");
    let line = "sudo sysctl -qw net.ipv4.ip_forward=1 && sudo ip link set eth0 mtu 1400 \\
                && sudo hostname renamed && test \"$(stat -c %U /etc/shadow /root | sort -u)\" = root";
    host.inside("peer-1", line).good();
    host.destroy("two");
    host.assert_unchanged();
}

#[test]
fn the_secrets_key_is_not_in_the_environment_of_other_processes() {
    let Some(mut host) = crate::host() else {
        return;
    };
    let secret = format!("AGE-SECRET-KEY-1TEST{}", std::process::id());
    host.set("SOPS_AGE_KEY", &secret);
    host.peers("one", 1);
    host.apply("one");
    // The shared connection and the node keep running.
    host.run(&["ssh", "peer-1", "--", "true"]).good();
    assert_eq!(with_environment(&secret), Vec::<String>::new());
    let result = as_root(&host, "peer-1", "tr '\\0' '\\n' </proc/self/environ");
    assert!(!result.out.contains("SOPS"), "{}", result.out);
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn other_users_cannot_reach_files_of_nodes_and_images() {
    let Some(host) = crate::host() else { return };
    // As in an earlier release.
    let open = std::fs::Permissions::from_mode(0o755);
    for directory in [host.root(), host.root().join("images")] {
        std::fs::set_permissions(directory, open.clone()).unwrap();
    }
    host.peers("one", 1);
    host.run(&["image", "build", &crate::test_host::image()])
        .good();
    host.apply("one");
    for directory in ["", "images", "nodes", "locks"] {
        let path = host.root().join(directory);
        let mode = std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{} is {mode:o}", path.display());
    }
    let images = std::fs::canonicalize(host.root().join("images")).unwrap();
    let other = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "find"])
        .args([&images, &host.root()])
        .args(["-perm", "-4000"])
        .output()
        .map(Run::from)
        .unwrap();
    assert_eq!(other.out, "", "{}", other.out);
    assert!(other.err.contains("Permission denied"), "{}", other.err);
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn files_of_a_running_node_are_kept_whatever_path_is_used() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    let found = host.nodes().remove(0);
    let uuid = found["uuid"].as_str().unwrap();
    // With a trailing slash it is the same local host.
    let slashed = format!("{}/", host.root().display());
    let shown = host
        .command(&["local", "show", "--json-output"])
        .env("HOMESTAK_LOCAL_ROOT", &slashed)
        .output()
        .map(Run::from)
        .unwrap()
        .json();
    assert_eq!(shown["nodes"][0]["running"], true, "{shown}");
    // If the root is moved, its nodes still run, and nothing is deleted.
    let away = host.root().with_file_name("away");
    std::fs::rename(host.root(), &away).unwrap();
    let refused = host
        .command(&["local", "clean", "--all", "--yes"])
        .env("HOMESTAK_LOCAL_ROOT", &away)
        .output()
        .map(Run::from)
        .unwrap()
        .bad();
    assert!(refused.contains("at another path"), "{refused}");
    // The same without the marker file.
    std::fs::remove_file(away.join(".homestak-local")).unwrap();
    let refused = host
        .command(&["local", "clean", "--all", "--yes"])
        .env("HOMESTAK_LOCAL_ROOT", &away)
        .output()
        .map(Run::from)
        .unwrap()
        .bad();
    assert!(refused.contains("it is running"), "{refused}");
    assert!(away.join("nodes").join(uuid).join("upper").exists());
    let _ = std::fs::remove_file(away.join(".homestak-local"));
    std::fs::rename(&away, host.root()).unwrap();
    assert_eq!(host.nodes()[0]["running"], true);
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn ip_forwarding_stays_on_after_the_last_node_is_destroyed() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    host.destroy("one");
    let forward = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
    assert_eq!(forward.trim(), "1", "other programs may rely on it");
    host.assert_unchanged();
}
