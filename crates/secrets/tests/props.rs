//! Properties: every document survives encrypting and decrypting, and every change to an encrypted one is
//! detected.

mod listing;

use std::sync::LazyLock;

use homestak_core::doc::emit::emit;
use homestak_core::doc::tree::NO_SPAN;
use homestak_core::doc::{Data, Entry, Key, Scalar, Value};
use homestak_secrets::*;
use proptest::prelude::*;

const NOW: &str = "2026-01-31T12:00:00Z";

static KEYS: LazyLock<(Identities, Recipient)> = LazyLock::new(|| {
    let pair = keygen(NOW);
    let identities = Identities::parse(pair.file.expose());
    (identities.expect("a generated key parses"), pair.recipient)
});

fn sealed(plain: &str, previous: Option<Previous<'_>>) -> Result<String, SealError> {
    seal(
        plain,
        &Sealing {
            recipients: std::slice::from_ref(&KEYS.1),
            rules: &Rules::default(),
            now: NOW,
            previous,
        },
    )
}

fn bare(data: Data) -> Value {
    Value {
        span: NO_SPAN,
        data,
    }
}

fn plain(text: impl ToString) -> Value {
    bare(Data::Scalar(Scalar::plain(text.to_string())))
}

fn text(text: impl Into<String>) -> Value {
    bare(Data::Scalar(Scalar::text(text)))
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(plain),
        (-1e12..1e12f64).prop_map(|number| plain(format!("{number:?}"))),
        any::<bool>().prop_map(plain),
        Just("null").prop_map(plain),
        Just("").prop_map(text),
        "[ -~]{0,20}".prop_map(text),
        "\\PC{0,12}".prop_map(text),
        "([ -~]{0,12}\n){1,4}[ -~]{0,8}".prop_map(text),
        "(#|- |: |[|>]|&a|\\*a|[0-9]{1,5}|ENC\\[x\\])[a-z#:,\\[\\]{} ]{0,6}".prop_map(text),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(|items| bare(Data::Seq(items))),
            mapping(inner),
        ]
    })
}

fn mapping(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    let key = "[a-z]{1,6}(_unencrypted)?|[ -~]{1,8}";
    prop::collection::btree_map(key, inner, 1..5).prop_map(|map| {
        let entries = map
            .into_iter()
            .filter(|(key, _)| key != "<<" && key != "sops")
            .map(|(key, value)| Entry {
                key: Key::bare(key),
                value,
            });
        bare(Data::Map(entries.collect()))
    })
}

fn document() -> impl Strategy<Value = String> {
    mapping(value())
        .prop_map(|root| emit(&root))
        .prop_filter("an empty document", |text| text != "{}\n")
}

/// Adds comments to and between lines of an emitted document.
fn commented(plain: &str, every: usize) -> String {
    let mut out = String::from("# first\n");
    for (nth, line) in plain.lines().enumerate() {
        out.push_str(line);
        if nth % every == 0 {
            out.push_str(" # behind");
        }
        out.push('\n');
        if nth % (every + 1) == 0 {
            let indent = line.len() - line.trim_start().len();
            out.extend(std::iter::repeat_n(' ', indent));
            out.push_str("# between\n");
        }
    }
    out
}

