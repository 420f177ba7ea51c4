//! Merges flags, environment and defaults, in this order, into [`Settings`].
//!
//! The environment is read here only.

use std::path::PathBuf;
use std::sync::Arc;

use homestak_api::log::LogSettings;
use homestak_api::systemd::Notifier;
use homestak_core::doc::scalar::PublishTarget;
use homestak_core::doc::timeouts::{Limit, TimeoutError, Timeouts, seconds};
use homestak_driver::clock::ProgramClock;
use homestak_driver::hosts::KINDS;
use homestak_driver::secrets::KeySources;
use homestak_driver::settings::{DriverSettings, LOCAL_ROOT, VmEngine};
use homestak_driver::{DriverError, Session};
use homestak_site::Candidates;

use crate::args::GlobalArgs;
use crate::ui::{OutputOptions, Printer};

/// Every environment variable that is read, with its meaning. The reference page is generated from it.
pub const VARIABLES: &[(&str, &str)] = &[
    (
        "HOMESTAK_SITE_CONFIG",
        "Site directory, when `--site` is not given. It must exist.",
    ),
    (
        "HOMESTAK_ROOT",
        "Root directory of an installation: its site is `$HOMESTAK_ROOT/config`, its state directory `$HOMESTAK_ROOT/.state`.",
    ),
    (
        "HOMESTAK_STATE",
        "State directory, instead of `$HOMESTAK_ROOT/.state` or `~/.local/state/homestak`.",
    ),
    (
        "HOMESTAK_SIM_SPEED",
        "Speed of simulated time of `-H sim`, as a multiple of real time; default 20. Read when the simulator is started.",
    ),
    (
        "HOMESTAK_LOCAL_ROOT",
        "Directory of nodes and images of `-H local`, instead of `/var/lib/homestak`; nodes in different directories are independent.",
    ),
    (
        "HOMESTAK_VM_ENGINE",
        "What `vm` nodes of `-H local` run in, when `--vm-engine` is not given: `auto`, `qemu` or `container`.",
    ),
    (
        "HOMESTAK_FIRST_BOOT",
        "How nodes of `-H local` get their first-boot data: `direct` (written into containers; virtual machines are copies of a saved one and receive it through the guest agent) or `cloud-init` (as on Proxmox VE).",
    ),
    (
        "HOMESTAK_DEBIAN_MIRROR",
        "Mirror that images are built from, instead of the one apt uses on this machine. Optionally followed by a space and the mirror of security updates.",
    ),
    (
        "HOMESTAK_SSH_CONFIG",
        "Configuration file of `ssh` for `homestak ssh` and `homestak exec`, instead of your own (`~/.ssh/config`).",
    ),
    (
        "HOMESTAK_AGENT",
        "Path of the program `homestak-agent` that is installed on nodes; default: in the directory of `homestak`.",
    ),
    (
        "HOMESTAK_CONFIRM",
        "The time limit `confirm`, in seconds; `HOMESTAK_TIMEOUTS` takes precedence.",
    ),
    (
        "HOMESTAK_TIMEOUTS",
        "Time limits, such as `boot=600,lock=60`; they override those of the manifest, and `--timeout` overrides them. See [timeouts.md](timeouts.md).",
    ),
    (
        "HOMESTAK_SERVER",
        "URL of the server, instead of `server_url` in `site.yaml`: nodes that fetch their specs get it; `spec get` and `config fetch` query it.",
    ),
    (
        "HOMESTAK_PUBLISH_TO",
        "Directory that a permanent server reads, instead of `publish_to` in `site.yaml`: an absolute path, or `USER@HOST:PATH`. See [the server](../guides/server.md#a-permanent-server).",
    ),
    (
        "HOMESTAK_SPEC_SERVER",
        "Older name of `HOMESTAK_SERVER`, for `spec get` and `config fetch`.",
    ),
    (
        "HOMESTAK_IDENTITY",
        "Name of this machine, for `spec get` and `config fetch`; default: its host name.",
    ),
    (
        "HOMESTAK_TOKEN",
        "Provisioning token, for `spec get` and `config fetch`.",
    ),
    (
        "HOMESTAK_AUTH_TOKEN",
        "Older name of `HOMESTAK_TOKEN`, for `spec get` and `config fetch`.",
    ),
    (
        "HOMESTAK_FINGERPRINT",
        "SHA-256 of the certificate of the server or of its authority, for `spec get` and `config fetch`.",
    ),
    (
        "HOMESTAK_CA_CERT",
        "File with the CA certificate of the server (PEM), for `spec get` and `config fetch`.",
    ),
    (
        "HOMESTAK_LOG",
        "Log level of `homestak-agent`: `error`, `info`, `debug` or `trace`; `-v`, `-vv` and `-vvv` can raise it.",
    ),
    (
        "JOURNAL_STREAM",
        "Set by systemd for services that log to the journal; log lines then have a priority and no time.",
    ),
    (
        "NOTIFY_SOCKET",
        "Set by systemd for services that report their state; `homestak server` does.",
    ),
    (
        "WATCHDOG_USEC",
        "Set by systemd: how often `homestak server` must show that it works, in microseconds.",
    ),
    (
        "LISTEN_FDS",
        "Set by systemd for socket activation of `homestak server`.",
    ),
    ("NO_COLOR", "When set to anything, output has no colour."),
    ("SOPS_AGE_KEY", "Age identities that decrypt secrets."),
    (
        "SOPS_AGE_KEY_FILE",
        "File with age identities that decrypt secrets.",
    ),
    (
        "SOPS_AGE_KEY_CMD",
        "Command that prints age identities that decrypt secrets.",
    ),
    (
        "XDG_CONFIG_HOME",
        "Directory of `sops/age/keys.txt`, instead of `~/.config`.",
    ),
    (
        "XDG_STATE_HOME",
        "Parent directory of the state directory `homestak`, instead of `~/.local/state`.",
    ),
    ("VISUAL", "Editor of `homestak secrets edit`."),
    (
        "EDITOR",
        "Editor of `homestak secrets edit`, when `VISUAL` is not set.",
    ),
    (
        "SUDO_UID",
        "User who called sudo (set by sudo); root may use sites that belong to this user.",
    ),
    ("TERM", "Terminal type, passed on by `homestak console`."),
    ("HOME", "Home directory."),
    (
        "USER",
        "User name in exports with `--compat legacy`, if neither host nor site set one.",
    ),
];

