//! Encrypting and decrypting documents through the public interface.

use homestak_secrets::*;

const NOW: &str = "2026-01-31T12:00:00Z";

fn keys() -> (Identities, Recipient) {
    let pair = keygen(NOW);
    (
        Identities::parse(pair.file.expose()).expect("a generated key parses"),
        pair.recipient,
    )
}

fn sealing<'a>(recipients: &'a [Recipient], rules: &'a Rules) -> Sealing<'a> {
    Sealing {
        recipients,
        rules,
        now: NOW,
        previous: None,
    }
}

fn only(field: &str) -> Rules {
    Rules {
        selection: Selection::OnlyKeys(Pattern::new(field).expect("the expression is valid")),
        mac_only_encrypted: false,
    }
}

/// Encrypts and decrypts a document, and expects the same text.
fn round_trip(plain: &str) -> String {
    let (identities, recipient) = keys();
    let rules = Rules::default();
    let sealed = seal(plain, &sealing(&[recipient], &rules)).expect("the document is encrypted");
    let opened = open(&sealed, &identities).expect("the document is opened");
    assert_eq!(opened.expose(), plain, "{sealed}");
    sealed
}

#[test]
fn a_file_of_sops_3_10_is_opened() {
    let keys = Identities::parse(include_str!("fixtures/sops-3.10.2.keys.txt")).unwrap();
    let sealed = include_str!("fixtures/sops-3.10.2.yaml");
    let plain = open(sealed, &keys).unwrap();
    let head = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: global-age-secret\n";
    assert!(plain.expose().starts_with(head));
    assert!(
        plain
            .expose()
            .ends_with("type: Opaque\nstringData:\n  key: global-value\n"),
        "{}",
        plain.expose()
    );
    // The MAC covers plain values too.
    let changed = sealed.replace("namespace: default", "namespace: other");
    assert!(matches!(open(&changed, &keys), Err(OpenError::MacMismatch)));
}

#[test]
fn a_file_of_sops_3_7_is_opened() {
    let keys = Identities::parse(include_str!("fixtures/sops-3.7.1.keys.txt")).unwrap();
    let plain = open(include_str!("fixtures/sops-3.7.1.yaml"), &keys).unwrap();
    assert_eq!(
        plain.expose(),
        "secrets:\n    SOME SECRET: \"0x629A673A8242c2AC4B7B8C5D8735fbeac21A6205\"\n"
    );
}

#[test]
fn comments_and_layout_survive_a_round_trip() {
    let sealed = round_trip(
        "# Passwords of the site.\n\nroot_password: hunter2 # change me\nport: 8006\nratio: 1.50\nenabled: true\nnothing: null\nempty: \"\"\nblank:\n\n# Keys.\nssh_keys:\n  - name: one\n    key: |\n      line one\n      line two\n  # second\n  - name: \"two: three\"\n    nested:\n      - - 1\n        - x\nopen_unencrypted: readable\n",
    );
    for secret in [
        "hunter2",
        "8006",
        "1.50",
        "line one",
        "Passwords",
        "change me",
        "second",
    ] {
        assert!(!sealed.contains(secret), "{secret} in {sealed}");
    }
    assert!(sealed.contains("open_unencrypted: readable\n"));
    assert!(sealed.contains("nothing: null\nempty: \"\"\nblank:\n"));
}

#[test]
fn values_in_flow_collections_are_sealed_in_place() {
    round_trip("a: [1, x, {b: true, c: \"x,y\"}]\n");
}

#[test]
fn a_flow_mapping_is_reformatted() {
    let (identities, recipient) = keys();
    let rules = Rules::default();
    let sealed = seal("{a: 1, b: [x, z]}", &sealing(&[recipient], &rules)).unwrap();
    let opened = open(&sealed, &identities).unwrap();
    assert_eq!(opened.expose(), "a: 1\nb:\n  - x\n  - z\n");
}