/// Returns the ciphertexts of an encrypted document.
fn ciphertexts(sealed: &str) -> Vec<&str> {
    sealed
        .split_inclusive(']')
        .filter_map(|part| part.find("ENC[").map(|at| &part[at..]))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sealing_then_opening_gives_the_same_document(plain in document(), every in 1usize..4) {
        for plain in [plain.clone(), commented(&plain, every)] {
            let sealed = sealed(&plain, None).unwrap();
            let opened = open(&sealed, &KEYS.0).unwrap();
            prop_assert_eq!(listing::listing(opened.expose()), listing::listing(&plain), "{}", sealed);
            let count = |text: &str| text.matches("# between").count() + text.matches("# behind").count();
            prop_assert_eq!(count(opened.expose()), count(&plain), "{}", opened.expose());
        }
    }

    #[test]
    fn sealing_again_keeps_unchanged_ciphertexts(plain in document()) {
        let first = sealed(&plain, None).unwrap();
        let opened = open(&first, &KEYS.0).unwrap();
        let previous = Previous { text: &first, identities: &KEYS.0 };
        prop_assert_eq!(&sealed(opened.expose(), Some(previous)).unwrap(), &first);
        let longer = format!("{}zzz_new: 1\n", opened.expose());
        let second = sealed(&longer, Some(previous)).unwrap();
        let data = |text: &str| text.split("\nsops:\n").next().map(str::to_owned);
        let (before, after) = (data(&first).unwrap(), data(&second).unwrap());
        prop_assert!(after.starts_with(&before), "{}\n{}", before, after);
    }

    #[test]
    fn a_changed_byte_is_detected(plain in document(), pick in any::<prop::sample::Index>()) {
        let sealed = sealed(&plain, None).unwrap();
        let spots: Vec<usize> = ciphertexts(&sealed)
            .iter()
            .flat_map(|part| {
                let start = part.as_ptr() as usize - sealed.as_ptr() as usize;
                start + "ENC[AES256_GCM,data:".len()..start + part.len() - "type:x]".len()
            })
            .filter(|at| sealed.as_bytes()[*at].is_ascii_alphanumeric())
            .collect();
        let at = *pick.get(&spots);
        let old = sealed.as_bytes()[at];
        let new = if old == b'A' { b'B' } else { b'A' };
        let mut bytes = sealed.clone().into_bytes();
        bytes[at] = new;
        let tampered = String::from_utf8(bytes).unwrap();
        prop_assert!(open(&tampered, &KEYS.0).is_err(), "{}", tampered);
    }

    #[test]
    fn a_removed_or_moved_entry_is_detected(values in prop::collection::vec("[a-z]{1,8}", 2..6), pick in any::<prop::sample::Index>()) {
        let lines = |nth: usize| format!("k{nth}: {}x{nth}\n", values[nth]);
        let plain: String = (0..values.len()).map(lines).collect();
        let sealed = sealed(&plain, None).unwrap();
        let all: Vec<&str> = sealed.lines().collect();
        let gone = pick.index(values.len());
        let mut fewer = all.clone();
        fewer.remove(gone);
        let outcome = open(&fewer.join("\n"), &KEYS.0);
        prop_assert!(matches!(outcome, Err(OpenError::MacMismatch)));
        let other = (gone + 1) % values.len();
        let mut swapped = all.clone();
        swapped.swap(gone, other);
        let outcome = open(&swapped.join("\n"), &KEYS.0);
        prop_assert!(matches!(outcome, Err(OpenError::MacMismatch)));
        let exchanged: Vec<String> = all
            .iter()
            .enumerate()
            .map(|(nth, line)| {
                let from = |at: usize| all[at].split_once(": ").unwrap().1;
                match nth {
                    nth if nth == gone => format!("k{gone}: {}", from(other)),
                    nth if nth == other => format!("k{other}: {}", from(gone)),
                    _ => (*line).to_owned(),
                }
            })
            .collect();
        let moved = matches!(open(&exchanged.join("\n"), &KEYS.0), Err(OpenError::Value { .. }));
        prop_assert!(moved);
    }

    #[test]
    fn an_edited_plain_value_is_detected(value in "[a-z]{1,8}") {
        let sealed = sealed(&format!("a: x\nb_unencrypted: {value}q\n"), None).unwrap();
        // The whole line: the same letters may end a line of the wrapped key.
        let line = |last: char| format!("b_unencrypted: {value}{last}\n");
        let edited = sealed.replace(&line('q'), &line('r'));
        let outcome = open(&edited, &KEYS.0);
        prop_assert!(matches!(outcome, Err(OpenError::MacMismatch)));
    }

    #[test]
    fn no_text_causes_a_panic(text in "([ -~\n]{0,40}|(a|b|- |  |: |# x|\\||>|\n|\"|'|\\[|\\{|,|\\]|\\}|é|!!str |&a |\\*a |<<){0,24})") {
        if let Ok(sealed) = sealed(&text, None) {
            prop_assert!(open(&sealed, &KEYS.0).is_ok());
        }
        prop_assert!(open(&text, &KEYS.0).is_err());
    }
}
