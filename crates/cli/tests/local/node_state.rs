//! The state of a node that configuration could change: files with content, owner and mode, packages,
//! users, groups, units and kernel settings.

use std::collections::BTreeMap;

use crate::test_host::TestHost;

/// What may differ between two nodes with the same spec, and why. `*` stands for any text.
const EXCEPTIONS: &[(&str, &str)] = &[
    (
        "file etc/machine-id",
        "made from the guest's UUID, and another manifest has another guest",
    ),
    ("file etc/ssh/ssh_host_*", "new for each guest"),
    ("file etc/systemd/network/*", "has the guest's own address"),
    (
        "file usr/local/etc/homestak/first-boot",
        "only where first-boot data has an enrolment; empty afterwards",
    ),
    (
        "file usr/local/etc/homestak/state/*",
        "the agent's own records: times, jobs, certificate; but not the spec",
    ),
    (
        "file etc/profile.d/homestak.sh",
        "names the server of a node that pulls",
    ),
    (
        "file etc/systemd/system/homestak-pull.service",
        "starts the first boot of a node that pulls",
    ),
    (
        "file etc/systemd/system/multi-user.target.wants/homestak-pull.service",
        "the same",
    ),
    (
        "file usr/local/lib/homestak/first-boot",
        "downloads the agent of a node that pulls",
    ),
    (
        "file usr/local/lib/homestak/agent-*.json",
        "what the site signed of the agent of a node that pulls",
    ),
    ("unit homestak-pull.service", "runs on a node that pulls"),
];

/// What is compared although an exception includes it: the spec that was applied.
const COMPARED: &str = "file usr/local/etc/homestak/state/spec.yaml";

/// Prints one line for each thing: kind, name, a tab, and its state.
const SCRIPT: &str = r#"
set -e; cd /
find etc home root srv opt usr/local -printf 'file %p\t%y %m %u:%g %l\n'
find etc home root srv opt usr/local -type f -exec sha256sum {} + \
    | sed -E 's/^([0-9a-f]+)  (.*)/content \2\t\1/'
dpkg-query -W -f 'package ${Package}\t${Version} ${db:Status-Status}\n'
apt-mark showmanual | sed 's/.*/manual &\tyes/'
getent passwd | sed -E 's/^([^:]*):/user \1\t/'
getent shadow | sed -E 's/^([^:]*):([^:]*):.*/password \1\t\2/'
getent group | sed -E 's/^([^:]*):/group \1\t/'
systemctl list-unit-files --no-legend --plain --type=service,socket,timer \
    | awk '{print "unit " $1 "\t" $2}'
for unit in $(systemctl list-unit-files --no-legend --plain --state=enabled --type=service,timer \
    | awk '{print $1}' | grep -v @); do
    printf 'active %s\t%s\n' "$unit" "$(systemctl is-active "$unit")"
done
for name in net.ipv4.ip_forward kernel.hostname; do
    printf 'kernel %s\t%s\n' "$name" "$(sysctl -n "$name")"
done
printf 'zone\t%s\n' "$(date +%Z)"
"#;

/// What a node is: state by kind and name.
pub struct NodeTree(BTreeMap<String, String>);

impl NodeTree {
    /// Reads the state of a node.
    pub fn of(host: &TestHost, node: &str) -> Self {
        let run = host.run_with_input(node, "sudo bash -s", SCRIPT.as_bytes());
        let lines = run.good();
        let pair = |line: &str| {
            let (name, state) = line.split_once('\t').unwrap_or_else(|| panic!("{line}"));
            (name.to_owned(), state.trim().to_owned())
        };
        let tree: BTreeMap<String, String> = lines.lines().map(pair).collect();
        for kind in [
            "file etc/motd",
            "content etc/motd",
            "user alice",
            "package tree",
            "content usr/local/etc/homestak/state/spec.yaml",
        ] {
            assert!(tree.contains_key(kind), "{kind}");
        }
        Self(tree)
    }
}

/// Returns everything that differs and is no exception.
pub fn differences(one: &NodeTree, other: &NodeTree) -> Vec<String> {
    let names = one
        .0
        .keys()
        .chain(other.0.keys().filter(|name| !one.0.contains_key(*name)));
    let differs = |name: &&String| one.0.get(*name) != other.0.get(*name) && !is_exception(name);
    let shown = |name: &String| format!("{name}: {:?} {:?}", one.0.get(name), other.0.get(name));
    names.filter(differs).map(shown).collect()
}

/// Exceptions of files hold for their content, and those of units for whether they are active.
fn is_exception(name: &str) -> bool {
    let name = name.replacen("content ", "file ", 1);
    let name = name.replacen("active ", "unit ", 1);
    let matches = |pattern: &str| match pattern.split_once('*') {
        Some((start, end)) => name.starts_with(start) && name.ends_with(end),
        None => name == pattern,
    };
    name != COMPARED && EXCEPTIONS.iter().any(|(pattern, _)| matches(pattern))
}

#[test]
fn only_what_is_listed_may_differ() {
    let tree = |pairs: &[(&str, &str)]| {
        let pairs = pairs
            .iter()
            .map(|(name, state)| ((*name).to_owned(), (*state).to_owned()));
        NodeTree(pairs.collect())
    };
    let one = tree(&[
        ("file etc/motd", "f 644 root:root"),
        ("content etc/ssh/ssh_host_ed25519_key", "aa"),
        ("content usr/local/etc/homestak/state/converge.json", "aa"),
        ("content usr/local/etc/homestak/state/spec.yaml", "aa"),
        ("unit homestak-pull.service", "enabled"),
    ]);
    let other = tree(&[
        ("file etc/motd", "f 600 root:root"),
        ("content etc/ssh/ssh_host_ed25519_key", "bb"),
        ("content usr/local/etc/homestak/state/converge.json", "bb"),
        ("content usr/local/etc/homestak/state/spec.yaml", "bb"),
        ("file etc/new", "f 644 root:root"),
    ]);
    let found = differences(&one, &other);
    let names = found
        .iter()
        .map(|line| line.split(':').next().unwrap_or_default());
    let expected = [
        "content usr/local/etc/homestak/state/spec.yaml",
        "file etc/motd",
        "file etc/new",
    ];
    assert_eq!(names.collect::<Vec<_>>(), expected, "{found:?}");
    assert!(differences(&one, &one).is_empty());
}
