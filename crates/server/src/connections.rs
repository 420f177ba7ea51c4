//! The open connections of a server, and which one is closed when there are too many.
//!
//! With a plain limit, a client that opens all connections would lock out all others. So the least
//! useful connection is closed instead of the newest: first one that has not finished its handshake,
//! then those of unknown clients, of nodes, of operators; the oldest of each first. A request that
//! was received is answered to the end of the answer, so a node has few connections at a time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use homestak_api::trust::Fingerprint;
use tokio_util::sync::CancellationToken;

use crate::settings::Limits;

/// The most bytes of bodies that are being received at a time, by the lengths that their requests have.
/// Anyone may send a body before it is known who it is.
const BODY_BYTES: usize = 32 << 20;
/// The most connections with the certificate of one node; an agent has about three.
const CONNECTIONS_PER_NODE: usize = 64;

/// Whose connection it is, in the order in which connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConnectionClass {
    /// A client without certificate, or with one that is not recorded.
    Unknown,
    /// A node.
    Node,
    /// An operator.
    Operator,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// TLS is being negotiated.
    Handshake,
    /// The body of a request is being received. The request has had no effect yet.
    Receiving(ConnectionClass),
    /// Waiting for a request.
    Idle(ConnectionClass),
    /// A request is being answered.
    Busy,
}

impl ConnectionState {
    /// Returns what is lower for a connection that is closed earlier; `None` if it is never closed.
    fn rank(self) -> Option<(Option<ConnectionClass>, bool)> {
        match self {
            Self::Handshake => Some((None, false)),
            Self::Receiving(class) => Some((Some(class), false)),
            Self::Idle(class) => Some((Some(class), true)),
            Self::Busy => None,
        }
    }
}

struct Entry {
    address: IpAddr,
    /// The certificate of a node.
    node: Option<Fingerprint>,
    state: ConnectionState,
    /// The length of the body that is being received.
    body: usize,
    close: CancellationToken,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// The lengths of all bodies that are being received.
    bodies: usize,
    /// By number, so the first is the oldest.
    entries: BTreeMap<u64, Entry>,
    by_address: BTreeMap<IpAddr, usize>,
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.bodies -= entry.body;
        if let Some(count) = self.by_address.get_mut(&entry.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&entry.address);
            }
        }
        Some(entry)
    }

    fn set(&mut self, number: u64, state: ConnectionState, body: usize) {
        if let Some(entry) = self.entries.get_mut(&number) {
            self.bodies = self.bodies - entry.body + body;
            (entry.state, entry.body) = (state, body);
        }
    }

    /// Returns the connection to close among some; `None` if all of them are busy.
    fn least_useful(&self, among: impl Fn(&Entry) -> bool) -> Option<u64> {
        let candidates = self.entries.iter().filter(|(_, entry)| among(entry));
        let ranked = candidates.filter_map(|(number, entry)| {
            let rank = entry.state.rank()?;
            Some((rank, *number))
        });
        ranked.min().map(|(_, number)| number)
    }

    fn close(&mut self, number: u64) {
        if let Some(entry) = self.remove(number) {
            entry.close.cancel();
        }
    }
}

/// All open connections.
#[derive(Clone, Default)]
pub(crate) struct Connections {
    table: Arc<Mutex<Table>>,
}

/// One open connection; dropping it frees its slot.
pub(crate) struct Connection {
    number: u64,
    table: Arc<Mutex<Table>>,
    /// Whether an answer was produced whole, and may still be in a buffer.
    is_produced: Arc<AtomicBool>,
    /// Whether a request was accepted and logged.
    is_accepted: AtomicBool,
    /// Cancelled when it must be closed.
    pub(crate) close: CancellationToken,
}

fn locked(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    /// Admits a connection, and closes others if there are too many: one, or more after a limit was
    /// lowered. `None` if there are too many and all of them are processing a request.
    pub(crate) fn admit(&self, address: IpAddr, limits: &Limits) -> Option<Connection> {
        let mut table = locked(&self.table);
        let of_address = |table: &Table| table.by_address.get(&address).copied().unwrap_or(0);
        while of_address(&table) >= limits.connections_per_address {
            let number = table.least_useful(|entry| entry.address == address)?;
            table.close(number);
        }
        while table.entries.len() >= limits.connections {
            let number = table.least_useful(|_| true)?;
            table.close(number);
        }
        let number = table.next;
        table.next += 1;
        let close = CancellationToken::new();
        let entry = Entry {
            address,
            node: None,
            state: ConnectionState::Handshake,
            body: 0,
            close: close.clone(),
        };
        table.entries.insert(number, entry);
        *table.by_address.entry(address).or_default() += 1;
        drop(table);
        Some(Connection {
            number,
            table: self.table.clone(),
            is_produced: Arc::default(),
            is_accepted: AtomicBool::new(false),
            close,
        })
    }

    /// Returns the number of open connections.
    pub(crate) fn count(&self) -> usize {
        locked(&self.table).entries.len()
    }
}

