//! Finds the exact bytes of every key and value, and what stands between them.
//!
//! In: a text and its tree. Out: [`Found`]: tokens in document order, raw comments.
//! Never: guessing; text that does not fit the tree is an error.

use std::collections::VecDeque;
use std::ops::Range;

use homestak_core::doc::tree::Meaning;
use homestak_core::doc::{Data, Entry, Scalar, Style, Value};

use super::{Collection, Item, LayoutError, Leaf};
use crate::scalar;

/// A key or a value that has bytes.
pub(super) struct Token {
    pub(super) start: usize,
    pub(super) collection: usize,
}

/// A comment before anyone knows where it belongs.
pub(super) struct RawComment {
    pub(super) range: Range<usize>,
    /// How many tokens stand before it.
    pub(super) tokens_before: usize,
}

/// All that was found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) collections: Vec<Collection>,
    pub(super) leaves: Vec<Leaf>,
    pub(super) tokens: Vec<Token>,
    pub(super) comments: Vec<RawComment>,
    pub(super) odd_key: Option<String>,
    pub(super) metadata: Option<Range<usize>>,
}

/// Walks the tree and the text side by side.
pub(super) fn find(text: &str, root: &Value) -> Result<Found, LayoutError> {
    let mut finder = Finder {
        text,
        cursor: 0,
        dashes: VecDeque::new(),
        found: Found::default(),
    };
    finder.collection(root, Vec::new(), None)?;
    finder.gap(text.len())?;
    Ok(finder.found)
}

struct Finder<'t> {
    text: &'t str,
    /// Everything before this byte has been looked at.
    cursor: usize,
    /// List items whose dash has not been seen yet: collection and position in it.
    dashes: VecDeque<(usize, usize)>,
    found: Found,
}

