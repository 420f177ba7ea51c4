//! The environment of child processes: empty, plus the variables that a kind of program needs.
//!
//! What else is in the environment of this process, such as a key that opens secrets, would be
//! readable in `/proc` for as long as the child runs.

use std::process::Command;

/// What every program may have. A name that ends in `*` stands for all that begin so.
const ALWAYS: &[&str] = &[
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TERM", "TZ", "TMPDIR",
];
/// What programs that fetch something need in addition.
pub const PROXIES: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];
/// What `ssh` needs in addition: the user's agent and a way to ask for a passphrase.
pub const SSH: &[&str] = &[
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "SSH_ASKPASS",
    "SSH_ASKPASS_REQUIRE",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
];
/// What programs on the user's desktop need in addition.
pub const DESKTOP: &[&str] = &[
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_*",
    "DBUS_SESSION_BUS_ADDRESS",
    "COLORTERM",
    "EDITOR",
    "VISUAL",
    "VIMINIT",
];

/// Leaves a command nothing of this process's environment but what every program may have, and
/// `more`. Call it before variables are set on the command: it removes them too.
pub fn clean(command: &mut Command, more: &[&str]) {
    command.env_clear();
    let listed = |name: &str| {
        let mut patterns = ALWAYS.iter().chain(more);
        patterns.any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => *pattern == name,
        })
    };
    let all = std::env::vars_os();
    command.envs(all.filter(|(name, _)| name.to_str().is_some_and(listed)));
}
