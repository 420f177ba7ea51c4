//! Every time limit that can be set, with its default: the one table that documents, flags, the
//! environment and the reference page share.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::declare::document;
use super::scalar::Int;

/// The longest time limit, in seconds: a day.
pub const LONGEST: u64 = 86_400;

/// Declares the limits once: the enum, its words and defaults, and the document's mapping.
macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $variant:ident $field:ident = $default:literal,)+) => {
        /// A time limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Limit { $($(#[doc = $doc])+ $variant,)+ }

        impl Limit {
            /// Every limit, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name as written in documents, flags and the environment.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => stringify!($field),)+ }
            }

            /// Returns the limit behind a name.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|limit| limit.word() == word)
            }

            /// Returns the seconds that hold when nothing is set.
            pub fn default_seconds(self) -> u64 {
                match self { $(Self::$variant => const { number($default) },)+ }
            }

            /// Returns what is limited, in a sentence.
            pub fn what(self) -> &'static str {
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
            /// Returns what is written, with where.
            pub fn written(&self) -> Vec<(Limit, &super::Spanned<Int<1, 86400>>)> {
                let mut written = Vec::new();
                $(written.extend(self.$field.as_ref().map(|value| (Limit::$variant, value)));)+
                written
            }
        }
    };
}

limits! {
    /// From the start of a guest until it is reached: its address, its SSH, and the API of a node that hosts others. `timeout_buffer` is added per level of nesting.
    Boot boot = "300",
    /// For a host whose API does not answer. It holds for every step, undo and probe, each time that contact is lost.
    Api api = "300",
    /// For a lock that someone else holds: on a guest, such as that of a backup, or on files of the driver or of `-H local`.
    Lock lock = "300",
    /// For a task of a host that makes no progress.
    Task task = "900",
    /// For a guest that was asked to shut down, before it is switched off.
    Shutdown shutdown = "60",
    /// The same when a run is undone: nobody has used the guest yet.
    UndoShutdown undo_shutdown = "10",
    /// To find out what became of a request to create a guest whose answer was lost.
    Settle settle = "600",
    /// For a connection to an API.
    Connect connect = "10",
    /// For an answer of an API. Proxmox VE waits up to 10 s for each lock, so less than 30 s gives up on requests that succeed.
    Answer answer = "60",
    /// For an upload that makes no progress.
    Upload upload = "120",
    /// For a node to be reached again, before it reverts a change that could cut it off.
    Confirm confirm = "30",
    /// For an SSH connection to a node, and for each of the small programs `ssh-keygen` and `ssh -O exit`.
    Ssh ssh = "10",
    /// For a sign of life from a node that is being configured; it sends one every 10 s.
    Silence silence = "60",
    /// For a node to be configured, however much it reports.
    Config config = "21600",
}

const fn number(text: &str) -> u64 {
    match u64::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("a default is a number"),
    }
}

/// Time limits that were set; the others have their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, u64>", into = "BTreeMap<String, u64>")]
pub struct Timeouts([Option<u32>; Limit::ALL.len()]);

/// Why a text sets no time limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeoutError {
    /// It is not `NAME=SECONDS`.
    #[error("`{0}` is not NAME=SECONDS")]
    Form(String),
    /// There is no such limit.
    #[error("there is no time limit `{0}`; there are {names}", names = names())]
    Name(String),
    /// The number is wrong.
    #[error("`{value}` is not a number of seconds from 1 to {LONGEST} (`{name}`)")]
    Value {
        /// Which limit.
        name: &'static str,
        /// What was written.
        value: String,
    },
}

fn names() -> String {
    let names: Vec<&str> = Limit::ALL.iter().map(|limit| limit.word()).collect();
    names.join(", ")
}

impl Timeouts {
    /// Sets one limit.
    pub fn set(&mut self, limit: Limit, seconds: u64) -> Result<(), TimeoutError> {
        let fits = u32::try_from(seconds).ok();
        let fits = fits.filter(|_| (1..=LONGEST).contains(&seconds));
        let seconds = fits.ok_or_else(|| TimeoutError::Value {
            name: limit.word(),
            value: seconds.to_string(),
        })?;
        self.0[limit as usize] = Some(seconds);
        Ok(())
    }

    /// Reads `NAME=SECONDS`, several of them with commas between them.
    pub fn parse(text: &str) -> Result<Self, TimeoutError> {
        let mut timeouts = Self::default();
        for part in text.split(',').map(str::trim) {
            let Some((name, value)) = part.split_once('=') else {
                return Err(TimeoutError::Form(part.to_owned()));
            };
            let name = name.trim();
            let limit =
                Limit::from_word(name).ok_or_else(|| TimeoutError::Name(name.to_owned()))?;
            timeouts.set(limit, seconds(limit, value.trim())?)?;
        }
        Ok(timeouts)
    }

    /// Returns these limits, with those that another sets on top.
    #[must_use]
    pub fn with(mut self, over: &Self) -> Self {
        for (own, over) in self.0.iter_mut().zip(over.0) {
            *own = over.or(*own);
        }
        self
    }

    /// Tells whether nothing was set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Returns how long a limit is.
    pub fn of(&self, limit: Limit) -> Duration {
        let set = self.0[limit as usize].map(u64::from);
        Duration::from_secs(set.unwrap_or_else(|| limit.default_seconds()))
    }
}

/// Reads a number of seconds.
pub fn seconds(limit: Limit, text: &str) -> Result<u64, TimeoutError> {
    let number = text.parse().ok();
    let number = number.filter(|seconds| (1..=LONGEST).contains(seconds));
    number.ok_or_else(|| TimeoutError::Value {
        name: limit.word(),
        value: text.to_owned(),
    })
}

impl From<Timeouts> for BTreeMap<String, u64> {
    fn from(timeouts: Timeouts) -> Self {
        let limits = Limit::ALL.iter().zip(timeouts.0);
        limits
            .filter_map(|(limit, set)| Some((limit.word().to_owned(), u64::from(set?))))
            .collect()
    }
}

impl TryFrom<BTreeMap<String, u64>> for Timeouts {
    type Error = TimeoutError;

    fn try_from(written: BTreeMap<String, u64>) -> Result<Self, TimeoutError> {
        let mut timeouts = Self::default();
        for (name, seconds) in written {
            let limit = Limit::from_word(&name).ok_or(TimeoutError::Name(name))?;
            timeouts.set(limit, seconds)?;
        }
        Ok(timeouts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_last_counts_and_the_rest_has_its_default() {
        let manifest = Timeouts::parse("boot=600,lock=20").expect("limits");
        let flag = Timeouts::parse("lock=5").expect("a limit");
        let both = manifest.with(&flag);
        assert_eq!(both.of(Limit::Boot), Duration::from_secs(600));
        assert_eq!(both.of(Limit::Lock), Duration::from_secs(5));
        assert_eq!(both.of(Limit::Api), Duration::from_secs(300));
    }

    #[test]
    fn a_wrong_value_is_a_fault_and_not_replaced() {
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
    fn limits_are_written_by_name_and_read_back() {
        let set = Timeouts::parse("api=20").expect("a limit");
        let text = serde_json::to_string(&set).expect("JSON");
        assert_eq!(text, r#"{"api":20}"#);
        assert_eq!(serde_json::from_str::<Timeouts>(&text).ok(), Some(set));
        assert!(serde_json::from_str::<Timeouts>(r#"{"api":0}"#).is_err());
    }
}
