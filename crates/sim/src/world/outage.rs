//! A host that loses power: its guests are off, its tasks end without a word.
//!
//! In: a host's name. Out: a World in which what its tasks had begun is left as it was.
//! Never: clearing up; a real host does none either.

use super::World;

impl World {
    /// Takes the power from a host and gives it back: what it was doing stays half-done, so that
    /// guests being made keep their `lock: create` or `lock: clone`.
    pub fn crash(&self, host: &str) {
        let now = self.epoch();
        let mut state = self.state();
        for task in state.tasks.by_upid.values_mut() {
            if task.node == host && task.ended.is_none() {
                task.ended = Some(now);
                task.exit = Some("unexpected status".to_owned());
                task.cancel.cancel();
            }
        }
        for guest in state.guests.values_mut() {
            if guest.node == host {
                guest.running = None;
            }
        }
        // Copies of other hosts count themselves out again; fewer than none there are not.
        state.copies.clear();
    }
}
