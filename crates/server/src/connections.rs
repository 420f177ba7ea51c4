//! The open connections of a server, and which one is closed when there are too many.
//!
//! A limit on connections alone would let whoever opens them all keep everyone else out. So the
//! least useful one is closed instead of the newest: first one that has not finished its handshake,
//! then one without a certificate, the oldest of each first. A request in progress is never cut.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// How far a connection is; the order is the order in which they are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// TLS is being negotiated.
    Handshake,
    /// Waiting for a request of someone without a certificate.
    IdleAnonymous,
    /// Waiting for a request of someone with a certificate.
    IdleKnown,
    /// A request is being answered.
    Busy,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// In all.
    pub(crate) total: usize,
    /// From one address.
    pub(crate) per_address: usize,
}

struct Entry {
    address: IpAddr,
    stage: Stage,
    close: CancellationToken,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By number, so the first is the oldest.
    entries: BTreeMap<u64, Entry>,
    by_address: BTreeMap<IpAddr, usize>,
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        if let Some(count) = self.by_address.get_mut(&entry.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&entry.address);
            }
        }
        Some(entry)
    }

    /// Returns the connection to give up; `None` when all of them are busy.
    fn least_useful(&self, of: Option<IpAddr>) -> Option<u64> {
        let all = self.entries.iter();
        let idle = all.filter(|(_, entry)| entry.stage != Stage::Busy);
        let ours = idle.filter(|(_, entry)| of.is_none_or(|address| entry.address == address));
        ours.min_by_key(|(number, entry)| (entry.stage, **number))
            .map(|(number, _)| *number)
    }
}

/// All open connections.
#[derive(Clone)]
pub(crate) struct Connections {
    table: Arc<Mutex<Table>>,
    limits: ConnectionLimits,
}

/// One open connection; dropping it frees its slot.
pub(crate) struct Connection {
    number: u64,
    table: Arc<Mutex<Table>>,
    /// Cancelled when it must be closed.
    pub(crate) close: CancellationToken,
}

fn locked(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self {
            table: Arc::default(),
            limits,
        }
    }

    /// Admits a connection, and closes another when there are too many. `None` when every
    /// connection that could be given up is answering a request.
    pub(crate) fn admit(&self, address: IpAddr) -> Option<Connection> {
        let mut table = locked(&self.table);
        let of_address = table.by_address.get(&address).copied().unwrap_or(0);
        let victim = if of_address >= self.limits.per_address {
            Some(table.least_useful(Some(address))?)
        } else if table.entries.len() >= self.limits.total {
            Some(table.least_useful(None)?)
        } else {
            None
        };
        if let Some(entry) = victim.and_then(|number| table.remove(number)) {
            entry.close.cancel();
        }
        let number = table.next;
        table.next += 1;
        let close = CancellationToken::new();
        let entry = Entry {
            address,
            stage: Stage::Handshake,
            close: close.clone(),
        };
        table.entries.insert(number, entry);
        *table.by_address.entry(address).or_default() += 1;
        drop(table);
        Some(Connection {
            number,
            table: self.table.clone(),
            close,
        })
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        locked(&self.table).entries.len()
    }
}

impl Connection {
    pub(crate) fn set_stage(&self, stage: Stage) {
        if let Some(entry) = locked(&self.table).entries.get_mut(&self.number) {
            entry.stage = stage;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        locked(&self.table).remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    fn connections(total: usize, per_address: usize) -> Connections {
        Connections::new(ConnectionLimits { total, per_address })
    }

    #[test]
    fn the_oldest_unfinished_handshake_is_closed_first_and_a_request_never() {
        let all = connections(3, 10);
        let busy = all.admit(address(1)).expect("free");
        busy.set_stage(Stage::Busy);
        let known = all.admit(address(2)).expect("free");
        known.set_stage(Stage::IdleKnown);
        let silent = all.admit(address(3)).expect("free");
        let fourth = all.admit(address(4)).expect("one is closed");
        assert!(silent.close.is_cancelled());
        fourth.set_stage(Stage::Busy);
        let fifth = all.admit(address(5)).expect("one is closed");
        assert!(known.close.is_cancelled() && !busy.close.is_cancelled());
        fifth.set_stage(Stage::Busy);
        assert!(all.admit(address(6)).is_none(), "all are busy");
        assert_eq!(all.count(), 3);
    }

    #[test]
    fn one_address_cannot_displace_the_connections_of_others() {
        let all = connections(100, 2);
        let other = all.admit(address(9)).expect("free");
        let held: Vec<Connection> = (0..50).filter_map(|_| all.admit(address(1))).collect();
        assert_eq!(all.count(), 3);
        assert!(!other.close.is_cancelled());
        let open = held.iter().filter(|one| !one.close.is_cancelled()).count();
        assert_eq!(open, 2);
    }

    #[test]
    fn a_slot_is_free_again_when_its_connection_ends() {
        let all = connections(1, 1);
        for _ in 0..3 {
            let one = all.admit(address(1)).expect("free");
            one.set_stage(Stage::Busy);
            assert!(all.admit(address(2)).is_none());
        }
        assert_eq!(all.count(), 0);
    }
}
