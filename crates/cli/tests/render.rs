//! Renders every diagnostic of the stored fuzzer inputs: layout must not fail on odd text.
//!
//! Uses `fuzz/corpus/*` and `fuzz/regressions/*` of the targets that are documents.

use std::path::Path;

use homestak_core::doc::DocumentKind;

#[path = "../../../fuzz/src/lib.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "the file is a crate of its own for the fuzzer"
)]
mod bodies;
#[path = "../src/ui/diagnostic.rs"]
mod diagnostic;

#[test]
fn every_diagnostic_of_stored_fuzzer_inputs_can_be_rendered() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    for kind in DocumentKind::ALL {
        for folder in ["corpus", "regressions"] {
            for target in [kind.name(), "render"] {
                let Ok(files) = fs_err::read_dir(fuzz.join(folder).join(target)) else {
                    continue;
                };
                for file in files {
                    let path = file.unwrap().path();
                    let bytes = fs_err::read(&path).unwrap();
                    let tried = std::panic::catch_unwind(|| {
                        bodies::check_document(*kind, &bytes, &|fault, sources| {
                            assert!(diagnostic::render(fault, sources).contains(fault.code.id()));
                        });
                    });
                    assert!(tried.is_ok(), "{}", path.display());
                }
            }
        }
    }
}