impl Finder<'_> {
    fn collection(
        &mut self,
        value: &Value,
        path: Vec<String>,
        parent: Option<usize>,
    ) -> Result<usize, LayoutError> {
        let id = self.found.collections.len();
        let start = value.span.start as usize;
        // An alias of a collection: its places lie behind us, or it is empty.
        if self.text[start..].starts_with('*') {
            return Err(LayoutError::Alias);
        }
        let first = match &value.data {
            Data::Seq(items) => items.first().map(|item| item.span.start as usize),
            Data::Map(entries) => entries.first().map(|entry| entry.key.span.start as usize),
            Data::Scalar(_) => None,
        };
        // A block list may start where its first item does, and that may be a bracket.
        let bracket = self
            .text
            .get(start..)
            .is_some_and(|rest| rest.starts_with(['[', '{']));
        let flow = bracket && first != Some(start);
        self.found.collections.push(Collection {
            path: path.clone(),
            flow,
            parent,
            column: 0,
            entry: 0,
            items: Vec::new(),
        });
        match &value.data {
            Data::Map(entries) => {
                for entry in entries {
                    self.entry(id, entry, &path)?;
                }
            }
            Data::Seq(items) => {
                for item in items {
                    let at = item.span.start as usize;
                    if !flow {
                        let position = self.found.collections[id].items.len();
                        self.dashes.push_back((id, position));
                    }
                    self.value(id, item, &path, at)?;
                }
            }
            Data::Scalar(_) => return Err(LayoutError::Lost { at: start }),
        }
        Ok(id)
    }

    fn entry(&mut self, id: usize, entry: &Entry, path: &[String]) -> Result<(), LayoutError> {
        let start = entry.key.span.start as usize;
        self.gap(start)?;
        if self.text[start..].starts_with(['&', '*']) {
            return Err(LayoutError::Alias);
        }
        let quoted = self.text[start..].starts_with(['"', '\'']);
        let style = if quoted { Style::Quoted } else { Style::Plain };
        let range = self.extent(start, entry.key.span.end as usize, style)?;
        if !self.found.collections[id].flow && self.found.collections[id].items.is_empty() {
            self.found.collections[id].column = start - line_start(self.text, start);
        }
        if id == 0 && entry.key.text == "sops" {
            return self.metadata(start, entry);
        }
        if !quoted && !scalar::is_text(&entry.key.text) && self.found.odd_key.is_none() {
            self.found.odd_key = Some(entry.key.text.clone());
        }
        self.token(range, id);
        let mut path = path.to_vec();
        path.push(entry.key.text.clone());
        self.value(id, &entry.value, &path, start)
    }

    /// Steps over the `sops` entry and remembers its lines.
    fn metadata(&mut self, start: usize, entry: &Entry) -> Result<(), LayoutError> {
        let first = line_start(self.text, start);
        let last = (entry.value.span.end as usize).max(start);
        let ends_line = self.text[..last].ends_with('\n');
        let end = if ends_line {
            last
        } else {
            (line_end(self.text, last) + 1).min(self.text.len())
        };
        self.found.metadata = Some(first..end);
        self.cursor = end;
        Ok(())
    }

    fn value(
        &mut self,
        id: usize,
        value: &Value,
        path: &[String],
        entry: usize,
    ) -> Result<(), LayoutError> {
        let position = self.found.collections[id].items.len();
        let Data::Scalar(scalar) = &value.data else {
            // The place is taken first, so that what is inside comes after it.
            self.found.collections[id].items.push((entry, Item::Null));
            let child = self.collection(value, path.to_vec(), Some(id))?;
            self.found.collections[id].items[position].1 = Item::Child(child);
            return Ok(());
        };
        if scalar.style == Style::Plain && scalar.text.is_empty() {
            self.found.collections[id].items.push((entry, Item::Null));
            return Ok(());
        }
        let nth = self.found.leaves.len();
        let null = scalar.meaning() == Meaning::Null;
        let item = if null { Item::Null } else { Item::Leaf(nth) };
        self.found.collections[id].items.push((entry, item));
        let (range, cut) = self.bytes_of(value, scalar)?;
        self.token(range.clone(), id);
        if let Some(cut) = &cut {
            self.cursor = cut.end;
        }
        if !null {
            self.found.leaves.push(Leaf {
                path: path.to_vec(),
                scalar: scalar.clone(),
                range,
                cut,
                flow: self.found.collections[id].flow,
                collection: id,
            });
        }
        Ok(())
    }

    fn bytes_of(
        &mut self,
        value: &Value,
        scalar: &Scalar,
    ) -> Result<(Range<usize>, Option<Range<usize>>), LayoutError> {
        let (start, end) = (value.span.start as usize, value.span.end as usize);
        if scalar.style == Style::Block {
            return self.block(end).map(|(range, cut)| (range, Some(cut)));
        }
        self.gap(start)?;
        let rest = self
            .text
            .get(start..)
            .ok_or(LayoutError::Lost { at: start })?;
        if rest.starts_with(['*', '&']) {
            return Err(LayoutError::Alias);
        }
        let mut content = start;
        if rest.starts_with('!') {
            let tag = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let space = rest[tag..]
                .find(|c: char| !c.is_whitespace())
                .unwrap_or_default();
            content += tag + space;
            if self.text[content..].starts_with('&') {
                return Err(LayoutError::Alias);
            }
        }
        let style = if self.text[content..].starts_with(['"', '\'']) {
            Style::Quoted
        } else {
            Style::Plain
        };
        let exact = self.extent(content, end, style)?;
        Ok((start..exact.end, None))
    }

    /// Finds header and lines of a `|` or `>` block, whose span covers the lines only.
    fn block(&mut self, end: usize) -> Result<(Range<usize>, Range<usize>), LayoutError> {
        let lost = LayoutError::Lost { at: self.cursor };
        self.gap_until(self.text.len(), |c| matches!(c, b'|' | b'>'))?;
        let start = self.cursor;
        if start >= self.text.len() {
            return Err(lost);
        }
        let header_end = line_end(self.text, start);
        let header = &self.text[start..header_end];
        let marks = header
            .find(|c: char| c.is_whitespace() || c == '#')
            .unwrap_or(header.len());
        // Blank lines after the last line stay; spaces at its end are part of the value.
        let filled = self.text[..end.max(header_end)].trim_end().len();
        let content = line_end(self.text, filled);
        // A comment behind the header stays; the lines below it go.
        self.cursor = start + marks;
        self.found.tokens.push(Token {
            start,
            collection: usize::MAX,
        });
        self.gap(header_end)?;
        self.found.tokens.pop();
        Ok((start..start + marks, header_end..content.max(header_end)))
    }

    /// Returns the bytes of a key or value, whose span may run on over a comment.
    fn extent(&self, start: usize, end: usize, style: Style) -> Result<Range<usize>, LayoutError> {
        let bytes = self.text.as_bytes();
        if style == Style::Plain {
            let length = self
                .text
                .get(start..end)
                .ok_or(LayoutError::Lost { at: start })?
                .trim_end()
                .len();
            return Ok(start..start + length);
        }
        let quote = bytes[start];
        let mut at = start + 1;
        while let Some(byte) = bytes.get(at) {
            let doubled = quote == b'\'' && bytes.get(at + 1) == Some(&b'\'');
            match *byte {
                b'\\' if quote == b'"' => at += 1,
                byte if byte == quote && doubled => at += 1,
                byte if byte == quote => return Ok(start..at + 1),
                _ => {}
            }
            at += 1;
        }
        Err(LayoutError::Lost { at: start })
    }

    fn token(&mut self, range: Range<usize>, collection: usize) {
        self.cursor = self.cursor.max(range.end);
        self.found.tokens.push(Token {
            start: range.start,
            collection,
        });
    }

    /// Looks at what stands between two tokens.
    fn gap(&mut self, to: usize) -> Result<(), LayoutError> {
        // An alias repeats a tree whose places lie behind us.
        if to < self.cursor {
            return Err(LayoutError::Alias);
        }
        self.gap_until(to, |_| false)
    }

    fn gap_until(&mut self, to: usize, stop: impl Fn(u8) -> bool) -> Result<(), LayoutError> {
        let bytes = self.text.as_bytes();
        let mut at = self.cursor;
        while at < to {
            let before = at.checked_sub(1).map_or(b'\n', |before| bytes[before]);
            let after = bytes.get(at + 1).copied().unwrap_or(b'\n');
            match bytes[at] {
                b'#' if before.is_ascii_whitespace() => {
                    let end = line_end(self.text, at);
                    self.found.comments.push(RawComment {
                        range: at..end,
                        tokens_before: self.found.tokens.len(),
                    });
                    at = end;
                    continue;
                }
                b'&' | b'*' => return Err(LayoutError::Alias),
                b'<' if after == b'<' => return Err(LayoutError::Alias),
                b'-' if before != b'-' && after.is_ascii_whitespace() => self.dash(at),
                byte if stop(byte) => break,
                _ => {}
            }
            at += 1;
        }
        self.cursor = at.max(self.cursor);
        Ok(())
    }

    /// Gives a dash to the list item that has waited longest for one.
    fn dash(&mut self, at: usize) {
        let Some((id, position)) = self.dashes.pop_front() else {
            return;
        };
        let column = at - line_start(self.text, at);
        let collection = &mut self.found.collections[id];
        collection.column = column;
        if let Some(item) = collection.items.get_mut(position) {
            item.0 = at;
        }
    }
}

pub(super) fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// Returns where the line ends that holds the byte `at`, before its line break.
pub(crate) fn line_end(text: &str, at: usize) -> usize {
    let end = text[at..]
        .find('\n')
        .map_or(text.len(), |newline| at + newline);
    at + text[at..end].trim_end_matches('\r').len()
}
