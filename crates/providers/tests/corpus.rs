//! Replays stored fuzzer inputs: `fuzz/corpus/TARGET/*` and `fuzz/regressions/TARGET/*`.

use std::path::Path;

#[path = "../../../fuzz/src/answers.rs"]
#[expect(
    unreachable_pub,
    reason = "the file is shared with the fuzzer's targets"
)]
mod answers;

#[test]
fn stored_responses_cause_no_panic() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let mut broken = Vec::new();
    for target in answers::TARGETS {
        let mut n_files = 0;
        for folder in ["corpus", "regressions"] {
            let Ok(files) = fs_err::read_dir(fuzz.join(folder).join(target)) else {
                continue;
            };
            for file in files {
                let path = file.unwrap().path();
                let bytes = fs_err::read(&path).unwrap();
                let tried = std::panic::catch_unwind(|| answers::run(target, &bytes));
                if tried.is_err() {
                    broken.push(path);
                }
                n_files += 1;
            }
        }
        assert!(n_files > 0, "`{target}` has no stored inputs");
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
