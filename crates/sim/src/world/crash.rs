//! Power failure of a host.

use super::World;

impl World {
    /// Simulates a power failure of a host: its guests are off and its tasks end without cleanup, so
    /// guests being created keep their `lock: create` or `lock: clone`.
    pub fn crash(&self, host: &str) {
        let now = self.epoch();
        let mut state = self.state();
        for task in state.tasks.by_upid.values_mut() {
            if task.node == host {
                task.abort(now);
            }
        }
        for guest in state.guests.values_mut() {
            if guest.node == host {
                guest.running = None;
            }
        }
        // Copies of other hosts decrement their counter when they end; it does not go below zero.
        state.copies.clear();
    }
}
