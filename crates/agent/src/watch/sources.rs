//! All sources of events, waited for at once. They tell that something happened; what, is looked
//! up.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

use homestak_core::converge::{AGENT, FactScope, KEY_FILES, Resource, State, UNIT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use super::bus::Bus;
use super::paths::{Aimed, Paths};
use crate::gather::{rows, sysctl_path};
use crate::state;

/// Accounts and packages: whatever changes them moves a new file here.
const BOOKS: &[&str] = &[
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/var/lib/dpkg/status",
];
/// The kernel's host name: it can be waited for.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// Groups of the kernel's messages about addresses and routes, for IPv4 and IPv6.
const ADDRESSES: (u32, u32) = (0x10 | 0x40, 0x100 | 0x400);

/// All sources.
pub(super) struct Sources {
    paths: Paths,
    bus: Option<Bus>,
    units: BTreeSet<String>,
    hostname: Option<File>,
    network: Option<OwnedFd>,
    groups: u32,
}

impl Sources {
    /// Opens sources that watch nothing but the spec yet.
    pub(super) fn new() -> Self {
        let mut sources = Self {
            paths: Paths::new(),
            bus: None,
            units: BTreeSet::new(),
            hostname: fs_err::File::open(HOSTNAME)
                .map(fs_err::File::into_file)
                .ok(),
            network: None,
            groups: 0,
        };
        // What cannot be watched is said when everything else is watched as well.
        sources.paths.aim(&own(), &BTreeSet::new());
        sources
    }

    /// Watches what these resources are about. Tells whether anything was not watched before, and
    /// why something is not.
    pub(super) fn aim(&mut self, wanted: &[Resource], last: &State) -> Aimed {
        let scope = FactScope::of(wanted, last);
        let mut files = own();
        files.extend(scope.files.iter().cloned());
        files.extend(BOOKS.iter().map(|path| (*path).to_owned()));
        files.extend(scope.sysctl.iter().filter_map(|key| sysctl_path(key)));
        for home in homes(&scope.users) {
            files.extend(KEY_FILES.iter().map(|name| format!("{home}/{name}")));
        }
        let mut aimed = self.paths.aim(&files, &scope.directories);
        let mut units = scope.units;
        // Ours says something whenever we do, so that we would never be quiet again.
        units.remove(UNIT);
        if self.bus.is_none() || self.units != units {
            // Without a bus units are seen when everything is looked at.
            self.bus = Bus::new(&units).ok();
            self.units = units;
            aimed.fresh |= self.bus.is_some();
        }
        let groups = groups(wanted);
        if self.network.is_none() && groups != 0 || self.groups != groups {
            self.network = listen(groups).ok().filter(|_| groups != 0);
            self.groups = groups;
            aimed.fresh |= self.network.is_some();
        }
        aimed
    }

    /// Waits until something of interest happens, or time is over. Tells which.
    pub(super) fn wait(&mut self, longest: Duration) -> std::io::Result<bool> {
        let mut ready = Vec::new();
        {
            let mut fds = Vec::new();
            let paths = self.paths.source().into_iter();
            fds.extend(paths.map(|paths| PollFd::new(paths, PollFlags::IN)));
            // A source that is not there takes the place of one that is: order tells them apart.
            fds.extend(self.bus.iter().map(|bus| PollFd::new(bus, PollFlags::IN)));
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
        let mut ready = ready.into_iter();
        let mut next = |is_there: bool| is_there && ready.next().unwrap_or(false);
        let mut any = next(self.paths.source().is_some()) && self.paths.take()?;
        if next(self.bus.is_some()) {
            match self.bus.as_mut().map(Bus::take) {
                Some(Ok(said)) => any |= said,
                // It was restarted: what it said is lost, and it is asked again.
                Some(Err(_)) => {
                    self.bus = None;
                    any = true;
                }
                None => {}
            }
        }
        if next(self.network.is_some()) {
            any = true;
            self.network.iter().for_each(empty);
        }
        // Asking was enough to be told only once.
        any |= next(self.hostname.is_some());
        Ok(any)
    }

    /// Tells whether units are heard of.
    pub(super) fn hears_units(&self) -> bool {
        self.bus.is_some()
    }
}

/// What is always watched: the spec, whether it was reached, and this program.
fn own() -> BTreeSet<String> {
    let names = [state::SPEC, state::COMPLETE, state::FAILED];
    let paths = names.iter().map(|name| state::place(name));
    let paths = paths.map(|path| path.display().to_string());
    paths.chain([AGENT.to_owned()]).collect()
}

/// Returns the homes of users that are there.
fn homes(users: &BTreeSet<String>) -> Vec<String> {
    let bytes = fs_err::read("/etc/passwd").unwrap_or_default();
    let rows = rows(&bytes).into_iter();
    rows.filter(|row| row.first().is_some_and(|name| users.contains(name)))
        .filter_map(|row| row.get(5).cloned())
        .collect()
}

/// Returns what to hear of the network: only the family that is set up, since the other one may be
/// renewed by routers all the time.
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
    // No protocol is the one of routes.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Takes what was said; when too much was, that is said as an error, once.
fn empty(socket: &OwnedFd) {
    let mut room = [0_u8; 8192];
    loop {
        match recv(socket, &mut room[..], RecvFlags::empty()) {
            Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
