//! Wakes those who wait for something of one node: its jobs, or its reports. Others are not woken.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Those who wait, by the guest's UUID.
#[derive(Default)]
pub(crate) struct NodeWatches(Mutex<HashMap<String, watch::Sender<()>>>);

/// Wakes when something of a node changes. What changed before it was created is not reported.
pub(crate) struct NodeWatch<'a> {
    all: &'a NodeWatches,
    uuid: String,
    receiver: watch::Receiver<()>,
}

impl NodeWatches {
    fn waiting(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what wakes when something of a node changes.
    pub(crate) fn watch(&self, uuid: &str) -> NodeWatch<'_> {
        let mut waiting = self.waiting();
        let sender = waiting.entry(uuid.to_owned()).or_default();
        NodeWatch {
            all: self,
            uuid: uuid.to_owned(),
            receiver: sender.subscribe(),
        }
    }

    /// Wakes those who wait for something of a node.
    pub(crate) fn notify(&self, uuid: &str) {
        if let Some(sender) = self.waiting().get(uuid) {
            sender.send_replace(());
        }
    }
}

impl NodeWatch<'_> {
    /// Forgets changes up to now; what is read after this call includes them.
    pub(crate) fn mark_seen(&mut self) {
        self.receiver.mark_unchanged();
    }

    /// Waits for a change after the last [`Self::mark_seen`].
    pub(crate) async fn changed(&mut self) {
        // Cancel safety: a change that was not awaited is still there for the next call. The sender
        // exists as long as this does, so that there is no error.
        _ = self.receiver.changed().await;
    }
}

impl Drop for NodeWatch<'_> {
    fn drop(&mut self) {
        let mut waiting = self.all.waiting();
        // Counted under the lock, with which others are added.
        let is_last = waiting
            .get(&self.uuid)
            .is_some_and(|sender| sender.receiver_count() <= 1);
        if is_last {
            waiting.remove(&self.uuid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_notifies_all_waiters_of_its_node() {
        let all = NodeWatches::default();
        let (mut one, mut two, other) = (all.watch("a"), all.watch("a"), all.watch("b"));
        all.notify("a");
        // It came before they wait, and is not lost.
        one.changed().await;
        two.changed().await;
        assert!(!other.receiver.has_changed().expect("a sender"));
        all.notify("a");
        one.mark_seen();
        assert!(!one.receiver.has_changed().expect("a sender"));
        assert!(two.receiver.has_changed().expect("a sender"));
        drop(one);
        assert_eq!(all.waiting().len(), 2);
        drop((two, other));
        assert!(all.waiting().is_empty());
        all.notify("a");
        assert!(all.waiting().is_empty());
    }
}
