//! Documents that must be accepted as they stand.
//!
//! In: `tests/accepted/*.case`, and the manifests of the stock site. Out: exit code 0 for each.
//! Never: a fault in a document that earlier versions or our own examples write.

mod case;

use std::path::Path;

use datatest_stable::Result;

fn accepted(path: &Path, text: String) -> Result<()> {
    case::Case::parse(&text, 0)?.check(path)
}

datatest_stable::harness! {
    { test = accepted, root = "tests/accepted", pattern = r"\.case$" },
}
