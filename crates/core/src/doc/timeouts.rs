//! All configurable time limits with their defaults: the one table that documents, flags,
//! environment and the reference page share.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::declare::document;
use super::scalar::Int;

/// The longest time limit, in seconds: a day.
pub const LONGEST: u64 = 86_400;

/// Declares the limits once: the enum, names and defaults, and the mapping in documents.
macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $variant:ident $field:ident = $default:literal,)+) => {
        /// A time limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Limit { $($(#[doc = $doc])+ $variant,)+ }

        impl Limit {
            /// Every limit, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name used in documents, flags and the environment.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($field),)+ }
            }

            /// Returns the limit of a name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|limit| limit.name() == name)
            }

            /// Returns the default, in seconds.
            pub fn default_seconds(self) -> u64 {
                match self { $(Self::$variant => const { number($default) },)+ }
            }

            /// Returns the description.
            pub fn description(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }

        document! {
            /// Time limits, in seconds.
            #[derive(Debug, PartialEq)]
            TimeoutSettings as "settings.timeouts" {
                $($(#[doc = $doc])+ $field default $default: Int<1, 86400>,)+
            }
        }

        impl TimeoutSettings {
            /// Returns the limits that are set, with their spans.
            pub fn limits(&self) -> Vec<(Limit, &super::Spanned<Int<1, 86400>>)> {
                let mut limits = Vec::new();
                $(limits.extend(self.$field.as_ref().map(|value| (Limit::$variant, value)));)+
                limits
            }
        }
    };
}

limits! {
    /// For a started guest to become reachable: its address, SSH, and the API of a hypervisor. `timeout_buffer` is added per level of nesting.
    Boot boot = "300",
    /// For a host whose API does not respond. Applies to every step, undo and probe, each time the connection is lost.
    Api api = "300",
    /// For a lock that another process holds: on a guest, such as that of a backup, or on files of the driver or of `-H local`.
    Lock lock = "300",
    /// For a task of a host that makes no progress.
    Task task = "900",
    /// For a guest to shut down, before it is stopped.
    Shutdown shutdown = "60",
    /// For a guest to shut down when a run is rolled back: it has not been used yet.
    UndoShutdown undo_shutdown = "10",
    /// To determine the outcome of a request to create a guest whose response was lost.
    Settle settle = "600",
    /// For a connection to an API.
    Connect connect = "10",
    /// For a response of an API. Proxmox VE waits up to 10 s for each lock, so with less than 30 s requests that succeed would time out.
    Answer answer = "60",
    /// For an upload that makes no progress.
    Upload upload = "120",
    /// For a change that could lock out the driver to be confirmed over a new connection, before the node reverts it.
    Confirm confirm = "30",
    /// For an SSH connection to a node, and for each run of `ssh-keygen` and `ssh -O exit`.
    Ssh ssh = "10",
    /// For a heartbeat of a node that is being configured; it sends one every 10 s.
    Silence silence = "60",
    /// For the whole configuration of a node.
    Config config = "21600",
}

const fn number(text: &str) -> u64 {
    match u64::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("a default is a number"),
    }
}

/// Time limits that were set; the others have their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "BTreeMap<String, u64>", into = "BTreeMap<String, u64>")]
#[schemars(inline)]
pub struct Timeouts([Option<u32>; Limit::ALL.len()]);

/// Why a time limit is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeoutError {
    /// It is not `NAME=SECONDS`.
    #[error("`{0}` is not NAME=SECONDS")]
    Form(String),
    /// The limit does not exist.
    #[error("unknown time limit `{0}`; known ones are {names}", names = names())]
    Name(String),
    /// The value is out of range or not a number.
    #[error("`{value}` is not a number of seconds from 1 to {LONGEST} (`{name}`)")]
    Value {
        /// The limit.
        name: &'static str,
        /// The invalid value.
        value: String,
    },
}

fn names() -> String {
    let names: Vec<&str> = Limit::ALL.iter().map(|limit| limit.name()).collect();
    names.join(", ")
}

