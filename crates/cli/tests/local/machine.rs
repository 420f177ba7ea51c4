//! Resources on the machine that nodes of one local host could leave behind.
//!
//! Other containers, namespaces, links and builds change meanwhile and are ignored.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Returns the resources that nodes of the local host with this root could leave behind, as lines
/// that can be compared.
pub fn resources(root: &Path) -> BTreeSet<String> {
    let own = homestak_providers::local::Instance::at(root).unwrap();
    let own = own.name().to_owned();
    let mut lines = BTreeSet::new();
    let mut add = |kind: &str, text: &str| {
        let own_lines = text.lines().filter(|line| is_ours(line, &own, root));
        lines.extend(own_lines.map(|line| format!("{kind}: {}", line.trim_end())));
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts: Vec<String> = mounts
        .lines()
        .map(|line| {
            line.split(' ')
                .skip(3)
                .take(2)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    add("mount", &mounts.join("\n"));
    add("namespace", &stdout_of("ip", &["netns", "list"]));
    add("link", &stdout_of("ip", &["-br", "link"]));
    add("address", &stdout_of("ip", &["-br", "address"]));
    add(
        "route",
        &stdout_of("ip", &["route", "show", "table", "all"]),
    );
    add("rules", &stdout_of("nft", &["list", "tables"]));
    add(
        "group",
        &stdout_of(
            "find",
            &["/sys/fs/cgroup", "-name", "homestak-*", "-type", "d"],
        ),
    );
    for directory in ["/run/netns", "/run/systemd/nspawn/propagate"] {
        add("file", &stdout_of("find", &[directory, "-mindepth", "1"]));
    }
    // Images are kept, and so are the locks of their builds.
    let files = stdout_of(
        "find",
        &[
            &root.to_string_lossy(),
            "-maxdepth",
            "2",
            "-not",
            "-path",
            "*/images*",
        ],
    );
    add("file", &files);
    add("process", &processes(root));
    lines
}

/// Returns whether a line is about a local host: it has its root, or one of its names, `hs-REALM`
/// and `homestak-REALM`.
fn is_ours(line: &str, own: &str, root: &Path) -> bool {
    let named = ["hs-", "homestak-"].iter().any(|before| {
        line.match_indices(before).any(|(at, _)| {
            let rest = &line[at + before.len()..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric());
            &rest[..end.unwrap_or(rest.len())] == own
        })
    });
    named || line.contains(&*root.to_string_lossy())
}

/// Returns the processes of nodes.
fn processes(root: &Path) -> String {
    let root = root.to_string_lossy();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Ok(text) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let text = String::from_utf8_lossy(&text).replace('\0', " ");
        let ours = text.contains(&*root);
        if ours && (text.contains("systemd-nspawn") || text.contains("homestak-node")) {
            found.push(text.chars().take(120).collect::<String>());
        }
    }
    found.join("\n")
}

fn stdout_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn only_resources_named_after_the_local_host_are_compared() {
    let root = Path::new("/var/tmp/test1/root");
    for line in [
        "hs-rabc123-101 (id: 7)",
        "hs-rabc123@if2  UP  02:00:00:00:00:01",
        "10.77.0.0/20 dev hs-rabc123 proto kernel scope link",
        "table ip homestak-rabc123",
        "/ /run/netns/homestak-rabc123",
        "/overlay /var/tmp/test1/root/nodes/x/merged",
    ] {
        assert!(is_ours(line, "rabc123", root), "{line}");
    }
    for line in [
        "hs-rabc1234-101 (id: 8)",
        "homestak-local (id: 9)",
        "veth1234@if5  UP  02:42:00:00:00:01",
        "docker0  DOWN  172.17.0.1/16",
        "default via 192.0.2.1 dev eth0",
        "table ip filter",
        "/ /run/docker/netns/default",
        "/overlay /var/tmp/test2/root/nodes/x/merged",
    ] {
        assert!(!is_ours(line, "rabc123", root), "{line}");
    }
}
