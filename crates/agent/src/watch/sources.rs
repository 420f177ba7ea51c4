//! All event sources of the watch, waited for at once. An event only means that something changed;
//! what changed is observed afterwards.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

use homestak_core::converge::{AGENT, FactScope, KEY_FILES, Resource, State, UNIT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use super::paths::{Paths, WatchUpdate};
use super::units::UnitSignals;
use crate::facts::{parse_account_rows, sysctl_path};
use crate::state;

/// Accounts and packages: every change of them replaces one of these files.
const DATABASES: &[&str] = &[
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/var/lib/dpkg/status",
];
/// The kernel's host name, which can be polled.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// Netlink groups of addresses and routes, for IPv4 and IPv6.
const ADDRESSES: (u32, u32) = (0x10 | 0x40, 0x100 | 0x400);

/// All sources.
pub(super) struct Sources {
    paths: Paths,
    signals: Option<UnitSignals>,
    units: BTreeSet<String>,
    hostname: Option<File>,
    network: Option<OwnedFd>,
    groups: u32,
}

impl Sources {
    /// Opens sources that watch only the agent's own files at first.
    pub(super) fn new() -> Self {
        let hostname = fs_err::File::open(HOSTNAME).map(fs_err::File::into_file);
        let mut sources = Self {
            paths: Paths::new(),
            signals: None,
            units: BTreeSet::new(),
            hostname: hostname.ok(),
            network: None,
            groups: 0,
        };
        // Paths that cannot be watched are reported by the first `update`.
        sources.paths.update(&own_files(), &BTreeSet::new());
        sources
    }

    /// Watches what these resources depend on.
    pub(super) fn update(&mut self, wanted: &[Resource], last: &State) -> WatchUpdate {
        let scope = FactScope::of(wanted, last);
        let mut files = own_files();
        files.extend(scope.files.iter().cloned());
        files.extend(DATABASES.iter().map(|path| (*path).to_owned()));
        files.extend(scope.sysctl.iter().filter_map(|key| sysctl_path(key)));
        for home in homes(&scope.users) {
            files.extend(KEY_FILES.iter().map(|name| format!("{home}/{name}")));
        }
        let mut update = self.paths.update(&files, &scope.directories);
        let mut units = scope.units;
        // Our own unit changes whenever we notify systemd, which would never end.
        units.remove(UNIT);
        if self.signals.is_none() || self.units != units {
            // Without signals, changed units are found by the periodic check.
            let signals = UnitSignals::subscribe(&units);
            let signals = signals.inspect_err(|error| tracing::debug!(%error, "no signals"));
            self.signals = signals.ok();
            self.units = units;
            update.added |= self.signals.is_some();
        }
        let groups = groups(wanted);
        if self.network.is_none() && groups != 0 || self.groups != groups {
            self.network = listen(groups).ok().filter(|_| groups != 0);
            self.groups = groups;
            update.added |= self.network.is_some();
        }
        update
    }

    /// Waits for an event, but not longer than this. Returns whether one of interest occurred.
    pub(super) fn wait(&mut self, longest: Duration) -> std::io::Result<bool> {
        let mut ready = Vec::new();
        {
            let mut fds = Vec::new();
            let paths = self.paths.inotify().into_iter();
            fds.extend(paths.map(|paths| PollFd::new(paths, PollFlags::IN)));
            let signals = self.signals.iter();
            fds.extend(signals.map(|signals| PollFd::new(signals, PollFlags::IN)));
            let network = self.network.iter();
            fds.extend(network.map(|network| PollFd::new(network, PollFlags::IN)));
            let hostname = self.hostname.iter();
            fds.extend(hostname.map(|file| PollFd::new(file, PollFlags::PRI)));
            match poll(&mut fds, Timespec::try_from(longest).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            ready.extend(fds.iter().map(|fd| !fd.revents().is_empty()));
        }
        // Missing sources have no entry; the others are in this order.
        let mut ready = ready.into_iter();
        let mut next = |exists: bool| exists && ready.next().unwrap_or(false);
        let mut any = next(self.paths.inotify().is_some()) && self.paths.read_events()?;
        if next(self.signals.is_some()) {
            match self.signals.as_mut().map(UnitSignals::receive) {
                Some(Ok(received)) => any |= received,
                // Signals may have been lost; the next `update` subscribes again.
                Some(Err(_)) => {
                    self.signals = None;
                    any = true;
                }
                None => {}
            }
        }
        if next(self.network.is_some()) {
            any = true;
            self.network.iter().for_each(drain);
        }
        // The kernel reports a change of the host name once.
        any |= next(self.hostname.is_some());
        Ok(any)
    }

    /// Returns whether systemd reports changes of units.
    pub(super) fn has_signals(&self) -> bool {
        self.signals.is_some()
    }
}

/// Returns what is always watched: the spec, its markers, and this program.
fn own_files() -> BTreeSet<String> {
    let names = [state::SPEC, state::COMPLETE, state::FAILED];
    let paths = names.iter().map(|name| state::file(name));
    let paths = paths.map(|path| path.display().to_string());
    paths.chain([AGENT.to_owned()]).collect()
}

/// Returns the home directories of users.
fn homes(users: &BTreeSet<String>) -> Vec<String> {
    let bytes = fs_err::read("/etc/passwd").unwrap_or_default();
    let rows = parse_account_rows(&bytes).into_iter();
    rows.filter(|row| row.first().is_some_and(|name| users.contains(name)))
        .filter_map(|row| row.get(5).cloned())
        .collect()
}

/// Returns the netlink groups to subscribe to: only those of the configured family, since routers may
/// renew addresses of the other all the time.
fn groups(wanted: &[Resource]) -> u32 {
    let address = wanted.iter().find_map(|resource| {
        if let Resource::Network { address, .. } = resource {
            Some(address)
        } else {
            None
        }
    });
    address.map_or(0, |address| {
        if address.contains(':') {
            ADDRESSES.1
        } else {
            ADDRESSES.0
        }
    })
}

fn listen(groups: u32) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol it is that of routes.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Discards all messages. `ENOBUFS` reports once that messages were lost.
fn drain(socket: &OwnedFd) {
    let mut buffer = [0_u8; 8192];
    loop {
        match recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
