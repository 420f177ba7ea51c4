#![no_main]
//! Diagnostics of arbitrary manifests, rendered as the command line renders them.

use homestak_core::doc::DocumentKind;

#[path = "../../crates/cli/src/ui/diagnostic.rs"]
mod diagnostic;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    homestak_fuzz::check_document(DocumentKind::Manifest, bytes, &|fault, sources| {
        diagnostic::render(fault, sources);
    });
});
