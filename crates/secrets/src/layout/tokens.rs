//! Finds the byte ranges of all keys, values and comments by comparing the text with its tree. Text
//! that does not match the tree is an error.

use std::collections::VecDeque;
use std::ops::Range;

use homestak_core::doc::tree::Meaning;
use homestak_core::doc::{Data, Entry, Scalar, Style, Value};

use super::{Collection, Item, LayoutError, Leaf};
use crate::scalar;

/// A key or a value with text.
pub(super) struct Token {
    pub(super) start: usize,
    pub(super) collection: usize,
}

/// A comment that is not assigned to a collection yet.
pub(super) struct RawComment {
    pub(super) range: Range<usize>,
    /// Number of tokens before it.
    pub(super) tokens_before: usize,
}

/// The result of a scan.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) collections: Vec<Collection>,
    pub(super) leaves: Vec<Leaf>,
    pub(super) tokens: Vec<Token>,
    pub(super) comments: Vec<RawComment>,
    pub(super) non_string_key: Option<String>,
    pub(super) metadata: Option<Range<usize>>,
}

/// Scans the text along its tree.
pub(super) fn scan(text: &str, root: &Value) -> Result<Scan, LayoutError> {
    let mut scanner = Scanner {
        text,
        cursor: 0,
        dashes: VecDeque::new(),
        scan: Scan::default(),
    };
    scanner.collection(root, Vec::new(), None)?;
    scanner.gap(text.len())?;
    Ok(scanner.scan)
}

struct Scanner<'t> {
    text: &'t str,
    /// Everything before this byte has been scanned.
    cursor: usize,
    /// List items whose dash has not been scanned yet: collection and position.
    dashes: VecDeque<(usize, usize)>,
    scan: Scan,
}

impl Scanner<'_> {
    fn collection(
        &mut self,
        value: &Value,
        path: Vec<String>,
        parent: Option<usize>,
    ) -> Result<usize, LayoutError> {
        let id = self.scan.collections.len();
        let start = value.span.start as usize;
        // An alias of a collection: its spans are earlier, or it is empty.
        if self.text[start..].starts_with('*') {
            return Err(LayoutError::Alias);
        }
        let first = match &value.data {
            Data::Seq(items) => items.first().map(|item| item.span.start as usize),
            Data::Map(entries) => entries.first().map(|entry| entry.key.span.start as usize),
            Data::Scalar(_) => None,
        };
        // A block list may start with its first item, which may be a flow collection.
        let bracket = self
            .text
            .get(start..)
            .is_some_and(|rest| rest.starts_with(['[', '{']));
        let flow = bracket && first != Some(start);
        self.scan.collections.push(Collection {
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
                        let position = self.scan.collections[id].items.len();
                        self.dashes.push_back((id, position));
                    }
                    self.value(id, item, &path, at)?;
                }
            }
            Data::Scalar(_) => return Err(LayoutError::NotFound { at: start }),
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
        if !self.scan.collections[id].flow && self.scan.collections[id].items.is_empty() {
            self.scan.collections[id].column = start - line_start(self.text, start);
        }
        if id == 0 && entry.key.text == "sops" {
            return self.metadata(start, entry);
        }
        if !quoted && !scalar::is_text(&entry.key.text) && self.scan.non_string_key.is_none() {
            self.scan.non_string_key = Some(entry.key.text.clone());
        }
        self.token(range, id);
        let mut path = path.to_vec();
        path.push(entry.key.text.clone());
        self.value(id, &entry.value, &path, start)
    }

    /// Skips the `sops` block and stores its lines.
    fn metadata(&mut self, start: usize, entry: &Entry) -> Result<(), LayoutError> {
        let first = line_start(self.text, start);
        let last = (entry.value.span.end as usize).max(start);
        let ends_line = self.text[..last].ends_with('\n');
        let end = if ends_line {
            last
        } else {
            (line_end(self.text, last) + 1).min(self.text.len())
        };
        self.scan.metadata = Some(first..end);
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
        let position = self.scan.collections[id].items.len();
        let Data::Scalar(scalar) = &value.data else {
            // The item is added first, so that its children follow it.
            self.scan.collections[id].items.push((entry, Item::Null));
            let child = self.collection(value, path.to_vec(), Some(id))?;
            self.scan.collections[id].items[position].1 = Item::Child(child);
            return Ok(());
        };
        if scalar.style == Style::Plain && scalar.text.is_empty() {
            self.scan.collections[id].items.push((entry, Item::Null));
            return Ok(());
        }
        let nth = self.scan.leaves.len();
        let null = scalar.meaning() == Meaning::Null;
        let item = if null { Item::Null } else { Item::Leaf(nth) };
        self.scan.collections[id].items.push((entry, item));
        let (range, cut) = self.bytes_of(value, scalar)?;
        self.token(range.clone(), id);
        if let Some(cut) = &cut {
            self.cursor = cut.end;
        }
        if !null {
            self.scan.leaves.push(Leaf {
                path: path.to_vec(),
                scalar: scalar.clone(),
                range,
                cut,
                flow: self.scan.collections[id].flow,
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
            .ok_or(LayoutError::NotFound { at: start })?;
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

    /// Finds header and lines of a `|` or `>` block, whose span covers only the lines.
    fn block(&mut self, end: usize) -> Result<(Range<usize>, Range<usize>), LayoutError> {
        let lost = LayoutError::NotFound { at: self.cursor };
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
        // Trailing blank lines stay; trailing spaces are part of the value.
        let filled = self.text[..end.max(header_end)].trim_end().len();
        let content = line_end(self.text, filled);
        // A comment after the header stays; the lines below are removed.
        self.cursor = start + marks;
        self.scan.tokens.push(Token {
            start,
            collection: usize::MAX,
        });
        self.gap(header_end)?;
        self.scan.tokens.pop();
        Ok((start..start + marks, header_end..content.max(header_end)))
    }

    /// Returns the range of a key or value, whose span may include a comment.
    fn extent(&self, start: usize, end: usize, style: Style) -> Result<Range<usize>, LayoutError> {
        let bytes = self.text.as_bytes();
        if style == Style::Plain {
            let length = self
                .text
                .get(start..end)
                .ok_or(LayoutError::NotFound { at: start })?
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
        Err(LayoutError::NotFound { at: start })
    }

    fn token(&mut self, range: Range<usize>, collection: usize) {
        self.cursor = self.cursor.max(range.end);
        self.scan.tokens.push(Token {
            start: range.start,
            collection,
        });
    }

    /// Scans the text between two tokens.
    fn gap(&mut self, to: usize) -> Result<(), LayoutError> {
        // The spans of an alias are those of its anchor, which are earlier.
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
                    self.scan.comments.push(RawComment {
                        range: at..end,
                        tokens_before: self.scan.tokens.len(),
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

    /// Assigns a dash to the first list item without one.
    fn dash(&mut self, at: usize) {
        let Some((id, position)) = self.dashes.pop_front() else {
            return;
        };
        let column = at - line_start(self.text, at);
        let collection = &mut self.scan.collections[id];
        collection.column = column;
        if let Some(item) = collection.items.get_mut(position) {
            item.0 = at;
        }
    }
}

pub(super) fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// Returns the end of the line of the byte `at`, before its line break.
pub(crate) fn line_end(text: &str, at: usize) -> usize {
    let end = text[at..]
        .find('\n')
        .map_or(text.len(), |newline| at + newline);
    at + text[at..end].trim_end_matches('\r').len()
}
