//! What happens to a World by itself: hosts that go, storages that fill, at a time of the script.
//!
//! In: a script of faults and events. Out: a World in which they happen when they are due.
//! Never: a clock of its own; an event happens before the next thing anyone does.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::World;
use super::fault::Fault;
use super::timing::Stages;

/// Something that happens to the World.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A host is not reached any more.
    HostOffline(String),
    /// A host is reached again.
    HostOnline(String),
    /// The cluster loses its quorum: nothing can be changed.
    QuorumLost,
    /// The cluster has its quorum again.
    QuorumBack,
    /// A storage takes no more data.
    StorageFull(String),
    /// A storage takes data again.
    StorageFree(String),
    /// Disks copy at so many bytes per second from now on.
    DiskSpeed(u64),
    /// Virtual machines that start from now on boot in these stages: seconds from their start.
    Boot(Stages),
}

/// An event and when it happens.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// Seconds of the World's time after the script was given to it.
    pub at: f64,
    /// What happens.
    pub event: Event,
}

/// Faults of calls and events of the World, as data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// Faults of calls.
    pub faults: Vec<Fault>,
    /// Events of the World.
    pub events: Vec<Timed>,
}

/// Why a script is not understood.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// It is something else than a list.
    #[error("a script is a list of faults and events")]
    NotAList,
    /// One of its entries is wrong.
    #[error("entry {number} of the script")]
    Entry {
        /// Which one, counted from one.
        number: usize,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl Script {
    /// Reads a list whose entries are faults, `{on, kind}`, or events, `{at, event}`.
    pub fn parse(list: &Value) -> Result<Self, ScriptError> {
        let mut script = Self::default();
        let entries = list.as_array().ok_or(ScriptError::NotAList)?;
        for (at, entry) in entries.iter().enumerate() {
            let wrong = |source| ScriptError::Entry {
                number: at + 1,
                source,
            };
            if entry.get("at").is_some() || entry.get("event").is_some() {
                script
                    .events
                    .push(Timed::deserialize(entry).map_err(wrong)?);
            } else {
                script
                    .faults
                    .push(Fault::deserialize(entry).map_err(wrong)?);
            }
        }
        Ok(script)
    }
}

impl World {
    /// Plays a script, in place of the one before.
    pub fn play(&self, script: Script) {
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

    /// Lets happen what is due. Called before anything is done, so that nobody sees a World that
    /// is behind.
    pub(crate) fn catch_up(&self) {
        let now = self.now();
        loop {
            let event = {
                let mut state = self.state();
                match state.events.first() {
                    Some((due, _)) if *due <= now => state.events.remove(0).1,
                    _ => return,
                }
            };
            self.happen(&event);
        }
    }

    fn happen(&self, event: &Event) {
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
    fn a_wrong_entry_is_named() {
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
