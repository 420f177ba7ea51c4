//! How big a tree is, so that the reader can refuse to copy it too often.
//!
//! In: a [`Value`]. Out: [`Size`].
//! Never: a limit; those are the reader's.

use super::tree::{Data, Value};

/// How big a tree is.
#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    /// Itself and everything in it, without keys.
    pub(super) values: usize,
    /// Text of scalars and keys.
    pub(super) bytes: usize,
    /// How many lists and mappings lie in one another.
    pub(super) depth: usize,
}

/// Measures a tree. The reader bounds depth, so recursion is bounded.
pub(super) fn size(value: &Value) -> Size {
    let mut total = Size {
        values: 1,
        bytes: 0,
        depth: usize::from(value.scalar().is_none()),
    };
    let mut add = |value: &Value| {
        let inner = size(value);
        total.values += inner.values;
        total.bytes += inner.bytes;
        total.depth = total.depth.max(inner.depth + 1);
    };
    match &value.data {
        Data::Scalar(scalar) => total.bytes += scalar.text.len(),
        Data::Seq(items) => items.iter().for_each(add),
        Data::Map(entries) => {
            entries.iter().for_each(|entry| add(&entry.value));
            let keys = entries.iter().map(|entry| entry.key.text.len());
            total.bytes += keys.sum::<usize>();
        }
    }
    total
}
