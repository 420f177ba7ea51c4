//! The environment of the program: variables, user, and its own path. Read only here.

use std::path::PathBuf;

use homestak_core::converge::AGENT;

use crate::error::AgentError;
use crate::ui;

/// Returns an error unless run as root.
pub(crate) fn require_root() -> Result<(), AgentError> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(AgentError::NotRoot)
    }
}

/// Returns the path of this program, also after it was replaced.
pub(crate) fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let text = path.to_string_lossy().into_owned();
    text.trim_end_matches(" (deleted)").to_owned()
}

/// The program that runs, to notice that it was replaced.
#[derive(PartialEq, Eq)]
pub(crate) struct RunningProgram {
    /// Its file as the kernel reports it, which changes when it is deleted.
    file: Option<PathBuf>,
    /// What services start.
    installed: Option<PathBuf>,
}

impl RunningProgram {
    /// Remembers the program that runs now.
    pub(crate) fn new() -> Self {
        Self {
            file: fs_err::read_link("/proc/self/exe").ok(),
            installed: fs_err::read_link(AGENT).ok(),
        }
    }

    /// Returns whether the program was deleted, or services start another one.
    pub(crate) fn is_replaced(&self) -> bool {
        self.file.is_some() && *self != Self::new()
    }
}

/// Returns the server that specs are fetched from.
pub(crate) fn server() -> Option<String> {
    variable("HOMESTAK_SERVER").or_else(|| older("HOMESTAK_SPEC_SERVER", "HOMESTAK_SERVER"))
}

/// Returns the name of this machine.
pub(crate) fn identity() -> Option<String> {
    variable("HOMESTAK_IDENTITY")
}

/// Returns the provisioning token.
pub(crate) fn token() -> Option<String> {
    variable("HOMESTAK_TOKEN").or_else(|| older("HOMESTAK_AUTH_TOKEN", "HOMESTAK_TOKEN"))
}

/// Returns the file with the CA certificate of the server.
pub(crate) fn ca_cert() -> Option<std::path::PathBuf> {
    variable("HOMESTAK_CA_CERT").map(Into::into)
}

/// Returns the fingerprint of the server's certificate.
pub(crate) fn fingerprint() -> Option<String> {
    variable("HOMESTAK_FINGERPRINT")
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is where the environment is read"
)]
fn variable(name: &str) -> Option<String> {
    // A value that is not UTF-8 does not count as unset; it is refused when it is parsed.
    let text = std::env::var_os(name)?.to_string_lossy().into_owned();
    Some(text).filter(|text| !text.is_empty())
}

/// Reads a variable of earlier versions.
fn older(name: &str, now: &str) -> Option<String> {
    let value = variable(name)?;
    ui::message(&format!("notice: {name} is an older name; use {now}"));
    Some(value)
}

/// Returns the log level, as a number of `-v`; `Err` with an unknown one.
pub(crate) fn log_level() -> Result<u8, String> {
    match variable("HOMESTAK_LOG").as_deref() {
        None | Some("error") => Ok(0),
        Some("info") => Ok(1),
        Some("debug") => Ok(2),
        Some("trace") => Ok(3),
        Some(other) => Err(other.to_owned()),
    }
}

/// Returns the stream that systemd connects to its journal.
pub(crate) fn journal_stream() -> Option<String> {
    variable("JOURNAL_STREAM")
}

/// Returns the user who ran `sudo`, or root.
pub(crate) fn caller() -> String {
    variable("SUDO_USER").unwrap_or_else(|| "root".to_owned())
}

/// Returns what notifies systemd.
pub(crate) fn notifier() -> homestak_api::systemd::Notifier {
    homestak_api::systemd::Notifier::new(variable("NOTIFY_SOCKET"), variable("WATCHDOG_USEC"))
}

/// Returns after how many steps the program aborts, for tests.
#[cfg(debug_assertions)]
pub(crate) fn crash_after() -> Option<usize> {
    let text = variable("HOMESTAK_CRASH_AFTER")?;
    Some(text.parse().expect("`HOMESTAK_CRASH_AFTER` is a number"))
}

/// Release builds never abort on purpose.
#[cfg(not(debug_assertions))]
pub(crate) fn crash_after() -> Option<usize> {
    None
}
