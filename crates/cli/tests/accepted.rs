//! Documents that must be accepted: `tests/accepted/*.case`, and the manifests of the stock site.

mod case;

use std::path::Path;

use datatest_stable::Result;

fn accepted(path: &Path, text: String) -> Result<()> {
    case::Case::parse(&text, 0)?.check(path)
}

/// Manifests of the stock site are valid without any message.
fn stock(path: &Path, text: String) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let name = path.file_name().ok_or("a manifest has a name")?;
    fs_err::write(directory.path().join(name), text)?;
    let output = snapbox::cmd::Command::new(env!("CARGO_BIN_EXE_homestak"))
        .current_dir(directory.path())
        .env_clear()
        .env("HOME", directory.path())
        .args(["manifest", "validate", "--no-color", "--manifest-file"])
        .arg(name)
        .output()?;
    let stderr = String::from_utf8(output.stderr)?;
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    Ok(())
}

datatest_stable::harness! {
    { test = accepted, root = "tests/accepted", pattern = r"\.case$" },
    { test = stock, root = "../../stock-site/manifests", pattern = r"\.yaml$" },
}
