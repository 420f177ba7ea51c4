//! Remembers recent lists, for the fault that returns an old one.

use std::sync::PoisonError;

use serde_json::Value;

use super::World;
use crate::calls::Request;

/// Number of remembered lists.
const KEPT: usize = 64;
/// Lists of Worlds with more guests are not remembered, to save memory.
const LARGEST: usize = 1_000;

/// Whether a call reads a list, such as those of guests, files or tasks.
fn is_list(request: &Request) -> bool {
    let last = request.api_path().rsplit('/').next().unwrap_or("");
    request.method == "GET"
        && matches!(
            last,
            "resources" | "qemu" | "lxc" | "content" | "tasks" | "nodes" | "storage" | "pools"
        )
}

/// Returns the key of a list: credentials, path and parameters.
fn list_key(request: &Request) -> String {
    format!(
        "{:?} {} {:?}",
        request.credentials,
        request.api_path(),
        request.parameters
    )
}

impl World {
    pub(crate) fn remember_list(&self, key: String, list: &Value) {
        let now = self.now();
        let mut lists = self.0.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.push_back((now, key, list.clone()));
        if lists.len() > KEPT {
            lists.pop_front();
        }
    }

    /// Returns the key under which to remember an answer, if it is a list.
    pub(crate) fn list_key(&self, request: &Request) -> Option<String> {
        let small = || self.state().guests.len() <= LARGEST;
        (is_list(request) && small()).then(|| list_key(request))
    }

    /// Returns the newest remembered list that is at least this many seconds old, or the oldest.
    pub(crate) fn old_list(&self, request: &Request, seconds: f64) -> Option<Value> {
        let (now, wanted) = (self.now(), list_key(request));
        let lists = self.0.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let same = || lists.iter().filter(|(_, key, _)| *key == wanted);
        let old = same().rev().find(|(at, _, _)| now - at >= seconds);
        old.or_else(|| same().next())
            .map(|(_, _, list)| list.clone())
    }
}
