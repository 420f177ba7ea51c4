//! The provisioning token of a node: it is read from the first-boot data while a manifest is applied,
//! and nothing has it afterwards.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::test_host::{Run, TestHost};

/// First-boot data in the directory of a node.
const FIRST_BOOT_DATA: [&str; 3] = [
    "seed.iso",
    "first-boot",
    "upper/var/lib/cloud/seed/nocloud/user-data",
];

/// Directories of a node with what is not of its image. What a container wrote to others is found in its
/// directory on this machine.
const WRITTEN: &str = "/dev/shm /etc /home /opt /root /run /srv /tmp /usr/local /var";

/// Writes the documents of a node that pulls, whose spec is `web`.
pub fn write_spec(host: &TestHost) {
    host.write(
        "postures/free.yaml",
        "auth: {method: network}\n\
         ssh: {port: 22, permit_root_login: \"yes\", password_authentication: \"no\"}\n\
         sudo: {nopasswd: true}\n",
    );
    host.write(
        "specs/web.yaml",
        "schema_version: 1\naccess: {posture: free}\n\
         config: {files: [{path: /etc/motd, content: \"pulled\\n\"}]}\n",
    );
}

/// Applies a manifest with one node that pulls. Returns its token, as the first-boot data had it.
pub fn apply(host: &TestHost, manifest: &str) -> String {
    std::thread::scope(|scope| {
        let applied = scope.spawn(|| host.apply(manifest));
        let nodes = host.root().join("nodes");
        let mut found = None;
        while found.is_none() && !applied.is_finished() {
            found = token_in(&nodes);
            std::thread::sleep(Duration::from_millis(5));
        }
        applied.join().unwrap();
        found.unwrap()
    })
}

/// Returns the token in the first-boot data of any node.
fn token_in(nodes: &Path) -> Option<String> {
    let places = std::fs::read_dir(nodes).into_iter().flatten().flatten();
    let files = places.flat_map(|place| FIRST_BOOT_DATA.map(|name| place.path().join(name)));
    files
        .filter_map(|file| std::fs::read(file).ok())
        .find_map(|content| {
            // In user data it is in a JSON text within another.
            let text = String::from_utf8_lossy(&content).replace('\\', "");
            let (_, rest) = text.split_once("\"token\": \"")?;
            let (token, _) = rest.split_once('"')?;
            Some(token.to_owned())
        })
}

/// Returns texts of which every copy of a token has at least one, also one in base64 with lines of 76
/// characters.
fn traces(token: &str) -> Vec<String> {
    let (_, signature) = token.rsplit_once('.').unwrap();
    let mut all = vec![signature.to_owned()];
    for before in 0..3 {
        let encoded = STANDARD.encode([&vec![b' '; before], token.as_bytes()].concat());
        let whole = &encoded.as_bytes()[4..encoded.len() - 4];
        let parts = whole.chunks_exact(20);
        all.extend(parts.map(|part| String::from_utf8(part.to_vec()).unwrap()));
    }
    all
}

/// Asserts that neither the node nor what this machine has of it contains the token, and that its
/// first-boot data is deleted.
pub fn assert_forgotten(host: &TestHost, node: &str, token: &str) {
    let traces = traces(token).join("\n") + "\n";
    // On standard input, because sudo logs arguments. The file itself shows that grep finds traces.
    let script = format!(
        "set -e\nexec 2>&1\ncat >/root/traces <<'END'\n{traces}END\n\
         grep -rlsF --devices=skip -f /root/traces {WRITTEN} || true\n\
         journalctl --no-pager --output=cat | grep -F -f /root/traces || true\n\
         ls /var/lib/cloud/seed/nocloud /usr/local/etc/homestak/first-boot/* 2>/dev/null || true\n\
         rm /root/traces\n"
    );
    let found = host.run_with_input(node, "sudo sh -s", script.as_bytes());
    assert_eq!(found.good(), "/root/traces\n");
    let directory = host.root().with_file_name("");
    let patterns = std::env::temp_dir().join(format!("traces-{}", std::process::id()));
    std::fs::write(&patterns, traces).unwrap();
    let grep = Command::new("grep")
        // Disks of machines have the blocks of deleted files.
        .args(["-rlsF", "--devices=skip", "--exclude=*.qcow2", "-f"])
        .args([&patterns, &directory])
        .output();
    std::fs::remove_file(patterns).unwrap();
    assert_eq!(grep.map(Run::from).unwrap().out, "");
    for place in std::fs::read_dir(host.root().join("nodes")).unwrap() {
        for name in FIRST_BOOT_DATA {
            let path = place.as_ref().unwrap().path().join(name);
            assert!(!path.exists(), "{}", path.display());
        }
    }
}

#[test]
fn every_copy_of_a_token_has_a_trace_also_an_encoded_one_in_short_lines() {
    let token = format!("{}.{}", "eyJ2IjoyfQ".repeat(20), "c2lnbmF0dXJl-_".repeat(3));
    let traces = traces(&token);
    assert!(traces.iter().any(|trace| token.contains(trace)));
    for before in 0..60 {
        let text = format!("{}{token} and more", "#".repeat(before));
        let encoded = STANDARD.encode(text);
        let lines: Vec<&[u8]> = encoded.as_bytes().chunks(76).collect();
        let has = |trace: &String| {
            lines
                .iter()
                .any(|line| String::from_utf8_lossy(line).contains(trace))
        };
        assert!(traces.iter().any(has), "{before}");
    }
}
