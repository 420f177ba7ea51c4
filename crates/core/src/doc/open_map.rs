//! A mapping while it is being read: entries, keys seen, what `<<` brought in.
//!
//! In: keys and values as they come. Out: the entries, each key once.
//! Never: faults; the reader reports a repeated key.

use std::collections::HashMap;

use super::source::Span;
use super::tree::{Entry, Key};

/// Mappings with more keys than this look keys up in an index; few keys are faster compared.
const FEW_KEYS: usize = 16;

/// A mapping that has been opened and not yet closed.
#[derive(Default)]
pub(super) struct OpenMap {
    /// What was written, in order, each key once.
    pub(super) entries: Vec<Entry>,
    /// Every key and its first place, once they are more than a few.
    keys: HashMap<String, Span>, // tidy: looked up, never walked
    /// What `<<` brought in; written keys win, so it is added at the end.
    pub(super) merged: Vec<Entry>,
    /// The key whose value comes next.
    pub(super) pending: Option<Key>,
    /// The value of a repeated key is dropped.
    pub(super) skip: bool,
}

impl OpenMap {
    /// Returns where a key was first written.
    pub(super) fn first(&self, key: &str) -> Option<Span> {
        if self.entries.len() > FEW_KEYS {
            return self.keys.get(key).copied();
        }
        let mut entries = self.entries.iter();
        entries
            .find(|entry| entry.key.text == key)
            .map(|entry| entry.key.span)
    }

    /// Adds an entry whose key is new.
    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
        let new = match self.entries.len() {
            n_entries if n_entries <= FEW_KEYS => return,
            n_entries if n_entries == FEW_KEYS + 1 => self.entries.as_slice(),
            n_entries => &self.entries[n_entries - 1..],
        };
        for Entry { key, .. } in new {
            self.keys.entry(key.text.clone()).or_insert(key.span);
        }
    }

    /// Adds what was merged, where nothing was written, and returns all entries.
    pub(super) fn close(mut self) -> Vec<Entry> {
        for entry in std::mem::take(&mut self.merged) {
            if self.first(&entry.key.text).is_none() {
                self.push(entry);
            }
        }
        self.entries
    }
}
