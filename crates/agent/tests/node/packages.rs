//! Packages that cannot be had, in an archive of the node's own.

use serde_json::{Value, json};

use crate::lab::{AGENT, Lab, STATE};

/// Makes an archive with a package that stumbles while a file is there, one that stands by, and one
/// that cannot be beside it. Its list is not fetched yet.
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
fn packages_that_fail_half_way_are_finished_and_those_that_cannot_be_had_touch_nothing() {
    let Some(lab) = Lab::new() else { return };
    lab.root(ARCHIVE).good();
    let remembered = || lab.root(&format!("cat {STATE}/converge.json"));
    let in_packages = |text: &str| {
        let state: Value = serde_json::from_str(text).unwrap();
        state["in_packages"] == true
    };
    let state_of = |name: &str| {
        let line = format!("dpkg-query -W -f '${{db:Status-Status}}' {name} || true");
        lab.root(&line).good()
    };
    let fail = |packages: &[&str]| {
        let run = lab.agent("config apply", &spec(packages));
        assert_eq!(run.code, 2, "{}", run.err);
        assert_eq!(lab.status()["failed"]["error"], "packages");
        run.err
    };
    lab.apply(&spec(&[]));

    // It began, and the next run knows.
    fail(&["stumble"]);
    assert_eq!(state_of("stumble"), "half-configured");
    assert!(in_packages(&remembered().good()));
    lab.root("rm /srv/stone").good();
    lab.apply(&spec(&["stumble"]));
    assert_eq!(state_of("stumble"), "installed");
    let before = remembered().good();
    assert!(!in_packages(&before));

    // Nothing was begun, so nothing is remembered, and nothing is to be finished.
    let said = fail(&["stumble", "rival"]);
    assert!(said.contains("would also remove bystander"), "{said}");
    assert_eq!(state_of("bystander"), "installed");
    assert_ne!(state_of("rival"), "installed");
    assert_eq!(remembered().good(), before);
    assert_eq!(lab.root("cat /etc/motd").good(), "[\"stumble\"]\n");

    // What a spec gave goes with it, and takes nobody along.
    lab.apply(&spec(&[]));
    assert_ne!(state_of("stumble"), "installed");
    assert_eq!(state_of("bystander"), "installed");
    lab.root(&format!("{AGENT} config check")).good();
    lab.bed.destroy("lab");
    lab.bed.is_as_before();
}
