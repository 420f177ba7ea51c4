//! Exit codes and messages of `validate`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

use snapbox::cmd::Command;

const VALID: &str = "\
schema_version: 2
name: valid
nodes:
  - name: test-vm
    type: vm
    spec: base
    preset: vm-small
";

/// Required fields are missing, and types are wrong.
const INVALID_SCHEMA: &str = "\
schema_version: 2
name: invalid-schema
nodes:
  - type: vm
    vmid: many
";

const INVALID_FK: &str = "\
schema_version: 2
name: invalid-fk
nodes:
  - name: test-vm
    type: vm
    spec: nonexistent
    preset: unknown
";

fn write_site(directory: &Path, layout: &str) {
    let root = directory.join("site-config").join(layout);
    let files = [
        ("specs/base.yaml", "schema_version: 1\n"),
        (
            "presets/vm-small.yaml",
            "{cores: 2, memory: 2048, disk: 10}\n",
        ),
        ("manifests/valid.yaml", VALID),
        ("manifests/invalid-schema.yaml", INVALID_SCHEMA),
        ("manifests/invalid-fk.yaml", INVALID_FK),
    ];
    for (name, text) in files {
        let path = root.join(name);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    }
}

/// Runs a command of the design in a directory with the site in `./site-config`.
fn validate(directory: &Path, words: &str) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_homestak"))
        .args(words.split_whitespace())
        .current_dir(directory)
        .env_clear()
        .env("HOME", directory)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), stderr)
}

fn check(layout: &str) {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_site(directory, layout);

    let (exit, stderr) = validate(directory, "validate -M valid");
    assert_eq!(exit, 0, "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");

    let (exit, stderr) = validate(directory, "validate -M invalid-schema");
    assert_eq!(exit, 1, "{stderr}");
    assert!(stderr.contains("the node has no `name`"), "{stderr}");
    assert!(
        stderr.contains("expected an integer, found a string"),
        "{stderr}"
    );

    let (exit, stderr) = validate(directory, "validate -M invalid-fk");
    assert_eq!(exit, 1, "{stderr}");
    assert!(
        stderr.contains("there is no spec `nonexistent`"),
        "{stderr}"
    );
    assert!(stderr.contains("there is no preset `unknown`"), "{stderr}");
}

#[test]
fn validate_exits_1_for_invalid_manifests() {
    check("");
}

#[test]
fn validate_exits_1_for_invalid_manifests_in_the_v2_layout() {
    check("v2");
}