#[test]
fn strings_of_every_style_keep_their_value() {
    let (identities, recipient) = keys();
    let rules = Rules::default();
    for (plain, opened) in [
        ("a: 'it''s'\n", "a: \"it's\"\n"),
        ("a: >-\n  folded\n  text\nb: 1\n", "a: folded text\nb: 1\n"),
        ("a: |+\n  kept\n\nb: 1\n", "a: \"kept\\n\\n\"\n\nb: 1\n"),
        ("a: \"tab\\there\"\n", "a: \"tab\\there\"\n"),
        ("a: !!str 5\n", "a: \"5\"\n"),
        ("a: \"yes\"\n", "a: \"yes\"\n"),
        ("a: 0x10\nb: 007\n", "a: 16\nb: 007\n"),
        (
            "a: | # note\n  x\n  y\nb: 1\n",
            "a: | # note\n  x\n  y\nb: 1\n",
        ),
        ("---\na: 1\n...\n", "---\na: 1\n"),
        ("a: 1", "a: 1\n"),
    ] {
        let sealed = seal(plain, &sealing(std::slice::from_ref(&recipient), &rules)).unwrap();
        assert_eq!(
            open(&sealed, &identities).unwrap().expose(),
            opened,
            "{plain}"
        );
    }
}

#[test]
fn only_selected_values_are_sealed() {
    let (identities, recipient) = keys();
    let rules = only("^data$");
    let plain = "kind: Secret # readable\ndata:\n  # hidden\n  a: x\n";
    let sealed = seal(plain, &sealing(&[recipient], &rules)).unwrap();
    assert!(
        sealed.starts_with("kind: Secret # readable\ndata:\n  #ENC["),
        "{sealed}"
    );
    assert!(sealed.contains("    encrypted_regex: \"^data$\"\n"));
    assert_eq!(open(&sealed, &identities).unwrap().expose(), plain);
}

#[test]
fn comments_can_select_values() {
    let (identities, recipient) = keys();
    let rules = Rules {
        selection: Selection::OnlyCommented(Pattern::new("sops:enc").unwrap()),
        mac_only_encrypted: false,
    };
    let plain = "a: 1\n# sops:enc\nb: 2\nc: 3 # sops:enc\nd: 4\n";
    let sealed = seal(plain, &sealing(&[recipient], &rules)).unwrap();
    assert!(sealed.starts_with("a: 1\n# sops:enc\nb: ENC["), "{sealed}");
    assert!(sealed.contains("] # sops:enc\nd: 4\n"), "{sealed}");
    assert_eq!(open(&sealed, &identities).unwrap().expose(), plain);
}

#[test]
fn with_mac_only_encrypted_plain_values_can_be_edited() {
    let (identities, recipient) = keys();
    let rules = Rules {
        mac_only_encrypted: true,
        ..only("^data$")
    };
    let sealed = seal("kind: a\ndata: x\n", &sealing(&[recipient], &rules)).unwrap();
    let edited = sealed.replace("kind: a", "kind: b");
    assert_eq!(
        open(&edited, &identities).unwrap().expose(),
        "kind: b\ndata: x\n"
    );
    let forged = sealed.replace("    mac_only_encrypted: true\n", "");
    assert!(matches!(
        open(&forged, &identities),
        Err(OpenError::MacMismatch)
    ));
}

#[test]
fn sealing_again_keeps_ciphertexts_of_unchanged_values() {
    let (identities, recipient) = keys();
    let rules = Rules::default();
    let recipients = [recipient];
    let first = seal(
        "# note\na: 1\nb: x\nl: [z, z]\n",
        &sealing(&recipients, &rules),
    )
    .unwrap();
    let again = Sealing {
        previous: Some(Previous {
            text: &first,
            identities: &identities,
        }),
        now: "2026-02-01T00:00:00Z",
        ..sealing(&recipients, &rules)
    };
    assert_eq!(
        seal("# note\na: 1\nb: x\nl: [z, z]\n", &again).unwrap(),
        first
    );
    let second = seal("# note\na: 1\nb: w\nl: [z, z]\n", &again).unwrap();
    let changed: Vec<&str> = second
        .lines()
        .zip(first.lines())
        .filter(|(new, old)| new != old)
        .map(|(new, _)| new.split_once(':').unwrap().0.trim())
        .collect();
    assert_eq!(changed, ["b", "lastmodified", "mac"]);
    assert_eq!(
        open(&second, &identities).unwrap().expose(),
        "# note\na: 1\nb: w\nl: [z, z]\n"
    );
}

