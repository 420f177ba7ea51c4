//! Interoperability with a second implementation, written in Python.
//!
//! The tests need `tests/prepare`. Without it they are skipped, or fail if `HOMESTAK_TEST_REQUIRE`
//! is set.

mod listing;

use std::io::Write;
use std::path::{Path, PathBuf};

use homestak_secrets::*;
use listing::listing;

const NOW: &str = "2026-01-31T12:00:00Z";

/// Documents that are encrypted by one implementation and decrypted by the other.
const DOCUMENTS: [&str; 6] = [
    "root_password: hunter2\n",
    "# top\na: 1 # behind\nb:\n  # in b\n  c: x\n  d: |\n    one\n    two\n  # last in b\nl:\n  - k: 1.5\n    m: true\n  # second\n  - \"q # no\"\n  - - 1\n    - ~\ne: \"\"\nn:\no_unencrypted: open\n",
    "int: 42\nnegative: -7\nfloat: 1234.56789\nsmall: 0.000001\nlarge: 1.0e21\nyes: no\ntrue_text: \"true\"\nfalse_value: false\nnumber_text: \"007\"\nnull_text: \"null\"\nempty_map: {}\nempty_list: []\n",
    "umlaut: \"zwölf Boxkämpfer\"\n\"key: with colon\": x\nescapes: \"tab\\there \\\"quoted\\\" \\\\ back\"\nemoji: \"\u{1f511}\"\nlong: 'single ''quoted'' text'\nfolded: >-\n  one\n  two\nkeep: |+\n  kept\n\nlast: end\n",
    "flow: [1, two, {three: 4, five: [6, \"seven, eight\"]}]\nnested:\n  deep:\n    deeper:\n      - a: 1\n        b:\n          - c\n          - d: e\n",
    "kind: Secret\ndata:\n  # hidden\n  token: abc\n  port: 8006\nlist:\n  - data: x\n  - other: 0644\nwhen_unencrypted: 12\n",
];

/// Selections of encrypted values.
const RULES: [(&str, &str, bool); 7] = [
    ("unencrypted_suffix", "_unencrypted", false),
    ("unencrypted_suffix", "_open", true),
    ("encrypted_suffix", "data", false),
    ("encrypted_regex", "^(data|b|flow|int)$", false),
    ("encrypted_regex", "^(data|b|flow|int)$", true),
    ("unencrypted_regex", "^(kind|list|nested)$", false),
    ("unencrypted_comment_regex", "hidden|second", false),
];

fn rules((field, text, mac_only_encrypted): (&str, &str, bool)) -> Rules {
    let pattern = || Pattern::new(text).expect("the expression is valid");
    Rules {
        selection: match field {
            "unencrypted_suffix" => Selection::ExceptSuffix(text.into()),
            "encrypted_suffix" => Selection::OnlySuffix(text.into()),
            "encrypted_regex" => Selection::OnlyKeys(pattern()),
            "unencrypted_regex" => Selection::ExceptKeys(pattern()),
            _ => Selection::ExceptCommented(pattern()),
        },
        mac_only_encrypted,
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the Python interpreter with the packages of the reference.
#[expect(clippy::disallowed_methods, reason = "tests are set up by environment")]
fn python() -> Option<PathBuf> {
    let given = std::env::var("HOMESTAK_TEST_PYTHON").map(PathBuf::from);
    let python = given.unwrap_or_else(|_| root().join("target/test-venv/bin/python"));
    if python.exists() {
        return Some(python);
    }
    let required = std::env::var("HOMESTAK_TEST_REQUIRE").is_ok();
    assert!(
        !required,
        "{} is missing: run tests/prepare",
        python.display()
    );
    // Not `eprintln!`, which a passing test swallows.
    let line = format!(
        "skipped: {} is missing: run tests/prepare\n",
        python.display()
    );
    std::io::stderr().write_all(line.as_bytes()).ok();
    None
}

/// Runs the reference; `Err` is its standard error.
#[expect(
    clippy::disallowed_methods,
    reason = "the reference is a program of its own"
)]
fn reference(python: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = std::process::Command::new(python)
        .arg(root().join("tests/python/sops_ref.py"))
        .args(arguments)
        .env("PYTHONIOENCODING", "utf-8")
        .output()
        .expect("the reference starts");
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).expect("the reference prints text"))
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

struct TestKeys {
    directory: tempfile::TempDir,
    identities: Identities,
    recipient: Recipient,
}

impl TestKeys {
    fn new() -> Self {
        let pair = keygen(NOW);
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs_err::write(directory.path().join("keys.txt"), pair.file.expose())
            .expect("the file is written");
        Self {
            identities: Identities::parse(pair.file.expose()).expect("a generated key parses"),
            directory,
            recipient: pair.recipient,
        }
    }

