//! Replays the stored inputs of the fuzzer for requests, tokens, certificates and statements, and
//! tries random ones.

use std::path::Path;

use proptest::prelude::*;

#[path = "../../../fuzz/src/requests.rs"]
#[expect(
    unreachable_pub,
    reason = "the file is shared with the fuzzer's targets"
)]
mod requests;

#[test]
fn no_stored_input_breaks_anything() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    for target in requests::TARGETS {
        let mut n_files = 0;
        for folder in ["corpus", "regressions"] {
            let Ok(files) = fs_err::read_dir(fuzz.join(folder).join(target)) else {
                continue;
            };
            for file in files {
                let path = file.expect("an entry").path();
                let bytes = fs_err::read(&path).expect("read");
                let tried = std::panic::catch_unwind(|| requests::run(target, &bytes));
                assert!(tried.is_ok(), "{}", path.display());
                n_files += 1;
            }
        }
        assert!(n_files > 0, "`{target}` has no stored inputs");
    }
}

/// Parts of paths, so that endpoints are found.
fn path() -> impl Strategy<Value = String> {
    let method = prop_oneof![
        Just("GET"),
        Just("HEAD"),
        Just("POST"),
        Just("get"),
        Just("")
    ];
    let word = prop_oneof![
        Just("v1".to_owned()),
        Just("spec".to_owned()),
        Just("health".to_owned()),
        Just("nodes".to_owned()),
        Just("reports".to_owned()),
        Just("tokens".to_owned()),
        Just("revoke".to_owned()),
        Just("..".to_owned()),
        Just(String::new()),
        "[a-z%.]{0,8}",
        any::<String>(),
    ];
    let words = prop::collection::vec(word, 0..6);
    (method, words).prop_map(|(method, words)| format!("{method} /{}", words.join("/")))
}

/// Bodies that are nearly right.
fn body() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        Just("node"),
        Just("uuid"),
        Just("public_key"),
        Just("agent"),
        Just("run"),
        Just("state"),
        Just("generation"),
        Just("drift"),
        Just("reason"),
        Just("later"),
    ];
    let value = prop_oneof![
        Just("\"converged\"".to_owned()),
        Just("null".to_owned()),
        Just("[]".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<String>().prop_map(|text| format!("{text:?}")),
    ];
    let entries = prop::collection::vec((key, value), 0..8);
    entries.prop_map(|entries| {
        let entries: Vec<String> = entries
            .iter()
            .map(|(key, value)| format!("\"{key}\":{value}"))
            .collect();
        format!("{{{}}}", entries.join(","))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_path_has_one_spelling_whatever_it_contains(text in path()) {
        requests::run("path", text.as_bytes());
    }

    #[test]
    fn a_body_is_read_back_or_refused(text in body(), bytes in any::<Vec<u8>>()) {
        requests::run("body", text.as_bytes());
        requests::run("body", &bytes);
    }

    #[test]
    fn a_minted_token_is_valid_and_with_any_bit_changed_it_is_not(text in any::<String>()) {
        requests::run("provisioning", text.as_bytes());
    }

    #[test]
    fn certificates_and_keys_are_read_or_refused(text in "[ -~\n]{0,120}") {
        requests::run("certificate", text.as_bytes());
    }

    #[test]
    fn a_statement_is_valid_as_it_was_signed_only(text in any::<String>()) {
        requests::run("statement", text.as_bytes());
    }
}
