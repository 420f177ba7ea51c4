//! The environment: variables, none of which is read anywhere else, and as whom and from where the
//! program runs.

use crate::error::AgentError;

/// Returns an error unless root runs the program.
pub(crate) fn require_root() -> Result<(), AgentError> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(AgentError::NotRoot)
    }
}

/// Returns where this program is. One that was replaced is where it was.
pub(crate) fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let text = path.to_string_lossy().into_owned();
    text.trim_end_matches(" (deleted)").to_owned()
}

/// Returns which server is asked for specs.
pub(crate) fn server() -> Option<String> {
    variable("HOMESTAK_SERVER")
}

/// Returns the provisioning token.
pub(crate) fn token() -> Option<String> {
    variable("HOMESTAK_TOKEN")
}

/// Returns the file with the authority of the server.
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
    // What is no text is not taken for unset: whoever reads the value refuses it.
    let text = std::env::var_os(name)?.to_string_lossy().into_owned();
    Some(text).filter(|text| !text.is_empty())
}

/// Returns the user who has become root, or root.
pub(crate) fn caller() -> String {
    variable("SUDO_USER").unwrap_or_else(|| "root".to_owned())
}

/// Returns where systemd hears whether we are ready and alive.
pub(crate) fn notify_socket() -> Option<String> {
    variable("NOTIFY_SOCKET")
}

/// Returns within which time systemd wants to hear that we are alive.
pub(crate) fn watchdog() -> Option<std::time::Duration> {
    let micros = variable("WATCHDOG_USEC")?.parse().ok()?;
    Some(std::time::Duration::from_micros(micros))
}

/// Returns after how many steps the program dies, so that tests can see what is left.
#[cfg(debug_assertions)]
pub(crate) fn crash_after() -> Option<usize> {
    let text = variable("HOMESTAK_CRASH_AFTER")?;
    Some(text.parse().expect("`HOMESTAK_CRASH_AFTER` is a number"))
}

/// Release builds never die on purpose.
#[cfg(not(debug_assertions))]
pub(crate) fn crash_after() -> Option<usize> {
    None
}
