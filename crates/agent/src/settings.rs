//! What the environment says.
//!
//! In: variables. Out: values.
//! Never: anything that a user needs: these are systemd's, and tests' in debug builds.

/// Returns where this program is. One that was replaced is where it was.
pub(crate) fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let text = path.to_string_lossy().into_owned();
    text.trim_end_matches(" (deleted)").to_owned()
}

/// Returns where systemd hears whether we are ready and alive.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where the environment is read"
)]
pub(crate) fn notify_socket() -> Option<String> {
    std::env::var("NOTIFY_SOCKET").ok()
}

/// Returns within which time systemd wants to hear that we are alive.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where the environment is read"
)]
pub(crate) fn watchdog() -> Option<std::time::Duration> {
    let micros = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    Some(std::time::Duration::from_micros(micros))
}

/// Returns after how many steps the program dies, so that tests can see what is left.
#[cfg(debug_assertions)]
#[expect(
    clippy::disallowed_methods,
    reason = "this is where the environment is read"
)]
pub(crate) fn crash_after() -> Option<usize> {
    std::env::var("HOMESTAK_CRASH_AFTER").ok()?.parse().ok()
}

/// Release builds never die on purpose.
#[cfg(not(debug_assertions))]
pub(crate) fn crash_after() -> Option<usize> {
    None
}
