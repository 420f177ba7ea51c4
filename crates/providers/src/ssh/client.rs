//! Runs commands on nodes with the system's `ssh`, so that the user's configuration applies.
//! Unknown host keys are rejected, and there are no prompts in batch mode.

use std::ffi::OsString;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::Duration;

use homestak_api::limit::{Limit, each_line};
use homestak_core::doc::timeouts;

use super::error::SshError;
use super::keyring::Keyring;
use super::{multiplex, process};

/// Interval of keepalive messages, in seconds.
const KEEPALIVE_INTERVAL: u32 = 5;
/// How many keepalive messages may remain unanswered.
const MAX_UNANSWERED: u32 = 3;
/// How long a connection is kept for the next command, in seconds.
const PERSIST: u32 = 60;
/// The most output of a command that [`Ssh::run`] accepts, in bytes for each of stdout and stderr. An
/// agent prints far less, and a driver with many nodes has memory for it.
pub const MAX_OUTPUT: usize = 16 << 20;
/// The longest line, in bytes. A longer one is split.
const MAX_LINE: u64 = 1 << 20;
/// How long [`Ssh::run`] waits for a command, unless its caller sets another time. Creating guests
/// inside a node is one command, which may take long.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3_600);
/// The exit code of `ssh` when it fails itself. A command can have the same one.
const SSH_FAILED: i32 = 255;

/// Which host keys are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKeyPolicy {
    /// Only the key that was created for the guest.
    Pinned,
    /// The key that the user has confirmed once.
    Ask,
    /// The key in the user's own known-hosts files; the user's own keys are used too.
    User,
}

/// A connection to a node.
#[derive(Clone, Debug)]
pub struct Ssh {
    keyring: Keyring,
    address: String,
    user: String,
    alias: String,
    host_keys: HostKeyPolicy,
    config: Option<PathBuf>,
    port: Option<u16>,
    /// Whether commands share one connection.
    shared: bool,
    /// Timeout for establishing a connection.
    connect_timeout: Duration,
    /// Timeout of a command whose output is returned at its end.
    timeout: Duration,
}

/// What a command printed, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit code.
    pub status: i32,
    /// What it printed on stdout.
    pub stdout: Vec<u8>,
    /// What it printed on stderr.
    pub stderr: Vec<u8>,
}