#[test]
fn adding_a_recipient_keeps_ciphertexts_and_removing_one_does_not() {
    let ((one, one_public), (two, two_public)) = (keys(), keys());
    let rules = Rules::default();
    let first = seal(
        "a: 1\n",
        &sealing(std::slice::from_ref(&one_public), &rules),
    )
    .unwrap();
    let both = [one_public, two_public.clone()];
    let previous = Some(Previous {
        text: &first,
        identities: &one,
    });
    let shared = seal(
        "a: 1\n",
        &Sealing {
            previous,
            ..sealing(&both, &rules)
        },
    )
    .unwrap();
    assert_eq!(first.lines().next(), shared.lines().next());
    assert_eq!(open(&shared, &one).unwrap().expose(), "a: 1\n");
    assert_eq!(open(&shared, &two).unwrap().expose(), "a: 1\n");
    let previous = Some(Previous {
        text: &shared,
        identities: &two,
    });
    let last = seal(
        "a: 1\n",
        &Sealing {
            previous,
            ..sealing(&[two_public], &rules)
        },
    )
    .unwrap();
    assert_ne!(shared.lines().next(), last.lines().next());
    assert!(matches!(
        open(&last, &one),
        Err(OpenError::NoMatchingKey { .. })
    ));
}

#[test]
fn the_recipients_are_listed_if_no_key_matches() {
    let (_, recipient) = keys();
    let rules = Rules::default();
    let sealed = seal("a: 1\n", &sealing(std::slice::from_ref(&recipient), &rules)).unwrap();
    let error = open(&sealed, &keys().0).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "the document is encrypted for `{recipient}`; the private key given does not match"
        )
    );
    let error = open(&sealed, &Identities::default())
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("no private key was given"), "{error}");
}

#[test]
fn unsupported_documents_are_refused_with_a_reason() {
    let (_, recipient) = keys();
    let rules = Rules::default();
    let recipients = [recipient];
    let refuse = |plain: &str| {
        let error = seal(plain, &sealing(&recipients, &rules)).unwrap_err();
        std::iter::successors(Some(&error as &dyn std::error::Error), |error| {
            error.source()
        })
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
    };
    assert!(refuse("a: &x 1\nb: *x\n").contains("aliases"));
    assert!(refuse("- a\n").contains("not a mapping"));
    assert!(refuse("{}\n").contains("empty"));
    assert!(refuse("a: 1\nsops: {}\n").contains("already encrypted"));
    assert!(refuse("a: 1\n---\nb: 2\n").contains("second document"));
    assert!(refuse("1: x\n").contains("quotes"));
    assert!(refuse("a: [1\n").contains("line"));
    assert!(refuse("x_unencrypted: 18446744073709551615\n").contains("quotes"));
    let nobody = seal("a: 1\n", &sealing(&[], &rules)).unwrap_err();
    assert!(matches!(nobody, SealError::NoRecipients));
    let when = Sealing {
        now: "today",
        ..sealing(&recipients, &rules)
    };
    assert!(matches!(
        seal("a: 1\n", &when),
        Err(SealError::BadTime { .. })
    ));
}

#[test]
fn a_plain_value_in_place_of_a_sealed_one_is_refused() {
    let (identities, recipient) = keys();
    let rules = Rules::default();
    let sealed = seal("a: 1\nb: 2\n", &sealing(&[recipient], &rules)).unwrap();
    let line = sealed.lines().next().unwrap();
    let error = open(&sealed.replace(line, "a: 1"), &identities).unwrap_err();
    assert!(
        matches!(&error, OpenError::Value { path, .. } if path == "a"),
        "{error:?}"
    );
    assert!(matches!(
        open("a: 1\n", &identities),
        Err(OpenError::NotSealed)
    ));
}

