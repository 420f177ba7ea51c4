//! Where every value and comment of a document stands, in the order SOPS walks them.
//!
//! In: a text and its tree. Out: [`Layout`]: collections, values, comments, with byte ranges.
//! Never: changing the text, knowing about encryption.

mod comments;
mod tokens;

use std::ops::Range;

use homestak_core::doc::{Scalar, Value};

pub(crate) use tokens::line_end;

/// What a document contains that cannot be sealed or opened in place.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayoutError {
    /// Aliases and merge keys make two places one, which encryption by path cannot.
    #[error(
        "anchors (`&`), aliases (`*`) and merges (`<<`) cannot be sealed; write the values out"
    )]
    Alias,
    /// The place of a value was not found.
    #[error("the layout near byte {at} is not understood; write the value in a simpler form")]
    Lost {
        /// Where, in bytes.
        at: usize,
    },
}

/// A document by place.
pub(crate) struct Layout {
    /// Collections; the first is the whole document.
    pub(crate) collections: Vec<Collection>,
    /// Values that are not null, in document order.
    pub(crate) leaves: Vec<Leaf>,
    /// Comments, in document order.
    pub(crate) comments: Vec<Comment>,
    /// A plain key that YAML reads as a number, boolean or null; SOPS takes text only.
    pub(crate) odd_key: Option<String>,
    /// The lines of the `sops` entry, when there is one.
    pub(crate) metadata: Option<Range<usize>>,
}

/// A mapping or a list.
pub(crate) struct Collection {
    /// Keys from the document down to it; positions in lists are not part of it.
    pub(crate) path: Vec<String>,
    /// Whether it is written with brackets.
    pub(crate) flow: bool,
    parent: Option<usize>,
    /// Column of its entries, in bytes.
    column: usize,
    /// Where its own entry in the parent starts.
    entry: usize,
    /// What it holds, each with its first byte.
    items: Vec<(usize, Item)>,
}

#[derive(Clone, Copy)]
enum Item {
    Leaf(usize),
    Comment(usize),
    Child(usize),
    Null,
}

/// A value.
pub(crate) struct Leaf {
    /// Keys from the document down to it.
    pub(crate) path: Vec<String>,
    /// The value as written.
    pub(crate) scalar: Scalar,
    /// The bytes to replace.
    pub(crate) range: Range<usize>,
    /// Further bytes that belong to it: the lines of a block.
    pub(crate) cut: Option<Range<usize>>,
    /// Whether it stands between brackets, where commas matter.
    pub(crate) flow: bool,
    /// The collection it stands in.
    pub(crate) collection: usize,
}

/// A comment, from its `#` to the end of the line.
pub(crate) struct Comment {
    /// Its bytes, `#` included.
    pub(crate) range: Range<usize>,
    /// The collection it belongs to.
    pub(crate) collection: usize,
    /// Other collections another reader might put it in, nearest first.
    pub(crate) others: Vec<usize>,
}

/// What a walk comes across.
pub(crate) enum Visit<'a> {
    /// A value, by number.
    Leaf(usize, &'a Leaf),
    /// A comment, by number.
    Comment(usize, &'a Comment),
}

impl Layout {
    /// Finds the places of all values and comments of `root`, leaving out a `sops` entry.
    pub(crate) fn of(text: &str, root: &Value) -> Result<Self, LayoutError> {
        let found = tokens::find(text, root)?;
        Ok(comments::place(text, found))
    }

    /// Returns how far the lines of a block below `collection` are to be indented.
    pub(crate) fn indent(&self, collection: usize) -> usize {
        self.collections[collection].column + 2
    }

    /// Calls `visit` for every value and comment, in the order SOPS does, with the comments in
    /// force: one list per collection around it, cleared after each entry.
    pub(crate) fn walk<E>(
        &self,
        text: &str,
        visit: &mut impl FnMut(Visit<'_>, &[String], &[Vec<String>]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.walk_collection(0, text, &mut Vec::new(), visit)
    }

    fn walk_collection<E>(
        &self,
        id: usize,
        text: &str,
        stack: &mut Vec<Vec<String>>,
        visit: &mut impl FnMut(Visit<'_>, &[String], &[Vec<String>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let collection = &self.collections[id];
        stack.push(Vec::new());
        for (_, item) in &collection.items {
            match *item {
                Item::Comment(nth) => {
                    let comment = &self.comments[nth];
                    let line = comment.text(text).to_owned();
                    if let Some(top) = stack.last_mut() {
                        top.push(line);
                    }
                    visit(Visit::Comment(nth, comment), &collection.path, stack)?;
                    continue;
                }
                Item::Leaf(nth) => {
                    let leaf = &self.leaves[nth];
                    visit(Visit::Leaf(nth, leaf), &leaf.path, stack)?;
                }
                Item::Child(child) => self.walk_collection(child, text, stack, visit)?,
                Item::Null => {}
            }
            if let Some(top) = stack.last_mut() {
                top.clear();
            }
        }
        stack.pop();
        Ok(())
    }
}

impl Comment {
    /// Returns the comment behind its `#`.
    pub(crate) fn text<'t>(&self, text: &'t str) -> &'t str {
        text.get(self.range.start + 1..self.range.end)
            .unwrap_or_default()
    }
}

/// Joins a path as SOPS binds it to a value.
pub(crate) fn place_name(path: &[String]) -> String {
    format!("{}:", path.join(":"))
}

/// Replaces byte ranges that do not overlap.
pub(crate) fn replace(text: &str, mut edits: Vec<(Range<usize>, String)>) -> String {
    edits.sort_by_key(|(range, _)| range.start);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for (range, new) in edits {
        out.push_str(text.get(at..range.start).unwrap_or_default());
        out.push_str(&new);
        at = range.end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests;