/// An output stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Ssh {
    /// Describes the connection to a node as a user; the first command establishes it. `alias` is the
    /// name of the node's host key in `known_hosts`: the UUID of its guest.
    pub fn to(keyring: &Keyring, address: IpAddr, user: &str, alias: &str) -> Self {
        Self {
            keyring: keyring.clone(),
            address: address.to_string(),
            user: user.to_owned(),
            alias: alias.to_owned(),
            host_keys: HostKeyPolicy::Pinned,
            config: None,
            port: None,
            shared: true,
            connect_timeout: Duration::from_secs(timeouts::Limit::Ssh.default_seconds()),
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Describes the connection to a machine that is not a node. It is established with the user's own
    /// keys and known hosts, as by `ssh USER@HOST`, but without prompts.
    pub fn to_machine(keyring: &Keyring, host: &str, user: &str) -> Self {
        Self {
            keyring: keyring.clone(),
            address: host.to_owned(),
            user: user.to_owned(),
            alias: format!("machine {host}"),
            host_keys: HostKeyPolicy::User,
            config: None,
            port: None,
            shared: true,
            connect_timeout: Duration::from_secs(timeouts::Limit::Ssh.default_seconds()),
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Uses another port.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = Some(port).filter(|port| *port != 22);
        self
    }

    /// Uses a new connection, to verify that the node still accepts one.
    #[must_use]
    pub fn unshared(mut self) -> Self {
        self.shared = false;
        self
    }

    /// Sets the timeout for establishing a connection.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets which host keys are accepted.
    #[must_use]
    pub fn with_host_key_policy(mut self, policy: HostKeyPolicy) -> Self {
        self.host_keys = policy;
        self
    }

    /// Reads this configuration of `ssh` instead of the user's own.
    #[must_use]
    pub fn with_config_file(mut self, file: Option<PathBuf>) -> Self {
        self.config = file;
        self
    }

    /// Returns the arguments of `ssh` for use at a terminal: options and destination.
    pub fn arguments(&self) -> Vec<OsString> {
        self.all_arguments(true)
    }

    fn all_arguments(&self, interactive: bool) -> Vec<OsString> {
        let mut all: Vec<OsString> = Vec::new();
        if let Some(file) = &self.config {
            all.extend([OsString::from("-F"), file.into()]);
        }
        let mut option = |name: &str, value: OsString| {
            let mut text = OsString::from(format!("{name}="));
            text.push(value);
            all.extend([OsString::from("-o"), text]);
        };
        let (known, strict) = match (self.host_keys, interactive) {
            (HostKeyPolicy::Pinned, _) => (Some(self.keyring.known_hosts()), "yes"),
            (HostKeyPolicy::Ask, true) => (Some(self.keyring.seen_hosts()), "ask"),
            (HostKeyPolicy::Ask, false) => (Some(self.keyring.seen_hosts()), "yes"),
            (HostKeyPolicy::User, _) => (None, "yes"),
        };
        option("StrictHostKeyChecking", strict.into());
        if let Some(known) = known {
            option("HostKeyAlias", self.alias.clone().into());
            option("UserKnownHostsFile", quoted(known));
            option("GlobalKnownHostsFile", "/dev/null".into());
            // Only host keys that the driver recorded are accepted.
            option("UpdateHostKeys", "no".into());
            option("CheckHostIP", "no".into());
            option("HashKnownHosts", "no".into());
            option("IdentityFile", quoted(self.keyring.driver_key_file()));
            // Otherwise the keys of an SSH agent are offered first, and the server may reject the
            // connection after too many of them.
            option("IdentitiesOnly", "yes".into());
        }
        option(
            "ConnectTimeout",
            self.connect_timeout.as_secs().to_string().into(),
        );
        option("ServerAliveInterval", KEEPALIVE_INTERVAL.to_string().into());
        option("ServerAliveCountMax", MAX_UNANSWERED.to_string().into());
        // A node must not use the user's agent, ports or programs, whatever their configuration
        // allows for other machines.
        option("ForwardAgent", "no".into());
        option("ForwardX11", "no".into());
        option("ClearAllForwardings", "yes".into());
        option("PermitLocalCommand", "no".into());
        if !interactive {
            option("BatchMode", "yes".into());
            option("LogLevel", "ERROR".into());
        }
        let address = self.address.clone();
        let config = self.config.as_ref().map(|file| file.to_string_lossy());
        let port = self.port.map(|port| port.to_string()).unwrap_or_default();
        if !port.is_empty() {
            option("Port", port.clone().into());
        }
        let config = config.as_deref().unwrap_or_default();
        let endpoint = [&address, &self.user, config, port.as_str()];
        if !self.shared {
            option("ControlMaster", "no".into());
            option("ControlPath", "none".into());
        } else if let Some(socket) =
            multiplex::socket(self.keyring.directory(), &self.alias, &endpoint)
        {
            option("ControlMaster", "auto".into());
            option("ControlPath", quoted(socket));
            option("ControlPersist", PERSIST.to_string().into());
        }
        all.extend(["-l".into(), self.user.clone().into(), address.into()]);
        all
    }

    /// Sets how long [`Self::run`] waits for a command before it is killed.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs a shell command on the node with this stdin. Output that exceeds the size limit or is
    /// not complete in time is an error.
    pub fn run(&self, line: &str, stdin: &[u8]) -> Result<Output, SshError> {
        let output = self.run_until(line, stdin, &|| false)?;
        output.ok_or_else(|| self.timeout_error())
    }

    /// Like [`Self::run`], but returns `None` as soon as `stop` returns true.
    pub fn run_until(
        &self,
        line: &str,
        stdin: &[u8],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Output>, SshError> {
        let read = |from: &mut dyn Read| {
            let mut bytes = Vec::new();
            _ = from.take(MAX_OUTPUT as u64 + 1).read_to_end(&mut bytes);
            bytes
        };
        let limit = Limit::new(self.timeout, stop);
        let Some((status, stdout, stderr)) = self.start(line, stdin, &limit, read, read)? else {
            return Ok(None);
        };
        if stdout.len().max(stderr.len()) > MAX_OUTPUT {
            return Err(SshError::OutputTooLarge {
                mebibytes: MAX_OUTPUT >> 20,
            });
        }
        Ok(Some(Output {
            status,
            stdout,
            stderr,
        }))
    }

    /// Runs a shell command on the node with this stdin, and passes on its output line by line.
    /// Returns its exit code.
    pub fn follow(
        &self,
        line: &str,
        stdin: &[u8],
        on_line: &(dyn Fn(Stream, &str) + Sync),
    ) -> Result<i32, SshError> {
        let status = self.follow_until(line, stdin, on_line, &|| false)?;
        status.ok_or_else(|| self.timeout_error())
    }

    /// Like [`Self::follow`], but returns `None` as soon as `stop` returns true.
    pub fn follow_until(
        &self,
        line: &str,
        stdin: &[u8],
        on_line: &(dyn Fn(Stream, &str) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<i32>, SshError> {
        let limit = Limit::new(Duration::MAX, stop);
        let ended = self.start(
            line,
            stdin,
            &limit,
            |from| each_line(from, MAX_LINE, |text| on_line(Stream::Out, text)),
            |from| each_line(from, MAX_LINE, |text| on_line(Stream::Err, text)),
        )?;
        Ok(ended.map(|(status, (), ())| status))
    }

    /// Closes the connection that commands share.
    pub fn close(&self) {
        self.keyring.disconnect(&self.alias);
    }

    fn timeout_error(&self) -> SshError {
        SshError::TimedOut {
            seconds: self.timeout.as_secs(),
        }
    }

    /// Runs a command: `out` reads its stdout, and `err` its stderr. `None` if `stop` ended it.
    fn start<A: Send, B: Send>(
        &self,
        line: &str,
        stdin: &[u8],
        limit: &Limit<'_>,
        out: impl FnOnce(&mut dyn Read) -> A + Send,
        err: impl FnOnce(&mut dyn Read) -> B + Send,
    ) -> Result<Option<(i32, A, B)>, SshError> {
        let failed = |error: std::io::Error| SshError::Failed {
            message: error.to_string().into(),
        };
        // `ssh` writes its own messages to a file, so that they are separate from the output of the
        // command. The file has no name, so that a killed driver leaves nothing behind.
        let directory = self.keyring.directory();
        homestak_api::durable::create_private(directory).map_err(failed)?;
        let mut log = tempfile::tempfile_in(directory).map_err(failed)?;
        let process_id = std::process::id();
        let mut ssh = process::ssh();
        ssh.arg("-E")
            .arg(format!("/proc/{process_id}/fd/{}", log.as_raw_fd()))
            .arg("-T")
            .args(self.all_arguments(false))
            .arg("--")
            .arg(line);
        let (address, user) = (&*self.address, &*self.user);
        tracing::debug!(program = "ssh", address, user, "start");
        let ran = limit.run(&mut ssh, stdin, out, err);
        let Some((ended, out, err)) = ran.map_err(|error| SshError::from_spawn(&error))? else {
            return if limit.is_stopped() {
                Ok(None)
            } else {
                Err(self.timeout_error())
            };
        };
        tracing::debug!(program = "ssh", address, status = %ended, "ended");
        let Some(status) = ended.code() else {
            let message = format!("ssh was terminated ({ended})").into();
            return Err(SshError::Failed { message });
        };
        if status == SSH_FAILED {
            let mut text = Vec::new();
            _ = log.read_to_end(&mut text);
            if let Some(error) = SshError::from_log(&String::from_utf8_lossy(&text)) {
                return Err(error);
            }
        }
        Ok(Some((status, out, err)))
    }
}

/// Quotes a path for an option of `ssh`, where spaces and `%` are special.
fn quoted(path: PathBuf) -> OsString {
    let text = path.to_string_lossy().replace('%', "%%");
    format!("\"{text}\"").into()
}
