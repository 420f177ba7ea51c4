//! What keeps nodes apart from the machine, from each other, and from other users of the machine.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::bed::{Bed, Run};

/// Runs something as root in a node, without SSH.
pub(crate) fn as_root(bed: &Bed, node: &str, line: &str) -> Run {
    use std::io::Write as _;
    let mut child = bed
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

/// Returns the processes whose environment has a text.
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
fn root_in_a_node_is_nobody_on_the_machine() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("two", 2);
    bed.apply("two");
    let mut ranges = Vec::new();
    for node in bed.nodes() {
        assert_eq!(node["isolated"], true, "{node}");
        let name = node["name"].as_str().unwrap();
        let map = as_root(&bed, name, "cat /proc/self/uid_map").good();
        let words: Vec<u32> = map.split_whitespace().map(|w| w.parse().unwrap()).collect();
        assert_eq!((words[0], words[2]), (0, 65_536), "{map}");
        ranges.push(words[1]);
        // A file of root's belongs to an id of this range on the machine.
        as_root(&bed, name, "touch /root/mine").good();
        let uuid = node["uuid"].as_str().unwrap();
        let upper = bed.root().join("nodes").join(uuid).join("upper");
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
    let said = as_root(&bed, "peer-1", line);
    let after = settings.map(|name| std::fs::read(format!("/proc/sys/{name}")).unwrap());
    assert_eq!(before, after, "{}\n{}", said.out, said.err);
    assert!(!said.out.contains("device"), "{}", said.out);
    // A console has the capabilities of the node and no files but its own: 0, 1, 2 and the list.
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines, ["1", "4"], "{}\n{}", said.out, said.err);
    // It is a whole system nevertheless: also after it was booted again.
    bed.reboot("peer-1");
    let line = "sudo sysctl -qw net.ipv4.ip_forward=1 && sudo ip link set eth0 mtu 1400 \\
                && sudo hostname renamed && test \"$(stat -c %U /etc/shadow /root | sort -u)\" = root";
    bed.inside("peer-1", line).good();
    bed.destroy("two");
    bed.is_as_before();
}

#[test]
fn what_opens_secrets_is_in_the_environment_of_no_other_process() {
    let Some(mut bed) = crate::new_bed() else {
        return;
    };
    let secret = format!("AGE-SECRET-KEY-1TEST{}", std::process::id());
    bed.set("SOPS_AGE_KEY", &secret);
    bed.peers("one", 1);
    bed.apply("one");
    // A connection that is kept for the next command, and the node itself, go on.
    bed.run(&["ssh", "peer-1", "--", "true"]).good();
    assert_eq!(with_environment(&secret), Vec::<String>::new());
    let said = as_root(&bed, "peer-1", "tr '\\0' '\\n' </proc/self/environ");
    assert!(!said.out.contains("SOPS"), "{}", said.out);
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn other_users_of_the_machine_reach_no_file_of_nodes_and_images() {
    let Some(bed) = crate::new_bed() else { return };
    // As an earlier release made them.
    let open = std::fs::Permissions::from_mode(0o755);
    for place in [bed.root(), bed.root().join("images")] {
        std::fs::set_permissions(place, open.clone()).unwrap();
    }
    bed.peers("one", 1);
    bed.run(&["image", "build", &crate::bed::image()]).good();
    bed.apply("one");
    for place in ["", "images", "nodes", "locks"] {
        let path = bed.root().join(place);
        let mode = std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{} is {mode:o}", path.display());
    }
    let images = std::fs::canonicalize(bed.root().join("images")).unwrap();
    let other = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "find"])
        .args([&images, &bed.root()])
        .args(["-perm", "-4000"])
        .output()
        .map(Run::from)
        .unwrap();
    assert_eq!(other.out, "", "{}", other.out);
    assert!(other.err.contains("Permission denied"), "{}", other.err);
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn a_node_that_runs_keeps_its_files_by_whatever_path_one_comes() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    let found = bed.nodes().remove(0);
    let uuid = found["uuid"].as_str().unwrap();
    // With a slash more it is the same local host.
    let slashed = format!("{}/", bed.root().display());
    let shown = bed
        .command(&["local", "show", "--json-output"])
        .env("HOMESTAK_LOCAL_ROOT", &slashed)
        .output()
        .map(Run::from)
        .unwrap()
        .json();
    assert_eq!(shown["nodes"][0]["running"], true, "{shown}");
    // Moved away, its nodes still run, and what is there is left as it is.
    let away = bed.root().with_file_name("away");
    std::fs::rename(bed.root(), &away).unwrap();
    let refused = bed
        .command(&["local", "clean", "--all", "--yes"])
        .env("HOMESTAK_LOCAL_ROOT", &away)
        .output()
        .map(Run::from)
        .unwrap()
        .bad();
    assert!(refused.contains("at another path"), "{refused}");
    // Without its mark, too.
    std::fs::remove_file(away.join(".homestak-local")).unwrap();
    let refused = bed
        .command(&["local", "clean", "--all", "--yes"])
        .env("HOMESTAK_LOCAL_ROOT", &away)
        .output()
        .map(Run::from)
        .unwrap()
        .bad();
    assert!(refused.contains("it is running"), "{refused}");
    assert!(away.join("nodes").join(uuid).join("upper").exists());
    let _ = std::fs::remove_file(away.join(".homestak-local"));
    std::fs::rename(&away, bed.root()).unwrap();
    assert_eq!(bed.nodes()[0]["running"], true);
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn the_machine_goes_on_forwarding_when_the_last_node_is_gone() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    bed.destroy("one");
    let forward = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
    assert_eq!(forward.trim(), "1", "others may rely on it by now");
    bed.is_as_before();
}