/// Speed of simulated time of `-H sim`: a machine boots in two seconds.
const SIM_SPEED: f64 = 20.0;

/// Everything that flags and environment set.
pub struct Settings {
    /// Settings of the driver.
    pub driver: DriverSettings,
    /// Format, colour and amount of output.
    pub output: OutputOptions,
    /// Where the log goes.
    pub log: LogSettings,
    /// Address of the server, from the environment.
    pub server: Option<String>,
    /// The person's home directory.
    pub home: PathBuf,
    /// The person's name.
    pub user: String,
    /// The person's editor.
    pub editor: String,
    /// Kind of terminal.
    pub terminal: String,
    /// Notifies systemd when this is a service.
    pub notifier: Notifier,
}

impl Settings {
    /// Merges flags and environment. An invalid value is an error, never replaced by a default.
    pub(crate) fn from_environment(flags: &GlobalArgs) -> Result<Self, DriverError> {
        if let Some((name, _)) = VARIABLES.iter().find(|(name, _)| !is_text(name)) {
            return Err(DriverError::usage(format!("`{name}` is not UTF-8 text.")));
        }
        let path = |name| variable(name).map(PathBuf::from);
        let home = path("HOME").unwrap_or_else(|| PathBuf::from("/"));
        let root = path("HOMESTAK_ROOT");
        let state = path("HOMESTAK_STATE")
            .or_else(|| root.as_ref().map(|root| root.join(".state")))
            .or_else(|| path("XDG_STATE_HOME").map(|state| state.join("homestak")))
            .unwrap_or_else(|| home.join(".local/state/homestak"));
        let program =
            std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/local/bin/homestak"));
        let is_own = path("HOMESTAK_STATE").is_some() || root.is_some();
        let [run_directory, log_directory] =
            server_directories(rustix::process::geteuid().is_root(), is_own);
        let driver = DriverSettings {
            kinds: KINDS.to_vec(),
            candidates: Candidates {
                flag: flags.site.clone(),
                site_config: path("HOMESTAK_SITE_CONFIG"),
                root,
                working_directory: std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
                system_root: PathBuf::from("/"),
                owners: site_owners(),
            },
            run_directory,
            log_directory,
            server: variable("HOMESTAK_SERVER"),
            publish_to: read(
                "HOMESTAK_PUBLISH_TO",
                "an absolute path, or `USER@HOST:PATH`",
                PublishTarget::new,
            )?,
            state,
            agent: path("HOMESTAK_AGENT")
                .unwrap_or_else(|| program.with_file_name("homestak-agent")),
            program,
            timeouts: timeouts(flags)?,
            local_root: path("HOMESTAK_LOCAL_ROOT").unwrap_or_else(|| PathBuf::from(LOCAL_ROOT)),
            vm_engine: one_of(
                "HOMESTAK_VM_ENGINE",
                &[
                    ("auto", VmEngine::Auto),
                    ("qemu", VmEngine::Qemu),
                    ("container", VmEngine::Container),
                ],
            )?,
            cloud_init: one_of(
                "HOMESTAK_FIRST_BOOT",
                &[("direct", false), ("cloud-init", true)],
            )?,
            ssh_config: path("HOMESTAK_SSH_CONFIG"),
            sim_speed: speed("HOMESTAK_SIM_SPEED")?.unwrap_or(SIM_SPEED),
            debian_mirror: read(
                "HOMESTAK_DEBIAN_MIRROR",
                "the URL of a mirror, optionally followed by a space and that of its security updates",
                mirrors,
            )?,
            keys: KeySources::new(&variable),
            time: time()?,
            #[cfg(debug_assertions)]
            crash_at: read("HOMESTAK_CRASH_AT", "a number", |text| text.parse().ok())?,
        };
        Ok(Self {
            driver,
            output: OutputOptions::new(flags),
            log: LogSettings {
                verbose: flags.verbose,
                file: flags.log_file.clone(),
                journal_stream: variable("JOURNAL_STREAM"),
            },
            server: variable("HOMESTAK_SERVER"),
            home,
            user: variable("USER").unwrap_or_else(|| "root".into()),
            editor: variable("VISUAL")
                .or_else(|| variable("EDITOR"))
                .unwrap_or_else(|| "vi".into()),
            terminal: variable("TERM").unwrap_or_else(|| "dumb".into()),
            notifier: Notifier::new(variable("NOTIFY_SOCKET"), variable("WATCHDOG_USEC")),
        })
    }

