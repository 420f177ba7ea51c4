//! The one place of this crate that starts processes: git, to ask what it tracks.
//!
//! In: a directory and arguments. Out: what git printed, or `None` when it could not say.
//! Never: a shell; arguments go as they are.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use homestak_api::limit;

/// How long git may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs git in `directory` and returns its output when it succeeded.
#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
pub(crate) fn git(directory: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    // Git needs its own settings, and nothing else of what this process was given.
    let needed = |name: &str| {
        ["PATH", "HOME", "XDG_CONFIG_HOME"].contains(&name) || name.starts_with("GIT_")
    };
    let environment = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(needed));
    let mut git = std::process::Command::new("git");
    git.env_clear()
        .envs(environment)
        .arg("-C")
        .arg(directory)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let output = limit::output(&mut git, b"", PATIENCE).ok()?;
    output.status.success().then_some(output.stdout)
}
