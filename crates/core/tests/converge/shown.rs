//! Changes as displayed: content is shown only if every user of the node may read it, and control
//! characters are escaped.

use homestak_core::converge::{Facts, FileFact, State, SystemFact, UserFact, decide, render};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{minimal_spec, read};

fn debian() -> Facts {
    Facts {
        system: SystemFact {
            id: "debian".into(),
            version: "12".into(),
            systemd: true,
        },
        ..Facts::default()
    }
}

fn file(content: &str, mode: u32) -> FileFact {
    FileFact::Regular {
        content: Some(content.to_owned()),
        mode,
        owner: "root".into(),
        group: "root".into(),
    }
}

/// Returns the changes of a file as JSON and as text.
fn shown(found: Option<(&str, u32)>, desired: (&str, &str)) -> (String, String) {
    let mut spec = minimal_spec();
    spec["config"] =
        json!({ "files": [{ "path": "/etc/app", "content": desired.0, "mode": desired.1 }] });
    let mut facts = debian();
    if let Some((content, mode)) = found {
        facts.files.insert("/etc/app".into(), file(content, mode));
    }
    let decision = decide(&read(&spec), &facts, &State::default());
    let about = |change: &&homestak_core::converge::Change| change.resource == "file:/etc/app";
    let changes: Vec<_> = decision.changes.iter().filter(about).cloned().collect();
    (json!(changes).to_string(), render(&changes))
}

#[test]
fn content_in_a_private_directory_is_not_shown() {
    let mut spec = minimal_spec();
    let path = "/home/alice/app";
    spec["config"] =
        json!({ "files": [{ "path": path, "content": "NEW-marker", "mode": "0644" }] });
    let mut facts = debian();
    facts.files.insert(path.into(), file("OLD-marker", 0o644));
    facts.private_paths.insert(path.into());
    let decision = decide(&read(&spec), &facts, &State::default());
    let json = json!(decision.changes).to_string();
    assert!(!json.contains("marker"), "{json}");
    assert!(render(&decision.changes).contains("not shown: its directory is private"));
}

#[test]
fn content_is_not_shown_unless_world_readable_before_and_after() {
    for (found, desired) in [
        (0o640, "0640"),
        (0o644, "0640"),
        (0o640, "0644"),
        (0o600, "0600"),
    ] {
        let (json, text) = shown(Some(("OLD-marker\n", found)), ("NEW-marker\n", desired));
        for shown in [&json, &text] {
            assert!(
                !shown.contains("marker") && !shown.contains("sha256"),
                "{shown}"
            );
        }
        let mode = if desired == "0644" { "0640" } else { desired };
        let line = format!("  content differs (not shown: mode {mode})\n");
        assert!(text.contains(&line), "{text}");
    }
    let (json, text) = shown(None, ("NEW-marker\n", "0640"));
    assert!(
        !json.contains("marker") && !text.contains("marker"),
        "{text}"
    );
    assert!(
        text.contains("    - absent\n    + not shown: mode 0640\n"),
        "{text}"
    );
}

#[test]
fn world_readable_content_is_shown() {
    let (_, text) = shown(Some(("OLD-marker\n", 0o644)), ("NEW-marker\n", "0644"));
    assert!(
        text.contains("    - OLD-marker\n    + NEW-marker\n"),
        "{text}"
    );
}

#[test]
fn hidden_content_is_still_compared() {
    let (json, _) = shown(Some(("same\n", 0o640)), ("same\n", "0640"));
    assert_eq!(json, "[]");
}

/// Returns the changes for a key file of root.
fn keys_of_root(line: &str) -> (Value, String) {
    let mut spec = minimal_spec();
    spec["access"]["users"] = json!([{ "name": "root", "ssh_keys": [] }]);
    let mut facts = debian();
    let root = UserFact {
        home: "/root".into(),
        group: "root".into(),
        shell: "/bin/bash".into(),
        ..UserFact::default()
    };
    facts.users.insert("root".into(), root);
    let path = "/root/.ssh/authorized_keys";
    facts.files.insert(path.into(), file(line, 0o600));
    let decision = decide(&read(&spec), &facts, &State::default());
    (json!(decision.changes), render(&decision.changes))
}

fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() && c != '\n')
}

#[test]
fn terminal_codes_in_a_key_comment_are_escaped() {
    for code in ["\x1b]52;c;cm0=\x07", "\x1b[2J", "\u{9b}2J", "\u{202e}"] {
        let (_, text) = keys_of_root(&format!("ssh-ed25519 AAAAeve eve{code}\n"));
        assert!(
            text.contains("AAAAeve") && text.contains("present (eve\\"),
            "{text}"
        );
        assert!(is_plain(&text) && !text.contains('\u{202e}'), "{text:?}");
    }
}

proptest! {
    #[test]
    fn no_control_character_of_a_key_file_is_displayed(
        kind in "ssh-(ed25519|rsa)", body in "[A-Za-z]{4,9}", comment in any::<String>()
    ) {
        let (json, text) = keys_of_root(&format!("{kind} {body} {comment}\n"));
        prop_assert!(is_plain(&text), "{text:?}");
        for change in json.as_array().unwrap() {
            for value in change.as_object().unwrap().values() {
                prop_assert!(is_plain(value.as_str().unwrap_or_default()), "{change}");
            }
        }
    }
}
