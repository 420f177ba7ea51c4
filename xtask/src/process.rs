//! Runs `cargo metadata` and `rustc`; the only place in xtask that starts other programs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value as Json;

/// Returns the workspace's own packages.
pub(crate) fn own_packages(root: &Path) -> Result<Json> {
    metadata(root, &["--no-deps"])
}

/// Returns every package that is built on this platform. Packages of other platforms are left out,
/// because cargo would have to download them.
pub(crate) fn all_packages(root: &Path) -> Result<Json> {
    let version = output(command("rustc").arg("-vV").current_dir(root))?;
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("`rustc -vV` names no host")?;
    metadata(root, &["--locked", "--filter-platform", host])
}

fn metadata(root: &Path, options: &[&str]) -> Result<Json> {
    let text = output(
        command(env!("CARGO"))
            .args(["metadata", "--format-version", "1"])
            .args(options)
            .current_dir(root),
    )?;
    serde_json::from_str(&text).context("read the output of `cargo metadata`")
}

fn output(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed:\n{}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("{command:?} printed no text"))
}

#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
fn command(program: &str) -> Command {
    Command::new(program)
}