impl Timeouts {
    /// Sets one limit.
    pub fn set(&mut self, limit: Limit, seconds: u64) -> Result<(), TimeoutError> {
        let fits = u32::try_from(seconds).ok();
        let fits = fits.filter(|_| (1..=LONGEST).contains(&seconds));
        let seconds = fits.ok_or_else(|| TimeoutError::Value {
            name: limit.name(),
            value: seconds.to_string(),
        })?;
        self.0[limit as usize] = Some(seconds);
        Ok(())
    }

    /// Parses a comma-separated list of `NAME=SECONDS`.
    pub fn parse(text: &str) -> Result<Self, TimeoutError> {
        let mut timeouts = Self::default();
        for part in text.split(',').map(str::trim) {
            let Some((name, value)) = part.split_once('=') else {
                return Err(TimeoutError::Form(part.to_owned()));
            };
            let name = name.trim();
            let limit =
                Limit::from_name(name).ok_or_else(|| TimeoutError::Name(name.to_owned()))?;
            timeouts.set(limit, seconds(limit, value.trim())?)?;
        }
        Ok(timeouts)
    }

    /// Returns these limits, overridden by those of `over`.
    #[must_use]
    pub fn with(mut self, over: &Self) -> Self {
        for (own, over) in self.0.iter_mut().zip(over.0) {
            *own = over.or(*own);
        }
        self
    }

    /// Returns whether no limit is set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Returns the value of a limit.
    pub fn of(&self, limit: Limit) -> Duration {
        let set = self.0[limit as usize].map(u64::from);
        Duration::from_secs(set.unwrap_or_else(|| limit.default_seconds()))
    }
}

/// Parses a number of seconds.
pub fn seconds(limit: Limit, text: &str) -> Result<u64, TimeoutError> {
    let number = text.parse().ok();
    let number = number.filter(|seconds| (1..=LONGEST).contains(seconds));
    number.ok_or_else(|| TimeoutError::Value {
        name: limit.name(),
        value: text.to_owned(),
    })
}

impl From<Timeouts> for BTreeMap<String, u64> {
    fn from(timeouts: Timeouts) -> Self {
        let limits = Limit::ALL.iter().zip(timeouts.0);
        limits
            .filter_map(|(limit, set)| Some((limit.name().to_owned(), u64::from(set?))))
            .collect()
    }
}

impl TryFrom<BTreeMap<String, u64>> for Timeouts {
    type Error = TimeoutError;

    fn try_from(written: BTreeMap<String, u64>) -> Result<Self, TimeoutError> {
        let mut timeouts = Self::default();
        for (name, seconds) in written {
            let limit = Limit::from_name(&name).ok_or(TimeoutError::Name(name))?;
            timeouts.set(limit, seconds)?;
        }
        Ok(timeouts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_limits_override_earlier_ones_and_defaults() {
        let manifest = Timeouts::parse("boot=600,lock=20").expect("limits");
        let flag = Timeouts::parse("lock=5").expect("a limit");
        let both = manifest.with(&flag);
        assert_eq!(both.of(Limit::Boot), Duration::from_secs(600));
        assert_eq!(both.of(Limit::Lock), Duration::from_secs(5));
        assert_eq!(both.of(Limit::Api), Duration::from_secs(300));
    }

    #[test]
    fn invalid_values_are_errors() {
        for text in [
            "",
            "boot",
            "boot=",
            "boot=0",
            "boot=86401",
            "boot=1.5",
            "boot=-1",
            "boot=300,",
            "boots=300",
            "boot=99999999999999999999",
        ] {
            assert!(Timeouts::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn limits_are_serialized_by_name() {
        let set = Timeouts::parse("api=20").expect("a limit");
        let text = serde_json::to_string(&set).expect("JSON");
        assert_eq!(text, r#"{"api":20}"#);
        assert_eq!(serde_json::from_str::<Timeouts>(&text).ok(), Some(set));
        assert!(serde_json::from_str::<Timeouts>(r#"{"api":0}"#).is_err());
    }
}
