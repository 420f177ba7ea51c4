//! The size of a tree, used to limit the expansion of aliases.

use super::tree::{Data, Value};

/// The size of a tree.
#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    /// Number of values, without keys.
    pub(super) values: usize,
    /// Bytes of scalars and keys.
    pub(super) bytes: usize,
    /// Nesting depth.
    pub(super) depth: usize,
}

/// Measures a tree. The parser limits the depth, and so the recursion.
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
