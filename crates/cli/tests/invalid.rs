//! Documents that must be refused, one case each, and the whole message an operator reads.
//!
//! Each `tests/invalid/*.case` is compared with its `.out`; `SNAPSHOTS=overwrite` writes new ones.

mod case;

use std::path::Path;

use datatest_stable::Result;

fn refused(path: &Path, text: String) -> Result<()> {
    case::Case::parse(&text, 1)?.check(path)
}

datatest_stable::harness! {
    { test = refused, root = "tests/invalid", pattern = r"\.case$" },
}
