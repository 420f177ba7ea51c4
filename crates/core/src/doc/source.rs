//! Source texts, and spans that can be converted to line and column.

/// Identifies a source text within [`Sources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A range of bytes in a source text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The source.
    pub file: FileId,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// Returns the empty span at the very start of `file`.
    pub fn start_of(file: FileId) -> Self {
        Self {
            file,
            start: 0,
            end: 0,
        }
    }
}

/// A position for display: path, line and column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Display path of the source.
    pub path: String,
    /// Line, from one.
    pub line: usize,
    /// Column in characters, from one.
    pub column: usize,
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.path, self.line, self.column)
    }
}

/// A source text. It has no `Debug`: the text may contain secrets.
#[derive(Clone)]
pub struct Source {
    /// Path, for display.
    pub path: String,
    /// The text.
    pub text: String,
    /// Whether the text contains secrets and must never be shown.
    pub secret: bool,
    line_starts: Vec<u32>,
    /// Number of characters before each `STRIDE`th byte; empty if the text is ASCII.
    n_chars: Vec<u32>,
}

/// Bytes between two stored counts of characters. Lines can be very long, so counting from their
/// start each time would be too slow.
const STRIDE: usize = 1 << 10;

impl Source {
    /// Creates a source whose lines may be shown.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        let line_starts = std::iter::once(0)
            .chain(
                text.bytes()
                    .enumerate()
                    .filter(|(_, byte)| *byte == b'\n')
                    .map(|(at, _)| u32::try_from(at + 1).unwrap_or(u32::MAX)),
            )
            .collect();
        let n_chars = if text.is_ascii() {
            Vec::new()
        } else {
            let strides = text.as_bytes().chunks(STRIDE);
            strides
                .scan(0, |before, stride| {
                    let here = *before;
                    *before += count_chars(stride);
                    Some(here)
                })
                .collect()
        };
        Self {
            path: path.into(),
            text,
            secret: false,
            line_starts,
            n_chars,
        }
    }

    /// Creates a source whose lines are never shown.
    pub fn secret(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            secret: true,
            ..Self::new(path, text)
        }
    }

    /// Returns the line (from zero) of the byte at `offset`.
    pub fn line_of(&self, offset: u32) -> usize {
        self.line_starts
            .partition_point(|start| *start <= offset)
            .saturating_sub(1)
    }

    /// Returns the byte range of `line` (from zero), without its line break.
    pub fn line_range(&self, line: usize) -> std::ops::Range<usize> {
        let start = self
            .line_starts
            .get(line)
            .map_or(self.text.len(), |start| *start as usize);
        let end = self
            .line_starts
            .get(line + 1)
            .map_or(self.text.len(), |next| *next as usize);
        let trimmed = self
            .text
            .get(start..end)
            .map_or(0, |text| text.trim_end_matches(['\n', '\r']).len());
        start..start + trimmed
    }
}

impl Source {
    /// Returns the number of characters before the byte at `offset`.
    fn chars_before(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.len());
        let Some(counted) = self.n_chars.get(offset / STRIDE) else {
            // The text is ASCII, or its length is a multiple of the stride.
            return self.n_chars.last().map_or(offset, |counted| {
                let from = (self.n_chars.len() - 1) * STRIDE;
                (*counted + count_chars(&self.text.as_bytes()[from..])) as usize
            });
        };
        let from = offset / STRIDE * STRIDE;
        (*counted + count_chars(&self.text.as_bytes()[from..offset])) as usize
    }
}

/// Counts the characters that start in these bytes.
fn count_chars(bytes: &[u8]) -> u32 {
    let begins = bytes.iter().filter(|byte| **byte & 0xc0 != 0x80);
    u32::try_from(begins.count()).unwrap_or(u32::MAX)
}

/// All source texts of one run, by [`FileId`].
#[derive(Clone, Default)]
pub struct Sources {
    files: Vec<Source>,
}

impl Sources {
    /// Adds a text and returns its id.
    pub fn add(&mut self, source: Source) -> FileId {
        let id = FileId(u32::try_from(self.files.len()).unwrap_or(u32::MAX));
        self.files.push(source);
        id
    }

    /// Returns the source of an id.
    pub fn source(&self, file: FileId) -> Option<&Source> {
        self.files.get(file.0 as usize)
    }

    /// Returns every source with its id.
    pub fn iter(&self) -> impl Iterator<Item = (FileId, &Source)> {
        (0u32..).map(FileId).zip(&self.files)
    }

    /// Returns path, line and column of the start of a span.
    pub fn locate(&self, span: Span) -> Location {
        let Some(source) = self.source(span.file) else {
            return Location {
                path: "(unknown)".into(),
                line: 1,
                column: 1,
            };
        };
        let line = source.line_of(span.start);
        let start = source.line_starts.get(line).copied().unwrap_or(0);
        let before = source
            .chars_before(span.start as usize)
            .saturating_sub(source.chars_before(start as usize));
        Location {
            path: source.path.clone(),
            line: line + 1,
            column: before + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, Sources, Span};

    #[test]
    fn columns_are_counted_in_characters_in_long_lines_too() {
        for (line, newline) in [("é", "\n"), ("aé😀", "\n"), ("a", "\r\n")] {
            let long = line.repeat(3_000);
            let text = format!("{long}{newline}{long}");
            let mut sources = Sources::default();
            let file = sources.add(Source::new("long.yaml", text.as_str()));
            let second = long.len() + newline.len();
            for (at, _) in text.char_indices().chain([(text.len(), ' ')]) {
                let start = u32::try_from(at).unwrap();
                let found = sources.locate(Span {
                    file,
                    start,
                    end: start,
                });
                let line_start = if at < second { 0 } else { second };
                let column = text[line_start..at].chars().count() + 1;
                assert_eq!(found.column, column, "byte {at}");
            }
        }
    }
}
