//! Scripts: faults of calls, and events that change the World at a given time.
//!
//! There is no timer for events; those that are due are applied before anything else is done.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::World;
use super::fault::Fault;
use super::timing::BootStages;

/// An event that changes the World.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A host becomes unreachable.
    HostOffline(String),
    /// A host becomes reachable again.
    HostOnline(String),
    /// The cluster loses its quorum; changes are refused.
    QuorumLost,
    /// The cluster regains its quorum.
    QuorumBack,
    /// A storage becomes full.
    StorageFull(String),
    /// A storage is no longer full.
    StorageFree(String),
    /// Sets the copy speed of disks, in bytes per second.
    DiskSpeed(u64),
    /// Sets the boot stages of virtual machines that start from now on.
    Boot(BootStages),
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedEvent {
    /// Simulated seconds after the script was set.
    pub at: f64,
    /// The event.
    pub event: Event,
}

/// A list of faults and events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// Faults of calls.
    pub faults: Vec<Fault>,
    /// Events of the World.
    pub events: Vec<TimedEvent>,
}

/// Why a script is invalid.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// It is not a list.
    #[error("a script is a list of faults and events")]
    NotAList,
    /// One of its entries is invalid.
    #[error("entry {number} of the script")]
    Entry {
        /// The number of the entry, from 1.
        number: usize,
        /// The error.
        #[source]
        source: serde_json::Error,
    },
}

impl Script {
    /// Parses a list of faults, `{on, kind}`, and events, `{at, event}`.
    pub fn parse(list: &Value) -> Result<Self, ScriptError> {
        let mut script = Self::default();
        let entries = list.as_array().ok_or(ScriptError::NotAList)?;
        for (at, entry) in entries.iter().enumerate() {
            let invalid = |source| ScriptError::Entry {
                number: at + 1,
                source,
            };
            if entry.get("at").is_some() || entry.get("event").is_some() {
                script
                    .events
                    .push(TimedEvent::deserialize(entry).map_err(invalid)?);
            } else {
                script
                    .faults
                    .push(Fault::deserialize(entry).map_err(invalid)?);
            }
        }
        Ok(script)
    }
}

impl World {
    /// Sets the script, replacing the previous one and all faults.
    pub fn set_script(&self, script: Script) {
        let now = self.now();
        let mut state = self.state();
        state.faults.clear();
        for fault in script.faults {
            state.faults.add(fault);
        }
        let due = script.events.into_iter();
        state.events = due.map(|timed| (now + timed.at, timed.event)).collect();
        state.events.sort_by(|one, other| one.0.total_cmp(&other.0));
    }

    /// Applies the events that are due. Called before anything else is done.
    pub(crate) fn apply_due_events(&self) {
        let now = self.now();
        loop {
            let event = {
                let mut state = self.state();
                match state.events.first() {
                    Some((due, _)) if *due <= now => state.events.remove(0).1,
                    _ => return,
                }
            };
            self.apply_event(&event);
        }
    }

    fn apply_event(&self, event: &Event) {
        match event {
            Event::HostOffline(host) => self.set_online(host, false),
            Event::HostOnline(host) => self.set_online(host, true),
            Event::QuorumLost => self.set_quorate(false),
            Event::QuorumBack => self.set_quorate(true),
            Event::StorageFull(storage) => self.set_full(storage, true),
            Event::StorageFree(storage) => self.set_full(storage, false),
            Event::DiskSpeed(speed) => self.set_copy_speed(*speed),
            Event::Boot(stages) => self.set_stages(stages.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reports_the_number_of_an_invalid_entry() {
        let wrong = json!([{ "kind": "garbage", "on": {} }, { "kind": "nonsense", "on": {} }]);
        let error = Script::parse(&wrong).unwrap_err();
        assert_eq!(error.to_string(), "entry 2 of the script");
        assert!(Script::parse(&json!({})).is_err());
        let stages = json!([{ "at": 0, "event": { "boot": { "ssh": 60 } } }]);
        assert!(Script::parse(&stages).is_ok());
        let stages = json!([{ "at": 0, "event": { "boot": { "sshd": 60 } } }]);
        assert!(Script::parse(&stages).is_err());
        let unknown = json!([{ "at": 3, "event": "quorum-lost", "also": 1 }]);
        assert!(Script::parse(&unknown).is_err());
    }
}