#[test]
fn files_of_the_reference_implementation_are_opened() {
    let keys = Identities::parse(include_str!("fixtures/reference.keys.txt")).unwrap();
    for sealed in [
        include_str!("fixtures/reference.default.yaml"),
        include_str!("fixtures/reference.groups.yaml"),
        include_str!("fixtures/reference.mac-only.yaml"),
    ] {
        let opened = open(sealed, &keys).unwrap();
        for line in [
            "root_password: hunter2",
            "port: 8006",
            "ratio: 1.5",
            "enabled: true",
            "nothing: null",
            "empty: \"\"",
            "      key: |\n        line one\n        line two\n    - - 1\n      - two\n    # closing\n",
            "    # the first\n    - name: one",
            "# change me",
        ] {
            let there = opened.expose().contains(line);
            assert!(there, "{line} in {}", opened.expose());
        }
    }
    let one = include_str!("fixtures/reference.keys.txt").lines().nth(2);
    let one = Identities::parse(one.unwrap()).unwrap();
    let groups = open(include_str!("fixtures/reference.groups.yaml"), &one);
    assert!(matches!(groups, Err(OpenError::TooFewGroups { .. })));
}

#[test]
fn a_file_with_unsupported_keys_is_not_sealed_again() {
    let keys = Identities::parse(include_str!("fixtures/reference.keys.txt")).unwrap();
    let recipients = keys.recipients();
    let rules = Rules::default();
    let again = |text: &str| {
        let previous = Some(Previous {
            text,
            identities: &keys,
        });
        let how = Sealing {
            previous,
            ..sealing(&recipients, &rules)
        };
        seal("a: 1\n", &how).unwrap_err().to_string()
    };
    let groups = again(include_str!("fixtures/reference.groups.yaml"));
    assert!(groups.contains("key groups"), "{groups}");
    let pgp = include_str!("fixtures/reference.default.yaml").replace(
        "    pgp: []\n",
        "    pgp:\n        - fp: ABCD\n          enc: x\n",
    );
    assert!(again(&pgp).contains("pgp keys"));
}

#[test]
fn windows_line_endings_are_supported() {
    let (identities, recipient) = keys();
    let rules = Rules::default();
    let plain = "# note\r\na: 1 # behind\r\nb: |\r\n  x\r\n  y\r\nc: z\r\n";
    let sealed = seal(plain, &sealing(&[recipient], &rules)).unwrap();
    let opened = open(&sealed, &identities).unwrap();
    let unix = |text: &str| text.replace("\r\n", "\n");
    assert_eq!(unix(opened.expose()), unix(plain));
}

#[test]
fn the_sops_block_may_be_first_and_the_document_may_be_json() {
    use homestak_core::doc::{Diagnostics, FileId, Source, yaml};
    let (identities, recipient) = keys();
    let rules = Rules::default();
    let sealed = seal("a: 1\nb: [x, z]\n", &sealing(&[recipient], &rules)).unwrap();
    let (data, block) = sealed.split_at(sealed.find("sops:").unwrap());
    let opened = open(&format!("{block}# end\n{data}"), &identities).unwrap();
    assert_eq!(opened.expose(), "# end\na: 1\nb: [x, z]\n");
    let mut diagnostics = Diagnostics::default();
    let tree = yaml::parse(FileId(0), &Source::new("x", &sealed), &mut diagnostics).unwrap();
    assert!(is_sealed(&tree));
    let json = tree.to_json().to_string();
    let opened = open(&json, &identities).unwrap();
    assert_eq!(opened.expose(), "a: 1\nb:\n  - x\n  - z\n");
}

#[test]
fn a_comment_is_not_accepted_as_a_value() {
    let (identities, recipient) = keys();
    let rules = Rules::default();
    let sealed = seal("a:\n  # allow\n  b: 1\n", &sealing(&[recipient], &rules)).unwrap();
    let comment = sealed
        .lines()
        .nth(1)
        .unwrap()
        .trim()
        .trim_start_matches('#');
    let block = &sealed[sealed.find("sops:").unwrap()..];
    let forged = format!("a: {comment}\n{block}");
    let error = open(&forged, &identities).unwrap_err();
    assert!(matches!(error, OpenError::Value { .. }), "{error:?}");
}