impl Connection {
    /// Records that it is one of a node. Beyond the limit, another one of the node is closed; returns
    /// `false` when all of them are busy.
    pub(crate) fn set_node(&self, certificate: Fingerprint) -> bool {
        let mut table = locked(&self.table);
        let is_same = |entry: &Entry| entry.node == Some(certificate);
        let count = table
            .entries
            .values()
            .filter(|entry| is_same(entry))
            .count();
        if count >= CONNECTIONS_PER_NODE {
            let Some(number) = table.least_useful(is_same) else {
                return false;
            };
            table.close(number);
        }
        if let Some(entry) = table.entries.get_mut(&self.number) {
            entry.node = Some(certificate);
        }
        true
    }

    pub(crate) fn set_state(&self, state: ConnectionState) {
        locked(&self.table).set(self.number, state, 0);
    }

    /// Marks that a body of a length is being received. When there are too many bytes of them, others
    /// are closed, those of the least useful clients first, and none of a more useful one; returns
    /// `false` if that is not enough.
    pub(crate) fn receive(&self, class: ConnectionClass, length: usize) -> bool {
        let mut table = locked(&self.table);
        let may_be_closed = |entry: &Entry| {
            let is_below = matches!(entry.state, ConnectionState::Receiving(of) if of <= class);
            is_below && entry.body > 0
        };
        while table.bodies + length > BODY_BYTES {
            let Some(number) = table.least_useful(may_be_closed) else {
                return false;
            };
            table.close(number);
        }
        table.set(self.number, ConnectionState::Receiving(class), length);
        true
    }

    /// Marks that a request is being answered.
    pub(crate) fn begin(&self) {
        self.is_produced.store(false, Ordering::Release);
        self.set_state(ConnectionState::Busy);
    }

    /// Returns whether no request on it was accepted before.
    pub(crate) fn is_first_accepted(&self) -> bool {
        !self.is_accepted.swap(true, Ordering::Relaxed)
    }

    /// Returns what is to be dropped when the answer was produced whole.
    pub(crate) fn sending(&self) -> ResponseInProgress {
        ResponseInProgress(self.is_produced.clone())
    }

    /// Called when nothing is left in a buffer: an answer that was produced whole is sent.
    pub(crate) fn flushed(&self, class: impl FnOnce() -> ConnectionClass) {
        if self.is_produced.swap(false, Ordering::AcqRel) {
            self.set_state(ConnectionState::Idle(class()));
        }
    }
}

/// An answer that is not produced whole until this is dropped.
pub(crate) struct ResponseInProgress(Arc<AtomicBool>);

impl Drop for ResponseInProgress {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
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

    /// Connections with limits.
    struct Limited(Connections, Limits);

    impl Limited {
        fn admit(&self, address: IpAddr) -> Option<Connection> {
            self.0.admit(address, &self.1)
        }
    }

    fn connections(connections: usize, connections_per_address: usize) -> Limited {
        let limits = Limits {
            connections,
            connections_per_address,
            ..Limits::default()
        };
        Limited(Connections::default(), limits)
    }

    #[test]
    fn the_oldest_unfinished_handshake_is_closed_first_and_a_request_never() {
        let all = connections(3, 10);
        let busy = all.admit(address(1)).expect("free");
        busy.set_state(ConnectionState::Busy);
        let node = all.admit(address(2)).expect("free");
        node.set_state(ConnectionState::Idle(ConnectionClass::Node));
        let unfinished = all.admit(address(3)).expect("free");
        let fourth = all.admit(address(4)).expect("one is closed");
        assert!(unfinished.close.is_cancelled());
        fourth.set_state(ConnectionState::Busy);
        let fifth = all.admit(address(5)).expect("one is closed");
        assert!(node.close.is_cancelled() && !busy.close.is_cancelled());
        fifth.set_state(ConnectionState::Busy);
        assert!(all.admit(address(6)).is_none(), "all are busy");
        assert_eq!(all.0.count(), 3);
    }

    #[test]
    fn unknown_clients_give_way_to_nodes_and_nodes_to_operators_also_while_they_send_a_body() {
        use ConnectionClass::{Node, Operator, Unknown};
        use ConnectionState::{Busy, Handshake, Idle, Receiving};
        let order = [
            Handshake,
            Receiving(Unknown),
            Idle(Unknown),
            Receiving(Node),
            Idle(Node),
            Receiving(Operator),
            Idle(Operator),
        ];
        let all = connections(order.len() + 1, 100);
        let (mut open, mut newer) = (Vec::new(), Vec::new());
        // The one that is closed last is the oldest.
        for state in [Busy].into_iter().chain(order.into_iter().rev()) {
            let one = all.admit(address(1)).expect("free");
            one.set_state(state);
            open.push(one);
        }
        while let Some(least) = open.pop() {
            let Some(newest) = all.admit(address(2)) else {
                assert!(open.is_empty(), "only the busy one is left");
                assert!(!least.close.is_cancelled());
                return;
            };
            assert!(least.close.is_cancelled());
            let is_open = |other: &Connection| !other.close.is_cancelled();
            assert!(open.iter().all(is_open));
            newest.set_state(Busy);
            newer.push(newest);
        }
        panic!("the busy one was closed");
    }

