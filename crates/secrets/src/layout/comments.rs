//! Puts each comment into the collection SOPS would put it in.
//!
//! In: tokens and raw comments. Out: the finished [`Layout`].
//! Never: reading what a comment says.

use super::tokens::{Found, RawComment, line_start};
use super::{Comment, Item, Layout};

/// Finishes a layout.
pub(super) fn place(text: &str, found: Found) -> Layout {
    let mut placer = Placer { text, found };
    placer.link();
    let raw = std::mem::take(&mut placer.found.comments);
    let mut comments = Vec::with_capacity(raw.len());
    for (nth, comment) in raw.into_iter().enumerate() {
        comments.push(placer.place(nth, comment));
    }
    Layout {
        collections: placer.found.collections,
        leaves: placer.found.leaves,
        comments,
        odd_key: placer.found.odd_key,
        metadata: placer.found.metadata,
    }
}

struct Placer<'t> {
    text: &'t str,
    found: Found,
}

impl Placer<'_> {
    /// Tells every collection where its entry in the parent starts, dash included.
    fn link(&mut self) {
        for id in 0..self.found.collections.len() {
            for nth in 0..self.found.collections[id].items.len() {
                if let (at, Item::Child(child)) = self.found.collections[id].items[nth] {
                    self.found.collections[child].entry = at;
                }
            }
        }
    }

    fn place(&mut self, nth: usize, raw: RawComment) -> Comment {
        let start = raw.range.start;
        let line = line_start(self.text, start);
        let before = self.text[line..start].trim();
        let own_line = before.chars().all(|c| c == '-');
        let collection = if own_line {
            self.of_own_line(&raw, start - line)
        } else {
            self.of_line_end(&raw)
        };
        let items = &mut self.found.collections[collection].items;
        let following = items.partition_point(|(at, _)| *at < start);
        // SOPS moves a comment at the end of a line in front of its entry.
        let position = if own_line {
            following
        } else {
            following.saturating_sub(1)
        };
        let at = if own_line {
            start
        } else {
            items.get(position).map_or(start, |(at, _)| *at)
        };
        items.insert(position, (at, Item::Comment(nth)));
        Comment {
            others: self.others(&raw, collection),
            range: raw.range,
            collection,
        }
    }

    /// A comment behind something belongs to the collection of that entry.
    fn of_line_end(&self, raw: &RawComment) -> usize {
        let mut id = self.token_before(raw).unwrap_or_default();
        while let Some(parent) = self.found.collections[id]
            .parent
            .filter(|_| self.found.collections[id].flow)
        {
            id = parent;
        }
        id
    }

    /// A comment line belongs to the entry below it, unless it is indented deeper: then it
    /// closes the collection above it.
    fn of_own_line(&self, raw: &RawComment, column: usize) -> usize {
        if let Some(token) = self.found.tokens.get(raw.tokens_before) {
            let line = line_start(self.text, token.start);
            let indent = self.text[line..].len() - self.text[line..].trim_start().len();
            if column <= indent {
                let mut id = token.collection;
                while let Some(parent) = self.found.collections[id].parent.filter(|_| {
                    let entry = self.found.collections[id].entry;
                    line_start(self.text, entry) == line
                }) {
                    id = parent;
                }
                return id;
            }
        }
        let Some(above) = self.token_before(raw) else {
            return 0;
        };
        let chain = self.chain(above);
        chain
            .into_iter()
            .find(|id| {
                let collection = &self.found.collections[*id];
                !collection.flow && collection.column <= column
            })
            .unwrap_or_default()
    }

    fn token_before(&self, raw: &RawComment) -> Option<usize> {
        let before = raw.tokens_before.checked_sub(1)?;
        self.found.tokens.get(before).map(|token| token.collection)
    }

    /// Returns a collection and all around it, innermost first.
    fn chain(&self, id: usize) -> Vec<usize> {
        std::iter::successors(Some(id), |id| self.found.collections[*id].parent).collect()
    }

    /// Lists other collections the comment could be in, for files that others laid out.
    fn others(&self, raw: &RawComment, chosen: usize) -> Vec<usize> {
        let below = self.found.tokens.get(raw.tokens_before);
        let mut others = Vec::new();
        let starts = [
            below.map(|token| token.collection),
            self.token_before(raw),
            Some(chosen),
        ];
        for id in starts.into_iter().flatten().flat_map(|id| self.chain(id)) {
            if id != chosen && !others.contains(&id) {
                others.push(id);
            }
        }
        others
    }
}
