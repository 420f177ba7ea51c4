//! What the machine is like: everything that nodes could leave behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Everything that nodes could leave behind, as lines that can be compared. What is named after
/// another local host of this machine is left out: it comes and goes as it likes.
pub fn picture(root: &Path) -> BTreeSet<String> {
    let own = homestak_providers::local::Realm::at(root).unwrap();
    let own = own.name().to_owned();
    let mut lines = BTreeSet::new();
    let mut add = |kind: &str, text: &str| {
        let kept = text.lines().filter(|line| !is_others(line, &own));
        lines.extend(kept.map(|line| format!("{kind}: {}", line.trim_end())));
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
    add("rules", &said("nft", &["list", "tables"]));
    add(
        "group",
        &said(
            "find",
            &["/sys/fs/cgroup", "-name", "homestak-*", "-type", "d"],
        ),
    );
    for place in ["/run/netns", "/run/systemd/nspawn/propagate"] {
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

/// Tells whether a line names another local host: its parts are called `hs-REALM` and
/// `homestak-REALM`.
fn is_others(line: &str, own: &str) -> bool {
    ["hs-", "homestak-"].iter().any(|before| {
        line.match_indices(before).any(|(at, _)| {
            let rest = &line[at + before.len()..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric());
            let name = &rest[..end.unwrap_or(rest.len())];
            let hashed = name.len() == 7
                && name.starts_with('r')
                && name[1..].chars().all(|c| c.is_ascii_hexdigit());
            (hashed || name == "local") && name != own
        })
    })
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
        let ours = text.contains(&*root);
        if ours && (text.contains("systemd-nspawn") || text.contains("homestak-node")) {
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
