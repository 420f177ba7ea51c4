//! What the machine is like: everything that nodes could leave behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Everything that nodes could leave behind, as lines that can be compared.
pub fn picture(root: &Path) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let mut add = |kind: &str, text: &str| {
        lines.extend(
            text.lines()
                .map(|line| format!("{kind}: {}", line.trim_end())),
        );
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
    add("namespace", &said("ip", &["netns", "list"]));
    add("link", &said("ip", &["-br", "link"]));
    add("address", &said("ip", &["-br", "address"]));
    add("route", &said("ip", &["route", "show", "table", "all"]));
    add("rules", &said("nft", &["list", "ruleset"]));
    add(
        "forward",
        &std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap(),
    );
    add(
        "group",
        &said(
            "find",
            &["/sys/fs/cgroup", "-name", "homestak-*", "-type", "d"],
        ),
    );
    let run = [
        "/run/homestak",
        "/run/netns",
        "/run/systemd/nspawn/propagate",
    ];
    for place in run {
        add("file", &said("find", &[place, "-mindepth", "1"]));
    }
    // Images stay, and so does the lock of whoever builds one.
    let files = said(
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

/// Processes that have to do with nodes.
fn processes(root: &Path) -> String {
    let root = root.to_string_lossy();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Ok(text) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let text = String::from_utf8_lossy(&text).replace('\0', " ");
        if text.contains("systemd-nspawn")
            || (text.contains("homestak-node") && text.contains(&*root))
        {
            found.push(text.chars().take(120).collect::<String>());
        }
    }
    found.join("\n")
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
