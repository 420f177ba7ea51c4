//! Lists as they were shown before, for the fault that shows an old one.
//!
//! In: what a list showed, to whom, and when. Out: what the same question was answered with then.
//! Never: the answer to another question; a list of all things is not one of guests.

use std::sync::PoisonError;

use serde_json::Value;

use super::World;
use crate::calls::Request;

/// How many lists are remembered.
const KEPT: usize = 64;
/// Lists of larger Worlds are not remembered: memory is for guests.
const LARGEST: usize = 1_000;

/// Whether a call reads something that others change: a list of guests, files or tasks.
fn is_list(request: &Request) -> bool {
    let last = request.api_path().rsplit('/').next().unwrap_or("");
    request.method == "GET"
        && matches!(
            last,
            "resources" | "qemu" | "lxc" | "content" | "tasks" | "nodes" | "storage" | "pools"
        )
}

/// Whoever asks the same with the same rights is answered the same.
fn question(request: &Request) -> String {
    format!(
        "{:?} {} {:?}",
        request.credentials,
        request.api_path(),
        request.parameters
    )
}

impl World {
    pub(crate) fn remember(&self, question: String, list: &Value) {
        let now = self.now();
        let mut lists = self.0.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.push_back((now, question, list.clone()));
        if lists.len() > KEPT {
            lists.pop_front();
        }
    }

    /// Returns the question to remember an answer under, if it is one that can be old.
    pub(crate) fn question(&self, request: &Request) -> Option<String> {
        let small = || self.state().guests.len() <= LARGEST;
        (is_list(request) && small()).then(|| question(request))
    }

    /// Returns the newest answer that is at least so many seconds old, or the oldest there is.
    pub(crate) fn old_list(&self, request: &Request, seconds: f64) -> Option<Value> {
        let (now, wanted) = (self.now(), question(request));
        let lists = self.0.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let same = || lists.iter().filter(|(_, asked, _)| *asked == wanted);
        let old = same().rev().find(|(at, _, _)| now - at >= seconds);
        old.or_else(|| same().next())
            .map(|(_, _, list)| list.clone())
    }
}
