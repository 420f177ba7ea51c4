//! Faults as data: what goes wrong, on which call, how often.
//!
//! In: a [`Fault`], built in code or read from JSON. Out: what to do with a call.
//! Never: chance; a fault hits the calls it names.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What goes wrong with a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The connection ends before the call is acted on.
    ResetBefore,
    /// The call is acted on and the connection ends before the answer.
    ResetAfter,
    /// Nothing ever comes back, and nothing is done.
    Timeout,
    /// The call is acted on and nothing ever comes back.
    LostAnswer,
    /// The call is acted on twice, as a proxy that retries does; the second answer is given.
    RepeatedAnswer,
    /// An answer of the proxy, such as 595, 596 or 599; the call is not acted on.
    Status(u16),
    /// The call is acted on; the answer is not JSON.
    Garbage,
    /// The call is acted on; half of the answer arrives.
    Truncated,
    /// The call is acted on after so many seconds.
    Slow(f64),
    /// A list shows what it showed some seconds ago.
    StaleList(f64),
}

/// Which calls a fault is for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Call {
    /// Only the n-th call that matches the rest, counted from one.
    pub nth: Option<u64>,
    /// Every call from the n-th on, when `nth` is absent.
    pub times: Option<u64>,
    /// The method, such as `POST`.
    pub method: Option<String>,
    /// A part of the path; `*` stands for anything in between.
    pub path: Option<String>,
}

impl Call {
    /// Matches every call.
    pub fn any() -> Self {
        Self::default()
    }

    /// Matches the n-th call, counted from one.
    pub fn nth(nth: u64) -> Self {
        Self {
            nth: Some(nth),
            ..Self::default()
        }
    }

    /// Matches the first so many calls.
    pub fn times(times: u64) -> Self {
        Self {
            times: Some(times),
            ..Self::default()
        }
    }

    /// Only calls with this method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Only calls whose path contains this; `*` stands for anything in between.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    fn fits(&self, method: &str, path: &str) -> bool {
        self.method.as_deref().is_none_or(|wanted| wanted == method)
            && self
                .path
                .as_deref()
                .is_none_or(|wanted| contains(path, wanted))
    }
}

fn contains(path: &str, pattern: &str) -> bool {
    let mut rest = path;
    pattern.split('*').all(|piece| match rest.find(piece) {
        Some(at) => {
            rest = &rest[at + piece.len()..];
            true
        }
        None => false,
    })
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Which calls it is for.
    pub on: Call,
    /// What goes wrong.
    pub kind: FaultKind,
}

impl Fault {
    /// Makes a fault.
    pub fn new(on: Call, kind: FaultKind) -> Self {
        Self { on, kind }
    }

    /// Reads a script: a JSON list of faults.
    pub fn parse_script(text: &str) -> Result<Vec<Self>, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// The faults of a World with how often each has matched.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Faults(Vec<(Fault, u64)>);

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.0.push((fault, 0));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them shows old lists, which someone has to keep then.
    pub(crate) fn show_old_lists(&self) -> bool {
        let old = |fault: &Fault| matches!(fault.kind, FaultKind::StaleList(_));
        self.0.iter().any(|(fault, _)| old(fault))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns what goes wrong with this call. The first fault that hits wins.
    pub(crate) fn hit(&mut self, method: &str, path: &str) -> Option<FaultKind> {
        let mut kind = None;
        for (fault, seen) in &mut self.0 {
            if !fault.on.fits(method, path) {
                continue;
            }
            *seen += 1;
            let now = match (fault.on.nth, fault.on.times) {
                (Some(nth), _) => *seen == nth,
                (None, Some(times)) => *seen <= times,
                (None, None) => true,
            };
            if now && kind.is_none() {
                kind = Some(fault.kind.clone());
            }
        }
        kind
    }
}

/// How long a connection of a fault without an answer stays open.
pub(crate) const SILENCE: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_names_the_call_that_fails() {
        let script =
            r#"[{"on":{"nth":2,"method":"POST","path":"/qemu/*/clone"},"kind":{"status":596}}]"#;
        let mut faults = Faults::default();
        for fault in Fault::parse_script(script).unwrap() {
            faults.add(fault);
        }
        let path = "/nodes/pve1/qemu/100/clone";
        assert_eq!(faults.hit("POST", path), None);
        assert_eq!(faults.hit("GET", path), None);
        assert_eq!(faults.hit("POST", path), Some(FaultKind::Status(596)));
        assert_eq!(faults.hit("POST", path), None);
    }
}
