//! The environment of the program: variables, user, and its own path. Read only here.

use crate::error::AgentError;

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

/// Returns the server that specs are fetched from.
pub(crate) fn server() -> Option<String> {
    variable("HOMESTAK_SERVER")
}

/// Returns the provisioning token.
pub(crate) fn token() -> Option<String> {
    variable("HOMESTAK_TOKEN")
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

/// Returns the socket for notifications to systemd.
pub(crate) fn notify_socket() -> Option<String> {
    variable("NOTIFY_SOCKET")
}

/// Returns the interval of systemd's watchdog.
pub(crate) fn watchdog() -> Option<std::time::Duration> {
    let micros = variable("WATCHDOG_USEC")?.parse().ok()?;
    Some(std::time::Duration::from_micros(micros))
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