    /// Opens the site; notices are printed.
    pub(crate) fn session(&self) -> Result<Session, DriverError> {
        Session::open(&self.driver, Arc::new(Printer::new(self.output)))
    }
}

/// Returns the directories of the process id and of the log of a server, when they are not the state
/// directory. Root's server is the machine's; a state directory that was chosen keeps everything
/// together.
fn server_directories(is_root: bool, is_own: bool) -> [Option<PathBuf>; 2] {
    let is_system = is_root && !is_own;
    let directories = ["/var/run/homestak", "/var/log/homestak"];
    directories.map(|directory| is_system.then(|| PathBuf::from(directory)))
}

/// Reads a variable; an invalid value is an error that names the valid ones.
fn read<T>(
    name: &str,
    must_be: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, DriverError> {
    let Some(text) = variable(name) else {
        return Ok(None);
    };
    parse(&text).map(Some).ok_or_else(|| {
        DriverError::usage(format!(
            "`{name}` cannot be `{text}`: it must be {must_be}."
        ))
    })
}

/// Reads a variable that has one of these values, or the first when it is not set.
fn one_of<T: Copy>(name: &str, values: &[(&str, T)]) -> Result<T, DriverError> {
    let all: Vec<String> = values
        .iter()
        .map(|(value, _)| format!("`{value}`"))
        .collect();
    let must_be = format!("one of {}", all.join(", "));
    let parse = |text: &str| values.iter().find(|(value, _)| *value == text);
    let found = read(name, &must_be, |text| parse(text).map(|(_, value)| *value))?;
    Ok(found.unwrap_or(values[0].1))
}

/// Reads how many times faster time goes.
fn speed(name: &str) -> Result<Option<f64>, DriverError> {
    read(name, "a number above 0", |text| {
        let speed = text.parse().ok();
        speed.filter(|speed: &f64| speed.is_finite() && *speed > 0.0)
    })
}

/// Takes one address or two.
fn mirrors(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_good = matches!(words.len(), 1 | 2) && words.iter().all(|word| word.contains(':'));
    is_good.then(|| text.to_owned())
}

/// Merges the time limits of the environment with those of flags.
fn timeouts(flags: &GlobalArgs) -> Result<Timeouts, DriverError> {
    let wrong = |name: &str, error: &TimeoutError| {
        DriverError::usage(format!("`{name}` cannot be used: {error}."))
    };
    let mut all = Timeouts::default();
    if let Some(text) = variable("HOMESTAK_CONFIRM") {
        let set = seconds(Limit::Confirm, &text).and_then(|n| all.set(Limit::Confirm, n));
        set.map_err(|error| wrong("HOMESTAK_CONFIRM", &error))?;
    }
    if let Some(text) = variable("HOMESTAK_TIMEOUTS") {
        let set = Timeouts::parse(&text).map_err(|error| wrong("HOMESTAK_TIMEOUTS", &error))?;
        all = all.with(&set);
    }
    Ok(flags.timeout.iter().fold(all, |all, set| all.with(set)))
}

/// Returns the clock. Only tests let it go faster.
fn time() -> Result<ProgramClock, DriverError> {
    #[cfg(debug_assertions)]
    if let Some(speed) = speed("HOMESTAK_HURRY")? {
        return Ok(ProgramClock::accelerated(speed));
    }
    Ok(ProgramClock::wall())
}

/// Returns whether a variable can be read, set or not.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the environment"
)]
fn is_text(name: &str) -> bool {
    std::env::var_os(name).is_none_or(|value| value.to_str().is_some())
}

