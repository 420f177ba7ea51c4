//! Byte ranges of all values and comments of a document, in the order in which SOPS processes them.

mod comments;
mod tokens;

use std::ops::Range;

use homestak_core::doc::{Scalar, Value};

pub(crate) use tokens::line_end;

/// Why a document cannot be encrypted or decrypted in place.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayoutError {
    /// Aliases and merge keys share values, but encryption is bound to the path.
    #[error(
        "anchors (`&`), aliases (`*`) and merge keys (`<<`) cannot be encrypted; write the values instead"
    )]
    Alias,
    /// The position of a value was not found.
    #[error("the layout near byte {at} is not supported; write the value in a simpler form")]
    NotFound {
        /// Byte offset.
        at: usize,
    },
}

/// The layout of a document.
pub(crate) struct Layout {
    /// Collections; the first is the whole document.
    pub(crate) collections: Vec<Collection>,
    /// Values that are not null, in document order.
    pub(crate) leaves: Vec<Leaf>,
    /// Comments, in document order.
    pub(crate) comments: Vec<Comment>,
    /// A plain key that is a number, boolean or null; SOPS supports only strings.
    pub(crate) non_string_key: Option<String>,
    /// The lines of the `sops` block, if any.
    pub(crate) metadata: Option<Range<usize>>,
}

/// A mapping or a list.
pub(crate) struct Collection {
    /// Path of keys; positions in lists are not part of it.
    pub(crate) path: Vec<String>,
    /// Whether it is in flow style.
    pub(crate) flow: bool,
    parent: Option<usize>,
    /// Column of its entries, in bytes.
    column: usize,
    /// Start of its entry in the parent.
    entry: usize,
    /// Its items, each with its first byte.
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
    /// Path of keys.
    pub(crate) path: Vec<String>,
    /// The value.
    pub(crate) scalar: Scalar,
    /// The bytes to replace.
    pub(crate) range: Range<usize>,
    /// The lines of a block scalar, which are removed.
    pub(crate) cut: Option<Range<usize>>,
    /// Whether it is in a flow collection, where commas matter.
    pub(crate) flow: bool,
    /// Its collection.
    pub(crate) collection: usize,
}

/// A comment, from its `#` to the end of the line.
pub(crate) struct Comment {
    /// Its bytes, `#` included.
    pub(crate) range: Range<usize>,
    /// Its collection.
    pub(crate) collection: usize,
    /// Other collections that another parser might assign it to, nearest first.
    pub(crate) others: Vec<usize>,
}

/// An item of a walk.
pub(crate) enum WalkItem<'a> {
    /// A value with its index.
    Leaf(usize, &'a Leaf),
    /// A comment with its index.
    Comment(usize, &'a Comment),
}

impl Layout {
    /// Finds all values and comments of `root`, without the `sops` block.
    pub(crate) fn of(text: &str, root: &Value) -> Result<Self, LayoutError> {
        let scan = tokens::scan(text, root)?;
        Ok(comments::assign(text, scan))
    }

    /// Returns the indentation of block lines in `collection`.
    pub(crate) fn indent(&self, collection: usize) -> usize {
        self.collections[collection].column + 2
    }

    /// Calls `visit` for every value and comment in the order of SOPS, with the applicable
    /// comments: one list per enclosing collection, cleared after each entry.
    pub(crate) fn walk<E>(
        &self,
        text: &str,
        visit: &mut impl FnMut(WalkItem<'_>, &[String], &[Vec<String>]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.walk_collection(0, text, &mut Vec::new(), visit)
    }

    fn walk_collection<E>(
        &self,
        id: usize,
        text: &str,
        stack: &mut Vec<Vec<String>>,
        visit: &mut impl FnMut(WalkItem<'_>, &[String], &[Vec<String>]) -> Result<(), E>,
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
                    visit(WalkItem::Comment(nth, comment), &collection.path, stack)?;
                    continue;
                }
                Item::Leaf(nth) => {
                    let leaf = &self.leaves[nth];
                    visit(WalkItem::Leaf(nth, leaf), &leaf.path, stack)?;
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
    /// Returns the text after `#`.
    pub(crate) fn text<'t>(&self, text: &'t str) -> &'t str {
        text.get(self.range.start + 1..self.range.end)
            .unwrap_or_default()
    }
}

/// Returns the additional data of a value: its path.
pub(crate) fn aad(path: &[String]) -> String {
    format!("{}:", path.join(":"))
}

/// Replaces byte ranges, which must not overlap.
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