    #[test]
    fn one_node_cannot_have_all_connections_busy() {
        let all = connections(1000, 1000);
        let (one, other) = (Fingerprint::of(b"one"), Fingerprint::of(b"other"));
        let operator = all.admit(address(1)).expect("free");
        operator.set_state(ConnectionState::Handshake);
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS_PER_NODE {
            let connection = all.admit(address(1)).expect("free");
            assert!(connection.set_node(one));
            connection.set_state(ConnectionState::Busy);
            held.push(connection);
        }
        let more = all.admit(address(1)).expect("free");
        assert!(!more.set_node(one), "all of its connections are busy");
        assert!(more.set_node(other));
        held[5].set_state(ConnectionState::Receiving(ConnectionClass::Node));
        let more = all.admit(address(1)).expect("free");
        assert!(more.set_node(one));
        assert!(held[5].close.is_cancelled());
        assert!(
            !operator.close.is_cancelled(),
            "others are not closed for it"
        );
    }

    #[test]
    fn a_connection_is_idle_when_its_answer_was_produced_and_nothing_is_left_in_a_buffer() {
        let all = connections(1, 1);
        let one = all.admit(address(1)).expect("free");
        let is_busy = || all.admit(address(1)).is_none();
        let flush = || one.flushed(|| ConnectionClass::Unknown);
        one.begin();
        let sending = one.sending();
        flush();
        assert!(is_busy(), "the answer is being produced");
        drop(sending);
        assert!(is_busy(), "it is in a buffer");
        let sending = one.sending();
        one.begin();
        flush();
        assert!(is_busy(), "the next request was received before");
        drop(sending);
        flush();
        assert!(!is_busy());
    }

    #[test]
    fn one_address_cannot_displace_the_connections_of_others() {
        let all = connections(100, 2);
        let other = all.admit(address(9)).expect("free");
        let held: Vec<Connection> = (0..50).filter_map(|_| all.admit(address(1))).collect();
        assert_eq!(all.0.count(), 3);
        assert!(!other.close.is_cancelled());
        let open = held.iter().filter(|one| !one.close.is_cancelled()).count();
        assert_eq!(open, 2);
    }

    #[test]
    fn a_limit_that_was_lowered_closes_as_many_connections_as_needed() {
        let mut all = connections(100, 100);
        let held: Vec<Connection> = (0..50).filter_map(|_| all.admit(address(1))).collect();
        let others: Vec<Connection> = (0..50).filter_map(|_| all.admit(address(2))).collect();
        all.1.connections_per_address = 10;
        let one = all.admit(address(1)).expect("some are closed");
        assert_eq!(all.0.count(), 60);
        assert!(others.iter().all(|other| !other.close.is_cancelled()));
        all.1.connections = 5;
        let two = all.admit(address(3)).expect("some are closed");
        assert_eq!(all.0.count(), 5);
        drop((held, others, one, two));
        assert_eq!(all.0.count(), 0);
    }

    #[test]
    fn bodies_have_a_limit_together_and_give_way_to_those_of_more_useful_clients() {
        use ConnectionClass::{Node, Operator, Unknown};
        let all = connections(100, 100);
        let admit = || all.admit(address(1)).expect("free");
        let (idle, unknown, node) = (admit(), admit(), admit());
        idle.set_state(ConnectionState::Idle(Unknown));
        assert!(unknown.receive(Unknown, BODY_BYTES / 2));
        assert!(node.receive(Node, BODY_BYTES / 2));
        let newer = admit();
        assert!(newer.receive(Unknown, 1), "the older one is closed");
        assert!(unknown.close.is_cancelled() && !idle.close.is_cancelled());
        drop(unknown);
        let operator = admit();
        assert!(operator.receive(Operator, BODY_BYTES));
        assert!(node.close.is_cancelled() && newer.close.is_cancelled());
        let refused = admit();
        assert!(!refused.receive(Node, 1), "an operator is more useful");
        assert!(refused.receive(Node, 0), "needs no memory");
        operator.set_state(ConnectionState::Busy);
        assert!(refused.receive(Node, BODY_BYTES), "it was received");
        drop((refused, newer, node));
        assert!(operator.receive(Unknown, BODY_BYTES), "they have ended");
    }

    #[test]
    fn a_slot_is_free_again_when_its_connection_ends() {
        let all = connections(1, 1);
        for _ in 0..3 {
            let one = all.admit(address(1)).expect("free");
            one.begin();
            assert!(all.admit(address(2)).is_none());
        }
        assert_eq!(all.0.count(), 0);
    }
}
