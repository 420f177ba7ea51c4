//! What keeps published triggers from working, for `server check`.

use std::process::Stdio;
use std::time::Duration;

use homestak_api::limit::output;
use homestak_api::publication::Published;

use super::git::LIST_MEMORY;
use super::target::Triggers;
use crate::process::limited_git;

/// How long git may take to print its version.
const TIME: Duration = Duration::from_secs(10);

/// Returns why triggers that were published would not start runs, a line each. With `is_local`, the
/// server runs on this machine, and its programs are tried. It waits for them.
pub fn trigger_problems(published: &Published, is_local: bool) -> Vec<String> {
    let triggers = Triggers::read(published);
    let mut problems = Vec::new();
    for (name, hook) in &triggers.hooks {
        if hook.key.is_none() {
            problems.push(format!(
                "webhook `{name}`: no usable secret was published (`auth.webhooks.{name}` in secrets.yaml)"
            ));
        }
    }
    if is_local && !triggers.branches.is_empty() {
        problems.extend(git_problem().map(|why| format!("repositories cannot be checked: {why}")));
    }
    problems
}

fn git_problem() -> Option<String> {
    let mut command = limited_git(LIST_MEMORY, &[]);
    command
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    match output(&mut command, b"", TIME) {
        Ok(ended) if ended.status.success() => None,
        Ok(ended) => Some(super::git::not_run(&String::from_utf8_lossy(&ended.stderr))),
        Err(error) => Some(format!("cannot run git: {error}")),
    }
}