    fn write(&self, text: &str) -> String {
        let path = self.directory.path().join("document.yaml");
        fs_err::write(&path, text).expect("the file is written");
        path.display().to_string()
    }

    fn file(&self) -> String {
        self.directory.path().join("keys.txt").display().to_string()
    }
}

/// Returns the comments of a document whose values contain no `#` except `"q # no"`.
fn comments(plain: &str) -> Vec<String> {
    plain
        .lines()
        .filter(|line| !line.contains("\"q # no\""))
        .filter_map(|line| line.split_once('#'))
        .map(|(_, comment)| format!("# {}", serde_json::Value::from(comment)))
        .collect()
}

#[test]
fn the_reference_opens_our_files() {
    let Some(python) = python() else { return };
    let keys = TestKeys::new();
    for rule in RULES {
        for plain in DOCUMENTS {
            let sealed = seal(
                plain,
                &Sealing {
                    recipients: std::slice::from_ref(&keys.recipient),
                    rules: &rules(rule),
                    now: NOW,
                    previous: None,
                },
            )
            .unwrap();
            let file = keys.write(&sealed);
            let read = reference(&python, &["decrypt", &file, "--keys", &keys.file()]);
            let read = read.unwrap_or_else(|error| panic!("{rule:?}\n{plain}\n{sealed}\n{error}"));
            let (noted, values): (Vec<&str>, Vec<&str>) =
                read.lines().partition(|line| line.starts_with("# "));
            // Plain octal numbers keep their notation, which Go parses as octal.
            let values: Vec<String> = values
                .iter()
                .map(|line| line.replace(" 420", " 644"))
                .collect();
            assert_eq!(values, listing(plain), "{rule:?}\n{plain}\n{sealed}");
            assert_eq!(noted, comments(plain), "{rule:?}\n{sealed}");
        }
    }
}

#[test]
fn we_open_files_of_the_reference() {
    let Some(python) = python() else { return };
    let keys = TestKeys::new();
    for rule in RULES {
        for plain in DOCUMENTS {
            let file = keys.write(plain);
            let recipient = keys.recipient.to_string();
            let chosen = format!("{}={}", rule.0, rule.1);
            let mut arguments = vec!["encrypt", &file, "--recipient", &recipient];
            arguments.extend(["--rule", &chosen]);
            arguments.extend(rule.2.then_some("--mac-only-encrypted"));
            let sealed = reference(&python, &arguments).unwrap();
            let opened = open(&sealed, &keys.identities)
                .unwrap_or_else(|error| panic!("{rule:?}\n{plain}\n{sealed}\n{error:?}"));
            let values: Vec<String> = listing(opened.expose())
                .iter()
                .map(|line| line.replace(" 420", " 644"))
                .collect();
            assert_eq!(values, listing(plain), "{rule:?}\n{sealed}");
            let mut noted = comments(opened.expose());
            let mut expected = comments(plain);
            noted.sort();
            expected.sort();
            assert_eq!(noted, expected, "{rule:?}\n{sealed}");
        }
    }
}

#[test]
fn the_reference_detects_changes() {
    let Some(python) = python() else { return };
    let keys = TestKeys::new();
    let sealed = seal(
        "a: 1\nb_unencrypted: x\n",
        &Sealing {
            recipients: std::slice::from_ref(&keys.recipient),
            rules: &Rules::default(),
            now: NOW,
            previous: None,
        },
    )
    .unwrap();
    let file = keys.write(&sealed.replace("encrypted: x", "encrypted: y"));
    let error = reference(&python, &["decrypt", &file, "--keys", &keys.file()]).unwrap_err();
    assert!(error.contains("MAC mismatch"), "{error}");
}

#[test]
fn a_key_split_into_groups_is_combined() {
    let Some(python) = python() else { return };
    let groups = [TestKeys::new(), TestKeys::new(), TestKeys::new()];
    let file = groups[0].write("a: 1\nb: x\n");
    let names: Vec<String> = groups
        .iter()
        .map(|keys| keys.recipient.to_string())
        .collect();
    let mut arguments = vec!["encrypt", &file, "--threshold", "2"];
    for name in &names {
        arguments.extend(["--group", name]);
    }
    let sealed = reference(&python, &arguments).unwrap();
    for pair in [[0, 1], [1, 2], [0, 2]] {
        let mut identities = groups[pair[0]].identities.clone();
        identities.extend(groups[pair[1]].identities.clone());
        let opened = open(&sealed, &identities).unwrap();
        assert_eq!(opened.expose(), "a: 1\nb: x\n");
    }
    let single = open(&sealed, &groups[0].identities).unwrap_err();
    assert!(
        matches!(
            single,
            OpenError::TooFewGroups {
                opened: 1,
                needed: 2
            }
        ),
        "{single:?}"
    );
}
