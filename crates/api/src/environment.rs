//! The environment of child processes: empty, plus the variables that a kind of program needs.
//!
//! Other variables of this process, such as a key for secrets, would be readable in `/proc` while
//! the child runs.

use std::process::Command;

/// Variables for every program. A name that ends in `*` is a prefix.
const ALWAYS: &[&str] = &[
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TERM", "TZ", "TMPDIR",
];
/// Additional variables for programs that download.
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
/// Additional variables for `ssh`: the user's agent and passphrase prompts.
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
/// Additional variables for programs on the user's desktop.
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

/// Clears the environment of a command except for the variables of every program and `more`. Call
/// it before setting variables on the command: it removes them too.
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
