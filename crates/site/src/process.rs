//! Runs git.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use homestak_api::limit;

/// Time limit for git.
const GIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs git in `directory` and returns its output when it succeeded.
#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
pub(crate) fn git(directory: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    // git gets only the environment variables that it needs.
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
    let output = limit::output(&mut git, b"", GIT_TIMEOUT).ok()?;
    output.status.success().then_some(output.stdout)
}
