//! A mapping that is being parsed: entries, keys seen so far, and entries merged with `<<`.

use std::collections::HashMap;

use super::source::Span;
use super::tree::{Entry, Key};

/// Mappings with more keys use an index; comparing is faster for fewer.
const FEW_KEYS: usize = 16;

/// A mapping that is not closed yet.
#[derive(Default)]
pub(super) struct OpenMap {
    /// Entries in order, each key once.
    pub(super) entries: Vec<Entry>,
    /// Every key and its first span, if there are more than [`FEW_KEYS`].
    keys: HashMap<String, Span>, // tidy: looked up, never walked
    /// Entries merged with `<<`; explicit keys override them, so they are added at the end.
    pub(super) merged: Vec<Entry>,
    /// The key whose value is parsed next.
    pub(super) pending: Option<Key>,
    /// Whether the next value belongs to a duplicate key and is dropped.
    pub(super) skip: bool,
}

impl OpenMap {
    /// Returns the first span of a key.
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

    /// Adds merged entries whose keys are not set explicitly, and returns all entries.
    pub(super) fn close(mut self) -> Vec<Entry> {
        for entry in std::mem::take(&mut self.merged) {
            if self.first(&entry.key.text).is_none() {
                self.push(entry);
            }
        }
        self.entries
    }
}
