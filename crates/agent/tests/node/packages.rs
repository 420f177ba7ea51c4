//! Packages that fail or are unavailable, in a repository on the node.

use serde_json::{Value, json};

use crate::test_node::{AGENT, STATE, TestNode};

/// Creates a repository with a package whose script fails while a file exists, an unrelated package, and
/// one that conflicts with it. Its list is not fetched yet.
const ARCHIVE: &str = r#"
mkdir -p /srv/repo; cd /srv/repo; umask 022
make() {
    d=$(mktemp -d); mkdir $d/DEBIAN
    printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@lab.example>\n%sDescription: none\n' "$1" "$2" >$d/DEBIAN/control
    printf '#!/bin/sh\n%s\n' "$3" >$d/DEBIAN/postinst; chmod 755 $d/DEBIAN/postinst
    dpkg-deb --build $d $1.deb >/dev/null
}
make stumble '' '[ ! -e /srv/stone ]'
make bystander '' true
make rival 'Conflicts: bystander
' true
for file in *.deb; do
    dpkg-deb --field $file
    echo "Filename: ./$file"; echo "Size: $(stat -c %s $file)"; echo "SHA256: $(sha256sum $file | cut -d' ' -f1)"; echo
done >Packages
echo 'deb [trusted=yes] file:/srv/repo ./' >/etc/apt/sources.list.d/own.list
dpkg -i bystander.deb >/dev/null
touch /srv/stone
"#;

fn spec(packages: &[&str]) -> Value {
    json!({
        "schema_version": 1,
        "identity": { "hostname": "web" },
        "access": { "posture": "dev", "_posture": { "auth": { "method": "network" } } },
        "platform": { "packages": packages },
        "config": { "files": [{ "path": "/etc/motd", "content": format!("{packages:?}\n") }] },
    })
}

#[test]
fn interrupted_packages_are_finished_and_unavailable_ones_change_nothing() {
    let Some(node) = TestNode::new() else { return };
    node.root(ARCHIVE).good();
    let recorded = || node.root(&format!("cat {STATE}/converge.json"));
    let in_packages = |text: &str| {
        let state: Value = serde_json::from_str(text).unwrap();
        state["in_packages"] == true
    };
    let state_of = |name: &str| {
        let line = format!("dpkg-query -W -f '${{db:Status-Status}}' {name} || true");
        node.root(&line).good()
    };
    let fail = |packages: &[&str]| {
        let run = node.agent("config apply", &spec(packages));
        assert_eq!(run.code, 2, "{}", run.err);
        assert_eq!(node.status()["failed"]["error"], "packages");
        run.err
    };
    node.apply(&spec(&[]));

    // It was interrupted, which is recorded.
    fail(&["stumble"]);
    assert_eq!(state_of("stumble"), "half-configured");
    assert!(in_packages(&recorded().good()));
    node.root("rm /srv/stone").good();
    node.apply(&spec(&["stumble"]));
    assert_eq!(state_of("stumble"), "installed");
    let before = recorded().good();
    assert!(!in_packages(&before));

    // Nothing was changed, so nothing is recorded.
    let message = fail(&["stumble", "rival"]);
    assert!(message.contains("would also remove bystander"), "{message}");
    assert_eq!(state_of("bystander"), "installed");
    assert_ne!(state_of("rival"), "installed");
    assert_eq!(recorded().good(), before);
    assert_eq!(node.root("cat /etc/motd").good(), "[\"stumble\"]\n");

    // Packages of a spec are removed with it, and no others.
    node.apply(&spec(&[]));
    assert_ne!(state_of("stumble"), "installed");
    assert_eq!(state_of("bystander"), "installed");
    node.root(&format!("{AGENT} config check")).good();
    node.host.destroy("lab");
    node.host.assert_unchanged();
}
