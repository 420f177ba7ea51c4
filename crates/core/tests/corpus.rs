//! Replays the stored fuzzer inputs in `fuzz/corpus/TARGET` and `fuzz/regressions/TARGET`.

use std::path::Path;

#[path = "../../../fuzz/src/lib.rs"]
#[expect(
    unreachable_pub,
    reason = "the file is a crate of its own for the fuzzer"
)]
mod bodies;

#[test]
fn no_stored_input_breaks_anything() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    for target in bodies::TARGETS {
        let mut n_files = 0;
        for folder in ["corpus", "regressions"] {
            let Ok(files) = fs_err::read_dir(fuzz.join(folder).join(target)) else {
                continue;
            };
            for file in files {
                let path = file.unwrap().path();
                let bytes = fs_err::read(&path).unwrap();
                let tried = std::panic::catch_unwind(|| bodies::run(target, &bytes));
                assert!(tried.is_ok(), "{}", path.display());
                n_files += 1;
            }
        }
        assert!(n_files > 0, "`{target}` has no stored inputs");
    }
}