/// Reads one variable; empty counts as not set.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the environment"
)]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the users whose sites are used without being named.
fn site_owners() -> Vec<u32> {
    let own = rustix::process::geteuid().as_raw();
    let caller = variable("SUDO_UID").filter(|_| own == 0);
    let caller = caller.and_then(|user| user.parse().ok());
    [own, 0].into_iter().chain(caller).collect()
}

#[cfg(test)]
mod tests {
    use homestak_core::doc::scalar::SiteId;
    use homestak_driver::server::ServerFiles;

    use super::*;

    #[test]
    fn the_server_of_root_has_its_process_id_and_log_where_those_of_a_system_are() {
        let mut driver = Settings::from_environment(&GlobalArgs::default())
            .unwrap()
            .driver;
        driver.state = PathBuf::from("/state");
        let site = SiteId::from_random([7; 16]);
        let mut files = |is_root, is_own, port| {
            [driver.run_directory, driver.log_directory] = server_directories(is_root, is_own);
            let files = ServerFiles::new(&driver, &site, port);
            [files.pid, files.log].map(|path| path.display().to_string())
        };
        assert_eq!(
            files(true, false, 44443),
            [
                "/var/run/homestak/server.pid",
                "/var/log/homestak/server.log"
            ]
        );
        assert_eq!(
            files(true, false, 8443),
            [
                "/var/run/homestak/server-8443.pid",
                "/var/log/homestak/server-8443.log"
            ]
        );
        for (is_root, is_own) in [(true, true), (false, false)] {
            let own = files(is_root, is_own, 8443);
            assert_eq!(own, ["/state/server-8443.pid", "/state/server-8443.log"]);
        }
    }
}
