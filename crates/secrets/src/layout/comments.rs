//! Assigns each comment to a collection as SOPS does.

use super::tokens::{RawComment, Scan, line_start};
use super::{Comment, Item, Layout};

/// Completes a layout.
pub(super) fn assign(text: &str, scan: Scan) -> Layout {
    let mut assigner = CommentAssigner { text, scan };
    assigner.link();
    let raw = std::mem::take(&mut assigner.scan.comments);
    let mut comments = Vec::with_capacity(raw.len());
    for (nth, comment) in raw.into_iter().enumerate() {
        comments.push(assigner.assign(nth, comment));
    }
    Layout {
        collections: assigner.scan.collections,
        leaves: assigner.scan.leaves,
        comments,
        non_string_key: assigner.scan.non_string_key,
        metadata: assigner.scan.metadata,
    }
}

struct CommentAssigner<'t> {
    text: &'t str,
    scan: Scan,
}

impl CommentAssigner<'_> {
    /// Sets the start of the entry of every collection in its parent, including the dash.
    fn link(&mut self) {
        for id in 0..self.scan.collections.len() {
            for nth in 0..self.scan.collections[id].items.len() {
                if let (at, Item::Child(child)) = self.scan.collections[id].items[nth] {
                    self.scan.collections[child].entry = at;
                }
            }
        }
    }

    fn assign(&mut self, nth: usize, raw: RawComment) -> Comment {
        let start = raw.range.start;
        let line = line_start(self.text, start);
        let before = self.text[line..start].trim();
        let own_line = before.chars().all(|c| c == '-');
        let collection = if own_line {
            self.of_own_line(&raw, start - line)
        } else {
            self.of_line_end(&raw)
        };
        let items = &mut self.scan.collections[collection].items;
        let following = items.partition_point(|(at, _)| *at < start);
        // SOPS moves a comment at the end of a line before its entry.
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

    /// A comment at the end of a line belongs to the collection of that entry.
    fn of_line_end(&self, raw: &RawComment) -> usize {
        let mut id = self.token_before(raw).unwrap_or_default();
        while let Some(parent) = self.scan.collections[id]
            .parent
            .filter(|_| self.scan.collections[id].flow)
        {
            id = parent;
        }
        id
    }

    /// A comment line belongs to the entry below it, unless it is indented deeper: then it belongs
    /// to the end of the collection above.
    fn of_own_line(&self, raw: &RawComment, column: usize) -> usize {
        if let Some(token) = self.scan.tokens.get(raw.tokens_before) {
            let line = line_start(self.text, token.start);
            let indent = self.text[line..].len() - self.text[line..].trim_start().len();
            if column <= indent {
                let mut id = token.collection;
                while let Some(parent) = self.scan.collections[id].parent.filter(|_| {
                    let entry = self.scan.collections[id].entry;
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
        let ancestors = self.ancestors(above);
        ancestors
            .into_iter()
            .find(|id| {
                let collection = &self.scan.collections[*id];
                !collection.flow && collection.column <= column
            })
            .unwrap_or_default()
    }

    fn token_before(&self, raw: &RawComment) -> Option<usize> {
        let before = raw.tokens_before.checked_sub(1)?;
        self.scan.tokens.get(before).map(|token| token.collection)
    }

    /// Returns a collection and its parents, innermost first.
    fn ancestors(&self, id: usize) -> Vec<usize> {
        std::iter::successors(Some(id), |id| self.scan.collections[*id].parent).collect()
    }

    /// Returns other possible collections of the comment, for files in the layout of other tools.
    fn others(&self, raw: &RawComment, chosen: usize) -> Vec<usize> {
        let below = self.scan.tokens.get(raw.tokens_before);
        let mut others = Vec::new();
        let starts = [
            below.map(|token| token.collection),
            self.token_before(raw),
            Some(chosen),
        ];
        for id in starts
            .into_iter()
            .flatten()
            .flat_map(|id| self.ancestors(id))
        {
            if id != chosen && !others.contains(&id) {
                others.push(id);
            }
        }
        others
    }
}
